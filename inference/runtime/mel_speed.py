"""Speaking faster or slower by reading the mel at another pace; pitch stays (SPEC 7.1).

The mel is read in steps of `speed` frames, straight lines between frames. The step is exactly `speed`, whatever the
length, hence a mel that arrives in pieces gives the same frames as one that is there whole. (The original stretches
its step so that the last frame falls on the end, which needs the length beforehand; `exact` does that.)
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def change_speed(mel: Tensor, speed: float, exact: bool = False) -> Tensor:
    """mel (B, 80, T) → (B, 80, int(T / speed)), at least one frame. The same tensor at speed 1."""
    if speed == 1.0:
        return mel
    if exact:
        count = max(1, int(mel.shape[2] / speed))
        return F.interpolate(mel, size=count, mode="linear", align_corners=False)
    return MelSpeed(speed).push(mel, final=True)


class MelSpeed:
    """`change_speed` for a mel that arrives in pieces: all results together equal the whole."""

    def __init__(self, speed: float) -> None:
        self._speed = speed
        self._received = 0
        self._emitted = 0
        self._kept: Tensor | None = None  # frames that coming ones are still drawn from
        self._kept_start = 0

    def push(self, mel: Tensor, final: bool) -> Tensor:
        """mel (B, 80, M), M ≥ 0 → the frames that are certain now (B, 80, K), all that are left when `final`."""
        if self._speed == 1.0:
            return mel
        kept = mel if self._kept is None else torch.cat((self._kept, mel), dim=2)
        self._received += mel.shape[2]
        end = self._end(final)
        places = (torch.arange(self._emitted, end, dtype=torch.float64) + 0.5) * self._speed - 0.5
        result = self._read(kept, places.clamp(0.0, max(0.0, self._received - 1.0)))
        self._emitted = end
        self._forget(kept)
        return result

    def _end(self, final: bool) -> int:
        """One past the last frame that can be read: both its neighbours must have come, unless nothing more does."""
        if final:
            least = 1 if self._received else 0
            return max(self._emitted, least, int(self._received / self._speed))
        end = self._emitted
        sure = int(self._received / self._speed)  # the whole may end here: no frame beyond its length
        while end < sure and (end + 0.5) * self._speed - 0.5 <= self._received - 1:
            end += 1
        return end

    def _read(self, kept: Tensor, places: Tensor) -> Tensor:
        """(B, 80, K): straight lines between frames. Places are computed on the CPU: no wait for the device."""
        lower = places.floor()
        share = (places - lower).to(kept.device, kept.dtype, non_blocking=True)
        first = lower.long() - self._kept_start
        second = (first + 1).clamp_max(max(0, kept.shape[2] - 1))
        before = kept[:, :, first.to(kept.device, non_blocking=True)]
        after = kept[:, :, second.to(kept.device, non_blocking=True)]
        return before + (after - before) * share

    def _forget(self, kept: Tensor) -> None:
        """Drop the frames before the one that the next result starts from, but never the newest."""
        following = int(max(0.0, (self._emitted + 0.5) * self._speed - 0.5))
        keep_from = max(self._kept_start, min(following, self._received - 1))
        self._kept = kept[:, :, keep_from - self._kept_start :]
        self._kept_start = keep_from
