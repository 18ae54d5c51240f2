"""Small discriminators for the vocoder: over periods of the waveform and over spectrograms."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from training.losses import magnitudes

PERIODS = (2, 3, 5, 7, 11)
RESOLUTIONS = (512, 1024, 2048)
_SLOPE = 0.1

Judgement = tuple[Tensor, list[Tensor]]  # score map, inner features


def _picture(x: Tensor, channels_last: bool) -> Tensor:
    """(B, H, W) contiguous → (B, 1, H, W), with strides that make convolutions keep channels last if wished."""
    return x[..., None].permute(0, 3, 1, 2) if channels_last else x[:, None]


class PeriodDiscriminator(nn.Module):
    """Looks at every `period`-th sample as a picture (Kong et al. 2020, narrower)."""

    def __init__(self, period: int, channels: tuple[int, ...] = (32, 96, 192, 384)) -> None:
        super().__init__()
        self.channels_last = False
        self.period = period
        sizes = (1, *channels)
        self.convs = nn.ModuleList(
            weight_norm(nn.Conv2d(a, b, (5, 1), (3, 1), (2, 0))) for a, b in zip(sizes, sizes[1:])
        )
        self.last = weight_norm(nn.Conv2d(channels[-1], 1, (3, 1), padding=(1, 0)))

    def forward(self, wave: Tensor) -> Judgement:
        """wave (B, n)."""
        missing = -wave.shape[1] % self.period
        x = F.pad(wave[:, None], (0, missing), mode="reflect")
        x = _picture(x.view(wave.shape[0], -1, self.period), self.channels_last)
        features = []
        for conv in self.convs:
            x = F.leaky_relu(conv(x), _SLOPE)
            features.append(x)
        return self.last(x), features


class SpectrogramDiscriminator(nn.Module):
    """Looks at log magnitudes at one resolution (after Jang et al. 2021)."""

    def __init__(self, size: int, channels: int = 32) -> None:
        super().__init__()
        self.channels_last = False
        self.size = size
        self.convs = nn.ModuleList(
            [
                weight_norm(nn.Conv2d(1, channels, (9, 3), padding=(4, 1))),
                weight_norm(nn.Conv2d(channels, channels, (9, 3), (2, 1), (4, 1))),
                weight_norm(nn.Conv2d(channels, channels, (9, 3), (2, 1), (4, 1))),
                weight_norm(nn.Conv2d(channels, channels, (9, 3), (2, 1), (4, 1))),
                weight_norm(nn.Conv2d(channels, channels, (3, 3), padding=(1, 1))),
            ]
        )
        self.last = weight_norm(nn.Conv2d(channels, 1, (3, 3), padding=(1, 1)))

    def forward(self, wave: Tensor) -> Judgement:
        """wave (B, n)."""
        with torch.autocast(wave.device.type, enabled=False):
            x = magnitudes(wave.float(), self.size).log()
        x = _picture(x.contiguous(), self.channels_last)
        features = []
        for conv in self.convs:
            x = F.leaky_relu(conv(x), _SLOPE)
            features.append(x)
        return self.last(x), features


class Discriminators(nn.Module):
    """All of them; `forward` gives (score maps, features) over all."""

    def __init__(self) -> None:
        super().__init__()
        self.all = nn.ModuleList(
            [
                *(PeriodDiscriminator(period) for period in PERIODS),
                *(SpectrogramDiscriminator(size) for size in RESOLUTIONS),
            ]
        )

    def keep_channels_last(self, wanted: bool) -> None:
        """Memory layout of all pictures; results are the same, speed is not."""
        for judge in self.all:
            if isinstance(judge, (PeriodDiscriminator, SpectrogramDiscriminator)):
                judge.channels_last = wanted

    def forward(self, wave: Tensor) -> tuple[list[Tensor], list[list[Tensor]]]:
        """wave (B, n) float32."""
        judgements = [judge(wave) for judge in self.all]
        return [score for score, _ in judgements], [features for _, features in judgements]


def faster_layout(judges: Discriminators, wave: Tensor) -> bool:
    """Whether pictures should keep channels last: forward and backward are timed both ways on this CUDA device."""
    times = {}
    for wanted in (False, True):
        judges.keep_channels_last(wanted)
        times[wanted] = min(_milliseconds(judges, wave) for _ in range(4))
    judges.zero_grad(set_to_none=True)
    return times[True] < times[False]


def _milliseconds(judges: Discriminators, wave: Tensor) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    with torch.autocast(wave.device.type, torch.bfloat16):
        scores, _ = judges(wave)
    torch.stack([score.float().mean() for score in scores]).sum().backward()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end))
