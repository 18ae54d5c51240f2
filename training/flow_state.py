"""What a flow run leaves behind: averaged weights, files that are never half written."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor, nn

_EMA_DECAY = 0.999


class Average:
    """Exponential moving average of a model's weights, quick at the start and slow later."""

    def __init__(self, model: nn.Module) -> None:
        self._live = [parameter.detach() for parameter in model.parameters()]
        self._names = [name for name, _ in model.named_parameters()]
        self.weights = [value.clone() for value in self._live]

    def update(self, step: int) -> None:
        decay = min(_EMA_DECAY, (1 + step) / (10 + step))
        torch._foreach_lerp_(self.weights, self._live, 1 - decay)

    def state(self) -> dict[str, Tensor]:
        return dict(zip(self._names, self.weights))

    def load(self, state: dict[str, Tensor]) -> None:
        for name, weight in zip(self._names, self.weights):
            weight.copy_(state[name])


def finalise(state: dict[str, Tensor], used_ids: Iterable[int]) -> dict[str, Tensor]:
    """The state to ship: float32 on the CPU, embedding rows of ids that training never saw set to zero."""
    shipped = {key: value.detach().float().cpu().clone() for key, value in state.items()}
    table = shipped["input_embedding.weight"]
    unused = torch.ones(len(table), dtype=torch.bool)
    unused[torch.tensor(sorted(used_ids), dtype=torch.long)] = False
    table[unused] = 0
    return shipped


def start_from(model: nn.Module, path: Path) -> None:
    """Begin with the weights of a finished file. Raises RuntimeError where its keys or shapes differ."""
    found = torch.load(path, map_location="cpu", weights_only=True)
    # Older names of folded weights and what training alone needs are no business of ours: strict.
    model.load_state_dict({key: value.float() for key, value in found.items()}, strict=True)


def write(value: object, path: Path) -> None:
    """Save under a temporary name, then rename: a reader never sees half a file."""
    temporary = path.with_suffix(path.suffix + ".tmp")
    torch.save(value, temporary)
    os.replace(temporary, path)
