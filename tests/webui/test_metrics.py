"""What is counted of a request, however it ends and whoever asks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from inference.types import EngineError, Mode, RequestError, SynthesisRequest
from tests.webui.api.support import TonePool, tone_voice
from webui.metrics import MeteredPool, Metrics

pytestmark = pytest.mark.unit

REQUEST = SynthesisRequest(Mode.CLONE, "Hi.", tone_voice("x"), stream=True)


def metered(pool: TonePool) -> tuple[MeteredPool, Metrics]:
    metrics = Metrics(pool.status)
    return MeteredPool(pool, metrics, "page"), metrics


def value(metrics: Metrics, name: str, **labels: str) -> float:
    return metrics.registry.get_sample_value(name, labels) or 0.0


def outcome(metrics: Metrics, name: str) -> float:
    return value(metrics, "cosyvoice_requests_total", front="page", mode="clone", outcome=name)


async def whole(pool: MeteredPool) -> int:
    return len([chunk async for chunk in pool.submit(REQUEST)])


async def one_chunk(pool: MeteredPool) -> None:
    submission = pool.submit(REQUEST)
    await anext(submission)
    await submission.aclose()
    await submission.aclose()


async def gone_before_any(pool: MeteredPool) -> None:
    pool.submit(REQUEST).cancel()


async def refused(pool: MeteredPool) -> None:
    with pytest.raises(RequestError):
        pool.submit(REQUEST)


async def failed(pool: MeteredPool) -> None:
    with pytest.raises(EngineError):
        await whole(pool)


@pytest.mark.parametrize(
    ("act", "change", "name", "sound"),
    [
        (whole, {}, "finished", 1.2),
        (one_chunk, {}, "cancelled", 0.2),
        (gone_before_any, {}, "cancelled", 0.0),
        (refused, {"places": 0}, "refused", 0.0),
        (failed, {"fail_at": 2}, "failed", 0.4),
    ],
)
def test_every_request_ends_once(
    act: Callable[[MeteredPool], Any], change: dict[str, int], name: str, sound: float
) -> None:
    pool = TonePool()
    for attribute, wanted in change.items():
        setattr(pool, attribute, wanted)
    counted, metrics = metered(pool)
    asyncio.run(act(counted))
    assert {one: outcome(metrics, one) for one in ("finished", "cancelled", "refused", "failed")} == {
        **dict.fromkeys(("finished", "cancelled", "refused", "failed"), 0.0),
        name: 1.0,
    }
    made = value(metrics, "cosyvoice_audio_seconds_total", front="page", mode="clone")
    assert made == pytest.approx(sound)
    assert len(metrics.latest_errors) == (name in ("refused", "failed"))


def test_the_engines_own_times_are_taken() -> None:
    """A listener who takes the sound late does not make the service slow."""
    counted, metrics = metered(TonePool())
    asyncio.run(whole(counted))
    labels = {"front": "page", "mode": "clone"}
    assert value(metrics, "cosyvoice_first_chunk_seconds_sum", **labels) == pytest.approx(0.1)
    assert value(metrics, "cosyvoice_request_seconds_sum", **labels) == pytest.approx(0.6)
    assert value(metrics, "cosyvoice_queue_wait_seconds_sum", front="page") == pytest.approx(0.01)
    assert value(metrics, "cosyvoice_real_time_factor_sum", front="page") == pytest.approx(0.5)


def test_every_request_has_an_id_and_keeps_the_one_it_has() -> None:
    pool = TonePool()
    counted, _ = metered(pool)
    asyncio.run(whole(counted))
    asyncio.run(gone(counted, "mine"))
    first, second = pool.requests
    assert first.request_id.startswith("page_") and second.request_id == "mine"


async def gone(pool: MeteredPool, name: str) -> None:
    from dataclasses import replace

    pool.submit(replace(REQUEST, request_id=name)).cancel()


def test_when_to_come_again_grows_with_the_queue_and_stays_bearable() -> None:
    pool = TonePool(places=2)
    _, metrics = metered(pool)
    assert metrics.retry_after() == 1.0
    metrics.latest_whole.extend([20.0] * 5)
    assert metrics.retry_after() == 10.0
    metrics.latest_whole.extend([900.0] * 50)
    assert metrics.retry_after() == 30.0
    pool.ready = False
    assert metrics.retry_after() == 5.0


def test_whatever_else_a_pool_can_is_passed_through() -> None:
    pool = TonePool()
    counted, _ = metered(pool)
    assert counted.sample_rate == 24000 and counted.presets == ["narrator"]
    assert counted.for_front("api").front == "api" and counted.status().ready
