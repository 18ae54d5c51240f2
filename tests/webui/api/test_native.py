"""Our own routes: the four modes as a form and as JSON, voices, times and subtitles, limits, health and metrics."""

from __future__ import annotations

import base64
import http.client
import json
import logging
import time
from typing import Any, get_args

import httpx
import numpy as np
import pytest

from inference.logs import JsonFormatter, TextFormatter
from inference.types import Mode, Reference
from tests.webui.api.support import CLIP, Server, TonePool, tones
from tests.webui.api.test_speech import decoded
from webui.api.guard import CLIP_BODY, TEXT_BODY
from webui.api.stream_messages import Control, Start
from webui.api.timestamps import Span, estimated_words, subtitles

pytestmark = pytest.mark.unit

MODES = {
    "clone": (Mode.CLONE, {"text": "Hi.", "transcript": "What is said."}),
    "cross-lingual": (Mode.CROSS_LINGUAL, {"text": "Hi."}),
    "instruct": (Mode.INSTRUCT, {"text": "Hi.", "instruction": "softly"}),
    "convert": (Mode.CONVERT, {}),
}


@pytest.mark.parametrize("as_json", [True, False])
@pytest.mark.parametrize("path", MODES)
def test_the_modes_as_form_and_as_json(
    client: httpx.Client, pool: TonePool, path: str, as_json: bool
) -> None:
    mode, fields = MODES[path]
    clips = {"reference": CLIP} | ({"source": CLIP + b"\0"} if mode is Mode.CONVERT else {})
    if as_json:
        encoded = {name: base64.b64encode(clip).decode() for name, clip in clips.items()}
        answer = client.post(f"/v1/{path}", json={**fields, **encoded, "seed": 6})
    else:
        answer = client.post(f"/v1/{path}", data={**fields, "seed": "6"}, files=clips)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-seed"] == "6" and answer.headers["content-type"] == "audio/wav"
    np.testing.assert_array_equal(decoded(answer.content), tones(6))
    (asked,) = pool.requests
    assert asked.mode is mode and asked.stream and asked.text == fields.get("text", "")
    assert asked.voice == Reference(CLIP, fields.get("transcript", ""))
    assert asked.instruction == fields.get("instruction", "")
    assert asked.request_id == answer.headers["x-request-id"]
    if mode is Mode.CONVERT:
        assert asked.source == Reference(CLIP + b"\0")


def test_a_saved_voice_instead_of_a_clip(client: httpx.Client, pool: TonePool) -> None:
    assert client.post("/v1/clone", json={"text": "Hi.", "voice": "ANNA"}).status_code == 200
    voice = pool.requests[0].voice
    assert getattr(voice, "transcript", "") == "What Anna says in her clip."


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"text": "Hi."}, 422, "invalid_request"),
        ({"text": "Hi.", "voice": "Anna", "reference": "aGk="}, 422, "invalid_request"),
        ({"text": "Hi.", "reference": "http://169.254.169.254/latest"}, 422, "invalid_request"),
        ({"text": "Hi.", "voice": "../../etc/passwd"}, 404, "voice_unknown"),
        ({"text": "Hi.", "voice": "Anna", "sped": 2}, 422, "invalid_request"),
        ({"text": "Hi.", "voice": "Anna", "subtitles": "srt"}, 422, "invalid_request"),
        ({"text": "Hi.", "voice": "Anna", "transcript": "no"}, 400, "transcript_saved"),
        ({"text": "Hi \ud800.", "voice": "Anna"}, 422, "invalid_request"),
        ([], 422, "invalid_request"),
    ],
)
def test_what_is_wrong_with_a_body(client: httpx.Client, body: Any, status: int, code: str) -> None:
    answer = client.post("/v1/clone", content=json.dumps(body), headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


def test_bodies_that_are_neither(client: httpx.Client) -> None:
    assert client.post("/v1/clone", content=b"hi", headers={"Content-Type": "text/plain"}).status_code == 415
    assert (
        client.post("/v1/clone", content=b"{", headers={"Content-Type": "application/json"}).status_code
        == 422
    )
    broken = {"Content-Type": "multipart/form-data; boundary=x"}
    assert client.post("/v1/clone", content=b"--y\r\nhello", headers=broken).status_code in (400, 422)


@pytest.mark.parametrize(("path", "limit"), [("/v1/audio/speech", TEXT_BODY), ("/v1/clone", CLIP_BODY)])
def test_a_body_over_the_limit_is_not_read(server: Server, path: str, limit: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.putrequest("POST", path)
    connection.putheader("Content-Length", str(limit + 1))
    connection.endheaders(b" ")
    answer = connection.getresponse()
    assert answer.status == 413 and b"body_too_large" in answer.read()
    connection.close()


def test_a_body_that_tells_no_length_is_cut_off_too(client: httpx.Client) -> None:
    parts = (b" " * 65536 for _ in range(2 * TEXT_BODY // 65536))
    try:
        answer = client.post("/v1/audio/speech", content=parts, headers={"Content-Type": "application/json"})
    except httpx.WriteError:  # it was closed while we were still sending
        return
    assert answer.status_code == 413 and answer.json()["error"]["code"] == "body_too_large"


# ------------------------------------------------------------------------------------------- times
def test_times_of_segments_words_and_subtitles(client: httpx.Client) -> None:
    body = {"text": "Hi.", "voice": "Anna", "stream_format": "json", "subtitles": "srt", "speed": 4}
    answer = client.post("/v1/clone", json=body).json()
    assert answer["duration"] == 0.6  # the model's two times, and two times more
    assert [(one["start"], one["end"]) for one in answer["segments"]] == [(0.0, 0.3), (0.3, 0.6)]
    assert all(word["estimated"] for word in answer["words"]) and len(answer["words"]) == 8
    assert answer["subtitles"].startswith("1\n00:00:00,000 --> 00:00:00,300\nSentence 0 says it.\n\n2\n")
    assert len(decoded(base64.b64decode(answer["audio"]))) / 24000 == pytest.approx(0.6, abs=0.03)


def test_events_carry_the_times_as_segments_end(client: httpx.Client) -> None:
    body = {"text": "Hi.", "voice": "Anna", "stream_format": "sse", "response_format": "pcm"}
    lines = client.post("/v1/clone", json=body).text.split("\n\n")
    events = [json.loads(line[6:]) for line in lines if line]
    segments = [event for event in events if event["type"] == "speech.segment"]
    assert [(one["id"], one["start"], one["end"]) for one in segments] == [(0, 0.0, 0.6), (1, 0.6, 1.2)]
    before = sum(len(base64.b64decode(one["audio"])) for one in events[: events.index(segments[0])])
    assert before == 2 * 3 * 4800  # told as soon as it is over


# ------------------------------------------------------------------------------------------ a wrong transcript
FITS, WRONG = "One two three four five six seven eight.", "No."


@pytest.mark.parametrize("transcript", [FITS, WRONG])
def test_a_transcript_that_does_not_fit_its_clip_is_told(
    client: httpx.Client, pool: TonePool, transcript: str
) -> None:
    pool.pause = 0.3  # as long as a model takes: the clip is looked at meanwhile
    wanted = ["transcript_doubtful"] if transcript == WRONG else []
    body = {"text": "Hi.", "transcript": transcript, "reference": base64.b64encode(CLIP).decode()}
    whole = client.post("/v1/clone", json={**body, "stream_format": "json"})
    assert whole.json()["warnings"] == wanted
    events = client.post("/v1/clone", json={**body, "stream_format": "sse"})
    last = json.loads(events.text.strip().split("\n\n")[-1][6:])
    assert last["type"] == "speech.audio.done" and last.get("warnings", []) == wanted
    sound = client.post("/v1/clone", json=body)
    for answer in (whole, events, sound):
        assert answer.headers.get("x-warning") == (", ".join(wanted) or None)


def test_a_saved_voice_is_doubted_where_its_transcript_is_used(client: httpx.Client, pool: TonePool) -> None:
    pool.pause = 0.1
    assert client.patch("/v1/voices/Anna", json={"transcript": WRONG}).status_code == 200

    def told(path: str, **fields: str) -> str | None:
        return client.post(path, json=fields).headers.get("x-warning")

    assert told("/v1/audio/speech", voice="Anna", input="Hi.") == "transcript_doubtful"
    assert told("/v1/cross-lingual", voice="Anna", text="Hi.") is None
    assert client.patch("/v1/voices/Anna", json={"transcript": FITS}).status_code == 200
    assert told("/v1/audio/speech", voice="Anna", input="Hi.") is None


def test_the_first_sound_waits_for_no_doubt(
    client: httpx.Client, pool: TonePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(request: Any) -> tuple[str, ...]:
        time.sleep(1.0)
        return ("transcript_doubtful",)

    monkeypatch.setattr("webui.api.doubts.transcript_doubts", slow)
    started = time.monotonic()
    body = {"text": "Hi.", "voice": "Anna"}
    with client.stream("POST", "/v1/clone", json={**body, "stream_format": "sse"}) as answer:
        assert time.monotonic() - started < 0.8 and "x-warning" not in answer.headers
        assert "transcript_doubtful" in answer.read().decode()  # at the end
    monkeypatch.setattr("webui.api.doubts.transcript_doubts", lambda request: 1 / 0)
    assert client.post("/v1/clone", json={**body, "stream_format": "json"}).json()["warnings"] == []


def test_subtitles_are_well_formed() -> None:
    spans = [Span("One\n\n--> two", 0.0, 1.5), Span("三", 3661.25, 3662.0)]
    assert subtitles(spans, "vtt") == (
        "WEBVTT\n\n1\n00:00:00.000 --> 00:00:01.500\nOne → two\n\n2\n01:01:01.250 --> 01:01:02.000\n三\n"
    )


def test_words_fill_their_segment() -> None:
    words = estimated_words(Span("你好, wide world — 3.5!", 1.0, 3.0))
    assert [word.text for word in words if word.end > word.start] == ["你", "好", "wide", "world", "3.5!"]
    assert words[0].start == 1.0 and words[-1].end == pytest.approx(3.0)
    assert all(first.end == second.start for first, second in zip(words, words[1:]))
    assert estimated_words(Span("…", 0, 1)) == []


# ------------------------------------------------------------------------------------------ voices
def test_the_life_of_a_voice(client: httpx.Client) -> None:
    made = client.post("/v1/voices", data={"name": "Cleo", "transcript": "a"}, files={"reference": CLIP})
    assert made.status_code == 201 and made.json()["seconds"] > 3
    voice = made.json()["id"]
    changed = client.patch(f"/v1/voices/{voice}", json={"name": "Klea", "transcript": "b"}).json()
    assert (changed["name"], changed["transcript"], changed["id"]) == ("Klea", "b", voice)
    assert client.get("/v1/voices/klea").json()["id"] == voice
    assert len(decoded(client.get(f"/v1/voices/{voice}/audio").content)) > 24000
    kept = client.get(f"/v1/voices/{voice}/export")
    assert client.delete(f"/v1/voices/{voice}").status_code == 204
    assert client.get(f"/v1/voices/{voice}").status_code == 404
    back = client.post("/v1/voices", files={"file": kept.content}, data={"name": "Again"})
    assert back.status_code == 201 and back.json()["transcript"] == "b"


@pytest.mark.parametrize(
    ("data", "status", "code"),
    [
        ({"name": "anna"}, 409, "voice_name_taken"),
        ({"name": ""}, 422, "invalid_request"),
        ({"name": "a\u202eb"}, 400, "voice_name_bad"),
        ({"name": "x" * 61}, 422, "invalid_request"),
    ],
)
def test_names_that_cannot_be(client: httpx.Client, data: dict[str, str], status: int, code: str) -> None:
    answer = client.post("/v1/voices", data=data, files={"reference": CLIP})
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


def test_a_voice_of_nonsense(client: httpx.Client) -> None:
    answer = client.post("/v1/voices", data={"name": "Nobody"}, files={"reference": b"no sound at all"})
    assert answer.status_code == 400 and answer.json()["error"]["code"] == "audio_unreadable"
    answer = client.post("/v1/voices", data={"name": "Nobody"}, files={"file": b"no voice at all"})
    assert answer.status_code == 400 and answer.json()["error"]["code"] == "voice_file_bad"


def test_a_locked_library_is_only_looked_at(client: httpx.Client, server: Server) -> None:
    server.voices.locked = True
    assert client.delete("/v1/voices/Anna").status_code == 403
    assert client.get("/v1/voices/Anna/export").status_code == 403
    assert client.get("/v1/voices/Anna").status_code == 200


# --------------------------------------------------------------------------------------- operation
def test_ready_is_told_by_its_status(client: httpx.Client, pool: TonePool) -> None:
    assert client.get("/ready").status_code == 200
    pool.ready = False
    answer = client.get("/ready")
    assert answer.status_code == 503 and answer.headers["retry-after"] and answer.json()["ready"] is False
    assert client.get("/health").json() == {"status": "ok"}
    spoken = client.post("/v1/audio/speech", json={"input": "Hi.", "voice": "Anna"})
    assert spoken.status_code == 503 and spoken.headers["retry-after"]


def test_metrics_count_what_happened(client: httpx.Client, pool: TonePool) -> None:
    assert client.post("/v1/clone", json={"text": "Hello.", "voice": "Anna"}).status_code == 200
    pool.fail_at = 0
    client.post("/v1/clone", json={"text": "Hello.", "voice": "Anna"})
    lines = (
        'cosyvoice_requests_total{front="api",mode="clone",outcome="finished"} 1.0',
        'cosyvoice_requests_total{front="api",mode="clone",outcome="failed"} 1.0',
        'cosyvoice_errors_total{code="engine_failed",front="api"} 1.0',
        'cosyvoice_first_chunk_seconds_count{front="api",mode="clone"} 1.0',
        'cosyvoice_audio_seconds_total{front="api",mode="clone"} 1.2',
        'cosyvoice_characters_total{front="api",mode="clone"} 12.0',
        'cosyvoice_http_requests_total{method="POST",route="/v1/clone",status="200"} 1.0',
        'cosyvoice_http_requests_total{method="POST",route="/v1/clone",status="500"} 1.0',
        "cosyvoice_ready 1.0",
        'cosyvoice_worker_backend_info{backend="torch",part="vocoder",worker="worker 0 (cpu)"} 1.0',
    )
    missing: list[str] = list(lines)
    until = time.monotonic() + 10  # an answer is counted when it is over, which its reader can know first
    while missing and time.monotonic() < until:
        text = client.get("/metrics").text
        missing = [line for line in lines if line not in text]
    assert not missing


def test_the_documentation_can_be_read_without_other_sites(client: httpx.Client) -> None:
    page = client.get("/docs").text
    for path in client.get("/openapi.json").json()["paths"]:
        assert f"<code>{path}</code>" in page
    assert "http://" not in page and "https://" not in page and "<script" not in page
    for word in ("/v1/stream", *Start.model_fields, *get_args(Control.model_fields["type"].annotation)):
        assert f"<td>{word}</td>" in page or f"<code>{word}</code>" in page, word


def test_every_answer_has_an_id_which_may_be_the_callers(client: httpx.Client) -> None:
    assert client.get("/health", headers={"X-Request-Id": "mine-1"}).headers["x-request-id"] == "mine-1"
    for bad in ("x" * 65, "a b", "é"):
        answer = client.get("/v1/nothing", headers={"X-Request-Id": bad.encode()})
        assert answer.headers["x-request-id"].startswith("req_")
        assert answer.json()["error"]["request_id"] == answer.headers["x-request-id"]


def test_unknown_paths_and_methods_answer_in_the_one_shape(client: httpx.Client) -> None:
    for method, path, status in (("GET", "/v1/x", 404), ("GET", "/v1", 404), ("PUT", "/v1/clone", 405)):
        answer = client.request(method, path)
        assert answer.status_code == status and answer.json()["error"]["message"]


def test_log_lines_for_machines_and_for_people() -> None:
    record = logging.LogRecord("a.b", logging.INFO, __file__, 1, "said %s", ("it",), None)
    record.request_id, record.fields = "req_1", {"status": 200}
    line = json.loads(JsonFormatter("worker 0").format(record))
    assert line["message"] == "said it" and line["request_id"] == "req_1" and line["status"] == 200
    assert line["process"] == "worker 0" and line["level"] == "info" and line["time"].endswith("Z")
    assert TextFormatter().format(record).endswith("INFO a.b: said it [req_1]")
