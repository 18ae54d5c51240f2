"""A line for every visitor about the public link and about a studio without a password."""

from __future__ import annotations

import gradio as gr

from webui.page.context import PageContext
from webui.page.texts import say
from webui.share import Sharing


class SharingNote:
    """Empty in a studio that only its own machine can reach."""

    def __init__(self, context: PageContext) -> None:
        self._sharing = context.studio.sharing
        self._note = gr.Markdown(visible=False, elem_id="sharing")
        context.on_show(self._tell, [], [self._note])

    def _tell(self, language: str) -> list[object]:
        text = sharing_text(self._sharing, language)
        return [gr.update(value=text, visible=bool(text))]


def sharing_text(sharing: Sharing, language: str) -> str:
    """What there is to say at this moment; "" for nothing."""
    parts = []
    if sharing.url:
        parts.append(say("share_link", language).format(url=sharing.url))
    elif sharing.problem:
        reason = say(sharing.problem, language).format(**sharing.details)
        parts.append(say("share_none", language).format(reason=reason))
    elif sharing.wanted:
        parts.append(say("share_opening", language))
    if sharing.unguarded:
        parts.append("⚠️ " + say("share_unguarded", language))
    return " ".join(parts)
