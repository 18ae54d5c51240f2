"""A hub on this machine that behaves as badly as networks do."""

from __future__ import annotations

import hashlib
import http.server
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from inference.fetch import Hub, PublicFile

CONTENT = {
    "a.bin": os.urandom(300_000),
    "sub/b.bin": os.urandom(50_000),
    "cosyvoice2.yaml": b"sample_rate: 24000\n" * 40,
}
# What would send a test to the outside world, or keep it from this machine.
VARIABLES = (
    "HF_HUB_OFFLINE MODELSCOPE_OFFLINE HF_ENDPOINT MODELSCOPE_DOMAIN COSYVOICE_MODEL_DIR HTTP_PROXY http_proxy \
ALL_PROXY all_proxy".split()
)


def public(path: str) -> PublicFile:
    return PublicFile(path, len(CONTENT[path]), hashlib.sha256(CONTENT[path]).hexdigest())


FILES = [public(path) for path in CONTENT]


class Server(http.server.ThreadingHTTPServer):
    """Serves CONTENT under /NAME/…; the first path part says how."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[tuple[str, str | None]] = []  # (path, Range) in order
        self.woken = threading.Event()  # what the "asleep" hub waits for
        self.cuts = 0  # how often the "breaks" hub still closes halfway

    def hub(self, name: str) -> Hub:
        return Hub(name, f"http://127.0.0.1:{self.server_address[1]}/{name}")

    def asked_for(self, path: str) -> list[str | None]:
        return [span for found, span in self.asked if found == path]


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        hub, _, path = self.path.lstrip("/").partition("/")
        span = self.headers.get("Range")
        self.server.asked.append((f"{hub}/{path}", span))
        if hub == "missing":
            self.send_error(404)
        elif hub == "hotel":
            self.answer(b"<html>Please log in.</html>", None)
        elif hub == "asleep":
            self.server.woken.wait(20)
        elif hub == "ill":
            self.send_error(503)
        elif hub == "moved":
            self.send_response(302)
            self.send_header("Location", f"/good/{path}")
            self.end_headers()
        elif hub == "huge":
            self.answer(CONTENT[path] + b"more", None)
        elif hub == "wrong":
            self.answer(bytes(len(CONTENT[path])), span)
        elif hub == "norange":
            self.answer(CONTENT[path], None, cut=self.cut_now(path))
        elif hub == "breaks":
            self.answer(CONTENT[path], span, cut=self.cut_now(path))
        else:
            self.answer(CONTENT[path], span)

    def cut_now(self, path: str) -> bool:
        self.server.cuts -= path.endswith(".bin")  # the file of a probe is too small to break
        return self.server.cuts >= 0 and path.endswith(".bin")

    def answer(self, body: bytes, span: str | None, cut: bool = False) -> None:
        start = int(span.removeprefix("bytes=").rstrip("-")) if span else 0
        if start >= len(body):
            self.send_error(416)
            return
        rest = body[start:]
        self.send_response(206 if span else 200)
        self.send_header("Content-Length", str(len(rest)))
        if span:
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        self.end_headers()
        self.wfile.write(rest[: len(rest) // 2] if cut else rest)
        self.close_connection = True


@contextmanager
def running_server() -> Iterator[Server]:
    """A server in a thread."""
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.woken.set()
            server.shutdown()
            thread.join()
