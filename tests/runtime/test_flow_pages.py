"""Pages of the incremental flow: their size, their holders, attention over them, and sizes of captured blocks."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

from inference.models.config import EstimatorConfig, FlowConfig, FlowEncoderConfig
from inference.runtime.flow_cached_attention import GatheredAttention, attention_error
from inference.runtime.flow_page_book import PageBook
from inference.runtime.flow_pages import PageSizes, PageStore
from inference.runtime.flow_step_graphs import padded_count
from tests.models.flow_support import TINY

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


# ---------------------------------------------------------------------------------------------------- attention
def test_the_probe_tells_right_from_wrong() -> None:
    class Shifted(GatheredAttention):
        def __call__(self, query, memory, block):  # type: ignore[no-untyped-def]
            return super().__call__(query, memory, replace(block, counts=block.counts - 1))

    cpu = torch.device("cpu")
    assert attention_error(GatheredAttention(), cpu, torch.float32, 4, 32) < 1e-5
    assert attention_error(GatheredAttention(), cpu, torch.bfloat16, 4, 32) < 0.02
    assert attention_error(Shifted(), cpu, torch.float32, 4, 32) > 0.05


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("heads", "head_size"), [(8, 64), (4, 32), (2, 16)])
def test_the_paged_kernel(cuda: torch.device, dtype: torch.dtype, heads: int, head_size: int) -> None:
    from inference.runtime.flow_paged_kernel import PagedAttention

    bound = 1e-5 if dtype == torch.float32 else 0.02
    assert attention_error(PagedAttention(), cuda, dtype, heads, head_size) < bound


def test_few_sizes_of_blocks_and_little_padding() -> None:
    sizes = [padded_count(count) for count in range(1, 257)]
    assert all(size >= count for count, size in enumerate(sizes, start=1))
    assert sizes[:8] == list(range(1, 9))
    assert all(size <= count * 1.13 + 0.5 for count, size in enumerate(sizes, start=1))
    assert len(set(sizes)) <= 48
