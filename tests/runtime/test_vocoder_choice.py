"""Which packed vocoder is chosen, and that an unsound one is not."""

from __future__ import annotations

import copy
import logging

import pytest
import torch

from inference.models.vocoder import Vocoder
from inference.runtime.packed_vocoder import PackedVocoder
from inference.runtime.vocoder_choice import (
    HALF_BOUND,
    KERNEL_BOUND,
    PITCH_BOUND,
    SOUND_BOUND,
    choose_packed_vocoder,
    distances,
    sound_kernels,
)
from inference.runtime.vocoder_fused import FusedVocoder
from tests.runtime.wave_support import quiet_vocoder

pytestmark = pytest.mark.unit


def test_float32_takes_the_modules_themselves() -> None:
    found = choose_packed_vocoder(quiet_vocoder(), 2, torch.float32)
    assert isinstance(found, PackedVocoder) and found.generator is quiet_vocoder()


def test_half_precision_where_it_is_sound() -> None:
    found = choose_packed_vocoder(quiet_vocoder(), 2, torch.float16)
    assert isinstance(found, PackedVocoder) and found.dtype == torch.float16


def test_float32_where_half_precision_overflows(caplog: pytest.LogCaptureFixture) -> None:
    loud = copy.deepcopy(quiet_vocoder())
    with torch.no_grad():
        loud.conv_pre.weight.fill_(70000.0)
    with caplog.at_level(logging.WARNING):
        found = choose_packed_vocoder(loud, 2, torch.float16)
    assert found.dtype == torch.float32 and "unsound" in caplog.text


def _on(device: torch.device) -> Vocoder:
    return copy.deepcopy(quiet_vocoder()).to(device)


@pytest.mark.gpu
def test_kernels_on_cuda(cuda: torch.device) -> None:
    vocoder = _on(cuda)
    found = choose_packed_vocoder(vocoder, 2, torch.float16)
    assert isinstance(found, FusedVocoder)
    pitch, spectrum, sound = distances(vocoder, found)
    assert pitch <= PITCH_BOUND and spectrum <= KERNEL_BOUND and sound <= SOUND_BOUND
    vocoder.kernels = False
    plain = choose_packed_vocoder(vocoder, 2, torch.float16)
    assert isinstance(plain, PackedVocoder)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "part", ["conv_post.weight", "f0_predictor.classifier.bias", "m_source.l_linear.weight"]
)
def test_unsound_kernels_are_not_used(cuda: torch.device, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the kernels' copy of some weights were wrong."""
    vocoder, spoiled = _on(cuda), _on(cuda)
    with torch.no_grad():
        dict(spoiled.named_parameters())[part].mul_(2.0)
    wrong = FusedVocoder(spoiled, 2)
    assert not all(a <= b for a, b in zip(distances(vocoder, wrong), (PITCH_BOUND, HALF_BOUND, SOUND_BOUND)))
    monkeypatch.setattr("inference.runtime.vocoder_choice.FusedVocoder", lambda *_, **__: wrong)
    assert sound_kernels(vocoder, 2, False, 1e-3) is None
