"""The kernels that a language-model lane will launch, to be compiled before it starts (see `kernel_build`)."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from inference.models.language_model import LanguageModel
from inference.runtime.fused_language_model import FusedLanguageModel
from inference.runtime.kernel_build import Variant, recorded
from inference.runtime.kv_cache import KvCache
from inference.runtime.lane_graphs import Shape
from inference.runtime.lm_attention import SPAN
from inference.runtime.lm_products import LEAST_ROWS
from inference.runtime.lm_prompt_attention import QUERY_BLOCK
from inference.runtime.lm_prompts import PromptPacking
from inference.runtime.lm_step import MANY, KernelStep, supports
from inference.runtime.slot_runner import cache_room
from inference.runtime.slot_table import SlotRows, row_width
from inference.settings import LaneSettings

_META = torch.device("meta")
_LAYERS = 2  # the first one and one of the others


def kernel_variants(model: LanguageModel, lanes: LaneSettings) -> list[Variant]:
    """For a lane of these settings; none where the kernels are not used. Needs Triton, but no GPU and no memory."""
    dtype = model.dtype
    if dtype == torch.float32 or supports(model.cfg):
        return []
    cfg = replace(model.cfg, num_layers=_LAYERS)
    with _META:
        stand_in = LanguageModel(cfg).to(dtype)
    room = cache_room(lanes.context)
    cache = KvCache(cfg, lanes.slots + 1, room, _META, dtype)
    table = SlotRows.create(lanes.slots + 1, cfg.sampling, _META).data
    step = KernelStep(FusedLanguageModel(stand_in, room), cache, table, lanes.slots)
    width = row_width(cfg.sampling)
    packing = PromptPacking(lanes.slots, lanes.prefill_tokens, width, QUERY_BLOCK)

    def work() -> None:
        drawn = numbers(lanes.slots + 1)
        for rows in {min(LEAST_ROWS, lanes.slots), lanes.slots}:
            for longest in {min(SPAN, room), room}:
                step.decode(rows, longest, drawn)
        kinds = {(shape.size < MANY, shape.rows <= LEAST_ROWS): shape for shape in packing.shapes}
        for shape in kinds.values():
            symbols = numbers(shape.size)
            blocks, last, rows_of = prompts_of(shape)
            step.prefill(symbols, symbols, symbols, symbols, blocks, last, rows_of, drawn)

    def prompts_of(shape: Shape) -> tuple[Tensor, Tensor, Tensor]:
        blocks = shape.size // QUERY_BLOCK + shape.rows
        return numbers(blocks, 4), numbers(shape.rows), numbers(shape.rows, width)

    return recorded(work)


def numbers(*shape: int) -> Tensor:
    """Whole numbers that are nowhere."""
    return torch.empty(shape, dtype=torch.int64, device=_META)
