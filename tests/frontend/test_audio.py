"""Decoding: what people have, what people send by mistake, and what they should not be able to send."""

from __future__ import annotations

import io
import os
import struct
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from inference.frontend import audio
from inference.frontend.audio import decode_audio
from inference.types import EngineError, RequestError
from tests.make_clips import REAL_CLIPS, av_bytes, noise, speech, video_bytes, wav_bytes

pytestmark = pytest.mark.unit


def _code(data: object, **limits: float) -> str:
    with pytest.raises(RequestError) as caught:
        decode_audio(data, **limits)  # type: ignore[arg-type]
    assert str(caught.value).endswith(".")
    return caught.value.code


def _stereo(seconds: float, rate: int) -> np.ndarray:
    return np.stack([speech(seconds, rate, seed=1), speech(seconds, rate, seed=2, pitch=200)], axis=1)


# ---------------------------------------------------------------------------------- WAV, bit for bit
@pytest.mark.parametrize("extensible", [False, True])
@pytest.mark.parametrize(
    ("kind", "tolerance"),
    [("u8", 5e-3), ("s16", 2e-5), ("s24", 1e-7), ("s32", 1e-7), ("f32", 0.0), ("f64", 0.0)],
)
@pytest.mark.parametrize("rate", [8000, 16000, 44100, 48000, 192000])
def test_wav(kind: str, tolerance: float, rate: int, extensible: bool) -> None:
    samples = speech(0.5, rate)
    clip = decode_audio(wav_bytes(samples, rate, kind, extensible))
    assert clip.sample_rate == rate
    assert clip.samples.dtype == np.float32
    assert len(clip.samples) == len(samples)
    assert np.abs(clip.samples - samples).max() <= tolerance
    assert not clip.damaged


@pytest.mark.parametrize("kind", ["u8", "s16", "s24", "s32", "f32", "f64"])
def test_our_wav_reader_agrees_with_ffmpeg(kind: str) -> None:
    pytest.importorskip("av")
    data = wav_bytes(_stereo(0.5, 44100), 44100, kind)
    ours = decode_audio(data)
    theirs = audio._decode_with_av(io.BytesIO(data), 300.0)
    assert np.array_equal(ours.samples, theirs.samples)


def test_stereo_is_averaged() -> None:
    samples = _stereo(0.5, 16000)
    clip = decode_audio(wav_bytes(samples, 16000, "f32"))
    assert np.allclose(clip.samples, samples.mean(axis=1), atol=1e-7)


@pytest.mark.parametrize("size", [0, 0xFFFFFFFF, 0x7FFFFFFF])
def test_a_streamed_wav_with_no_true_length(size: int) -> None:
    data = bytearray(wav_bytes(speech(0.5, 16000), 16000))
    data[40:44] = struct.pack("<I", size)
    clip = decode_audio(bytes(data))
    assert len(clip.samples) == 8000
    assert not clip.damaged


def test_a_cut_off_wav_gives_what_is_there_and_says_so() -> None:
    data = wav_bytes(speech(1.0, 16000), 16000)
    clip = decode_audio(data[: len(data) // 2])
    assert 7000 < len(clip.samples) < 9000
    assert clip.damaged


def test_values_that_are_no_numbers_become_silence() -> None:
    samples = speech(0.5, 16000)
    samples[100], samples[200], samples[300] = np.nan, np.inf, 1e30
    clip = decode_audio(wav_bytes(samples, 16000, "f32"))
    assert clip.damaged
    assert np.isfinite(clip.samples).all()
    assert np.abs(clip.samples).max() <= 32768


# ------------------------------------------------------------------------------------------- formats
@pytest.mark.parametrize(
    ("container", "codec", "rate", "sample_format"),
    [
        ("mp3", "libmp3lame", 44100, None),
        ("mp3", "libmp3lame", 48000, None),
        ("ipod", "aac", 44100, None),  # m4a of a phone
        ("mp4", "aac", 48000, None),
        ("adts", "aac", 44100, None),
        ("webm", "libopus", 48000, None),  # a browser's microphone
        ("matroska", "libopus", 48000, None),
        ("ogg", "libopus", 48000, None),
        ("flac", "flac", 44100, "s16"),
        ("flac", "flac", 96000, "s32"),  # 24 bit
        ("aiff", "pcm_s16be", 44100, None),
        ("caf", "pcm_s16le", 44100, None),
        ("au", "pcm_s16be", 22050, None),
        ("wav", "pcm_s24le", 192000, None),
        ("wav", "pcm_mulaw", 8000, None),
        ("wav", "adpcm_ima_wav", 22050, None),
        ("mpegts", "aac", 44100, None),
        ("mov", "pcm_s16le", 48000, None),
    ],
)
@pytest.mark.parametrize("channels", [1, 2])
def test_formats(container: str, codec: str, rate: int, sample_format: str | None, channels: int) -> None:
    pytest.importorskip("av")
    mono = speech(2.0, rate)
    data = av_bytes(
        mono if channels == 1 else np.stack([mono, mono], axis=1), rate, container, codec, sample_format
    )
    clip = decode_audio(data)
    assert clip.sample_rate == rate
    assert abs(clip.seconds - 2.0) < 0.12
    assert not clip.damaged
    assert _delayed_correlation(clip.samples, mono) > 0.85
    level = np.sqrt(np.mean(clip.samples**2)) / np.sqrt(np.mean(mono**2))
    assert 0.8 < level < 1.25


def _delayed_correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Largest normalised cross-correlation over all shifts: codecs delay by a frame or two."""
    size = 1 << int(np.ceil(np.log2(len(a) + len(b))))
    product = np.fft.irfft(np.fft.rfft(a, size) * np.conj(np.fft.rfft(b, size)))
    return float(product.max() / np.sqrt(np.sum(a**2) * np.sum(b**2)))


@pytest.mark.parametrize("container", ["mp4", "mov", "matroska", "avi"])
def test_the_sound_of_a_film(container: str) -> None:
    pytest.importorskip("av")
    clip = decode_audio(video_bytes(speech(1.0, 44100), 44100, container))
    assert abs(clip.seconds - 1.0) < 0.1


def test_paths_and_bytes_are_the_same(tmp_path: Path) -> None:
    data = wav_bytes(speech(0.5, 16000), 16000)
    path = tmp_path / "a 中文 name.wav"
    path.write_bytes(data)
    for given in (path, str(path), data):
        assert len(decode_audio(given).samples) == 8000


def test_the_real_clips() -> None:
    if not REAL_CLIPS.is_dir():
        pytest.skip(f"no folder {REAL_CLIPS}")
    for path in sorted(REAL_CLIPS.glob("*.wav")):
        clip = decode_audio(path)
        assert clip.seconds > 3
        assert not clip.damaged


# ----------------------------------------------------------------------------------------- bad input
@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "audio_empty"),
        (b"hello, this is a text file\n" * 50, "audio_unreadable"),
        (b"\0" * 10000, "audio_unreadable"),
        (b"RIFF", "audio_unreadable"),
        (b"RIFF\x24\0\0\0WAVE", "audio_unreadable"),
        (b"ID3\x04\0\0\0\0\0\0", "audio_unreadable"),
        (b"OggS", "audio_unreadable"),
        (b"fLaC\0\0\0\x22" + b"\0" * 34, "audio_unreadable"),
        (b"%PDF-1.7\n" + b"x" * 500, "audio_unreadable"),
        (wav_bytes(np.zeros(0, np.float32), 16000), "audio_empty"),
        (wav_bytes(speech(0.2, 16000), 4000), "sample_rate_unsupported"),
        (wav_bytes(speech(0.2, 16000), 384000), "sample_rate_unsupported"),
        (wav_bytes(np.zeros((100, 40), np.float32), 16000), "audio_unreadable"),
    ],
)
def test_bad_bytes(data: bytes, code: str) -> None:
    pytest.importorskip("av")
    assert _code(data) == code


def test_a_film_without_sound() -> None:
    pytest.importorskip("av")
    assert _code(video_bytes(None, 16000)) == "audio_no_stream"


def test_bad_paths(tmp_path: Path) -> None:
    assert _code(tmp_path / "none.wav") == "audio_missing"
    assert _code(tmp_path) == "audio_missing"
    assert _code("http://127.0.0.1:9/a.wav") == "audio_missing"
    assert _code("name\0.wav") == "audio_missing"


def test_a_pipe_that_never_ends_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.wav")
    assert _code(tmp_path / "pipe.wav") == "audio_missing"


@pytest.mark.parametrize(
    ("container", "codec"), [("mp3", "libmp3lame"), ("flac", "flac"), ("ogg", "libopus"), ("adts", "aac")]
)
def test_a_cut_off_file_gives_what_is_there(container: str, codec: str) -> None:
    pytest.importorskip("av")
    data = av_bytes(speech(4.0, 48000), 48000, container, codec)
    clip = decode_audio(data[: len(data) // 2])
    assert 1.0 < clip.seconds < 3.0


def test_a_cut_off_m4a_is_refused() -> None:
    pytest.importorskip("av")
    data = av_bytes(speech(4.0, 44100), 44100, "ipod", "aac")  # its index comes last
    assert _code(data[: len(data) // 2]) == "audio_unreadable"


def test_damage_in_the_middle_of_an_mp3() -> None:
    pytest.importorskip("av")
    data = bytearray(av_bytes(speech(4.0, 44100), 44100, "mp3", "libmp3lame"))
    data[20000:24000] = np.random.default_rng(0).bytes(4000)
    assert 3.0 < decode_audio(bytes(data)).seconds < 4.3


# -------------------------------------------------------------------------------------------- limits
@pytest.mark.parametrize(
    ("container", "codec"),
    [("wav", "pcm_s16le"), ("flac", "flac"), ("ogg", "libopus"), ("ipod", "aac"), ("webm", "libopus")],
)
def test_ten_minutes_are_refused_from_the_header(
    container: str, codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("av")
    data = av_bytes(np.zeros(600 * 16000, np.float32), 16000, container, codec)
    monkeypatch.setattr(audio, "read_wav_mono", None)
    monkeypatch.setattr(audio, "_frames", None)  # nothing may be decoded
    assert _code(data) == "audio_too_long"


@pytest.mark.parametrize(("container", "codec"), [("mp3", "libmp3lame"), ("adts", "aac")])
def test_where_no_header_says_so_decoding_stops_at_the_limit(
    container: str, codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("av")
    data = av_bytes(np.zeros(60 * 16000, np.float32), 16000, container, codec)
    frames = []
    original = audio._Collector.add
    monkeypatch.setattr(
        audio._Collector, "add", lambda self, frame: (frames.append(frame.samples), original(self, frame))
    )
    assert _code(data, max_seconds=5.0) == "audio_too_long"
    assert sum(frames) < 6 * 16000


def test_a_wav_of_gigabytes_is_refused_from_its_header() -> None:
    data = bytearray(wav_bytes(speech(0.1, 16000), 16000))
    data[40:44] = struct.pack("<I", 0x70000000)
    clip = decode_audio(bytes(data))  # the header lies: only what is there counts
    assert clip.damaged
    assert clip.seconds < 0.2


def test_too_many_bytes(tmp_path: Path) -> None:
    path = tmp_path / "large.wav"
    with path.open("wb") as file:
        file.truncate(audio.MAX_BYTES + 1)  # sparse
    assert _code(path) == "audio_too_large"
    assert _code(wav_bytes(speech(1.0, 16000), 16000), max_bytes=1000) == "audio_too_large"


@pytest.mark.parametrize(
    "playlist",
    [
        "#EXTM3U\n#EXT-X-TARGETDURATION:5\n#EXTINF:5,\n{file}\n#EXT-X-ENDLIST\n",
        "ffconcat version 1.0\nfile {file}\n",
        "[playlist]\nFile1={file}\n",
        '<?xml version="1.0"?><MPD type="static" xmlns="urn:mpeg:dash:schema:mpd:2011">'
        + '<Period><AdaptationSet><Representation id="1"><BaseURL>{file}</BaseURL>'
        + "</Representation></AdaptationSet></Period></MPD>",
    ],
)
@pytest.mark.parametrize("scheme", ["", "file://"])
def test_no_file_can_make_us_read_another(playlist: str, scheme: str, tmp_path: Path) -> None:
    pytest.importorskip("av")
    secret = tmp_path / "secret.wav"
    secret.write_bytes(wav_bytes(speech(1.0, 16000), 16000))
    text = playlist.format(file=f"{scheme}{secret}").encode()
    assert _code(text) == "audio_unreadable"
    listing = tmp_path / "list.m3u8"
    listing.write_bytes(text)
    assert _code(listing) == "audio_unreadable"


def test_the_deadline_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("av")
    data = av_bytes(speech(2.0, 16000), 16000, "flac", "flac")
    ticks = iter(range(0, 100000, 50))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(ticks)))
    assert _code(data) == "audio_unreadable"


def test_wav_needs_no_library_and_other_formats_say_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    assert decode_audio(wav_bytes(noise(0.1, 16000, -20), 16000)).seconds == pytest.approx(0.1)
    with pytest.raises(EngineError) as caught:
        decode_audio(b"ID3" + b"\0" * 100)
    assert caught.value.code == "decoder_missing"
