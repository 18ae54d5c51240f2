"""Who may call the API, and how much.

* An API key (`Authorization: Bearer cv_…` or `X-API-Key: cv_…`) always lets in, with the key's own limits.
* With page logins (`--auth`) a user's name and password (HTTP Basic), or the cookie of a browser that is logged in.
* With neither keys nor logins set up: programs on this machine only, whatever key they send, so that a studio which is
  bound to all addresses, behind a proxy or behind a share link is closed to strangers until its owner makes a key.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import Depends
from fastapi.security import APIKeyHeader, HTTPBearer
from starlette.requests import HTTPConnection

from webui.api.errors import ApiError
from webui.api.keys import KeyFile
from webui.api.quota import Lease, Quota, QuotaBook
from webui.limits import Limiter
from webui.local_request import is_local
from webui.logins import WRONG_SECONDS, Logins

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ApiCaller:
    """`key` is whom limits count and who owns jobs: "key:<id>", "user:<name>" or "local"."""

    key: str
    name: str
    admin: bool
    quota: Quota = Quota()
    limited: bool = False  # as a visitor of the page is


class Access:
    """Tells callers apart and lets them in or not."""

    def __init__(
        self,
        keys: KeyFile,
        logins: Logins | None = None,
        limiter: Limiter | None = None,
        *,
        shared: bool = False,
        origins: tuple[str, ...] = (),
    ) -> None:
        """`shared`: a public link leads here; `origins`: other sites whose pages may call."""
        self._keys = keys
        self._logins = logins or Logins({})
        self._limiter = limiter
        self._book = QuotaBook(file=keys.path.with_name("api_usage.json"))
        self._shared = shared
        self._origins = origins

    def caller_of(self, connection: HTTPConnection, secret: str = "") -> ApiCaller:
        """Who calls; `secret` is a key that came by another way than the headers. Raises `ApiError` 401, 403 or 503."""
        self.check_site(connection)
        secret = secret or _secret_of(connection)
        guarded = self._logins.required or self._shared or self._all_keys()
        if not guarded and is_local(connection):
            return ApiCaller(
                "local", "local", True
            )  # whatever key it sends: OpenAI's client always sends one
        if secret:
            return self._by_key(secret)
        if self._logins.required and (user := self._user_of(connection)) is not None:
            return ApiCaller(f"user:{user}", user, self._logins.is_admin(user), limited=True)
        raise self._closed()

    def enter(self, caller: ApiCaller, characters: int) -> Lease:
        """Count a request until the lease is released. Raises `ApiError` 429 or `RequestError` visitor_…."""
        lease = self._book.enter(caller.key, caller.quota, characters)
        if not (caller.limited and self._limiter):
            return lease
        stack = ExitStack()
        stack.callback(lease.release)
        try:
            stack.enter_context(self._limiter.enter(caller.key, characters))
        except BaseException:
            stack.close()
            raise
        return Lease(stack.close)

    def charge(self, caller: ApiCaller, characters: int) -> None:
        """Count characters of a request that is running already. Raises `ApiError` 429."""
        self._book.charge(caller.key, caller.quota, characters)

    def check_site(self, connection: HTTPConnection) -> None:
        """A page of another site must not use what a browser is let in by: cookies, or being on this machine.

        Raises `ApiError` 403.
        """
        origin = connection.headers.get("origin")
        if origin is None or "*" in self._origins or origin in self._origins:
            return
        if urlsplit(origin).netloc.lower() != _host_of(connection).lower():
            raise ApiError(
                403, "cross_site", f"Pages of {origin[:100]} may not call this server; see --enable-cors."
            )

    # -------------------------------------------------------------------------------------------------- ways in
    def _by_key(self, secret: str) -> ApiCaller:
        try:
            key = self._keys.find(secret)
        except ValueError as error:
            logger.error("%s", error)
            raise ApiError(503, "keys_unreadable", "The server cannot read its API keys.") from error
        if key is None:
            raise ApiError(401, "bad_key", "This API key is not known here.")
        quota = Quota(key.per_minute, key.concurrent, key.characters_per_day)
        return ApiCaller(f"key:{key.id}", key.name, key.admin, quota)

    def _user_of(self, connection: HTTPConnection) -> str | None:
        given = _basic_of(connection)
        if given is None:
            return self._logins.user_of(connection)
        if self._logins.check(*given):
            return given[0]
        raise ApiError(401, "bad_login", "The user name or the password is wrong.")

    def _all_keys(self) -> bool:
        try:
            return bool(self._keys.keys())
        except ValueError as error:
            logger.error("%s", error)
            return True  # damaged: closed

    def _closed(self) -> ApiError:
        if self._logins.required:
            message = "An API key (Authorization: Bearer <key>) or a user's name and password are needed."
            return ApiError(401, "key_missing", message)
        if self._all_keys():
            return ApiError(401, "key_missing", "An API key is needed: Authorization: Bearer <key>.")
        return ApiError(
            401,
            "key_missing",
            "From another machine an API key is needed, and this server has none yet. Its owner makes one with "
            "`python -m webui.api.keys add NAME`.",
        )


_BEARER = HTTPBearer(auto_error=False, description="An API key (`python -m webui.api.keys add NAME`)")
_HEADER = APIKeyHeader(name="X-API-Key", auto_error=False, description="The same key in a header of its own")


async def calling(
    connection: HTTPConnection,
    _bearer: Annotated[Any, Depends(_BEARER)],
    _header: Annotated[Any, Depends(_HEADER)],
) -> ApiCaller:
    """Dependency: the caller. The parameters with underscores only document the ways in."""
    access: Access = connection.app.state.context.access
    try:
        return access.caller_of(connection)
    except ApiError as error:
        if error.code == "bad_login":
            await asyncio.sleep(WRONG_SECONDS)  # guessing passwords shall be slow
        raise


Caller = Annotated[ApiCaller, Depends(calling)]


async def administrating(caller: Caller) -> ApiCaller:
    """Dependency: a caller who is an administrator."""
    if not caller.admin:
        raise ApiError(403, "admin_only", "This needs an administrator's key or login.")
    return caller


Admin = Annotated[ApiCaller, Depends(administrating)]


def _secret_of(connection: HTTPConnection) -> str:
    kind, _, value = connection.headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return value.strip()
    return connection.headers.get("x-api-key", "").strip()


def _basic_of(connection: HTTPConnection) -> tuple[str, str] | None:
    kind, _, value = connection.headers.get("authorization", "").partition(" ")
    if kind.lower() != "basic":
        return None
    try:
        user, colon, password = base64.b64decode(value, validate=True).decode("utf-8").partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return None
    return (user, password) if colon else None


def _host_of(connection: HTTPConnection) -> str:
    return connection.headers.get("host", "")
