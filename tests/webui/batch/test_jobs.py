"""Batches: every row ends, failures stay apart, they stop, go on after a restart, and leave room for visitors."""

from __future__ import annotations

import asyncio
import csv
import io
import time
import wave
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from inference.pool_status import PoolStatus
from inference.types import EngineError, Mode, Reference, RequestError, SynthesisRequest
from tests.webui.fake_pool import FakePool, FakeSubmission, spoken
from webui.batch import archive as archive_module
from webui.batch import job as job_module
from webui.batch import jobs as jobs_module
from webui.batch import speaking as speaking_module
from webui.batch.archive import file_names
from webui.batch.job import BatchSettings, Job
from webui.batch.jobs import BatchJobs, BatchStatus
from webui.batch.rows import Row

pytestmark = pytest.mark.unit
CLIP = Reference(b"not looked at", "What it says.")


class Pool(FakePool):
    """Fails as told for some texts: a list of errors, one for each try."""

    def __init__(self, failures: dict[str, list[Exception]] | None = None, **settings: float) -> None:
        super().__init__(**settings)  # type: ignore[arg-type]
        self.failures = failures or {}

    def submit(self, request: SynthesisRequest) -> FakeSubmission:
        if left := self.failures.get(request.text):
            raise left.pop(0)
        return super().submit(request)


@contextmanager
def batches(pool: FakePool, folder: Path, rows_at_once: int = 2) -> Iterator[BatchJobs]:
    jobs = BatchJobs(pool, folder, rows_at_once)
    try:
        yield jobs
    finally:
        jobs.close()


def wait(met: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def finished(jobs: BatchJobs, number: str, owner: str = "ann") -> BatchStatus:
    wait(lambda: jobs.status(number, owner).state == "done")
    return jobs.status(number, owner)


def rows(count: int) -> list[Row]:
    return [Row(f"Text {number}.", seed=number) for number in range(count)]


def archived(jobs: BatchJobs, number: str) -> tuple[dict[str, bytes], list[dict[str, str]]]:
    with zipfile.ZipFile(jobs.archive(number, "ann")) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    report = files.pop("report.csv").decode("utf-8-sig")
    return files, list(csv.DictReader(io.StringIO(report)))


def test_every_row_becomes_its_own_sound(tmp_path: Path) -> None:
    with batches(Pool(), tmp_path) as jobs:
        number = jobs.start(rows(5), BatchSettings(voice=CLIP), "ann", "my lines.txt")
        status = finished(jobs, number)
        assert (status.total, status.spoken, status.failures, status.name) == (5, 5, (), "my lines.txt")
        files, report = archived(jobs, number)
        assert jobs.archive(number, "ann").name.endswith("_batch_my-lines.zip")
    assert list(files) == [f"{number:04d}_Text-{number - 1}.wav" for number in range(1, 6)]
    for seed, data in enumerate(files.values()):
        with wave.open(io.BytesIO(data)) as sound:
            np.testing.assert_array_equal(
                np.frombuffer(sound.readframes(sound.getnframes()), np.int16), spoken(seed)
            )
    assert [line["error"] for line in report] == [""] * 5 and report[0]["seconds"] == "0.6"


def test_a_row_overrides_what_holds_for_all(tmp_path: Path) -> None:
    common = BatchSettings(Mode.CLONE, "anna", "calmly", 1.5, 7, "zh")
    job = Job.create(tmp_path / "j", "ann", "a.csv", common,
                     [Row("One."), Row("Two.", "", "bob", "wildly", "instruct", 0, 1.0)])  # fmt: skip
    assert job.request(0) == SynthesisRequest(Mode.CLONE, "One.", "anna", "calmly", None, 1.5, 7, False, "zh")
    assert job.request(1) == SynthesisRequest(
        Mode.INSTRUCT, "Two.", "bob", "wildly", None, 1.0, 0, False, "zh"
    )
    again = Job.load(tmp_path / "j")
    assert [again.request(index) for index in range(2)] == [job.request(index) for index in range(2)]


def test_a_row_that_fails_costs_no_other_and_may_be_tried_again(tmp_path: Path) -> None:
    bad = RequestError("nothing_to_speak", "Nothing to speak in it.")
    pool = Pool({"Text 1.": [bad], "Text 2.": [ZeroDivisionError("a bug")]})
    with batches(pool, tmp_path) as jobs:
        number = jobs.start(rows(4), BatchSettings(voice=CLIP), "ann")
        status = finished(jobs, number)
        assert status.spoken == 2
        assert [(one.row, one.code) for one in status.failures] == [
            (1, "nothing_to_speak"),
            (2, "engine_failed"),
        ]
        files, report = archived(jobs, number)
        assert len(files) == 2 and report[1]["error"] == "Nothing to speak in it."
        jobs.resume(number, "ann")
        assert finished(jobs, number).spoken == 4
        assert len(archived(jobs, number)[0]) == 4


def test_busy_is_waited_for_and_bad_luck_tried_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speaking_module, "_WAIT", {"busy": 0.001})
    lost = EngineError("worker_lost", "The worker died.")
    busy: list[Exception] = [RequestError("busy", "Busy.", ahead=1) for _ in range(5)]
    pool = Pool({"Text 0.": busy, "Text 1.": [lost], "Text 2.": [lost, lost]})
    with batches(pool, tmp_path) as jobs:
        status = finished(jobs, jobs.start(rows(3), BatchSettings(voice=CLIP), "ann"))
    assert [(one.row, one.code) for one in status.failures] == [(2, "worker_lost")]


def test_stop_gives_up_what_is_in_hand_and_resume_goes_on(tmp_path: Path) -> None:
    pool = Pool(chunks=3, pause=0.02)
    with batches(pool, tmp_path) as jobs:
        number = jobs.start(rows(20), BatchSettings(voice=CLIP), "ann")
        wait(lambda: jobs.status(number, "ann").spoken >= 2)
        jobs.stop(number, "ann")
        wait(lambda: pool.running == 0)
        stopped = jobs.status(number, "ann")
        assert stopped.state == "stopped" and stopped.spoken < 20 and stopped.failures == ()
        asked = len(pool.requests)
        time.sleep(0.1)
        assert len(pool.requests) == asked
        assert len(archived(jobs, number)[0]) == stopped.spoken  # what there is can be had
        jobs.resume(number, "ann")
        assert finished(jobs, number).spoken == 20
    assert pool.closed >= 1


def test_it_goes_on_after_a_restart_and_repeats_nothing(tmp_path: Path) -> None:
    first = Pool(chunks=3, pause=0.02)
    clip = tmp_path / "upload.wav"
    clip.write_bytes(b"the clip")
    with batches(first, tmp_path / "jobs") as jobs:
        number = jobs.start(rows(12), BatchSettings(voice=Reference(clip, "Words.")), "ann")
        stopped = jobs.start(rows(3), BatchSettings(voice=CLIP), "ann")
        jobs.stop(stopped, "ann")
        wait(lambda: jobs.status(number, "ann").spoken >= 3)
    done = len(list((tmp_path / "jobs" / number / "sound").iterdir()))
    assert 3 <= done < 12
    clip.unlink()  # a visitor's upload is soon gone
    with (tmp_path / "jobs" / number / "results.jsonl").open("a") as file:
        file.write('{"row": 11, "fi')  # the machine went down in the middle of a line
    second = Pool()
    with batches(second, tmp_path / "jobs") as jobs:
        jobs.begin()
        assert finished(jobs, number).spoken == 12
        assert jobs.status(stopped, "ann").state == "stopped"
    assert len(second.requests) == 12 - done
    voice = second.requests[0].voice
    assert isinstance(voice, Reference) and isinstance(voice.audio, Path)
    assert voice.audio.read_bytes() == b"the clip" and voice.transcript == "Words."


def test_a_pool_that_closes_leaves_the_rest_for_the_next_studio(tmp_path: Path) -> None:
    closed = EngineError("pool_closed", "The pool is closed.")
    with batches(Pool({"Text 1.": [closed]}), tmp_path, rows_at_once=1) as jobs:
        number = jobs.start(rows(3), BatchSettings(voice=CLIP), "ann")
        thread = jobs._thread
        assert thread is not None
        thread.join(timeout=20)
        assert jobs.status(number, "ann").spoken == 1 and jobs.status(number, "ann").failures == ()
    with batches(Pool(), tmp_path) as jobs:
        jobs.begin()
        assert finished(jobs, number).spoken == 3


def test_batches_take_turns_and_only_so_many_places(tmp_path: Path) -> None:
    pool = Pool(pause=0.005)
    with batches(pool, tmp_path, rows_at_once=3) as jobs:
        long = jobs.start(rows(20), BatchSettings(voice=CLIP), "ann")
        short = jobs.start([Row(f"Short {number}.") for number in range(4)], BatchSettings(voice=CLIP), "bob")
        finished(jobs, short, "bob")
        assert jobs.status(long, "ann").state == "running"
        finished(jobs, long)
    assert pool.most_running == 3


def test_more_places_once_the_pool_has_come_up(tmp_path: Path) -> None:
    pool = Pool(pause=0.005)
    with batches(pool, tmp_path, rows_at_once=1) as jobs:
        jobs.allow(0)
        number = jobs.start(rows(12), BatchSettings(voice=CLIP), "ann")
        wait(lambda: jobs.status(number, "ann").spoken >= 2)
        assert pool.most_running == 1
        jobs.allow(3)
        finished(jobs, number)
    assert pool.most_running == 3


def test_while_visitors_wait_batches_step_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_module, "_CROWDED_SECONDS", 0.01)
    pool = Pool(pause=0.005)
    pool.waiting = 3
    with batches(pool, tmp_path, rows_at_once=4) as jobs:
        number = jobs.start(rows(6), BatchSettings(voice=CLIP), "ann")
        wait(lambda: jobs.status(number, "ann").spoken >= 3)
        assert pool.most_running == 1
        pool.waiting = 0
        finished(jobs, number)


def test_a_pool_that_fails_to_answer_once_does_not_end_all_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_module, "_CROWDED_SECONDS", 0.01)
    pool, answers = Pool(), iter([ZeroDivisionError("a bug")])
    status = pool.status

    def fail_once() -> PoolStatus:
        for error in answers:
            raise error
        return status()

    monkeypatch.setattr(pool, "status", fail_once)
    with batches(pool, tmp_path) as jobs:
        assert finished(jobs, jobs.start(rows(2), BatchSettings(voice=CLIP), "ann")).spoken == 2


def test_nobody_sees_or_touches_another_s_batch(tmp_path: Path) -> None:
    with batches(Pool(), tmp_path) as jobs:
        number = jobs.start(rows(1), BatchSettings(voice=CLIP), "ann")
        finished(jobs, number)
        assert jobs.jobs("bob") == [] and jobs.jobs("") == [] and len(jobs.jobs("ann")) == 1
        for act in (jobs.status, jobs.stop, jobs.resume, jobs.delete, jobs.archive):
            for owner in ("bob", ""):
                with pytest.raises(RequestError) as raised:
                    act(number, owner)
                assert raised.value.code == "batch_unknown"
        with pytest.raises(RequestError):
            jobs.status("../" + number, "ann")
        assert jobs.status(number, "ann").state == "done"


def test_deleting_removes_everything_also_while_it_runs(tmp_path: Path) -> None:
    pool = Pool(chunks=50, pause=0.01)
    with batches(pool, tmp_path) as jobs:
        number = jobs.start(rows(5), BatchSettings(voice=CLIP), "ann")
        wait(lambda: pool.running > 0)
        jobs.delete(number, "ann")
        wait(lambda: pool.running == 0)
        assert jobs.jobs("ann") == []
        assert list(tmp_path.iterdir()) == []


def test_old_ones_go_but_not_while_they_run(tmp_path: Path) -> None:
    pool = Pool(chunks=50, pause=0.01)
    with batches(pool, tmp_path) as jobs:
        running = jobs.start(rows(2), BatchSettings(voice=CLIP), "ann")
        stopped = jobs.start(rows(2), BatchSettings(voice=CLIP), "ann")
        jobs.stop(stopped, "ann")
        later = time.time() + 1000
        jobs.clean(0, now=later)
        jobs.clean(5000, now=later)
        assert len(jobs.jobs("ann")) == 2
        jobs.clean(500, now=later)
        assert [status.id for status in jobs.jobs("ann")] == [running]


def test_the_oldest_go_when_all_take_too_much(tmp_path: Path) -> None:
    with batches(Pool(), tmp_path) as jobs:
        first, second = (jobs.start(rows(1), BatchSettings(voice=CLIP), "ann") for _ in range(2))
        for number in (first, second):
            finished(jobs, number)
        size = sum(path.stat().st_size for path in (tmp_path / second).rglob("*") if path.is_file())
        jobs.clean(0, 2 * size + 1000)
        assert len(jobs.jobs("ann")) == 2
        jobs.clean(0, size + 1000)
        assert [status.id for status in jobs.jobs("ann")] == [second]


def test_a_full_disk_stops_the_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Pool()
    with batches(pool, tmp_path, rows_at_once=1) as jobs:
        write = job_module.write_whole

        def fail(path: Path, data: bytes) -> None:
            if "sound" in path.parts:
                raise OSError(28, "No space left on device")
            write(path, data)

        monkeypatch.setattr(job_module, "write_whole", fail)
        number = jobs.start(rows(50), BatchSettings(voice=CLIP), "ann")
        wait(lambda: jobs.status(number, "ann").state == "stopped")
        assert len(pool.requests) == 1 and jobs.status(number, "ann").failures == ()
        monkeypatch.setattr(job_module, "write_whole", write)
        jobs.resume(number, "ann")
        assert finished(jobs, number).spoken == 50


def test_what_cannot_be_started_is_told_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_module, "MOST_JOBS", 1)
    jobs = BatchJobs(Pool(), tmp_path / "jobs")
    for given, owner, settings, code in [
        ([], "ann", BatchSettings(), "batch_empty"),
        (rows(1), "ann", BatchSettings(audio_format="wma"), "audio_format_unknown"),
    ]:
        with pytest.raises(RequestError) as raised:
            jobs.start(given, settings, owner)
        assert raised.value.code == code
    jobs.start(rows(1), BatchSettings(voice=CLIP), "ann")
    with pytest.raises(RequestError) as raised:
        jobs.start(rows(1), BatchSettings(voice=CLIP), "ann")
    assert raised.value.code == "batch_too_many"
    jobs.start(rows(1), BatchSettings(voice=CLIP), "bob")
    jobs.close()
    assert len(list((tmp_path / "jobs").iterdir())) == 2


def test_a_broken_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "job.json").write_text("{half")
    jobs = BatchJobs(Pool(), tmp_path)
    jobs.begin()
    assert jobs.jobs("ann") == [] and (tmp_path / "broken" / "job.json").exists()


def test_names_are_safe_and_never_twice() -> None:
    named = [Row("a", "hello.wav"), Row("b", "HELLO"), Row("c", "../../x"), Row("d", "段_一"), Row("你好，世界"),
             Row("...")]  # fmt: skip
    assert file_names(named, "mp3") == [
        "hello.mp3", "0002_HELLO.mp3", "x.mp3", "段_一.mp3", "0005_你好-世界.mp3", "0006.mp3"
    ]  # fmt: skip


def test_no_text_becomes_a_formula_in_the_report() -> None:
    assert '\n1,,,not spoken yet,"\'=HYPERLINK(""x"")"' in archive_module.report([Row('=HYPERLINK("x")')], {})


def test_the_event_loop_of_the_caller_does_not_matter(tmp_path: Path) -> None:
    async def visit(jobs: BatchJobs) -> str:
        return await asyncio.to_thread(jobs.start, rows(2), BatchSettings(voice=CLIP), "ann")

    with batches(Pool(), tmp_path) as jobs:
        number = asyncio.run(visit(jobs))
        assert finished(jobs, number).spoken == 2
