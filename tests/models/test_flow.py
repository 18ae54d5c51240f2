"""Token-to-mel inference: recorded results, batching, streaming, refusals, precision."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from inference.models.config import FlowConfig
from inference.models.flow import FlowModel, join_prompt
from inference.runtime.flow_solver import time_grid
from inference.types import EngineError, RequestError
from tests.golden_data import Case, golden_folder, load_case, parametrize, reference_folder, relative_error
from tests.models.flow_support import (
    TINY,
    Request,
    config_of,
    full_size_flow,
    make_request,
    manifest_tensors,
    random_flow,
    run_flow,
    tiny_flow,
)

FLAGS = [(False, True), (False, False), (True, True), (True, False)]


def recorded_request(case: Case) -> Request:
    return Request(
        case.tensor("token"),
        case.tensor("prompt_token"),
        case.tensor("prompt_feat")[0],
        case.tensor("embedding")[0],
    )


class RecordingBackend:
    """Runs the module's own network and keeps what went in and came out."""

    def __init__(self, model: FlowModel) -> None:
        self.network = model.decoder.estimator
        self.states: list[Tensor] = []
        self.velocities: list[Tensor] = []
        self.conditions: tuple[Tensor, Tensor] | None = None

    def bind(self, mask, mu, spks, cond, times, *, streaming):  # type: ignore[no-untyped-def]
        inner = self.network.bind(mask, mu, spks, cond, times, streaming=streaming)
        self.conditions = (mu, spks)

        def step(x: Tensor, k: int) -> Tensor:
            velocity = inner(x, k)
            self.states.append(x)
            self.velocities.append(velocity)
            return velocity

        return step


def check_recorded(model: FlowModel, case: Case, bound: float) -> None:
    request = recorded_request(case)
    found = [key for key in case.arrays if key.startswith("mel_stream")]
    assert found
    for key in found:
        streaming, finalize = key[len("mel_stream")] == "1", key.endswith("1")
        mels, _ = run_flow(model, [request], streaming=streaming, finalize=finalize)
        assert relative_error(mels[0][None], case.tensor(key)) <= bound, key


def check_intermediate(model: FlowModel, case: Case, bound: float) -> None:
    backend = RecordingBackend(model)
    request = recorded_request(case)
    model.inference(
        request.tokens[None],
        torch.tensor([len(request.tokens)]),
        request.prompt[None],
        torch.tensor([len(request.prompt)]),
        request.prompt_mel[None],
        torch.tensor([len(request.prompt_mel)]),
        request.speaker[None],
        streaming=False,
        finalize=True,
        backend=backend,
    )
    assert backend.conditions is not None
    mu, speaker = backend.conditions
    assert relative_error(mu[:1], case.tensor("mu_full")) <= bound
    assert relative_error(speaker[:1], case.tensor("spk_proj")) <= bound
    assert not mu[1:].any() and not speaker[1:].any()
    assert relative_error(backend.velocities[0], case.tensor("velocity_step0")) <= bound
    assert relative_error(backend.states[9][:1], case.tensor("x_before_step9")) <= bound
    assert torch.equal(torch.tensor(time_grid(len(backend.states))[0]), case.tensor("t_steps"))


@pytest.mark.golden
@parametrize("name", "flow_inference")
def test_recorded_mel(name: str) -> None:
    case = load_case(name)
    if "full size" in case.meta["config"]["weights"]:
        pytest.skip("a full-size case, see test_full_size_mel")
    assert config_of(case.meta["config"]) == TINY
    check_recorded(tiny_flow(), case, 1e-4)
    check_intermediate(tiny_flow(), case, 1e-4)


@pytest.mark.golden
@pytest.mark.slow
@parametrize("name", "full_flow_inference")
def test_full_size_mel(name: str) -> None:
    case = load_case(name)
    check_recorded(full_size_flow(), case, 1e-4)
    check_intermediate(full_size_flow(), case, 1e-4)


@pytest.mark.golden
@pytest.mark.parametrize(
    ("manifest", "cfg"),
    [("manifest.json", FlowConfig()), ("golden/tiny_manifest.json", TINY)],
    ids=["full", "tiny"],
)
def test_keys_and_shapes_are_those_of_the_release(manifest: str, cfg: FlowConfig) -> None:
    path = golden_folder() / "tiny_manifest.json" if "tiny" in manifest else reference_folder() / manifest
    if not path.exists():
        pytest.skip(f"no {path}")
    with torch.device("meta"):
        model = FlowModel(cfg)
    found = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    assert found == manifest_tensors(path)


@pytest.mark.unit
@pytest.mark.parametrize(("streaming", "finalize"), FLAGS)
def test_padded_batch_gives_each_item_what_it_gets_alone(streaming: bool, finalize: bool) -> None:
    requests = [
        make_request(60, 25),
        make_request(9, 0),
        make_request(31, 40, seed=2),
        make_request(47, 30, 61),
    ]
    together, padded = run_flow(random_flow(), requests, streaming=streaming, finalize=finalize)
    for index, request in enumerate(requests):
        alone, _ = run_flow(random_flow(), [request], streaming=streaming, finalize=finalize)
        assert relative_error(together[index], alone[0]) <= 1e-5
        assert not padded[index, :, together[index].shape[1] :].any()


@pytest.mark.unit
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(
    lengths=st.lists(st.tuples(st.integers(4, 70), st.integers(0, 40)), min_size=1, max_size=3),
    streaming=st.booleans(),
    finalize=st.booleans(),
)
def test_any_lengths(lengths: list[tuple[int, int]], streaming: bool, finalize: bool) -> None:
    requests = [
        make_request(n, p, seed=i, prompt_frames=max(0, 2 * p - i % 2)) for i, (n, p) in enumerate(lengths)
    ]
    together, _ = run_flow(random_flow(), requests, streaming=streaming, finalize=finalize)
    for request, mel in zip(requests, together):
        frames = 2 * (len(request.tokens) + len(request.prompt) - (0 if finalize else 3)) - len(
            request.prompt_mel
        )
        assert mel.shape == (80, frames)
        alone, _ = run_flow(random_flow(), [request], streaming=streaming, finalize=finalize)
        torch.testing.assert_close(mel, alone[0], rtol=1e-4, atol=1e-4)


@pytest.mark.unit
def test_equal_lengths_with_different_prompts() -> None:
    requests = [make_request(30, 20), make_request(20, 30, seed=5)]
    together, _ = run_flow(random_flow(), requests, streaming=False, finalize=True)
    for request, mel in zip(requests, together):
        alone, _ = run_flow(random_flow(), [request], streaming=False, finalize=True)
        assert relative_error(mel, alone[0]) <= 1e-5


@pytest.mark.unit
def test_streamed_frames_are_final() -> None:
    # SPEC 5.4: frames up to a chunk border do not change when more tokens follow.
    whole = make_request(103, 25)
    final, _ = run_flow(random_flow(), [whole], streaming=True, finalize=True)
    for ready in (28, 53, 78):
        part = Request(whole.tokens[:ready], whole.prompt, whole.prompt_mel, whole.speaker)
        mels, _ = run_flow(random_flow(), [part], streaming=True, finalize=False)
        assert mels[0].shape[1] == 2 * (ready - 3)
        assert relative_error(mels[0], final[0][:, : mels[0].shape[1]]) <= 1e-5


@pytest.mark.unit
def test_streaming_masks_matter() -> None:
    request = make_request(90, 0)
    streamed, _ = run_flow(random_flow(), [request], streaming=True, finalize=True)
    whole, _ = run_flow(random_flow(), [request], streaming=False, finalize=True)
    assert relative_error(streamed[0], whole[0]) > 1e-3


@pytest.mark.unit
def test_prompt_and_tokens_are_joined_without_a_gap() -> None:
    prompt = torch.tensor([[1, 2, 0], [3, 0, 0]])
    tokens = torch.tensor([[4, 5], [6, 0]])
    joined = join_prompt(prompt, torch.tensor([2, 1]), tokens, 4)
    assert joined[0].tolist() == [1, 2, 4, 5]
    assert joined[1, :2].tolist() == [3, 6]


@pytest.mark.unit
def test_ids_outside_the_vocabulary_are_clamped() -> None:
    request = make_request(10, 0)
    wild = request.tokens.clone()
    wild[0], wild[9] = -1, 6563
    tame = wild.clamp(0, 6560)
    mels = [
        run_flow(
            random_flow(),
            [Request(ids, request.prompt, request.prompt_mel, request.speaker)],
            streaming=False,
            finalize=True,
        )[0][0]
        for ids in (wild, tame)
    ]
    assert torch.equal(*mels)


@pytest.mark.unit
def test_more_than_300_seconds_are_refused() -> None:
    with pytest.raises(RequestError) as caught:
        run_flow(random_flow(), [make_request(7400, 101)], streaming=False, finalize=True)
    assert caught.value.code == "too_long"


@pytest.mark.unit
@pytest.mark.parametrize(
    ("request_", "finalize", "code"),
    [
        (make_request(3, 0), False, "flow_input_too_short"),
        (make_request(0, 0), True, "flow_input_too_short"),
        (make_request(2, 4, 30), True, "prompt_mel_too_long"),
    ],
)
def test_impossible_lengths_are_refused(request_: Request, finalize: bool, code: str) -> None:
    with pytest.raises(EngineError) as caught:
        run_flow(random_flow(), [request_], streaming=False, finalize=finalize)
    assert caught.value.code == code


@pytest.mark.unit
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_on_the_cpu(dtype: torch.dtype) -> None:
    model = copy.deepcopy(random_flow()).to(dtype)
    requests = [make_request(40, 20), make_request(30, 10)]
    expected, _ = run_flow(random_flow(), requests, streaming=True, finalize=True)
    found, _ = run_flow(model, requests, streaming=True, finalize=True)
    for item, exact in zip(found, expected):
        assert item.dtype == torch.float32
        assert relative_error(item, exact) <= (3e-2 if dtype == torch.bfloat16 else 4e-3)


@pytest.mark.gpu
@pytest.mark.parametrize(("streaming", "finalize"), FLAGS)
@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.float32, 1e-3), (torch.float16, 2e-2), (torch.bfloat16, 8e-2)], ids=str
)
def test_cuda_equals_cpu(
    cuda: torch.device, dtype: torch.dtype, bound: float, streaming: bool, finalize: bool
) -> None:
    requests = [make_request(120, 60), make_request(33, 0), make_request(75, 41)]
    expected, _ = run_flow(random_flow(), requests, streaming=streaming, finalize=finalize)
    model = copy.deepcopy(random_flow()).to(cuda, dtype)
    found, _ = run_flow(model, requests, streaming=streaming, finalize=finalize)
    for item, exact in zip(found, expected):
        assert relative_error(item, exact) <= bound


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.float32, 1e-3), (torch.float16, 2e-2), (torch.bfloat16, 8e-2)], ids=str
)
def test_full_size_on_cuda(cuda: torch.device, dtype: torch.dtype, bound: float) -> None:
    if not (reference_folder() / "make_weights.py").exists():
        pytest.skip(f"no make_weights.py in {reference_folder()}")
    requests = [make_request(150, 75), make_request(60, 75)]
    expected, _ = run_flow(full_size_flow(), requests, streaming=False, finalize=True)
    found, _ = run_flow(
        copy.deepcopy(full_size_flow()).to(cuda, dtype), requests, streaming=False, finalize=True
    )
    errors = [relative_error(item, exact) for item, exact in zip(found, expected)]
    print(f"full-size flow, {dtype} on CUDA against float32 on the CPU: {errors}")
    assert max(errors) <= bound
