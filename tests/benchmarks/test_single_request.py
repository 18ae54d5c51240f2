"""The benchmarks' own parts: weights, lengths, texts, and a run of the single-request report."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks import single_request
from benchmarks.forced_length import forced_length
from benchmarks.material import TRANSCRIPT, clip, text_of
from benchmarks.random_folder import write_random_folder
from inference import CosyVoice, Mode, Reference, SynthesisRequest
from inference.frontend.tokenizer import TextTokenizer
from inference.model_yaml import TOKENIZER_FOLDER
from tests.model_folder import TINY_CONFIG

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiny random weights with the bundled tokenizers."""
    language_model = replace(TINY_CONFIG.language_model, vocab_size=4400)
    config = replace(TINY_CONFIG, language_model=language_model)
    return write_random_folder(tmp_path_factory.mktemp("random"), config)


@pytest.mark.parametrize("stream", [False, True])
def test_the_length_is_forced_and_then_free_again(folder: Path, stream: bool) -> None:
    engine = CosyVoice(folder, device="cpu")
    request = SynthesisRequest(
        Mode.CLONE, "hello world, this is a test.", Reference(clip(4.0), TRANSCRIPT), stream=stream
    )

    def samples() -> int:
        return sum(len(chunk.pcm) for chunk in engine.synthesize(request))

    free = samples()
    with forced_length(50):
        assert samples() == 50 * 960
    with forced_length(130):
        assert samples() == 130 * 960
    with forced_length(0):
        assert samples() == free
    assert samples() == free


def test_random_weights_are_half_precision_and_the_same_each_time(folder: Path, tmp_path: Path) -> None:
    again = write_random_folder(
        tmp_path,
        replace(TINY_CONFIG, language_model=replace(TINY_CONFIG.language_model, vocab_size=4400)),
    )
    for stem in ("llm", "flow", "hift"):
        first, second = (torch.load(path / f"{stem}.pt", weights_only=True) for path in (folder, again))
        assert all(value.dtype == torch.float16 for value in first.values())
        assert all(torch.equal(first[key], second[key]) for key in first)
        assert all(torch.isfinite(value).all() for value in first.values())


@pytest.mark.parametrize("tokens", [5, 25, 60])
def test_texts_have_the_wanted_number_of_tokens(folder: Path, tokens: int) -> None:
    encode = TextTokenizer(folder / TOKENIZER_FOLDER).encode
    texts = [text_of(tokens, encode, start) for start in range(8)]
    assert [len(encode(text)) for text in texts] == [tokens] * 8
    assert len(set(texts)) == 8


def test_the_report_of_single_requests(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "single.json"
    arguments = ["--model-dir", str(folder), "--device", "cpu", "--out", str(out), "--speech-tokens", "75"]
    assert single_request.main(arguments) == 0
    report = json.loads(out.read_text())
    (entry,) = report["precisions"].values()
    for kind in ("whole", "streamed"):
        run = entry[kind]
        assert run["audio"] == pytest.approx(3.0) and run["speech_tokens"] == 75
        parts = sum(run[stage] for stage in single_request.STAGES)
        assert 0.5 * run["total"] < parts <= run["total"]
    assert entry["streamed"]["first_chunk"] < entry["streamed"]["total"]
    assert entry["whole"]["chunks"] == 1 < entry["streamed"]["chunks"]
    assert "fp32" in capsys.readouterr().out
