"""Compiled graphs: the same numbers, and no compilation while somebody waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from inference.runtime import compiled_graphs
from inference.runtime.backend_generator import BackendGenerator
from inference.runtime.compiled_graphs import CompiledSpectrum, CompiledVelocity
from inference.runtime.network_graphs import (
    SpectrumGraph,
    VelocityGraph,
    spectrum_example,
    velocity_example,
)
from inference.runtime.packed_vocoder import PackedVocoder
from inference.runtime.precision import relative_error
from inference.runtime.vocoder_pack import VocoderJob
from tests.runtime.tensorrt_support import small_network, small_vocoder


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Compiling takes half a minute on the CPU: here the graphs run as they are. Shapes that they were run with."""
    shapes: list[tuple[int, ...]] = []

    def compile_not(graph: Callable[..., Any], **flags: object) -> Callable[..., Any]:
        def run(*values: torch.Tensor) -> Any:
            shapes.append(tuple(values[0].shape))
            return graph(*values)

        return run

    monkeypatch.setattr(compiled_graphs.torch, "compile", compile_not)
    return shapes


@pytest.mark.unit
@torch.inference_mode()
def test_only_prepared_rows_are_taken(uncompiled: list[tuple[int, ...]]) -> None:
    vocoder = small_vocoder()
    backend = CompiledSpectrum(vocoder)
    backend.prepare([64, 128])
    assert uncompiled == [(1, 80, 64), (1, 80, 128)]
    for rows, taken in ((64, True), (128, True), (65, False)):
        mel, excitation, mask = spectrum_example(vocoder, 1, rows, torch.float32)
        found = backend(mel, excitation, mask > 0)
        assert (found is not None) == taken
        if found is not None:
            assert torch.equal(found, SpectrumGraph(vocoder)(mel, excitation, mask))
    assert backend(*spectrum_example(vocoder, 2, 64, torch.float32)) is None
    assert backend(mel[:, :, :64], excitation[:, :, : 64 * 120 + 1]) is None  # without a mask
    assert len(uncompiled) == 4


@pytest.mark.unit
@torch.inference_mode()
def test_no_further_row_is_compiled_when_the_time_is_up(uncompiled: list[tuple[int, ...]]) -> None:
    backend = CompiledSpectrum(small_vocoder())
    backend.prepare([10, 12, 14], limit=-1.0)
    assert [shape[2] for shape in uncompiled] == [10]  # the first one is always there
    with torch.inference_mode():
        assert backend(*spectrum_example(small_vocoder(), 1, 10, torch.float32)) is not None
        assert backend(*spectrum_example(small_vocoder(), 1, 12, torch.float32)) is None


def test_velocity(uncompiled: list[tuple[int, ...]]) -> None:
    network = small_network()
    values = velocity_example(network, 2, 60, torch.float32)
    assert torch.equal(CompiledVelocity(network)(*values), VelocityGraph(network)(*values))


@pytest.mark.gpu
def test_compiled_generator_in_captured_rows(cuda: torch.device) -> None:
    """Rows that are seen, captured and replayed, and one that was not prepared."""
    vocoder = small_vocoder().to(cuda)
    plain = PackedVocoder(vocoder, 4, graphs=True)
    fast = PackedVocoder(vocoder, 4, graphs=True)
    backend = CompiledSpectrum(vocoder)
    with torch.cuda.stream(torch.cuda.Stream(cuda)):
        backend.prepare([64, 128])
        fast.generator = BackendGenerator(vocoder, "compiled", backend)  # type: ignore[assignment]
        for frames in (40, 40, 40, 90, 90, 90, 300):
            mel = torch.randn(frames, 80, device=cuda) * 2 - 5
            answers = [way.run([VocoderJob(mel, None, True, 3)])[1].float().clone() for way in (plain, fast)]
            assert relative_error(answers[1], answers[0]) <= 1e-2
        assert fast.programs.captured == 2
