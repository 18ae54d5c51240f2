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
from inference.runtime.backends import ERROR_BOUND, install_spectrum_backend, probe, spectrum_error
from inference.runtime.flow_solver import time_grid
from inference.runtime.onnx_backends import OnnxSpectrum, OnnxVelocity, graph_key, kept_file
from inference.runtime.onnx_export import export_spectrum, export_velocity
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
    assert spectrum_error(vocoder, backend) <= ERROR_BOUND
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
    export_spectrum(vocoder, path, torch.float16)
    types = {value.name: value.type.tensor_type.elem_type for value in onnx.load(path).graph.input}
    assert set(types.values()) == {onnx.TensorProto.FLOAT16}
    backend = OnnxSpectrum(path)
    mel, excitation = probe(vocoder)
    found = backend(mel.half(), excitation.half())
    assert found.dtype == torch.float32
    assert relative_error(found, _plain(vocoder, mel, excitation)) <= HALF_BOUND


def _plain(vocoder: Vocoder, mel: Tensor, excitation: Tensor) -> Tensor:
    return vocoder.convolve(mel, excitation, [None] * 4, lambda x: torch.cat((x[:, :, 1:2], x), dim=2))


def test_onnxruntime_can_be_chosen(tmp_path: Path) -> None:
    vocoder = _tiny_vocoder()
    assert install_spectrum_backend(vocoder, "onnxruntime", cache_dir=tmp_path) == "onnxruntime"
    assert isinstance(vocoder.backend, OnnxSpectrum)


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
    backend = OnnxVelocity.make(network, cache_dir=tmp_path)
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
    mask, t, chunks = torch.ones(2, 1, 70), torch.tensor([0.3, 0.3]), torch.arange(70) // 50
    expected = network(x, mask, mu, t, speaker, cond, streaming=True)
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    halves = {"x": x, "mask": mask, "mu": mu, "spks": speaker, "cond": cond}
    given = {name: value.half().numpy() for name, value in halves.items()}
    found = session.run(None, {**given, "t": t.numpy(), "chunks": chunks.float().numpy()})[0]
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


def test_nothing_is_left_of_a_failed_write(tmp_path: Path) -> None:
    def write(path: Path) -> None:
        path.write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        kept_file(tmp_path, "graph", write)
    assert list(tmp_path.iterdir()) == []
