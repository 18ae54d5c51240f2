"""What has to be compiled of the velocity network's kernels before they serve. Import this where Triton is."""

from __future__ import annotations

import torch

from inference.models.flow import FlowModel
from inference.runtime import gpu_traits
from inference.runtime import velocity_ops as ops
from inference.runtime.frame_pack import SMALLEST_BUCKET, block_count
from inference.runtime.kernel_build import Variant, recorded
from inference.runtime.packed_attention import block_by_block
from inference.runtime.packed_state import SolverBuffers
from inference.runtime.packed_velocity import PackedVelocity
from inference.runtime.velocity_choice import fits
from inference.runtime.velocity_network import KernelStep
from inference.runtime.velocity_tiles import Plan, plans_for
from inference.settings import LaneSettings


@torch.inference_mode()
def kernel_variants(flow: FlowModel, lanes: LaneSettings | None = None) -> list[Variant]:
    """Those of packed rows and of streams' rows, whatever their number; none in float32.

    The model is on the device that will run them. `lanes` changes nothing.
    """
    cfg = flow.cfg.estimator
    weight = flow.decoder.estimator.final_proj.weight
    if weight.dtype not in (torch.float16, torch.bfloat16) or not fits(flow):
        return []
    plain = PackedVelocity(flow.decoder.estimator, flow.cfg, block_by_block)
    blocks = block_count(SMALLEST_BUCKET, 1, cfg.chunk_frames)
    buffers = SolverBuffers.make(SMALLEST_BUCKET, blocks, flow.cfg.mel_bins, weight.dtype, weight.device)

    def work() -> None:
        for plan in plans_for(gpu_traits.shared_bytes(weight.device)):
            KernelStep(plain.weights, plain.heads, plain.shifts, plain.sizes, plain.rate, plan).advance(
                buffers
            )
            _streams(plain, buffers, plan)

    return recorded(work)


def _streams(plain: PackedVelocity, buffers: SolverBuffers, plan: Plan) -> None:
    """What streams launch otherwise: their convolutions go on from tails."""
    channels = plain.weights.output.weight.shape[1]
    past = buffers.past.flatten(0, 1)
    x = torch.empty(len(past), channels, dtype=plain.dtype, device=past.device)
    output, tails = torch.empty_like(x), torch.empty_like(x)
    for index, stage in enumerate(plain.weights.stages[:2]):  # the first one's input has another width
        source = x.new_empty(len(past), stage.resnet.shortcut.weight.shape[1])
        ends = (torch.empty_like(source), tails)
        shift = ops.Shift(plain.shifts, buffers.step, index)
        middle = torch.empty_like(x)
        ops.resnet(source, past, stage.resnet, middle, output, shift, tails=ends, tiles=plan.conv)
    closing = plain.weights.stages[0].conv
    for weights in (closing, plain.weights.final):
        if weights is not None:
            ops.causal_conv(x, past, weights, output, tails=tails, tiles=plan.conv)
