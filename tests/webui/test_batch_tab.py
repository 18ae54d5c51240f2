"""The handlers of the Batch and History tabs, without a browser."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from inference.types import Mode, Reference, RequestError
from tests.webui.fake_pool import FakePool
from webui.batch.job import BatchSettings
from webui.batch.jobs import BatchStatus, RowResult
from webui.batch.rows import Row, read_rows
from webui.studio import Studio
from webui.visitors import COOKIE, visitor_of

gr = pytest.importorskip("gradio")

from webui.page.batch_list import progress_html  # noqa: E402
from webui.page.batch_tab import ENDINGS, BatchTab, check_rows  # noqa: E402
from webui.page.context import PageContext  # noqa: E402
from webui.page.history_tab import HistoryTab  # noqa: E402
from webui.page.layout import MODES, build_page  # noqa: E402
from webui.page.tab import SynthesisTab  # noqa: E402
from webui.page.texts import TEXTS, explain  # noqa: E402

pytestmark = pytest.mark.unit

CLIP = Reference(Path("clip.wav"))


def browser(letter: str) -> Any:
    return SimpleNamespace(
        cookies={COOKIE: letter * 43}, client=SimpleNamespace(host="10.0.0.1"), username=None
    )


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "cache"))


@pytest.fixture
def studio(tmp_path: Path) -> Iterator[Studio]:
    made = Studio(FakePool(), tmp_path / "outputs")
    yield made
    made.close()


@pytest.fixture
def tabs(studio: Studio) -> tuple[BatchTab, HistoryTab]:
    with gr.Blocks():
        context = PageContext(studio, gr.Radio(["zh", "en"]), can_stream=False)
        with gr.Tabs() as all_tabs:
            synthesis = {mode: SynthesisTab(context, mode) for mode in MODES}
            return BatchTab(context), HistoryTab(context, synthesis, all_tabs)


def begin(
    tab: BatchTab, request: Any, file: Path | None, *, mode: str = "clone", clip: str | None = "clip.wav",
    instruction: str = "", language: str = "en",
) -> list[Any]:  # fmt: skip
    given = str(file) if file else None
    return asyncio.run(
        tab._begin(request, given, mode, instruction, 1.0, 7, "wav", language, "", clip, "What it says.")
    )


def lines(folder: Path, text: str = "One.\nTwo.\n") -> Path:
    path = folder / "lines.txt"
    path.write_text(text, encoding="utf-8")
    return path


def test_what_is_missing_is_said_and_nothing_begins(
    tabs: tuple[BatchTab, HistoryTab], studio: Studio, tmp_path: Path
) -> None:
    tab, file, empty = tabs[0], lines(tmp_path), tmp_path / "empty"
    empty.mkdir()
    cases: list[tuple[Any, Any, dict[str, Any], str]] = [
        (browser("a"), None, {}, "Choose a batch file"),
        (browser("a"), None, {"language": "zh"}, "请先选择"),
        (SimpleNamespace(cookies={}, client=None, username=None), file, {}, "cookies"),
        (browser("a"), file, {"clip": None}, "Upload or record"),
        (browser("a"), file, {"mode": "instruct"}, "Write an instruction"),
        (browser("a"), lines(empty, " \n"), {}, "no text"),
    ]
    for request, given, settings, words in cases:
        told, *rest = begin(tab, request, given, **settings)
        assert told.startswith("⚠️") and words in told
        assert all(isinstance(part, dict) and part == gr.skip() for part in rest)
    assert studio.jobs.jobs(visitor_of(browser("a"))) == []


def test_a_batch_is_shown_to_its_browser_alone(
    tabs: tuple[BatchTab, HistoryTab], studio: Studio, tmp_path: Path
) -> None:
    tab = tabs[0]
    clip = tmp_path / "clip.wav"
    clip.write_bytes(b"sound")
    told, chosen, *_ = begin(tab, browser("a"), lines(tmp_path), clip=str(clip))
    assert told == "Started: 2 rows." and len(chosen["choices"]) == 1
    mine = visitor_of(browser("a"))
    deadline = time.monotonic() + 20
    while studio.jobs.jobs(mine)[0].state != "done":
        assert time.monotonic() < deadline
        time.sleep(0.01)
    shown = asyncio.run(tab._list.show(None, "en", browser("a")))
    names = ["list", "progress", "stop", "resume", "retry", "delete", "archive", "timer"]
    seen = dict(zip(names, shown))
    assert "done · 2 of 2 rows" in seen["list"]["choices"][0][0]
    assert [name for name in names[2:7] if seen[name]["visible"]] == ["delete", "archive"]
    assert Path(seen["archive"]["value"]).is_file()
    assert asyncio.run(tab._list.show(None, "en", browser("a")))[6]["value"] == seen["archive"]["value"]
    asked = studio.jobs._jobs[seen["list"]["value"]]
    assert asked.settings.seed == 7 and asked.request(0).mode is Mode.CLONE

    for request in (browser("b"), None):
        other = asyncio.run(tab._list.show(seen["list"]["value"], "en", request))
        assert other[0]["choices"] == [] and other[6]["visible"] is False


def test_rows_that_bring_what_they_need_need_nothing_more() -> None:
    check_rows([Row("One.", voice="anna")], BatchSettings(Mode.CLONE))
    check_rows([Row("One.", instruction="calmly")], BatchSettings(Mode.INSTRUCT, CLIP))
    check_rows([Row("One.")], BatchSettings(Mode.CLONE, CLIP))
    for row, settings, code in [
        (Row("One."), BatchSettings(Mode.CLONE), "reference_missing"),
        (Row("One.", mode="instruct"), BatchSettings(Mode.CLONE, CLIP), "instruction_missing"),
    ]:
        with pytest.raises(RequestError) as raised:
            check_rows([row], settings)
        assert raised.value.code == code


def test_names_of_others_cannot_bring_markup_onto_the_page() -> None:
    failure = RowResult(0, code="worker_lost", message="<b>bad</b>")
    status = BatchStatus("x", "<img src=x onerror=alert(1)>.txt", 0.0, "running", 2, 1, (failure,), 1.0)
    html = progress_html(status, "en")
    assert "<img" not in html and "<b>" not in html and 'max="2" value="2"' in html


def add_take(studio: Studio, request: Any, name: str, **settings: Any) -> Path:
    path = studio.output_dir / name
    path.write_bytes(b"sound")
    studio.history.add(visitor_of(request), path, mode="instruct", text=f"Text of {name}.", seed=5, duration=1.0,
                       settings=settings)  # fmt: skip
    return path


def test_history_is_each_browser_s_and_goes_with_its_copies(
    tabs: tuple[BatchTab, HistoryTab], studio: Studio, tmp_path: Path
) -> None:
    tab = tabs[1]
    first, second = (add_take(studio, browser("a"), f"{name}.wav") for name in "12")
    chosen, status, player, facts, *_ = asyncio.run(tab._show(None, "en", browser("a")))
    assert len(chosen["choices"]) == 2 and "Text of 2.wav" in chosen["choices"][0][0] and status == ""
    copy = Path(player["value"])
    assert copy.read_bytes() == b"sound" and copy.is_relative_to(tmp_path / "cache") and "2.wav" in facts

    stranger = asyncio.run(tab._show(chosen["value"], "zh", browser("b")))
    assert stranger[0]["choices"] == [] and "还没有结果" in stranger[1] and stranger[2]["value"] is None
    asyncio.run(tab._remove(chosen["value"], "en", browser("b")))
    asyncio.run(tab._remove_all(None, "en", browser("b")))
    assert first.exists() and second.exists()

    left = asyncio.run(tab._remove(chosen["value"], "en", browser("a")))
    assert len(left[0]["choices"]) == 1 and not second.exists() and not copy.exists() and first.exists()
    asyncio.run(tab._remove_all(None, "en", browser("a")))
    assert not first.exists() and [path for path in (tmp_path / "cache").rglob("*") if path.is_file()] == []


def test_an_open_history_is_renewed_and_its_listener_left_alone(
    tabs: tuple[BatchTab, HistoryTab], studio: Studio
) -> None:
    tab = tabs[1]

    def renewed(is_open: bool, chosen: int | None) -> list[Any]:
        return asyncio.run(tab._renew(is_open, chosen, "en", browser("a")))

    assert "Nothing here" in renewed(True, None)[1]
    add_take(studio, browser("a"), "1.wav")
    (first,) = studio.history.takes(visitor_of(browser("a")))
    shown = renewed(True, None)
    assert shown[0]["value"] == first.id and Path(shown[2]["value"]).read_bytes() == b"sound"
    add_take(studio, browser("a"), "2.wav")
    listing, *rest = renewed(True, first.id)
    assert [line.split("Text of ")[1] for line, _ in listing["choices"]] == ["2.wav.", "1.wav."]
    assert listing["value"] == first.id and rest == [gr.skip()] * (len(shown) - 1)
    assert renewed(False, None) == [gr.skip()] * len(shown)  # a tab that is not open costs nothing


def test_the_history_follows_the_end_of_every_generation(tmp_path: Path) -> None:
    page = build_page(Studio(FakePool(), tmp_path), can_stream=True)
    named = {event.api_name: event._id for event in page.fns.values()}
    renewals = [event for event in page.fns.values() if event.fn and event.fn.__name__ == "_renew"]
    assert {event.trigger_after for event in renewals} == {named[mode.value] for mode in MODES}


@pytest.mark.parametrize(
    ("text", "read", "started", "line"),
    [
        ("One.\n", "1 row: One.", "Started: 1 row.", "of 1 row ·"),
        ("One.\nTwo.\n", "2 rows, the first one: One.", "Started: 2 rows.", "of 2 rows ·"),
    ],
)
def test_one_row_is_one_row(
    tabs: tuple[BatchTab, HistoryTab], tmp_path: Path, text: str, read: str, started: str, line: str
) -> None:
    clip = tmp_path / "clip.wav"
    clip.write_bytes(b"sound")
    file = lines(tmp_path, text)
    assert asyncio.run(tabs[0]._read(str(file), "en")) == read
    assert asyncio.run(tabs[0]._read(str(file), "zh")).startswith(f"共 {len(text.split())} 行")
    told, chosen, *_ = begin(tabs[0], browser("a"), file, clip=str(clip))
    assert told == started and line in chosen["choices"][0][0]


def test_every_kind_of_batch_file_is_named() -> None:
    with pytest.raises(RequestError) as raised:
        read_rows("b.pdf", b"x")
    for told in (
        raised.value.message,
        explain(raised.value, "zh"),
        *TEXTS["batch_file"].values(),
        *TEXTS["toast_table"].values(),
    ):
        assert all(ending in told for ending in ENDINGS)


def test_settings_are_filled_into_the_tab_they_came_from(
    tabs: tuple[BatchTab, HistoryTab], studio: Studio
) -> None:
    tab = tabs[1]
    add_take(studio, browser("a"), "1.wav", extra="calmly", speed=1.5)
    (take,) = studio.history.takes(visitor_of(browser("a")))
    told, selected, *updates = asyncio.run(tab._use_again(take.id, "en", browser("a")))
    assert "Instruct" in told and selected.selected == "instruct"
    filled = [update["value"] for update in updates if "value" in update]
    assert filled[:4] == ["Text of 1.wav.", "calmly", 1.5, 5]
    told, _, *updates = asyncio.run(tab._use_again(take.id, "en", browser("b")))
    assert told.startswith("⚠️") and all("value" not in update for update in updates)


def test_the_clip_of_a_take_comes_back_with_its_settings(
    tabs: tuple[BatchTab, HistoryTab], studio: Studio, tmp_path: Path
) -> None:
    clip = tmp_path / "me.wav"
    clip.write_bytes(b"my voice")
    given = {"mode": "clone", "text": "Hello.", "seed": 5, "duration": 1.0}
    for name, kept in (("1.wav", clip), ("2.wav", None)):
        (studio.output_dir / name).write_bytes(b"sound")
        studio.history.add(visitor_of(browser("a")), studio.output_dir / name, clip=kept, **given)
    clip.unlink()  # as uploads are, after some hours
    without, with_clip = studio.history.takes(visitor_of(browser("a")))
    told, _, *updates = asyncio.run(tabs[1]._use_again(with_clip.id, "en", browser("a")))
    (restored,) = (update["value"] for update in updates if str(update.get("value")).endswith("me.wav"))
    assert Path(restored).read_bytes() == b"my voice" and Path(restored).is_relative_to(tmp_path / "cache")
    assert "no longer there" not in told
    told, *_ = asyncio.run(tabs[1]._use_again(without.id, "zh", browser("a")))
    assert "请重新上传" in told
