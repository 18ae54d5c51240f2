"""The vocoder's convolutions with time before channels, for the CPU (`ChannelsLast`).

Same arithmetic as `Vocoder.convolve` for unpadded items, to about 5e-7. oneDNN's kernels for few channels (the last
stages) run up to four times faster on this layout, and Snake works in place, so that memory is not fetched anew
from the system for every layer. One thread, bundled model: 1.2 (1 s of sound) to 1.6 times
(10 s) faster than the modules; public size: about 1.1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inference.models.vocoder import ResBlock, Snake, Vocoder
from inference.runtime.vector_math import sine

_FINAL_SLOPE = 0.01
_LEAST_FOLDED = 1e-3  # smaller slopes stay outside of the weights: there the 1e-9 beside them shows
_Layer = Callable[[Tensor], Tensor]


def _kernel(weight: Tensor) -> Tensor:
    """(O, I, K) → (O, I, 1, K) in channels-last memory."""
    return weight.detach()[:, :, None].contiguous(memory_format=torch.channels_last)


def _convolution(module: nn.Module, inputs: Tensor | None = None, outputs: Tensor | None = None) -> _Layer:
    """A Conv1d as a function on (B, C, 1, T), its input and output channels scaled."""
    module = cast(nn.Conv1d, module)
    weight, bias = module.weight.detach(), module.bias
    if inputs is not None:
        weight = weight * inputs[:, None]
    if outputs is not None:
        weight = weight * outputs[:, None, None]
        bias = None if bias is None else bias * outputs
    kernel, bias = _kernel(weight), None if bias is None else bias.detach()
    stride, pads, dilation = module.stride[0], int(module.padding[0]), module.dilation[0]

    def run(x: Tensor) -> Tensor:
        return F.conv2d(x, kernel, bias, (1, stride), (0, pads), (1, dilation))

    return run


def _upsampling(module: nn.Module) -> _Layer:
    module = cast(nn.ConvTranspose1d, module)
    kernel, bias = _kernel(module.weight), None if module.bias is None else module.bias.detach()
    stride, pads = module.stride[0], int(module.padding[0])

    def run(x: Tensor) -> Tensor:
        return F.conv_transpose2d(x, kernel, bias, (1, stride), (0, pads))

    return run


class _Activation:
    """Snake. Where every |α| allows it, on αx and without the division: both go into the neighbouring weights."""

    def __init__(self, snake: Snake) -> None:
        alpha = snake.alpha.detach()
        self.folded = bool((alpha.abs() >= _LEAST_FOLDED).all())
        self.alpha, self.inverse = alpha, 1.0 / (alpha + 1e-9)
        self._alpha, self._inverse = self.alpha[:, None, None], self.inverse[:, None, None]

    @property
    def before(self) -> Tensor | None:
        """Scale of the output channels of a layer that this alone reads."""
        return self.alpha if self.folded else None

    @property
    def behind(self) -> Tensor | None:
        """Scale of the input channels of the layer that reads this."""
        return self.inverse if self.folded else None

    def __call__(self, x: Tensor) -> Tensor:
        """Unscaled x, left as it is."""
        turned = x * self._alpha
        wave = sine(turned)
        if self.folded:
            return turned.addcmul_(wave, wave)
        return torch.addcmul(x, wave, wave.mul(self._inverse))

    def in_place(self, x: Tensor) -> Tensor:
        """x that the layer before has scaled by `before`; overwritten."""
        if not self.folded:
            return self(x)
        wave = sine(x)
        return x.addcmul_(wave, wave)


class _Block:
    def __init__(self, block: ResBlock) -> None:
        self._layers: list[tuple[_Activation, _Layer, _Activation, _Layer]] = []
        pairs = zip(block.activations1, block.convs1, block.activations2, block.convs2)
        for before, dilated, between, plain in pairs:
            first, second = _Activation(cast(Snake, before)), _Activation(cast(Snake, between))
            self._layers.append(
                (
                    first,
                    _convolution(dilated, first.behind, second.before),
                    second,
                    _convolution(plain, second.behind),
                )
            )

    def __call__(self, x: Tensor) -> Tensor:
        """A new tensor; x is left as it is."""
        for first, dilated, second, plain in self._layers:
            x = plain(second.in_place(dilated(first(x)))).add_(x)
        return x


class ChannelsLast:
    """A `SpectrumBackend` with copies of a vocoder's weights: later changes to the vocoder do not reach it.

    Keeps no state between calls; may be used from several threads.
    """

    def __init__(self, vocoder: Vocoder) -> None:
        self._slope = vocoder.cfg.lrelu_slope
        self._count = len(vocoder.cfg.resblock_kernel_sizes)
        self._first, self._last = _convolution(vocoder.conv_pre), _convolution(vocoder.conv_post)
        self._ups = [_upsampling(up) for up in vocoder.ups]
        self._downs = [_convolution(down) for down in vocoder.source_downs]
        self._source_blocks = [_Block(cast(ResBlock, block)) for block in vocoder.source_resblocks]
        self._blocks = [_Block(cast(ResBlock, block)) for block in vocoder.resblocks]

    @torch.no_grad()
    def __call__(self, mel: Tensor, excitation: Tensor) -> Tensor:
        """mel (B, 80, T), source spectrum (B, 18, 120*T + 1), float32 → (B, 18, 120*T + 1)."""
        excitation = _flat(excitation)
        x = self._first(_flat(mel))
        for stage, up in enumerate(self._ups):
            x = up(F.leaky_relu_(x, self._slope))
            if stage == len(self._ups) - 1:
                x = torch.cat((x[..., 1:2], x), dim=3)
            x = self._source_blocks[stage](self._downs[stage](excitation)).add_(x)
            blocks = self._blocks[stage * self._count : (stage + 1) * self._count]
            total = blocks[0](x)
            for block in blocks[1:]:
                total.add_(block(x))
            x = total.div_(self._count)
        return self._last(F.leaky_relu_(x, _FINAL_SLOPE))[:, :, 0].contiguous()


def _flat(x: Tensor) -> Tensor:
    """(B, C, T) → (B, C, 1, T) in channels-last memory."""
    return x[:, :, None].contiguous(memory_format=torch.channels_last)
