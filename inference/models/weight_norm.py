"""Weight normalisation is for training: here it is folded into plain weights once, at load (SPEC 1.3)."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from inference.types import CheckpointError

_GAIN_AND_DIRECTION = (
    (".parametrizations.weight.original0", ".parametrizations.weight.original1"),
    (".weight_g", ".weight_v"),
)


def fold_weight_norm(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A state dict with `X.weight` in place of each gain and direction pair, and without any `generator.` in keys.

    Both spellings of weight norm are understood; everything else passes unchanged. Raises
    `CheckpointError("incomplete_weight_norm")` when one half of a pair is missing.
    """
    plain = {key.replace("generator.", ""): value for key, value in state.items()}
    for gain_end, direction_end in _GAIN_AND_DIRECTION:
        layers = {
            key.removesuffix(end) for key in plain for end in (gain_end, direction_end) if key.endswith(end)
        }
        for layer in sorted(layers):
            gain, direction = plain.pop(layer + gain_end, None), plain.pop(layer + direction_end, None)
            if gain is None or direction is None:
                raise CheckpointError(
                    "incomplete_weight_norm",
                    f"The vocoder weights hold only half of the normalised weight of {layer!r}; "
                    "the file is damaged, fetch it again.",
                    layer=layer,
                )
            plain[layer + ".weight"] = _fold(gain, direction)
    return plain


def _fold(gain: Tensor, direction: Tensor) -> Tensor:
    """gain * direction / norm of direction over all but the first dimension."""
    norm: Tensor = direction.flatten(1).norm(dim=1).view(-1, *([1] * (direction.dim() - 1)))
    return direction * (gain / norm)
