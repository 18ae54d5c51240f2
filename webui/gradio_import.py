"""Imports Gradio in half the time: without the type stubs that it writes for editors at every start.

For each of its sixty components Gradio parses its own source and renders a template, to compare the result with the
`.pyi` file beside it. Nothing at run time reads those files.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_WRITES_STUBS = "gradio.component_meta"
_NAME = "create_or_modify_pyi"


def import_gradio() -> ModuleType:
    """The package, as `import gradio` gives it."""
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        import gradio
    finally:
        sys.meta_path.remove(finder)
    return gradio


class _Finder(MetaPathFinder):
    """Finds the one module, where the usual finder would, and lets it be loaded without its stubs."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _WRITES_STUBS:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(Loader):
    def __init__(self, usual: Any) -> None:
        self._usual = usual

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._usual.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        self._usual.exec_module(module)
        if hasattr(module, _NAME):  # another version of Gradio may do without
            setattr(module, _NAME, lambda *_: None)
