"""torch.compile of whole graphs (`network_graphs`): one compilation for all batches and lengths."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable

import torch
from torch import Tensor

from inference.models.velocity import VelocityNetwork
from inference.models.vocoder import Vocoder
from inference.runtime.network_graphs import spectrum_example, spectrum_graph, velocity_graph


class CompiledSpectrum:
    """The vocoder's convolutions, for rows of many items. `dtype`: of the convolutions.

    Compiled at the first call, which takes half a minute at full size (seconds when Inductor's cache on disk knows it);
    that call must not be within a CUDA graph's capture. Raises what the compiler raises. Once `prepare` was called,
    other shapes than its own are not taken: none may be compiled while somebody waits.
    """

    def __init__(self, vocoder: Vocoder, dtype: torch.dtype = torch.float32, dynamic: bool = True) -> None:
        self._vocoder, self._dtype = vocoder, dtype
        self._run = torch.compile(spectrum_graph(vocoder, dtype), dynamic=dynamic, fullgraph=True)
        self._prepared: set[int] | None = None

    @torch.inference_mode()
    def prepare(self, rows: Iterable[int], limit: float = math.inf) -> None:
        """Compile for single rows of these lengths, with a mask; no further one is begun after `limit` seconds."""
        begun = time.monotonic()
        for length in rows:
            if self._prepared and time.monotonic() - begun > limit:
                break
            self._run(*spectrum_example(self._vocoder, 1, length, self._dtype))
            self._prepared = (self._prepared or set()) | {length}

    def __call__(self, mel: Tensor, excitation: Tensor, mask: Tensor | None = None) -> Tensor | None:
        """As in `network_graphs.SpectrumGraph`, any float type; mask may be bool."""
        known = self._prepared
        if known is not None and (mask is None or mel.shape[0] != 1 or mel.shape[2] not in known):
            return None
        inside = None if mask is None else mask.to(self._dtype)
        found: Tensor = self._run(mel.to(self._dtype), excitation.to(self._dtype), inside)
        return found


class CompiledVelocity:
    """The velocity network for padded batches, to be measured beside the packed one. Compiled as `CompiledSpectrum`."""

    def __init__(
        self, network: VelocityNetwork, dtype: torch.dtype = torch.float32, dynamic: bool = True
    ) -> None:
        self._dtype = dtype
        self._run = torch.compile(velocity_graph(network, dtype), dynamic=dynamic, fullgraph=True)

    def __call__(
        self, x: Tensor, mask: Tensor, mu: Tensor, t: Tensor, spks: Tensor, cond: Tensor, chunks: Tensor
    ) -> Tensor:
        """As in `network_graphs.VelocityGraph`, any float type."""
        halves = [value.to(self._dtype) for value in (x, mask, mu)]
        found: Tensor = self._run(*halves, t, spks.to(self._dtype), cond.to(self._dtype), chunks)
        return found
