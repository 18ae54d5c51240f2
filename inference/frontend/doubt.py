"""Whether the transcript of a request's voice can be what its clip says; told early, without a model."""

from __future__ import annotations

from inference.frontend.audio import decode_audio
from inference.frontend.reference import prepare_clip
from inference.frontend.transcript import doubtful_beside
from inference.types import Mode, Reference, SynthesisRequest, Voice

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
    if isinstance(voice, Voice):
        report = voice.report
    else:
        report = prepare_clip(decode_audio(voice.audio), has_transcript=True).report
    return (DOUBTFUL,) if report is not None and doubtful_beside(report, voice.transcript) else ()
