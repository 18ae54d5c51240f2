"""The command line: what it prints, writes and returns."""

from __future__ import annotations

import subprocess
import sys
import wave
from pathlib import Path

import pytest

from inference.cli import format_of, main
from inference.types import RequestError
from inference.voices import VoiceLibrary
from tests.golden_data import ROOT
from tests.make_clips import speech, wav_bytes
from tests.voice_support import made_voice, prepared_clip
from webui.page.texts import TEXTS


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    path = tmp_path / "clip.wav"
    path.write_bytes(wav_bytes(speech(4.0, 16000), 16000))
    return path


@pytest.mark.e2e
@pytest.mark.parametrize("stream", [False, True])
def test_synthesize_writes_a_wav_and_tells_timings(
    random_model_dir: Path, clip: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], stream: bool
) -> None:
    out = tmp_path / "out.wav"
    flags = [
        "--model-dir",
        str(random_model_dir),
        "--mode",
        "cross_lingual",
        "--text",
        "hello world",
        "--seed",
        "3",
    ]
    status = main(["synthesize", *flags, "--reference", str(clip), "--out", str(out), *["--stream"] * stream])
    said = capsys.readouterr()
    assert status == 0, said.err
    for word in ("front end", "LM", "flow", "vocoder", "RTF", str(random_model_dir)):
        assert word in said.out
    with wave.open(str(out)) as sound:
        assert sound.getframerate() == 24000 and sound.getnchannels() == 1 and sound.getnframes() > 0
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".part")] == []


@pytest.mark.e2e
def test_a_saved_voice_speaks(
    random_model_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    library = VoiceLibrary(tmp_path / "voices")  # of another model: the clip is prepared anew
    library.save("Anna", made_voice(), prepared_clip())
    flags = ["--voices-dir", str(library.folder), "--text", "hello", "--out", str(tmp_path / "out.wav")]
    flags += ["--model-dir", str(random_model_dir)]
    assert main(["synthesize", "--voice", "anna", *flags]) == 0, capsys.readouterr().err
    assert (tmp_path / "out.wav").is_file()
    assert main(["synthesize", "--voice", "nobody", *flags]) == 2
    assert "no saved voice 'nobody'" in capsys.readouterr().err


@pytest.mark.unit
@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--mode", "sing"], "Unknown mode"),
        (["--reference", "nowhere.wav"], "no file nowhere.wav"),
        ([], "Upload or record"),
        (["--reference", "CLIP", "--speed", "9"], "speed"),
        (["--reference", "CLIP", "--text", " \n"], "Write the text"),
        (["--reference", "CLIP", "--lexicon", "/nowhere"], "lexicon /nowhere"),
        (["--reference", "CLIP", "--mode", "instruct"], "instruction"),
        (["--reference", "CLIP", "--model-dir", "/nowhere"], "no model folder /nowhere"),
        (["--reference", "CLIP", "--out", "/nowhere/out.wav"], "no folder /nowhere"),
        (
            ["--reference", "CLIP", "--out", "out.aac"],
            ".aac cannot be written; choose one of .wav, .flac, .mp3",
        ),
        (["--reference", "CLIP", "--out", "out.5"], ".5 cannot be written"),
    ],
)
def test_a_bad_request_is_one_sentence_and_2(
    flags: list[str], said: str, clip: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.wav"
    named = [str(clip) if flag == "CLIP" else flag for flag in flags]
    assert main(["synthesize", "--text", "hi", "--out", str(out), *named]) == 2
    error = capsys.readouterr().err.strip()
    assert said in error and "\n" not in error and "Traceback" not in error
    assert not out.exists()


@pytest.mark.e2e
def test_the_lexicon_is_used_and_the_spoken_text_shown(
    random_model_dir: Path, clip: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = tmp_path / "words.txt"
    words.write_text("sql = sequel\n", encoding="utf-8")
    flags = ["--model-dir", str(random_model_dir), "--mode", "cross_lingual", "--reference", str(clip)]
    flags += ["--text", "Two SQL and 3.", "--lexicon", str(words), "--out", str(tmp_path / "out.wav")]
    assert main(["synthesize", *flags]) == 0
    assert "Spoken: Two sequel and three.\n" in capsys.readouterr().out
    words.write_text("sql\n", encoding="utf-8")
    assert main(["synthesize", *flags]) == 2
    assert "Line 1 of" in capsys.readouterr().err


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("name", "magic"),
    [
        ("a.mp3", (b"ID3", b"\xff\xfb", b"\xff\xf3")),
        ("a.FLAC", (b"fLaC",)),
        ("a.opus", (b"OggS",)),
        ("a.ogg", (b"OggS",)),
        ("a", (b"RIFF",)),
    ],
)
def test_the_files_name_says_its_format(
    random_model_dir: Path,
    clip: Path,
    tmp_path: Path,
    name: str,
    magic: tuple[bytes, ...],
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = ["--model-dir", str(random_model_dir), "--mode", "cross_lingual", "--reference", str(clip)]
    status = main(["synthesize", *flags, "--text", "hello", "--out", str(tmp_path / name)])
    said = capsys.readouterr()
    assert status == 0 and said.err == "", said.err
    assert (tmp_path / name).read_bytes().startswith(magic)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, clip.name])


@pytest.mark.unit
def test_without_av_only_wav_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(RequestError, match="pip install av") as raised:
        format_of(Path("a.mp3"))
    assert raised.value.code == "decoder_missing"
    assert format_of(Path("a.wav")) == format_of(Path("a")) == "wav"


@pytest.mark.e2e
@pytest.mark.parametrize("mode", ["clone", "cross_lingual"])
def test_a_transcript_that_does_not_fit_is_told(
    random_model_dir: Path, clip: Path, tmp_path: Path, mode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--model-dir", str(random_model_dir), "--mode", mode, "--reference", str(clip)]
    flags += ["--text", "hello", "--out", str(tmp_path / "out.wav")]
    told = []
    for transcript in ("No.", "One two three four five six seven eight."):
        assert main(["synthesize", *flags, "--reference-text", transcript]) == 0
        told.append(capsys.readouterr().err)
    assert told == ([f"{TEXTS['doubtful']['en']}\n", ""] if mode == "clone" else ["", ""])


@pytest.mark.unit
def test_check_accepts_and_refuses(
    random_model_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(random_model_dir)]) == 0
    assert "complete" in capsys.readouterr().out
    assert main(["check", str(tmp_path)]) == 2
    assert "cosyvoice2.yaml" in capsys.readouterr().err


@pytest.mark.unit
def test_download_offline_is_one_sentence_and_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert main(["download", "--to", str(tmp_path)]) == 2
    assert "HF_HUB_OFFLINE" in capsys.readouterr().err
    assert main(["download", "--to", str(tmp_path), "--hub", "elsewhere"]) == 2


@pytest.mark.unit
def test_help_is_quick_and_needs_no_heavy_library() -> None:
    heavy = "torch gradio fastapi pydantic av onnxruntime wetext"
    code = (
        "import sys, inference.cli as cli\n"
        "try: cli.main(['synthesize', '--help'])\n"
        "except SystemExit: pass\n"
        f"print(sorted(set({heavy.split()!r}) & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "--reference-text" in done.stdout and done.stdout.strip().endswith("[]")


@pytest.mark.unit
def test_the_module_runs() -> None:
    command = [sys.executable, "-m", "inference", "check", "/nowhere"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "no model folder /nowhere" in done.stderr
