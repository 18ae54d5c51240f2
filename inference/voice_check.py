"""What a prepared voice must be for any model of this family, wherever it comes from."""

from __future__ import annotations

from typing import Any

import numpy as np

_MOST_TOKENS = 800  # 30 s and a little
_CODEBOOK = 6561  # of the speech tokenizer (SPEC 2.2)
_MEL_BINS = 80
_SPEAKER_SIZE = 192


def voice_fits(tokens: Any, mel: Any, speaker: Any) -> bool:
    """Whether these are speech tokens (N,), their mel (2N, 80) and a speaker vector (192,), all of usable values.

    Anything else would fail within a network: on a GPU an id outside of a table ends all that the worker does.
    """
    if not all(isinstance(part, np.ndarray) for part in (tokens, mel, speaker)):
        return False
    kinds = (tokens.dtype.kind in "iu", mel.dtype.kind == "f", speaker.dtype.kind == "f")
    return bool(
        all(kinds)
        and tokens.ndim == 1
        and 0 < len(tokens) <= _MOST_TOKENS
        and 0 <= tokens.min()
        and tokens.max() < _CODEBOOK
        and mel.shape == (2 * len(tokens), _MEL_BINS)
        and speaker.shape == (_SPEAKER_SIZE,)
        and np.isfinite(mel).all()
        and np.isfinite(speaker).all()
    )
