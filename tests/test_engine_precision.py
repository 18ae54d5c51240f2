"""Half precision: taken where it is sound, given up loudly where it is not, and near float32 on a GPU."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from inference import CosyVoice, EngineError, Mode
from inference.checkpoint import ModelFolder, load_folder
from inference.models.flow import FlowModel
from inference.models.language_model import LanguageModel
from inference.runtime.precision import choose_dtype, relative_error, with_precision
from inference.runtime.self_test import probe_flow, probe_language_model
from inference.runtime.token_to_wave import TokenToWave
from tests.engine_support import GOOD, LONG_TEXT, REQUESTS, pcm_of, steady

pytestmark = pytest.mark.e2e
HALF = torch.bfloat16  # the one that CPUs run too
# Relative 2-norm distance from float32 of logits and of the mel after ten solver steps, random weights.
BOUNDS = {torch.float16: 5e-3, torch.bfloat16: 4e-2}


@pytest.fixture(scope="module")
def folder(random_model_dir: Path) -> ModelFolder:
    """Not to be changed."""
    return load_folder(random_model_dir)


@pytest.fixture
def engine(random_model_dir: Path) -> CosyVoice:
    # Whose models can be copied, which those with weights packed for the CPU cannot.
    return CosyVoice(random_model_dir, device="cpu", flow_backend="torch")


def overflow_in_half(layer: nn.Module, after: int = 0) -> None:
    """From call number `after` on the layer gives NaN while its weights are not float32, as an overflow does."""
    calls = [0]

    def hook(module: nn.Module, _: Any, output: Tensor) -> Tensor:
        calls[0] += 1
        weight: Any = module.weight
        broken = weight.dtype != torch.float32 and calls[0] > after
        return output * torch.nan if broken else output

    layer.register_forward_hook(hook)


# ------------------------------------------------------------------------------------------------ at loading
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sound_modules_are_taken_in_half(
    folder: ModelFolder, dtype: torch.dtype, caplog: pytest.LogCaptureFixture
) -> None:
    language_model = with_precision(folder.language_model, dtype, probe_language_model, "language model")
    flow = with_precision(folder.flow, dtype, probe_flow, "flow model")
    assert language_model.dtype == dtype and flow.encoder_proj.weight.dtype == dtype
    assert folder.language_model.dtype == torch.float32  # the given module stays as it was
    assert not any(weight.is_inference() for weight in language_model.parameters())  # free for any later use
    assert caplog.records == []


def _nan_weight(model: Any) -> None:
    """A weight beyond the largest float16."""
    model.encoder_proj.weight.data[0, 0] = 1e6


def _overflowing_layer(model: Any) -> None:
    overflow_in_half(model.encoder_proj)


def _far_off(model: Any) -> None:
    """Finite in half, but wrong."""
    model.encoder_proj.register_forward_hook(
        lambda module, _, output: output * (1.0 if module.weight.dtype == torch.float32 else 1.5)
    )


@pytest.mark.parametrize("damage", [_nan_weight, _overflowing_layer, _far_off])
def test_an_unsound_module_stays_in_float32_with_a_warning(
    folder: ModelFolder, damage: Callable[[Any], None], caplog: pytest.LogCaptureFixture
) -> None:
    flow = copy.deepcopy(folder.flow)
    damage(flow)
    kept = with_precision(flow, torch.float16, probe_flow, "flow model")
    assert kept is flow and kept.encoder_proj.weight.dtype == torch.float32
    (record,) = caplog.records
    assert record.levelno == logging.WARNING and "flow model" in record.message
    assert torch.isfinite(probe_flow(kept)).all()


def test_the_dtype_that_is_tried(caplog: pytest.LogCaptureFixture) -> None:
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert choose_dtype("auto", cpu) == choose_dtype("fp32", cuda) == torch.float32
    assert choose_dtype("auto", cuda) == choose_dtype("fp16", cuda) == torch.float16
    assert choose_dtype("bf16", cuda) == torch.bfloat16
    assert caplog.records == []
    assert choose_dtype("fp16", cpu) == torch.float32  # said, not silent
    assert "fp32" in caplog.text


# ------------------------------------------------------------------------------------------------ at run time
def test_a_flow_model_that_overflows_later_gives_way(
    engine: CosyVoice, caplog: pytest.LogCaptureFixture
) -> None:
    (segment,) = engine.model_inputs(REQUESTS[Mode.CONVERT])
    assert segment.tokens is not None
    half = copy.deepcopy(engine._to_wave.flow).to(HALF)
    overflow_in_half(half.encoder_proj, after=1)
    models = TokenToWave(half, engine._to_wave.vocoder)
    models.mel(segment.model_input, segment.tokens, streaming=True, finalize=True)
    assert models.flow is half and caplog.records == []
    mel = models.mel(segment.model_input, segment.tokens, streaming=True, finalize=True)
    assert models.flow is not half and models.flow.encoder_proj.weight.dtype == torch.float32
    assert half.encoder_proj.weight.dtype == HALF  # others may be running it
    assert "float32 from now on" in caplog.text
    expected = engine._to_wave.mel(segment.model_input, segment.tokens, streaming=True, finalize=True)
    assert relative_error(mel, expected) < BOUNDS[HALF]  # its weights were rounded


@pytest.mark.parametrize("after", [0, 7])
def test_a_language_model_that_overflows_later_gives_way(
    engine: CosyVoice, caplog: pytest.LogCaptureFixture, after: int
) -> None:
    half = copy.deepcopy(engine._language_model).to(HALF)
    engine._language_model = copy.deepcopy(half).float()
    expected = pcm_of(list(engine.synthesize(GOOD)))
    overflow_in_half(half.llm_decoder, after)
    engine._language_model = half
    found = pcm_of(list(engine.synthesize(GOOD)))
    assert engine._language_model.dtype == torch.float32 and "float32 from now on" in caplog.text
    if after == 0:
        assert np.array_equal(found, expected)
    assert len(found) > 0
    assert np.array_equal(pcm_of(list(engine.synthesize(GOOD))), expected)


@pytest.mark.parametrize("stream", [False, True])
def test_damage_that_float32_does_not_cure_is_one_error(
    engine: CosyVoice, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    good = pcm_of(list(engine.synthesize(GOOD)))
    sound_flow, sound_language_model = engine._to_wave.flow, engine._language_model
    broken_flow = copy.deepcopy(sound_flow)
    broken_flow.encoder_proj.bias.data[0] = torch.nan
    engine._to_wave.flow = broken_flow
    with pytest.raises(EngineError) as caught:
        list(engine.synthesize(replace(GOOD, stream=stream)))
    assert caught.value.code == "non_finite"
    engine._to_wave.flow = sound_flow
    broken_model = copy.deepcopy(sound_language_model)
    broken_model.llm_decoder.bias.data[0] = torch.nan
    engine._language_model = broken_model
    with pytest.raises(EngineError) as caught:
        list(engine.synthesize(replace(GOOD, stream=stream)))
    assert caught.value.code == "non_finite"
    engine._language_model = sound_language_model
    assert np.array_equal(good, pcm_of(list(engine.synthesize(GOOD))))


def test_running_out_of_memory_is_one_error(engine: CosyVoice, monkeypatch: pytest.MonkeyPatch) -> None:
    good = pcm_of(list(engine.synthesize(GOOD)))

    def full(*_: Any, **__: Any) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(engine._to_wave, "mel", full)
        with pytest.raises(EngineError) as caught:
            list(engine.synthesize(GOOD))
    assert caught.value.code == "out_of_memory"
    assert np.array_equal(good, pcm_of(list(engine.synthesize(GOOD))))


# -------------------------------------------------------------------------------------------------- on a GPU
def _mel(engine: CosyVoice) -> Tensor:
    (segment,) = engine.model_inputs(REQUESTS[Mode.CONVERT])
    assert segment.tokens is not None
    return engine._to_wave.mel(segment.model_input, segment.tokens, streaming=True, finalize=True).cpu()


@pytest.mark.gpu
def test_float32_on_cuda_equals_cpu(random_model_dir: Path, cuda: torch.device) -> None:
    there = CosyVoice(random_model_dir, device="cuda", precision="fp32")
    here = CosyVoice(random_model_dir, device="cpu")
    logits = probe_language_model(there._language_model).cpu()
    assert relative_error(logits, probe_language_model(here._language_model)) <= 1e-3
    assert relative_error(_mel(there), _mel(here)) <= 1e-3


@pytest.mark.gpu
@pytest.mark.parametrize("stream", [False, True])
def test_the_same_sound_on_cuda(random_model_dir: Path, cuda: torch.device, stream: bool) -> None:
    """The vocoder's noise does not depend on the device: sound differs by rounding only."""
    request = replace(REQUESTS[Mode.CONVERT], stream=stream)
    engines = [steady(CosyVoice(random_model_dir, device=name, precision="fp32")) for name in ("cuda", "cpu")]
    there, here = (pcm_of(list(engine.synthesize(request))).astype(np.float64) for engine in engines)
    assert len(there) == len(here)
    assert np.linalg.norm(there - here) <= 5e-3 * np.linalg.norm(here)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("precision", "dtype"), [("fp16", torch.float16), ("bf16", torch.bfloat16), ("auto", torch.float16)]
)
def test_half_precision_on_cuda_is_near_float32(
    random_model_dir: Path,
    cuda: torch.device,
    precision: str,
    dtype: torch.dtype,
    caplog: pytest.LogCaptureFixture,
) -> None:
    half = CosyVoice(random_model_dir, device="cuda", precision=precision)
    assert half._language_model.dtype == half._to_wave.flow.encoder_proj.weight.dtype == dtype
    single = CosyVoice(random_model_dir, device="cuda", precision="fp32")
    logits = probe_language_model(single._language_model)
    assert relative_error(probe_language_model(half._language_model), logits) <= BOUNDS[dtype]
    assert relative_error(_mel(half), _mel(single)) <= BOUNDS[dtype]
    assert caplog.records == []


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("mode", list(Mode))
def test_every_mode_on_cuda(random_model_dir: Path, cuda: torch.device, mode: Mode, precision: str) -> None:
    engine = CosyVoice(random_model_dir, device="cuda", precision=precision)
    request = REQUESTS[mode] if mode is Mode.CONVERT else replace(REQUESTS[mode], text=LONG_TEXT)
    whole = pcm_of(list(engine.synthesize(request)))
    again = pcm_of(list(engine.synthesize(request)))
    assert np.array_equal(whole, again)
    streamed = pcm_of(list(engine.synthesize(replace(request, stream=True))))
    assert len(streamed) == len(whole) > 0


@pytest.mark.gpu
def test_an_unsound_module_on_cuda_stays_in_float32(
    random_model_dir: Path, cuda: torch.device, caplog: pytest.LogCaptureFixture
) -> None:
    loaded = load_folder(random_model_dir, device="cuda")
    models: list[tuple[FlowModel | LanguageModel, Any, Any]] = [
        (loaded.flow, loaded.flow.encoder_proj, probe_flow),
        (loaded.language_model, loaded.language_model.llm_decoder, probe_language_model),
    ]
    for model, layer, probe in models:
        layer.weight.data[0, 0] = 1e6
        assert with_precision(model, torch.float16, probe, "model") is model
    assert len(caplog.records) == 2
