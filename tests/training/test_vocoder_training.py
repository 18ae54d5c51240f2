"""The vocoder's trainer, rehearsed on the CPU with made-up voices."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from inference.models.config import VocoderConfig
from inference.models.vocoder import Vocoder
from training.discriminators import Discriminators
from training.losses import discriminator_loss, feature_loss, generator_loss, spectral_loss
from training.vocoder import Options, VocoderTrainer, train
from training.vocoder_data import disturbed

pytestmark = pytest.mark.unit
_TINY = VocoderConfig(base_channels=32, f0_channels=16)


def _voice(frames: int, hertz: float, rng: np.random.Generator) -> np.ndarray:
    """int16: harmonics of one pitch with a little breath."""
    time = np.arange(frames * 480) / 24000
    wave = sum(np.sin(2 * np.pi * hertz * h * time) / h for h in range(1, 12))
    return np.int16(np.clip(0.1 * wave + 0.003 * rng.standard_normal(time.size), -1, 1) * 32767)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rng = np.random.default_rng(1)
    frames, pitches = [60, 80, 70, 90], [110.0, 160.0, 220.0, 130.0]
    waves = [_voice(n, hertz, rng) for n, hertz in zip(frames, pitches)]
    meta = [
        {"text": "a", "lang": "en", "engine": "made", "speaker": str(i), "split": "train", "phones": ""}
        for i in range(len(frames))
    ]
    folder = tmp_path / "data"
    folder.mkdir()
    np.savez(
        folder / "shard-0-0.npz",
        audio=np.concatenate(waves),
        audio_offsets=np.cumsum([0, *(480 * n for n in frames)]),
        f0=np.concatenate([np.full(n, hertz, dtype=np.float16) for n, hertz in zip(frames, pitches)]),
        f0_offsets=np.cumsum([0, *frames]),
        meta=np.array(json.dumps(meta)),
    )
    return folder


def _options(data: Path, out: Path, **changes: object) -> Options:
    values: dict[str, object] = {
        "data": data,
        "out": out,
        "minutes": 5.0,
        "device": "cpu",
        "batch": 2,
        "frames": 24,
        "limit_steps": 10,
    }
    return Options(**(values | changes))  # type: ignore[arg-type]


def test_spectra_come_nearer_and_pitch_too(data: Path, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    trainer = VocoderTrainer(_options(data, tmp_path / "out", rate=2e-3), _TINY)
    history = [{k: float(v) for k, v in trainer.one_step(0.0, 1.0).items()} for _ in range(40)]
    early, late = history[:5], history[-5:]
    for name, share in (("mel", 0.75), ("spectra", 0.9), ("pitch", 0.75)):
        before, after = sum(h[name] for h in early), sum(h[name] for h in late)
        assert after < share * before, name


def test_a_run_with_discriminators_leaves_a_loadable_file_and_goes_on(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = train(_options(data, out), _TINY)
    assert first.step == 10
    state = torch.load(out / "hift.pt", weights_only=True)
    vocoder = Vocoder(_TINY)
    vocoder.load_state_dict(state, strict=True)
    assert all(value.dtype == torch.float32 for value in state.values())
    wave, _ = vocoder.eval()(torch.zeros(1, 80, 5))
    assert torch.isfinite(wave).all()
    second = train(_options(data, out, resume=True, limit_steps=3), _TINY)
    assert second.step == 13
    assert not list(out.glob("*.tmp"))


def test_late_steps_play_the_adversarial_game(data: Path, tmp_path: Path) -> None:
    trainer = VocoderTrainer(_options(data, tmp_path / "out"), _TINY)
    judges = [value.detach().clone() for value in trainer.judges.parameters()]
    losses = trainer.one_step(0.5, 1.0)
    assert {"judges", "fooling", "features"} <= losses.keys()
    assert all(torch.isfinite(value).all() for value in losses.values())
    assert any(not torch.equal(a, b) for a, b in zip(judges, trainer.judges.parameters()))


def test_a_broken_gradient_changes_nothing(data: Path, tmp_path: Path) -> None:
    trainer = VocoderTrainer(_options(data, tmp_path / "out"), _TINY)
    before = [value.detach().clone() for value in trainer.generator.parameters()]
    loss = sum(value.sum() for value in trainer.generator.parameters()) * float("nan")
    trainer._update(trainer.optimiser, trainer.generator, loss, 1.0)
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.generator.parameters()))


def test_no_shards_is_a_clear_end(tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    with pytest.raises(SystemExit, match="no shard"):
        VocoderTrainer(_options(tmp_path / "none", tmp_path / "out"), _TINY)


def test_losses_know_better_from_worse() -> None:
    real = torch.sin(torch.arange(9600) * 0.05)[None]
    near, far = real + 0.01 * torch.randn_like(real), torch.randn_like(real)
    assert spectral_loss(real, real) < spectral_loss(near, real) < spectral_loss(far, real)
    one, zero = [torch.ones(2, 3)], [torch.zeros(2, 3)]
    assert discriminator_loss(one, zero) == 0 and discriminator_loss(zero, one) == 2
    assert generator_loss(one) == 0 and generator_loss(zero) == 1
    assert feature_loss([one], [one]) == 0 and feature_loss([one], [zero]) == 1


def test_discriminators_take_any_length_and_pass_gradients() -> None:
    wave = torch.randn(2, 9601, requires_grad=True)
    scores, features = Discriminators()(wave)
    assert len(scores) == len(features) == 8
    torch.stack([score.mean() for score in scores]).sum().backward()
    assert wave.grad is not None and torch.isfinite(wave.grad).all() and wave.grad.any()


def test_disturbing_keeps_shape_and_most_of_the_mel() -> None:
    mel = torch.randn(64, 80, 30).cumsum(2) * 0.3 - 5
    changed = disturbed(mel)
    difference = (changed - mel).abs().mean()
    assert changed.shape == mel.shape and 0.005 < difference < 0.5
