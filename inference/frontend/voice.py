"""From a reference clip to a `Voice`: features, speech tokens and speaker vector (SPEC 2.1 to 2.5, 2.7)."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from inference.frontend.audio import MAX_BYTES, TOKENIZER_RATE, Clip, decode_audio
from inference.frontend.features import (
    MEL_RATE,
    kaldi_fbank,
    log_mel_24k,
    sinc_resample,
    whisper_log_mel,
)
from inference.frontend.loudness import FRAMES_PER_SECOND, measure_loudness
from inference.frontend.onnx_models import SpeakerEncoder, SpeechTokenizer
from inference.frontend.reference import MODEL_LIMIT_SECONDS, PreparedClip, prepare_clip
from inference.frontend.transcript import doubtful_beside
from inference.types import FloatAudio, Reference, RequestError, Voice

MAX_SOURCE_SECONDS = 240.0  # with its prompt under the 300 s of the flow model's fixed noise (SPEC 5.5)
_TOKEN_SAMPLES = 640  # of 16 kHz sound
_PIECE_SECONDS = (20.0, 28.0)  # a long source is parted at its quietest moment between these
_SOURCE_SILENT_DB = -70.0

_TURNS = 64  # locks shared out among the clips in work

_Key = tuple[str, bool, bool, bool]


class VoicePreparer:
    """Turns clips into voices with a model folder's ONNX files; keeps the latest; safe between threads."""

    def __init__(
        self,
        speaker_encoder: Path,
        speech_tokenizer: Path,
        *,
        threads: int = 1,
        device: str = "cpu",
        cache_size: int = 64,
    ) -> None:
        """`threads`: CPU threads of each network; `device`: of the tokenizer, if this onnxruntime can.

        Raises CheckpointError("onnx_missing" or "onnx_unreadable").
        """
        self._encoder = SpeakerEncoder(speaker_encoder, threads)
        self._tokenizer = SpeechTokenizer(speech_tokenizer, threads, device)
        self._cache: OrderedDict[_Key, Voice] = OrderedDict()
        self._cache_size = cache_size
        self._lock = threading.Lock()
        self.hits = self.misses = 0
        self._turns = [threading.Lock() for _ in range(_TURNS)]

    def prepare(self, reference: Reference, exact: bool = False, untrimmed: bool = False) -> Voice:
        """The voice of a clip.

        `exact` takes the clip as it is; else it is trimmed, cut and levelled, and `voice.report` says how.
        Where words had to be cut away the transcript is dropped (warning "transcript_dropped"). `untrimmed`
        keeps mel frames and tokens even where their lengths do not match, as the original does for the target
        voice of voice conversion.

        A transcript that is far too long or short for the clip is kept (warning "transcript_doubtful").

        Raises RequestError as `decode_audio` and `prepare_clip` do.
        """
        transcript = reference.transcript.strip()
        content_hash = _content_hash(reference.audio)
        key = (content_hash, bool(transcript), exact, untrimmed)
        voice = self._cached(key)
        self._count(voice is not None)
        if voice is None:
            with self._turns[hash(key) % _TURNS]:  # of many requests with one new clip only the first works
                voice = self._cached(key) or self._prepared(reference, key)
        dropped = voice.report is not None and "transcript_dropped" in voice.report.warnings
        return _with_doubt(replace(voice, transcript="" if dropped else reference.transcript), exact)

    def _prepared(self, reference: Reference, key: _Key) -> Voice:
        content_hash, has_transcript, exact, untrimmed = key
        clip = prepare_clip(decode_audio(reference.audio), has_transcript, exact)
        voice = replace(self._voice(clip, untrimmed), content_hash=content_hash)
        self._remember(key, voice)
        return voice

    def source_tokens(self, reference: Reference, exact: bool = False) -> npt.NDArray[np.int32]:
        """Speech tokens (N,) of a recording whose voice is to be converted, 25 a second, nothing trimmed.

        Up to 240 s; `exact` refuses more than 30 s, as the original does. Raises RequestError as
        `decode_audio`, and source_silent.
        """
        clip = decode_audio(reference.audio, max_seconds=MAX_SOURCE_SECONDS)
        if exact:
            clip = _as_clip(prepare_clip(clip, exact=True))
        elif measure_loudness(clip.samples, clip.sample_rate).loud_db < _SOURCE_SILENT_DB:
            raise RequestError("source_silent", "The recording to convert is silent.")
        with torch.inference_mode():
            wave = sinc_resample(torch.from_numpy(clip.samples)[None], clip.sample_rate, TOKENIZER_RATE)
            pieces = [wave] if exact else _split_at_quiet_moments(wave)
            return np.concatenate([self._tokens(piece) for piece in pieces])

    def _voice(self, clip: PreparedClip, untrimmed: bool) -> Voice:
        with torch.inference_mode():
            wave = torch.from_numpy(clip.samples)[None]
            wave16 = sinc_resample(wave, clip.sample_rate, TOKENIZER_RATE)
            mel = log_mel_24k(sinc_resample(wave, clip.sample_rate, MEL_RATE))[0].T.contiguous().numpy()
            tokens = self._tokens(wave16)
            speaker = self._encoder.embed(kaldi_fbank(wave16[0]).numpy())
        if not untrimmed:
            count = min(len(mel) // 2, len(tokens))
            mel, tokens = mel[: 2 * count], tokens[:count]
        return Voice(speech_tokens=tokens, mel=mel, speaker=speaker, report=clip.report)

    def _tokens(self, wave16: Tensor) -> npt.NDArray[np.int32]:
        return self._tokenizer.encode(whisper_log_mel(wave16).numpy())

    def _count(self, hit: bool) -> None:
        with self._lock:
            self.hits, self.misses = self.hits + hit, self.misses + (not hit)

    def _cached(self, key: _Key) -> Voice | None:
        with self._lock:
            if key in self._cache:
                self._cache.move_to_end(key)
            return self._cache.get(key)

    def _remember(self, key: _Key, voice: Voice) -> None:
        with self._lock:
            self._cache[key] = voice
            while len(self._cache) > self._cache_size:
                self._cache.popitem(last=False)


def _as_clip(prepared: PreparedClip) -> Clip:
    return Clip(prepared.samples, prepared.sample_rate)


def _with_doubt(voice: Voice, exact: bool) -> Voice:
    report = voice.report
    if exact or report is None or not doubtful_beside(report, voice.transcript):
        return voice
    return replace(voice, report=replace(report, warnings=(*report.warnings, "transcript_doubtful")))


def _content_hash(audio: Path | bytes) -> str:
    """SHA-256 of the file's bytes, or "" for a file that decoding will refuse anyway."""
    if isinstance(audio, bytes):
        return hashlib.sha256(audio).hexdigest()
    digest = hashlib.sha256()
    try:
        if not audio.is_file() or audio.stat().st_size > MAX_BYTES:
            return ""
        with audio.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    except (OSError, ValueError):
        return ""
    return digest.hexdigest()


def _split_at_quiet_moments(wave16: Tensor) -> list[Tensor]:
    """(1, n) at 16 kHz → pieces of at most 28 s, all but the last a whole number of tokens long."""
    samples: FloatAudio = wave16[0].numpy()
    db = measure_loudness(samples, TOKENIZER_RATE).db
    earliest, latest = (int(seconds * FRAMES_PER_SECOND) for seconds in _PIECE_SECONDS)
    pieces, start = [], 0
    while len(samples) - start > MODEL_LIMIT_SECONDS * TOKENIZER_RATE:
        frame = start * FRAMES_PER_SECOND // TOKENIZER_RATE
        quietest = earliest + int(np.argmin(db[frame + earliest : frame + latest]))
        length = quietest * TOKENIZER_RATE // FRAMES_PER_SECOND // _TOKEN_SAMPLES * _TOKEN_SAMPLES
        pieces.append(wave16[:, start : start + length])
        start += length
    return [*pieces, wave16[:, start:]]
