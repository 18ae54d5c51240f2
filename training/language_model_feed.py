"""Batches made ahead of need by other processes: building them in Python must not hold up the device."""

from __future__ import annotations

import multiprocessing
import os
import queue
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Protocol

from inference.models.config import LanguageModelConfig
from training.language_model_data import Corpus
from training.language_model_samples import Batch, SampleMaker

SCAN_SECONDS = 30.0
_AHEAD = 24  # batches waiting


@dataclass(frozen=True)
class Source:
    """What a worker needs to know."""

    data: tuple[Path, ...]
    tokenizer: Path
    cfg: LanguageModelConfig
    batch_tokens: int
    seed: int


class _Outlet(Protocol):
    def put(self, obj: Batch, block: bool = True, timeout: float | None = None) -> None: ...


def endless(source: Source) -> Iterator[Batch]:
    """Training batches for ever; looks for new shards about every half minute. Empty while there are none."""
    corpus = Corpus(source.data, source.tokenizer)
    rounds, scanned = 0, -SCAN_SECONDS
    maker: SampleMaker | None = None
    while True:
        now = time.monotonic()
        if (maker is None or now - scanned >= SCAN_SECONDS) and (corpus.scan() or maker is None):
            seed = source.seed + 7919 * rounds
            maker = SampleMaker(corpus.lines["train"], corpus.silent, corpus.used, source.cfg, seed)
        if now - scanned >= SCAN_SECONDS:
            scanned = now
        rounds += 1
        if maker is None or not len(maker):
            maker = None
            time.sleep(1.0)
            continue
        yield from maker.batches(source.batch_tokens)


def _work(source: Source, outlet: _Outlet) -> None:
    parent = os.getppid()
    for batch in endless(source):
        while True:
            try:
                outlet.put(batch, timeout=5.0)
                break
            except queue.Full:
                if os.getppid() != parent:  # the trainer is gone
                    os._exit(0)


class Feed:
    """`next()` gives a batch; made here with `workers` = 0, else by that many processes."""

    def __init__(self, source: Source, workers: int) -> None:
        self._inline = endless(source)
        self._processes: list[SpawnProcess] = []
        if not workers:
            return
        context = multiprocessing.get_context("spawn")
        self._queue: multiprocessing.Queue[Batch] = context.Queue(_AHEAD)
        for number in range(workers):
            own = replace(source, seed=source.seed + 104729 * number)
            process = context.Process(target=_work, args=(own, self._queue), daemon=True)
            process.start()
            self._processes.append(process)

    def next(self) -> Batch:
        """Raises RuntimeError when the workers have died."""
        if not self._processes:
            return next(self._inline)
        while True:
            try:
                return self._queue.get(timeout=10.0)
            except queue.Empty:
                if not any(process.is_alive() for process in self._processes):
                    raise RuntimeError("the processes that make batches have died") from None

    def close(self) -> None:
        for process in self._processes:
            process.terminate()
