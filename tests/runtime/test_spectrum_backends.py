"""Backends of the vocoder's convolutions: same numbers as the modules, chosen by name, given up when unsound."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from torch import Tensor

from inference.checkpoint import load_folder
from inference.download import BUNDLED
from inference.engine import CosyVoice
from inference.models.config import VocoderConfig
from inference.models.vocoder import Snake, Vocoder
from inference.runtime import backends
from inference.runtime.backends import ERROR_BOUND, install_spectrum_backend, spectrum_soundness
from inference.runtime.channels_last import ChannelsLast
from inference.runtime.precision import relative_error
from inference.runtime.vocoder_stream import VocoderStream
from inference.types import RequestError
from tests.models.vocoder_support import speechlike_mel

pytestmark = pytest.mark.unit


def _vocoder(lowest_alpha: float = 0.05) -> Vocoder:
    """The full architecture, narrow, with slopes of both signs."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        vocoder = Vocoder(VocoderConfig(base_channels=64, f0_channels=32)).eval()
        for module in vocoder.modules():
            if isinstance(module, Snake):
                size = lowest_alpha + torch.rand_like(module.alpha) * 2
                sign = torch.where(torch.rand_like(module.alpha) < 0.2, -1.0, 1.0)
                module.alpha.data = size * sign
                module.alpha.data[0] = lowest_alpha
    return vocoder


def _inputs(vocoder: Vocoder, frames: int, batch: int) -> tuple[Tensor, Tensor]:
    mel = speechlike_mel(frames, batch)
    with torch.inference_mode():
        source, _ = vocoder.source(torch.full((batch, frames), 180.0), vocoder.from_start(mel))
    return mel, source


@pytest.mark.parametrize("lowest", [0.05, 1e-5, 0.0])
@pytest.mark.parametrize(("frames", "batch"), [(1, 1), (7, 1), (40, 3)])
@torch.inference_mode()
def test_channels_last_equals_modules(lowest: float, frames: int, batch: int) -> None:
    vocoder = _vocoder(lowest)
    mel, source = _inputs(vocoder, frames, batch)
    expected = vocoder.spectrum(mel, source)
    before = mel.clone(), source.clone()
    vocoder.backend = ChannelsLast(vocoder)
    found = vocoder.spectrum(mel, source)
    assert found.shape == expected.shape
    assert relative_error(found, expected) <= 5e-6
    assert torch.equal(mel, before[0]) and torch.equal(source, before[1])


@torch.inference_mode()
def test_channels_last_equals_modules_on_the_bundled_model() -> None:
    vocoder = load_folder(BUNDLED, device="cpu").vocoder
    mel, source = _inputs(vocoder, 60, 1)
    expected = vocoder.decode(mel, source)
    assert install_spectrum_backend(vocoder, "channels_last") == "channels_last"
    assert (vocoder.decode(mel, source) - expected).abs().max() <= ERROR_BOUND


@torch.inference_mode()
def test_padded_items_go_the_plain_way() -> None:
    vocoder = _vocoder()
    mel = speechlike_mel(12, 2)
    lengths = torch.tensor([12, 5])
    expected, _ = vocoder(mel, lengths)
    install_spectrum_backend(vocoder, "channels_last")
    found, _ = vocoder(mel, lengths)
    assert torch.equal(found, expected)


def test_gradients_flow_past_a_backend() -> None:
    vocoder = _vocoder()
    install_spectrum_backend(vocoder, "channels_last")
    mel = speechlike_mel(4).requires_grad_()
    vocoder.decode(mel, torch.zeros(1, 1, 4 * vocoder.cfg.hop)).sum().backward()
    assert mel.grad is not None and mel.grad.abs().max() > 0


@torch.inference_mode()
def test_stream_with_a_backend_sounds_as_without() -> None:
    plain, fast = _vocoder(), _vocoder()
    assert install_spectrum_backend(fast, "channels_last") == "channels_last"
    mel = speechlike_mel(60)
    sounds = []
    for vocoder in (plain, fast):
        stream = VocoderStream(vocoder, seed=3)
        pieces = [stream.push(mel[:, :, a:b], b == 60) for a, b in ((0, 20), (20, 45), (45, 60))]
        sounds.append(torch.cat(pieces))
    assert relative_error(sounds[1], sounds[0]) <= ERROR_BOUND


# ----------------------------------------------------------------------------------------------- choosing
def test_torch_means_no_backend() -> None:
    vocoder = _vocoder()
    install_spectrum_backend(vocoder, "channels_last")
    assert install_spectrum_backend(vocoder, "torch") == "torch"
    assert vocoder.backend is None


def test_unknown_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError) as caught:
        install_spectrum_backend(_vocoder(), "cudnn")
    assert caught.value.code == "unknown_backend"
    with pytest.raises(RequestError) as caught:  # before the folder is read
        CosyVoice(tmp_path, vocoder_backend="cudnn")
    assert caught.value.code == "unknown_backend"


class _Broken(ChannelsLast):
    """Off by what is asked for."""

    factor = 1.0

    def __call__(self, mel: Tensor, excitation: Tensor) -> Tensor:
        return super().__call__(mel, excitation) * self.factor


class _Louder(_Broken):
    factor = 1.001


class _NotFinite(_Broken):
    factor = float("nan")


class _Short(_Broken):
    def __call__(self, mel: Tensor, excitation: Tensor) -> Tensor:
        return super().__call__(mel, excitation)[:, :, :-1]


class _Failing(_Broken):
    def __call__(self, mel: Tensor, excitation: Tensor) -> Tensor:
        raise RuntimeError("no such kernel")


@pytest.mark.parametrize("broken", [_Louder, _NotFinite, _Short, _Failing])
def test_unsound_backend_gives_way_to_torch(
    broken: type[_Broken], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(backends, "ChannelsLast", broken)
    vocoder = _vocoder()
    with caplog.at_level(logging.WARNING):
        assert install_spectrum_backend(vocoder, "channels_last") == "torch"
    assert vocoder.backend is None
    assert "channels_last" in caplog.text


def test_error_tells_other_weights_apart() -> None:
    vocoder = _vocoder()
    backend = ChannelsLast(vocoder)
    assert spectrum_soundness(vocoder, backend).error <= 5e-6
    with torch.no_grad():
        vocoder.conv_post.weight.mul_(1.01)
    assert spectrum_soundness(vocoder, backend).error > ERROR_BOUND
