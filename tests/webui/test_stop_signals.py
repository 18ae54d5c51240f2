"""Signals are noted, waited for, and given back."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from webui.stop_signals import SIGNALS, StopSignals

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_ends_the_wait_and_nothing_else(number: signal.Signals) -> None:
    before = [signal.getsignal(name) for name in SIGNALS]
    with StopSignals() as signals:
        assert not signals.wait(0.0)
        timer = threading.Timer(0.05, os.kill, (os.getpid(), number))
        timer.start()
        assert signals.wait(20.0)
        timer.join()
        signals.clear()
        assert not signals.wait(0.0)
    assert [signal.getsignal(name) for name in SIGNALS] == before


def test_the_wait_has_an_end() -> None:
    with StopSignals() as signals:
        began = time.monotonic()
        assert not signals.wait(0.05)
        assert time.monotonic() - began >= 0.05


def test_elsewhere_than_in_the_main_thread_signals_stay_as_they_are() -> None:
    seen = []

    def run() -> None:
        with StopSignals() as signals:
            seen.append(signals.wait(0.01))

    before = [signal.getsignal(name) for name in SIGNALS]
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [False] and [signal.getsignal(name) for name in SIGNALS] == before
