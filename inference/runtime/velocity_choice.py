"""Which `PackedStep` a flow model runs with here: Triton kernels where they are and prove right, else PyTorch's own."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch

from inference.models.flow import FlowModel
from inference.runtime import gpu_traits
from inference.runtime.frame_pack import FramePack, PackedMel
from inference.runtime.packed_attention import PackedAttention
from inference.runtime.packed_state import PackedStep, SolverBuffers
from inference.runtime.packed_velocity import PackedVelocity
from inference.runtime.precision import relative_error
from inference.runtime.velocity_tiles import Plan, plans_for

logger = logging.getLogger(__name__)

# Two half-precision computations of one velocity that round in other places differ by about 1e-3 (float16) or
# 1e-2 (bfloat16) of its norm.
_ITEMS = (PackedMel(150, causal=True), PackedMel(170), PackedMel(60))
_BOUNDS = {torch.float16: 0.01, torch.bfloat16: 0.06}


def choose_step(
    flow: FlowModel, attention: PackedAttention, *, compiled: bool = False
) -> tuple[PackedStep, str]:
    """The step and its name, "kernels" or "torch"; that kernels cannot be used on a CUDA device is logged."""
    plain = PackedVelocity(flow.decoder.estimator, flow.cfg, attention, compiled=compiled)
    weight = plain.weights.output.weight
    if weight.device.type != "cuda" or weight.dtype not in _BOUNDS or not fits(flow):
        return plain, "torch"
    try:
        from inference.runtime.velocity_network import KernelStep
    except ImportError:
        logger.warning("Triton is missing; the flow model's network runs without its kernels, more slowly.")
        return plain, "torch"

    def kernels(plan: Plan | None = None) -> PackedStep:
        return KernelStep(plain.weights, plain.heads, plain.shifts, plain.sizes, plain.rate, plan)

    try:
        from inference.runtime.kernel_build import build
        from inference.runtime.velocity_variants import kernel_variants

        build(kernel_variants(flow), device=weight.device, what="kernels of the flow model")
        reference = PackedVelocity(flow.decoder.estimator, flow.cfg, attention)
        for plan in plans_for(gpu_traits.shared_bytes(weight.device)):
            error = step_error(kernels(plan), reference, flow)
            if not error <= _BOUNDS[weight.dtype]:  # NaN counts as broken
                logger.warning(
                    "The flow model's kernels are unsound here (error %.3g); torch is used.", error
                )
                return plain, "torch"
    except torch.OutOfMemoryError:
        raise
    except Exception:  # Triton's errors share no base class
        logger.warning("The flow model's kernels cannot be used here; torch is.", exc_info=True)
        return plain, "torch"
    return kernels(), "kernels"


def fits(flow: FlowModel) -> bool:
    """Whether the sizes suit the kernels' tiles."""
    cfg = flow.cfg.estimator
    powers = (cfg.channels, cfg.attention_head_dim, cfg.channels * 4)
    return (
        all(size & (size - 1) == 0 for size in powers)
        and 64 <= cfg.channels <= 256
        and 16 <= cfg.attention_head_dim <= 64
        and (cfg.num_heads * cfg.attention_head_dim) % 64 == 0
        and cfg.in_channels % 64 == 0
    )


@torch.inference_mode()
def step_error(
    found: PackedStep, expected: PackedStep, flow: FlowModel, items: Sequence[PackedMel] = _ITEMS
) -> float:
    """‖difference‖ / ‖what two steps add‖ on a small batch of both kinds of items; NaN when not finite."""
    cfg = flow.cfg
    weight = flow.decoder.estimator.final_proj.weight
    pack = FramePack(list(items), len(items), cfg.estimator.chunk_frames)
    generator = torch.Generator().manual_seed(0)
    conditions = torch.randn(pack.rows, 3 * cfg.mel_bins, generator=generator)
    noise = torch.randn(pack.rows, cfg.mel_bins, generator=generator).to(weight.device)
    moves = []
    for step in (found, expected):
        buffers = SolverBuffers.make(pack.rows, pack.blocks, cfg.mel_bins, weight.dtype, weight.device)
        buffers.lay_out(pack)
        buffers.static[0] = conditions.to(weight.device)
        buffers.start(noise)
        for _ in range(2):
            step.advance(buffers)
        moves.append((buffers.x - noise.index_select(0, buffers.layout.place))[buffers.layout.inside])
    return relative_error(*moves)
