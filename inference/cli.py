"""The command line: speak a text, check a model folder, download the public weights, build engines."""

from __future__ import annotations

import argparse
import importlib.util
import logging
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from inference.types import (
    AudioChunk,
    CheckpointError,
    EngineError,
    Mode,
    Reference,
    RequestError,
    SynthesisError,
    SynthesisRequest,
    Voice,
)

MODES = (Mode.CLONE, Mode.CROSS_LINGUAL, Mode.INSTRUCT, Mode.PRESET, Mode.CONVERT)
# A file's ending → the format in `frontend.encode`.
ENDINGS = {"": "wav", ".wav": "wav", ".flac": "flac", ".mp3": "mp3", ".ogg": "ogg", ".opus": "ogg"}
DOUBT = "The transcript does not fit the clip's length; please check it."  # as the page says it


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 done, 1 the engine failed, 2 the request or the model folder cannot be used."""
    args = build_parser().parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    commands = {"synthesize": synthesize, "check": check, "download": download, "build-engines": engines}
    try:
        return commands[args.command](args)
    except (RequestError, CheckpointError) as error:
        print(error.message, file=sys.stderr)
        return 2
    except SynthesisError as error:
        print(error.message, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return 130


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = argparse.ArgumentParser(prog="python -m inference", description=__doc__, allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    _add_synthesize(commands.add_parser("synthesize", help="speak a text", allow_abbrev=False))
    checking = commands.add_parser("check", help="check a model folder", allow_abbrev=False)
    checking.add_argument("folder", type=Path)
    loading = commands.add_parser(
        "download", help="fetch the public CosyVoice2-0.5B (3.1 GB)", allow_abbrev=False
    )
    loading.add_argument("--to", type=Path, default=None, help="folder (default: weights/CosyVoice2-0.5B)")
    loading.add_argument("--hub", default="auto", help="auto, modelscope or huggingface: which to try first")
    from inference.build_engines import add_arguments

    building = commands.add_parser(
        "build-engines", help="build TensorRT engines ahead, choose the fastest backends", allow_abbrev=False
    )
    add_arguments(building)
    return parser


def _add_synthesize(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--model-dir",
        type=Path,
        default=None,
        help="model folder (default: the public weights, fetched if a hub can be reached, else assets/nano)",
    )
    add("--mode", default=Mode.CLONE.value, help=", ".join(mode.value for mode in MODES))
    add("--text", default="", help="what to say")
    add("--reference", type=Path, default=None, help="a clip of the voice, any common format")
    add("--reference-text", default="", help="what is said in the clip (clone)")
    add("--voice", default="", help="a saved voice, instead of a clip")
    add("--voices-dir", type=Path, default=Path("voices"), help="where saved voices are kept")
    add("--instruction", default="", help="how to say it (instruct)")
    add("--speaker", default="", help="a speaker of the model folder (preset)")
    add("--source", type=Path, default=None, help="the speech to convert (convert)")
    add("--language", default="auto", help="auto, zh, en, …: how to read numbers")
    add(
        "--lexicon",
        type=Path,
        default=None,
        help="lines 'word = how to say it' (default: lexicon.txt, if any)",
    )
    add("--seed", type=int, default=0, help="the same seed gives the same sound")
    add("--speed", type=float, default=1.0, help="0.5 to 2.0; 1 is the model's own pace")
    add("--stream", action="store_true", help="make the sound in small pieces, the first one early")
    add("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    add("--precision", default="auto", help="auto, fp32, fp16 or bf16")
    add("--vocoder-backend", default="auto", help="auto, torch, channels_last or onnxruntime")
    add("--flow-backend", default="auto", help="auto, torch, fused or onnxruntime")
    add(
        "--out",
        type=Path,
        required=True,
        help=f"the file to write; its ending says what: {_allowed()}, or none: WAV",
    )


def request_of(args: argparse.Namespace) -> SynthesisRequest:
    """The request that the flags describe. Raises `RequestError("unknown_mode")` or ("file_not_found")."""
    names = [mode.value for mode in MODES]
    if args.mode not in names:
        known = ", ".join(names)
        raise RequestError("unknown_mode", f"Unknown mode {args.mode!r}; choose one of {known}.", modes=known)
    mode = Mode(args.mode)
    for path in (args.reference, args.source):
        if path is not None and not path.is_file():
            raise RequestError("file_not_found", f"There is no file {path}.", file=str(path))
    return SynthesisRequest(
        mode=mode,
        text=args.text,
        voice=args.speaker if mode is Mode.PRESET else _voice_of(args),
        instruction=args.instruction,
        source=None if args.source is None else Reference(args.source),
        speed=args.speed,
        seed=args.seed,
        stream=args.stream,
        language=args.language,
    )


def _voice_of(args: argparse.Namespace, model_dir: Path | None = None) -> Voice | Reference | None:
    """The saved voice for that model, else the clip. Raises `RequestError("voice_unknown")`."""
    if args.voice:
        from inference.voices import VoiceLibrary

        return VoiceLibrary(args.voices_dir, model_dir).load(args.voice)
    return None if args.reference is None else Reference(args.reference, args.reference_text)


def synthesize(args: argparse.Namespace) -> int:
    """Speak into a file and print the timings."""
    from inference.frontend.lexicon import find_lexicon
    from inference.model_choice import choose_model_dir
    from inference.validate import validate

    request = request_of(args)
    validate(request)  # before seconds are spent on loading
    lexicon = find_lexicon(args.lexicon)
    audio_format = format_of(args.out)
    if not args.out.parent.is_dir():
        raise RequestError(
            "file_not_found", f"There is no folder {args.out.parent} to write to.", file=str(args.out)
        )
    folder, sentence = choose_model_dir(args.model_dir)
    print(sentence)
    if args.voice and request.mode is not Mode.PRESET:
        request = replace(request, voice=_voice_of(args, folder))
    from inference.frontend.doubt import transcript_doubts

    if transcript_doubts(request):
        print(DOUBT, file=sys.stderr)
    from inference import CosyVoice

    started = time.perf_counter()
    engine = CosyVoice(
        folder,
        device=args.device,
        precision=args.precision,
        lexicon=lexicon,
        vocoder_backend=args.vocoder_backend,
        flow_backend=args.flow_backend,
    )
    loaded = time.perf_counter() - started
    chunks = list(engine.synthesize(request))
    if not chunks:
        raise EngineError("no_sound", "The model produced no sound; try again with another seed.")
    for text in dict.fromkeys(chunk.text for chunk in chunks if chunk.text):
        print(f"Spoken: {text}")
    seconds = _write(args.out, chunks, engine.sample_rate, audio_format)
    print(_report(chunks[-1], loaded, seconds))
    print(f"Wrote {args.out} ({seconds:.2f} s).")
    return 0


def format_of(path: Path) -> str:
    """The format that the file's name asks for. Raises `RequestError` audio_format_unknown, decoder_missing."""
    ending = path.suffix.lower()
    if ending not in ENDINGS:
        raise RequestError(
            "audio_format_unknown",
            f"--out: a file that ends with {path.suffix} cannot be written; choose one of {_allowed()}.",
            format=ending,
        )
    if ENDINGS[ending] != "wav" and not _has_av():
        raise RequestError("decoder_missing", "--out: only .wav can be written; `pip install av` for more.")
    return ENDINGS[ending]


def _has_av() -> bool:
    try:
        return importlib.util.find_spec("av") is not None
    except ValueError:  # it is marked as not to be imported
        return False


def _allowed() -> str:
    return ", ".join(ending for ending in ENDINGS if ending)


def _write(path: Path, chunks: Sequence[AudioChunk], sample_rate: int, audio_format: str) -> float:
    """Write all chunks as one file, complete or not at all; returns its length in seconds."""
    from inference.frontend.encode import encode_audio

    pcm = np.concatenate([chunk.pcm for chunk in chunks])
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        partial.write_bytes(encode_audio(pcm, sample_rate, audio_format))
        partial.replace(path)
    except OSError as error:
        raise EngineError(
            "write_failed", f"{path} cannot be written ({error.strerror}).", file=str(path)
        ) from error
    finally:
        partial.unlink(missing_ok=True)
    return len(pcm) / sample_rate


def _report(last: AudioChunk, loaded: float, seconds: float) -> str:
    spent = last.timings
    parts = [
        f"load {loaded:.2f} s",
        f"front end {spent.front_end:.2f} s",
        f"LM {spent.language_model:.2f} s",
        f"flow {spent.flow:.2f} s",
        f"vocoder {spent.vocoder:.2f} s",
        f"first sound {spent.first_audio:.2f} s",
        f"total {spent.total:.2f} s",
    ]
    if seconds > 0:
        parts.append(f"RTF {spent.total / seconds:.3f}")
    return ", ".join(parts)


def check(args: argparse.Namespace) -> int:
    """Print what is wrong with a folder, or what is in it."""
    from inference.checkpoint import check_folder, describe_folder

    findings = check_folder(args.folder)
    for finding in findings:
        print(finding.message, file=sys.stderr)
    if findings:
        return 2
    print("\n".join(describe_folder(args.folder)))
    print("The folder is complete.")
    return 0


def engines(args: argparse.Namespace) -> int:
    """Build what is missing and remember what is fastest here."""
    from inference.build_engines import build_engines

    return build_engines(args)


def download(args: argparse.Namespace) -> int:
    """Fetch the public weights, or what is missing of them."""
    from inference.download import download as fetch_all

    folder = fetch_all(args.to, args.hub, progress=sys.stderr.isatty())
    print(f"The model is complete in {folder}.")
    return 0
