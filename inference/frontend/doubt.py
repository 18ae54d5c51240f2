"""Whether the transcript of a request's voice can be what its clip says; told early, without a model."""

from __future__ import annotations

from inference.frontend.audio import decode_audio
from inference.frontend.reference import prepare_clip
from inference.frontend.transcript import doubtful_transcript
from inference.types import Mode, Reference, ReferenceReport, SynthesisRequest, Voice

DOUBTFUL = "transcript_doubtful"


def transcript_doubts(request: SynthesisRequest) -> tuple[str, ...]:
    """`(DOUBTFUL,)` if the sound will suffer, as the transcript does not fit the clip's length; else nothing.

    What a `Voice`'s report would say, in milliseconds. Only cloning uses a transcript. Raises `RequestError` for an
    unusable clip, as preparing it would.
    """
    voice = request.voice
    if request.mode is not Mode.CLONE or request.exact or not isinstance(voice, Voice | Reference):
        return ()
    if not voice.transcript.strip():
        return ()
    report = voice.report if isinstance(voice, Voice) else _report(voice)
    if report is None:
        return ()
    seconds = report.used_end - report.used_start
    return (DOUBTFUL,) if doubtful_transcript(voice.transcript, seconds) else ()


def _report(reference: Reference) -> ReferenceReport | None:
    """None where the transcript will not be used."""
    report = prepare_clip(decode_audio(reference.audio), has_transcript=True).report
    return None if "transcript_dropped" in report.warnings else report
