"""The vocoder's trainer, rehearsed on the CPU with made-up voices."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from inference.models.config import VocoderConfig
from inference.models.vocoder import Snake, Vocoder
from inference.types import CheckpointError
from training.discriminators import Discriminators
from training.export import pack
from training.losses import discriminator_loss, feature_loss, generator_loss, magnitudes, spectral_loss
from training.snake import fuse
from training.step_graph import WARMUP_STEPS, Losses, StepGraph
from training.vocoder import Options, VocoderTrainer, parse, train
from training.vocoder_data import Crops, disturbed
from training.vocoder_step import FEATURE_WEIGHT, FROM_SCRATCH, FROM_WEIGHTS, GAN_WEIGHT, Learner, Phase

pytestmark = pytest.mark.unit
_TINY = VocoderConfig(base_channels=32, f0_channels=16)


def _voice(frames: int, hertz: float, rng: np.random.Generator) -> np.ndarray:
    """int16: harmonics of one pitch with a little breath."""
    time = np.arange(frames * 480) / 24000
    wave = sum(np.sin(2 * np.pi * hertz * h * time) / h for h in range(1, 12))
    return np.asarray(
        np.clip(0.1 * wave + 0.003 * rng.standard_normal(time.size), -1, 1) * 32767, dtype=np.int16
    )


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
    trainer.one_step(0.0, 1.0)  # so that the optimiser has momentum
    before = [value.detach().clone() for value in trainer.generator.parameters()]
    loss = torch.stack([value.sum() for value in trainer.generator.parameters()]).sum() * float("nan")
    trainer.work.speaker.forget()
    loss.backward()
    trainer.work.speaker.update()
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.generator.parameters()))


def test_the_learner_is_adamw_with_clipping() -> None:
    torch.manual_seed(3)
    ours, plain = torch.nn.Linear(5, 4), torch.nn.Linear(5, 4)
    plain.load_state_dict(ours.state_dict())
    learner = Learner(ours, torch.device("cpu"))
    optimiser = torch.optim.AdamW(plain.parameters(), 1.0, betas=(0.8, 0.99), weight_decay=0.0, fused=False)
    for rate, scale in ((0.01, 1.0), (0.02, 300.0), (0.005, 0.1)):
        x = scale * torch.randn(8, 5)
        learner.rate.fill_(rate)
        learner.forget()
        ours(x).square().sum().backward()
        learner.update()
        optimiser.param_groups[0]["lr"] = rate
        optimiser.zero_grad()
        plain(x).square().sum().backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 10.0)
        optimiser.step()
    for a, b in zip(ours.parameters(), plain.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_one_pass_gives_both_sides_the_gradients_of_two(data: Path, tmp_path: Path) -> None:
    work = VocoderTrainer(_options(data, tmp_path / "out"), _TINY).work
    real, heard = 0.1 * torch.randn(2, 9600), (0.1 * torch.randn(2, 9600)).requires_grad_()
    scores, features = work.judges(heard)
    _, wanted = work.judges(real)
    wish = GAN_WEIGHT * generator_loss(scores) + FEATURE_WEIGHT * feature_loss(wanted, features)
    (slope,) = torch.autograd.grad(0.5 * wish, heard)
    taught = discriminator_loss(work.judges(real)[0], work.judges(heard.detach())[0])
    slopes = torch.autograd.grad(taught, list(work.judges.parameters()))

    work.say.fill_(0.5)
    losses: Losses = {}
    work.judging.update = lambda: None  # type: ignore[method-assign]
    (found,) = torch.autograd.grad(work._play(real, heard, Phase.FULL, losses), heard)
    torch.testing.assert_close(found, slope, rtol=1e-3, atol=1e-7)
    torch.testing.assert_close(losses["judges"], taught)
    for parameter, expected in zip(work.judges.parameters(), slopes):
        torch.testing.assert_close(parameter.grad, expected, rtol=1e-3, atol=1e-5)


def _steps(trainer: VocoderTrainer, fractions: list[float]) -> list[dict[str, float]]:
    torch.manual_seed(11)
    return [
        {name: float(value) for name, value in trainer.one_step(fraction, 0.5).items()}
        for fraction in fractions
    ]


_THROUGH_ALL_PHASES = [0.0] * 6 + [0.24] * 6 + [0.5] * 6


def test_replayed_steps_equal_ordinary_ones(data: Path, tmp_path: Path) -> None:
    recorded: list[int] = []

    def capture(work: Callable[[], Losses]) -> tuple[Callable[[], None], Losses]:
        recorded.append(1)
        losses: Losses = {}
        return lambda: losses.update(work()), losses

    ordinary = VocoderTrainer(_options(data, tmp_path / "a", frames=14), _TINY)
    replayed = VocoderTrainer(_options(data, tmp_path / "b", frames=14), _TINY, capture)
    wanted = _steps(ordinary, _THROUGH_ALL_PHASES)
    assert _steps(replayed, _THROUGH_ALL_PHASES) == wanted
    assert len(recorded) == 3 and replayed.run.replaying and not ordinary.run.replaying
    assert "fooling" in wanted[-1] and wanted[6].keys() - wanted[5].keys() == {"judges"}
    assert all(torch.equal(a, b) for a, b in zip(ordinary.average.weights, replayed.average.weights))


def test_a_recording_that_breaks_off_is_survived(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[int] = []

    def capture(work: Callable[[], Losses]) -> tuple[Callable[[], None], Losses]:
        work()  # half done
        calls.append(1)
        raise RuntimeError("operation not permitted when stream is capturing")

    trainer = VocoderTrainer(_options(data, tmp_path / "out", frames=14), _TINY, capture)
    losses = _steps(trainer, _THROUGH_ALL_PHASES)
    assert len(calls) == 1 and trainer.work.random is not None and trainer.step == len(losses)
    assert all(np.isfinite(list(step.values())).all() for step in losses)
    said = [line for line in capsys.readouterr().out.splitlines() if "recording failed" in line]
    assert len(said) == 1 and "not permitted" in said[0]


def test_without_graphs_nothing_is_recorded() -> None:
    def capture(work: Callable[[], Losses]) -> tuple[Callable[[], None], Losses]:
        raise AssertionError("recorded")

    run = StepGraph(lambda phase: {"x": torch.ones(())}, torch.device("cpu"), False, lambda: None, capture)
    assert all(float(run(Phase.FULL)["x"]) == 1 for _ in range(WARMUP_STEPS + 2))


@pytest.mark.parametrize("packed", [True, False])
def test_a_run_starts_from_shipped_weights(data: Path, tmp_path: Path, packed: bool) -> None:
    torch.manual_seed(5)
    source = Vocoder(_TINY)
    path = tmp_path / "hift.pt"
    if packed:
        pack(source.state_dict(), path)
    else:
        torch.save({key: value.half() for key, value in source.state_dict().items()}, path)
    trainer = VocoderTrainer(_options(data, tmp_path / "out", init=path), _TINY)
    for live, mean, wanted in zip(
        trainer.generator.parameters(), trainer.average.weights, source.parameters()
    ):
        assert live.dtype == torch.float32
        torch.testing.assert_close(live, wanted, rtol=5e-3, atol=1e-4)
        assert torch.equal(live, mean)
    assert trainer.schedule is FROM_WEIGHTS
    assert {"judges"} == trainer.one_step(0.0, 1.0).keys() - {"mel", "spectra", "pitch"}


def test_weights_of_another_size_are_refused(data: Path, tmp_path: Path) -> None:
    path = tmp_path / "hift.pt"
    torch.save(Vocoder(VocoderConfig(base_channels=16, f0_channels=16)).state_dict(), path)
    with pytest.raises(CheckpointError, match="hift.pt"):
        VocoderTrainer(_options(data, tmp_path / "out", init=path), _TINY)


def test_schedules_begin_things_in_order() -> None:
    for schedule in (FROM_SCRATCH, FROM_WEIGHTS):
        shares = [i / 1000 for i in range(1001)]
        phases = [schedule.phase(share) for share in shares]
        order = list(dict.fromkeys(phases))
        assert order == [phase for phase in Phase if phase in phases] and order[-1] is Phase.FULL
        assert phases.count(Phase.LEARNING) >= 20
        say = [schedule.say(share) for share in shares]
        assert say == sorted(say) and say[0] == 0 and say[-1] == 1
        assert all(phase is Phase.FULL for phase, value in zip(phases, say) if value > 0)
    assert FROM_WEIGHTS.own_share(0.0) > 0 == FROM_SCRATCH.own_share(0.0)


def test_crops_match_their_pitch_and_hear_every_engine(data: Path) -> None:
    crops = Crops(data, torch.device("cpu"), 32, 24, seed=1)
    wave, pitch = crops.draw()
    assert wave.shape == (32, 24 * 480) and pitch.shape == (32, 24)
    assert wave.abs().amax() <= 0.951
    spectrum = torch.fft.rfft(wave * torch.hann_window(wave.shape[1]), n=48000).abs()
    loudest = spectrum[:, 160:600].argmax(1).add(160) * 0.5  # Hz; the fundamental is the strongest
    assert len(set(pitch[:, 0].tolist())) == 4
    torch.testing.assert_close(loudest, pitch[:, 0], rtol=0.02, atol=1.0)


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


@pytest.mark.parametrize("size", [256, 640, 1600])
def test_magnitudes_are_those_of_stft(size: int) -> None:
    wave = torch.randn(2, 7000)
    window = torch.hann_window(size)
    wanted = torch.stft(wave, size, size // 4, window=window, return_complex=True).abs()
    torch.testing.assert_close(magnitudes(wave, size), wanted, rtol=1e-3, atol=1e-3)


def test_layout_does_not_change_judgements() -> None:
    torch.manual_seed(2)
    judges, wave = Discriminators(), torch.randn(2, 9600)
    plain, _ = judges(wave)
    judges.keep_channels_last(True)
    last, features = judges(wave)
    assert features[0][0].is_contiguous(memory_format=torch.channels_last)
    assert not features[0][0].is_contiguous()
    for a, b in zip(plain, last):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_activations_that_cannot_be_compiled_stay(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(function: object, **_: object) -> Callable[..., torch.Tensor]:
        def call(*values: object) -> torch.Tensor:
            raise RuntimeError("no compiler")

        return call

    monkeypatch.setattr(torch, "compile", broken)
    vocoder = Vocoder(_TINY)
    assert not fuse(vocoder, torch.device("cpu"))
    assert "no compiler" in capsys.readouterr().out
    assert all("forward" not in vars(module) for module in vocoder.modules())


def test_compiled_activations_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[int] = []

    def compiling(function: Callable[..., torch.Tensor], **_: object) -> Callable[..., torch.Tensor]:
        return lambda *values: used.append(1) or function(*values)  # type: ignore[func-returns-value]

    torch.manual_seed(4)
    vocoder = Vocoder(_TINY).eval()
    before, _ = vocoder(torch.zeros(1, 80, 4))
    monkeypatch.setattr(torch, "compile", compiling)
    assert fuse(vocoder, torch.device("cpu"))
    used.clear()
    after, _ = vocoder(torch.zeros(1, 80, 4))
    assert len(used) == sum(isinstance(module, Snake) for module in vocoder.modules())
    torch.testing.assert_close(before, after)


def test_the_command_line() -> None:
    plain = parse(["--data", "d", "--out", "o", "--minutes", "20"])
    assert plain.graph and plain.compile and plain.init is None and plain.rate is None
    careful = parse(
        ["--data", "d", "--out", "o", "--minutes", "9", "--init", "h.pt", "--no-graph", "--no-compile"]
    )
    assert not careful.graph and not careful.compile and careful.init == Path("h.pt")


@pytest.mark.gpu
def test_on_cuda_every_phase_is_replayed(data: Path, tmp_path: Path) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs CUDA")
    options = _options(data, tmp_path / "out", device="cuda", batch=4, compile=False, rate=1e-4)
    trainer = VocoderTrainer(options, _TINY)
    for fraction in _THROUGH_ALL_PHASES:
        before = [value.detach().clone() for value in trainer.generator.parameters()]
        losses = {name: float(value) for name, value in trainer.one_step(fraction, 1.0).items()}
        assert np.isfinite(list(losses.values())).all()
        assert any(not torch.equal(a, b) for a, b in zip(before, trainer.generator.parameters()))
    assert trainer.run.enabled and trainer.run.replaying
