"""The fused arithmetic against the plain model, recorded values, and itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from inference.models.language_model import LanguageModel
from inference.runtime.feed import pad_feeds
from inference.runtime.fused_language_model import FusedLanguageModel, packed_product, transposed_product
from inference.runtime.kv_cache import KvCache
from inference.runtime.language_model_step import decode, prefill
from inference.runtime.slot_attention import PrefixAttention, PromptAttention, RowAttention
from tests.golden_data import load_case, parametrize, relative_error
from tests.models.language_model_support import prompt, prompt_of, random_model, tiny_model

LENGTH = 64


class Fused:
    """One row of a fused model: a prompt, in pieces or whole, then a token at a time."""

    def __init__(self, model: LanguageModel, attention: str = "prefix") -> None:
        self.model = FusedLanguageModel(model, LENGTH * 4)
        self.cache = KvCache(model.cfg, 3, LENGTH * 4, model.device, model.dtype)
        self.attention = attention
        self.length = 0

    def prompt(self, kinds: Tensor, ids: Tensor, piece: int) -> Tensor:
        """Hidden states (T, hidden)."""
        hidden = []
        for some_kinds, some_ids in zip(kinds[0].split(piece), ids[0].split(piece)):
            positions = self.length + torch.arange(len(some_ids), device=ids.device)
            row = torch.ones(1, dtype=torch.int64, device=ids.device)
            prefix = None if self.length == 0 else 2 * LENGTH
            memory = PromptAttention(self.cache, row, row.expand(len(some_ids)), positions, prefix)
            hidden.append(self.model.forward(self.model.embed(some_kinds, some_ids), positions, memory))
            self.length += len(some_ids)
        return torch.cat(hidden)

    def token(self, token: int) -> Tensor:
        """Hidden state (1, hidden)."""
        device = self.cache.data.device
        rows = torch.arange(2, device=device)
        positions = torch.tensor([0, self.length], device=device)
        memory: PrefixAttention | RowAttention
        if self.attention == "row":
            memory = RowAttention(self.cache, rows, positions, [(1, 1, self.length + 1)])
        else:
            product = self.attention == "products"
            memory = PrefixAttention(self.cache, rows, positions, 2 * LENGTH, self.model.dtype, product)
        embeddings = self.model.embed_speech(torch.tensor([0, token], device=device))
        self.length += 1
        return self.model.forward(embeddings, positions, memory)[1:]


@pytest.mark.parametrize("attention", ["prefix", "products", "row"])
@pytest.mark.parametrize("piece", [100, 9])
@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.float32, 3e-6), (torch.bfloat16, 3e-2)], ids=["fp32", "bf16"]
)
def test_equals_the_plain_model(
    attention: str, piece: int, dtype: torch.dtype, bound: float, device: torch.device
) -> None:
    model = random_model(layers=3).to(device, dtype)
    kinds, ids, lengths = pad_feeds([prompt(range(9), range(30)).feed()], device)
    tokens = [3, 1, 39, 3]
    cache = KvCache(model.cfg, 1, LENGTH, device, dtype)
    expected = [model(model.embed(kinds, ids))[0]]
    prefill(model, cache, kinds, ids, lengths)
    active = torch.ones(1, dtype=torch.bool, device=device)
    expected += [
        decode(model, cache, torch.tensor([token], device=device), active, LENGTH) for token in tokens
    ]
    fused = Fused(model, attention)
    found = [fused.prompt(kinds, ids, piece)] + [fused.token(token) for token in tokens]
    for one, other in zip(found, expected):
        assert one.dtype == dtype
        assert relative_error(one, other) < bound
        assert relative_error(fused.model.logits(one), model.logits(other)) < bound


@pytest.mark.golden
@parametrize("name", "llm_")
def test_equals_recorded(name: str, device: torch.device) -> None:
    case = load_case(name)
    model = tiny_model(case).to(device)
    fused = Fused(model)
    kinds, ids, _ = pad_feeds([prompt_of(case).feed()], device)
    hidden = [fused.prompt(kinds, ids, 100)[-1:]]
    for token in case.arrays["forced_tokens"].tolist()[:-1]:
        hidden.append(fused.token(token))
    states = torch.cat(hidden)
    assert relative_error(states, case.tensor("step_hidden")) <= 1e-4
    logp = torch.log_softmax(fused.model.logits(states), dim=1)
    assert relative_error(logp, case.tensor("step_logp")) <= 1e-4


def test_the_plain_model_stays_as_it_was_and_shares_its_storage() -> None:
    model = random_model()
    kinds, ids, _ = pad_feeds([prompt(range(9), range(30)).feed()], model.device)
    before = model(model.embed(kinds, ids))
    state = {key: value.clone() for key, value in model.state_dict().items()}
    FusedLanguageModel(model, LENGTH)
    FusedLanguageModel(model, LENGTH)
    assert torch.equal(model(model.embed(kinds, ids)), before)
    after = model.state_dict()
    assert list(after) == list(state) and all(torch.equal(after[key], state[key]) for key in state)
    layer = model.decoder.layers[0]
    for group in (
        (layer.self_attn.q_proj.weight, layer.self_attn.k_proj.weight, layer.self_attn.v_proj.weight),
        (layer.self_attn.q_proj.bias, layer.self_attn.v_proj.bias),
        (layer.mlp.gate_proj.weight, layer.mlp.up_proj.weight),
    ):
        assert len({weight.untyped_storage().data_ptr() for weight in group}) == 1


@pytest.mark.parametrize("make", [packed_product, transposed_product])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("outs", "ins"), [(13, 32), (160, 64), (1536, 256), (6564, 256)])
def test_packed_products_are_right_and_blind_to_neighbours(
    make: Callable[[Tensor, Tensor | None, int], Callable[[Tensor], Tensor]],
    biased: bool,
    outs: int,
    ins: int,
) -> None:
    """A row gives the same bits wherever it stands in a block and whatever stands beside it."""
    weight, bias = torch.randn(outs, ins), torch.randn(outs) if biased else None
    multiply = make(weight, bias, 8)
    row = torch.randn(ins)
    results = []
    for place in range(8):
        block = torch.randn(8, ins) * 100.0
        block[place] = row
        results.append(multiply(block)[place])
    assert relative_error(results[0], torch.nn.functional.linear(row, weight, bias)) < 1e-6
    assert all(torch.equal(result, results[0]) for result in results)


def test_packing_changes_only_rounding() -> None:
    model = random_model()
    plain, packed = FusedLanguageModel(model, LENGTH), FusedLanguageModel(model, LENGTH)
    assert packed.pack(8) > 0
    hidden = torch.randn(8, model.cfg.hidden_size)
    assert relative_error(packed.logits(hidden), plain.logits(hidden)) < 1e-6
    assert torch.equal(packed.logits(hidden[:3]), plain.logits(hidden[:3]))


def test_a_row_gets_the_same_bits_in_any_company() -> None:
    """Rows with as many spans go together: in one run, in several, with gaps, and alone."""
    model = FusedLanguageModel(random_model(), 256)
    cfg = model.cfg
    generator = torch.Generator().manual_seed(5)
    cache = KvCache(cfg, 9, 256)
    cache.data.normal_(generator=generator)
    lengths = {0: 5, 1: 64, 2: 65, 3: 100, 5: 128, 6: 200, 7: 17}  # of slots; 4 is empty
    heads = cfg.num_heads + 2 * cfg.num_kv_heads
    fused = torch.randn(8, heads, cfg.head_dim, generator=generator)
    stale = cache.data.clone()

    def attended(slots: list[int]) -> Tensor:
        cache.data.copy_(stale)
        rows = torch.tensor([slot if slot in slots else 8 for slot in range(8)])
        positions = torch.tensor([lengths.get(slot, 1) - 1 for slot in range(8)])
        memory = RowAttention(cache, rows, positions, [(slot, slot, lengths[slot]) for slot in slots])
        return memory.attend(0, fused)

    together = attended(sorted(lengths))
    assert not together[4].any()
    for slot, length in lengths.items():
        assert torch.equal(attended([slot])[slot], together[slot])
        queries = fused[slot, : cfg.num_heads].view(cfg.num_kv_heads, -1, cfg.head_dim)
        keys, values = stale[0, :, slot, :, :length].clone()
        keys[:, -1], values[:, -1] = fused[slot, cfg.num_heads :].view(2, cfg.num_kv_heads, -1)
        expected = torch.nn.functional.scaled_dot_product_attention(queries, keys, values)
        assert relative_error(together[slot], expected.flatten()) <= 1e-6
    half = attended([0, 1, 6, 7])
    assert torch.equal(half[[0, 1, 6, 7]], together[[0, 1, 6, 7]])
