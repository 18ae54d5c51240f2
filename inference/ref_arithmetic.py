"""The small arithmetic that `!ref` allows: `<a> * <b> + 1`, evaluated by a parser of its own, never by Python."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

_TOKEN = re.compile(r"\s*(?:<(?P<name>[^<>]+)>|(?P<number>\d+\.?\d*(?:[eE][-+]?\d+)?)|(?P<mark>//|[-+*/()]))")
_MAX_TOKENS = 64
_MAX_NESTING = 20
_LARGEST = 1e15

Lookup = Callable[[str], Any]
_Token = tuple[str, str]  # kind, text


def evaluate(expression: str, lookup: Lookup) -> Any:
    """Value of `expression`; `lookup` gives the value of a name in angle brackets.

    A name alone may stand for anything, arithmetic is on numbers only. Raises ValueError, and what `lookup` raises.
    """
    tokens = _split(expression)
    if len(tokens) == 1 and tokens[0][0] == "name":
        return lookup(tokens[0][1])
    return _Parser(tokens, lookup).whole()


def _split(expression: str) -> list[_Token]:
    tokens: list[_Token] = []
    text, position = expression.rstrip(), 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None or len(tokens) >= _MAX_TOKENS:
            raise ValueError("not an expression")
        kind = str(match.lastgroup)
        tokens.append((kind, match.group(kind)))
        position = match.end()
    return tokens


class _Parser:
    def __init__(self, tokens: list[_Token], lookup: Lookup) -> None:
        self._tokens, self._lookup = tokens, lookup
        self._at = 0

    def whole(self) -> float:
        value = self._sum(0)
        if self._at != len(self._tokens):
            raise ValueError("something follows the expression")
        return value

    def _take(self, *marks: str) -> str | None:
        if self._at < len(self._tokens) and self._tokens[self._at] in [("mark", mark) for mark in marks]:
            self._at += 1
            return self._tokens[self._at - 1][1]
        return None

    def _sum(self, nesting: int) -> float:
        value = self._product(nesting)
        while mark := self._take("+", "-"):
            right = self._product(nesting)
            value = value + right if mark == "+" else value - right
        return _bounded(value)

    def _product(self, nesting: int) -> float:
        value = self._atom(nesting)
        while mark := self._take("*", "//", "/"):
            right = self._atom(nesting)
            if mark != "*" and right == 0:
                raise ValueError("division by zero")
            value = _bounded(
                value * right if mark == "*" else value // right if mark == "//" else value / right
            )
        return value

    def _atom(self, nesting: int) -> float:
        if nesting > _MAX_NESTING:
            raise ValueError("too deep")
        if self._take("-"):
            return -self._atom(nesting + 1)
        if self._take("("):
            value = self._sum(nesting + 1)
            if not self._take(")"):
                raise ValueError("an open parenthesis")
            return value
        if self._at >= len(self._tokens) or self._tokens[self._at][0] == "mark":
            raise ValueError("a number is missing")
        kind, text = self._tokens[self._at]
        self._at += 1
        return _number(self._lookup(text) if kind == "name" else int(text) if text.isdigit() else float(text))


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError("not a number")
    return _bounded(value)


def _bounded(value: float) -> float:
    if abs(value) > _LARGEST or not math.isfinite(value):  # in this order: isfinite fails on huge integers
        raise ValueError("not a sensible number")
    return value
