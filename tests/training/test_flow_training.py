"""CPU rehearsal of the flow trainer on fabricated speech."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from inference.frontend.features import log_mel_24k
from inference.models.flow import FlowModel
from tests.models.flow_support import TINY
from training.flow import FlowTrainer, Options, parse, train
from training.flow_data import FlowBatch, FlowCorpus, FlowSampler, PromptMix
from training.flow_objective import FlowTraining, alter_timbre, flow_loss, replace_tokens, training_times
from training.flow_state import finalise

CPU = torch.device("cpu")
TOKENS = (30, 47, 64, 5, 38, 52)
PITCHES = (110.0, 180.0, 260.0)


def write_shard(folder: Path, name: str, seed: int) -> None:
    """Harmonic tones whose level follows their tokens: three speakers, two engines, one of dev, one short."""
    generator = np.random.default_rng(seed)
    audio, tokens, meta = [], [], []
    for index, count in enumerate(TOKENS):
        speaker = index % 3
        codes = np.repeat(generator.integers(0, 2, -(-count // 5)) * 1000 + 7, 5)[:count]
        phase = 2 * math.pi * PITCHES[speaker] * np.arange(960 * count) / 24000
        level = np.repeat(np.where(codes > 500, 0.3, 0.02), 960)
        wave = sum(np.sin(h * phase) / h for h in range(1, 8)) * level
        audio.append((wave * 8000).astype(np.int16))
        tokens.append(codes.astype(np.int16))
        split = "dev" if index == 4 else "train"
        meta.append({"speaker": f"s{speaker}", "engine": f"e{speaker % 2}", "split": split})
    vectors = np.eye(192, dtype=np.float16)[[i % 3 for i in range(len(TOKENS))]]
    np.savez(
        folder / f"shard-{name}.npz",
        audio=np.concatenate(audio),
        audio_offsets=np.cumsum([0, *map(len, audio)]),
        f0=np.zeros(1, np.float16),
        f0_offsets=np.zeros(len(TOKENS) + 1, np.int64),
        meta=np.array(json.dumps(meta)),
    )
    np.savez(
        folder / f"features-{name}.npz",
        tokens=np.concatenate(tokens),
        token_offsets=np.cumsum([0, *map(len, tokens)]),
        speaker_vectors=vectors,
    )


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    write_shard(folder, "0-0", 1)
    write_shard(folder, "1-0", 2)
    return folder


def options(data: Path, tmp_path: Path, steps: int) -> Options:
    return Options(
        data=data,
        out=tmp_path / "out",
        minutes=5,
        rate=4e-3,
        device="cpu",
        batch_tokens=240,
        buckets=(40, 60),
        limit_steps=steps,
    )


@pytest.mark.unit
def test_mels_are_those_of_each_utterance_alone(data: Path) -> None:
    corpus = FlowCorpus(data, CPU)
    assert corpus.scan() == 10
    with np.load(data / "shard-0-0.npz") as shard:
        start, end = shard["audio_offsets"][1:3]
        alone = log_mel_24k(torch.from_numpy(shard["audio"][start:end].astype(np.float32) / 32768)[None])[0]
    first, count = int(corpus.starts[1]), int(corpus.counts[1])
    found = corpus.mel[first : first + count].flatten(0, 1).T.float()
    torch.testing.assert_close(found, alone[:, : 2 * count], rtol=0, atol=1e-2)  # stored as float16


@pytest.mark.unit
def test_new_shards_are_taken_in_and_halves_are_left(data: Path) -> None:
    corpus = FlowCorpus(data, CPU)
    assert corpus.scan(limit=1) == 5
    assert corpus.scan() == 5
    assert corpus.scan() == 0
    write_shard(data, "2-0", 3)
    (data / "features-2-0.npz").rename(data / "later.npz")
    assert corpus.scan() == 0
    (data / "later.npz").rename(data / "features-2-0.npz")
    assert corpus.scan() == 5
    assert int(corpus.counts.sum()) == corpus.tokens.numel() == len(corpus.mel)
    assert corpus.used_ids().tolist() == [7, 1007]


@pytest.mark.unit
def test_batches_hold_aligned_speech_of_one_speaker(data: Path) -> None:
    corpus = FlowCorpus(data, CPU)
    corpus.scan()
    sampler = FlowSampler(corpus, "train", 0, PromptMix(joined=0.6, own=0.2))
    prompts = []
    for _ in range(20):
        batch = sampler.draw(8, 60)
        assert batch.mel.shape == (8, 80, 120) and batch.tokens.shape == (8, 60)
        for row in range(8):
            length = int(batch.lengths[row])
            assert 12 <= length <= 60 and 0 <= int(batch.prompt[row]) < length
            prompts.append(int(batch.prompt[row]))
            # Loud tokens have loud frames: tokens and mel are cut at the same places.
            level = batch.mel[row, :20, : 2 * length].mean(0).view(-1, 2).mean(1)
            loud = batch.tokens[row, :length] > 500
            if loud.any() and (~loud).any():
                assert level[loud].mean() > level[~loud].mean() + 1
            # Speakers have their own pitch, so the strongest low bin is the same in prompt and target.
            speaker = int(batch.speaker[row].argmax())
            strongest = batch.mel[row, :12, : 2 * length].mean(1).argmax()
            assert int(strongest) == int(round(_bin(PITCHES[speaker]))), (speaker, strongest)
    assert 0 in prompts and max(prompts) > 10


def _bin(hertz: float) -> float:
    """Index of the mel filter nearest to a frequency below 1 kHz."""
    top = 15 + math.log(8) * 27 / math.log(6.4)
    return hertz * 0.015 / (top / 81) - 1


@pytest.mark.unit
def test_token_noise_and_times() -> None:
    tokens = torch.arange(10_000).view(10, 1000)
    assert torch.equal(replace_tokens(tokens, 0.0), tokens)
    changed = (replace_tokens(tokens, 0.1) != tokens).float().mean()
    assert 0.08 < float(changed) < 0.12
    times = training_times(1000, CPU)
    assert 0 <= float(times.min()) and float(times.max()) <= 1
    assert float(times.quantile(0.5)) == pytest.approx(1 - math.cos(math.pi / 4), abs=1e-2)


@pytest.mark.unit
def test_timbre_changes_only_the_chosen() -> None:
    mel = torch.randn(3, 80, 20) - 5
    found = alter_timbre(mel, torch.tensor([False, True, False]))
    assert torch.equal(found[0], mel[0]) and torch.equal(found[2], mel[2])
    assert not torch.allclose(found[1], mel[1]) and torch.isfinite(found).all()


def make_batch(lengths: list[int], prompts: list[int], size: int) -> FlowBatch:
    count = len(lengths)
    return FlowBatch(
        torch.randint(0, 6561, (count, size)),
        torch.randn(count, 80, 2 * size) - 5,
        torch.tensor(lengths),
        torch.tensor(prompts),
        torch.randn(count, 192),
    )


@pytest.mark.unit
@pytest.mark.parametrize("streaming", [False, True])
def test_padding_and_prompt_frames_are_not_learnt(streaming: bool) -> None:
    model = FlowModel(TINY)
    batch = make_batch([30, 20], [0, 8], 30)
    how = FlowTraining(guidance_dropout=0, token_noise=0, timbre=0, vector_noise=0, prior_weight=0)

    def loss(given: FlowBatch) -> float:
        torch.manual_seed(4)
        return float(flow_loss(model, given, streaming=streaming, how=how)[0])

    other = batch.mel.clone()
    other[1, :, 40:] = 1e3
    assert loss(batch._replace(mel=other)) == pytest.approx(loss(batch), rel=1e-5)
    # With a network that always answers 0 only the target of the learnt frames is left.
    torch.nn.init.zeros_(model.decoder.estimator.final_proj.weight)
    torch.nn.init.zeros_(model.decoder.estimator.final_proj.bias)
    prompt = batch.mel.clone()
    prompt[1, :, :16] = 1e3
    assert loss(batch._replace(mel=prompt)) == pytest.approx(loss(batch), rel=1e-5)
    prompt[1, :, 16:18] = 1e3
    assert loss(batch._replace(mel=prompt)) > 2 * loss(batch)


@pytest.mark.unit
def test_every_parameter_learns() -> None:
    model = FlowModel(TINY)
    flow_loss(model, make_batch([30, 20], [0, 15], 30), streaming=False, how=FlowTraining())[0].backward()
    idle = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert idle == []


@pytest.mark.unit
def test_rehearsal_learns_saves_and_resumes(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = options(data, tmp_path, steps=140)
    before = FlowTrainer(chosen, TINY).dev_loss()
    trainer = train(chosen, TINY)
    after = trainer.dev_loss()
    assert after < 0.8 * before

    shipped = torch.load(chosen.out / "flow.pt", weights_only=True)
    loaded = FlowModel(TINY).eval()
    loaded.load_state_dict(shipped, strict=True)
    rows = loaded.input_embedding.weight.abs().sum(1).nonzero().flatten().tolist()
    assert rows == [7, 1007]
    again = train(replace(chosen, limit_steps=5, resume=True), TINY)
    assert again.step == 145
    assert "going on from step 140" in capsys.readouterr().out
    assert again.dev_loss() < before
    assert not list(chosen.out.glob("*.tmp"))


@pytest.mark.unit
def test_unused_rows_are_zero_and_the_source_is_kept() -> None:
    state = {"input_embedding.weight": torch.ones(5, 2), "encoder_proj.bias": torch.ones(3).double()}
    shipped = finalise(state, [1, 3])
    assert shipped["input_embedding.weight"].sum(1).tolist() == [0, 2, 0, 2, 0]
    assert shipped["encoder_proj.bias"].dtype == torch.float32
    assert state["input_embedding.weight"].sum() == 10


@pytest.mark.unit
def test_no_data_is_said_plainly(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no features"):
        train(options(tmp_path, tmp_path, 1), TINY)


@pytest.mark.unit
def test_command_line() -> None:
    found = parse(["--data", "d", "--out", "o", "--minutes", "3", "--device", "cpu", "--limit-steps", "2"])
    assert found == Options(Path("d"), Path("o"), 3.0, device="cpu", limit_steps=2)


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True])
def test_rehearsal_on_cuda(data: Path, tmp_path: Path, cuda: torch.device, compiled: bool) -> None:
    chosen = replace(options(data, tmp_path, steps=140), device="cuda", compile=compiled)
    before = FlowTrainer(chosen, TINY).dev_loss()
    assert train(chosen, TINY).dev_loss() < 0.8 * before
