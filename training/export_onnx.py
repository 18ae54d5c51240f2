"""Writes the two ONNX files of a model folder and checks them against torch with onnxruntime.

python -m training.export_onnx --tokenizer WORK/tokenizer --speaker WORK/speaker --out assets/nano
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from training.weight_quantization import is_quantized, quantize_rows

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto, TensorProto

OPSET = 17


def export_tokenizer(network: nn.Module, path: Path) -> float:
    """`speech_tokenizer_v2.onnx`: (1, 128, N) float32 and (1,) int32 to (1, T) int32, large weights as int8.

    The network's weights must have been rounded (`round_weights`). Returns the share of codes equal to torch's on noise
    and tones, and says so where that is under 99 %; raises RuntimeError for another number of codes.
    """
    example = (torch.randn(1, 128, 301), torch.tensor([301], dtype=torch.int32))
    _export(
        network,
        example,
        path,
        ["feats", "feats_length"],
        ["indices"],
        {"feats": {2: "frames"}, "indices": {1: "tokens"}},
    )
    _shrink(path, _int8_weight)
    share = _equal_share(network, path)
    print(
        f"{path}: {path.stat().st_size / 1e6:.2f} MB, {100 * share:.2f} % of codes equal to torch", flush=True
    )
    if share < 0.99:
        print(f"WARNING: {path} gives other codes than torch", flush=True)
    return share


def export_speaker(network: nn.Module, path: Path) -> float:
    """`campplus.onnx`: (1, N, 80) to (1, 192), weights stored as float16 and computed with in float32.

    Returns the largest difference from torch (with the weights rounded alike it is below 1e-3 of the norm).
    """
    rounded = {
        name: value.half().float() if value.is_floating_point() else value
        for name, value in network.state_dict().items()
    }
    network.load_state_dict(rounded)
    network.eval()
    _export(network, (torch.randn(1, 200, 80),), path, ["input"], ["output"], {"input": {1: "frames"}})
    _shrink(path, _half_weight)
    session = _session(path)
    worst = 0.0
    for frames in (40, 213, 777):
        features = torch.randn(1, frames, 80) * 3.0
        with torch.no_grad():
            expected = network(features)
        found = torch.from_numpy(session.run(None, {session.get_inputs()[0].name: features.numpy()})[0])
        worst = max(worst, float((found - expected).norm() / expected.norm()))
    print(
        f"{path}: {path.stat().st_size / 1e6:.2f} MB, relative difference from torch {worst:.2e}", flush=True
    )
    if worst > 1e-2:
        raise RuntimeError(f"{path} differs from torch by {worst:.3f}")
    return worst


def _export(
    network: nn.Module,
    example: tuple[Tensor, ...],
    path: Path,
    inputs: list[str],
    outputs: list[str],
    axes: dict[str, dict[int, str]],
) -> None:
    """Through TorchScript: its graph keeps weights as plain initialisers, which `_shrink` needs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with torch.no_grad():
        torch.onnx.export(
            network.eval(),
            example,
            str(path),
            input_names=inputs,
            output_names=outputs,
            dynamic_axes=axes,
            opset_version=OPSET,
            dynamo=False,
        )


def _session(path: Path) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


Replacement = tuple[list["TensorProto"], list["NodeProto"]]


def _shrink(path: Path, replace: Callable[[str, Any, int], Replacement | None]) -> None:
    """Rewrite every large float32 weight as smaller numbers and a node that expands them."""
    import onnx
    from onnx import numpy_helper

    model = onnx.load(str(path))
    graph: GraphProto = model.graph
    axes = {
        node.input[1]: 0 if node.op_type == "Conv" else 1
        for node in graph.node
        if node.op_type in ("Conv", "MatMul")
    }
    axes |= {node.input[1]: _gemm_axis(node) for node in graph.node if node.op_type == "Gemm"}
    kept, nodes = [], []
    for tensor in graph.initializer:
        array = numpy_helper.to_array(tensor)
        change = (
            replace(tensor.name, array, axes[tensor.name])
            if tensor.name in axes and array.dtype == np.float32
            else None
        )
        if change is None:
            kept.append(tensor)
            continue
        kept.extend(change[0])
        nodes.extend(change[1])
    nodes.extend(graph.node)
    del graph.node[:], graph.initializer[:]
    graph.node.extend(nodes)
    graph.initializer.extend(kept)
    onnx.checker.check_model(model)
    onnx.save(model, str(path))


def _gemm_axis(node: NodeProto) -> int:
    """Which axis of a Gemm's weight counts outputs."""
    return 0 if any(attribute.name == "transB" and attribute.i for attribute in node.attribute) else 1


def _int8_weight(name: str, array: Any, axis: int) -> Replacement | None:
    """Cast and Mul rather than DequantizeLinear: onnxruntime folds them into float32 weights when it loads the file,
    while it fuses DequantizeLinear with MatMul into a kernel that also rounds activations (4 % other codes)."""
    from onnx import TensorProto, helper, numpy_helper

    weight = torch.from_numpy(np.moveaxis(array, axis, 0).copy())
    if not is_quantized(weight):
        return None
    integers, scale = quantize_rows(weight)
    stored = np.ascontiguousarray(np.moveaxis(integers.numpy(), 0, axis))
    spread = scale.reshape([-1 if i == axis else 1 for i in range(array.ndim)]).numpy()
    tensors = [
        numpy_helper.from_array(stored, name + "_int8"),
        numpy_helper.from_array(spread, name + "_scale"),
    ]
    return tensors, [
        helper.make_node("Cast", [name + "_int8"], [name + "_float"], to=TensorProto.FLOAT),
        helper.make_node("Mul", [name + "_float", name + "_scale"], [name]),
    ]


def _half_weight(name: str, array: Any, axis: int) -> Replacement | None:
    from onnx import TensorProto, helper, numpy_helper

    if array.size < 1024:
        return None
    tensors = [numpy_helper.from_array(array.astype(np.float16), name + "_half")]
    return tensors, [helper.make_node("Cast", [name + "_half"], [name], to=TensorProto.FLOAT)]


def _equal_share(network: nn.Module, path: Path) -> float:
    """Codes of the file against torch on harmonic tones with noise."""
    from inference.frontend.features import whisper_log_mel

    session = _session(path)
    generator = torch.Generator().manual_seed(0)
    equal = total = 0
    for seconds in (1.0, 2.37, 7.9):
        time = torch.arange(int(16000 * seconds)) / 16000
        pitch = 110 + 60 * torch.sin(2 * torch.pi * 0.7 * time)
        phase = 2 * torch.pi * torch.cumsum(pitch, 0) / 16000
        wave = sum(torch.sin(k * phase) / k for k in range(1, 30)) * (
            0.2 + 0.2 * torch.sin(2 * torch.pi * 3 * time)
        )
        mel = whisper_log_mel((wave + torch.randn(len(time), generator=generator) * 0.01)[None] * 0.2)
        length = torch.tensor([mel.shape[2]], dtype=torch.int32)
        with torch.no_grad():
            expected = network(mel, length).numpy()
        names = [entry.name for entry in session.get_inputs()]
        found = session.run(None, {names[0]: mel.numpy(), names[1]: length.numpy()})[0]
        if found.shape != expected.shape:
            raise RuntimeError(f"{path} gives {found.shape} codes where torch gives {expected.shape}")
        equal, total = equal + int((found == expected).sum()), total + expected.size
    return equal / total


def main() -> None:
    from training.speaker_model import load_speaker
    from training.tokenizer_report import load_tokenizer

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokenizer", type=Path, help="tokenizer.pt or its folder")
    parser.add_argument("--speaker", type=Path, help="speaker.pt or its folder")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    if args.tokenizer:
        export_tokenizer(load_tokenizer(args.tokenizer)[0], args.out / "speech_tokenizer_v2.onnx")
    if args.speaker:
        export_speaker(load_speaker(args.speaker), args.out / "campplus.onnx")


if __name__ == "__main__":
    main()
