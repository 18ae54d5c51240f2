"""The Monitor tab in a real browser, and the API on the page's own port."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from collections.abc import Callable

import pytest

from tests.browser.conftest import why_not
from tests.browser.visitor import USABLE_MS, Visitor

pytestmark = [pytest.mark.browser, pytest.mark.skipif(bool(why_not()), reason=why_not())]


def test_whoever_sits_at_the_studio_sees_how_it_is_doing(visit: Callable[..., Visitor]) -> None:
    visitor = visit(new=True)
    page = visitor.page
    page.get_by_role("tab", name="Monitor", exact=True).click(timeout=USABLE_MS)
    board = page.locator("#monitor")
    board.get_by_text(re.compile("Load · Ready")).wait_for(timeout=USABLE_MS)
    assert "worker 0 (cpu)" in board.inner_text() and "flow float32" in board.inner_text()
    page.locator("#language").get_by_text("中文").click()
    board.get_by_text("首声延迟").wait_for(timeout=USABLE_MS)  # at its next look
    assert visitor.problems == []


def test_a_page_under_a_strange_name_has_no_such_tab(visit: Callable[..., Visitor]) -> None:
    """As through a tunnel: the name of the host is not this machine's."""
    visitor = visit(extra_http_headers={"X-Forwarded-For": "192.0.2.1"})
    visitor.page.get_by_role("tab", name="Cross-lingual").click(timeout=USABLE_MS)
    assert visitor.page.get_by_role("tab", name="Monitor").count() == 0


def test_api_and_page_share_a_port(studio_url: str) -> None:
    for path, status in (
        ("ready", 200),
        ("v1/models", 200),
        ("docs", 200),
        ("metrics", 200),
        ("v1/nothing", 404),
    ):
        try:
            with urllib.request.urlopen(studio_url + path, timeout=10) as answer:
                found = answer.status
        except urllib.error.HTTPError as error:
            found = error.code
        assert found == status, path
    request = urllib.request.Request(
        studio_url + "v1/models", headers={"Origin": "https://elsewhere.example"}
    )
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(request, timeout=10)
