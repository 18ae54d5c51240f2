"""The whole path held against the original's recorded runs: model inputs of every mode, then tokens to sound."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from inference import CosyVoice, Mode, Reference, SynthesisRequest
from inference.frontend.prompt import ModelInput
from inference.runtime import vocoder_stream
from inference.runtime.clock import Clock
from inference.runtime.schedule import ChunkSchedule
from inference.runtime.token_to_wave import SegmentSound, TokenToWave
from tests.golden_data import Case, load_case, parametrize, reference_folder, relative_error
from tests.model_folder import TINY_CONFIG, write_random_folder
from tests.models.flow_support import tiny_flow
from tests.models.vocoder_support import tiny_vocoder

pytestmark = pytest.mark.golden
TOLERANCE = 1e-4
MODES = {
    "sft": Mode.PRESET,
    "zero_shot": Mode.CLONE,
    "cross_lingual": Mode.CROSS_LINGUAL,
    "instruct2": Mode.INSTRUCT,
    "vc": Mode.CONVERT,
}


# --------------------------------------------------------------------------------------- tokens to sound
class RecordedSource:
    """Gives the recorded excitation, chunk by chunk, and keeps the mel that the vocoder got."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self.mels: list[Tensor] = []

    def __call__(self, vocoder: Any, mel: Tensor, *others: Any) -> tuple[Tensor, None]:
        self.mels.append(mel)
        return self._case.tensor(f"chunk{len(self.mels) - 1}_source"), None


def _sound(case: Case) -> SegmentSound:
    nothing = np.zeros(0, dtype=np.int32)
    given = ModelInput(
        text_ids=nothing,
        prompt_text_ids=nothing,
        llm_prompt_tokens=nothing,
        flow_prompt_tokens=case.arrays["prompt_token"],
        prompt_mel=case.arrays["prompt_feat"][0],
        speaker=case.arrays["embedding"][0],
        min_tokens=0,
        max_tokens=0,
    )
    models = TokenToWave(tiny_flow(), tiny_vocoder())
    return models.begin(given, seed=0, speed=case.meta["speed"], exact=True, clock=Clock())


def _waves(case: Case) -> list[Tensor]:
    sound, tokens = _sound(case), case.arrays["token"].tolist()
    if not case.meta["stream"]:
        return [sound.whole_wave(tokens)]
    schedule = ChunkSchedule(len(case.arrays["prompt_token"]), 3, case.meta["hop_before"])
    waves = []
    while call := schedule.next_call(len(tokens), finished=True):
        waves.append(sound.chunk_wave(call, tokens))
    return waves


@parametrize("name", "pipe_")
def test_tokens_to_sound(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = load_case(name)
    recorded = RecordedSource(case)
    monkeypatch.setattr(vocoder_stream, "_excite", recorded)
    waves = _waves(case)
    assert len(waves) == sum(key.endswith("_wav") for key in case.arrays)
    for number, (mel, wave) in enumerate(zip(recorded.mels, waves)):
        assert relative_error(mel, case.tensor(f"chunk{number}_mel_in")) <= TOLERANCE
        assert relative_error(wave, case.tensor(f"chunk{number}_wav")[0]) <= TOLERANCE


# ------------------------------------------------------------------------------------- text and clip to input
@pytest.fixture(scope="module")
def stub_engine(tmp_path_factory: pytest.TempPathFactory) -> CosyVoice:
    """An engine whose tokenizer is the public one and whose ONNX files and presets are those of the recording."""
    reference = reference_folder()
    if not (reference / "stub_onnx").is_dir():
        pytest.skip(f"no stub_onnx in {reference}")
    # As many text embeddings as the public tokenizer has tokens; all else stays tiny.
    language_model = replace(TINY_CONFIG.language_model, vocab_size=151936)
    config = replace(TINY_CONFIG, language_model=language_model)
    folder = write_random_folder(tmp_path_factory.mktemp("stub-model"), config)
    for path in (reference / "stub_onnx").iterdir():
        shutil.copyfile(path, folder / path.name)
    for name in ("vocab.json", "merges.txt"):
        shutil.copyfile(reference / "CosyVoice-BlankEN" / name, folder / "CosyVoice-BlankEN" / name)
    return CosyVoice(folder, device="cpu")


def _request(case: Case, folder: Path) -> SynthesisRequest:
    said = case.meta["inputs"]
    voice: Reference | str | None = said.get("spk")
    if "wav" in said:
        voice = Reference(folder / said["wav"], said.get("prompt", ""))
    source = Reference(folder / said["source"]) if "source" in said else None
    return SynthesisRequest(
        MODES[case.meta["mode"]],
        said.get("tts", ""),
        voice,
        instruction=said.get("instruct", ""),
        source=source,
        exact=True,
    )


@parametrize("name", "mode_")
def test_model_input_of_every_mode(name: str, stub_engine: CosyVoice) -> None:
    case = load_case(name)
    (segment,) = stub_engine.model_inputs(_request(case, reference_folder()))
    made = segment.model_input
    for found, key in (
        (made.text_ids, "text"),
        (made.prompt_text_ids, "prompt_text"),
        (made.llm_prompt_tokens, "llm_prompt_speech_token"),
        (made.flow_prompt_tokens, "flow_prompt_speech_token"),
    ):
        expected = case.arrays[key][0] if key in case.arrays else np.zeros(0, dtype=np.int32)
        assert np.array_equal(found, expected), key
    if "prompt_speech_feat" in case.arrays:
        difference = np.abs(made.prompt_mel - case.arrays["prompt_speech_feat"][0])
        assert difference.max() <= TOLERANCE
    else:
        assert made.prompt_mel.shape == (0, 80)
    error = relative_error(torch.from_numpy(made.speaker), case.tensor("flow_embedding")[0])
    assert error <= TOLERANCE
    if case.meta["mode"] == "vc":
        assert segment.tokens == case.arrays["source_speech_token"][0].tolist()
