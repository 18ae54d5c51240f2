"""Resampling and features against the recorded values (SPEC 2.1 to 2.4)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from inference.frontend import features
from inference.frontend.audio import decode_audio
from inference.frontend.features import (
    kaldi_fbank,
    log_mel_24k,
    sinc_resample,
    slaney_filterbank,
    whisper_log_mel,
)
from inference.types import RequestError
from tests.golden_data import Case, load_case, parametrize

torch.set_num_threads(1)


def _wave(case: Case) -> tuple[torch.Tensor, int]:
    """(1, n) mono at the file's rate."""
    if "samples" in case.arrays:
        return torch.from_numpy(case.arrays["samples"]).mean(1)[None], int(case.arrays["sample_rate"])
    clip = decode_audio(Path(case.folder).parent / case.meta["audio"])
    return torch.from_numpy(clip.samples)[None], clip.sample_rate


def _error(result: torch.Tensor, expected: np.ndarray) -> float:
    assert tuple(result.shape) == expected.shape
    return float(np.abs(result.numpy() - expected).max())


@pytest.mark.golden
@parametrize("name", "frontend_features")
def test_every_recorded_clip(name: str) -> None:
    case = load_case(name)
    wave, rate = _wave(case)
    wave16, wave24 = sinc_resample(wave, rate, 16000), sinc_resample(wave, rate, 24000)
    assert _error(wave16, case.arrays["wav16"]) <= 1e-6
    assert _error(wave24, case.arrays["wav24"]) <= 1e-6
    assert _error(whisper_log_mel(wave16), case.arrays["whisper_logmel"]) <= 1e-4
    assert _error(kaldi_fbank(wave16[0], subtract_mean=False), case.arrays["kaldi_fbank_raw"]) <= 1e-4
    assert _error(kaldi_fbank(wave16[0]), case.arrays["kaldi_fbank_meansub"]) <= 1e-4
    assert _error(log_mel_24k(wave24).transpose(1, 2), case.arrays["mel24k"]) <= 1e-4


@pytest.mark.golden
@parametrize("name", "mel_filterbanks")
def test_filter_banks(name: str) -> None:
    arrays = load_case(name).arrays
    assert _error(slaney_filterbank(24000, 1920, 80, 8000.0), arrays["mel24k_80"]) <= 1e-8
    assert _error(slaney_filterbank(16000, 400, 128, 8000.0), arrays["whisper16k_128"]) <= 1e-8


@pytest.mark.unit
@pytest.mark.parametrize(
    ("old", "new"), [(8000, 16000), (44100, 16000), (48000, 24000), (22050, 24000), (192000, 16000)]
)
def test_a_tone_keeps_its_pitch_and_height(old: int, new: int) -> None:
    tone = torch.sin(2 * torch.pi * 440 * torch.arange(old) / old)
    result = sinc_resample(tone, old, new)
    expected = torch.sin(2 * torch.pi * 440 * torch.arange(new) / new)
    assert result.shape == (new,)
    middle = slice(new // 10, -new // 10)
    assert (result - expected)[middle].abs().max() < 2e-3


@pytest.mark.unit
@pytest.mark.parametrize(("old", "new"), [(441, 160), (3, 2), (2, 3), (441, 640), (1, 3)])
def test_the_way_for_odd_rates_is_the_same_filter(old: int, new: int) -> None:
    wave = torch.randn(2, 4001, generator=torch.Generator().manual_seed(3))
    by_table = features._resample_by_convolution(wave, old, new)
    by_gathering = features._resample_by_gathering(wave, old, new)
    assert torch.allclose(by_table, by_gathering, atol=2e-6)


@pytest.mark.unit
def test_an_odd_rate_needs_no_giant_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "_polyphase_kernel", None)  # would be 16000 filters of 44101 taps
    wave = torch.sin(2 * torch.pi * 300 * torch.arange(44101) / 44101)
    result = sinc_resample(wave, 44101, 16000)
    expected = torch.sin(2 * torch.pi * 300 * torch.arange(16000) / 16000)
    assert result.shape == (16000,)
    assert (result - expected)[1000:-1000].abs().max() < 2e-3


@pytest.mark.unit
def test_a_batch_gives_each_item_what_it_gets_alone() -> None:
    loudness = torch.tensor([[1.0], [0.01], [0.3]])
    wave = torch.randn(3, 16123, generator=torch.Generator().manual_seed(1)) * loudness
    wave[1, 4000:] = 0.0
    for function in (whisper_log_mel, kaldi_fbank, log_mel_24k, lambda x: sinc_resample(x, 44100, 24000)):
        together = function(wave)
        for number in range(3):
            assert torch.allclose(together[number], function(wave[number : number + 1])[0], atol=1e-5)


@pytest.mark.unit
def test_the_whisper_floor_follows_each_items_own_maximum() -> None:
    wave = torch.randn(1, 16000, generator=torch.Generator().manual_seed(2))
    wave[:, 8000:] = 0.0
    mel = whisper_log_mel(torch.cat([wave, wave * 0.1]))
    spans = mel.amax(dim=(1, 2)) - mel.amin(dim=(1, 2))
    assert torch.allclose(spans, torch.full((2,), 2.0), atol=1e-6)
    assert mel[0].max() > mel[1].max() + 0.4


@pytest.mark.unit
@pytest.mark.parametrize("samples", [24000, 24479, 24480, 721, 960])
def test_frame_counts(samples: int) -> None:
    wave = torch.randn(1, samples)
    assert log_mel_24k(wave).shape == (1, 80, samples // 480)
    assert whisper_log_mel(wave).shape == (1, 128, samples // 160)
    assert kaldi_fbank(wave).shape == (1, 1 + (samples - 400) // 160, 80)


@pytest.mark.unit
@pytest.mark.parametrize(
    ("function", "samples"), [(whisper_log_mel, 200), (kaldi_fbank, 399), (log_mel_24k, 720)]
)
def test_too_few_samples_are_refused(function: object, samples: int) -> None:
    with pytest.raises(RequestError) as caught:
        function(torch.zeros(1, samples))  # type: ignore[operator]
    assert caught.value.code == "audio_too_short"


@pytest.mark.unit
def test_gradients_flow_after_use_without_gradients() -> None:
    """Cached windows made while serving must not stop training in the same process."""
    for cache in (features._hann, features.slaney_filterbank, features._polyphase_kernel):
        cache.cache_clear()
    with torch.inference_mode():
        log_mel_24k(sinc_resample(torch.randn(1, 16000), 16000, 24000))
    wave = torch.randn(1, 16000, requires_grad=True)
    log_mel_24k(sinc_resample(wave, 16000, 24000)).sum().backward()
    assert wave.grad is not None
    assert torch.isfinite(wave.grad).all()


@pytest.mark.unit
@pytest.mark.parametrize(
    "wave", [torch.zeros(1, 24000), torch.ones(1, 24000), torch.full((1, 24000), 32768.0)]
)
def test_features_of_degenerate_sound_are_finite(wave: torch.Tensor) -> None:
    for function in (whisper_log_mel, kaldi_fbank, log_mel_24k):
        assert torch.isfinite(function(wave)).all()


@pytest.mark.gpu
def test_the_gpu_agrees_with_the_cpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    wave = 0.1 * torch.randn(2, 44100, generator=torch.Generator().manual_seed(5))
    for old, new in ((44100, 16000), (44101, 16000)):
        there = sinc_resample(wave.cuda(), old, new)
        assert torch.allclose(there.cpu(), sinc_resample(wave, old, new), atol=1e-5)
    for function in (whisper_log_mel, kaldi_fbank, log_mel_24k):
        assert torch.allclose(function(wave.cuda()).cpu(), function(wave), atol=1e-3)
