"""A packed vocoder's convolutions by a backend (`BackendGenerator`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor, nn

from inference.runtime.backend_report import REPORT
from inference.runtime.backend_spare import gives_way
from inference.runtime.backends import MaskedSpectrum


class Generator(Protocol):
    """What `PackedVocoder` needs of its generator; see `Vocoder.convolve`."""

    @property
    def conv_pre(self) -> nn.Module: ...

    def convolve(
        self,
        mel: Tensor,
        excitation: Tensor,
        masks: Sequence[Tensor | None],
        lengthen: Callable[[Tensor], Tensor],
    ) -> Tensor: ...


class BackendGenerator:
    """A generator by a backend; `plain` computes what it does not take, and everything once it has failed."""

    def __init__(
        self, plain: Generator, name: str, backend: MaskedSpectrum, on_drop: Callable[[], None] = lambda: None
    ) -> None:
        self.plain, self.name = plain, name
        self.backend: MaskedSpectrum | None = backend
        self.on_drop = on_drop

    @property
    def conv_pre(self) -> nn.Module:
        """Its weight's type is that of the inputs."""
        return self.plain.conv_pre

    def convolve(
        self,
        mel: Tensor,
        excitation: Tensor,
        masks: Sequence[Tensor | None],
        lengthen: Callable[[Tensor], Tensor],
    ) -> Tensor:
        """As `Vocoder.convolve`; nothing that a backend raises gets out but a fault of the device or its memory."""
        if self.backend is not None:
            try:
                found = self.backend(mel, excitation, masks[0])
            except Exception as error:
                if not gives_way(error):
                    raise
                self.backend = None
                REPORT.drop("vocoder", self.name, "failed while serving", error)
                self.on_drop()
            else:
                if found is not None:
                    return found
        return self.plain.convolve(mel, excitation, masks, lengthen)
