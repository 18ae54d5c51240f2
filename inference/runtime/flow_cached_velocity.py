"""The velocity network on new chunks alone; what they need of earlier ones is read from pages (SPEC 5.1, 5.4)."""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inference.models.flow import FlowModel
from inference.models.velocity import Attention, CausalBlock, ResnetBlock, TransformerBlock
from inference.runtime.flow_block import Block
from inference.runtime.flow_cached_attention import attend, remember
from inference.runtime.flow_pages import PAIR, TAIL, PageStore
from inference.runtime.flow_solver import time_grid
from inference.runtime.vector_math import mish


class StepPlace(NamedTuple):
    """One Euler step: what depends on its time, and where its memory begins."""

    shifts: Tensor  # (stages, C): what each stage's resnet adds
    size: float
    first_page: int
    first_tail: int


class CachedVelocity:
    """Euler steps of a block, with a flow model's own weights."""

    def __init__(self, flow: FlowModel) -> None:
        network = flow.decoder.estimator
        weight = network.final_proj.weight
        self._cfg_rate = flow.cfg.cfg_rate
        self._heads = network.cfg.num_heads
        self._dtype = weight.dtype
        times, self._sizes = time_grid(flow.cfg.n_timesteps)
        shifts = network.time_shifts(torch.tensor(times, device=weight.device))
        self._shifts = shifts.transpose(0, 1).contiguous()  # (steps, stages, C)
        self._stages = [
            cast(nn.ModuleList, stage)
            for stage in (*network.down_blocks, *network.mid_blocks, *network.up_blocks)
        ]
        self._final_block, self._final_proj = network.final_block, network.final_proj
        self._taps = {conv: _as_linear(conv) for conv in network.modules() if _looks_back(conv)}
        self._qkv = {module: _joined(module) for module in network.modules() if isinstance(module, Attention)}

    @property
    def steps(self) -> int:
        """Euler steps of a solve."""
        return len(self._sizes)

    def place(self, step: int, store: PageStore) -> StepPlace:
        """Step number `step`."""
        kept = step % store.kept_steps
        pages = store.pages + 1
        return StepPlace(self._shifts[step], self._sizes[step], kept * pages, kept * (pages + 1))

    def conditions(self, mu: Tensor, block: Block) -> Tensor:
        """(C, pair, 2n, 240): mu, speaker and prompt mel side by side; zeros for the free half."""
        speaker = block.inputs.speaker[:, None].expand(-1, mu.shape[1], -1)
        joined = torch.cat((mu.float(), speaker.float(), block.inputs.prompt_mel), dim=2).to(self._dtype)
        return torch.stack((joined, torch.zeros_like(joined)), dim=1)

    def advance(
        self, x: Tensor, conditions: Tensor, block: Block, store: PageStore, place: StepPlace
    ) -> Tensor:
        """x (C, 2n, 80) float32 at one Euler step → at the next; writes the step's part of the block's pages."""
        pair = x.to(self._dtype)[:, None].expand(-1, PAIR, -1, -1)
        evaluation = _Evaluation(self, block.moved(place.first_page, place.first_tail), store, place.shifts)
        guided, free = evaluation(torch.cat((pair, conditions), dim=3)).float().unbind(1)
        return x + place.size * ((1.0 + self._cfg_rate) * guided - self._cfg_rate * free)


class _Evaluation:
    """One evaluation of the network. Tails are cut from one row in the order of use and written back together."""

    def __init__(self, owner: CachedVelocity, block: Block, store: PageStore, shifts: Tensor) -> None:
        self._owner = owner
        self._block = block
        self._store = store
        self._shifts = shifts
        self._before = store.velocity_tails.index_select(0, block.tail_before)  # (C, pair, 2, channels)
        self._ends: list[Tensor] = []
        self._used = 0

    def __call__(self, hidden: Tensor) -> Tensor:
        """(C, pair, 2n, 320) → (C, pair, 2n, 80)."""
        owner, skip = self._owner, hidden
        memory = iter(self._store.velocity_keys)
        for index, stage in enumerate(owner._stages):
            if index == len(owner._stages) - 1:
                hidden = torch.cat((hidden, skip), dim=3)
            hidden = self._resnet(cast(ResnetBlock, stage[0]), hidden, self._shifts[index])
            for module in cast(nn.ModuleList, stage[1]):
                hidden = self._transformer(cast(TransformerBlock, module), hidden, next(memory))
            if index == 0:
                skip = hidden
            if len(stage) == 3:
                hidden = self._convolve(stage[2], hidden)
        hidden = self._causal_block(owner._final_block, hidden)
        self._keep_tails()
        return cast(Tensor, owner._final_proj(hidden))

    def _convolve(self, conv: nn.Module, x: Tensor) -> Tensor:
        before = self._before[..., self._used : self._used + x.shape[3]]
        self._used += x.shape[3]
        ends = x[:, :, -TAIL:]
        if self._block.tail_after is not None:
            self._ends.append(ends)
        past = torch.cat((before, x), dim=2)
        weight, bias = self._owner._taps[conv]
        return F.linear(torch.cat((past[:, :, :-2], past[:, :, 1:-1], x), dim=3), weight, bias)

    def _keep_tails(self) -> None:
        if self._block.tail_after is not None:
            self._store.velocity_tails.index_copy_(0, self._block.tail_after, torch.cat(self._ends, dim=3))

    def _causal_block(self, block: CausalBlock, x: Tensor) -> Tensor:
        return mish(block.block["2"](self._convolve(block.block["0"], x)))

    def _resnet(self, resnet: ResnetBlock, x: Tensor, shift: Tensor) -> Tensor:
        hidden = self._causal_block(resnet.block1, x) + shift
        output: Tensor = self._causal_block(resnet.block2, hidden) + resnet.res_conv(x)
        return output

    def _transformer(self, layer: TransformerBlock, x: Tensor, memory: Tensor) -> Tensor:
        x = x + self._attention(layer.attn1, layer.norm1(x), memory)
        output: Tensor = x + layer.ff(layer.norm3(x))
        return output

    def _attention(self, attention: Attention, x: Tensor, memory: Tensor) -> Tensor:
        owner = self._owner
        joined = F.linear(x, owner._qkv[attention]).unflatten(3, (3, -1))  # (C, pair, 2n, 3, inner)
        rows = joined[:, :, :, 1:].permute(0, 2, 3, 1, 4)
        remember(memory.unflatten(3, (PAIR, -1)), rows, self._block)
        query = joined[:, :, :, 0].unflatten(3, (owner._heads, -1))
        mixed = attend(query, memory, self._block)
        return cast(Tensor, attention.to_out[0](mixed.flatten(3)))


def _looks_back(module: nn.Module) -> bool:
    return isinstance(module, nn.Conv1d) and module.kernel_size[0] > 1


def _as_linear(conv: nn.Module) -> tuple[Tensor, Tensor | None]:
    """A causal convolution's weight (C', C, 3) as a matrix (C', 3 · C) over neighbouring frames."""
    weight, bias = cast(Tensor, conv.weight), cast("Tensor | None", conv.bias)
    return weight.detach().transpose(1, 2).flatten(1).contiguous(), bias


def _joined(attention: Attention) -> Tensor:
    return torch.cat([part.weight.detach() for part in (attention.to_q, attention.to_k, attention.to_v)])
