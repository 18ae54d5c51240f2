"""Features of stored utterances, in batches, as the engine would compute them one by one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from inference.frontend.features import kaldi_fbank, sinc_resample, whisper_log_mel
from training.audio_store import RATE, AudioStore

_TAIL = 200  # samples mirrored at the end by the spectrogram


def length_batches(store: AudioStore, indices: list[int], seconds: float) -> Iterator[list[int]]:
    """Batches of neighbours by length whose padded audio is at most `seconds` long together."""
    batch: list[int] = []
    for i in sorted(indices, key=lambda i: store.utterances[i].samples):
        if batch and (len(batch) + 1) * store.utterances[i].samples > seconds * RATE:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def waves_16k(store: AudioStore, batch: list[int]) -> tuple[Tensor, Tensor]:
    """(B, n) float32 at 16 kHz, silent past each length, and (B,) lengths in samples."""
    chosen = [store.utterances[i] for i in batch]
    samples = np.array([entry.samples for entry in chosen], dtype=np.int64)
    wave = store.gather(np.array([entry.start for entry in chosen], dtype=np.int64), samples)
    lengths = torch.from_numpy(-(-samples * 2 // 3)).to(store.device)
    wave = sinc_resample(wave, RATE, 16000)
    return wave * (torch.arange(wave.shape[1], device=wave.device)[None] < lengths[:, None]), lengths


def log_mels(wave: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """(B, 128, N) log-mels and (B,) frames: each item's last frames see its own end mirrored, as if it stood alone."""
    places = torch.arange(wave.shape[1] + _TAIL, device=wave.device)[None]
    ends = lengths[:, None]
    mirrored = torch.where(places < ends, places, 2 * (ends - 1) - places)
    extended = wave.gather(1, mirrored.clamp(0, wave.shape[1] - 1)) * (places < ends + _TAIL)
    frames = torch.div(lengths, 160, rounding_mode="floor")
    return whisper_log_mel(extended)[:, :, : wave.shape[1] // 160], frames


def fbanks(wave: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """(B, N, 80) filter banks less each item's own mean, zero past its end, and (B,) frames."""
    frames = 1 + torch.div(lengths - 400, 160, rounding_mode="floor")
    features = kaldi_fbank(wave, subtract_mean=False)
    inside = (torch.arange(features.shape[1], device=wave.device)[None] < frames[:, None])[..., None]
    mean = (features * inside).sum(1, keepdim=True) / frames[:, None, None]
    return (features - mean) * inside, frames
