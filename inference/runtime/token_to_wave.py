"""Speech tokens of one text segment to sound: flow, speed, vocoder, whole or in chunks (SPEC 7)."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from inference.frontend.prompt import ModelInput
from inference.models.flow import FlowModel
from inference.models.vocoder import Vocoder
from inference.runtime.mel_speed import change_speed
from inference.runtime.schedule import ChunkCall
from inference.runtime.vocoder_stream import VocoderStream
from inference.types import EngineError, Int16Audio

logger = logging.getLogger(__name__)

FULL_SCALE = 32768


class TokenToWave:
    """Flow and vocoder of one loaded model."""

    def __init__(self, flow: FlowModel, vocoder: Vocoder) -> None:
        self.flow = flow
        self.vocoder = vocoder

    @property
    def device(self) -> torch.device:
        return self.flow.encoder_proj.weight.device

    def begin(self, model_input: ModelInput, *, seed: int, speed: float, exact: bool) -> SegmentSound:
        """A new segment's way to sound."""
        return SegmentSound(self, model_input, seed=seed, speed=speed, exact=exact)

    def mel(self, model_input: ModelInput, tokens: Sequence[int], *, streaming: bool, finalize: bool) -> Tensor:
        """Mel (1, 80, 2N) of `tokens`, or 2(N − 3) frames unless `finalize`.

        A half-precision flow model whose result is not finite is put back to float32 for good, with a warning.
        Raises `EngineError("non_finite")` if that does not help, and what `FlowModel.plan` raises.
        """
        mel = self._flow(model_input, tokens, streaming, finalize)
        if not torch.isfinite(mel).all() and self.flow.encoder_proj.weight.dtype != torch.float32:
            logger.warning("The flow model overflowed in half precision; it runs in float32 from now on.")
            self.flow = self.flow.float()
            mel = self._flow(model_input, tokens, streaming, finalize)
        if not torch.isfinite(mel).all():
            raise EngineError("non_finite", "The flow model's output is not finite; the model files may be damaged.")
        return mel

    def _flow(self, model_input: ModelInput, tokens: Sequence[int], streaming: bool, finalize: bool) -> Tensor:
        device = self.device

        def row(values: object) -> Tensor:
            return torch.as_tensor(np.asarray(values), device=device)[None]

        prompt = model_input.flow_prompt_tokens
        mel, _ = self.flow.inference(
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
    """What one segment keeps between its chunks, and the time its models took."""

    def __init__(
        self, models: TokenToWave, model_input: ModelInput, *, seed: int, speed: float, exact: bool
    ) -> None:
        self._models = models
        self._input = model_input
        self._seed, self._speed, self._exact = seed, speed, exact
        self._stream = VocoderStream(models.vocoder, seed=seed, speed=speed, exact=exact)
        self._flow_seconds = 0.0
        self._vocoder_seconds = 0.0

    @torch.inference_mode()
    def whole(self, tokens: Sequence[int]) -> Int16Audio:
        """The segment's sound in one piece (SPEC 7.1)."""
        begun = time.perf_counter()
        mel = self._models.mel(self._input, tokens, streaming=False, finalize=True)
        self._flow_seconds += time.perf_counter() - begun
        begun = time.perf_counter()
        seeds = torch.tensor([self._seed], device=mel.device)
        wave, _ = self._models.vocoder(change_speed(mel, self._speed, self._exact), seeds=seeds)
        return self._to_pcm(wave[0], begun)

    @torch.inference_mode()
    def chunk(self, call: ChunkCall, tokens: Sequence[int]) -> Int16Audio:
        """The sound that `call` adds to what was given before; may be empty.

        The last call stays chunk-causal, so that it continues what was heard; the original switches to full
        attention there, and so does `exact`.
        """
        begun = time.perf_counter()
        streaming = not (call.final and self._exact)
        mel = self._models.mel(
            self._input, tokens[: call.token_count], streaming=streaming, finalize=call.final
        )
        new = mel[:, :, call.offset * self._models.flow.cfg.token_mel_ratio :]
        self._flow_seconds += time.perf_counter() - begun
        begun = time.perf_counter()
        return self._to_pcm(self._stream.push(new, call.final), begun)

    def take_flow_seconds(self) -> float:
        """Seconds spent in the flow model since the last call of this."""
        seconds, self._flow_seconds = self._flow_seconds, 0.0
        return seconds

    def take_vocoder_seconds(self) -> float:
        """Seconds spent in the vocoder since the last call of this."""
        seconds, self._vocoder_seconds = self._vocoder_seconds, 0.0
        return seconds

    def _to_pcm(self, wave: Tensor, begun: float) -> Int16Audio:
        # Cutting towards zero, as the original's servers do; the vocoder keeps within ±0.99.
        pcm: Int16Audio = (wave * FULL_SCALE).to(torch.int16).cpu().numpy()
        self._vocoder_seconds += time.perf_counter() - begun
        return pcm
