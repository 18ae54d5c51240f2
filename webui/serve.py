"""Starts the studio: worker pool, page, web server, share link; and ends it in order."""

from __future__ import annotations

import logging
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inference.types import EngineError
from webui.ffmpeg import be_patient_with_encoder, ensure_ffmpeg
from webui.stop_signals import StopSignals
from webui.studio import Studio

if TYPE_CHECKING:
    from inference.pool import WorkerPool

logger = logging.getLogger(__name__)

MAX_UPLOAD = "100mb"
DRAIN_SECONDS = 30.0  # for what is being spoken when the studio is told to stop
LINGER_SECONDS = 2.0  # for browsers to fetch what has just been finished
FLOOD = 64  # clicks that Gradio may hold back before it refuses them itself, in English


def serve(
    *,
    server_name: str,
    server_port: int,
    model_dir: Path | None,
    device: str,
    precision: str = "auto",
    vocoder_backend: str = "auto",
    max_workers: int = 0,
    concurrency: int = 0,
    queue_size: int = 32,
    low_memory: bool = False,
    output_dir: Path,
    share: bool,
    lexicon: Path | None = None,
) -> None:
    """Load the model and serve the page until SIGINT or SIGTERM, then finish what is being spoken.

    Raises `CheckpointError` for an unusable model folder, `RequestError` for settings that cannot be met and
    `EngineError("port_taken")` for a busy port.
    """
    _check_port(server_name, server_port)
    from inference.download import BUNDLED
    from inference.frontend.lexicon import find_lexicon
    from inference.model_choice import choose_model_dir
    from inference.pool import WorkerPool
    from inference.settings import PoolSettings

    words = find_lexicon(lexicon)
    folder, sentence = choose_model_dir(model_dir)
    print(sentence, flush=True)
    pool = WorkerPool(
        PoolSettings(
            model_dir=folder,
            lexicon=words,
            devices=tuple(name.strip() for name in device.split(",")),
            precision=precision,
            vocoder_backend=vocoder_backend,
            max_workers=max_workers,
            concurrency=concurrency,
            queue_size=queue_size,
            low_memory=low_memory,
        )
    )
    with StopSignals() as signals:
        try:
            _start(pool, signals)
            if signals.stopped:
                return
            notice = "notice_bundled" if folder.resolve() == BUNDLED.resolve() else None
            studio = Studio(pool, output_dir)
            places = sum(worker.concurrency for worker in pool.status().workers) + queue_size
            page = _open_page(studio, places, server_name, server_port, share, notice)
            signals.wait()
            print("Stopping; what is being spoken is finished first (again to stop at once).", flush=True)
            _drain(pool, studio, signals)
            page.close(verbose=False)
        finally:
            pool.close()


def _start(pool: WorkerPool, signals: StopSignals) -> None:
    """Wait until the pool can speak, or a signal; Gradio, which takes as long to import, is imported meanwhile."""
    os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # the page asks nothing of the outside world
    with ThreadPoolExecutor(1, thread_name_prefix="start") as executor:
        starting = executor.submit(pool.start_blocking)
        try:
            import webui.page.layout  # noqa: F401

            while not starting.done() and not signals.wait(0.1):
                pass
        finally:
            if not starting.done():
                pool.close()
        if not signals.stopped:
            starting.result()


def _open_page(
    studio: Studio, places: int, server_name: str, server_port: int, share: bool, notice: str | None
) -> Any:
    """Serve the page in threads of its own; `places`: requests that the pool takes, waiting ones included."""
    from webui.page.layout import CSS, build_page

    be_patient_with_encoder()
    page = build_page(studio, can_stream=ensure_ffmpeg(), notice=notice)
    # The waiting room is the pool's, which every front shares and which tells visitors their place. Gradio lets all
    # through that can be served or wait there, and some more, so that it is the pool that says "busy".
    page.queue(default_concurrency_limit=places + FLOOD, max_size=places + FLOOD)
    _, local_url, share_url = page.launch(
        server_name=server_name,
        server_port=server_port,
        share=share,
        allowed_paths=[str(studio.output_dir.resolve())],
        max_file_size=MAX_UPLOAD,
        css_paths=[CSS],
        footer_links=[],
        run_history=False,  # it would keep every visitor's texts in a browser that others may use too
        enable_monitoring=False,
        ssr_mode=False,
        prevent_thread_lock=True,
        quiet=True,
    )
    print(f"Studio: {local_url}", flush=True)
    if share:
        if share_url:
            print(f"Public link: {share_url}", flush=True)
        else:
            print(
                "No public link: Gradio's tunnel cannot be reached from here. The studio runs locally.",
                flush=True,
            )
    return page


def _drain(pool: WorkerPool, studio: Studio, signals: StopSignals) -> None:
    """Finish what is live and hand it out, until the time is over or another signal comes."""
    signals.clear()
    linger = LINGER_SECONDS if studio.speaking else 0.0
    with ThreadPoolExecutor(1, thread_name_prefix="drain") as executor:
        draining = executor.submit(pool.drain_blocking, DRAIN_SECONDS)
        while not draining.done() and not signals.wait(0.1):
            pass
        if not draining.done():
            pool.close()
            return
    signals.wait(linger)


def _check_port(name: str, port: int) -> None:
    try:
        family, kind, _, _, address = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except (OSError, OverflowError) as error:
        raise EngineError(
            "port_taken",
            f"Cannot listen on {name}:{port} ({error}); stop the other program or choose --server-port.",
            port=port,
        ) from error
