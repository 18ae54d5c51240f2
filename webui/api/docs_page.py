"""`/docs`: the OpenAPI document as a page to read. Made here, as the usual viewers are fetched from other sites."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from html import escape
from typing import Any

from webui.api import stream_docs
from webui.api.documents import ERRORS

_STYLE = """
:root { color-scheme: light dark; --edge: #8884; --soft: #8881; --accent: #0f766e }
@media (prefers-color-scheme: dark) { :root { --accent: #2dd4bf } }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 980px; margin: 2rem auto; padding: 0 1rem }
code, pre { font: 13px/1.45 ui-monospace, monospace } pre { background: var(--soft); padding: .7rem; overflow-x: auto }
details { border: 1px solid var(--edge); border-radius: 10px; margin: .5rem 0; padding: .55rem .9rem }
summary { cursor: pointer } summary b { color: var(--accent); display: inline-block; min-width: 4.2rem }
table { border-collapse: collapse; width: 100%; font-size: 14px; margin: .4rem 0 }
th, td { text-align: left; vertical-align: top; border-bottom: 1px solid var(--edge); padding: .3rem .6rem .3rem 0 }
"""


def docs_page(document: dict[str, Any]) -> str:
    """The whole page for an OpenAPI `document`."""
    info = document["info"]
    groups: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            tag = (operation.get("tags") or ["Other"])[-1]
            groups.setdefault(tag, []).append(_operation(document, path, method, operation))
    body = "".join(f"<h2>{escape(tag)}</h2>{''.join(parts)}" for tag, parts in groups.items())
    faults = [_answer(str(status), dict(answer)) for status, answer in ERRORS.items()]
    errors = f"<h2>Errors</h2>{_table(('status', 'meaning', ''), faults)}"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(info["title"])} API</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>'
        f"<h1>{escape(info['title'])} API</h1><p>{_prose(info.get('description', ''))}</p>"
        f'<p>For programs: <a href="openapi.json">openapi.json</a></p>{body}{_stream()}{errors}</body></html>'
    )


def _stream() -> str:
    """The part about the WebSocket."""
    schema = stream_docs.start_schema()
    tables = (
        _table(("from the client", ""), stream_docs.FROM_CLIENT),
        f"<p>{_prose('Fields of `start`:')}</p>{_fields({'components': {'schemas': schema.get('$defs', {})}}, schema)}",
        _table(("from the server", ""), stream_docs.FROM_SERVER),
        _table(("closed with", ""), stream_docs.CLOSED),
    )
    head = "<b>WS</b><code>/v1/stream</code> Text that is still being written"
    about = f"<p>{_prose(stream_docs.ABOUT)}</p>"
    return f"<h2>WebSocket</h2><details><summary>{head}</summary>{about}{''.join(tables)}</details>"


def _operation(document: dict[str, Any], path: str, method: str, operation: dict[str, Any]) -> str:
    parts = [f"<p>{_prose(operation.get('description', ''))}</p>"]
    parameters = [one for one in operation.get("parameters", []) if one["in"] in ("path", "query")]
    if parameters:
        rows = [(one["name"], one["in"], _kind(document, one.get("schema", {}))) for one in parameters]
        parts.append(_table(("parameter", "in", "type"), rows))
    content = operation.get("requestBody", {}).get("content", {})
    if content:
        parts.append(f"<p>Body: {escape(' or '.join(content))}</p>")
        parts.append(_fields(document, next(iter(content.values()))["schema"]))
    answers = [(status, answer) for status, answer in operation.get("responses", {}).items() if status < "4"]
    parts.append(_table(("answer", "", ""), [_answer(status, answer) for status, answer in answers]))
    head = f"<b>{method.upper()}</b><code>{escape(path)}</code> {escape(operation.get('summary', ''))}"
    return f"<details><summary>{head}</summary>{''.join(parts)}</details>"


def _answer(status: str, answer: dict[str, Any]) -> tuple[str, ...]:
    return status, answer.get("description", ""), ", ".join(answer.get("content", {}))


def _prose(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _fields(document: dict[str, Any], schema: dict[str, Any]) -> str:
    found = _resolved(document, schema)
    required = found.get("required", [])
    rows = []
    for name, field in found.get("properties", {}).items():
        shown = _resolved(document, field)
        default = "" if field.get("default") is None else f"default {json.dumps(field['default'])}"
        note = "required" if name in required else default
        about = field.get("description", shown.get("description", ""))
        rows.append((name, _kind(document, field), note, about))
    return _table(("field", "type", "", ""), rows)


def _kind(document: dict[str, Any], schema: dict[str, Any]) -> str:
    """A schema in a few words."""
    found = _resolved(document, schema)
    if "anyOf" in found:
        kinds = [_kind(document, one) for one in found["anyOf"] if one.get("type") != "null"]
        return " or ".join(kinds)
    if "enum" in found:
        return " | ".join(map(str, found["enum"]))
    if "const" in found:
        return str(found["const"])
    kind = str(found.get("type", "object"))
    if kind == "array":
        return f"list of {_kind(document, found.get('items', {}))}"
    if found.get("format") == "binary":
        return "file"
    limits = [
        f"{word} {found[key]}"
        for key, word in (("minimum", "from"), ("maximum", "to"), ("maxLength", "at most"))
        if key in found
    ]
    return " ".join([kind, *limits])


def _resolved(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """`schema`, or what its `$ref` stands for."""
    reference = schema.get("$ref", "")
    found: dict[str, Any] = (
        document["components"]["schemas"][reference.rsplit("/", 1)[1]] if reference else schema
    )
    return found


def _table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    body = "".join(
        "<tr>" + "".join(f"<td>{_prose(str(cell))}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"
