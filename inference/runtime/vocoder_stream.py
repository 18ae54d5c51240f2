"""Sound in pieces that join without a seam: vocoder state, source continuity and cross-fade of a request (SPEC 7.3).

Every piece but the last holds back eight frames. The next piece is computed from those frames on and faded in over
them. Two things differ from the original unless `exact` is asked for: the fade's halves sum to 1 (the original's to
1.08, a bump of 0.7 dB), and the harmonics' phases run on where the original restarts them behind the overlap.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from inference.models.counter_noise import counter_normal
from inference.models.source import Excitation
from inference.models.vocoder import Vocoder
from inference.runtime.mel_speed import MelSpeed

OVERLAP_FRAMES = 8


@dataclass(frozen=True)
class VocoderState:
    """What is kept of a stream after a piece; k ≤ 8 overlap frames (fewer only when fewer have come)."""

    mel: Tensor  # (1, 80, k)
    source: Tensor  # (1, 1, 480 * k)
    speech: Tensor  # (1, 480 * k), computed but not yet given out
    cycles: Tensor | None  # (1, harmonics) phases at the centre of the last frame; None in exact mode
    frame: int  # place of mel[:, :, 0] in the stream


@lru_cache(maxsize=16)
def fade_window(size: int, exact: bool, device: torch.device) -> tuple[Tensor, Tensor]:
    """(rising, falling), `size` float32 values each. Computed in float64 (SPEC 8).

    `exact`: the halves of a symmetric Hamming window. Else sin² and cos², which sum to 1.
    """
    with torch.inference_mode(False):
        if exact:
            window = torch.hamming_window(2 * size, periodic=False, dtype=torch.float64)
            rising, falling = window[:size], window[size:]
        else:
            turn = (torch.arange(size, dtype=torch.float64) + 0.5) * (torch.pi / 2 / max(1, size))
            rising, falling = turn.sin().square(), turn.cos().square()
        return rising.to(device, torch.float32), falling.to(device, torch.float32)


def step(
    vocoder: Vocoder,
    mel_new: Tensor,
    state: VocoderState | None,
    final: bool,
    *,
    seed: int = 0,
    exact: bool = False,
    source: Tensor | None = None,
) -> tuple[Tensor, VocoderState | None]:
    """One piece of a stream: mel_new (1, 80, M) → its sound (1, n) and the state for the next piece.

    Without state: n = 480·(M − 8); with: n = 480·M; the last piece also gives what was held back. M may be 0 when state
    holds something. `source` (1, 1, 480·frames) replaces the computed excitation (parity tests). The state
    after the last piece is None. Raises `EngineError("empty_mel")` for a stream without any frame.
    """
    mel = mel_new if state is None else torch.cat((state.mel, mel_new), dim=2)
    hop = vocoder.cfg.hop
    if state is not None and mel_new.shape[2] == 0:
        return (state.speech, None) if final else (state.speech[:, :0], state)
    cycles: Tensor | None = None
    if source is None:
        source, cycles = _excite(vocoder, mel, state, final, seed, exact)
    wave = vocoder.decode(mel, source)
    if state is not None:
        wave = _cross_fade(state.speech, wave, exact)
    if final:
        return wave, None
    kept = min(OVERLAP_FRAMES, mel.shape[2])
    held = kept * hop
    place = (0 if state is None else state.frame) + mel.shape[2] - kept
    left = VocoderState(
        mel=mel[:, :, -kept:], source=source[:, :, -held:], speech=wave[:, -held:], cycles=cycles, frame=place
    )
    return wave[:, : wave.shape[1] - held], left


def _cross_fade(old: Tensor, new: Tensor, exact: bool) -> Tensor:
    """`new` with its beginning faded in over `old`, (1, n) both."""
    size = old.shape[1]
    rising, falling = fade_window(size, exact, new.device)
    return torch.cat((new[:, :size] * rising + old * falling, new[:, size:]), dim=1)


def _excite(
    vocoder: Vocoder, mel: Tensor, state: VocoderState | None, final: bool, seed: int, exact: bool
) -> tuple[Tensor, Tensor | None]:
    """Source (1, 1, 480·frames) for `mel`, the overlap's part as it was, and the last phases (not in exact mode)."""
    f0 = vocoder.f0(mel)
    seeds = torch.full((1,), seed, dtype=torch.int64, device=mel.device)
    start = torch.full_like(seeds, 0 if state is None else state.frame)
    if exact:
        source = vocoder.m_source.exact(f0, _harmonic_noise(vocoder, seeds, start, mel.shape[2]))
        return (source if state is None else _with_beginning(source, state.source)), None
    known = None if state is None else state.mel.shape[2]
    anchor = None if state is None or known is None or state.cycles is None else (known - 1, state.cycles)
    source, cycles = vocoder.source(f0, Excitation(seeds, start, anchor, open_end=not final))
    if state is not None:
        # Behind the last frame's centre the phases head for a frame that only now is known.
        source = _with_beginning(source, state.source[:, :, : -(vocoder.cfg.hop // 2)])
    return source, cycles[:, -1]


def _with_beginning(signal: Tensor, beginning: Tensor) -> Tensor:
    return torch.cat((beginning, signal[:, :, beginning.shape[2] :]), dim=2)


def _harmonic_noise(vocoder: Vocoder, seeds: Tensor, start: Tensor, frames: int) -> Tensor:
    """(1, 480·frames, harmonics) standard normal."""
    harmonics = vocoder.cfg.nb_harmonics + 1
    samples = frames * vocoder.cfg.hop
    flat = counter_normal(seeds, start * (vocoder.cfg.hop * harmonics), samples * harmonics)
    return flat.view(1, samples, harmonics)


class VocoderStream:
    """One request's way from mel pieces to sound: speed, then vocoder. Not shared between requests."""

    def __init__(self, vocoder: Vocoder, *, seed: int = 0, speed: float = 1.0, exact: bool = False) -> None:
        self._vocoder = vocoder
        self._seed = seed
        self._exact = exact
        self._speed = MelSpeed(speed)
        self._state: VocoderState | None = None

    @property
    def state(self) -> VocoderState | None:
        """What is held back for the next piece."""
        return self._state

    def paced(self, mel: Tensor, final: bool) -> tuple[Tensor, MelSpeed]:
        """Mel frames that follow (1, 80, M) → those to make sound of now (1, 80, K), and the reader's new state.

        Nothing is kept until `commit` is called with that state.
        """
        reader = copy.copy(self._speed)  # its tensors are replaced, never changed
        return reader.push(mel.float(), final), reader

    def commit(self, reader: MelSpeed, state: VocoderState | None) -> None:
        """The piece that `paced` read has become sound; `state` is for the next."""
        self._speed, self._state = reader, state

    @torch.inference_mode()
    def push(self, mel: Tensor, final: bool) -> Tensor:
        """Mel frames that follow those pushed before (1, 80, M), M ≥ 0 → sound (n,), n ≥ 0, float32 in ±0.99.

        Raises `EngineError("empty_mel")` when a stream ends without any frame.
        """
        frames, reader = self.paced(mel, final)
        wave, state = self.sound(frames, final)
        self.commit(reader, state)
        return wave

    def sound(self, frames: Tensor, final: bool) -> tuple[Tensor, VocoderState | None]:
        """Frames from `paced` → their sound (n,) and the state for the next piece; raises as `push` does."""
        if frames.shape[2] == 0 and self._state is None and not final:
            return frames.new_zeros(0), None
        wave, state = step(self._vocoder, frames, self._state, final, seed=self._seed, exact=self._exact)
        return wave[0], state
