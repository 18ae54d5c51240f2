"""No address that a visitor names is fetched: only what they have uploaded is read."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.webui.serving import Served
from tests.webui.test_server import client_of
from tests.webui.test_server import clip as clip
from tests.webui.test_server import served as served
from webui.own_files import LARGEST, names_an_address

pytest.importorskip("gradio")
gradio_client = pytest.importorskip("gradio_client")

pytestmark = pytest.mark.unit


@contextmanager
def elsewhere() -> Iterator[tuple[str, list[str]]]:
    """A server of somebody else's: its address, and what it is asked for."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/clip.wav", asked
    finally:
        server.shutdown()
        server.server_close()


def data(reference: Any) -> list[Any]:
    return ["Hello.", reference, "", 1.0, 0, False, "en", "", True, "wav"]


def test_an_address_is_refused_however_it_is_named(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fetch(url: str, *_: Any, **__: Any) -> str:
        raise AssertionError(f"{url} would have been fetched")

    import gradio.processing_utils as processing

    monkeypatch.setattr(processing, "async_ssrf_protected_download", fetch, raising=True)
    meta = {"_type": "gradio.FileData"}
    with elsewhere() as (address, asked), httpx.Client(base_url=served.url, timeout=30) as client:
        for reference in (
            {"path": address, "meta": meta},
            {"path": "https://example.org/voice.mp3", "meta": meta},
            {"url": address, "meta": meta},
            {"path": "", "url": address, "meta": meta},
            [{"path": address, "meta": meta, "is_stream": True}],
        ):
            answer = client.post("/gradio_api/call/cross_lingual", json={"data": data(reference)})
            assert answer.status_code == 400 and "Upload the file" in answer.text, reference
            joined = {"data": data(reference), "fn_index": 0, "session_hash": "x"}
            for kind in ("application/json", "text/plain", ""):
                content = json.dumps(joined).replace("http:", "http\\u003a")  # the same, written otherwise
                headers = {"content-type": kind} if kind else {}
                answer = client.post("/gradio_api/queue/join", content=content, headers=headers)
                assert answer.status_code == 400, (reference, kind)
        assert asked == []
    assert served.pool.requests == []


def test_a_python_client_is_refused_and_its_own_upload_is_taken(
    served: Served, clip: Path, tmp_path: Path
) -> None:
    client = client_of(served, tmp_path)
    given = {"text": "Hello.", "extra": "", "seed": 3, "language": "en", "api_name": "/cross_lingual"}
    before = len(served.pool.requests)
    with elsewhere() as (address, asked):
        with pytest.raises(Exception):  # noqa: B017  (what it raises depends on its version)
            client.predict(reference={"path": address, "meta": {"_type": "gradio.FileData"}}, **given)
        assert asked == [] and len(served.pool.requests) == before
    client.predict(reference=gradio_client.handle_file(clip), **given)
    assert len(served.pool.requests) == before + 1


def test_a_call_that_is_far_too_long_is_not_read(served: Served) -> None:
    with httpx.Client(base_url=served.url, timeout=30) as client:
        answer = client.post("/gradio_api/call/cross_lingual", content=b" " * (LARGEST + 1))
        assert answer.status_code == 413


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (
            {"data": [{"path": "/tmp/x.wav", "url": "http://127.0.0.1:7860/gradio_api/file=/tmp/x.wav"}]},
            False,
        ),
        ({"data": ["http://example.org is only a text"]}, False),
        ({"data": [{"path": "/tmp/x.wav", "url": None}]}, False),
        ({"data": [{"path": " HTTPS://example.org/x"}]}, True),
        ({"data": [[{"video": {"path": "file:///etc/passwd"}}]]}, True),
        ([{"url": "//example.org/x"}], True),
    ],
)
def test_what_counts_as_an_address(call: Any, named: bool) -> None:
    assert names_an_address(json.dumps(call).encode()) is named


def test_what_is_no_json_is_left_to_gradio() -> None:
    assert not names_an_address(b"\xff{") and not names_an_address(b"[" * 100_000)
