"""Every setting of the studio: one field each, which is a flag of `app.py` and a variable of the environment too.

A field `server_port` is the flag `--server-port` and the variable `COSYVOICE_SERVER_PORT`.
To add a setting, add a field.
Nothing heavy is imported here: `--help` must be quick.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

PREFIX = "COSYVOICE_"
PUBLIC_REQUESTS, PUBLIC_RATE = 8, 60
# Read from the environment elsewhere; they are no flags.
OTHER_VARIABLES = ("VENV", "GRAPHS", "BENCH_SPEECH_TOKENS", "GOLDEN_DIR", "TEST_MODEL_DIR")


@dataclasses.dataclass(frozen=True)
class Flag:
    """How a field is given by a person. `parse` raises ValueError with a sentence that names what is wanted."""

    help: str
    parse: Callable[[str], Any] = str
    metavar: str = ""
    choices: tuple[str, ...] = ()
    switch: bool = False  # --name turns it on
    several: bool = False  # may be given more than once, or with several values
    shown_default: str | None = None  # in the help, where the value itself says too little


def port(text: str) -> int:
    """A TCP port. Checked here, as the system silently takes 70000 for 4464."""
    if text.isascii() and text.isdigit() and 1 <= int(text) <= 65535:
        return int(text)
    raise ValueError(f"{text!r} is not a port; give a whole number from 1 to 65535")


def count(text: str) -> int:
    """Nought or more of something."""
    if text.isascii() and text.isdigit() and int(text) < 10_000_000:
        return int(text)
    raise ValueError(f"{text!r} is not a number of things; give 0 or more")


def switch(text: str) -> bool:
    """A switch as a variable of the environment."""
    known = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False}
    known |= {"off": False, "": False}
    if text.strip().lower() in known:
        return known[text.strip().lower()]
    raise ValueError(f"{text!r} is neither yes nor no; give 1 or 0")


def root_path(text: str) -> str:
    """The path or address under which a proxy shows the page."""
    text = text.rstrip("/")
    if not text or text.startswith(("/", "http://", "https://")):
        return text
    raise ValueError(f"{text!r} is no path; give one like /studio, or a whole address")


def origin(text: str) -> str:
    """A web origin, or * for all."""
    text = text.rstrip("/")
    if text == "*" or (text.startswith(("http://", "https://")) and text.count("/") == 2):
        return text
    raise ValueError(f"{text!r} is no origin; give one like https://example.org, or * for all")


def _option(default: Any, help: str, **flag: Any) -> Any:
    return dataclasses.field(default=default, metadata={"flag": Flag(help, **flag)})


@dataclasses.dataclass(frozen=True)
class Options:
    """The settings of one run of the studio."""

    # Where the page is
    server_name: str = _option("127.0.0.1", "address to listen on; 0.0.0.0 for all", metavar="ADDRESS")
    server_port: int = _option(7860, "port of the page", parse=port, metavar="PORT")
    root_path: str = _option(
        "",
        "path or address under which a proxy shows the page, such as /studio",
        parse=root_path,
        metavar="PATH",
    )
    share: bool = _option(False, "also open a public link through Gradio's tunnel", switch=True)
    auth: tuple[str, ...] = _option(
        (),
        "ask visitors for a name and a password: USER:PASSWORD, or a file with one such line each; may be given again",
        several=True,
        metavar="USER:PASSWORD",
    )
    enable_cors: tuple[str, ...] = _option(
        (),
        "other sites whose pages may call this studio, such as https://example.org; * for all",
        parse=origin,
        several=True,
        metavar="ORIGIN",
    )
    language: str = _option(
        "auto", "language of the page; auto is the browser's", choices=("auto", "zh", "en")
    )
    open_browser: bool = _option(False, "open the page in this machine's browser", switch=True)

    # Model and workers
    model_dir: Path | None = _option(
        None,
        "folder with a CosyVoice2 model; without it the public one is fetched (3.1 GB) if a hub can be reached, "
        "else the small bundled one is taken, as with --model-dir assets/nano",
        parse=Path,
        metavar="DIR",
        shown_default="",
    )
    device: str = _option("auto", "auto (all GPUs, or the CPU), cpu, cuda, cuda:N, or several: cuda:0,cuda:2")
    precision: str = _option(
        "auto",
        "of the language model and the flow model; auto is half precision on a GPU where it is sound there",
        choices=("auto", "fp32", "fp16", "bf16"),
    )
    vocoder_backend: str = _option(
        "auto",
        "what runs the vocoder's convolutions; auto is the fastest that passes its self-test here",
        choices=("auto", "torch", "channels_last", "onnxruntime", "compiled", "triton", "tensorrt"),
    )
    flow_backend: str = _option(
        "auto",
        "what runs the flow's network; auto as above",
        choices=("auto", "torch", "fused", "onnxruntime", "compiled", "triton", "tensorrt"),
    )
    max_workers: int = _option(
        0,
        "worker processes, each with the whole model; 0: one a GPU, one on the CPU",
        parse=count,
        metavar="N",
    )
    concurrency_count: int = _option(
        0, "requests that one worker serves at once; 0: as many as fit", parse=count, metavar="N"
    )
    queue_size: int = _option(
        32,
        "requests that may wait for a free place; the next one is told that the studio is busy; 0: nobody waits",
        parse=count,
        metavar="N",
    )
    low_memory: bool = _option(False, "small caches and batches, for GPUs of 6 GB", switch=True)
    lexicon: Path | None = _option(
        None,
        "file of lines 'word = how to say it'",
        parse=Path,
        metavar="FILE",
        shown_default="lexicon.txt, if there is one",
    )

    # What is kept
    output_dir: Path = _option(Path("outputs"), "where finished sound is kept", parse=Path, metavar="DIR")
    keep_days: int = _option(30, "days until finished sound is removed; 0: never", parse=count, metavar="N")
    keep_gigabytes: int = _option(
        20,
        "size of finished sound beyond which the oldest is removed; 0: no bound",
        parse=count,
        metavar="N",
    )
    voices_dir: Path = _option(Path("voices"), "where saved voices are kept", parse=Path, metavar="DIR")
    lock_voices: bool = _option(
        False, "visitors may use the saved voices, but not change or export them", switch=True
    )
    asr_model: str = _option(
        "small",
        "model that writes down what clips say, where the package faster-whisper is installed: a name it knows, or a "
        "folder",
        metavar="NAME",
    )

    # What one visitor may take
    visitor_characters: int = _option(5000, "longest text of one request", parse=count, metavar="N")
    visitor_requests: int | None = _option(
        None,
        "requests that one visitor may have in hand at once; 0: any number",
        parse=count,
        metavar="N",
        shown_default=f"{PUBLIC_REQUESTS} where others can reach the studio",
    )
    visitor_rate: int | None = _option(
        None,
        "requests that one visitor may make in a minute; 0: any number",
        parse=count,
        metavar="N",
        shown_default=f"{PUBLIC_RATE} where others can reach the studio",
    )

    # API
    api: bool = _option(
        True, "leave out the API (/v1, /docs, /metrics); /health and /ready stay", switch=True
    )
    api_keys: Path = _option(
        Path("api_keys.json"),
        "file of API keys; `python -m webui.api.keys add NAME` makes one",
        parse=Path,
        metavar="FILE",
    )
    admin: str = _option(
        "",
        "user of --auth who may see the Monitor tab and /metrics",
        metavar="USER",
        shown_default="the first one",
    )
    log_json: bool = _option(False, "log lines as JSON objects, for machines", switch=True)


def flags() -> dict[str, Flag]:
    """Field name → its flag, in the order of the help."""
    return {field.name: cast(Flag, field.metadata["flag"]) for field in dataclasses.fields(Options)}


def flag_name(field: str) -> str:
    """ "server_port" → "--server-port"."""
    return "--" + field.replace("_", "-")


def variable_name(field: str) -> str:
    """ "server_port" → "COSYVOICE_SERVER_PORT"."""
    return PREFIX + field.upper()
