"""Dashboard, alerts and the Monitor tab: nothing in them names a metric that there is not."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gradio as gr
import httpx
import pytest
import yaml

from inference.types import EngineError, Mode, SynthesisRequest
from tests.webui.api.support import TonePool, tone_voice
from webui.gpu import Gpu
from webui.logins import Logins
from webui.metrics import MeteredPool, Metrics
from webui.page.context import PageContext
from webui.page.monitor_tab import MonitorTab, board, quantiles

pytestmark = pytest.mark.unit

FOLDER = Path(__file__).resolve().parents[3] / "deploy" / "monitoring"
PROMTOOL = os.environ.get("PROMTOOL") or shutil.which("promtool")
GPU = Gpu(0, "H200", 0.5, 10 * 2**30, 140 * 2**30, 300.0, 60.0)


class OneGpu:
    def read(self) -> list[Gpu]:
        return [GPU]


def metrics_after_some_requests() -> Metrics:
    pool = TonePool()
    metrics = Metrics(pool.status, OneGpu())  # type: ignore[arg-type]
    metered = MeteredPool(pool, metrics, "api")

    async def speak(fail_at: int | None, front: str) -> None:
        pool.fail_at = fail_at
        pool.error = EngineError("worker_lost", "It <was> lost.")
        request = SynthesisRequest(Mode.CLONE, "Hi.", tone_voice(), request_id="req_7")
        try:
            async for _ in metered.for_front(front).submit(request):
                pass
        except EngineError:
            pass

    asyncio.run(speak(None, "api"))
    asyncio.run(speak(1, "page"))
    metrics.http.labels("/v1/clone", "POST", "200").inc()
    return metrics


@pytest.fixture(scope="module")
def metrics() -> Metrics:
    return metrics_after_some_requests()


@pytest.fixture(scope="module")
def samples(metrics: Metrics) -> set[str]:
    """Names of all series."""
    lines = metrics.text().decode().splitlines()
    return {re.split(r"[{ ]", line)[0] for line in lines if not line.startswith("#")}


def named(query: str) -> set[str]:
    return set(re.findall(r"\b(?:cosyvoice|process)_\w+", query))


def test_every_panel_shows_series_that_there_are(samples: set[str]) -> None:
    dashboard = json.loads((FOLDER / "grafana-dashboard.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(queries) > 40
    for query in [*queries, dashboard["templating"]["list"][1]["query"]]:
        assert named(query) and named(query) <= samples, query
    # And every series of ours is looked at, or is the count of a histogram that is.
    shown = set().union(*map(named, queries))
    rest = {
        name
        for name in samples
        if name.startswith("cosyvoice") and not name.endswith(("_created", "_sum", "_count"))
    }
    rest = {name for name in rest - shown if not name.startswith("cosyvoice_pool_")}
    assert rest == {
        "cosyvoice_worker_live_requests",
        "cosyvoice_worker_places",
        "cosyvoice_worker_audio_seconds_total",
    }


def test_the_dashboard_is_what_its_program_writes() -> None:
    spec = importlib.util.spec_from_file_location("make_dashboard", FOLDER / "make_dashboard.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (FOLDER / "grafana-dashboard.json").read_text() == module.text()


def test_alerts_look_at_series_that_there_are(samples: set[str]) -> None:
    rules = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"][0]["rules"]
    assert len(rules) >= 8
    for rule in rules:
        assert named(rule["expr"]) <= samples, rule["alert"]
        assert rule["annotations"]["summary"] and rule["labels"]["severity"]


@pytest.mark.skipif(PROMTOOL is None, reason="no promtool (apt-get install prometheus)")
def test_promtool_finds_nothing_wrong(metrics: Metrics) -> None:
    for command in (
        ["check", "config", "prometheus.yml"],
        ["check", "rules", "alerts.yml"],
        ["test", "rules", "alerts_test.yml"],
    ):
        done = subprocess.run(
            [str(PROMTOOL), *command], cwd=FOLDER, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stdout + done.stderr
    done = subprocess.run(
        [str(PROMTOOL), "check", "metrics"], input=metrics.text(), capture_output=True, timeout=60
    )
    assert done.returncode == 0 and not done.stderr, done.stderr.decode()


def test_nvml_is_read_where_there_is_none() -> None:
    assert Metrics(TonePool().status).gpus.read() == []


# ---------------------------------------------------------------------------------------- the Monitor tab
@pytest.mark.parametrize(
    ("language", "words"),
    [
        (
            "en",
            (
                "First sound",
                "1 finished",
                "1 failed",
                "worker_lost",
                "req_7",
                "vocoder torch",
                "It &lt;was&gt; lost.",
            ),
        ),
        ("zh", ("首声延迟", "req_7", "正在合成的进程出了故障")),
    ],
)
def test_the_board_tells_what_goes_on(metrics: Metrics, language: str, words: tuple[str, ...]) -> None:
    shown = board(metrics, language)
    assert all(word in shown for word in words) and "H200" in shown and "10.0 / 140.0 GiB" in shown
    assert "<was>" not in shown


def test_quantiles() -> None:
    assert quantiles([]) == {}
    assert quantiles(list(range(101))) == {"p50": 50, "p95": 95, "p99": 99}


def tab(metrics: Metrics, logins: Logins) -> MonitorTab:
    studio: Any = SimpleNamespace(pool=MeteredPool(None, metrics, "page"), logins=logins)
    with gr.Blocks():
        return MonitorTab(PageContext(studio, gr.Radio(["zh", "en"]), True))


def visitor(client: str = "127.0.0.1", host: str = "localhost", user: str | None = None) -> Any:
    from starlette.requests import Request

    scope = {"type": "http", "headers": [(b"host", host.encode())], "client": (client, 1)}
    return SimpleNamespace(username=user, request=Request(scope))


def test_only_the_administrator_sees_it(metrics: Metrics) -> None:
    guarded = tab(metrics, Logins({"ann": "x", "bob": "y"}))
    for request, may in ((visitor(user="ann"), True), (visitor(user="bob"), False), (visitor(), False)):
        visible, _, _ = guarded._open("en", request)
        assert visible["visible"] is may
        assert bool(guarded._look("en", request)) is may
        assert guarded._begin("en", request)[0]["active"] is may
    open_to_all = tab(metrics, Logins({}))
    assert open_to_all.may_watch(visitor())
    assert not open_to_all.may_watch(visitor(host="x.gradio.live"))
    assert not open_to_all.may_watch(visitor(client="10.0.0.3"))


def test_a_studio_without_metrics_has_no_such_tab() -> None:
    with gr.Blocks() as page:
        MonitorTab(PageContext(SimpleNamespace(pool=None, logins=Logins({})), gr.Radio(["zh"]), True))  # type: ignore[arg-type]
    assert not any(isinstance(block, gr.Tab) for block in page.blocks.values())


def test_the_metrics_of_the_api_are_those(client: httpx.Client, samples: set[str]) -> None:
    client.post("/v1/clone", json={"text": "Hi.", "voice": "Anna"})
    text = client.get("/metrics").text
    assert {line.split(" ")[2] for line in text.splitlines() if line.startswith("# TYPE cosyvoice")} >= {
        name.removesuffix("_total") for name in samples if name.startswith("cosyvoice_worker")
    } or "cosyvoice_worker_up" in text
