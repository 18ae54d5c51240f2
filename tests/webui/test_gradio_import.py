"""Gradio without its stubs: the same package, quicker; and pages served from its own files."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.golden_data import ROOT

pytestmark = pytest.mark.unit

CODE = """
import sys
before = list(sys.meta_path)
from webui.gradio_import import import_gradio
gradio = import_gradio()
assert gradio is sys.modules["gradio"] and sys.meta_path == before
import gradio.component_meta as meta
def never(*arguments, **named):
    raise SystemExit("a stub was made")
meta.create_pyi = never
class Own(gradio.Textbox):
    EVENTS = ["change"]
with gradio.Blocks() as page:
    Own().change(lambda text: text)
print(len(page.fns))
"""


def test_no_stub_is_made_and_components_work_as_ever() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "1"
