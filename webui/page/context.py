"""What every part of the page is built with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeVar

import gradio as gr

from webui.page.texts import say
from webui.studio import Studio

Component = TypeVar("Component")


@dataclass(frozen=True)
class Translated:
    """A component and the texts of its properties, for switching the language."""

    component: Any
    properties: dict[str, str]  # property name → text key


@dataclass(frozen=True)
class PageContext:
    """The studio, the language switch, and the components whose words follow it."""

    studio: Studio
    language: gr.Radio  # "zh" or "en"; an input of every handler that speaks
    can_stream: bool
    example_text: str = ""  # name in `examples.EXAMPLES` of what the example voice says; "": by language
    translated: list[Translated] = field(default_factory=list)
    refreshers: list[Refresher] = field(default_factory=list)
    voice_lists: list[Any] = field(default_factory=list)  # components with the saved voices as choices
    voice_changes: list[Any] = field(default_factory=list)  # events after which those are read again
    sentences: list[Any] = field(default_factory=list)  # lines about what just happened

    def keep(self, component: Component, **properties: str) -> Component:
        """Note which text each property of a component shows; gives the component back."""
        self.translated.append(Translated(component, properties))
        return component

    def keep_sentence(self, component: Component) -> Component:
        """Note a line about what just happened, which is emptied when the language changes; gives it back."""
        self.sentences.append(component)
        return component

    def line_list(self, text: str, elem_id: str) -> gr.Radio:
        """A list of lines of which one is chosen, hidden while it is empty; `text`: of its label."""
        return self.keep(
            gr.Radio([], label=say(text, "zh"), visible=False, elem_id=elem_id, elem_classes="line-list"),
            label=text,
        )

    def on_show(self, function: Any, inputs: list[Any], outputs: list[Any]) -> None:
        """Call `function(*inputs, language)`, which gives a list of outputs, when the page is opened or its language
        changes: for words that are made, not looked up."""
        self.refreshers.append(Refresher(function, inputs, outputs))


@dataclass(frozen=True)
class Refresher:
    """A handler for the opening of the page and for each change of its language."""

    function: Any
    inputs: list[Any]
    outputs: list[Any]


# How an event that only the page itself uses is declared: at once, and not part of the public API.
QUIET: dict[str, Any] = {"queue": False, "api_visibility": "private", "show_progress": "hidden"}
