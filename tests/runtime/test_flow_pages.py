"""Pages of the incremental flow: their size, their holders, attention over them, and sizes of captured blocks."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

from inference.models.config import EstimatorConfig, FlowConfig, FlowEncoderConfig
from inference.runtime.flow_page_book import PageBook
from inference.runtime.flow_pages import PageSizes, PageStore
from inference.runtime.paged_layout import row_ladder
from inference.runtime.paged_memory import PageMemory, PageShape
from inference.runtime.paged_ops import PlainPages, ops_error
from tests.models.flow_support import TINY
from tests.triton_interpreter import need_triton

pytestmark = pytest.mark.unit

NANO = FlowConfig(
    encoder=FlowEncoderConfig(output_size=192, num_blocks=3),
    estimator=EstimatorConfig(channels=128, attention_head_dim=32, num_heads=4, n_blocks=1, num_mid_blocks=6),
)


@pytest.mark.parametrize("steps", [1, 10])
def test_pages_are_as_large_as_said(steps: int) -> None:
    sizes = replace(PageSizes.of(TINY), steps=steps)
    some, none = (
        PageStore(sizes, count, torch.float32, torch.device("cpu"), steps).bytes for count in (3, 0)
    )
    assert some - none == 3 * 4 * sizes.page_values


@pytest.mark.parametrize(("config", "frame"), [(NANO, 40_960 + 2_112), (FlowConfig(), 1_146_880 + 7_168)])
def test_the_documented_size_of_a_frame(config: FlowConfig, frame: int) -> None:
    sizes = PageSizes.of(config)
    tails = sizes.page_values - 50 * frame
    assert 0 < tails < 0.06 * sizes.page_values


# ------------------------------------------------------------------------------------------------------ holders
def test_prompts_stay_until_their_place_is_needed() -> None:
    book = PageBook(5)
    first = book.take(2)
    assert first == [0, 1]
    book.keep_prompt(b"a", first)
    book.give_back(first)
    assert (book.held, book.available) == (2, 5)
    assert book.prompt_pages(b"a") == first and book.prompt_pages(b"b") == []
    assert book.available == 3 and book.take(4) is None  # a stream uses them
    assert book.prompt_pages(b"a") == first  # and they were not forgotten for nothing
    book.give_back(first)
    book.give_back(first)
    assert book.take(5) is not None and book.prompt_pages(b"a") == []


def test_the_prompt_used_longest_ago_goes_first() -> None:
    book = PageBook(4)
    for voice in (b"a", b"b"):
        taken = book.take(2)
        assert taken is not None
        book.keep_prompt(voice, taken)
        book.give_back(taken)
    book.give_back(book.prompt_pages(b"a"))
    assert book.take(1) is not None
    assert book.prompt_pages(b"b") == [] and len(book.prompt_pages(b"a")) == 2


def test_abandoned_pages_come_back() -> None:
    book = PageBook(3)
    taken = book.take(3)
    assert taken is not None and book.take(1) is None
    book.abandon(taken)
    assert book.take(3) == [0, 1, 2]


def test_threads_share_the_book() -> None:
    book = PageBook(30)

    def work(number: int) -> None:
        voice = bytes([number % 3])
        for _ in range(200):
            shared = book.prompt_pages(voice)
            own = book.take(3)
            assert own is not None and len(set(own) | set(shared)) == 3 + len(shared)
            if not shared:
                book.keep_prompt(voice, own[:2])
            book.give_back([*own, *shared])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(8)))
    assert book.available == 30


def test_streams_own_pages_do_not_take_the_place_of_voices_in_use() -> None:
    now = [0.0]
    book = PageBook(4, lambda: now[0])
    taken = book.take(3)
    assert taken is not None
    book.keep_prompt(b"a", taken)
    book.give_back(taken)
    assert book.take_some(3, idle=60.0) == [3] and book.knows(b"a")
    now[0] = 61.0
    assert book.take_some(2, idle=60.0) == [0, 1] and not book.knows(b"a")
    assert book.take_some(9, idle=60.0) == [2] and book.take_some(1, idle=60.0) == []


def test_prompts_wanted_lately_outlast_a_rest() -> None:
    now = [0.0]
    book = PageBook(4, lambda: now[0])
    old, young = book.take(1), book.take(1)
    assert old and young
    book.keep_prompt(b"old", old)
    now[0] = 50.0
    book.keep_prompt(b"young", young)
    book.give_back([*old, *young])
    now[0] = 70.0
    book.forget_unused(60.0)
    assert not book.knows(b"old") and book.knows(b"young") and book.held == 1
    book.forget_unused()
    assert book.held == 0 and book.end == 0


def test_pages_beyond_the_memory_are_never_given_out_again() -> None:
    book = PageBook(6)
    taken = book.take(5)
    assert taken is not None and book.end == 5
    book.limit(4)
    book.give_back(taken)
    assert book.available == 4 and book.held == 0 and book.end == 0
    assert book.take(5) is None and book.take(4) == [0, 1, 2, 3]


# ------------------------------------------------------------------------------------------------- kernels
SHAPES = pytest.mark.parametrize(
    ("heads", "size", "frames"), [(8, 64, 50), (4, 32, 50), (2, 16, 50), (2, 16, 30)]
)


@SHAPES
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_paged_kernels(heads: int, size: int, frames: int, dtype: torch.dtype) -> None:
    device = need_triton()
    from inference.runtime.paged_kernels import KernelPages

    shape = PageShape(steps=3, layers=4, heads=heads, head_size=size, frames=frames, tail_channels=345)
    assert ops_error(KernelPages, shape, dtype, device) < (1e-5 if dtype == torch.float32 else 0.02)


@pytest.mark.gpu
@SHAPES
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_paged_kernels_on_cuda(
    cuda: torch.device, heads: int, size: int, frames: int, dtype: torch.dtype
) -> None:
    from inference.runtime.paged_kernels import KernelPages

    shape = PageShape(steps=3, layers=4, heads=heads, head_size=size, frames=frames, tail_channels=345)
    assert ops_error(KernelPages, shape, dtype, cuda) < (1e-5 if dtype == torch.float32 else 0.02)


def test_what_is_to_be_compiled_is_named_once() -> None:
    need_triton()
    from inference.runtime.paged_kernels import ALL_TILES
    from inference.runtime.paged_variants import kernel_variants

    found = kernel_variants(FlowConfig(), torch.float16, dependent=True)
    names = [kernel.fn.__name__ for kernel, _, _ in found]
    assert sorted(names) == sorted(["_attend"] * len(ALL_TILES) + ["_recall"] + ["_keep"] * 2)
    for _, arguments, constants in found:
        tensors = [value for value in arguments if isinstance(value, torch.Tensor)]
        assert all(tensor.is_meta for tensor in tensors) and constants["dependent"]


def test_the_probe_tells_right_from_wrong() -> None:
    class Forgetful(PlainPages):
        def keep(self, *_: object) -> None:
            pass

    class Shifted(PlainPages):
        def attend(self, qkv: torch.Tensor, layer: int, *rest: torch.Tensor) -> None:
            super().attend(qkv, layer - 1, *rest)  # type: ignore[arg-type]

    shape, cpu = PageShape.of(TINY), torch.device("cpu")
    assert ops_error(PlainPages, shape, torch.bfloat16, cpu) < 0.03
    for wrong in (Forgetful, Shifted):
        assert ops_error(wrong, shape, torch.float32, cpu) > 0.05


@pytest.mark.gpu
def test_slabs_come_and_go(cuda: torch.device) -> None:
    shape = PageShape(steps=10, layers=8, heads=8, head_size=64, frames=50, tail_channels=64)
    memory = PageMemory(shape, 100, torch.float16, cuda)
    assert memory.bytes == 0
    memory.ensure(40)
    places = {memory.address(page) for page in range(41)}
    assert len(places) == 41 and memory.bytes >= 41 * memory.page_bytes
    memory.shrink(1)
    assert memory.made < 41 and memory.address(0) in places


def test_few_lengths_of_rows_and_little_padding() -> None:
    ladder = row_ladder(8192)
    assert ladder[0] == 128 and ladder[-1] == 8192 and len(ladder) < 20
    assert all(longer <= 1.5 * shorter for shorter, longer in zip(ladder, ladder[1:]))
    assert all(size % 64 == 0 for size in ladder)
    assert row_ladder(100) == (128,) and row_ladder(8193)[-1] > 8192
