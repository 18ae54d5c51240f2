"""Speech tokens of one text segment to sound: flow, speed, vocoder, whole or in chunks (SPEC 7)."""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from inference.frontend.prompt import ModelInput
from inference.models.flow import FlowModel
from inference.models.vocoder import Vocoder
from inference.runtime.clock import Clock
from inference.runtime.flow_cache import CPU_BUDGET, FlowCache, IncrementalFlow
from inference.runtime.mel_speed import change_speed
from inference.runtime.schedule import ChunkCall
from inference.runtime.vocoder_stream import VocoderStream, step
from inference.types import EngineError, Int16Audio

logger = logging.getLogger(__name__)

FULL_SCALE = 32768


class TokenToWave:
    """Flow and vocoder of one loaded model."""

    def __init__(self, flow: FlowModel, vocoder: Vocoder, cache_bytes: int | None = None) -> None:
        """`cache_bytes`: for what streams keep between chunks; by default enough for one listener on the CPU, where
        the sound is the same bits with any budget, and none on CUDA."""
        self.flow = flow
        self.vocoder = vocoder
        if cache_bytes is None:
            cache_bytes = CPU_BUDGET if self.device.type == "cpu" else 0
        self._cache_bytes = cache_bytes
        self._incremental: IncrementalFlow | None = None
        self._lock = threading.Lock()

    @property
    def device(self) -> torch.device:
        return self.flow.encoder_proj.weight.device

    @property
    def incremental(self) -> IncrementalFlow | None:
        """What computes streams chunk by chunk, made when it is first asked for; None where they are recomputed."""
        if self.device.type != "cpu" and not self._cache_bytes:
            return None
        with self._lock:
            if self._incremental is None or self._incremental.flow is not self.flow:
                self._incremental = IncrementalFlow(self.flow, self._cache_bytes)
            return self._incremental

    def begin(
        self, model_input: ModelInput, *, seed: int, speed: float, exact: bool, clock: Clock
    ) -> SegmentSound:
        """A new segment's way to sound."""
        return SegmentSound(self, model_input, seed=seed, speed=speed, exact=exact, clock=clock)

    @torch.inference_mode()
    def mel(
        self, model_input: ModelInput, tokens: Sequence[int], *, streaming: bool, finalize: bool
    ) -> Tensor:
        """Mel (1, 80, 2N) of `tokens`, or 2(N − 3) frames unless `finalize`.

        A half-precision flow model whose result is not finite gives way to a float32 one for good, with a warning.
        Raises `EngineError("non_finite")` if that does not help, and what `FlowModel.plan` raises.
        """
        flow = self.flow
        mel = _run(flow, model_input, tokens, streaming, finalize)
        if not torch.isfinite(mel).all() and flow.encoder_proj.weight.dtype != torch.float32:
            self.give_up_half()
            mel = _run(self.flow, model_input, tokens, streaming, finalize)
        if not torch.isfinite(mel).all():
            raise non_finite()
        return mel

    def give_up_half(self) -> None:
        """The flow model overflows: float32 for good."""
        logger.warning("The flow model overflowed in half precision; it runs in float32 from now on.")
        self.flow = copy.deepcopy(self.flow).float()  # others may be running the old one


def non_finite() -> EngineError:
    """What a request gets whose mel overflowed."""
    return EngineError("non_finite", "The flow model's output is not finite; the model files may be damaged.")


def _run(
    flow: FlowModel, model_input: ModelInput, tokens: Sequence[int], streaming: bool, finalize: bool
) -> Tensor:
    device = flow.encoder_proj.weight.device

    def row(values: object) -> Tensor:
        return torch.as_tensor(np.asarray(values), device=device)[None]

    prompt = model_input.flow_prompt_tokens
    mel, _ = flow.inference(
        row(np.asarray(tokens, dtype=np.int64)),
        torch.tensor([len(tokens)]),
        row(prompt.astype(np.int64)),
        torch.tensor([len(prompt)]),
        row(model_input.prompt_mel),
        torch.tensor([len(model_input.prompt_mel)]),
        row(model_input.speaker),
        streaming=streaming,
        finalize=finalize,
    )
    return mel


class SegmentSound:
    """What one segment keeps between its chunks."""

    def __init__(
        self,
        models: TokenToWave,
        model_input: ModelInput,
        *,
        seed: int,
        speed: float,
        exact: bool,
        clock: Clock,
    ) -> None:
        self._models = models
        self._input = model_input
        self._seed, self._speed, self._exact = seed, speed, exact
        self._clock = clock
        self.stream = VocoderStream(models.vocoder, seed=seed, speed=speed, exact=exact)
        self._kept: tuple[IncrementalFlow, FlowCache] | None = None

    @torch.inference_mode()
    def whole_wave(self, tokens: Sequence[int]) -> Tensor:
        """The segment's sound in one piece (n,), float32 in ±0.99 (SPEC 7.1)."""
        with self._clock.measure("flow"):
            mel = self._models.mel(self._input, tokens, streaming=False, finalize=True)
        with self._clock.measure("vocoder"):
            mel = change_speed(mel, self._speed, self._exact)
            wave, _ = step(self._models.vocoder, mel, None, True, seed=self._seed, exact=self._exact)
            return wave[0]

    @torch.inference_mode()
    def chunk_wave(self, call: ChunkCall, tokens: Sequence[int]) -> Tensor:
        """The sound that `call` adds to what was given before (n,), n ≥ 0, float32 in ±0.99.

        The last call stays chunk-causal, so that it continues what was heard; the original switches to full
        attention there, and so does `exact`.
        """
        with self._clock.measure("flow"):
            new = self._new_mel(call, tokens)
        with self._clock.measure("vocoder"):
            return self.stream.push(new, call.final)

    def close(self) -> None:
        """Give memory back; no more chunks are made."""
        if self._kept is not None:
            flow, cache = self._kept
            flow.close(cache)
        self._kept = None

    def _new_mel(self, call: ChunkCall, tokens: Sequence[int]) -> Tensor:
        """Mel (1, 80, M) that was not turned into sound yet."""
        if not self._exact:
            mel = self._extend(call, tokens)
            if mel is not None:
                return mel
        streaming = not (call.final and self._exact)
        mel = self._models.mel(
            self._input, tokens[: call.token_count], streaming=streaming, finalize=call.final
        )
        return mel[:, :, call.offset * self._models.flow.cfg.token_mel_ratio :]

    def _extend(self, call: ChunkCall, tokens: Sequence[int]) -> Tensor | None:
        """`_new_mel` from what was kept; None where nothing is, or where it overflowed."""
        given, incremental = self._input, self._models.incremental
        if call.offset == 0 and self._kept is None and incremental is not None:
            cache = incremental.open(given.flow_prompt_tokens, given.prompt_mel, given.speaker)
            self._kept = (incremental, cache)
        if self._kept is None:
            return None
        flow, cache = self._kept
        (mel,) = flow.extend([cache], [list(tokens[cache.given : call.token_count])], [call.final])
        sound = bool(torch.isfinite(mel).all())
        if call.final or not sound:
            self.close()
        return mel if sound else None

    def whole(self, tokens: Sequence[int]) -> Int16Audio:
        """`whole_wave` as PCM."""
        return self._to_pcm(self.whole_wave(tokens))

    def chunk(self, call: ChunkCall, tokens: Sequence[int]) -> Int16Audio:
        """`chunk_wave` as PCM."""
        return self._to_pcm(self.chunk_wave(call, tokens))

    def _to_pcm(self, wave: Tensor) -> Int16Audio:
        with self._clock.measure("vocoder"):  # the copy waits for the device
            return pcm(wave)


def pcm(wave: Tensor) -> Int16Audio:
    """(n,) in ±1 → int16, cut towards zero as the original's servers do."""
    found: Int16Audio = (wave * FULL_SCALE).to(torch.int16).cpu().numpy()
    return found
