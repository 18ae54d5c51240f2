"""Schemathesis over the whole OpenAPI document: whatever is sent, no 500, and answers as they are documented."""

from __future__ import annotations

import base64
import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from tests.webui.api.support import CLIP, Server, TonePool, serving
from webui.api.app import create_api
from webui.api.keys import KeyFile
from webui.batch.jobs import BatchJobs

schemathesis = pytest.importorskip("schemathesis")
from schemathesis.checks import not_a_server_error  # noqa: E402
from schemathesis.specs.openapi.checks import (  # noqa: E402
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

pytestmark = pytest.mark.unit

EXAMPLES = int(os.environ.get("API_FUZZ_EXAMPLES", "20"))  # of each route
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory, saved_voices: Path) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("fuzz")
    shutil.copytree(saved_voices, folder / "voices")
    pool = TonePool(sentences=1)
    jobs = BatchJobs(pool, folder / "jobs")
    with serving(pool, folder, {"jobs": jobs}) as server:
        server.secret = KeyFile(server.options.api_keys).add("fuzzer", admin=True)[1]
        yield server
    jobs.close()


ANSWERS: Counter[tuple[str, int]] = Counter()
DOCUMENT = create_api(cast(Any, None)).openapi()
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)
OPERATIONS = [(path, method) for path, methods in DOCUMENT["paths"].items() for method in methods]


# What is made up hardly ever names something that there is: some of it is replaced.
REAL = st.sets(st.sampled_from(["voice", "job", "model", "clip", "audio", "words"]))


def made_real(case: Any, real: set[str], job: str) -> None:
    """Let the parts in `real` be of this server."""
    parameters = case.path_parameters or {}
    for name, value in (("voice", "Anna"), ("job", job), ("model", "tts-1")):
        if name in real and name in parameters:
            parameters[name] = value
    body = case.body
    if not isinstance(body, dict):
        return
    clip = CLIP if case.media_type == "multipart/form-data" else base64.b64encode(CLIP).decode()
    if "model" in real and "model" in body:
        body["model"] = "tts-1"
    for field in ("input", "text"):
        if "words" in real and field in body:
            body[field] = f"So it is. {body[field]}"
    if "audio" in real and "source" in body:
        body["source"] = clip
    if "clip" in real and "input" not in body:
        body["reference"] = clip
        body.pop("voice", None)
        body.pop("file", None)
    elif "voice" in real:
        body["voice"] = "Anna"
        body.pop("reference", None)


@pytest.mark.parametrize(("path", "method"), OPERATIONS)
def test_no_input_is_our_fault(fuzzed: Server, saved_voices: Path, path: str, method: str) -> None:
    header = {"Authorization": f"Bearer {fuzzed.secret}", "X-API-Key": fuzzed.secret}
    with httpx.Client(base_url=fuzzed.url, headers=header) as client:
        for old in client.get("/v1/jobs").json()["jobs"]:
            client.delete(f"/v1/jobs/{old['id']}")
        if client.get("/v1/voices/Anna").status_code == 404:  # a test has removed or renamed her
            shutil.copytree(saved_voices, fuzzed.voices.folder, dirs_exist_ok=True)
        job = client.post("/v1/jobs", json={"items": [{"text": "One."}], "voice": "Anna"}).json()["id"]

    @given(case=SCHEMA[path][method.upper()].as_strategy(), real=REAL)
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def ask(case: Any, real: set[str]) -> None:
        made_real(case, real, job)
        case.headers.update(header)  # without a key all of it ends at the door
        answer = case.call_and_validate(base_url=fuzzed.url, checks=CHECKS, timeout=20)
        ANSWERS[path, answer.status_code] += 1

    ask()


def test_the_fuzzer_got_beyond_the_doors() -> None:
    """Or the test above would say little."""
    if len({path for path, _ in ANSWERS}) < len(DOCUMENT["paths"]):
        pytest.skip("not all of it has been run")
    reached = {path for (path, status), count in ANSWERS.items() if status < 300}
    assert {"/v1/audio/speech", "/v1/clone", "/v1/jobs", "/v1/voices", "/v1/voices/{voice}"} <= reached


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=5
)
MESSAGES = st.one_of(
    st.text(),
    st.binary(max_size=20),
    JSON.map(json.dumps),
    st.fixed_dictionaries(
        {"type": st.sampled_from(["start", "text", "flush", "end", "cancel", "resume", "skip", "ping", "x"])},
        optional={
            "text": st.text() | JSON,
            "voice": st.just("Anna") | JSON,
            "speed": JSON,
            "instruction": st.text(),
        },
    ).map(json.dumps),
)


@settings(
    max_examples=3 * EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(messages=st.lists(MESSAGES, max_size=8), begin=st.booleans())
def test_no_message_is_our_fault(fuzzed: Server, messages: list[str | bytes], begin: bool) -> None:
    headers = {"X-API-Key": fuzzed.secret}
    address = f"ws://127.0.0.1:{fuzzed.port}/v1/stream"
    with connect(address, additional_headers=headers, close_timeout=1) as socket:
        try:
            if begin:
                socket.send(json.dumps({"type": "start", "voice": "narrator"}))
            for message in messages:
                socket.send(message)
            socket.send(json.dumps({"type": "ping"}))
            while (answer := socket.recv(timeout=10)) != '{"type":"pong"}':
                assert isinstance(answer, bytes) or "internal_error" not in answer
        except ConnectionClosed as closed:
            assert closed.rcvd is not None and closed.rcvd.code in (4400, 4401)
