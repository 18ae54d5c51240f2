"""The garbage collector during a start."""

from __future__ import annotations

import gc

import pytest

from inference.collector import collector_off

pytestmark = pytest.mark.unit


def test_it_is_off_inside_and_on_again_whatever_happens() -> None:
    assert gc.isenabled()
    before = gc.get_freeze_count()
    kept = []
    with pytest.raises(ZeroDivisionError), collector_off():
        assert not gc.isenabled()
        kept = [[number] for number in range(10_000)]
        raise ZeroDivisionError
    assert gc.isenabled() and gc.get_freeze_count() >= before + len(kept) > before
    gc.unfreeze()
