"""Do streams come out as when everything is computed from frame 0? Asked at the start, with all that serves then."""

from __future__ import annotations

import numpy as np
import torch

from inference.runtime.packed_flow import FlowJob, PackedFlow
from inference.runtime.paged_flow import PagedFlow
from inference.runtime.precision import relative_error

# Two half-precision solves that round in other places differ by up to 1e-2 of the mel's norm; wrong ones by about 1.
BOUNDS = {torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.3}
_PROMPT, _TOKENS = 60, 93
_CALLS = (43, 68, _TOKENS)  # tokens given after each call


@torch.inference_mode()
def paged_error(paged: PagedFlow, packed: PackedFlow) -> float:
    """Relative error of a stream in three calls, and of another one of its voice begun together with it."""
    cfg = paged.flow.cfg
    random = np.random.default_rng(0)
    prompt = random.integers(0, cfg.vocab_size, _PROMPT)
    mel = (random.standard_normal((cfg.token_mel_ratio * _PROMPT, cfg.mel_bins)) - 5).astype(np.float32)
    tokens = random.integers(0, cfg.vocab_size, (2, _TOKENS))
    speaker = random.standard_normal(cfg.speaker_dim).astype(np.float32)
    streams = [paged.open(prompt, mel, speaker) for _ in tokens]
    found: list[list[torch.Tensor]] = [[] for _ in tokens]
    for count in _CALLS:
        new = [row[stream.given : count].tolist() for row, stream in zip(tokens, streams)]
        for parts, part in zip(found, paged.extend(streams, new, [count == _TOKENS] * 2)[0]):
            parts.append(part)
    voice = streams[0].voice
    jobs = [
        FlowJob(np.concatenate((prompt, row)), True, True, voice.mel, voice.speaker, voice.frames)
        for row in tokens
    ]
    expected, _ = packed.run(jobs)
    for stream in streams:
        paged.close(stream)
    return relative_error(torch.cat([torch.cat(parts) for parts in found]), torch.cat(expected))
