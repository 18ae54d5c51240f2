"""The pool with real worker processes: the engine's sound, whoever else asks, whatever dies."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from inference import CosyVoice, Mode, Reference, WorkerPool
from inference.pool_status import PoolStatus
from inference.routing import Ticket
from inference.submission import Submission
from inference.types import AudioChunk, CheckpointError, EngineError, RequestError, SynthesisRequest
from tests.engine_support import CLIP, GOOD, LONG_TEXT, REQUESTS
from tests.make_clips import silence, wav_bytes
from tests.scheduler_support import assert_same, eventually, pool_settings

pytestmark = pytest.mark.e2e

SILENT = Reference(wav_bytes(silence(4.0, 16000), 16000))
LONG_STREAM = replace(REQUESTS[Mode.CLONE], text=LONG_TEXT, stream=True)
LONG_FILE = replace(LONG_STREAM, stream=False)
EIGHT = [
    REQUESTS[Mode.CLONE],
    replace(REQUESTS[Mode.CLONE], stream=True, seed=1),
    replace(REQUESTS[Mode.CROSS_LINGUAL], stream=True, speed=1.25),
    replace(REQUESTS[Mode.INSTRUCT], speed=0.8, seed=2),
    replace(REQUESTS[Mode.PRESET], stream=True),
    REQUESTS[Mode.CONVERT],
    replace(REQUESTS[Mode.CONVERT], stream=True, seed=3),
    LONG_FILE,
]


@pytest.fixture(scope="module")
def engine(random_model_dir: Path) -> CosyVoice:
    return CosyVoice(random_model_dir, device="cpu")


@pytest.fixture(scope="module")
def expected(engine: CosyVoice) -> list[list[AudioChunk]]:
    return [list(engine.synthesize(request)) for request in EIGHT]


@pytest.fixture(scope="module")
def pool(random_model_dir: Path) -> Iterator[WorkerPool]:
    """Two workers."""
    with WorkerPool(pool_settings(random_model_dir, max_workers=2)) as pool:
        yield pool


@pytest.fixture(scope="module")
def small(random_model_dir: Path) -> Iterator[WorkerPool]:
    """One worker that serves two requests and lets two wait."""
    with WorkerPool(pool_settings(random_model_dir, concurrency=2, queue_size=2)) as small:
        yield small


def pid_of(pool: WorkerPool) -> int:
    (worker,) = pool.status().workers
    return worker.pid


def is_idle(status: PoolStatus) -> bool:
    stats = [worker.stats for worker in status.workers]
    return not (status.live or status.waiting or any(stat.live or stat.drawing for stat in stats))


def wait_until_idle(pool: WorkerPool) -> None:
    eventually(lambda: is_idle(pool.status()))


async def collect(submission: Submission) -> list[AudioChunk]:
    return [chunk async for chunk in submission]


# ------------------------------------------------------------------------------------------ the same sound
def test_eight_at_once_sound_as_with_the_engine(pool: WorkerPool, expected: list[list[AudioChunk]]) -> None:
    before = pool.status().counters.finished
    with ThreadPoolExecutor(len(EIGHT)) as threads:
        found = list(threads.map(lambda request: list(pool.synthesize(request)), EIGHT))
    for mine, theirs in zip(found, expected):
        assert_same(mine, theirs)
    wait_until_idle(pool)
    status = pool.status()
    assert status.counters.finished == before + len(EIGHT)
    assert all(worker.stats.finished > 0 for worker in status.workers)  # both have worked


def test_event_loops_in_several_threads_share_the_pool(
    pool: WorkerPool, expected: list[list[AudioChunk]]
) -> None:
    async def speak(numbers: list[int]) -> list[list[AudioChunk]]:
        return await asyncio.gather(*(collect(pool.submit(EIGHT[number])) for number in numbers))

    halves = [[0, 2, 4], [1, 3, 6]]
    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(lambda numbers: asyncio.run(speak(numbers)), halves))
    for numbers, chunks in zip(halves, found):
        for number, mine in zip(numbers, chunks):
            assert_same(mine, expected[number])


def test_what_a_pool_tells(pool: WorkerPool) -> None:
    status = pool.status()
    assert status.ready and not status.closing and len(status.workers) == 2
    assert {worker.device for worker in status.workers} == {"cpu"}
    assert len({worker.pid for worker in status.workers} - {0, os.getpid()}) == 2
    assert [worker.concurrency for worker in status.workers] == [4, 4]
    eventually(lambda: all(worker.stats.memory_bytes > 50e6 for worker in pool.status().workers))
    assert pool.sample_rate == 24000 and pool.presets == ["someone"]


# -------------------------------------------------------------------------------------------------- errors
@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (replace(GOOD, text=" "), "empty_text"),
        (replace(GOOD, text="word " * 8000), "text_too_long"),
        (replace(GOOD, language="klingon"), "unknown_language"),
        (replace(GOOD, speed=3.0), "bad_speed"),
        (replace(GOOD, voice=None), "reference_missing"),
        (replace(REQUESTS[Mode.PRESET], voice="nobody"), "preset_unknown"),
    ],
)
def test_what_is_plainly_wrong_is_refused_at_once(
    pool: WorkerPool, request_: SynthesisRequest, code: str
) -> None:
    accepted = pool.status().counters.accepted
    with pytest.raises(RequestError) as caught:
        pool.synthesize(request_)
    assert caught.value.code == code
    assert pool.status().counters.accepted == accepted


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (replace(GOOD, text="?!…"), "nothing_to_speak"),
        (replace(GOOD, voice=SILENT), "reference_silent"),
        (replace(GOOD, voice=Reference(Path("/nowhere/clip.wav"))), "audio_missing"),
        (replace(REQUESTS[Mode.CONVERT], source=Reference(b"%PDF-1.7 " * 500)), "audio_unreadable"),
    ],
)
def test_what_the_front_end_finds_ends_that_request_alone(
    pool: WorkerPool, expected: list[list[AudioChunk]], request_: SynthesisRequest, code: str
) -> None:
    neighbour = pool.submit(EIGHT[1])
    with pytest.raises(RequestError) as caught:
        list(pool.synthesize(request_))
    assert caught.value.code == code and str(caught.value).endswith(".")
    assert_same(list(neighbour), expected[1])


def test_voices(pool: WorkerPool, engine: CosyVoice, expected: list[list[AudioChunk]]) -> None:
    voice = pool.prepare_voice(CLIP)
    assert voice.report == engine.prepare_voice(CLIP).report
    assert asyncio.run(pool.voice(CLIP)).content_hash == voice.content_hash
    assert_same(list(pool.synthesize(replace(EIGHT[0], voice=voice))), expected[0])
    with pytest.raises(RequestError) as caught:
        pool.prepare_voice(SILENT)
    assert caught.value.code == "reference_silent"


# ------------------------------------------------------------------------------------ cancelled, slow, gone
def test_a_reader_who_leaves_stops_the_work(pool: WorkerPool, expected: list[list[AudioChunk]]) -> None:
    wait_until_idle(pool)
    chunks = pool.synthesize(LONG_STREAM)
    neighbour = pool.submit(EIGHT[1])
    next(chunks)
    chunks.close()
    assert pool.status().live <= 1
    assert_same(list(neighbour), expected[1])
    wait_until_idle(pool)
    assert sum(worker.stats.cancelled for worker in pool.status().workers) >= 1


def test_an_async_reader_who_leaves_stops_the_work(pool: WorkerPool) -> None:
    async def leave() -> None:
        async for _ in pool.submit(LONG_STREAM):
            break
        waiting = asyncio.create_task(collect(pool.submit(LONG_FILE)))
        await asyncio.sleep(0)
        waiting.cancel()

    asyncio.run(leave())
    gc.collect()
    wait_until_idle(pool)


def test_a_cancelled_submission_ends_without_an_error(pool: WorkerPool) -> None:
    submission = pool.submit(LONG_FILE)
    threading.Timer(0.05, submission.cancel).start()
    list(submission)
    submission.cancel()
    assert submission.position == 0
    wait_until_idle(pool)


def test_a_slow_reader_holds_nobody_up(pool: WorkerPool, expected: list[list[AudioChunk]]) -> None:
    slow = pool.submit(EIGHT[1])
    assert_same(list(pool.synthesize(EIGHT[2])), expected[2])
    eventually(lambda: pool.status().live == 0)  # all is made though nothing was read
    assert_same(list(slow), expected[1])


def test_nothing_is_left_of_many_requests(pool: WorkerPool) -> None:
    short = [replace(REQUESTS[Mode.PRESET], text="hello", stream=bool(n % 2), seed=n) for n in range(24)]
    bad = [replace(GOOD, text="..."), replace(GOOD, voice=SILENT)] * 3

    def speak(number: int) -> None:
        try:
            chunks = pool.synthesize([*short, *bad][number])
            next(chunks)
            if number % 3:  # the others leave early
                list(chunks)
            chunks.close()
        except RequestError:
            return

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(speak, range(30)))
    wait_until_idle(pool)
    gc.collect()
    assert [thing for thing in gc.get_objects() if type(thing) in (Ticket, Submission)] == []


# --------------------------------------------------------------------------------------- queue and crashes
def test_the_queue_has_places_and_an_end(small: WorkerPool) -> None:
    wait_until_idle(small)
    pid = pid_of(small)
    os.kill(pid, signal.SIGSTOP)
    try:
        submissions = [small.submit(replace(GOOD, seed=number)) for number in range(4)]
        assert [submission.position for submission in submissions] == [0, 0, 1, 2]
        with pytest.raises(RequestError) as caught:
            small.submit(GOOD)
        assert caught.value.code == "busy" and caught.value.details == {"ahead": 4}
        submissions[2].cancel()
        assert submissions[3].position == 1
        submissions[0].cancel()
        assert submissions[3].position == 0
    finally:
        os.kill(pid, signal.SIGCONT)
    assert [list(submission)[-1].final for submission in (submissions[1], submissions[3])] == [True, True]
    assert small.status().counters.refused == 1
    wait_until_idle(small)


def test_a_killed_worker_costs_only_what_was_heard_already(
    small: WorkerPool, expected: list[list[AudioChunk]]
) -> None:
    wait_until_idle(small)
    pid, before = pid_of(small), small.status().counters
    heard = small.synthesize(replace(LONG_STREAM, text=LONG_TEXT * 4))
    next(heard)
    os.kill(pid, signal.SIGSTOP)
    unheard, waiting = small.submit(EIGHT[1]), small.submit(EIGHT[3])
    assert (unheard.position, waiting.position) == (0, 1)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(EngineError) as caught:
        list(heard)
    assert caught.value.code == "worker_lost"
    assert_same(list(unheard), expected[1])
    assert_same(list(waiting), expected[3])
    after = small.status()
    assert pid_of(small) not in (0, pid) and after.ready
    assert after.workers[0].restarts >= 1
    assert after.counters.retried == before.retried + 1 and after.counters.failed == before.failed + 1
    assert not is_child(pid)  # waited for: no zombie


def is_child(pid: int) -> bool:
    return pid in {child.pid for child in multiprocessing.active_children()} or Path(f"/proc/{pid}").exists()


def test_a_request_whose_worker_dies_twice_is_given_up(small: WorkerPool) -> None:
    wait_until_idle(small)
    submission = small.submit(replace(LONG_FILE, text=LONG_TEXT * 4))
    for _ in range(2):
        eventually(lambda: small.status().ready and small.status().live == 1)
        os.kill(pid_of(small), signal.SIGKILL)
        eventually(lambda: not small.status().ready)
    with pytest.raises(EngineError) as caught:
        list(submission)
    assert caught.value.code == "worker_lost"
    assert list(small.synthesize(GOOD))[-1].final


def test_a_worker_told_to_leave_finishes_what_it_serves_and_is_replaced(small: WorkerPool) -> None:
    wait_until_idle(small)
    pid, before = pid_of(small), small.status().counters
    chunks = small.synthesize(LONG_STREAM)
    next(chunks)
    os.kill(pid, signal.SIGTERM)
    assert list(chunks)[-1].final
    eventually(lambda: pid_of(small) not in (0, pid))
    assert list(small.synthesize(GOOD))[-1].final
    after = small.status().counters
    assert (after.failed, after.retried) == (before.failed, before.retried)


def test_a_worker_that_hangs_is_replaced(random_model_dir: Path, expected: list[list[AudioChunk]]) -> None:
    with WorkerPool(pool_settings(random_model_dir, silence_timeout=4.0)) as pool:
        pid = pid_of(pool)
        os.kill(pid, signal.SIGSTOP)
        assert_same(list(pool.synthesize(EIGHT[4])), expected[4])
        assert pid_of(pool) != pid
        assert pool.status().workers[0].restarts == 1


# ---------------------------------------------------------------------------------------- start and the end
def test_a_folder_that_cannot_be_used_is_said_at_the_start(tmp_path: Path) -> None:
    pool = WorkerPool(pool_settings(tmp_path))
    with pytest.raises(EngineError) as not_started:
        pool.submit(GOOD)
    assert not_started.value.code == "not_ready"
    with pytest.raises(CheckpointError) as caught:
        pool.start_blocking()
    assert caught.value.code == "checkpoint_not_cosyvoice2"
    with pytest.raises(EngineError) as closed:
        pool.submit(GOOD)
    assert closed.value.code == "pool_closed"
    assert not pool.status().ready


def test_what_is_asked_while_the_model_loads_is_answered(
    random_model_dir: Path, expected: list[list[AudioChunk]]
) -> None:
    pool = WorkerPool(pool_settings(random_model_dir))
    with closing(pool), ThreadPoolExecutor(1) as threads:
        starting = threads.submit(pool.start_blocking)
        eventually(lambda: pool.status().workers[0].pid > 0)
        early = pool.submit(EIGHT[0])
        assert early.position == 1 and not pool.status().ready
        assert_same(list(early), expected[0])
        starting.result()
        assert pool.status().ready and early.position == 0


def test_a_drained_pool_finishes_everything_and_leaves_nothing(random_model_dir: Path) -> None:
    gc.collect()
    files, threads = len(os.listdir("/proc/self/fd")), threading.active_count()

    async def serve_and_drain() -> list[list[AudioChunk]]:
        pool = WorkerPool(pool_settings(random_model_dir, concurrency=2))
        await pool.start()
        pids.extend(worker.pid for worker in pool.status().workers)
        running = [asyncio.create_task(collect(pool.submit(replace(GOOD, seed=n)))) for n in range(4)]
        await asyncio.sleep(0)
        assert await pool.drain(timeout=60.0)
        with pytest.raises(EngineError) as caught:
            pool.submit(GOOD)
        assert caught.value.code == "pool_closed"
        return await asyncio.gather(*running)

    pids: list[int] = []
    for chunks in asyncio.run(serve_and_drain()):
        assert chunks[-1].final
    assert not any(map(is_child, pids))
    eventually(lambda: threading.active_count() <= threads)
    gc.collect()
    # The first pool of a process leaves multiprocessing's own resource tracker with one pipe.
    assert len(os.listdir("/proc/self/fd")) <= files + 1


def test_what_is_held_but_never_read_is_thrown_away(random_model_dir: Path) -> None:
    with WorkerPool(pool_settings(random_model_dir, concurrency=1, listener_timeout=0.5)) as pool:
        finished, waiting = pool.submit(GOOD), pool.submit(replace(GOOD, seed=2))
        endless = pool.submit(replace(LONG_STREAM, text=LONG_TEXT * 4))
        # The last one, and on a slow machine others too, before it was made.
        eventually(lambda: pool.status().counters.cancelled >= 1 and is_idle(pool.status()))
        for submission in (finished, waiting, endless):
            with pytest.raises(EngineError) as caught:
                list(submission)
            assert caught.value.code == "not_listening"
        assert list(pool.synthesize(GOOD))[-1].final


def test_closing_ends_what_is_live(random_model_dir: Path) -> None:
    pool = WorkerPool(pool_settings(random_model_dir))
    pool.start_blocking()
    (pid,) = [worker.pid for worker in pool.status().workers]
    chunks = pool.synthesize(replace(LONG_STREAM, text=LONG_TEXT * 4))
    next(chunks)
    pool.close()
    with pytest.raises(EngineError) as caught:
        list(chunks)
    assert caught.value.code == "pool_closed"
    assert not is_child(pid)
    pool.close()
