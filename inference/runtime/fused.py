"""torch.compile for small functions, with the function itself to fall back on."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Generic, ParamSpec, TypeVar

import torch

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")


class Fused(Generic[P, R]):
    """`function`, compiled; where that fails (no compiler, no Triton) it runs as it is, which is logged once.

    `dynamic` None: sizes that turn out to change become variables, all others stay constants of the kernels.
    """

    def __init__(self, function: Callable[P, R], dynamic: bool | None = None) -> None:
        self._plain = function
        self._run: Callable[P, R] = torch.compile(function, dynamic=dynamic)
        self.on_failure: Callable[[Exception], None] | None = None  # in the place of the log

    @property
    def compiled(self) -> bool:
        """Whether compilation has not failed so far."""
        return self._run is not self._plain

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return self._run(*args, **kwargs)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            if not self.compiled:
                raise
            # If it was the data's fault, the plain function says so now.
            result = self._plain(*args, **kwargs)
            self._run = self._plain
            if self.on_failure is not None:
                self.on_failure(error)
                return result
            name = getattr(self._plain, "__name__", "A function")
            logger.warning("%s cannot be compiled here and runs more slowly.", name, exc_info=True)
            return result
