"""The draw as one kernel: the recorded decisions, and everything that the plain draw does to a row."""

from __future__ import annotations

import pytest
import torch

from inference.models.config import LanguageModelConfig, SamplingConfig
from inference.runtime.slot_runner import draw
from inference.runtime.slot_table import ACTIVE, EXACT, KEY, LEAST, LENGTH, MOST, RECENT, STEPS, SlotRows
from inference.runtime.uniforms import stream_keys
from tests.golden_data import load_case, parametrize
from tests.runtime.test_sampling import config_of, recent_ids
from tests.triton_interpreter import need_triton

DEVICE = need_triton()
pytestmark = [pytest.mark.gpu] if DEVICE.type == "cuda" else []

from inference.runtime.lm_sampler import draw_ids  # noqa: E402


@pytest.mark.golden
@parametrize("name", "ras_")
def test_decisions_equal_recorded(name: str) -> None:
    case = load_case(name)
    end = case.meta["params"]["eos"]
    cfg = LanguageModelConfig(speech_token_size=end, sampling=config_of(case))
    logp = case.tensor("logp")
    assert logp.shape[1] == cfg.speech_vocab_size
    rows = SlotRows.create(len(logp), cfg.sampling, torch.device("cpu")).data
    rows[:, EXACT] = rows[:, ACTIVE] = 1
    rows[:, LEAST], rows[:, MOST] = case.tensor("ignore_eos").long(), 99
    rows[:, RECENT:] = recent_ids(case, cfg.sampling.win_size)
    rows, drawn = rows.to(DEVICE), torch.zeros(len(logp), dtype=torch.int64, device=DEVICE)
    draw_ids(logp.to(DEVICE), rows, drawn, cfg, advance=False, uniforms=case.tensor("u").to(DEVICE))
    assert drawn.tolist() == case.arrays["result"].tolist()
    assert rows[:, -1].tolist() == drawn.tolist()


def random_rows(count: int, cfg: LanguageModelConfig) -> torch.Tensor:
    rows = SlotRows.create(count, cfg.sampling, torch.device("cpu")).data
    rows[:, KEY] = stream_keys(torch.randint(0, 2**62, (count,)))
    rows[:, STEPS], rows[:, LENGTH] = torch.randint(0, 5, (count,)), torch.randint(0, 300, (count,))
    rows[:, LEAST], rows[:, MOST] = torch.randint(0, 9, (count,)), torch.randint(3, 12, (count,))
    rows[:, EXACT], rows[:, ACTIVE] = torch.arange(count) % 3 == 0, torch.arange(count) % 5 != 0
    rows[:, RECENT:] = torch.randint(-1, cfg.speech_vocab_size, (count, cfg.sampling.win_size))
    return rows


@pytest.mark.parametrize("advance", [False, True])
@pytest.mark.parametrize(
    ("cfg", "scale"),
    [
        (LanguageModelConfig(speech_token_size=40), 3.0),  # repeats, ends, reserved ids
        (LanguageModelConfig(speech_token_size=8), 1.0),  # fewer ids than candidates
        (LanguageModelConfig(speech_token_size=700, sampling=SamplingConfig(0.95, 50, 6, 0.3)), 0.5),
    ],
)
def test_rows_become_what_the_plain_draw_makes_of_them(
    cfg: LanguageModelConfig, scale: float, advance: bool
) -> None:
    count = 12 if cfg.speech_token_size < 100 else 6
    expected = random_rows(count, cfg)
    found = expected.to(DEVICE, copy=True)
    drawn = torch.zeros(count + 1, dtype=torch.int64, device=DEVICE)
    for step in range(4):
        logits = torch.randn(count, cfg.speech_vocab_size) * scale
        if step == 2:
            logits[1, 4], logits[3, 2], logits[4, 1] = torch.nan, torch.inf, -torch.inf
        rows = SlotRows(expected)
        active = rows.active
        plain = draw(cfg, logits.clone(), rows)
        if advance:
            rows.lengths.add_(active)
        draw_ids(logits.to(DEVICE), found, drawn, cfg, advance)
        assert drawn[:count].tolist() == plain.tolist()
        assert torch.equal(found.cpu(), expected)


def test_equal_logits_keep_the_order_of_ids() -> None:
    """A flat distribution: the nucleus is the first ids."""
    cfg = LanguageModelConfig(speech_token_size=100)
    rows = random_rows(2, cfg).to(DEVICE)
    rows[:, RECENT:] = -1
    drawn = torch.zeros(2, dtype=torch.int64, device=DEVICE)
    uniforms = torch.tensor([[0.0, 0.5], [0.9999, 0.5]], dtype=torch.float64, device=DEVICE)
    draw_ids(torch.zeros(2, 103, device=DEVICE), rows, drawn, cfg, advance=False, uniforms=uniforms)
    assert drawn.tolist() == [0, 24]
