"""The page as it first arrives, in the visitor's language: nobody sees it in another one and then change."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING, Any

from webui.page.texts import LANGUAGES, TEXTS, language_of

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE = "studio-language"  # written by page.js when the visitor uses the switch
SWITCH = "language"  # elem_id of the switch
BUILT_IN = "zh"  # the language that the page is built in
_CONFIG = re.compile(r"(window\.gradio_config = )(\{.*?\})(;</script>)", re.DOTALL)


def wanted_language(headers: Mapping[str, str], usual: str = "auto") -> str:
    """The visitor's own choice, else `usual` if it names a language, else the browser's."""
    try:
        chosen = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        chosen = None
    if chosen is not None and chosen.value in LANGUAGES:
        return str(chosen.value)
    return usual if usual in LANGUAGES else language_of(headers.get("accept-language", ""))


class FirstLanguage:
    """Middleware: puts the words of the page's first delivery into the language that is wanted.

    `words`: language → number of a component → its properties; what else the page shows is looked up.
    """

    def __init__(
        self,
        app: ASGIApp,
        usual: str = "auto",
        words: Mapping[str, Mapping[int, Mapping[str, str]]] | None = None,
    ) -> None:
        self._app = app
        self._usual = usual
        self._words = dict(words or {})
        self._english = {text[BUILT_IN]: text["en"] for text in TEXTS.values()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "GET" or scope["path"] not in ("/", ""):
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        language = wanted_language(headers, self._usual)
        started: list[Message] = []
        body = bytearray()

        async def rewritten(message: Message) -> None:
            if message["type"] == "http.response.start":
                started.append(message)
                return
            body.extend(message.get("body", b""))
            if message.get("more_body"):
                return
            content = self._translated(bytes(body), started[0], language)
            await send({**started[0], "headers": _with_length(started[0]["headers"], len(content))})
            await send({"type": "http.response.body", "body": content})

        await self._app(scope, receive, rewritten)

    def _translated(self, body: bytes, start: Message, language: str) -> bytes:
        headers = dict(start["headers"])
        if b"content-encoding" in headers or not headers.get(b"content-type", b"").startswith(b"text/html"):
            return body
        html = body.decode("utf-8").replace('lang="en"', f'lang="{_tag(language)}"', 1)
        html = _CONFIG.sub(lambda found: found[1] + self._config(found[2], language) + found[3], html, 1)
        return html.encode("utf-8")

    def _config(self, text: str, language: str) -> str:
        config = json.loads(text)
        for component in config.get("components", ()):
            properties = component.get("props", {})
            if language != BUILT_IN:
                properties = self._said(properties)
            properties.update(self._words.get(language, {}).get(component.get("id"), {}))
            if properties.get("elem_id") == SWITCH:
                properties["value"] = language
            component["props"] = properties
        # As it was escaped: it stands in a script, inside HTML.
        plain = json.dumps(config, separators=(",", ":"))
        for character in "<>&'":
            plain = plain.replace(character, f"\\u{ord(character):04x}")
        return plain

    def _said(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._english.get(value, value)
        if isinstance(value, list):
            return [self._said(item) for item in value]
        if isinstance(value, dict):
            return {key: self._said(item) for key, item in value.items()}
        return value


def _tag(language: str) -> str:
    return "zh-CN" if language == "zh" else "en"


def _with_length(headers: list[tuple[bytes, bytes]], length: int) -> list[tuple[bytes, bytes]]:
    kept = [(name, value) for name, value in headers if name != b"content-length"]
    return [*kept, (b"content-length", str(length).encode()), (b"vary", b"Accept-Language, Cookie")]
