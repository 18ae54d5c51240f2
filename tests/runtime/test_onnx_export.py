"""Exported graphs against torch with ONNX Runtime: any batch and length, masks, chunks, half types, kept files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from inference.checkpoint import load_folder
from inference.download import BUNDLED
from inference.models.config import VocoderConfig
from inference.models.velocity import VelocityNetwork
from inference.models.vocoder import Vocoder
from inference.runtime.backends import (
    ERROR_BOUND,
    GuardedSpectrum,
    install_spectrum_backend,
    probe,
    spectrum_soundness,
)
from inference.runtime.flow_solver import time_grid
from inference.runtime.graph_files import graph_key, keep, kept_file
from inference.runtime.network_graphs import SpectrumGraph, chunk_numbers
from inference.runtime.onnx_backends import OnnxSpectrum, OnnxVelocity
from inference.runtime.onnx_export import export_spectrum, export_velocity
from inference.runtime.padded_velocity import BoundVelocity
from inference.runtime.precision import relative_error
from tests.models.flow_support import random_flow
from tests.models.vocoder_support import speechlike_mel

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.unit

HALF_BOUND = 2e-2


def _tiny_vocoder() -> Vocoder:
    with torch.random.fork_rng():
        torch.manual_seed(9)
        return Vocoder(VocoderConfig(base_channels=64, f0_channels=32)).eval()


def _networks() -> dict[str, VelocityNetwork]:
    with torch.inference_mode(False):  # others share the tiny one
        flows = {"tiny": random_flow(), "nano": load_folder(BUNDLED, device="cpu").flow}
    found = {}
    for name, flow in flows.items():
        (found[name],) = (module for module in flow.modules() if isinstance(module, VelocityNetwork))
    return found


# ------------------------------------------------------------------------------------------------ vocoder
@pytest.mark.parametrize("size", ["tiny", "nano"])
@torch.inference_mode()
def test_spectrum_equals_torch(size: str, tmp_path: Path) -> None:
    vocoder = _tiny_vocoder() if size == "tiny" else load_folder(BUNDLED, device="cpu").vocoder
    backend = OnnxSpectrum.make(vocoder, cache_dir=tmp_path)
    assert spectrum_soundness(vocoder, backend).error <= ERROR_BOUND
    for frames, batch in ((1, 1), (37, 3)):
        mel = speechlike_mel(frames, batch)
        source = torch.randn(batch, 1, frames * vocoder.cfg.hop, generator=torch.Generator().manual_seed(1))
        expected = vocoder.spectrum(mel, 0.1 * source)
        found = backend(mel, vocoder.fourier.transform(0.1 * source[:, 0]))
        assert found.shape == expected.shape
        assert relative_error(found, expected) <= ERROR_BOUND


@torch.inference_mode()
def test_half_typed_spectrum(tmp_path: Path) -> None:
    vocoder, path = _tiny_vocoder(), tmp_path / "half.onnx"
    export_spectrum(vocoder, path, torch.float16, masked=False)
    types = {value.name: value.type.tensor_type.elem_type for value in onnx.load(path).graph.input}
    assert set(types.values()) == {onnx.TensorProto.FLOAT16}
    backend = OnnxSpectrum(path)
    mel, excitation = probe(vocoder)
    found = backend(mel.half(), excitation.half())
    assert found.dtype == torch.float32
    assert relative_error(found, _plain(vocoder, mel, excitation)) <= HALF_BOUND


def _plain(vocoder: Vocoder, mel: Tensor, excitation: Tensor) -> Tensor:
    return vocoder.convolve(mel, excitation, [None] * 4, lambda x: torch.cat((x[:, :, 1:2], x), dim=2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@torch.inference_mode()
def test_masked_spectrum_of_a_packed_row(dtype: torch.dtype, tmp_path: Path) -> None:
    """Items of a row get what each gets alone, whatever lies between them, in one file with any number of rows."""
    vocoder, path = _tiny_vocoder(), tmp_path / "masked.onnx"
    export_spectrum(vocoder, path, dtype)
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    rows, items = 60, ((4, 13), (17, 18), (24, 50))
    mel, mask = speechlike_mel(rows, 2), torch.zeros(2, 1, rows)
    excitation = torch.randn(2, 18, 120 * rows + 1, generator=torch.Generator().manual_seed(4)) * 0.3
    for begin, end in items:
        mask[:, :, begin:end] = 1.0
    outside = mask == 0
    mel = torch.where(outside, torch.tensor(3e4), mel)
    given = {"mel": mel, "excitation": excitation, "mask": mask}
    found = session.run(None, {name: value.to(dtype).numpy() for name, value in given.items()})[0]
    assert found.shape == excitation.shape
    bound = ERROR_BOUND if dtype == torch.float32 else HALF_BOUND
    for begin, end in items:
        inside = slice(120 * begin, 120 * end + 1)
        alone = _plain(vocoder, mel[:, :, begin:end], excitation[:, :, inside])
        assert relative_error(torch.from_numpy(found[:, :, inside]), alone) <= bound
        graph = SpectrumGraph(vocoder)(mel, excitation, mask)
        assert relative_error(graph[:, :, inside], alone) <= 1e-6


@torch.inference_mode()
def test_items_of_a_velocity_batch_have_masks_of_their_own(tmp_path: Path) -> None:
    """One causal item, one that sees everything, one that is shorter."""
    network = _networks()["tiny"]
    backend = OnnxVelocity.make(network, cache_dir=tmp_path)
    frames, size = 120, network.cfg.chunk_frames
    x, mu, speaker, cond = _conditions(3, frames)
    mask = torch.ones(3, 1, frames)
    mask[2, :, 70:] = 0.0
    chunks = torch.stack([chunk_numbers(frames, size), *[chunk_numbers(frames, None)] * 2])
    found = backend(x, mask, mu, torch.full((3,), 0.4), speaker, cond, chunks)
    for item, streaming, length in ((0, True, frames), (1, False, frames), (2, False, 70)):
        one = slice(item, item + 1)
        values = [value[one, :, :length] for value in (x, mu, cond)]
        alone = network(values[0], None, values[1], torch.tensor([0.4]), speaker[one], values[2], streaming)
        assert relative_error(found[one, :, :length], alone) <= ERROR_BOUND


def test_onnxruntime_can_be_chosen(tmp_path: Path) -> None:
    vocoder = _tiny_vocoder()
    assert install_spectrum_backend(vocoder, "onnxruntime", cache_dir=tmp_path) == "onnxruntime"
    assert isinstance(vocoder.backend, GuardedSpectrum)
    assert isinstance(vocoder.backend.backend, OnnxSpectrum)


def test_unusable_kept_file_gives_way_to_torch(tmp_path: Path) -> None:
    vocoder = _tiny_vocoder()
    OnnxSpectrum.make(vocoder, cache_dir=tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:1000])
    assert install_spectrum_backend(vocoder, "onnxruntime", cache_dir=tmp_path) == "torch"


# ----------------------------------------------------------------------------------------------- velocity
def _conditions(batch: int, frames: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x, mu, cond = (torch.randn(batch, 80, frames, generator=generator) for _ in range(3))
    return x, mu, torch.randn(batch, 80, generator=generator), cond


@pytest.mark.parametrize("size", ["tiny", "nano"])
@torch.inference_mode()
def test_velocity_equals_torch(size: str, tmp_path: Path) -> None:
    network = _networks()[size]
    backend = BoundVelocity(network, OnnxVelocity.make(network, cache_dir=tmp_path))
    times = torch.tensor(time_grid(10)[0])
    for batch, frames, lengths in ((2, 130, None), (3, 120, (120, 61, 7)), (1, 3, None)):
        x, mu, speaker, cond = _conditions(batch, frames)
        mask = None
        if lengths is not None:
            mask = (torch.arange(frames) < torch.tensor(lengths)[:, None]).float()[:, None]
        results = []
        for streaming in (False, True):
            expected = network.bind(mask, mu, speaker, cond, times, streaming=streaming)(x, 4)
            found = backend.bind(mask, mu, speaker, cond, times, streaming=streaming)(x, 4)
            assert found.shape == expected.shape
            assert relative_error(found, expected) <= ERROR_BOUND
            results.append(found)
        if frames > network.cfg.chunk_frames:
            assert relative_error(results[0], results[1]) > ERROR_BOUND  # the chunk mask does something


@torch.inference_mode()
def test_half_typed_velocity(tmp_path: Path) -> None:
    network = _networks()["tiny"]
    path = tmp_path / "half.onnx"
    export_velocity(network, path, torch.float16)
    types = {value.name: value.type.tensor_type.elem_type for value in onnx.load(path).graph.input}
    floats = {name for name, kind in types.items() if kind == onnx.TensorProto.FLOAT}
    assert floats == {"t", "chunks"}
    x, mu, speaker, cond = _conditions(2, 70)
    mask, t, chunks = torch.ones(2, 1, 70), torch.tensor([0.3, 0.3]), chunk_numbers(70, 50).repeat(2, 1)
    expected = network(x, mask, mu, t, speaker, cond, streaming=True)
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    halves = {"x": x, "mask": mask, "mu": mu, "spks": speaker, "cond": cond}
    given = {name: value.half().numpy() for name, value in halves.items()}
    found = session.run(None, {**given, "t": t.numpy(), "chunks": chunks.numpy()})[0]
    assert relative_error(torch.from_numpy(found).float(), expected) <= HALF_BOUND


# --------------------------------------------------------------------------------------------- kept files
def test_key_follows_the_weights() -> None:
    vocoder, same = _tiny_vocoder(), _tiny_vocoder()
    key = graph_key("spectrum", vocoder, vocoder.cfg)
    assert key == graph_key("spectrum", same, same.cfg)
    assert key != graph_key("velocity", vocoder, vocoder.cfg)
    with torch.no_grad():
        same.conv_post.weight[3] += 1e-6
    assert key != graph_key("spectrum", same, same.cfg)


def test_file_is_written_once_and_whole(tmp_path: Path) -> None:
    folder, calls = tmp_path / "new", []

    def write(path: Path) -> None:
        calls.append(path)
        assert not (folder / "graph").exists()
        path.write_text("whole")

    for _ in range(2):
        assert kept_file(folder, "graph", write).read_text() == "whole"
    assert len(calls) == 1
    assert [path.name for path in folder.iterdir()] == ["graph"]


def test_file_is_replaced_whole(tmp_path: Path) -> None:
    for content in (b"first", b"second"):
        keep(tmp_path / "new" / "file", content)
    assert (tmp_path / "new" / "file").read_bytes() == b"second"
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["file"]


def test_nothing_is_left_of_a_failed_write(tmp_path: Path) -> None:
    def write(path: Path) -> None:
        path.write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        kept_file(tmp_path, "graph", write)
    assert list(tmp_path.iterdir()) == []
