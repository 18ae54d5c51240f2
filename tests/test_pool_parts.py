"""The parts of a pool that need no process: routing, queue, mailbox, back-off, settings, devices, one live request."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from inference.dispatcher import busy
from inference.frontend.prompt import ModelInput
from inference.frontend.requests import SegmentInput
from inference.live_request import WHOLE_PATIENCE, LiveRequest
from inference.meter import BusyMeter
from inference.models.config import ModelConfig
from inference.protocol import Prepare, Ready, Speak, WorkerStats
from inference.routing import (
    MAX_PREPARING,
    VOICE_WORK,
    Place,
    Ticket,
    WaitingRoom,
    choose,
    voice_key,
    work_of,
)
from inference.runtime.schedule import ChunkSchedule
from inference.settings import GIB, LaneSettings, PoolSettings, settings_for, slot_bytes, with_workers
from inference.submission import EndOfItemsError, Mailbox, Submission
from inference.supervision import Backoff
from inference.types import EngineError, Mode, Reference, RequestError, SynthesisRequest

pytestmark = pytest.mark.unit


# ------------------------------------------------------------------------------------------------- routing
def ticket(key: int, work: int = 100, voice: str = "", **more: Any) -> Ticket:
    return Ticket(key, b"", work, voice, is_voice=more.pop("is_voice", False), **more)


def place(name: str, concurrency: int = 4) -> Place:
    ready = Ready("cpu", 24000, (), concurrency, LaneSettings(), 1.0)
    return Place(name, "cpu", Backoff(1.0), ready=ready)


def test_status_says_what_runs_each_part_now() -> None:
    """Not what did when the worker was ready: a backend may have failed since."""
    one = place("one")
    assert one.ready is not None and one.status().backends == {}
    one.ready = replace(
        one.ready, backends={"language_model": "float16", "flow": "float16", "vocoder": "torch"}
    )
    one.stats = WorkerStats(vocoder_backend="triton", flow_backend="torch", backend_failures=1)
    assert one.status().backends == {
        "language_model": "float16", "flow": "float16 torch", "vocoder": "triton"
    }  # fmt: skip
    one.forget()
    one.ready = None
    assert one.status().backends == {}


def test_the_least_loaded_worker_is_chosen() -> None:
    one, two = place("one"), place("two")
    one.take(ticket(1, work=300))
    two.take(ticket(2, work=100))
    two.take(ticket(3, work=100))
    assert choose(ticket(4), [one, two]) is two


def test_a_worker_that_knows_the_voice_is_preferred_unless_it_is_much_busier() -> None:
    one, two = place("one"), place("two")
    one.take(ticket(1, work=100, voice="v"))
    assert choose(ticket(2, voice="v"), [one, two]) is one
    assert choose(ticket(2, voice="w"), [one, two]) is two
    one.take(ticket(3, work=VOICE_WORK + 1))
    assert choose(ticket(4, voice="v"), [one, two]) is two


def test_only_workers_that_are_warm_and_have_room_are_chosen() -> None:
    cold, leaving, full = Place("cold", "cpu", Backoff(1.0)), place("leaving"), place("full", concurrency=1)
    leaving.draining = True
    full.take(ticket(1))
    assert choose(ticket(2), [cold, leaving, full]) is None
    voice = ticket(3, is_voice=True)
    assert choose(voice, [cold, leaving, full]) is full  # clips take no place of a request
    for key in range(MAX_PREPARING):
        full.take(ticket(10 + key, is_voice=True))
    assert choose(voice, [full]) is None


def test_a_request_that_may_have_killed_a_worker_gets_one_without_another_such() -> None:
    one, two = place("one"), place("two")
    suspect, other = ticket(1, retried=True), ticket(2, retried=True)
    one.take(suspect)
    assert choose(other, [one]) is None and choose(other, [one, two]) is two
    assert choose(ticket(3), [one]) is one


def test_a_worker_s_death_gives_back_its_tickets_in_order_and_its_memory_of_voices() -> None:
    dead = place("dead")
    tickets = [ticket(key, voice="v") for key in (3, 1, 2)]
    for each in tickets:
        dead.take(each)
    assert [lost.key for lost in dead.forget()] == [1, 2, 3]
    assert not dead.tickets and not dead.knows("v") and dead.ready is None
    assert all(each.place is None for each in tickets)


def test_the_waiting_room_keeps_the_order_of_arrival() -> None:
    room = WaitingRoom()
    first, second, third = ticket(1), ticket(2), ticket(3)
    room.add(second)
    room.add(third)
    room.put_first([first])
    assert [room.position(each) for each in (first, second, third)] == [1, 2, 3]
    assert room.remove(second) and not room.remove(second)
    assert [room.position(each) for each in (first, second, third)] == [1, 0, 2]
    assert list(room) == [first, third]


def test_what_a_worker_is_told_holds_the_time_waited() -> None:
    asked = ticket(1)
    asked.submitted -= 3.0
    message = asked.message()
    assert isinstance(message, Speak) and 3.0 <= message.waited < 60.0
    assert isinstance(ticket(2, is_voice=True).message(), Prepare)


def test_voices_are_told_apart_by_content(tmp_path: Path) -> None:
    assert (
        voice_key(Reference(b"a")) == voice_key(Reference(b"a", "other words")) != voice_key(Reference(b"b"))
    )
    clip = tmp_path / "clip.wav"
    assert voice_key(Reference(clip)) == ""
    clip.write_bytes(b"a")
    before = voice_key(Reference(clip))
    clip.write_bytes(b"ab")
    assert "" != before != voice_key(Reference(clip))
    assert voice_key("someone") == voice_key(None) == ""


def test_longer_texts_are_more_work() -> None:
    short = SynthesisRequest(Mode.PRESET, "a", "someone")
    assert work_of(replace(short, text="a" * 100)) > work_of(short) > 0


def test_back_off_doubles_up_to_a_limit_and_forgets() -> None:
    backoff = Backoff(longest=2.0)
    assert [backoff.next_delay(0.0) for _ in range(6)] == [0.0, 0.25, 0.5, 1.0, 2.0, 2.0]
    assert backoff.next_delay(served=3600.0) == 0.0
    assert backoff.next_delay(served=1.0) == 0.25


# ------------------------------------------------------------------------------------------------- mailbox
def test_a_mailbox_gives_items_in_order_then_its_end() -> None:
    mailbox = Mailbox()
    for item in range(3):
        mailbox.put(item)
    mailbox.close()
    mailbox.put("too late")
    mailbox.close(ValueError())
    assert [mailbox.get() for _ in range(3)] == [0, 1, 2]
    for _ in range(2):
        with pytest.raises(EndOfItemsError):
            mailbox.get()


def test_an_error_comes_after_what_was_put_before_it() -> None:
    mailbox = Mailbox()
    mailbox.put("sound")
    mailbox.close(EngineError("worker_lost", "Lost."))
    assert mailbox.get() == "sound"
    with pytest.raises(EngineError):
        mailbox.get()


def test_a_mailbox_tells_how_long_nobody_has_taken_what_lies_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("inference.submission.time", SimpleNamespace(monotonic=lambda: now[0]))
    mailbox = Mailbox()
    now[0] = 5.0
    assert mailbox.unread_for() == 0.0  # there is nothing to be taken
    mailbox.put(1)
    now[0] = 7.0
    mailbox.put(2)
    assert mailbox.unread_for() == 2.0
    mailbox.get()
    assert mailbox.unread_for() == 0.0
    mailbox.close()
    now[0] = 8.0
    assert mailbox.unread_for() == 1.0
    mailbox.discard(ValueError())
    assert mailbox.unread_for() == 0.0
    with pytest.raises(ValueError):
        mailbox.get()


def test_a_mailbox_times_out() -> None:
    with pytest.raises(TimeoutError):
        Mailbox().get(timeout=0.01)


def test_event_loops_of_several_threads_wait_for_mailboxes() -> None:
    mailboxes = [Mailbox() for _ in range(4)]
    found: dict[int, list[int]] = {}

    async def read(number: int) -> None:
        found[number] = [await mailboxes[number].get_async() for _ in range(50)]

    readers = [threading.Thread(target=lambda n=n: asyncio.run(read(n))) for n in range(4)]  # type: ignore[misc]
    for reader in readers:
        reader.start()
    for item in range(50):
        for mailbox in mailboxes:
            mailbox.put(item)
    for reader in readers:
        reader.join(timeout=20.0)
    assert all(found[number] == list(range(50)) for number in range(4))


def test_giving_up_waiting_loses_nothing() -> None:
    mailbox = Mailbox()

    async def read() -> list[int]:
        for _ in range(3):
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(mailbox.get_async(), 0.01)
        threading.Timer(0.02, mailbox.put, (1,)).start()
        mailbox.put(0)
        return [await mailbox.get_async(), await mailbox.get_async()]

    assert asyncio.run(read()) == [0, 1]


def test_a_mailbox_outlives_the_loop_that_waited_for_it() -> None:
    mailbox = Mailbox()
    loop = asyncio.new_event_loop()
    loop.create_task(mailbox.get_async())
    loop.run_until_complete(asyncio.sleep(0))
    for task in asyncio.all_tasks(loop):
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.close()
    mailbox.put(1)
    assert mailbox.get() == 1


def submission(mailbox: Mailbox, calls: list[str]) -> Submission:
    return Submission(
        mailbox,
        position=lambda: 3,
        cancel=lambda: calls.append("cancelled"),
        abandon=lambda: calls.append("abandoned"),
    )


def test_letting_go_of_a_submission_gives_it_up() -> None:
    calls: list[str] = []
    held = submission(Mailbox(), calls)
    assert held.position == 3
    iterator = iter(held)  # never started
    del held, iterator
    gc.collect()
    assert calls == ["abandoned"]


def test_closing_a_generator_cancels() -> None:
    calls: list[str] = []
    mailbox = Mailbox()
    mailbox.put("sound")
    chunks = iter(submission(mailbox, calls))
    assert next(chunks) == "sound"
    chunks.close()
    gc.collect()
    assert calls == ["cancelled"]


def test_an_async_reader_gets_all_and_may_close() -> None:
    calls: list[str] = []
    mailbox = Mailbox()
    for item in "abc":
        mailbox.put(item)
    mailbox.close()

    async def read() -> list[Any]:
        held = submission(mailbox, calls)
        found = [chunk async for chunk in held]
        await held.aclose()
        return found

    assert asyncio.run(read()) == ["a", "b", "c"] and calls == ["cancelled"]


# ---------------------------------------------------------------------------------------------- one request
def given(text: str, tokens: list[int] | None = None, prompt: int = 20) -> SegmentInput:
    nothing = np.zeros(0, dtype=np.int32)
    model_input = ModelInput(
        text_ids=nothing,
        prompt_text_ids=nothing,
        llm_prompt_tokens=nothing,
        flow_prompt_tokens=np.zeros(prompt, dtype=np.int32),
        prompt_mel=np.zeros((2 * prompt, 80), dtype=np.float32),
        speaker=np.zeros(192, dtype=np.float32),
        min_tokens=0,
        max_tokens=0,
    )
    return SegmentInput(text, model_input, tokens)


def live(stream: bool, segments: int = 1, order: int = 0) -> LiveRequest:
    request = LiveRequest(order, SynthesisRequest(Mode.PRESET, "a", "someone", stream=stream), order)
    request.begin([given(str(number)) for number in range(segments)], lookahead=3)
    return request


@pytest.mark.parametrize("step", [1, 7, 40, 1000])
@pytest.mark.parametrize("total", [1, 33, 34, 120, 400])
def test_chunks_do_not_depend_on_how_fast_tokens_come(step: int, total: int) -> None:
    """The calls are those of tokens looked at one by one."""
    schedule = ChunkSchedule(20, 3)
    expected = [
        call
        for count in range(1, total + 1)
        if (call := schedule.next_call(count, finished=False)) is not None
    ]
    while (call := schedule.next_call(total, finished=True)) is not None:
        expected.append(call)
    request = live(stream=True)
    (segment,) = request.segments
    calls = []
    for start in range(0, total, step):
        count = min(step, total - start)
        segment.add_tokens(tuple(range(start, start + count)), ended=start + count == total)
        while (due := segment.due()) is not None:
            assert due[1] is not None and due[0] == tuple(range(due[1].token_count))
            calls.append(due[1])
            segment.add_sound(np.zeros(960, dtype=np.int16))
    assert calls == expected and segment.sounded
    assert [chunk.final for chunk in request.next_chunks(24000)] == [False] * (len(calls) - 1) + [True]


def test_segments_are_heard_in_order() -> None:
    request = live(stream=False, segments=3)
    for segment in reversed(request.segments):
        segment.add_tokens((1, 2), ended=True)
    for segment, count in ((request.segments[2], 0), (request.segments[1], 0), (request.segments[0], 3)):
        segment.add_sound(np.zeros(960, dtype=np.int16))
        chunks = list(request.next_chunks(24000))
        assert len(chunks) == count
    assert [chunk.text for chunk in chunks] == ["0", "1", "2"]
    assert [chunk.final for chunk in chunks] == [False, False, True] and request.finished


def test_only_so_many_segments_run_ahead() -> None:
    request = live(stream=False, segments=5)
    assert [segment.number for segment in request.wanting_slots(run_ahead=2)] == [0, 1, 2]
    request.segments[0].speech_key = 7
    assert [segment.number for segment in request.wanting_slots(run_ahead=2)] == [1, 2]
    request.segments[1].add_tokens((1,), ended=True)
    assert [segment.number for segment in request.wanting_slots(run_ahead=0)] == []


def test_first_chunks_come_first_then_who_runs_dry_soonest_then_files() -> None:
    newcomer, sounding, ahead, file = (live(stream=order != 3, segments=2, order=order) for order in range(4))
    for request, seconds in ((sounding, 1.0), (ahead, 30.0)):
        segment = request.segments[0]
        segment.add_tokens(tuple(range(60)), ended=False)
        assert segment.due() is not None
        segment.add_sound(np.zeros(int(24000 * seconds), dtype=np.int16))
        assert len(list(request.next_chunks(24000))) == 1
    requests = [file, ahead, sounding, newcomer]
    ordered = sorted(requests, key=lambda request: request.urgency(request.segments[0]))
    assert ordered == [newcomer, sounding, file, ahead]  # 30 s in hand can wait longer than a file
    assert file.urgency(file.segments[1])[1] - file.urgency(file.segments[0])[1] == WHOLE_PATIENCE


def test_a_failing_segment_lets_what_came_before_be_heard() -> None:
    request = live(stream=False, segments=3)
    error = EngineError("no_sound", "No sound.")
    request.segments[0].add_tokens((1,), ended=True)
    cut = request.cut_from(request.segments[1], error)
    assert [segment.number for segment in cut] == [1, 2]
    assert list(request.next_chunks(24000)) == [] and request.error is None
    request.segments[0].add_sound(np.zeros(960, dtype=np.int16))
    assert [chunk.final for chunk in request.next_chunks(24000)] == [False]
    assert request.error is error and not request.finished


# ------------------------------------------------------------------------------------------------ settings
def test_settings_are_checked() -> None:
    for changes in ({"devices": ()}, {"queue_size": -1}, {"concurrency": -1}, {"front_end_threads": -1}):
        with pytest.raises(RequestError) as caught:
            PoolSettings(Path("model"), **changes)  # type: ignore[arg-type]
        assert caught.value.code == "bad_setting"


@pytest.mark.parametrize(
    ("workers", "devices", "expected"),
    [
        (0, ("cuda:0", "cuda:1"), ("cuda:0", "cuda:1")),
        (1, ("cuda:0", "cuda:1"), ("cuda:0",)),
        (5, ("cuda:0", "cuda:1"), ("cuda:0", "cuda:1")),
        (0, ("cpu",), ("cpu",)),
        (3, ("cpu",), ("cpu", "cpu", "cpu")),
        (3, ("cuda:0", "cpu"), ("cuda:0", "cpu", "cpu")),
    ],
)
def test_one_worker_a_device(workers: int, devices: tuple[str, ...], expected: tuple[str, ...]) -> None:
    settled = with_workers(PoolSettings(Path("model"), max_workers=workers), devices)
    assert settled.devices == expected and settled.max_workers == len(expected)


def test_lanes_fit_the_free_memory() -> None:
    config = ModelConfig()  # the public size
    large = settings_for("cuda", config, 130 * GIB, half=True)
    assert large.slots == 64 and large.graphs
    small = settings_for("cuda", config, 3 * GIB, half=True)
    for lanes, free in ((large, 130 * GIB), (small, 3 * GIB)):
        assert lanes.slots * slot_bytes(config, lanes.context, 2) + lanes.flow_cache_bytes < 0.6 * free
    assert 1 <= small.slots <= 8 and small.max_batch < large.max_batch
    assert small.flow_cache_bytes < 0.4 * GIB
    few = settings_for("cuda", config, 130 * GIB, half=True, concurrency=8)
    assert few.slots * slot_bytes(config, few.context, 2) + few.flow_cache_bytes < 1.6 * GIB
    assert few.max_batch_frames < large.max_batch_frames
    asked = settings_for("cuda", config, 130 * GIB, half=True, low_memory=True)
    assert (asked.slots, asked.max_batch) == (8, small.max_batch)
    assert settings_for("cuda", config, 130 * GIB, half=True, concurrency=16).slots == 16
    on_cpu = settings_for("cpu", config, 16 * GIB, threads=2)
    assert on_cpu.threads == 2 and not on_cpu.graphs and on_cpu.slots >= 1
    assert settings_for("cpu", config, 0).slots == 1


# --------------------------------------------------------------------------------------------- small things
def test_a_meter_tells_the_share_of_the_last_seconds() -> None:
    now = [0.0]
    meter = BusyMeter(window=10.0, now=lambda: now[0])
    now[0] = 4.0
    with meter.working():
        now[0] = 6.0
        assert meter.current() == 2.0 and meter.share() == pytest.approx(2 / 6)
    assert meter.current() == 0.0
    now[0] = 15.0
    assert meter.share() == pytest.approx(0.1)  # from second 5 on
    now[0] = 30.0
    assert meter.share() == 0.0


def test_the_parent_needs_no_torch() -> None:
    code = (
        "import sys, inference; inference.WorkerPool, inference.PoolSettings; print('torch' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"


def test_devices_are_found_without_torch() -> None:
    import torch

    from inference.devices import available_devices, cpu_count, free_memory, process_memory

    if not torch.cuda.is_available():
        assert available_devices() == ("cpu",)
    else:
        assert len(available_devices()) == torch.cuda.device_count()
    assert cpu_count() >= 1 and process_memory() > 1e7 and free_memory(torch.device("cpu")) > 1e7


@pytest.mark.parametrize(
    ("error", "memory", "device"),
    [
        (lambda: RuntimeError("CUDA out of memory. Tried to allocate"), True, False),
        (lambda: MemoryError(), True, False),
        (lambda: RuntimeError("DefaultCPUAllocator: can't allocate memory"), True, False),
        (lambda: RuntimeError("CUDA error: device-side assert triggered"), False, True),
        (lambda: RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"), False, True),
        (lambda: RuntimeError("CUDA driver error: unknown error"), False, True),
        (lambda: RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"), False, True),
        (lambda: RuntimeError("Triton Error [CUDA]: out of memory"), True, False),
        (lambda: ValueError("CUDA error in a text"), False, False),
        (lambda: RuntimeError("shapes do not fit"), False, False),
    ],
)
def test_faults_are_told_apart(error: Callable[[], Exception], memory: bool, device: bool) -> None:
    from inference.faults import as_request_error, is_device_fault, is_out_of_memory

    assert is_out_of_memory(error()) is memory
    assert is_device_fault(error()) is device
    wrapped = EngineError("engine_failed", "Wrapped.")
    wrapped.__cause__ = error()
    assert is_device_fault(wrapped) is device
    assert as_request_error(error()).code == ("out_of_memory" if memory else "engine_failed")


def test_busy_counts_in_plain_english() -> None:
    assert "1 request is ahead" in busy(1).message
    assert "2 requests are ahead" in busy(2).message
