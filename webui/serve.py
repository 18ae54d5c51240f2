"""Starts the studio: model, page, web server, share link."""

from __future__ import annotations

import logging
import os
import socket
from pathlib import Path

from inference.types import EngineError
from webui.ffmpeg import be_patient_with_encoder, ensure_ffmpeg

logger = logging.getLogger(__name__)

MAX_UPLOAD = "100mb"
QUEUE_SIZE = 32


def serve(
    *,
    server_name: str,
    server_port: int,
    model_dir: Path | None,
    device: str,
    output_dir: Path,
    share: bool,
    lexicon: Path | None = None,
) -> None:
    """Load the model and serve the page until interrupted.

    Raises `CheckpointError` for an unusable model folder and `EngineError("port_taken")` for a busy port.
    """
    _check_port(server_name, server_port)
    from inference import CosyVoice
    from inference.download import BUNDLED
    from inference.frontend.lexicon import find_lexicon
    from inference.model_choice import choose_model_dir

    words = find_lexicon(lexicon)
    folder, sentence = choose_model_dir(model_dir)
    print(sentence, flush=True)
    engine = CosyVoice(folder, device=device, lexicon=words)
    can_stream = ensure_ffmpeg()

    # Before Gradio is imported: the page asks nothing of the outside world.
    os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
    from webui.page.layout import CSS, build_page
    from webui.studio import Studio

    be_patient_with_encoder()
    page = build_page(
        Studio(engine, output_dir),
        can_stream=can_stream,
        notice="notice_bundled" if folder.resolve() == BUNDLED.resolve() else None,
    )
    page.queue(max_size=QUEUE_SIZE, default_concurrency_limit=1)
    _, local_url, share_url = page.launch(
        server_name=server_name,
        server_port=server_port,
        share=share,
        allowed_paths=[str(output_dir.resolve())],
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
    page.block_thread()


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
