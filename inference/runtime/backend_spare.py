"""What takes over when a backend fails while serving."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from inference.faults import is_device_fault, is_out_of_memory
from inference.runtime.backend_report import REPORT

T = TypeVar("T")


def gives_way(error: BaseException) -> bool:
    """Whether it is the backend that failed, which another one can replace: neither the device nor its memory."""
    return not (is_device_fault(error) or is_out_of_memory(error))


@dataclass(frozen=True)
class Spare(Generic[T]):
    """PyTorch in the place of `part`'s backend `name`, made when it is needed."""

    part: str
    name: str
    make: Callable[[], T]

    def take_over(self, error: Exception) -> T:
        """Logs and counts `error`."""
        REPORT.drop(self.part, self.name, "failed while serving", error)
        return self.make()
