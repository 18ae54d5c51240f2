"""Python's garbage collector during a start."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_off() -> Iterator[None]:
    """No rounds in the block, and what is there at its end is left out of all later ones.

    Imports make hundreds of thousands of objects that stay, and every few thousand a round looks at all of them: a
    tenth of a start. Later a full round over them would hold up every thread for a third of a second.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
