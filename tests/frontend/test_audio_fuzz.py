"""Whatever the bytes are: a clip within the limits, or a RequestError."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inference.frontend.audio import MAX_RATE, MIN_RATE, decode_audio
from inference.frontend.reference import prepare_clip
from inference.types import RequestError
from tests.make_clips import av_bytes, speech, wav_bytes

pytest.importorskip("av")
pytestmark = pytest.mark.unit

_MAGIC = [
    b"",
    b"RIFF\xff\xff\xff\xffWAVEfmt ",
    b"OggS\0\x02",
    b"fLaC\0",
    b"ID3\x04\0\0",
    b"\xff\xfb\x90",
    b"\x1aE\xdf\xa3",
    b"\0\0\0\x18ftypM4A ",
    b"FORM\0\0\1\0AIFF",
    b"caff\0\1\0\0",
    b"#!AMR\n",
    b"\xff\xf1\x50\x80",
    b".snd",
    b"0&\xb2u",
]
_KINDS = [
    ("wav", "pcm_s16le"),
    ("mp3", "libmp3lame"),
    ("ogg", "libopus"),
    ("flac", "flac"),
    ("ipod", "aac"),
    ("webm", "libopus"),
    ("adts", "aac"),
    ("aiff", "pcm_s16be"),
]
_SETTINGS = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@cache
def _good(number: int) -> bytes:
    container, codec = _KINDS[number]
    return av_bytes(speech(0.6, 16000), 16000, container, codec)


def _clip_or_error(data: bytes) -> None:
    try:
        clip = decode_audio(data, max_seconds=20.0)
    except RequestError as error:
        assert error.code
        return
    assert clip.samples.ndim == 1
    assert clip.samples.dtype == np.float32
    assert 0 < clip.seconds <= 20.0
    assert MIN_RATE <= clip.sample_rate <= MAX_RATE
    assert np.isfinite(clip.samples).all()
    try:
        prepared = prepare_clip(clip)
    except RequestError:
        return
    assert 0 < len(prepared.samples) <= len(clip.samples)
    assert np.isfinite(prepared.samples).all()


@_SETTINGS
@given(magic=st.sampled_from(_MAGIC), body=st.binary(max_size=3000))
def test_random_bytes(magic: bytes, body: bytes) -> None:
    _clip_or_error(magic + body)


@_SETTINGS
@given(
    number=st.integers(0, len(_KINDS) - 1),
    changes=st.lists(
        st.tuples(st.integers(0, 300), st.binary(min_size=1, max_size=4)), min_size=1, max_size=6
    ),
    keep=st.floats(0.05, 1.0),
)
def test_good_files_with_changed_headers(number: int, changes: list[tuple[int, bytes]], keep: float) -> None:
    data = bytearray(_good(number))
    for position, value in changes:
        data[position : position + len(value)] = value
    _clip_or_error(bytes(data[: int(len(data) * keep)]))


@_SETTINGS
@given(number=st.integers(0, len(_KINDS) - 1), seed=st.integers(0, 2**32 - 1), share=st.floats(0.0001, 0.05))
def test_good_files_with_noise_all_over(number: int, seed: int, share: float) -> None:
    rng = np.random.default_rng(seed)
    data = np.frombuffer(_good(number), dtype=np.uint8).copy()
    hits = rng.random(len(data)) < share
    data[hits] = rng.integers(0, 256, int(hits.sum()))
    _clip_or_error(data.tobytes())


@_SETTINGS
@given(
    fields=st.tuples(
        st.integers(0, 65535), st.integers(0, 65535), st.integers(0, 2**32 - 1), st.integers(0, 65535)
    ),
    size=st.integers(0, 2**32 - 1),
)
def test_every_wav_header(fields: tuple[int, int, int, int], size: int) -> None:
    tag, channels, rate, bits = fields
    data = bytearray(wav_bytes(speech(0.2, 16000), 16000))
    data[20:24] = tag.to_bytes(2, "little") + channels.to_bytes(2, "little")
    data[24:28] = rate.to_bytes(4, "little")
    data[34:36] = bits.to_bytes(2, "little")
    data[40:44] = size.to_bytes(4, "little")
    _clip_or_error(bytes(data))
