"""Log lines of every process in one form, with the request that they belong to."""

from __future__ import annotations

import json
import logging

import pytest

from inference.board import Board
from inference.live_request import LiveRequest
from inference.logs import REQUEST_ID, setup_logging
from inference.types import Mode, SynthesisRequest

pytestmark = pytest.mark.unit


def test_lines_for_machines(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging(True, process="worker 0")
    token = REQUEST_ID.set("req_5")
    try:
        raise ValueError("a fault")
    except ValueError:
        logging.getLogger("x").exception("it broke")
    finally:
        REQUEST_ID.reset(token)
    line = json.loads(capsys.readouterr().err)
    assert (line["message"], line["process"], line["request_id"]) == ("it broke", "worker 0", "req_5")
    assert "ValueError: a fault" in line["exception"]


def test_lines_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging(False, logging.WARNING, "worker 0")
    logging.getLogger("x").info("not told")
    logging.getLogger("x").warning("told")
    assert capsys.readouterr().err.endswith("WARNING worker 0 x: told\n")


def test_a_workers_board_names_the_request_of_a_key() -> None:
    board = Board(lambda message: None, 24000, 2)
    board.live[3] = LiveRequest(3, SynthesisRequest(Mode.CLONE, "Hi.", request_id="req_5"), 0)
    board.live[4] = LiveRequest(4, SynthesisRequest(Mode.CLONE, "Hi."), 1)
    assert board.named(3) == " for request req_5"
    assert board.named(4) == board.named(5) == ""
