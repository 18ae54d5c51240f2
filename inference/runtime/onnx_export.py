"""ONNX files of the vocoder's generator and of the velocity network (`network_graphs`), for ONNX Runtime and TensorRT.

`dtype` float16 gives a typed file: weights, inputs and outputs in half precision but for what `network_graphs` keeps in
float32 (TensorRT from 11.x on takes types from the file alone). Needs the package `onnx`.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

from inference.models.velocity import VelocityNetwork
from inference.models.vocoder import Vocoder
from inference.runtime.network_graphs import (
    SPECTRUM_INPUTS,
    SPECTRUM_OUTPUT,
    VELOCITY_INPUTS,
    VELOCITY_OUTPUT,
    GraphInput,
    spectrum_example,
    spectrum_graph,
    velocity_example,
    velocity_graph,
)

OPSET = 17  # the newest that TensorRT 8.6 reads and torch's TorchScript exporter writes
_TRACED_BATCH, _TRACED_FRAMES = 2, 12


def export_spectrum(
    vocoder: Vocoder, path: Path, dtype: torch.dtype = torch.float32, *, masked: bool = True
) -> None:
    """Write a `SpectrumGraph`; not `masked`: for items without padding only, without the input `mask`."""
    example = spectrum_example(vocoder, _TRACED_BATCH, _TRACED_FRAMES, dtype)
    count = len(example) if masked else len(example) - 1
    graph = spectrum_graph(vocoder, dtype)
    _export(graph, example[:count], path, SPECTRUM_INPUTS[:count], SPECTRUM_OUTPUT)


def export_velocity(network: VelocityNetwork, path: Path, dtype: torch.dtype = torch.float32) -> None:
    """Write a `VelocityGraph`."""
    example = velocity_example(network, _TRACED_BATCH, _TRACED_FRAMES, dtype)
    _export(velocity_graph(network, dtype), example, path, VELOCITY_INPUTS, VELOCITY_OUTPUT)


def _export(
    graph: nn.Module,
    example: tuple[Tensor, ...],
    path: Path,
    inputs: tuple[GraphInput, ...],
    output: GraphInput,
) -> None:
    with torch.no_grad(), warnings.catch_warnings():
        # The TorchScript exporter is deprecated, but takes 1 s where the new one takes 14 s, and TensorRT 8.6 reads it.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            graph,
            example,
            str(path),
            input_names=[entry.name for entry in inputs],
            output_names=[output.name],
            dynamic_axes={entry.name: entry.axes for entry in (*inputs, output)},
            opset_version=OPSET,
            dynamo=False,
        )
