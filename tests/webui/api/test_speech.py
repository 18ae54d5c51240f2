"""OpenAI's endpoint by OpenAI's own client: formats, streaming, voices, errors."""

from __future__ import annotations

import base64
import io
import json
import time
import wave
from http.client import HTTPConnection

import av
import httpx
import numpy as np
import openai
import pytest

from inference.types import Mode
from tests.webui.api.support import RATE, Server, TonePool, eventually, pitch, tones
from webui.api.keys import KeyFile

pytestmark = pytest.mark.unit

SPEECH = "/v1/audio/speech"


@pytest.fixture
def talker(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=30)


def decoded(data: bytes) -> np.ndarray:
    """(n,) int16 samples at 24 kHz of a file in any format."""
    resampler = av.AudioResampler("s16", "mono", RATE)
    with av.open(io.BytesIO(data)) as container:
        frames = [part for frame in container.decode(audio=0) for part in resampler.resample(frame)]
        frames += resampler.resample(None)
    return np.concatenate([frame.to_ndarray()[0] for frame in frames])


@pytest.fixture
def local(server: Server) -> openai.OpenAI:
    """As `talker`, of a server that knows the key: OpenAI's client always sends one."""
    _, secret = KeyFile(server.options.api_keys).add("test")
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=secret, max_retries=0, timeout=30)


@pytest.mark.parametrize("audio_format", ["mp3", "opus", "aac", "flac", "wav", "pcm"])
def test_every_format_is_the_sound_by_the_official_client(local: openai.OpenAI, audio_format: str) -> None:
    answer = local.audio.speech.create(
        model="tts-1", voice="Anna", input="Hello.", response_format=audio_format, extra_body={"seed": 30}
    )
    data = answer.read()
    sound = np.frombuffer(data, "<i2") if audio_format == "pcm" else decoded(data)
    assert abs(pitch(sound) - 500) < 5  # the tone of seed 30
    assert 0 <= len(sound) / RATE - 1.2 < 0.1  # encoders of mp3 and aac pad
    if audio_format in ("flac", "wav", "pcm"):
        np.testing.assert_array_equal(sound, tones(30))


def test_a_streamed_wav_is_read_by_the_standard_library(client: httpx.Client) -> None:
    data = client.post(SPEECH, json={"input": "Hi.", "voice": "Anna", "response_format": "wav"}).content
    with wave.open(io.BytesIO(data)) as file:
        assert file.getframerate() == RATE and file.getnchannels() == 1
        np.testing.assert_array_equal(np.frombuffer(file.readframes(10**9), np.int16), tones(0))


@pytest.mark.parametrize("audio_format", ["mp3", "opus", "aac", "flac", "wav", "pcm"])
def test_the_first_bytes_come_long_before_the_last(
    pool: TonePool, local: openai.OpenAI, audio_format: str
) -> None:
    pool.pause = 0.1
    arrived = []
    with local.audio.speech.with_streaming_response.create(
        model="tts-1", voice="Anna", input="Hi.", response_format=audio_format
    ) as answer:
        for data in answer.iter_bytes(None):
            arrived.append((pool.finished, len(data)))
    assert arrived[0][0] == 0 and len(arrived) >= 4  # heard while the pool was still at work


def test_server_sent_events_carry_the_same_sound(client: httpx.Client) -> None:
    body = {"input": "Hi.", "voice": "Anna", "response_format": "pcm", "stream_format": "sse"}
    answer = client.post(SPEECH, json=body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = [json.loads(line[6:]) for line in answer.text.split("\n\n") if line]
    sound = b"".join(base64.b64decode(event["audio"]) for event in events[:-1])
    np.testing.assert_array_equal(np.frombuffer(sound, "<i2"), tones(0))
    assert {event["type"] for event in events[:-1]} == {"speech.audio.delta"}
    assert events[-1]["type"] == "speech.audio.done" and events[-1]["usage"]["total_tokens"] == 3 + 30


@pytest.mark.parametrize(
    ("voice", "instructions", "mode"),
    [
        ("Anna", None, Mode.CLONE),
        ("Bert", None, Mode.CROSS_LINGUAL),
        ("anna", "softly", Mode.INSTRUCT),
        ({"id": "Anna"}, None, Mode.CLONE),
        ("narrator", None, Mode.PRESET),
    ],
)
def test_the_mode_fits_the_voice(
    client: httpx.Client, pool: TonePool, voice: object, instructions: str | None, mode: Mode
) -> None:
    body = {"input": "Hi.", "voice": voice, "instructions": instructions, "seed": 4}
    assert client.post(SPEECH, json=body).status_code == 200
    (asked,) = pool.requests
    assert asked.mode is mode and asked.stream and asked.seed == 4
    assert asked.instruction == (instructions or "")


@pytest.mark.parametrize("speed", [0.25, 0.4, 1.5, 3.0, 4.0])
def test_speeds_beyond_the_model_stretch_the_sound_and_keep_its_pitch(
    client: httpx.Client, pool: TonePool, speed: float
) -> None:
    body = {"input": "Hi.", "voice": "Anna", "response_format": "wav", "speed": speed, "seed": 30}
    sound = decoded(client.post(SPEECH, json=body).content)
    (asked,) = pool.requests
    assert asked.speed == min(2.0, max(0.5, speed))
    assert (
        abs(len(sound) / RATE - 1.2 * asked.speed / speed) < 0.05
    )  # the tones are not the model's to speed up
    assert abs(pitch(sound) - 500) < 10


def test_models_and_voices(local: openai.OpenAI, client: httpx.Client, server: Server) -> None:
    assert "tts-1" in [model.id for model in local.models.list()]
    assert local.models.retrieve("cosyvoice2").id == "cosyvoice2"
    header = {"Authorization": f"Bearer {local.api_key}"}
    voices = client.get("/v1/audio/voices", headers=header).json()["voices"]
    assert [(voice["name"], voice["kind"]) for voice in voices] == [
        ("Anna", "saved"),
        ("Bert", "saved"),
        ("narrator", "preset"),
    ]


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({"voice": "nobody"}, 404, "voice_unknown"),
        ({"model": "gpt-9"}, 404, "model_not_found"),
        ({"input": ""}, 422, "invalid_request"),
        ({"input": "!!!"}, 400, "nothing_to_speak"),
        ({"input": "x" * 6000}, 422, "invalid_request"),
        ({"speed": 9}, 422, "invalid_request"),
        ({"response_format": "ogg"}, 422, "invalid_request"),
        ({"voice": "narrator", "instructions": "softly"}, 400, "preset_cannot_follow"),
    ],
)
def test_what_is_wrong_is_said_in_one_shape(
    client: httpx.Client, change: dict[str, object], status: int, code: str
) -> None:
    answer = client.post(SPEECH, json={"input": "Hi.", "voice": "Anna", **change})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (status, code)
    assert error["message"] and error["type"] and error["request_id"] == answer.headers["x-request-id"]
    if status == 422:
        assert error["param"] == next(iter(change))


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b'{"voice": "Anna', "application/json"),
        (b"x=1", "application/x-www-form-urlencoded"),
        (b"[]", "application/json"),
    ],
)
def test_a_body_that_is_no_object_is_called_so(client: httpx.Client, content: bytes, kind: str) -> None:
    answer = client.post(SPEECH, content=content, headers={"Content-Type": kind})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (422, "invalid_request", None)
    assert "no JSON object" in error["message"]


def test_the_official_client_raises_its_own_errors(talker: openai.OpenAI, local: openai.OpenAI) -> None:
    with pytest.raises(openai.AuthenticationError, match="not known"):
        talker.audio.speech.create(model="tts-1", voice="Anna", input="Hi.")
    with pytest.raises(openai.NotFoundError, match="Saved voices: Anna, Bert"):
        local.audio.speech.create(model="tts-1", voice="alloy", input="Hi.")


def test_busy_is_told_before_any_sound(client: httpx.Client, pool: TonePool) -> None:
    pool.places = 0
    answer = client.post(SPEECH, json={"input": "Hi.", "voice": "Anna"})
    assert answer.status_code == 503 and answer.json()["error"]["code"] == "busy"
    assert int(answer.headers["retry-after"]) >= 1


def test_who_waits_too_long_in_the_queue_is_told_to_come_again(
    client: httpx.Client, pool: TonePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("webui.api.answers.QUEUE_PATIENCE", 0.05)
    monkeypatch.setattr("webui.api.answers.PATIENCE", 0.4)
    body = {"input": "Hi.", "voice": "Anna", "response_format": "pcm"}
    pool.pause = 0.1
    assert client.post(SPEECH, json=body).status_code == 200  # it is its turn
    pool.pause = 1.0
    assert client.post(SPEECH, json=body).status_code == 503
    pool.pause, pool.position = 0.1, 3
    answer = client.post(SPEECH, json=body)
    assert answer.status_code == 503 and answer.json()["error"]["code"] == "too_slow"
    assert answer.headers["retry-after"]
    eventually(lambda: pool.running == 0)


def test_a_failure_before_the_first_sound_is_a_status(client: httpx.Client, pool: TonePool) -> None:
    pool.fail_at = 0
    answer = client.post(SPEECH, json={"input": "Hi.", "voice": "Anna"})
    assert answer.status_code == 500 and answer.json()["error"]["code"] == "engine_failed"


def test_a_bug_is_told_without_its_insides(client: httpx.Client, pool: TonePool) -> None:
    pool.fail_at, pool.error = 0, ZeroDivisionError("a secret")
    answer = client.post(SPEECH, json={"input": "Hi.", "voice": "Anna"})
    assert answer.status_code == 500 and "secret" not in answer.text and "Traceback" not in answer.text


def test_a_failure_in_the_middle_never_looks_like_an_end(client: httpx.Client, pool: TonePool) -> None:
    pool.fail_at = 2
    body = {"input": "Hi.", "voice": "Anna", "response_format": "wav"}
    with pytest.raises(httpx.RemoteProtocolError):
        client.post(SPEECH, json=body)
    events = client.post(SPEECH, json={**body, "stream_format": "sse"}).text
    assert '"type": "error"' in events and "engine_failed" in events and "audio.done" not in events


def test_leaving_ends_the_work(client: httpx.Client, pool: TonePool) -> None:
    pool.pause, pool.sentences = 0.05, 1000
    body = {"input": "Hi.", "voice": "Anna", "response_format": "pcm"}
    with client.stream("POST", SPEECH, json=body) as answer:
        sound = answer.iter_raw()  # a name, as the end of this iterator ends the connection
        next(sound)
        assert pool.running == 1
    eventually(lambda: pool.running == 0)
    assert pool.given_up == 1


def test_leaving_before_the_first_sound_ends_the_work_too(client: httpx.Client, pool: TonePool) -> None:
    pool.pause = 30
    caller = HTTPConnection(client.base_url.host, client.base_url.port)
    body = json.dumps({"input": "Hi.", "voice": "Anna"})
    caller.request("POST", SPEECH, body, {"Content-Type": "application/json"})
    eventually(lambda: pool.running == 1)
    caller.close()
    eventually(lambda: pool.running == 0)
    assert pool.given_up == 1


def test_a_slow_reader_holds_no_place(client: httpx.Client, pool: TonePool) -> None:
    pool.sentences = 200  # 5.8 MB: more than what sockets hold
    body = {"input": "Hi.", "voice": "Anna", "response_format": "pcm"}
    with client.stream("POST", SPEECH, json=body) as answer:
        chunks = answer.iter_raw(1000)
        first = next(chunks)
        eventually(lambda: pool.running == 0)
        assert pool.finished == 1
        time.sleep(0.1)
        assert len(first) + sum(len(chunk) for chunk in chunks) == 2 * 4800 * 600
