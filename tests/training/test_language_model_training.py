"""CPU rehearsal of the language-model trainer on fabricated speech that follows its text."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from inference.models.config import LanguageModelConfig
from inference.models.language_model import SERVICE, SPEECH, TEXT, LanguageModel
from inference.runtime import bistream as runtime
from training.language_model import LanguageModelTrainer, Options, finalise, joint_table, parse, train
from training.language_model_data import Corpus, load_encoder
from training.language_model_feed import Feed, Source
from training.language_model_samples import (
    FIRST_TEXT,
    LONGEST,
    SOS,
    TASK,
    Mix,
    SampleMaker,
    bistream,
    neighbours,
    unistream,
)
from training.text_tokenizer import byte_symbols, write_files

pytestmark = pytest.mark.unit

TINY = LanguageModelConfig(
    vocab_size=300, hidden_size=32, intermediate_size=64, num_layers=2, num_heads=2, num_kv_heads=1
)
FIRST_SPEECH = FIRST_TEXT + TINY.vocab_size
WORDS = ("a", "be", "cat", "dog", "eel", "fox")


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def speech_of(text: str) -> list[int]:
    """Four tokens a letter, and silence at the end."""
    return [(ord(letter) * 53 + place) % 6000 for letter in text for place in range(4)] + [6100] * 3


def write_shard(folder: Path, name: str, seed: int, count: int = 40) -> None:
    random = np.random.default_rng(seed)
    meta, tokens = [], []
    for number in range(count):
        text = " ".join(random.choice(WORDS, int(random.integers(2, 6)))) + "."
        instruct = "Speak slowly." if number % 8 == 3 else ""
        split = "dev" if number % 10 == 9 else "train"
        speaker = f"s{number % 3}"
        meta.append({"text": text, "lang": "en", "speaker": speaker, "split": split, "instruct": instruct})
        tokens.append(np.array(speech_of(text), np.int16))
    np.savez(folder / f"shard-{name}.npz", meta=np.array(json.dumps(meta)))
    offsets = np.cumsum([0, *map(len, tokens)])
    np.savez(folder / f"features-{name}.npz", tokens=np.concatenate(tokens), token_offsets=offsets)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    write_shard(folder, "0-0", 1)
    write_files(tmp_path / "tokenizer", [], byte_symbols())
    return folder


def options(data: Path, **changes: object) -> Options:
    base = Options(
        data=(data,), tokenizer=data.parent / "tokenizer", out=data.parent / "out", minutes=5, device="cpu",
        rate=1e-2, batch_tokens=1024, limit_steps=60,
    )  # fmt: skip
    return replace(base, **changes)  # type: ignore[arg-type]


def corpus_of(data: Path) -> Corpus:
    corpus = Corpus(data, data.parent / "tokenizer")
    corpus.scan()
    return corpus


def test_unistream_learns_speech_and_its_end() -> None:
    text, speech = np.array([5, 6, 7], np.int32), np.array([10, 20], np.int32)
    sample = unistream(text, speech, TINY)
    words = [FIRST_TEXT + 5, FIRST_TEXT + 6, FIRST_TEXT + 7]
    assert sample.inputs.tolist() == [SOS, *words, TASK, FIRST_SPEECH + 10, FIRST_SPEECH + 20]
    assert sample.targets.tolist() == [-1] * 4 + [10, 20, TINY.end_of_speech]


def test_joint_table_is_numbered_like_the_samples() -> None:
    model = LanguageModel(TINY)
    table = joint_table(model)
    assert torch.equal(table[[SOS, TASK]], model.llm_embedding.weight)
    assert torch.equal(table[FIRST_TEXT + 9], model.get_parameter("llm.model.model.embed_tokens.weight")[9])
    assert torch.equal(table[FIRST_SPEECH + 9], model.speech_embedding.weight[9])


@pytest.mark.parametrize("repeat", [False, True])
@pytest.mark.parametrize("letters", [3, 5, 10, 13])
def test_bistream_is_what_inference_feeds(letters: int, repeat: bool) -> None:
    text, speech = list(range(100, 100 + letters)), list(range(500, 560))
    waiting = [*speech, TINY.end_of_speech]
    state = runtime.start(TINY, [], [], exact=repeat)
    inputs: list[int] = []
    targets: list[int] = []

    def decode() -> None:
        while state.decoding:
            first = {SERVICE: 0, TEXT: FIRST_TEXT, SPEECH: FIRST_SPEECH}
            inputs.extend(
                first[kind] + id_ for kind, id_ in zip(state.feed.kinds.tolist(), state.feed.ids.tolist())
            )
            picked = TINY.fill_token if runtime.fill_is_due(state) else waiting.pop(0)
            targets.extend([-1] * (len(state.feed) - 1) + [picked])
            runtime.accept(state, picked)

    for token in text:
        runtime.push_text(state, token)
        decode()
    runtime.end_text(state)
    decode()
    sample = bistream(np.array(text, np.int32), np.array(speech, np.int32), TINY, repeat)
    assert sample.inputs.tolist() == inputs
    assert sample.targets.tolist() == targets


def test_bistream_is_plain_where_speech_is_short_for_its_text() -> None:
    text, speech = np.arange(10, dtype=np.int32), np.arange(30, dtype=np.int32)
    assert TINY.fill_token not in bistream(text, speech, TINY, False).targets


def test_encoder_agrees_with_the_published_tokenizer(tmp_path: Path) -> None:
    write_files(tmp_path, [("h", "e"), ("he", "y")], byte_symbols())
    encode, end_of_prompt = load_encoder(tmp_path)
    assert end_of_prompt == 258 + 3
    vocabulary = json.loads((tmp_path / "vocab.json").read_text())
    assert encode("hey") == [vocabulary["hey"]]
    assert encode("e\u0301") == encode("\u00e9")


def test_instructed_utterances_appear_only_with_their_instruction(data: Path) -> None:
    corpus = corpus_of(data)
    lines = corpus.lines["train"]
    maker = SampleMaker(lines, corpus.silent, corpus.used, TINY, 0, Mix(noise=0))
    instructed = {tuple(line.speech) for line in lines if len(line.instruction)}
    normal = {tuple(line.speech) for line in lines if not len(line.instruction)}
    instruction = next(line.instruction for line in lines if len(line.instruction)) + FIRST_TEXT
    seen = 0
    for _ in range(300):
        sample = maker.draw()
        spoken = sample.targets[(sample.targets >= 0) & (sample.targets < 6561)]
        if sample.inputs[1 : 1 + len(instruction)].tolist() == instruction.tolist():
            assert tuple(spoken) in instructed
            seen += 1
        elif tuple(spoken) in instructed:
            assert tuple(spoken) in normal
        assert len(sample.inputs) == len(sample.targets) <= LONGEST
        assert sample.targets[-1] == TINY.end_of_speech
    assert seen > 20


def test_batches_keep_every_target_and_only_speech_inputs_are_disturbed(data: Path) -> None:
    corpus = corpus_of(data)
    clean, noisy = (
        SampleMaker(corpus.lines["train"], corpus.silent, corpus.used, TINY, 3, Mix(noise=noise, unsure=0.0))
        .batches(1024, pool=1)
        for noise in (0.0, 0.5)
    )  # fmt: skip
    for batch in clean + noisy:
        assert batch.inputs.size <= 1024
        assert len(batch.rows) == len(batch.labels)
        assert set(batch.labels.tolist()) <= {*corpus.used.tolist(), TINY.end_of_speech, TINY.fill_token}
        for row, label in zip(batch.rows[:-1], batch.labels[:-1]):
            following = batch.inputs.ravel()[row + 1]
            if any(batch is one for one in clean) and label < 6561 and following >= FIRST_SPEECH:
                assert following == label + FIRST_SPEECH
    wrong = noisy[0].inputs[noisy[0].inputs >= FIRST_SPEECH] - FIRST_SPEECH
    assert set(wrong.tolist()) <= set(corpus.used.tolist())


def test_loss_falls_and_the_shipped_state_knows_only_seen_ids(data: Path) -> None:
    trainer = LanguageModelTrainer(options(data), TINY)
    before = trainer.dev_scores()
    after_training = train(options(data), TINY)
    after = after_training.dev_scores()
    assert after["dev_loss"] < before["dev_loss"] - 1.0
    shipped = torch.load(data.parent / "out" / "llm.pt", weights_only=True)
    LanguageModel(TINY).load_state_dict(shipped)
    unseen = sorted(set(range(TINY.speech_vocab_size)) - set(after_training.known.tolist()))
    assert 6562 in unseen and 6561 not in unseen and 6563 not in unseen
    assert not shipped["speech_embedding.weight"][unseen].any()
    assert not shipped["llm_decoder.weight"][unseen].any()
    assert (shipped["llm_decoder.bias"][unseen] == -30).all()
    assert shipped["llm_decoder.weight"][after_training.known].abs().sum(-1).min() > 0


def test_neighbours_move_a_digit_by_one_level() -> None:
    random = np.random.default_rng(4)
    speech = random.integers(0, 729, 4000).astype(np.int32)
    heard = neighbours(speech, 0.5, random)
    digits = [codes[:, None] // 3 ** np.arange(6) % 3 for codes in (speech, heard)]
    steps = np.abs(digits[0] - digits[1])
    assert steps.max() == 1 and heard.max() < 729 and heard.min() >= 0
    assert 0.3 < (steps.sum(1) > 0).mean() < 0.5  # a chosen code may keep all its digits
    assert np.array_equal(neighbours(speech, 0.0, random), speech)


def test_a_prompt_is_heard_unsurely_but_learnt_as_it_is(data: Path) -> None:
    corpus = corpus_of(data)
    mix = Mix(clone=1.0, bistream=0.0, noise=0.0, unsure=1.0, most_unsure=1.0)
    maker = SampleMaker(corpus.lines["train"], corpus.silent, corpus.used, TINY, 3, mix)
    said = [line.speech.tolist() for line in corpus.lines["train"]]
    moved = 0
    for _ in range(60):
        sample = maker.draw()
        fed = sample.inputs[sample.inputs >= FIRST_SPEECH] - FIRST_SPEECH
        learnt = sample.targets[sample.targets >= 0][:-1]
        moved += int((fed != learnt).any())
        assert any(fed[-len(one) :].tolist() == one for one in said)  # the utterance itself is fed as it is
    assert moved > 20


def test_begins_with_given_weights_and_drops_in_training_only(data: Path) -> None:
    train(options(data, limit_steps=2), TINY)
    path = data.parent / "out" / "llm.pt"
    trainer = LanguageModelTrainer(options(data, init=path, dropout=0.5), TINY)
    given = torch.load(path, weights_only=True)
    assert torch.equal(
        trainer.model.state_dict()["speech_embedding.weight"], given["speech_embedding.weight"]
    )
    embeddings = torch.randn(1, 4, TINY.hidden_size)
    with torch.no_grad():
        assert not torch.equal(trainer.model(embeddings), trainer.model(embeddings))
        trainer.model.eval()
        assert torch.equal(trainer.model(embeddings), trainer.model(embeddings))


def test_resume_and_new_shards(data: Path) -> None:
    train(options(data, limit_steps=4), TINY)
    write_shard(data, "0-1", 2)
    trainer = train(options(data, limit_steps=3, resume=True), TINY)
    assert trainer.step == 7
    assert len(trainer.corpus.lines["train"]) == 72
    write_shard(data, "0-2", 3)
    trainer.refresh_data()
    assert len(trainer.corpus.lines["train"]) == 108


def test_a_loss_that_is_not_finite_changes_nothing(data: Path) -> None:
    trainer = LanguageModelTrainer(options(data), TINY)
    feed = Feed(Source((data,), data.parent / "tokenizer", TINY, 512, 0), 0)
    trainer.one_step(feed.next(), 1.0, 0.0)
    weights = [parameter.detach().clone() for parameter in trainer.model.parameters()]
    norm = trainer.model.get_submodule("llm.model.model.norm")
    handle = norm.register_forward_hook(lambda *parts: parts[2] * float("nan"))
    assert float(trainer.one_step(feed.next(), 1.0, 0.0)) == 0.0
    handle.remove()
    for old, new in zip(weights, trainer.model.parameters()):
        assert torch.equal(old, new)
    assert float(trainer.one_step(feed.next(), 1.0, 0.0)) > 0.0


def test_finalise_copies(data: Path) -> None:
    model = LanguageModel(TINY)
    finalise(model.state_dict(), torch.tensor([1, 6561, 6563]))
    assert model.speech_embedding.weight[5].abs().sum() > 0


def test_command_line() -> None:
    found = parse(["--data", "d", "--tokenizer", "t", "--out", "o", "--minutes", "1.5", "--device", "cpu"])
    assert found.workers == 2 and found.minutes == 1.5 and found.rate == 1.5e-3
