"""Gradio's scripts and styles from memory: what is answered, how, and what is left to the application."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from webui.page_assets import PageAssets, assets_folder

pytestmark = pytest.mark.unit

SCRIPT = "console.log('there');" * 100


@pytest.fixture
def client(tmp_path: Path) -> TestClient:
    folder = tmp_path / "assets"
    folder.mkdir()
    (folder / "index-DphvyggB.js").write_text(SCRIPT, encoding="utf-8")
    (folder / "StaticAudio--bxdEY9d.css").write_text("a {}", encoding="utf-8")
    (folder / "plain.js").write_text("1", encoding="utf-8")
    (tmp_path / "secret-DphvyggB.js").write_text("secret", encoding="utf-8")
    app = Starlette(routes=[Route("/{path:path}", lambda request: PlainTextResponse("the application"))])
    app.add_middleware(PageAssets, folder=folder)
    return TestClient(app)


def test_a_lasting_file_is_compressed_and_kept(client: TestClient) -> None:
    with client.stream("GET", "/assets/index-DphvyggB.js") as answer:
        packed = b"".join(answer.iter_raw())
    assert answer.headers["content-encoding"] == "gzip" and int(answer.headers["content-length"]) == len(
        packed
    )
    assert gzip.decompress(packed).decode() == SCRIPT and len(packed) < len(SCRIPT) // 5
    assert answer.headers["content-type"].startswith("text/javascript")
    assert "immutable" in answer.headers["cache-control"] and answer.headers["vary"] == "Accept-Encoding"


def test_who_cannot_unpack_gets_it_plain(client: TestClient) -> None:
    for _ in range(2):
        answer = client.get("/assets/index-DphvyggB.js", headers={"accept-encoding": "identity"})
        assert answer.text == SCRIPT and "content-encoding" not in answer.headers
    assert client.get("/assets/StaticAudio--bxdEY9d.css").headers["content-type"].startswith("text/css")


@pytest.mark.parametrize(
    "path",
    [
        "/assets/plain.js",  # may change
        "/assets/other-DphvyggB.js",  # is not there
        "/assets/../secret-DphvyggB.js",
        "/assets/%2e%2e/secret-DphvyggB.js",
        "/assets/..%2fsecret-DphvyggB.js",
        "/index-DphvyggB.js",
    ],
)
def test_everything_else_is_for_the_application(client: TestClient, path: str) -> None:
    assert client.get(path).text == "the application"
    assert client.post("/assets/index-DphvyggB.js").text != SCRIPT


def test_this_gradio_s_page_is_made_of_such_files() -> None:
    folder = assets_folder()
    assert folder is not None
    page = (folder.parent / "index.html").read_text(encoding="utf-8")
    named = re.findall(r"/assets/([\w.-]+\.(?:js|css))", page)
    middleware = PageAssets(Starlette(), folder)
    assert named and all(middleware._find(name) is not None for name in named)
