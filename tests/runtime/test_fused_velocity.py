"""The flow's network in few operations: same numbers as the modules, same bits on one core and on two."""

from __future__ import annotations

import threading
from functools import partial

import pytest
import torch
from torch import Tensor

from inference.models.velocity import VelocityNetwork
from inference.runtime import packed_linear
from inference.runtime.flow_solver import VelocityStep
from inference.runtime.fused_velocity import FusedVelocity
from inference.runtime.packed_linear import PackedLinear, packing_works
from inference.runtime.precision import relative_error
from inference.runtime.spare_cores import SpareCores, each
from inference.runtime.velocity_backends import install_velocity_backend
from tests.models.flow_support import random_flow
from tests.runtime.wave_support import own_flow

pytestmark = pytest.mark.unit

TIMES = torch.tensor([0.0, 0.3, 0.9])


def small_network() -> VelocityNetwork:
    """Shared with other tests, which may want to change its parameters: no inference tensors."""
    with torch.inference_mode(False):
        return random_flow().decoder.estimator


def conditions(batch: int, frames: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(frames)
    mu, cond = (torch.randn(batch, 80, frames, generator=generator) for _ in range(2))
    return {"mu": mu, "spks": torch.randn(batch, 80, generator=generator), "cond": cond}


def noise(batch: int, frames: int) -> Tensor:
    return torch.randn(batch, 80, frames, generator=torch.Generator().manual_seed(7))


def bound(
    way: object, batch: int, frames: int, mask: Tensor | None = None, streaming: bool = False
) -> VelocityStep:
    step: VelocityStep = way.bind(  # type: ignore[attr-defined]
        mask, **conditions(batch, frames), times=TIMES, streaming=streaming
    )
    return step


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(("batch", "frames"), [(1, 1), (2, 2), (2, 61), (3, 130)])
@torch.inference_mode()
def test_equals_the_network(packed: bool, batch: int, frames: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if not packed:
        monkeypatch.setattr(packed_linear, "packing_works", lambda: False)
    network = small_network()
    found, expected = (bound(way, batch, frames) for way in (FusedVelocity(network), network))
    x = noise(batch, frames)
    before = x.clone()
    for k in (0, 2):
        assert relative_error(found(x, k), expected(x, k)) <= 3e-6
    assert torch.equal(x, before)


@pytest.mark.parametrize(("padded", "streaming"), [(True, False), (False, True)])
@torch.inference_mode()
def test_masks_and_chunks_are_the_networks_own(padded: bool, streaming: bool) -> None:
    network = small_network()
    mask = torch.ones(2, 1, 120)
    mask[1, :, 70:] = 0
    given = (mask if padded else None, streaming)
    found, expected = (bound(way, 2, 120, *given) for way in (FusedVelocity(network), network))
    assert torch.equal(found(noise(2, 120), 1), expected(noise(2, 120), 1))


@torch.inference_mode()
def test_a_spare_core_and_company_change_no_bit() -> None:
    backend = FusedVelocity(small_network())
    x = noise(2, 90)
    alone = bound(backend, 2, 90)(x, 1)
    with SpareCores(2).working():
        assert torch.equal(bound(backend, 2, 90)(x, 1), alone)
    company = bound(backend, 3, 90)
    assert torch.equal(bound(backend, 2, 90)(x, 1), alone)
    assert company(noise(3, 90), 0).shape == (3, 80, 90)


@torch.inference_mode()
def test_packed_products_round_alike_whatever_stands_in_other_rows() -> None:
    if not packing_works():
        pytest.skip("no packed products on this processor")
    linear = PackedLinear(torch.randn(48, 32), torch.randn(48))
    x, plus = torch.randn(100, 32), torch.randn(100, 48)
    other = torch.cat((x[:50], torch.randn(50, 32)))
    assert torch.equal(linear(x, plus)[:50], linear(other, plus)[:50])
    assert torch.equal(linear.gelu(x)[:50], linear.gelu(other)[:50])


# ------------------------------------------------------------------------------------------------ spare cores
def test_two_halves_run_at_the_same_time_only_where_a_core_is_free() -> None:
    cores = SpareCores(2)
    met = threading.Barrier(2, timeout=10)
    with cores.working():
        each([met.wait, met.wait])  # breaks if they came one after the other
        with cores.working():
            here = each([threading.get_ident] * 2)
    assert here == [threading.get_ident()] * 2
    assert each([threading.get_ident] * 2) == here  # nobody said that this is work
    with cores.working():  # and everything was given back
        each([met.wait, met.wait])


def test_results_stand_in_order_and_whoever_is_free_takes_the_next() -> None:
    cores = SpareCores(3)
    begun, release = [threading.Event() for _ in range(7)], threading.Event()

    def work(place: int) -> int:
        begun[place].set()
        if place < 2:
            assert release.wait(10)
        elif place == 6:
            release.set()  # two are held up, and the third one has done all the others
        return place

    with cores.working():
        assert each([partial(work, place) for place in range(7)]) == list(range(7))
        assert cores.free == 2
        assert each([]) == []


def test_errors_of_either_half_get_out_and_free_the_core() -> None:
    cores = SpareCores(2)

    def fail() -> None:
        raise ValueError("half")

    with cores.working():
        for halves in ((fail, list), (list, fail)):
            with pytest.raises(ValueError, match="half"):
                each(halves)
        met = threading.Barrier(2, timeout=10)
        each([met.wait, met.wait])


@torch.inference_mode()
def test_helpers_infer_as_their_callers_do() -> None:
    with SpareCores(2).working():
        assert each([torch.is_inference_mode_enabled] * 2) == [True, True]


# --------------------------------------------------------------------------------------------------- by name
def test_default_on_the_cpu() -> None:
    flow = own_flow()
    assert install_velocity_backend(flow) == "fused"
    assert flow.backend is not None and getattr(flow.backend, "name", None) == "fused"


def test_unsound_one_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    flow = own_flow()
    monkeypatch.setattr("inference.runtime.fused_velocity.mish", lambda x: x)
    assert install_velocity_backend(flow) == "torch"
    assert flow.backend is None
