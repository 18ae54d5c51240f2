"""What one visitor may take, and that it costs no other."""

from __future__ import annotations

import pytest

from inference.types import RequestError
from webui import limits as limits_module
from webui.limits import Limiter, VisitorLimits, limits_of
from webui.options import PUBLIC_RATE, PUBLIC_REQUESTS, Options

pytestmark = pytest.mark.unit


def refused(limiter: Limiter, key: str = "a", characters: int = 1) -> RequestError:
    with pytest.raises(RequestError) as raised, limiter.enter(key, characters):
        pass
    return raised.value


def test_without_limits_all_is_taken() -> None:
    limiter = Limiter()
    with limiter.enter("a", 10**6), limiter.enter("a", 10**6):
        pass


def test_a_long_text_is_refused() -> None:
    limiter = Limiter(VisitorLimits(characters=10))
    with limiter.enter("a", 10):
        pass
    assert refused(limiter, characters=11).code == "text_too_long"


def test_so_many_at_once_and_places_come_back() -> None:
    limiter = Limiter(VisitorLimits(requests=2))
    with limiter.enter("a", 1), limiter.enter("a", 1):
        assert refused(limiter).code == "visitor_busy"
        with limiter.enter("b", 1):
            pass
    with pytest.raises(ZeroDivisionError), limiter.enter("a", 1):
        raise ZeroDivisionError
    with limiter.enter("a", 1), limiter.enter("a", 1):
        pass


def test_so_many_a_minute_and_how_long_to_wait() -> None:
    now = [0.0]
    limiter = Limiter(VisitorLimits(per_minute=2), clock=lambda: now[0])
    for moment in (0.0, 20.0):
        now[0] = moment
        with limiter.enter("a", 1):
            pass
    error = refused(limiter)
    assert error.code == "visitor_rate" and error.details["seconds"] == 40
    with limiter.enter("b", 1):
        pass
    now[0] = 60.5
    with limiter.enter("a", 1):
        pass
    assert refused(limiter).details["seconds"] == 20


def test_a_refused_request_counts_for_nothing() -> None:
    now = [0.0]
    limiter = Limiter(VisitorLimits(requests=1, per_minute=3), clock=lambda: now[0])
    with limiter.enter("a", 1):
        for _ in range(5):
            assert refused(limiter).code == "visitor_busy"
    for _ in range(2):
        with limiter.enter("a", 1):
            pass
    assert refused(limiter).code == "visitor_rate"


def test_callers_who_have_gone_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits_module, "_FORGET_ABOVE", 10)
    now = [0.0]
    limiter = Limiter(VisitorLimits(per_minute=5), clock=lambda: now[0])
    for number in range(200):
        now[0] += 10
        with limiter.enter(str(number), 1):
            pass
    assert len(limiter._begun) < 20


@pytest.mark.parametrize(
    "public",
    [{"share": True}, {"server_name": "0.0.0.0"}, {"root_path": "/studio"}, {"server_name": "example.org"}],
)
def test_a_studio_that_others_can_reach_has_limits_and_a_private_one_none(public: dict[str, object]) -> None:
    assert limits_of(Options()) == VisitorLimits(5000, 0, 0)
    assert limits_of(Options(**public)) == VisitorLimits(5000, PUBLIC_REQUESTS, PUBLIC_RATE)  # type: ignore[arg-type]
    asked = Options(visitor_characters=10, visitor_requests=0, visitor_rate=3, **public)  # type: ignore[arg-type]
    assert limits_of(asked) == VisitorLimits(10, 0, 3)
    assert limits_of(Options(visitor_requests=2)).requests == 2
