"""The host's side of captured training steps; the CUDA side is marked `gpu`."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import pytest
import torch
from torch import Tensor

from training.captured_steps import EAGER_RUNS, CapturedSteps, CudaRecorder, use_own_stream

pytestmark = pytest.mark.unit


class Replayed:
    """A recording that simply works out the same function again, into the same place."""

    def __init__(self, function: Callable[[], Tensor]) -> None:
        self._function = function
        self.output = function()

    def replay(self) -> None:
        self.output.copy_(self._function())


def record(function: Callable[[], Tensor]) -> tuple[Replayed, Tensor]:
    recording = Replayed(function)
    return recording, recording.output


def double(key: Hashable, inputs: tuple[Tensor, ...]) -> Tensor:
    return inputs[0] * 2 + float(str(key))


def test_every_key_is_recorded_after_its_eager_runs() -> None:
    steps = CapturedSteps(double, record)
    for number in range(EAGER_RUNS + 3):
        for key in (1, 5):
            value = torch.tensor([float(number)])
            assert steps(key, (value,)).item() == 2 * number + key
        assert steps.recorded == (2 if number >= EAGER_RUNS else 0)
    steps.forget()
    assert steps.recorded == 0
    assert steps(1, (torch.tensor([4.0]),)).item() == 9.0


def test_says_what_to_do_when_recording_fails() -> None:
    def broken(function: Callable[[], Tensor]) -> tuple[Replayed, Tensor]:
        raise RuntimeError("operation not permitted when stream is capturing")

    steps = CapturedSteps(double, broken)
    for number in range(EAGER_RUNS):
        assert steps(1, (torch.tensor([float(number)]),)).item() == 2 * number + 1
    with pytest.raises(RuntimeError, match="--no-graph"):
        steps(1, (torch.tensor([0.0]),))


@pytest.mark.gpu
def test_a_captured_training_step_learns_like_an_eager_one() -> None:
    device = torch.device("cuda")
    use_own_stream(device)
    found = []
    for recorder in (None, CudaRecorder()):
        torch.manual_seed(3)
        model = torch.nn.Linear(8, 1).to(device)
        rate = torch.tensor(1e-2, device=device)
        optimiser = torch.optim.AdamW(model.parameters(), rate, fused=True, capturable=True)

        def step(
            key: Hashable,
            inputs: tuple[Tensor, ...],
            model: torch.nn.Linear = model,
            optimiser: torch.optim.AdamW = optimiser,
        ) -> Tensor:
            loss = (model(inputs[0]) - inputs[1]).square().mean()
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
            return loss.detach()

        steps = CapturedSteps(step, recorder)
        for number in range(20):
            rate.fill_(1e-2 / (1 + number))
            generator = torch.Generator().manual_seed(number)
            x = torch.randn(16, 8, generator=generator).to(device)
            steps(0, (x, x.sum(1, keepdim=True)))
        assert steps.recorded == (recorder is not None)
        found.append(model.weight.detach().cpu())
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-6)
