"""Who is let in, and how much each may do."""

from __future__ import annotations

import asyncio
import json
import stat
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from starlette.requests import HTTPConnection

from inference.types import RequestError
from tests.webui.api.support import Server, TonePool, eventually, serving
from webui.api import keys as keys_command
from webui.api.access import Access, ApiCaller
from webui.api.errors import ApiError, as_api_error
from webui.api.keys import KeyFile
from webui.api.quota import Quota, QuotaBook
from webui.limits import Limiter, VisitorLimits
from webui.logins import Logins

pytestmark = pytest.mark.unit

BODY = {"input": "Hi.", "voice": "Anna", "response_format": "pcm"}


def connection(client: str = "127.0.0.1", host: str = "localhost:7860", **headers: str) -> HTTPConnection:
    raw = [
        (name.replace("_", "-").encode(), value.encode()) for name, value in {"host": host, **headers}.items()
    ]
    return HTTPConnection({"type": "http", "headers": raw, "client": (client, 5)})


def refused(call: Callable[[], object]) -> tuple[int, str]:
    with pytest.raises(ApiError) as raised:
        call()
    return raised.value.status, raised.value.code


@pytest.fixture
def keys(tmp_path: Path) -> KeyFile:
    return KeyFile(tmp_path / "keys.json")


# ------------------------------------------------------------------------------------------- without any key
@pytest.mark.parametrize("host", ["127.0.0.1:7860", "localhost", "[::1]:7860"])
def test_programs_of_this_machine_are_let_in_when_nothing_is_set_up(keys: KeyFile, host: str) -> None:
    caller = Access(keys).caller_of(connection(host=host))
    assert caller == ApiCaller("local", "local", True)


@pytest.mark.parametrize(
    "stranger",
    [
        connection(client="192.168.1.7", host="192.168.1.2:7860"),
        connection(client="8.8.8.8"),
        connection(host="studio.example.org"),  # a name that leads to 127.0.0.1: DNS rebinding
        connection(x_forwarded_for="8.8.8.8"),  # a proxy on this machine
        connection(forwarded="for=8.8.8.8"),
        connection(client="testclient"),
    ],
)
def test_strangers_are_not(keys: KeyFile, stranger: HTTPConnection) -> None:
    assert refused(lambda: Access(keys).caller_of(stranger)) == (401, "key_missing")


def test_a_share_link_ends_on_this_machine_and_lets_nobody_in(keys: KeyFile) -> None:
    assert refused(lambda: Access(keys, shared=True).caller_of(connection())) == (401, "key_missing")


# ---------------------------------------------------------------------------------------------------- keys
def test_a_key_lets_in_from_everywhere_and_then_nobody_comes_without(keys: KeyFile) -> None:
    key, secret = keys.add("bot", per_minute=5)
    access = Access(keys, shared=True)
    for headers in ({"authorization": f"Bearer {secret}"}, {"x_api_key": secret}):
        caller = access.caller_of(connection(client="8.8.8.8", **headers))
        assert (caller.key, caller.admin, caller.quota.per_minute) == (f"key:{key.id}", False, 5)
    assert refused(lambda: access.caller_of(connection(x_api_key="cv_guess"))) == (401, "bad_key")
    assert refused(lambda: Access(keys).caller_of(connection())) == (401, "key_missing")
    keys.revoke(key.id)
    assert refused(lambda: access.caller_of(connection(x_api_key=secret))) == (401, "bad_key")
    assert Access(keys).caller_of(connection(x_api_key="any")).name == "local"  # as there is no key any more


def test_the_file_holds_no_key_and_is_its_owners_alone(keys: KeyFile) -> None:
    _, secret = keys.add("bot")
    content = keys.path.read_text()
    assert secret not in content and secret.removeprefix("cv_") not in content
    assert stat.S_IMODE(keys.path.stat().st_mode) == 0o600
    assert len(json.loads(content)["keys"][0]["hash"]) == 64


def test_a_damaged_file_lets_nobody_in(keys: KeyFile) -> None:
    keys.path.write_text("{")
    access = Access(keys)
    assert refused(lambda: access.caller_of(connection())) == (401, "key_missing")
    assert refused(lambda: access.caller_of(connection(x_api_key="cv_x"))) == (503, "keys_unreadable")


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = ["--file", str(tmp_path / "k.json")]
    assert keys_command.main([*file, "list"]) == 0
    assert capsys.readouterr().out == f"There are no keys in {tmp_path / 'k.json'}.\n"
    assert keys_command.main([*file, "add", "bot", "--admin", "--concurrent", "3"]) == 0
    secret = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("cv_"))
    found = KeyFile(tmp_path / "k.json").find(secret)
    assert found is not None and (found.name, found.admin, found.concurrent) == ("bot", True, 3)
    assert keys_command.main([*file, "list"]) == 0
    listed = capsys.readouterr().out
    assert "bot" in listed and secret not in listed and "no keys" not in listed
    assert keys_command.main([*file, "revoke", "bot"]) == 0
    assert KeyFile(tmp_path / "k.json").find(secret) is None
    assert keys_command.main([*file, "revoke", "bot"]) == 1


# --------------------------------------------------------------------------------------------------- logins
def test_the_pages_logins_count_for_the_api_too(keys: KeyFile) -> None:
    import base64

    logins = Logins({"ann": "secret", "bob": "other"})
    access = Access(keys, logins)

    def basic(user: str, password: str) -> HTTPConnection:
        word = base64.b64encode(f"{user}:{password}".encode()).decode()
        return connection(client="8.8.8.8", authorization=f"Basic {word}")

    assert access.caller_of(basic("ann", "secret")) == ApiCaller("user:ann", "ann", True, limited=True)
    assert access.caller_of(basic("bob", "other")).admin is False
    logins.admin = "bob"
    assert access.caller_of(basic("bob", "other")).admin is True
    assert refused(lambda: access.caller_of(basic("ann", "other"))) == (401, "bad_login")
    assert refused(lambda: access.caller_of(connection())) == (401, "key_missing")  # not even from here


def test_a_browser_that_is_logged_in_may_call(keys: KeyFile) -> None:
    logins = Logins({"ann": "secret"})
    logins.watch(SimpleNamespace(cookie_id="x", tokens={"token": "ann"}))
    access = Access(keys, logins)
    assert access.caller_of(connection(cookie="access-token-x=token")).name == "ann"
    assert refused(lambda: access.caller_of(connection(cookie="access-token-x=guess"))) == (
        401,
        "key_missing",
    )


def test_users_have_the_limits_of_visitors(keys: KeyFile) -> None:
    access = Access(keys, limiter=Limiter(VisitorLimits(requests=1)))
    ann = ApiCaller("user:ann", "ann", False, limited=True)
    lease = access.enter(ann, 10)
    with pytest.raises(Exception, match="already have 1"):
        access.enter(ann, 10)
    lease.release()
    lease.release()
    access.enter(ann, 10).release()


def test_a_visitors_rate_says_when_to_come_again() -> None:
    error = as_api_error(RequestError("visitor_rate", "Too often.", limit=5, seconds=37))
    assert (error.status, error.retry_after) == (429, 37.0)


# -------------------------------------------------------------------------------------------------- browsers
@pytest.mark.parametrize("origin", ["https://elsewhere.example", "null", "http://localhost:9999"])
def test_pages_of_other_sites_may_not_call(keys: KeyFile, origin: str) -> None:
    access = Access(keys)
    assert refused(lambda: access.caller_of(connection(origin=origin))) == (403, "cross_site")
    assert Access(keys, origins=(origin,)).caller_of(connection(origin=origin)).name == "local"
    assert access.caller_of(connection(origin="http://localhost:7860")).name == "local"


# --------------------------------------------------------------------------------------------------- quotas
def test_quotas_say_when_to_come_again() -> None:
    now = [86400.0 * 3 + 86000]
    book = QuotaBook(lambda: now[0])

    def again(quota: Quota, characters: int = 1) -> float:
        with pytest.raises(ApiError) as raised:
            book.enter("me", quota, characters)
        assert raised.value.status == 429 and raised.value.retry_after is not None
        return raised.value.retry_after

    first = book.enter("me", Quota(), 60)
    assert again(Quota(concurrent=1)) >= 1
    first.release()
    now[0] += 20
    assert again(Quota(per_minute=1)) == 40
    assert again(Quota(characters_per_day=100), 41) == 380
    book.enter("me", Quota(characters_per_day=100), 40).release()
    book.enter("you", Quota(per_minute=1, concurrent=1, characters_per_day=100), 100).release()
    now[0] += 41
    book.enter("me", Quota(per_minute=2), 0).release()
    now[0] += 400
    assert book.characters_today("me") == 0


def test_a_restart_gives_nobody_a_second_day(tmp_path: Path) -> None:
    quota, file = Quota(characters_per_day=100), tmp_path / "usage.json"
    book = QuotaBook(lambda: 86400.0 * 3, file)
    first = book.enter("me", quota, 50)
    second = book.enter("me", quota, 10)  # in the same moment: kept when a request ends
    for lease in (first, second):
        lease.release()
    assert QuotaBook(lambda: 86400.0 * 3 + 9, file).characters_today("me") == 60
    assert QuotaBook(lambda: 86400.0 * 4, file).characters_today("me") == 0
    file.write_text("[")
    assert QuotaBook(lambda: 86400.0 * 3, file).characters_today("me") == 0


def test_a_key_at_its_limit_gets_429_and_its_place_back(
    client: httpx.Client, server: Server, pool: TonePool
) -> None:
    _, secret = KeyFile(server.options.api_keys).add("bot", concurrent=1)
    headers = {"X-API-Key": secret}
    pool.pause, pool.sentences = 0.02, 1000
    with client.stream("POST", "/v1/audio/speech", json=BODY, headers=headers) as first:
        sound = first.iter_raw()
        next(sound)
        second = client.post("/v1/audio/speech", json=BODY, headers=headers)
        assert second.status_code == 429 and second.json()["error"]["type"] == "rate_limit_error"
        assert int(second.headers["retry-after"]) >= 1
    eventually(lambda: pool.running == 0)  # by then the place has been given back
    pool.sentences = 1
    assert client.post("/v1/audio/speech", json=BODY, headers=headers).status_code == 200


def test_every_route_but_health_wants_a_key(client: httpx.Client, server: Server) -> None:
    KeyFile(server.options.api_keys).add("bot")
    paths = client.get("/openapi.json").json()["paths"]
    asked = 0
    for path, methods in paths.items():
        for method in methods:
            status = client.request(method, path.replace("{", "").replace("}", ""), json=BODY).status_code
            assert status == (200 if path in ("/health", "/ready") else 401), (method, path)
            asked += 1
    assert asked > 20


def test_metrics_are_for_administrators(client: httpx.Client, server: Server) -> None:
    keys = KeyFile(server.options.api_keys)
    secrets = [keys.add("bot")[1], keys.add("prometheus", admin=True)[1]]
    found = [
        client.get("/metrics", headers={"Authorization": f"Bearer {one}"}).status_code for one in secrets
    ]
    assert found == [403, 200]


def test_a_wrong_password_is_answered_late(pool: TonePool, tmp_path: Path) -> None:
    with serving(pool, tmp_path, {"logins": Logins({"ann": "secret"})}) as server:

        async def ask() -> float:
            async with httpx.AsyncClient(base_url=server.url) as client:
                answer = await client.get("/v1/models", auth=("ann", "guess"))
                assert answer.status_code == 401
                return answer.elapsed.total_seconds()

        assert asyncio.run(ask()) >= 1.0
        assert httpx.get(f"{server.url}/v1/models", auth=("ann", "secret")).status_code == 200


def test_without_api_only_health_is_left(pool: TonePool, tmp_path: Path) -> None:
    with serving(pool, tmp_path, api=False) as server, httpx.Client(base_url=server.url) as client:
        assert client.get("/health").status_code == client.get("/ready").status_code == 200
        for path in ("/v1/models", "/metrics", "/docs", "/openapi.json"):
            assert client.get(path).status_code == 404
