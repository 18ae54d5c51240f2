"""The WebSocket: text in pieces, sound while it is still being written, barge-in, errors that can be got over."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from inference.types import EngineError, Mode
from tests.webui.api.support import CLIP, Server, TonePool, eventually, tones
from webui.api.errors import ApiError
from webui.api.keys import KeyFile
from webui.api.pieces import PieceCutter
from webui.api.sessions import Sessions

pytestmark = pytest.mark.unit


class Talk:
    """A client of `/v1/stream`."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self.session = ""

    def say(self, kind: str, **more: Any) -> None:
        self._connection.send(json.dumps({"type": kind, **more}))

    def hear(self) -> dict[str, Any] | bytes:
        message = self._connection.recv(timeout=60)
        return message if isinstance(message, bytes) else json.loads(message)

    def until(self, kind: str) -> tuple[list[dict[str, Any]], bytes]:
        """(messages up to the first of `kind`, sound meanwhile)."""
        told, sound = [], b""
        while True:
            message = self.hear()
            if isinstance(message, bytes):
                sound += message
                continue
            told.append(message)
            if message["type"] == kind:
                return told, sound


@contextmanager
def talk(
    server: Server, *, started: bool = True, headers: dict[str, str] | None = None, **start: Any
) -> Iterator[Talk]:
    with connect(server.url.replace("http", "ws") + "/v1/stream", additional_headers=headers) as connection:
        talk = Talk(connection)
        if started:
            talk.say("start", **{"voice": "Anna", **start})
            ready = talk.hear()
            assert isinstance(ready, dict) and ready["type"] == "ready" and ready["sample_rate"] == 24000
            talk.session = ready["session"]
        yield talk


def test_sentences_are_heard_while_the_text_is_still_being_written(server: Server, pool: TonePool) -> None:
    with talk(server, seed=7) as client:
        for part in ("The first sen", "tence is here. And the sec"):
            client.say("text", text=part)
        told, sound = client.until("piece_done")
        np.testing.assert_array_equal(np.frombuffer(sound, np.int16), tones(7))
        assert [piece["text"] for piece in told if piece["type"] == "piece"] == [
            "The first sentence is here."
        ]
        client.say("text", text="ond one too.")
        client.say("end")
        told, sound = client.until("done")
        np.testing.assert_array_equal(np.frombuffer(sound, np.int16), tones(7))
        piece, piece_done, done = told
        assert (piece["text"], piece["start"]) == ("And the second one too.", 1.2)
        assert piece_done["end"] == done["duration"] == 2.4
        client.say("text", text="Another turn begins at nought.")
        client.say("end")
        told, _ = client.until("done")
        assert told[0]["start"] == 0 and told[0]["id"] == 2
    assert all(asked.mode is Mode.CLONE and asked.stream for asked in pool.requests)


@pytest.mark.parametrize(
    ("transcript", "told"),
    [("No.", ["transcript_doubtful"]), ("One two three four five six seven eight.", None), ("", None)],
)
def test_the_end_tells_of_a_transcript_that_does_not_fit(
    server: Server, pool: TonePool, transcript: str, told: list[str] | None
) -> None:
    pool.pause = 0.1
    clip = base64.b64encode(CLIP).decode()
    with talk(server, voice=None, reference=clip, transcript=transcript) as client:
        client.say("text", text="One sentence.")
        client.say("end")
        assert client.until("done")[0][-1].get("warnings") == told


def test_sound_comes_while_the_only_sentence_is_still_being_written(server: Server) -> None:
    words = "the rain had not stopped for days and nobody knew when it would and so they all stayed".split()
    with talk(server) as client:
        for word in words:
            client.say("text", text=word + " ")
        told, sound = client.until("piece_done")
        assert told[0]["type"] == "piece" and len(sound) > 0
        client.say("text", text="at home.")
        client.say("end")
        told += client.until("done")[0]
    pieces = [message["text"] for message in told if message["type"] == "piece"]
    assert " ".join(pieces) == " ".join(words) + " at home." and len(pieces) > 1


def test_who_runs_dry_hears_the_next_clause(server: Server, pool: TonePool) -> None:
    pool.sentences = 1  # 0.6 s, less than what he should be ahead
    with talk(server) as client:
        client.say("text", text="The first sentence is here. When all of it was over, they ")
        client.until("piece_done")
        assert client.until("piece_done")[0][0]["text"] == "When all of it was over,"


def test_who_has_enough_to_hear_gets_whole_sentences(server: Server, pool: TonePool) -> None:
    pool.sentences = 100  # a minute
    with talk(server) as client:
        client.say("text", text="The first sentence is here. When all of it was over, they ")
        client.until("piece_done")
        client.say("text", text="went home. ")
        assert client.until("piece_done")[0][0]["text"] == "When all of it was over, they went home."


def test_text_that_comes_after_the_end_waits_for_its_turn(server: Server, pool: TonePool) -> None:
    pool.pause = 0.02
    with talk(server) as client:
        for _ in range(2):
            client.say("text", text="Some sentence of a turn.")
            client.say("end")
        first, second = client.until("done")[0], client.until("done")[0]
        assert [message["type"] for message in first] == ["piece", "piece_done", "done"]
        assert [message.get("id") for message in second] == [1, 1, None]


def test_the_next_piece_is_made_while_one_is_heard(server: Server, pool: TonePool) -> None:
    pool.pause = 0.03
    with talk(server) as client:
        client.say("text", text="One sentence here. Another sentence here. And a third one here. ")
        client.until("piece")
        eventually(lambda: len(pool.requests) == 2)
        assert pool.finished == 0
        client.say("end")
        told, _ = client.until("done")
    assert [message["id"] for message in told if message["type"] == "piece_done"] == [0, 1, 2]


def test_barging_in_is_silence_at_once(server: Server, pool: TonePool) -> None:
    pool.pause, pool.sentences = 0.02, 1000
    with talk(server) as client:
        client.say("text", text="A long story begins. And it goes on and on.")
        client.until("piece")
        client.say("cancel")
        client.until("cancelled")
        eventually(lambda: pool.running == 0)
        pool.sentences = 1
        client.say("text", text="Now something else is said.")
        client.say("end")
        told, _ = client.until("done")
        assert told[0]["text"] == "Now something else is said."


def test_leaving_ends_the_work(server: Server, pool: TonePool) -> None:
    pool.pause, pool.sentences = 0.02, 1000
    with talk(server) as client:
        client.say("text", text="A long story begins. And it goes on and on.")
        client.until("piece")
    eventually(lambda: pool.running == 0)


# ------------------------------------------------------------------------------------- connections that break
TEXT = "The first sentence is here. The second one is here. And a thi"


def broken_after_the_first_piece(server: Server, pool: TonePool) -> str:
    """The session of a client whose network failed while the second piece was in work."""
    pool.pause, pool.sentences = 0.02, 1
    with talk(server, seed=7) as client:
        client.say("text", text=TEXT)
        client.until("piece_done")
        client._connection.socket.shutdown(socket.SHUT_RDWR)
    eventually(lambda: pool.running == 0)
    return client.session


def test_a_client_whose_connection_broke_goes_on(server: Server, pool: TonePool) -> None:
    session = broken_after_the_first_piece(server, pool)
    with talk(server, started=False) as client:
        client.say("start", session=session, after=0)
        ready = client.hear()
        assert isinstance(ready, dict) and ready["resumed"] and ready["received"] == len(TEXT)
        assert ready["session"] == session
        client.say("text", text="rd one.")
        client.say("end")
        told, sound = client.until("done")
    pieces = {message["id"]: message["text"] for message in told if message["type"] == "piece"}
    assert pieces == {1: "The second one is here.", 2: "And a third one."}
    assert told[-1] == {"type": "done", "turn": 0, "duration": 1.2}
    np.testing.assert_array_equal(np.frombuffer(sound, np.int16), np.tile(tones(7, 3), 2))


def test_what_was_ended_but_not_heard_is_told_again(server: Server, pool: TonePool) -> None:
    with talk(server) as client:
        client.say("text", text="All of it is said.")
        client.say("end")
        client.until("done")
        client._connection.socket.shutdown(socket.SHUT_RDWR)
    with talk(server, started=False) as second:
        second.say("start", session=client.session, after=0)
        assert second.until("done")[0][1:] == [{"type": "done", "turn": 0, "duration": 0.0}]
        second.say("text", text="A new turn is begun.")
        second.say("end")
        told, _ = second.until("done")
        assert (told[0]["id"], told[0]["turn"]) == (1, 1)


def test_a_new_connection_takes_over_from_one_that_seems_alive(server: Server, pool: TonePool) -> None:
    pool.pause, pool.sentences = 0.02, 1000
    with talk(server) as first, talk(server, started=False) as second:
        first.say("text", text="A long story begins.")
        first.until("piece")
        pool.sentences = 1
        second.say("start", session=first.session)
        told, _ = second.until("piece_done")
        assert told[1]["text"] == "A long story begins."
        with pytest.raises(ConnectionClosed) as closed:
            while True:
                first.hear()
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 4409
    eventually(lambda: pool.running == 0)


def test_nobody_else_can_go_on(server: Server, pool: TonePool) -> None:
    session = broken_after_the_first_piece(server, pool)
    _, secret = KeyFile(server.options.api_keys).add("somebody else")
    for name in (session, "made up"):
        with talk(server, started=False) as client:
            client.say("start", session=name, api_key=secret)
            assert client.until("error")[0][0]["error"]["code"] == "session_unknown"


def test_who_said_good_bye_is_forgotten(server: Server) -> None:
    with talk(server) as client:
        client.say("text", text="Only half a")
    with talk(server, started=False) as second:
        second.say("start", session=client.session)
        assert second.until("error")[0][0]["error"]["code"] == "session_unknown"


def test_sessions_do_not_wait_for_ever() -> None:
    now = [0.0]
    sessions, left = Sessions(lambda: now[0]), cast(Any, SimpleNamespace(caller="me"))

    async def take() -> None:
        for number in range(40):
            session = cast(Any, object())
            sessions.end(sessions.begin(session, str(number)), session, left)
        assert await sessions.take("39", "me") is left
        for name in ("39", "0"):  # taken, and one too many
            with pytest.raises(ApiError):
                await sessions.take(name, "me")
        now[0] = 61.0
        with pytest.raises(ApiError):
            await sessions.take("38", "me")

    asyncio.run(take())


def test_who_takes_nothing_is_left(
    server: Server, pool: TonePool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("webui.api.stream_wire.STALL_SECONDS", 0.3)
    caplog.set_level("INFO")
    pool.sentences = 2000  # some 60 MB
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        lines = ("GET /v1/stream HTTP/1.1", "Host: 127.0.0.1", "Upgrade: websocket", "Connection: Upgrade",
                 "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==", "", "")  # fmt: skip
        connection.sendall("\r\n".join(lines).encode())
        assert connection.recv(12) == b"HTTP/1.1 101"
        for message in (
            {"type": "start", "voice": "Anna"},
            {"type": "text", "text": "So it begins. It goes on."},
        ):
            data = json.dumps(message).encode()
            connection.sendall(
                bytes([0x81, 0x80 | len(data), 0, 0, 0, 0]) + data
            )  # a frame with a mask of zeros
        eventually(lambda: "takes nothing" in caplog.text and "The listener has gone, maybe" in caplog.text)
        eventually(lambda: pool.running == 0)


@pytest.mark.parametrize(("decision", "heard"), [("resume", [0, 1]), ("skip", [1])])
def test_a_piece_that_failed_can_be_tried_again_or_left_out(
    server: Server, pool: TonePool, decision: str, heard: list[int]
) -> None:
    pool.fail_at, pool.error = 0, EngineError("worker_lost", "It was lost.")
    with talk(server) as client:
        client.say("text", text="The first sentence. The second sentence.")
        client.say("end")
        (error,), _ = client.until("error")
        assert error["resumable"] and error["piece"] == 0 and error["error"]["code"] == "worker_lost"
        assert error["retry_after"] >= 1
        pool.fail_at = None
        client.say(decision)
        # The next piece was in work already and may have failed too.
        told = []
        while (message := client.hear()) and (isinstance(message, bytes) or message["type"] != "done"):
            if not isinstance(message, bytes):
                told.append(message)
                if message["type"] == "error":
                    client.say("resume")
    assert [message["id"] for message in told if message["type"] == "piece_done"] == heard


def test_when_busy_the_piece_waits_for_the_client(server: Server, pool: TonePool) -> None:
    pool.places = 0
    with talk(server) as client:
        client.say("text", text="Nobody has time for this.")
        client.say("end")
        (error,), _ = client.until("error")
        assert error["error"]["code"] == "busy" and error["resumable"]
        pool.places = 1
        client.say("resume")
        assert client.until("done")[1]


def test_a_pause_of_the_writer_ends_a_sentence(server: Server, pool: TonePool) -> None:
    with talk(server) as client:
        client.say("text", text="Is that all?")
        assert client.until("piece_done")[0][0]["text"] == "Is that all?"


def test_silent_pieces_are_left_out(server: Server, pool: TonePool) -> None:
    with talk(server) as client:
        client.say("text", text="!!!!!!! ?????? ")
        client.say("end")
        assert client.until("done")[0] == [{"type": "done", "turn": 0, "duration": 0.0}]


@pytest.mark.parametrize("audio_format", ["mp3", "opus", "aac", "flac", "wav"])
def test_every_turn_is_one_file(server: Server, audio_format: str) -> None:
    from tests.webui.api.test_speech import decoded

    with talk(server, response_format=audio_format, seed=3) as client:
        for _ in range(2):
            client.say("text", text="One sentence of it. And another sentence.")
            client.say("end")
            sound = decoded(client.until("done")[1])
            assert 2.4 <= len(sound) / 24000 < 2.5


@pytest.mark.parametrize(
    ("first", "code"),
    [
        ({"type": "text", "text": "Hi."}, "start_missing"),
        ({"type": "start"}, "invalid_request"),
        ({"type": "start", "voice": "nobody"}, "voice_unknown"),
        ({"type": "start", "voice": "Anna", "reference": "aGk="}, "invalid_request"),
        ({"type": "dance"}, "invalid_request"),
    ],
)
def test_what_cannot_begin_is_told_and_closed(server: Server, first: dict[str, Any], code: str) -> None:
    with talk(server, started=False) as client:
        client.say(first.pop("type"), **first)
        (error,), _ = client.until("error")
        assert error["error"]["code"] == code and not error["resumable"]
        with pytest.raises(ConnectionClosed):
            client.hear()


def test_nonsense_in_the_middle_is_told_and_the_session_goes_on(server: Server) -> None:
    with talk(server) as client:
        client._connection.send("{")
        assert client.until("error")[0][0]["error"]["code"] == "invalid_request"
        client.say("resume")
        assert client.until("error")[0][0]["error"]["code"] == "nothing_to_resume"
        client.say("ping")
        assert client.hear() == {"type": "pong"}


def test_keys_come_in_a_header_or_in_the_first_message(server: Server) -> None:
    _, secret = KeyFile(server.options.api_keys).add("talker", characters_per_day=30)
    with talk(server, headers={"Authorization": f"Bearer {secret}"}):
        pass
    with talk(server, api_key=secret) as client:
        client.say("text", text="This is short enough. But this is more than there is left. ")
        told, _ = client.until("error")
        assert told[-1]["error"]["code"] == "characters_used_up" and told[-1]["piece"] == 1
    for more, code in (({}, "key_missing"), ({"api_key": "wrong"}, "bad_key")):
        with talk(server, started=False) as client:
            client.say("start", voice="Anna", **more)
            assert client.until("error")[0][0]["error"]["code"] == code


def test_pages_of_other_sites_are_refused(server: Server) -> None:
    with pytest.raises(InvalidStatus):
        with talk(server, headers={"Origin": "https://elsewhere.example"}):
            pass


@pytest.mark.parametrize(
    ("parts", "pieces"),
    [
        (["Pi is 3.", "14 or so. Yes"], ["Pi is 3.14 or so."]),
        (["你好，今天", "天气很好。我们"], ["你好，今天天气很好。"]),
        (["Mr. Smith came in. "], ["Mr. Smith came in."]),
        (["Oh. Really now? "], ["Oh. Really now?"]),
        (['"Stop it!" she said. '], ['"Stop it!"', "she said."]),
        (["see example.org for it"], []),
    ],
)
def test_where_text_is_cut(parts: list[str], pieces: list[str]) -> None:
    cutter = PieceCutter()
    assert [piece for part in parts for piece in cutter.push(part)] == pieces


@pytest.mark.parametrize(
    ("parts", "pieces"),
    [
        (["我们今天去公园玩好不好，", "然后"], ["我们今天去公园玩好不好，"]),
        (["When the rain had stopped, he "], ["When the rain had stopped,"]),
        (["Well, he "], []),
        (["The quick brown fox jumps over the lazy dog and the cat and the mouse and every ", "ot"],
         ["The quick brown fox jumps over the lazy dog and the cat and the mouse and"]),
        (["春眠不觉晓处处闻啼鸟夜来风雨声花落知多少床前明月光疑是地上霜举头", "望"],
         ["春眠不觉晓处处闻啼鸟夜来风雨声花落知多少床前明月光疑是地上霜"]),
    ],
)  # fmt: skip
def test_who_hears_nothing_gets_less_than_a_sentence_once(parts: list[str], pieces: list[str]) -> None:
    cutter = PieceCutter()
    assert [piece for part in parts for piece in cutter.push(part, hungry=True)][:1] == pieces
    patient = PieceCutter()
    assert not [piece for part in parts for piece in patient.push(part)]
    assert patient.cut(hungry=True) == pieces


def test_nothing_of_the_text_is_lost() -> None:
    text = "Ein Satz, der sehr lang ist und " * 40 + "然后呢我们继续说下去" * 40 + "End. Of 3.5 it! " * 3
    cutter, pieces = PieceCutter(), []
    for start in range(0, len(text), 7):
        pieces += cutter.push(text[start : start + 7])
    pieces += cutter.flush()
    assert "".join("".join(pieces).split()) == "".join(text.split())
    assert max(map(len, pieces)) <= 320  # spaces do not count
