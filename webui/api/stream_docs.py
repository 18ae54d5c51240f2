"""What `/docs` says of `/v1/stream`, for which OpenAPI has no words."""

from __future__ import annotations

from typing import Any

from webui.api.stream_messages import Start

ABOUT = """One connection is one conversation: text in pieces, as a language model writes it, and sound back while it is
still being written. JSON in text messages, sound in binary ones, one file of `response_format` a turn.
The first message is `start`."""

FROM_CLIENT = (
    ("start", "first; its fields are below"),
    (
        "text",
        "`text`: more of it; what is complete is spoken, sooner when the listener has little left to hear",
    ),
    ("flush", "speak what is there"),
    ("end", "the turn is over; `done` follows when it has been spoken"),
    ("cancel", "be silent at once; what was not yet spoken is forgotten"),
    ("resume", "after an error that is `resumable`: make the piece again"),
    ("skip", "after such an error: leave the piece out"),
    ("ping", "answered by `pong`"),
)
FROM_SERVER = (
    (
        "ready",
        "`session`, `resumed`, `received` (characters of text so far), `sample_rate`, `format`, `request_id`",
    ),
    ("piece", "`id`, `turn`, `text`, `start` in seconds: its sound follows"),
    ("piece_done", "`id`, `end`: all of its sound has been sent"),
    ("done", "`turn`, `duration`: the turn has been spoken"),
    ("cancelled", "`turn`: silence"),
    ("error", "`error` as everywhere, `resumable`, and of a piece `piece`, `text`, `retry_after`"),
    ("pong", ""),
)
CLOSED = (
    ("4400", "no usable `start`"),
    ("4401", "no valid key, or a page of another site"),
    ("4408", "nothing was said for five minutes"),
    ("4409", "another connection goes on with this session"),
    ("1013", "too busy; the error before it says when to come again"),
    ("1011", "our fault"),
)


def start_schema() -> dict[str, Any]:
    """JSON schema of the first message, with its definitions."""
    return Start.model_json_schema()
