"""Log lines for people or, one JSON object a line, for machines; each with the id of the request it belongs to."""

from __future__ import annotations

import json
import logging
import time
from contextvars import ContextVar

REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="")
_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s%(request)s"


class JsonFormatter(logging.Formatter):
    """time (ISO 8601, UTC), level, logger, message, request_id and exception where there are any, then `extra`s."""

    def __init__(self, process: str = "") -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, object] = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if self._process:
            line["process"] = self._process
        if request := getattr(record, "request_id", "") or REQUEST_ID.get():
            line["request_id"] = request
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        line.update(getattr(record, "fields", {}))
        return json.dumps(line, ensure_ascii=False, default=str)


class TextFormatter(logging.Formatter):
    """One readable line; the request's id in brackets at its end."""

    def __init__(self, process: str = "") -> None:
        super().__init__(_TEXT.replace("%(name)s", f"{process} %(name)s") if process else _TEXT)

    def format(self, record: logging.LogRecord) -> str:
        request = getattr(record, "request_id", "") or REQUEST_ID.get()
        record.request = f" [{request}]" if request else ""
        return super().format(record)


def setup_logging(as_json: bool, level: int = logging.INFO, process: str = "") -> None:
    """Send all log lines of this process to stderr in one form; replaces what was set up before."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter(process) if as_json else TextFormatter(process))
    logging.basicConfig(level=level, handlers=[handler], force=True)
