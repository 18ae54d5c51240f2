"""The real web application over a pool without a model, on a port of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.browser.conftest import free_port
from tests.webui.fake_pool import FakePool
from webui.logins import Logins
from webui.options import Options
from webui.studio import Studio


@dataclass(frozen=True)
class Served:
    url: str
    studio: Studio
    pool: FakePool


@contextmanager
def serving(
    folder: Path, pool: FakePool | None = None, can_stream: bool = False, **settings: Any
) -> Iterator[Served]:
    """`settings`: fields of `Options`."""
    from webui.page.layout import build_page
    from webui.server import WebServer, build_app

    options = Options(server_port=free_port(), api=False, output_dir=folder / "outputs", **settings)
    pool = pool or FakePool()
    studio = Studio(pool, options.output_dir, logins=Logins.read(options.auth))
    page = build_page(studio, can_stream=can_stream)
    page.queue(default_concurrency_limit=10, max_size=10)
    server = WebServer(build_app(studio, pool, page, options), options.server_name, options.server_port)
    server.start()
    try:
        yield Served(server.url, studio, pool)
    finally:
        server.close()
        studio.close()
