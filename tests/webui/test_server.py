"""The web application from outside: who may fetch, call and log in, and what a Python client gets."""

from __future__ import annotations

import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.webui.fake_pool import FakePool, spoken
from tests.webui.serving import Served, serving
from webui.visitors import COOKIE

pytest.importorskip("gradio")
gradio_client = pytest.importorskip("gradio_client")

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("studio")) as studio:
        yield studio


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    path = tmp_path / "clip.wav"
    with wave.open(str(path), "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(24000)
        sound.writeframes(spoken(1).tobytes())
    return path


def client_of(served: Served, folder: Path, **settings: Any) -> Any:
    return gradio_client.Client(
        served.url, verbose=False, download_files=folder, analytics_enabled=False, **settings
    )


def ask(client: Any, api_name: str, clip: Any, seed: int = 3, text: str = "Hello.") -> Any:
    """The last thing that a mode's endpoint gives; everything but these fields is left at its default."""
    found = client.view_api(return_format="dict")["named_endpoints"][f"/{api_name}"]["parameters"]
    given = {"text": text, "reference": clip, "seed": seed, "language": "en", "extra": ""}
    if api_name == "instruct":
        given["extra"] = "Speak calmly."
    names = {entry["parameter_name"] for entry in found}
    assert given.keys() <= names, names
    return client.predict(**given, api_name=f"/{api_name}")


# ------------------------------------------------------------------------------------------------- named endpoints
@pytest.mark.parametrize("mode", ["clone", "cross_lingual", "instruct"])
def test_a_python_client_drives_every_mode(served: Served, clip: Path, tmp_path: Path, mode: str) -> None:
    client = client_of(served, tmp_path)
    endpoints = client.view_api(return_format="dict")["named_endpoints"]
    assert sorted(endpoints) == ["/clone", "/cross_lingual", "/instruct"]
    outputs = ask(client, mode, gradio_client.handle_file(clip))
    (path,) = {value["value"] if isinstance(value, dict) else value for value in outputs if is_wav(value)}
    with wave.open(str(path)) as sound:
        pcm = np.frombuffer(sound.readframes(sound.getnframes()), np.int16)
    np.testing.assert_array_equal(pcm, spoken(3))
    asked = served.pool.requests[-1]
    assert (asked.mode.value, asked.text, asked.seed) == (mode, "Hello.", 3)
    assert served.studio.history.takes("") == []


def is_wav(value: Any) -> bool:
    value = value.get("value") if isinstance(value, dict) else value
    return isinstance(value, str) and value.endswith(".wav")


def call(url: str, reference: Any) -> str:
    """The events of a bare call, without the client that uploads what it names."""
    data = ["Hello.", reference, "", 1.0, 0, False, "en", "", True, "wav"]
    with httpx.Client(base_url=url, timeout=30) as client:
        number = client.post("/gradio_api/call/cross_lingual", json={"data": data}).json()["event_id"]
        return client.get(f"/gradio_api/call/cross_lingual/{number}").text


def test_a_client_cannot_have_files_of_this_machine_read(served: Served, clip: Path) -> None:
    def reference(path: str) -> dict[str, Any]:
        return {"path": path, "meta": {"_type": "gradio.FileData"}}

    before = len(served.pool.requests)
    for path in (
        "/etc/passwd",
        str(Path(__file__).resolve()),
        "README.md",
        f"{served.studio.output_dir}/x.wav",
    ):
        assert "event: error" in call(served.url, reference(path)), path
    assert len(served.pool.requests) == before
    with httpx.Client(base_url=served.url) as client:
        (uploaded,) = client.post("/gradio_api/upload", files={"files": clip.read_bytes()}).json()
    assert "event: complete" in call(served.url, reference(uploaded))
    assert len(served.pool.requests) == before + 1


# ----------------------------------------------------------------------------------------------------- what is served
def test_nothing_of_the_machine_is_served_not_even_another_s_sound(served: Served) -> None:
    (served.studio.output_dir / "20261130-031500_clone_7.wav").write_bytes(b"somebody's")
    secret = served.studio.output_dir / ".studio" / "history.sqlite3"
    paths = [
        served.studio.output_dir / "20261130-031500_clone_7.wav",
        secret,
        "/etc/passwd",
        "README.md",
        "app.py",
    ]
    with httpx.Client(base_url=served.url) as client:
        for path in paths:
            answer = client.get(f"/gradio_api/file={path}")
            assert answer.status_code in (403, 404), path
            assert "somebody" not in answer.text


def test_the_server_fetches_nothing_for_anybody(served: Served) -> None:
    with httpx.Client(base_url=served.url) as client:
        for path in ("file=http://127.0.0.1:1/x", "file=HTTPS://example.org", "proxy=http://127.0.0.1:1/x"):
            assert client.get(f"/gradio_api/{path}").status_code == 403


def test_the_page_gives_each_browser_a_cookie_of_its_own(served: Served) -> None:
    with httpx.Client(base_url=served.url) as one, httpx.Client(base_url=served.url) as two:
        for client in (one, two):
            assert client.get("/").status_code == 200
        mine = one.cookies[COOKIE]
        assert mine != two.cookies[COOKIE]
        one.get("/")
        assert one.cookies[COOKIE] == mine


# ------------------------------------------------------------------------------------------------------ other origins
def allowed(url: str, origin: str) -> tuple[str | None, str | None]:
    headers = {"Origin": origin, "Access-Control-Request-Method": "POST"}
    with httpx.Client(base_url=url) as client:
        before = client.options("/gradio_api/queue/join", headers=headers).headers
        after = client.get("/config", headers={"Origin": origin}).headers
    return before.get("access-control-allow-origin"), after.get("access-control-allow-origin")


def test_pages_of_other_sites_are_kept_out(served: Served) -> None:
    assert allowed(served.url, "https://example.org") == (None, None)


def test_every_answer_has_a_request_id(served: Served) -> None:
    """Those of the page and of the middlewares too."""
    cross = {"Origin": "https://example.org", "Access-Control-Request-Method": "POST"}
    with httpx.Client(base_url=served.url) as client:
        for answer in (
            client.get("/"),
            client.get("/gradio_api/proxy=https://example.org/"),
            client.get("/nothing"),
            client.options("/v1/clone", headers=cross),
        ):
            assert answer.headers.get_list("x-request-id")[0].startswith("req_"), answer.url
        mine = client.get("/health", headers={"X-Request-Id": "mine-1"})
        assert mine.headers.get_list("x-request-id") == ["mine-1"]


def test_chosen_sites_are_let_in(tmp_path: Path) -> None:
    with serving(tmp_path, enable_cors=("https://example.org",)) as studio:
        assert allowed(studio.url, "https://example.org") == ("https://example.org",) * 2
        assert allowed(studio.url, "https://example.com") == (None, None)


# ------------------------------------------------------------------------------------------------------------- logins
def test_with_a_password_nothing_is_had_without(
    tmp_path: Path, clip: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("webui.logins.WRONG_SECONDS", 0.0)
    with serving(tmp_path, auth=("ann:secret",)) as studio:
        with httpx.Client(base_url=studio.url) as client:
            for method, path in (("GET", "/config"), ("POST", "/gradio_api/queue/join"), ("GET", "/gradio_api/info"),
                                 ("POST", "/gradio_api/upload")):  # fmt: skip
                assert client.request(method, path, json={}).status_code == 401, path
            assert client.post("/login", data={"username": "ann", "password": "guess"}).status_code == 400
            assert client.get("/config").status_code == 401
            assert client.post("/login", data={"username": "ann", "password": "secret"}).status_code == 200
            assert client.get("/config").status_code == 200
        with pytest.raises(ValueError, match="Could not login"):
            client_of(studio, tmp_path, auth=("ann", "guess"))
        client = client_of(studio, tmp_path, auth=("ann", "secret"))
        ask(client, "cross_lingual", gradio_client.handle_file(clip))
        assert len(studio.pool.requests) == 1


# -------------------------------------------------------------------------------------------------------------- proxy
@pytest.mark.parametrize("root", ["/studio", "https://example.org/studio"])
def test_behind_a_proxy_that_keeps_or_strips_the_prefix(tmp_path: Path, root: str) -> None:
    with serving(tmp_path, root_path=root) as studio, httpx.Client(base_url=studio.url) as client:
        for path in ("/config", "/studio/config"):
            assert client.get(path).json()["root"].endswith("/studio")
        assert client.get("/studio/gradio_api/file=/etc/passwd").status_code == 403
        assert client.get("/studio/gradio_api/file=http://127.0.0.1:1/").status_code == 403
        assert COOKIE in client.get("/studio/").cookies


def test_a_flood_of_clicks_is_refused_by_the_limits_and_not_by_an_error(tmp_path: Path, clip: Path) -> None:
    from webui.limits import Limiter, VisitorLimits

    with serving(tmp_path, FakePool(chunks=2)) as studio:
        studio.studio.limiter = Limiter(VisitorLimits(per_minute=2))
        client = client_of(studio, tmp_path)
        file = gradio_client.handle_file(clip)
        told = [str(ask(client, "cross_lingual", file)) for _ in range(3)]
    assert "⚠️" not in told[0] + told[1] and "limit" in told[2] and "⚠️" in told[2]
    assert len(studio.pool.requests) == 2
