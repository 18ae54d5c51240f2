"""Entry point of the studio: read the flags, load the model, open the page."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path


def _port(text: str) -> int:
    # Checked here, as the system silently takes 70000 for 4464.
    if text.isascii() and text.isdigit() and 1 <= int(text) <= 65535:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a port; give a whole number from 1 to 65535")


def _count(text: str) -> int:
    if text.isascii() and text.isdigit() and int(text) < 100_000:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a number of things; give 0 or more")


def build_parser() -> argparse.ArgumentParser:
    """The flags of `./run.sh` and `python app.py`."""
    parser = argparse.ArgumentParser(
        prog="app.py",
        description="CosyVoice2 voice-cloning studio.",
        allow_abbrev=False,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--server-name", default="127.0.0.1", help="address to listen on; 0.0.0.0 for all")
    parser.add_argument("--server-port", type=_port, default=7860, help="port of the page")
    parser.add_argument(
        "--model-dir",
        type=Path,
        default=None,
        help="folder with a CosyVoice2 model; without it the public one is fetched (3.1 GB) if a hub can be reached, "
        "else the small bundled one is taken, as with --model-dir assets/nano",
    )
    parser.add_argument(
        "--device",
        default="auto",
        help="auto (all GPUs, or the CPU), cpu, cuda, cuda:N, or several: cuda:0,cuda:2",
    )
    parser.add_argument(
        "--precision",
        choices=("auto", "fp32", "fp16", "bf16"),
        default="auto",
        help="of the language model and the flow model; auto is half precision on a GPU where it is sound there",
    )
    parser.add_argument(
        "--vocoder-backend",
        choices=("auto", "torch", "channels_last", "onnxruntime"),
        default="auto",
        help="what runs the vocoder's convolutions on the CPU; auto is the fastest that passes its self-test",
    )
    parser.add_argument(
        "--max-workers",
        type=_count,
        default=0,
        help="worker processes, each with the whole model; 0: one a GPU, one on the CPU",
    )
    parser.add_argument(
        "--concurrency-count",
        type=_count,
        default=0,
        help="requests that one worker serves at once; 0: as many as fit its device",
    )
    parser.add_argument(
        "--queue-size",
        type=_count,
        default=32,
        help="requests that may wait for a free place; the next one is told that the studio is busy",
    )
    parser.add_argument(
        "--low-memory", action="store_true", help="small caches and batches, for GPUs of 6 GB"
    )
    parser.add_argument(
        "--output-dir", type=Path, default=Path("outputs"), help="where finished sound is kept"
    )
    parser.add_argument(
        "--lexicon",
        type=Path,
        default=None,
        help="file of lines 'word = how to say it' (default: lexicon.txt beside this program, if any)",
    )
    parser.add_argument(
        "--share", action="store_true", help="also open a public link through Gradio's tunnel"
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the studio until it is interrupted; 2 when it cannot start because of how it was called,
    130 when it was interrupted before it was up."""
    args = build_parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # Gradio asks its own server whether it is up
    from inference.types import SynthesisError
    from webui.serve import serve

    try:
        serve(
            server_name=args.server_name,
            server_port=args.server_port,
            model_dir=args.model_dir,
            device=args.device,
            precision=args.precision,
            vocoder_backend=args.vocoder_backend,
            max_workers=args.max_workers,
            concurrency=args.concurrency_count,
            queue_size=args.queue_size,
            low_memory=args.low_memory,
            output_dir=args.output_dir,
            share=args.share,
            lexicon=args.lexicon,
        )
    except SynthesisError as error:
        print(error.message, file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # while the model was loading; the page itself ends on it quietly
        return 130
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
