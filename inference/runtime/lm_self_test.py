"""Whether the kernels' steps are sound on this device: held against the plain model and the plain sampling.

Import on CUDA only; importing it raises `ImportError` where there is no Triton.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from inference.models.language_model import LanguageModel
from inference.runtime.feed import SpeechPrompt, join, speech_feed
from inference.runtime.kernel_build import build
from inference.runtime.lane_graphs import Shape
from inference.runtime.lm_products import LEAST_ROWS, MOST_ROWS
from inference.runtime.lm_runner import KernelRunner
from inference.runtime.lm_step import supports
from inference.runtime.lm_variants import kernel_variants
from inference.runtime.precision import relative_error
from inference.runtime.sampling import sample_step
from inference.runtime.slot_runner import PromptPart
from inference.runtime.slot_table import SlotRows, fresh_row
from inference.settings import LaneSettings

logger = logging.getLogger(__name__)

# Relative 2-norm distance of logits from the plain model's in the same precision. Rounding: 1e-3 (float16) to 1e-2.
BOUND = 0.05
_STEPS = 4  # at least
_PROMPTS = 3
_DIFFERENT_DRAWS = 1  # a uniform may fall between two roundings of the same sum


def kernel_runner(model: LanguageModel, settings: LaneSettings) -> KernelRunner | None:
    """A runner whose self-test went well, else None, which is logged."""
    probe = _unsupported(model)
    if probe:
        logger.warning(
            "The language model's kernels do not take %s; it runs by plain steps, more slowly.", probe
        )
        return None
    started = time.perf_counter()
    try:
        if model.device.type == "cuda":  # at once if a worker has done it for all its lanes
            build(kernel_variants(model, settings), device=model.device, what="kernels of the language model")
        runner = KernelRunner(
            model, settings.slots, settings.context, settings.prefill_tokens, graphs=settings.graphs
        )
        fault = find_fault(runner, model)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # Triton's compiler has many ways to fail
        logger.warning("The language model's kernels fail here; it runs by plain steps.", exc_info=error)
        return None
    if fault:
        logger.warning("The language model's kernels are unsound here (%s); it runs by plain steps.", fault)
        return None
    logger.info("The language model's kernels are ready after %.1f s.", time.perf_counter() - started)
    return runner


def _unsupported(model: LanguageModel) -> str:
    if model.dtype == torch.float32 and model.device.type == "cuda":
        return "float32"  # the matrix units' rounding is not float32's; without them there is nothing to gain
    return supports(model.cfg)


@torch.inference_mode()
def find_fault(runner: KernelRunner, model: LanguageModel) -> str:
    """What is wrong with the runner's steps, "" for nothing. No slot may be live; all are empty afterwards."""
    test = _SelfTest(runner, model)
    with runner.on_stream():
        try:
            return test.run()
        finally:
            test.clear()


class _SelfTest:
    """Some prompts of different lengths, a few ids each; the logits of every draw against the plain model's."""

    def __init__(self, runner: KernelRunner, model: LanguageModel) -> None:
        self._runner, self._model = runner, model
        self._count = min(_PROMPTS, runner.slots)
        self._prompts = [_prompt(model, number) for number in range(self._count)]
        self._said: list[list[int]] = [[] for _ in self._prompts]
        self._different = 0

    def run(self) -> str:
        parts = [self._part(number) for number in range(self._count)]
        start = 0
        worst = 0.0
        while start < len(parts):  # a small lane takes them in one by one
            batch = parts[start : start + self._runner.fitting(parts[start:])]
            worst = max(worst, self._take_in(batch, start))
            start += len(batch)
        for shape in self._shapes():
            worst = max(worst, self._decode(shape))
        if not worst < BOUND:
            return f"error {worst:.3g}"
        return "sampling differs" if self._different > _DIFFERENT_DRAWS else ""

    def _shapes(self) -> list[Shape]:
        """A step of each number of rows that kernels are built for, with and without joined spans."""
        runner = self._runner
        most = {
            runner.bucket(max(self._count, min(rows, runner.slots))) for rows in (LEAST_ROWS, 32, MOST_ROWS)
        }
        shapes = [Shape(rows, size) for rows in sorted(most) for size in runner.prefixes]
        return shapes * -(-_STEPS // len(shapes))

    def clear(self) -> None:
        for slot, (prompt, said) in enumerate(zip(self._prompts, self._said)):
            self._runner.clear(slot, len(prompt.feed()) + len(said))
            self._runner.stop(slot)

    def _part(self, number: int) -> PromptPart:
        prompt = self._prompts[number]
        feed = prompt.feed()
        row = fresh_row(prompt, len(feed), prompt.max_len, self._model.cfg.sampling)
        return PromptPart(number, 0, feed.kinds, feed.ids, row)

    def _take_in(self, parts: Sequence[PromptPart], start: int) -> float:
        runner = self._runner
        rows = SlotRows(torch.tensor([part.row for part in parts], device=runner.device))
        # Large batches take other strips; the largest one is mostly padding here, and done again by the smallest.
        logits = [
            runner.prefill_logits(shape, runner.upload(runner.packed(parts, shape)))[: len(parts)]
            for shape in (runner.prompt_shapes()[-1], runner.prompt_shape(parts))
        ]
        between = relative_error(*logits)
        return max(between, self._compare(logits[-1], rows, runner.drawn[: len(parts)], start))

    def _decode(self, shape: Shape) -> float:
        runner = self._runner
        rows = SlotRows(runner.table[: self._count].clone())
        runner.decode_step(shape)
        logits = runner.step.logits[: self._count]
        return self._compare(logits, rows, runner.drawn[: self._count], 0)

    def _compare(self, logits: Tensor, rows: SlotRows, drawn: Tensor, start: int) -> float:
        """Error of the logits, draws counted that the plain sampling would not have made of them."""
        expected = torch.stack([self._logits(start + number) for number in range(len(logits))])
        plain = sample_step(logits.clone(), rows.sampler(), self._model.cfg, rows.exact)
        self._different += int((plain != drawn).sum())
        for said, token in zip(self._said[start:], drawn.tolist()):
            said.append(max(token, 0))
        return relative_error(logits, expected)

    def _logits(self, number: int) -> Tensor:
        model, said = self._model, self._said[number]
        feed = join([self._prompts[number].feed(), speech_feed(said)])
        kinds, ids = (torch.from_numpy(part).long().to(model.device)[None] for part in (feed.kinds, feed.ids))
        return model.logits(model(model.embed(kinds, ids))[0, -1])


def _prompt(model: LanguageModel, number: int) -> SpeechPrompt:
    """Prompts of different lengths, none longer than a lane of the smallest context takes."""
    text = np.arange(5 + 3 * number, dtype=np.int32) * 7 % model.cfg.vocab_size
    speech = np.arange(11 * number, dtype=np.int32) * 97 % model.cfg.speech_token_size
    return SpeechPrompt(text, text[:2], speech, seed=number)
