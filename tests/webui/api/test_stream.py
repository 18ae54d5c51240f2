"""The WebSocket: text in pieces, sound while it is still being written, barge-in, errors that can be got over."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from inference.types import EngineError, Mode
from tests.webui.api.support import Server, TonePool, eventually, tones
from webui.api.keys import KeyFile
from webui.api.pieces import PieceCutter

pytestmark = pytest.mark.unit


class Talk:
    """A client of `/v1/stream`."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection

    def say(self, kind: str, **more: Any) -> None:
        self._connection.send(json.dumps({"type": kind, **more}))

    def hear(self) -> dict[str, Any] | bytes:
        message = self._connection.recv(timeout=10)
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
        assert client.until("done")[0] == [{"type": "done", "duration": 0.0}]


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
        (["我们今天去公园玩好不好，", "然后"], ["我们今天去公园玩好不好，"]),
        (["Mr. Smith came in. "], ["Mr. Smith came in."]),
        (["Oh. Really now? "], ["Oh. Really now?"]),
        (['"Stop it!" she said. '], ['"Stop it!"', "she said."]),
        (["see example.org for it"], []),
    ],
)
def test_where_text_is_cut(parts: list[str], pieces: list[str]) -> None:
    cutter = PieceCutter()
    assert [piece for part in parts for piece in cutter.push(part)] == pieces


def test_nothing_of_the_text_is_lost() -> None:
    text = "Ein Satz, der sehr lang ist und " * 40 + "然后呢我们继续说下去" * 40 + "End. Of 3.5 it! " * 3
    cutter, pieces = PieceCutter(), []
    for start in range(0, len(text), 7):
        pieces += cutter.push(text[start : start + 7])
    pieces += cutter.flush()
    assert "".join("".join(pieces).split()) == "".join(text.split())
    assert max(map(len, pieces)) <= 320  # spaces do not count
