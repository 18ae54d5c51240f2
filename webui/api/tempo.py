"""Speeds beyond what the model can do: the finished sound is stretched, pitch kept, while it streams."""

from __future__ import annotations

from typing import Any

import numpy as np

from inference.types import MAX_SPEED, MIN_SPEED, Int16Audio


def split_speed(speed: float) -> tuple[float, float]:
    """(speed for the model, factor that is left for `Tempo`, 1.0 for none). Their product is `speed`."""
    model = min(MAX_SPEED, max(MIN_SPEED, speed))
    return model, speed / model


class Tempo:
    """Makes mono int16 sound `factor` times as fast (0.5 to 2), piece by piece."""

    def __init__(self, factor: float, sample_rate: int) -> None:
        import av.filter

        self._rate = sample_rate
        self._samples = 0
        graph = av.filter.Graph()
        source = graph.add_abuffer(sample_rate=sample_rate, format="s16", layout="mono")
        stretch = graph.add("atempo", f"{factor:.6f}")
        shape = graph.add("aformat", f"sample_fmts=s16:sample_rates={sample_rate}:channel_layouts=mono")
        end = graph.add("abuffersink")
        for first, second in ((source, stretch), (stretch, shape), (shape, end)):
            first.link_to(second)
        graph.configure()
        self._graph: Any = graph

    def feed(self, pcm: Int16Audio) -> Int16Audio:
        """(n,) in, what is ready out."""
        import av

        if not len(pcm):
            return pcm
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(pcm[None]), format="s16", layout="mono")
        frame.sample_rate, frame.pts = self._rate, self._samples
        self._samples += len(pcm)
        self._graph.push(frame)
        return self._pull()

    def finish(self) -> Int16Audio:
        """The rest."""
        if not self._samples:
            return np.zeros(0, np.int16)
        self._graph.push(None)
        return self._pull()

    def _pull(self) -> Int16Audio:
        import av

        parts = [np.zeros(0, np.int16)]
        while True:
            try:
                parts.append(self._graph.pull().to_ndarray().reshape(-1))
            except (av.BlockingIOError, av.EOFError):
                return np.concatenate(parts)
