"""What comes before and behind the fused vocoder's convolutions: the launches of
`vocoder_source_kernels` and `vocoder_wave_kernels`."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from inference.models.vocoder import Vocoder
from inference.runtime.vocoder_pack import GAP
from inference.runtime.vocoder_stream import OVERLAP_FRAMES, fade_window
from inference.runtime.vocoder_weights import SOURCE_PITCH, padded, split_halves

_FOURIER_SIZE = 16
_MAX_MAGNITUDE = 100.0
_ROOM = 32  # rows behind the source's spectrum that its convolutions' last windows may touch


class FusedEnds:
    """Weights and launches for batches of up to `most_items` items."""

    def __init__(self, vocoder: Vocoder, most_items: int) -> None:
        from inference.runtime import vocoder_source_kernels, vocoder_wave_kernels  # import Triton

        self._before, self._behind = vocoder_source_kernels, vocoder_wave_kernels
        self._most = most_items
        self.cfg = cfg = vocoder.cfg
        self.device = device = vocoder.conv_pre.weight.device
        self.bins = vocoder.fourier.bins
        self._wide = padded(cfg.mel_bins)
        self._spread = cfg.hop // cfg.istft_hop
        linear, mix = vocoder.f0_predictor.classifier, vocoder.m_source.l_linear
        self._pitch_width = padded(cfg.f0_channels)
        with torch.no_grad():
            self._pitch_weight = F.pad(
                linear.weight[0].detach().float(), (0, self._pitch_width - cfg.f0_channels)
            )
            self._pitch_bias = linear.bias.detach().float().clone()
            self._mix = mix.weight[0].detach().float().contiguous()
            self._mix_bias = mix.bias.detach().float().clone()
            self._mix_norm = mix.weight.detach().float().norm().view(1)
            fourier = vocoder.fourier
            self._analysis = fourier.analysis.float().contiguous()
            self._energy = fourier.energy.float().contiguous()
            self._backward, self._last, self._last_bias = _pack_last(vocoder)
            self._fade = torch.cat(fade_window(OVERLAP_FRAMES * cfg.hop, False, device))

    # ------------------------------------------------------------------------------------------------ before
    def gather(self, table: Tensor, mel: Tensor, flags: Tensor) -> Tensor:
        """Fill mel (rows, bins) and flags (rows + 2); returns the mel's halves (rows, 2 * padded bins) float16."""
        rows, block = len(mel), 16
        halves = torch.empty(rows, 2 * self._wide, dtype=torch.float16, device=self.device)
        self._before.gather_mel[(-(-rows // block),)](
            table, mel, halves, flags, rows, self._most,
            bins=self.cfg.mel_bins, wide=self._wide, overlap=OVERLAP_FRAMES, block=block,
            lanes=_power_of_two(self._wide),
        )  # fmt: skip
        return halves

    def classify(self, hidden: Tensor, flags: Tensor) -> Tensor:
        """The F0 predictor's last layer (rows, 2 * channels) → F0 (rows,)."""
        rows, block = len(hidden), 8
        f0 = torch.empty(rows, device=self.device)
        self._before.classify[(-(-rows // block),)](
            hidden, self._pitch_weight, self._pitch_bias, flags, f0, rows,
            width=self._pitch_width, block=block, lanes=_power_of_two(self._pitch_width),
        )  # fmt: skip
        return f0

    def excite(self, table: Tensor, f0: Tensor, cycles: Tensor, source: Tensor) -> None:
        """F0 (rows,) → phases (rows, harmonics) and source (rows, hop)."""
        cfg, rows, count = self.cfg, len(f0), cycles.shape[1]
        self._before.sum_phases[(self._most,)](
            table, f0, cycles, rows, self._most,
            count=count, rate=cfg.sample_rate, hop=cfg.hop, overlap=OVERLAP_FRAMES,
            block=128, lanes=_power_of_two(count),
        )  # fmt: skip
        self._before.render_source[(rows,)](
            table, f0, cycles, self._mix, self._mix_bias, self._mix_norm, source, rows, self._most,
            cfg.nsf_alpha, cfg.nsf_sigma, cfg.nsf_voiced_threshold,
            count=count, rate=cfg.sample_rate, hop=cfg.hop, overlap=OVERLAP_FRAMES,
            lanes=_power_of_two(cfg.hop),
        )  # fmt: skip

    def analyse(self, table: Tensor, flags: Tensor, source: Tensor, dtype: torch.dtype) -> Tensor:
        """Source (rows, hop) → its spectrum, ready for `FusedConvolutions.hidden`."""
        rows, block = len(source), 64
        frames = rows * self._spread + 1
        room = torch.empty(frames + 2 * _ROOM, SOURCE_PITCH, dtype=dtype, device=self.device)
        self._before.analyse[(-(-len(room) // block),)](
            table, flags, source, self._analysis, room, rows, self._most, frames, len(room),
            hop=self.cfg.hop, size=_FOURIER_SIZE, step=self.cfg.istft_hop,
            values=self._analysis.shape[1], pitch=SOURCE_PITCH, block=block, lanes=32,
        )  # fmt: skip
        return room[: frames + _ROOM]

    # ------------------------------------------------------------------------------------------------ behind
    def spectrum(self, hidden: Tensor, flags: Tensor, *, sound: bool) -> Tensor:
        """The last layer's input (frames, channels) → see `end_spectrum`."""
        frames, inner = hidden.shape
        out = torch.empty(frames, 16 if sound else 32, device=self.device)
        block = 64 if frames <= 32768 else 128
        self._behind.end_spectrum[(-(-frames // block),)](
            hidden, self._last, self._last_bias, flags, self._backward, out, frames,
            taps=self._last.shape[0], inner=inner, bins=_FOURIER_SIZE // 2 + 1, limit=_MAX_MAGNITUDE,
            spread=self._spread, sound=sound, block=block, bk=64 if inner % 64 == 0 else 32,
            num_warps=4, num_stages=3,
        )  # fmt: skip
        return out

    def finish(
        self,
        table: Tensor,
        flags: Tensor,
        parts: Tensor,
        mel: Tensor,
        source: Tensor,
        wave: Tensor,
        cycles: Tensor,
        answer: Tensor,
        slab: Tensor,
    ) -> None:
        """Windowed frames (120 * rows + 1, 16) → wave (rows, hop), answer and slab (see `FusedBuffers`)."""
        cfg, rows = self.cfg, len(mel)
        unsound = torch.empty(rows, dtype=torch.int32, device=self.device)
        self._behind.finish_wave[(rows,)](
            table, flags, parts, self._energy, self._fade, wave, answer, unsound, rows, self._most,
            len(parts), cfg.audio_limit, hop=cfg.hop, overlap=OVERLAP_FRAMES, lanes=_power_of_two(cfg.hop),
        )  # fmt: skip
        self._behind.keep_states[(self._most,)](
            table, mel, source, wave, cycles, unsound, answer, slab, rows, self._most,
            hop=cfg.hop, bins=cfg.mel_bins, count=cycles.shape[1], overlap=OVERLAP_FRAMES, block=512,
        )  # fmt: skip

    # ------------------------------------------------------------------------------------- items of one length
    def layout(self, items: int, length: int, device: torch.device) -> tuple[Tensor, int, Tensor]:
        """First rows of `items` items of `length` frames, the row's length and its flags."""
        starts = torch.arange(items, device=device) * (length + GAP) + GAP
        rows = GAP + items * (length + GAP)
        flags = torch.zeros(rows + 2, dtype=torch.int8, device=device)
        flags[(1 + starts[:, None] + torch.arange(length, device=device)).flatten()] = 1
        flags[1 + starts] = 3
        return starts, rows, flags

    def spread(
        self, mel: Tensor, excitation: Tensor, starts: Tensor, rows: int, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """mel (B, bins, T), source spectrum (B, 18, 120*T + 1) → both as rows for `FusedConvolutions.hidden`."""
        _, bins, length = mel.shape
        halves = torch.zeros(rows, 2, self._wide, dtype=torch.float16, device=mel.device)
        place = (starts[:, None] + torch.arange(length, device=mel.device)).flatten()
        high, low = split_halves(mel.float().transpose(1, 2).flatten(0, 1), torch.float16)
        halves[place, 0, :bins], halves[place, 1, :bins] = high, low
        frames = rows * self._spread + 1
        wide = torch.zeros(frames + 2 * _ROOM, SOURCE_PITCH, dtype=dtype, device=mel.device)
        fine = torch.arange(excitation.shape[2], device=mel.device)
        place = (starts[:, None] * self._spread + fine).flatten()
        wide[place, : excitation.shape[1]] = excitation.transpose(1, 2).flatten(0, 1).to(dtype)
        return halves.view(rows, -1), wide[: frames + _ROOM]

    def collect(self, found: Tensor, starts: Tensor, length: int) -> Tensor:
        """Columns of `spectrum(sound=False)` → (B, 18, 120*T + 1)."""
        bins = _FOURIER_SIZE // 2 + 1
        fine = torch.arange(length * self._spread + 1, device=found.device)
        values = found[starts[:, None] * self._spread + fine]
        return torch.cat((values[..., :bins], values[..., 16 : 16 + bins]), dim=2).transpose(1, 2)


def _pack_last(vocoder: Vocoder) -> tuple[Tensor, Tensor, Tensor]:
    """The inverse transform (2, 16, 16), the last convolution's weights (taps, inner, 64) float16 and its bias."""
    bins = vocoder.fourier.bins
    conv, device = vocoder.conv_post, vocoder.conv_post.weight.device
    inner = padded(conv.in_channels)
    columns = torch.arange(2 * bins, device=device)
    columns = columns + (columns >= bins) * (16 - bins)
    table = torch.zeros(conv.kernel_size[0], inner, 32, device=device)
    weight = conv.weight.detach().float().permute(2, 1, 0)
    table[:, : conv.in_channels].index_copy_(2, columns, weight)
    bias = torch.zeros(32, device=device)
    if conv.bias is not None:
        bias[columns] = conv.bias.detach().float()
    backward = torch.zeros(2, 16, _FOURIER_SIZE, device=device)
    backward[:, :bins] = vocoder.fourier.synthesis.float().view(2, bins, -1)
    return backward, torch.cat(split_halves(table, torch.float16), dim=2).contiguous(), bias


def _power_of_two(size: int) -> int:
    return 1 << (size - 1).bit_length()
