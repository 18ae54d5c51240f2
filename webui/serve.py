"""Starts the studio: worker pool, page, web server, share link; and ends it in order.

The page is opened as soon as it can be built. What is asked before a worker is warm waits in the pool's queue, and the
page says so.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from inference.collector import collector_off
from inference.types import EngineError
from webui.options import Options
from webui.pool_start import PoolStart
from webui.stop_signals import StopSignals
from webui.uploads import private_uploads

# The workers are started before the rest is imported: they have the most to do.
if TYPE_CHECKING:
    from inference.pool import WorkerPool
    from webui.logins import Logins
    from webui.server import WebServer
    from webui.studio import Studio

logger = logging.getLogger(__name__)

DRAIN_SECONDS = 30.0  # for what is being spoken when the studio is told to stop
LINGER_SECONDS = 2.0  # for browsers to fetch what has just been finished
LOOK_SECONDS = 0.1
USUAL_WORKERS = 8  # at most, where the pool chooses
FLOOD = 64  # clicks beyond, before Gradio refuses them itself, in English
BATCH_SHARE = 4  # one in so many places may be taken by batches


def serve(options: Options) -> None:
    """Serve the page, and load the model beside it, until SIGINT or SIGTERM; then finish what is being spoken.

    Raises `CheckpointError` for an unusable model folder, `RequestError` for settings that cannot be met,
    `EngineError` port_taken for an address or port that cannot be had, and voices_not_writable.
    """
    from webui.logins import Logins
    from webui.start_checks import check_start

    _check_port(options.server_name, options.server_port)
    logins = Logins.read(options.auth)
    logins.admin = options.admin
    check_start(options, logins)
    from inference.frontend.lexicon import find_lexicon
    from inference.model_choice import choose_model_dir

    words = find_lexicon(options.lexicon)
    folder, sentence = choose_model_dir(options.model_dir)
    with StopSignals() as signals, private_uploads():
        print(sentence, flush=True)
        pool = _make_pool(options, folder, words)
        try:
            start = PoolStart(pool)
            with collector_off():
                _import_page()
            start.done()  # a folder that cannot be loaded is often told by now
            if not signals.stopped:
                from webui.metrics import MeteredPool, Metrics

                # From here on all that is asked is counted, whichever way it comes.
                metered = cast("WorkerPool", MeteredPool(pool, Metrics(pool.status), "page"))
                with _open_studio(metered, options, folder, words, logins) as studio:
                    _serve(metered, studio, options, folder, start, signals)
        finally:
            pool.close()


def _make_pool(options: Options, folder: Path, words: Path | None) -> WorkerPool:
    from inference.pool import WorkerPool
    from inference.settings import PoolSettings
    from inference.voices import VoiceLibrary

    settings = PoolSettings(
        model_dir=folder,
        lexicon=words,
        devices=tuple(name.strip() for name in options.device.split(",")),
        precision=options.precision,
        vocoder_backend=options.vocoder_backend,
        flow_backend=options.flow_backend,
        max_workers=options.max_workers,
        concurrency=options.concurrency_count,
        queue_size=options.queue_size,
        low_memory=options.low_memory,
        log_json=options.log_json,
    )
    return WorkerPool(settings, VoiceLibrary(options.voices_dir, folder, locked=options.lock_voices))


def _import_page() -> None:
    os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # the page asks nothing of the outside world
    from webui.gradio_import import import_gradio

    import_gradio()
    import webui.api.app
    import webui.page.layout
    import webui.server  # noqa: F401


@contextlib.contextmanager
def _open_studio(
    pool: WorkerPool, options: Options, folder: Path, words: Path | None, logins: Logins
) -> Iterator[Studio]:
    from webui.caretaker import Caretaker
    from webui.limits import limits_of
    from webui.outputs import DAY, GIGABYTE, Retention
    from webui.preview import TextPreview
    from webui.share import is_public
    from webui.studio import Studio
    from webui.transcribe import find_transcriber

    studio = Studio(
        pool,
        options.output_dir,
        voices=pool.voices,
        texts=TextPreview(folder, words),
        transcriber=find_transcriber(options.asr_model),
        limits=limits_of(options),
        retention=Retention(options.keep_days * DAY, options.keep_gigabytes * GIGABYTE),
        logins=logins,
    )
    studio.sharing.unguarded = (options.share or is_public(options.server_name)) and not logins.required
    if studio.sharing.unguarded:
        logger.warning(
            "Anybody who can reach this studio may use it; --auth USER:PASSWORD asks for a password."
        )
    try:
        with Caretaker(studio.clean):
            yield studio
    finally:
        studio.close()


def _most_places(options: Options) -> int:
    """Clicks that the page lets through at once. The pool, which may still be starting, has no more places."""
    from inference.settings import USUAL_REQUESTS

    workers = options.max_workers or USUAL_WORKERS
    return workers * (options.concurrency_count or USUAL_REQUESTS) + options.queue_size + FLOOD


def _places(pool: WorkerPool) -> int:
    """Requests that sound together."""
    return sum(worker.concurrency for worker in pool.status().workers)


def _serve(
    pool: WorkerPool,
    studio: Studio,
    options: Options,
    folder: Path,
    start: PoolStart,
    signals: StopSignals,
) -> None:
    with collector_off():
        server = _open_page(pool, studio, options, folder)
    try:
        if options.share:
            studio.sharing.open(options.server_port)
        if options.open_browser:
            _open_browser(server.url + "/")
        while not start.done() and not signals.wait(LOOK_SECONDS):
            pass
        if not signals.stopped:
            print(f"The model is ready ({start.seconds:.0f} s).", flush=True)
            studio.jobs.allow(_places(pool) // BATCH_SHARE)
            studio.jobs.begin()
        signals.wait()
        print("Stopping; what is being spoken is finished first (again to stop at once).", flush=True)
        studio.jobs.close()  # a batch goes on at the next start
        _drain(pool, studio, signals)
    finally:
        server.close()


def _open_page(pool: WorkerPool, studio: Studio, options: Options, folder: Path) -> WebServer:
    """Serve the page in threads of its own."""
    from inference.download import BUNDLED
    from webui.ffmpeg import be_patient_with_encoder, ensure_ffmpeg
    from webui.page.layout import build_page
    from webui.server import WebServer, build_app
    from webui.share import own_address

    be_patient_with_encoder()
    notice = "notice_bundled" if folder.resolve() == BUNDLED.resolve() else None
    page: Any = build_page(studio, can_stream=ensure_ffmpeg(), notice=notice, language=options.language)
    # The waiting room is the pool's, which every front shares and which tells visitors their place. Gradio lets all
    # through that can be served or wait there, and some more, so that it is the pool that says "busy".
    most = _most_places(options)
    page.queue(default_concurrency_limit=most, max_size=most)
    server = WebServer(build_app(studio, pool, page, options), options.server_name, options.server_port)
    server.start()
    print(f"Studio: {server.url}", flush=True)
    if options.server_name in ("0.0.0.0", "::") and (address := own_address()):
        print(f"In your network: http://{address}:{options.server_port}", flush=True)
    return server


def _open_browser(url: str) -> None:
    import webbrowser

    try:
        opened = webbrowser.open(url)
    except webbrowser.Error:
        opened = False
    if not opened:
        print("No browser could be opened here; open the address above in one.", flush=True)


def _drain(pool: WorkerPool, studio: Studio, signals: StopSignals) -> None:
    """Finish what is live and hand it out, until the time is over or another signal comes."""
    if not pool.status().ready:  # nothing is live yet
        pool.close()
        return
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
    except (OSError, OverflowError, UnicodeError) as error:
        raise EngineError(
            "port_taken",
            f"Cannot listen on {name}:{port} ({error}); {_way_out(error)}.",
            port=port,
        ) from error


def _way_out(error: Exception) -> str:
    if isinstance(error, socket.gaierror | UnicodeError):
        return "choose --server-name: this one is no address that is known here"
    number = getattr(error, "errno", None)
    if number in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
        return "choose --server-name: this machine has no such address"
    if number == errno.EACCES:
        return "choose --server-port: a port from 1024 on needs no special rights"
    return "stop the other program or choose --server-port"
