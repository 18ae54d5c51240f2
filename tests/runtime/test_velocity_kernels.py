"""The velocity network's Triton kernels against PyTorch in float32: on CUDA, or in Triton's interpreter."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from inference.models.config import EstimatorConfig, FlowConfig, FlowEncoderConfig
from inference.models.flow import FlowModel
from inference.runtime import gpu_traits
from inference.runtime.frame_pack import FramePack, PackedMel, device_layout
from inference.runtime.packed_attention import block_by_block
from inference.runtime.packed_velocity import PackedVelocity
from inference.runtime.velocity_choice import step_error
from inference.runtime.velocity_tiles import (
    FEW,
    LARGE_CARD,
    SMALL_CARD,
    AttentionTiles,
    FeedForwardTiles,
    LinearTiles,
    Plan,
)
from inference.runtime.velocity_weights import Affine, BlockWeights, TransformerWeights
from tests.triton_interpreter import need_triton

pytestmark = pytest.mark.unit
ROWS, WIDTH, INNER = 70, 64, 128  # 70: no multiple of any tile
DTYPES = [torch.float16, torch.bfloat16]
BOUND = {torch.float16: 6e-3, torch.bfloat16: 5e-2}
TILES = LinearTiles(32, 64, 4, 2)


@pytest.fixture(scope="module")
def place() -> torch.device:
    return need_triton()


@pytest.fixture(params=[False, True], ids=["pointers", "descriptors"], autouse=True)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """How matrices are read on cards before Hopper, and from there on."""
    monkeypatch.setattr(gpu_traits, "has_copy_engine", lambda device: request.param)
    return bool(request.param)


class _Values:
    """Random tensors of one dtype."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.device, self.dtype = device, dtype

    def rows(self, rows: int, width: int) -> Tensor:
        return torch.randn(rows, width).to(self.device, self.dtype)

    def linear(self, outputs: int, inputs: int, bias: bool = True) -> Affine:
        weight = self.rows(outputs, inputs) / inputs**0.5
        return Affine(weight, self.rows(1, outputs)[0] if bias else None)

    def norm(self, width: int) -> Affine:
        return Affine(1.0 + 0.2 * self.rows(1, width)[0], 0.2 * self.rows(1, width)[0])

    def close(self, found: Tensor, expected: Tensor) -> bool:
        bound = BOUND[self.dtype] * max(1.0, float(expected.std()))
        return bool((found.float() - expected).abs().max() <= bound)


@pytest.fixture(params=DTYPES, ids=str)
def values(request: pytest.FixtureRequest, place: torch.device) -> _Values:
    if place.type == "cpu" and request.param == torch.bfloat16:
        pytest.skip("the interpreter cannot multiply bfloat16")
    return _Values(place, request.param)


def _linear(x: Tensor, layer: Affine) -> Tensor:
    return F.linear(x.float(), layer.weight.float(), None if layer.bias is None else layer.bias.float())


def _norm(x: Tensor, norm: Affine) -> Tensor:
    assert norm.bias is not None
    return F.layer_norm(x.float(), (x.shape[1],), norm.weight.float(), norm.bias.float())


@pytest.mark.parametrize("tiles", [TILES, LinearTiles(16, 64, 4, 2, tiles=2)])
def test_norm_linear(values: _Values, tiles: LinearTiles) -> None:
    from inference.runtime import velocity_ops as ops

    wide = values.rows(ROWS, 2 * WIDTH)
    x, norm = wide[:, WIDTH:], values.norm(WIDTH)  # a slice
    plain, up = values.linear(192, WIDTH, bias=False), values.linear(256, WIDTH)
    output, hidden = values.rows(ROWS, 192), values.rows(ROWS, 256)
    ops.norm_linear(x, norm, plain, output, tiles=tiles)
    ops.norm_linear(x, norm, up, hidden, gelu=True, tiles=tiles)
    assert values.close(output, _linear(_norm(x, norm), plain))
    assert values.close(hidden, F.gelu(_linear(_norm(x, norm), up)))


def test_gelu_is_the_exact_one_over_all_its_range(place: torch.device) -> None:
    from inference.runtime import velocity_ops as ops

    values = _Values(place, torch.float16)
    wanted = torch.linspace(-9.0, 9.0, 64 * 64, device=place).view(64, 64).half()
    none = Affine(torch.zeros(WIDTH, device=place).half(), torch.zeros(WIDTH, device=place).half())
    output = values.rows(64, 64)
    for row in range(0, 64, 16):  # a norm that gives zero leaves the bias alone
        layer = Affine(values.rows(64, WIDTH), wanted[row])
        ops.norm_linear(values.rows(64, WIDTH), none, layer, output, gelu=True, tiles=TILES)
        exact = F.gelu(wanted[row].double())
        assert ((output[0].double() - exact).abs() <= 4e-5 + 1e-3 * exact.abs()).all()


PLANS_OF_A_TAIL = {
    "apart": replace(FEW, up=TILES, out=TILES, down=TILES),
    "together": replace(FEW, out=TILES, feed_forward=FeedForwardTiles(32, 64, 4, 2)),
}


@pytest.mark.parametrize("plan", PLANS_OF_A_TAIL.values(), ids=PLANS_OF_A_TAIL)
def test_after_attention(values: _Values, plan: Plan) -> None:
    from inference.runtime import velocity_ops as ops

    weights = _transformer(values)
    x, mixed = values.rows(ROWS, WIDTH), values.rows(ROWS, INNER)
    expected = _after(x, mixed, weights)
    ops.after_attention(x, mixed, weights, values.rows(ROWS, 4 * WIDTH), plan)
    assert values.close(x, expected)


def _transformer(values: _Values) -> TransformerWeights:
    return TransformerWeights(
        values.norm(WIDTH),
        values.linear(3 * INNER, WIDTH, bias=False),
        values.linear(WIDTH, INNER),
        values.norm(WIDTH),
        values.linear(4 * WIDTH, WIDTH),
        values.linear(WIDTH, 4 * WIDTH),
    )


def _after(x: Tensor, mixed: Tensor, weights: TransformerWeights) -> Tensor:
    y = x.float() + _linear(mixed, weights.out)
    return y + _linear(F.gelu(_linear(_norm(y, weights.norm3), weights.up)), weights.down)


def test_convolutions_read_what_their_table_says(values: _Values) -> None:
    from inference.runtime import velocity_ops as ops

    block = BlockWeights(values.linear(WIDTH, 3 * WIDTH), values.norm(WIDTH))
    x, tails = values.rows(ROWS, WIDTH), values.rows(3, WIDTH)
    row = torch.arange(ROWS, dtype=torch.int32)
    past = torch.stack((row - 1, row - 2), dim=1)
    past[0], past[1, 1], past[20], past[21, 1] = -1, -1, -1, -1  # two items
    past[40], past[41, 1] = torch.tensor([-2, -4]), -2  # one that goes on from tails
    past[60], past[61, 1] = torch.tensor([12, 11]), 12  # one that goes on from other rows
    past = past.to(values.device)
    rows = torch.cat((tails.flip(0), torch.zeros_like(x[:1]), x)).float()  # tails 2, 1, 0, nothing, x
    index = past.long() + 4
    expected = _linear(torch.cat((rows[index[:, 1]], rows[index[:, 0]], x.float()), dim=1), block.conv)
    output = torch.full_like(x, float("nan"))
    ops.causal_conv(x, past, block.conv, output, tails=tails, tiles=TILES)
    assert values.close(output, expected)

    expected = F.mish(_norm(expected, block.norm))
    table, step = values.rows(6, WIDTH).view(3, 2, WIDTH), torch.tensor([2], device=values.device)
    ops.causal_conv(x, past, block, output, tails=tails, shift=ops.Shift(table, step, 1), tiles=TILES)
    assert values.close(output, expected + table[2, 1].float())

    wide, shortcut = values.rows(ROWS, 192), values.linear(WIDTH, 192)
    ops.causal_conv(x, past, block, output, tails=tails, shortcut=(wide, shortcut), tiles=TILES)
    assert values.close(output, expected + _linear(wide, shortcut))


@pytest.mark.parametrize("group", [24, 12, 4])
def test_guided_step(values: _Values, group: int) -> None:
    from inference.runtime import velocity_ops as ops

    hidden, layer = values.rows(48, WIDTH), values.linear(80, WIDTH)
    x = torch.randn(24, 80, device=values.device)
    inputs = torch.zeros(48, 128, device=values.device, dtype=values.dtype)
    sizes, step = torch.tensor([0.1, 0.2, 0.3], device=values.device), torch.tensor([2], device=values.device)
    halves = _linear(hidden, layer).view(24 // group, 2, group, 80)
    expected = x + 0.3 * (1.7 * halves[:, 0] - 0.7 * halves[:, 1]).flatten(0, 1)
    ops.guided_step(hidden, layer, x, inputs, sizes, step, group, 0.7, tiles=LinearTiles(16, 128, 4, 2))
    assert (x - expected).abs().max() <= 1e-3
    pair = inputs.view(24 // group, 2, group, 128)
    rounded = x.to(values.dtype).view(24 // group, group, 80)
    assert torch.equal(pair[:, 0, :, :80], rounded) and torch.equal(pair[:, 1, :, :80], rounded)
    assert not pair[..., 80:].any()


@pytest.mark.parametrize("queries", [64, 128])
def test_attention(values: _Values, queries: int) -> None:
    from inference.runtime import velocity_ops as ops

    pack = FramePack([PackedMel(130, True), PackedMel(140), PackedMel(7, True), PackedMel(1)], 6)
    layout = device_layout(torch.from_numpy(pack.table).to(values.device), pack.rows, pack.blocks)
    qkv = values.rows(2 * pack.rows, 3 * 32)
    output = torch.zeros(2 * pack.rows, 32, device=values.device, dtype=values.dtype)
    plan = replace(FEW, attention=AttentionTiles(queries, 64, 4, 2))
    ops.attend_blocks(qkv, output, layout.blocks, 2, plan=plan)
    q, k, v = qkv.float().unflatten(1, (3, 2, 16)).unbind(1)
    inside = torch.cat((layout.inside, layout.inside))
    expected = block_by_block(q, k, v, layout.blocks).flatten(1)
    assert values.close(output[inside], expected[inside])


def test_rows_do_not_depend_on_their_company(place: torch.device) -> None:
    from inference.runtime import velocity_ops as ops

    values = _Values(place, torch.float16)
    weights = _transformer(values)
    x, mixed = values.rows(ROWS, WIDTH), values.rows(ROWS, INNER)
    found = []
    for count in (ROWS, 33):
        for plan in PLANS_OF_A_TAIL.values():
            part = x[:count].clone()
            ops.after_attention(part, mixed[:count], weights, values.rows(count, 4 * WIDTH), plan)
            found.append(part[:33])
    for alone, together in zip(found[len(PLANS_OF_A_TAIL) :], found):
        assert torch.equal(alone, together)


def _flow() -> FlowModel:
    config = FlowConfig(
        input_size=64,
        encoder=FlowEncoderConfig(64, 64, attention_heads=4, linear_units=128, num_blocks=1),
        estimator=EstimatorConfig(
            channels=64, attention_head_dim=32, num_heads=2, n_blocks=1, num_mid_blocks=1
        ),
    )
    flow = FlowModel(config).eval()
    for name, parameter in flow.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.2)
    return flow


# With tiles that the interpreter is not too slow with.
LARGE = LinearTiles(128, 128, 4, 1)
APART = Plan(LARGE, LARGE, LARGE, LARGE, LARGE, LARGE, AttentionTiles(64, 64, 4, 2))


@pytest.mark.slow
@pytest.mark.parametrize("plan", [APART, replace(APART, feed_forward=FeedForwardTiles(128, 64, 8, 2))])
def test_whole_steps(place: torch.device, plan: Plan) -> None:
    from inference.runtime.velocity_network import KernelStep

    flow = _flow().to(place)
    half = PackedVelocity(copy.deepcopy(flow).half().decoder.estimator, flow.cfg, block_by_block)
    step = KernelStep(half.weights, half.heads, half.shifts, half.sizes, half.rate, plan)
    items = [PackedMel(60, causal=True), PackedMel(40)]
    assert step_error(step, half, flow.half(), items) <= 5e-3


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_plan_on_cuda(cuda: torch.device, dtype: torch.dtype) -> None:
    from inference.runtime.packed_attention import choose_attention
    from inference.runtime.velocity_network import KernelStep

    flow = FlowModel(FlowConfig()).eval().to(cuda, dtype)
    attention = choose_attention(cuda, dtype, 64)
    plain = PackedVelocity(flow.decoder.estimator, flow.cfg, attention)
    for plan in (*LARGE_CARD, *SMALL_CARD):
        step = KernelStep(plain.weights, plain.heads, plain.shifts, plain.sizes, plain.rate, plan)
        assert step_error(step, plain, flow) <= (5e-3 if dtype == torch.float16 else 4e-2)
