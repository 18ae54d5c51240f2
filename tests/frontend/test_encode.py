"""Files we hand out can be read back, last the right time and sound the same."""

from __future__ import annotations

import io
import sys
import wave

import numpy as np
import pytest

from inference.frontend.audio import decode_audio
from inference.frontend.encode import FORMATS, encode_audio, media_type
from inference.types import EngineError, RequestError
from tests.make_clips import speech

pytestmark = pytest.mark.unit


def _pcm(seconds: float, rate: int = 24000) -> np.ndarray:
    return (speech(seconds, rate) * 32767).astype(np.int16)


@pytest.mark.parametrize("audio_format", FORMATS)
@pytest.mark.parametrize("seconds", [0.02, 1.0, 3.0, 7.123])
def test_round_trip(audio_format: str, seconds: float) -> None:
    pytest.importorskip("av")
    pcm = _pcm(seconds)
    clip = decode_audio(encode_audio(pcm, 24000, audio_format))
    assert abs(clip.seconds - seconds) < 0.06
    assert clip.sample_rate in (24000, 48000)
    level = np.sqrt(np.mean(clip.samples**2)) / np.sqrt(np.mean((pcm / 32768.0) ** 2))
    if seconds >= 1:
        assert 0.85 < level < 1.15


@pytest.mark.parametrize("audio_format", ["wav", "flac"])
def test_lossless_formats_lose_nothing(audio_format: str) -> None:
    pytest.importorskip("av")
    pcm = _pcm(2.0)
    clip = decode_audio(encode_audio(pcm, 24000, audio_format))
    assert np.array_equal(clip.samples, pcm.astype(np.float32) / 32768)


def test_python_reads_our_wav() -> None:
    pcm = _pcm(1.0)
    with wave.open(io.BytesIO(encode_audio(pcm, 24000, "wav"))) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (24000, 1, 2)
        assert file.readframes(file.getnframes()) == pcm.tobytes()


def test_a_strided_view_is_written_right() -> None:
    pcm = _pcm(1.0)
    assert encode_audio(pcm[::-1], 24000, "wav")[44:] == pcm[::-1].tobytes()


@pytest.mark.parametrize(
    ("audio_format", "magic"), [("wav", b"RIFF"), ("flac", b"fLaC"), ("mp3", b"ID3"), ("ogg", b"OggS")]
)
def test_kinds(audio_format: str, magic: bytes) -> None:
    pytest.importorskip("av")
    assert encode_audio(_pcm(0.5), 24000, audio_format).startswith(magic)
    assert media_type(audio_format).startswith("audio/")


@pytest.mark.parametrize("name", ["aiff", "", "WAV"])
def test_unknown_formats(name: str) -> None:
    for call in (lambda: encode_audio(_pcm(0.1), 24000, name), lambda: media_type(name)):
        with pytest.raises(RequestError) as caught:
            call()
        assert caught.value.code == "audio_format_unknown"


def test_a_rate_that_opus_does_not_know() -> None:
    pytest.importorskip("av")
    with pytest.raises(EngineError) as caught:
        encode_audio(_pcm(0.5, 22050), 22050, "ogg")
    assert caught.value.code == "encoding_failed"


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    assert encode_audio(_pcm(0.1), 24000, "wav").startswith(b"RIFF")
    with pytest.raises(EngineError) as caught:
        encode_audio(_pcm(0.1), 24000, "mp3")
    assert caught.value.code == "decoder_missing"


@pytest.mark.parametrize("audio_format", FORMATS)
def test_no_sound_makes_no_file(audio_format: str) -> None:
    with pytest.raises(EngineError) as caught:
        encode_audio(np.zeros(0, np.int16), 24000, audio_format)
    assert caught.value.code == "encoding_failed"
