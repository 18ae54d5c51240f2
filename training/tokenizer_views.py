"""Two views of each utterance for the tokenizer: same words, other circumstances, tokens that can be compared."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from inference.frontend.features import sinc_resample, whisper_log_mel
from training.audio_store import F0_HOP, AudioStore
from training.augment import augment, warp_bins
from training.whisper_front import BinMap

# Reading 24 kHz audio as if it had one of these rates changes speed, pitch and formants together. Multiples of 400
# keep a token (1/25 s) and the resampling phases whole numbers.
PRETENDED_RATES = (20400, 21600, 22800, 24000, 24000, 24000, 25200, 26400, 27600)
_CONTEXT_TOKENS = (5, 75)  # speech before the utterance: 0.2 to 3 s


@dataclass(frozen=True)
class Views:
    """2B views, the first of each utterance and then the second of each.

    mel80 (2B, 80, N); frames, halves (2B,) valid lengths at 100 and 50 a second; mask (2B, T') valid tokens;
    first (2B,) the token at which the utterance begins, negative where its beginning was cut; valid (2B, steps) 1.0
    where that token of the utterance is in the view; token_counts of the utterance in each view; whole (2B,) 1.0
    where nothing was cut.
    """

    mel80: Tensor
    frames: Tensor
    halves: Tensor
    mask: Tensor
    first: Tensor
    valid: Tensor
    token_counts: list[int]
    whole: Tensor
    steps: int
    token_samples: int


def _offsets(count: int, tokens: npt.NDArray[np.int64], second: bool) -> npt.NDArray[np.int64]:
    """Tokens of context before each utterance; negative = so many cut from its beginning."""
    none = np.zeros(count, dtype=np.int64)
    if not second:
        return none
    draw = np.random.random(count)
    context = np.random.randint(_CONTEXT_TOKENS[0], _CONTEXT_TOKENS[1], count)
    cut = -(np.random.random(count) * tokens / 2).astype(np.int64)
    return np.where(draw < 0.4, context, np.where(draw < 0.6, cut, none))


def view_pair(store: AudioStore, batch: list[int], bins: BinMap) -> Views:
    """Draw and compute two views of each utterance in the batch; `bins` maps 128 to 80 mel bins."""
    pretended = int(np.random.choice(PRETENDED_RATES))
    token = pretended // 25
    entries = [store.utterances[i] for i in batch]
    samples = np.array([entry.samples for entry in entries] * 2, dtype=np.int64)
    starts = np.array([entry.start for entry in entries] * 2, dtype=np.int64)
    tokens = -(-samples // token)
    half = len(batch)
    offsets = np.concatenate([_offsets(half, tokens[:half], False), _offsets(half, tokens[half:], True)])
    shift = np.random.randint(-token // 4, token // 4 + 1, len(samples))
    begin = starts - offsets * token - shift
    length = samples + offsets * token + shift
    wave = sinc_resample(store.gather(begin, length), pretended, 16000)
    heard = np.maximum(1, length * 16000 // pretended)
    lengths = torch.from_numpy(heard).to(store.device)
    with torch.no_grad():
        mel = bins(whisper_log_mel(augment(wave, lengths)))
        mel = warp_bins(mel, _bin_factors(len(samples), store.device))
    return _describe(mel, heard // 160, offsets, tokens, token, store.device)


def _bin_factors(count: int, device: torch.device) -> Tensor:
    """Half of the views keep their bins; the others move by up to 10 %."""
    moved = 1.0 + (torch.rand(count, device=device) - 0.5) * 0.2
    return torch.where(torch.rand(count, device=device) < 0.5, moved, torch.ones_like(moved))


def _describe(
    mel: Tensor,
    frames: npt.NDArray[np.int64],
    offsets: npt.NDArray[np.int64],
    tokens: npt.NDArray[np.int64],
    token_samples: int,
    device: torch.device,
) -> Views:
    frames = np.maximum(frames, 1)
    halves = (frames + 1) // 2
    heard_tokens = (halves + 1) // 2
    counts = np.clip(np.minimum(tokens, heard_tokens - np.maximum(offsets, 0)), 1, None)
    steps = int(tokens.max())
    places = np.arange(steps)[None] + offsets[:, None]
    valid = (places >= 0) & (places < heard_tokens[:, None]) & (np.arange(steps)[None] < tokens[:, None])
    columns = (((mel.shape[2] + 1) // 2) + 1) // 2
    mask = np.arange(columns)[None] < heard_tokens[:, None]

    def on_device(array: npt.NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(array).to(device, non_blocking=True)

    return Views(
        mel80=mel,
        frames=on_device(frames),
        halves=on_device(halves),
        mask=on_device(mask),
        first=on_device(offsets),
        valid=on_device(valid.astype(np.float32)),
        token_counts=[int(count) for count in counts],
        whole=on_device((offsets >= 0).astype(np.float32)),
        steps=steps,
        token_samples=token_samples,
    )


def pitch_targets(store: AudioStore, batch: list[int], views: Views) -> tuple[Tensor, Tensor, Tensor]:
    """(B, T, 2) log-F0 less the utterance's mean, voicing (0 or 1), and 1.0 where there is a value: two a token."""
    entries = [store.utterances[i] for i in batch]
    begin = torch.tensor([entry.f0_start for entry in entries], device=store.device)[:, None, None]
    count = torch.tensor([entry.samples // F0_HOP for entry in entries], device=store.device)[:, None, None]
    middle = torch.tensor([0.25, 0.75], device=store.device)
    places = (torch.arange(views.steps, device=store.device)[:, None] + middle) * (
        views.token_samples / F0_HOP
    )
    frame = places.long()[None]
    inside = frame < count
    hertz = store.f0[(begin + torch.minimum(frame, count - 1))].float()
    voiced = ((hertz > 0) & inside).float()
    logarithm = hertz.clamp_min(1.0).log()
    mean = (logarithm * voiced).sum((1, 2), keepdim=True) / voiced.sum((1, 2), keepdim=True).clamp_min(1.0)
    return (logarithm - mean) * voiced * 4.0, voiced, inside.float()
