"""Snake activations in one kernel each way, while training on CUDA."""

from __future__ import annotations

import json
from collections.abc import Callable

import torch
from torch import Tensor

from inference.models.vocoder import Snake, Vocoder, snake

_TOLERANCE = 0.05  # bfloat16

Activation = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def fuse(generator: Vocoder, device: torch.device) -> bool:
    """Compile the generator's Snakes: eager, they move more bytes than all convolutions together.

    False, after one line that says why, when this machine cannot compile; they stay as they are then.
    """
    try:
        import torch._inductor.config as inductor

        inductor.compile_threads = 1  # a handful of small kernels: a pool of processes would start slower
        # One variant a width: static shapes make the better kernels.
        compiled: Activation = torch.compile(snake, dynamic=False)
        _check(compiled, device)
    except Exception as error:  # no compiler, no Triton, wrong values: training goes on without
        why = f"{type(error).__name__}: {error}"[:300]
        print(json.dumps({"compile": "failed, activations stay as they are", "why": why}), flush=True)
        return False
    for module in generator.modules():
        if isinstance(module, Snake):
            module.compute = compiled
    return True


def _check(compiled: Activation, device: torch.device) -> None:
    """Raise ValueError when values or gradients differ from the plain ones."""
    x = torch.randn(2, 8, 64, device=device).bfloat16().requires_grad_()
    alpha = torch.linspace(0.5, 2.0, 8, device=device).requires_grad_()
    results = []
    for function in (snake, compiled):
        y = function(x, alpha, None)
        results.append((y, *torch.autograd.grad(y.float().square().mean(), (x, alpha))))
    for wanted, found in zip(*results):
        if found.dtype != wanted.dtype or not torch.allclose(found, wanted, _TOLERANCE, _TOLERANCE):
            raise ValueError("compiled activations give other values than plain ones")
