"""HyperPyYAML read as data: its tags name Python classes, and none of them is ever looked up or called (SPEC 1.5).

`!new:`, `!name:` and `!apply:` nodes become the plain mapping, list or text they hold. `!ref <a> * <b>` stays
unevaluated until somebody asks for that value, so a hostile file costs no more than its own length.
"""

from __future__ import annotations

import re
import reprlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from inference.ref_arithmetic import evaluate
from inference.types import CheckpointError

MAX_BYTES = 1_000_000
_MAX_DEPTH = 20  # of references to references
_IGNORED_TAGS = ("!new:", "!name:", "!apply:")
_MISSING = object()


@dataclass(frozen=True)
class Ref:
    """An unevaluated `!ref`."""

    expression: str


class _Loader(yaml.SafeLoader):
    """Safe YAML plus the tags above; any other tag is an error."""


def _construct_tag(loader: _Loader, suffix: str, node: yaml.Node) -> Any:
    tag = "!" + suffix
    if tag == "!ref" and isinstance(node, yaml.ScalarNode):
        return Ref(str(node.value))
    if not tag.startswith(_IGNORED_TAGS):
        raise yaml.constructor.ConstructorError(None, None, f"unknown tag {tag!r}", node.start_mark)
    if isinstance(node, yaml.MappingNode):
        return loader.construct_mapping(node, deep=True)
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    return str(node.value)


_Loader.add_multi_constructor("!", _construct_tag)


class Document:
    """One configuration file whose values are asked for by dotted path, such as `flow.encoder.num_blocks`.

    Every method raises `CheckpointError` that names the file and the key: "checkpoint_missing_value" without a
    default, "checkpoint_bad_value" for a value of the wrong kind.
    """

    def __init__(self, file: str, tree: dict[str, Any]) -> None:
        self.file = file
        self._tree = tree

    def get(self, path: str, default: Any = _MISSING) -> Any:
        """The value at `path`, references followed; lists and mappings inside it are left as they are."""
        value: Any = self._tree
        for part in path.split("."):
            value = self._resolve(value, path, 0)
            if not isinstance(value, dict) or part not in value:
                if default is _MISSING:
                    raise CheckpointError(
                        "checkpoint_missing_value",
                        f"{self.file} has no value {path!r}; take the file of the original model folder.",
                        file=self.file,
                        key=path,
                    )
                return default
            value = value[part]
        return self._resolve(value, path, 0)

    def has(self, path: str) -> bool:
        """Whether anything stands at `path`."""
        return self.get(path, None) is not None

    def number(self, path: str, default: Any = _MISSING, *, low: float = 0.0, high: float = 1e9) -> float:
        """A finite number within bounds."""
        return self._checked(path, self.get(path, default), low, high)

    def integer(self, path: str, default: Any = _MISSING, *, low: int = 1, high: int = 10_000_000) -> int:
        """A whole number within bounds."""
        return self._whole(path, self.get(path, default), low, high)

    def integers(self, path: str, default: Any = _MISSING) -> tuple[int, ...]:
        """A list of at most 64 positive whole numbers."""
        return tuple(
            self._whole(path, item, 1, 10_000_000) for item in self._list(path, self.get(path, default))
        )

    def integer_lists(self, path: str, default: Any = _MISSING) -> tuple[tuple[int, ...], ...]:
        """A list of such lists."""
        rows = [self._list(path, row) for row in self._list(path, self.get(path, default))]
        return tuple(tuple(self._whole(path, item, 1, 10_000_000) for item in row) for row in rows)

    def bad_value(self, path: str, value: Any, expected: str) -> CheckpointError:
        """The error for a value that cannot be used."""
        shown = reprlib.repr(value)[:60]  # a whole repr of nested aliases would never end
        return CheckpointError(
            "checkpoint_bad_value",
            f"{self.file} says {path} = {shown} where {expected} is expected.",
            file=self.file,
            key=path,
            value=shown,
            expected=expected,
        )

    def _list(self, path: str, value: Any) -> list[Any]:
        value = self._resolve(value, path, 0)
        if not isinstance(value, (list, tuple)) or not 0 < len(value) <= 64:
            raise self.bad_value(path, value, "a list")
        return list(value)

    def _checked(self, path: str, value: Any, low: float, high: float) -> float:
        value = self._resolve(value, path, 0)
        if isinstance(value, str):  # YAML 1.1 reads 1e-06, without a point, as text
            try:
                value = float(value)
            except ValueError:
                pass
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.bad_value(path, value, "a number")
        if not (low <= value <= high):  # also refuses NaN
            raise self.bad_value(path, value, f"a number from {low:g} to {high:g}")
        return value

    def _whole(self, path: str, value: Any, low: int, high: int) -> int:
        number = self._checked(path, value, low, high)
        if number != int(number):
            raise self.bad_value(path, value, "a whole number")
        return int(number)

    def _resolve(self, value: Any, path: str, depth: int) -> Any:
        if not isinstance(value, Ref):
            return value
        if depth > _MAX_DEPTH:
            raise self.bad_value(path, value.expression, "a reference that ends somewhere")
        try:
            return evaluate(value.expression, lambda name: self._lookup(name, path, depth + 1))
        except ValueError as error:
            raise self.bad_value(path, f"!ref {value.expression}", "arithmetic on known numbers") from error

    def _lookup(self, name: str, path: str, depth: int) -> Any:
        """The value that `<name>` stands for; `<a[b]>` and `<a.b>` reach inside a mapping."""
        value: Any = self._tree
        for part in re.split(r"[.\[\]]+", name.strip().rstrip("]")):
            value = self._resolve(value, path, depth)
            if not isinstance(value, dict) or part not in value:
                raise self.bad_value(path, f"<{name}>", "a reference to a value of this file")
            value = value[part]
        return self._resolve(value, path, depth)


def read_yaml(path: Path) -> Document:
    """Parse a HyperPyYAML file without executing anything in it.

    Raises `CheckpointError`: "checkpoint_missing_file", "checkpoint_bad_yaml".
    """
    return parse_yaml(read_text(path), path.name)


def parse_yaml(text: str, file: str) -> Document:
    """Like `read_yaml`, for text already at hand; `file` is the name used in errors."""
    try:
        tree = yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        where = str(getattr(error, "problem", None) or type(error).__name__)
        line = getattr(getattr(error, "problem_mark", None), "line", -1) + 1
        raise CheckpointError(
            "checkpoint_bad_yaml",
            f"{file} is not a readable configuration ({where}, line {line}); fetch the file again.",
            file=file,
            line=line,
        ) from error
    if not isinstance(tree, dict):
        raise CheckpointError(
            "checkpoint_bad_yaml", f"{file} holds no settings; fetch the file again.", file=file, line=0
        )
    return Document(file, tree)


def read_text(path: Path) -> str:
    """Content of a small UTF-8 file. Raises `CheckpointError` as `read_yaml`."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise CheckpointError(
                "checkpoint_bad_yaml",
                f"{path.name} is far too large for a configuration; fetch the file again.",
                file=path.name,
                line=0,
            )
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise CheckpointError(
            "checkpoint_missing_file",
            f"{path.name} is missing in {path.parent} or cannot be read; download the model again.",
            file=path.name,
            folder=str(path.parent),
        ) from error
    except UnicodeDecodeError as error:
        raise CheckpointError(
            "checkpoint_bad_yaml", f"{path.name} is not text; fetch the file again.", file=path.name, line=0
        ) from error
