"""Batch jobs over HTTP: partial results, cancel, zip, owners, and a restart in the middle."""

from __future__ import annotations

import io
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.webui.api.support import CLIP, Server, TonePool, eventually, serving, tones
from tests.webui.api.test_speech import decoded
from webui.api.keys import KeyFile
from webui.batch.jobs import BatchJobs

pytestmark = pytest.mark.unit


@pytest.fixture
def jobs(pool: TonePool, tmp_path: Path) -> Iterator[BatchJobs]:
    jobs = BatchJobs(pool, tmp_path / "jobs", rows_at_once=2)
    yield jobs
    jobs.close()


@pytest.fixture
def server(pool: TonePool, tmp_path: Path, saved_voices: Path, jobs: BatchJobs) -> Iterator[Server]:
    import shutil

    shutil.copytree(saved_voices, tmp_path / "voices")
    with serving(pool, tmp_path, {"jobs": jobs}) as server:
        yield server


def create(client: httpx.Client, **body: Any) -> str:
    items = [{"text": "One."}, {"text": "Two.", "seed": 5}, {"text": "!!!"}]
    answer = client.post("/v1/jobs", json={"items": items, "voice": "Anna", **body})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def wait(client: httpx.Client, job: str) -> dict[str, Any]:
    until = time.monotonic() + 60
    while (shown := client.get(f"/v1/jobs/{job}").json())["state"] == "running":
        assert time.monotonic() < until
        time.sleep(0.02)
    return shown


def test_a_job_from_its_order_to_its_zip(client: httpx.Client) -> None:
    job = create(client, name="three things")
    shown = wait(client, job)
    assert (shown["state"], shown["total"], shown["done"], shown["failed"]) == ("done", 3, 2, 1)
    assert [item["state"] for item in shown["items"]] == ["done", "done", "failed"]
    assert shown["items"][2]["code"] == "nothing_to_speak"
    sound = client.get(shown["items"][1]["audio"])
    assert sound.headers["content-type"] == "audio/wav"
    np.testing.assert_array_equal(decoded(sound.content), tones(5))
    assert client.get(f"/v1/jobs/{job}/items/2").status_code == 404
    with zipfile.ZipFile(io.BytesIO(client.get(f"/v1/jobs/{job}/zip").content)) as archive:
        names = archive.namelist()
        assert len(names) == 3 and "report.csv" in names and archive.testzip() is None
    assert [entry["id"] for entry in client.get("/v1/jobs").json()["jobs"]] == [job]
    assert client.delete(f"/v1/jobs/{job}").status_code == 204
    assert client.get(f"/v1/jobs/{job}").json()["error"]["code"] == "batch_unknown"


def test_parts_can_be_had_while_the_rest_is_spoken_and_a_job_can_be_cancelled(
    client: httpx.Client, pool: TonePool
) -> None:
    pool.pause = 0.02
    job = create(client, items=[{"text": f"Number {number}."} for number in range(50)])
    eventually(lambda: client.get(f"/v1/jobs/{job}").json()["done"] >= 2)
    assert client.get(f"/v1/jobs/{job}").json()["state"] == "running"
    assert client.get(f"/v1/jobs/{job}/items/0").status_code == 200
    assert client.post(f"/v1/jobs/{job}/cancel").json()["state"] == "stopped"
    eventually(lambda: pool.running == 0)
    assert client.get(f"/v1/jobs/{job}").json()["done"] < 50
    assert client.post(f"/v1/jobs/{job}/resume").json()["state"] == "running"
    pool.pause = 0
    assert wait(client, job)["done"] == 50


def test_a_job_goes_on_after_a_restart(
    client: httpx.Client, pool: TonePool, jobs: BatchJobs, tmp_path: Path
) -> None:
    pool.pause = 0.02
    job = create(client, items=[{"text": f"Number {number}."} for number in range(20)])
    eventually(lambda: client.get(f"/v1/jobs/{job}").json()["done"] >= 3)
    jobs.close()
    before = client.get(f"/v1/jobs/{job}").json()["done"]
    assert before < 20
    pool.pause = 0
    again = BatchJobs(pool, tmp_path / "jobs", rows_at_once=2)
    again.begin()
    asked = len(pool.requests)
    with serving(pool, tmp_path, {"jobs": again}) as second, httpx.Client(base_url=second.url) as later:
        assert wait(later, job)["done"] == 20
    again.close()
    assert len(pool.requests) - asked <= 20 - before  # what was finished is not spoken again


def test_a_form_with_files(client: httpx.Client, pool: TonePool) -> None:
    files = {"file": b"First line.\nSecond line.\n", "reference": CLIP}
    data = {"file_name": "lines.txt", "transcript": "said", "response_format": "mp3"}
    answer = client.post("/v1/jobs", files=files, data=data)
    assert answer.status_code == 202, answer.text
    shown = wait(client, answer.json()["id"])
    assert shown["done"] == 2
    assert client.get(shown["items"][0]["audio"]).headers["content-type"] == "audio/mpeg"
    assert {request.mode.value for request in pool.requests} == {"clone"}


def test_nobody_sees_the_jobs_of_others(client: httpx.Client, server: Server) -> None:
    keys = KeyFile(server.options.api_keys)
    mine, theirs = ({"X-API-Key": keys.add(name)[1]} for name in ("me", "them"))
    body = {"items": [{"text": "One."}], "voice": "Anna"}
    job = client.post("/v1/jobs", json=body, headers=mine).json()["id"]
    for path in ("", "/zip", "/items/0"):
        assert client.get(f"/v1/jobs/{job}{path}", headers=theirs).status_code == 404
    for path in ("/cancel", "/resume"):
        assert client.post(f"/v1/jobs/{job}{path}", headers=theirs).status_code == 404
    assert client.delete(f"/v1/jobs/{job}", headers=theirs).status_code == 404
    assert client.get("/v1/jobs", headers=theirs).json()["jobs"] == []
    assert client.get(f"/v1/jobs/{job}", headers=mine).status_code == 200


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({}, 422, "invalid_request"),
        ({"items": []}, 422, "invalid_request"),
        ({"items": [{"text": "Hi.", "voice": "nobody"}]}, 404, "voice_unknown"),
        ({"items": [{"text": "Hi.", "colour": "red"}]}, 422, "invalid_request"),
        ({"file": "aGk=", "file_name": "x.pdf"}, 400, "batch_format"),
        ({"file": "http://example.org/a.txt"}, 422, "invalid_request"),
    ],
)
def test_what_cannot_be_a_job(client: httpx.Client, body: dict[str, Any], status: int, code: str) -> None:
    answer = client.post("/v1/jobs", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
