"""Token-to-mel in packed batches against `FlowModel.inference`, item by item."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from inference.models.flow import FlowModel
from inference.runtime import packed_flow
from inference.runtime.packed_flow import FlowJob, PackedFlow, encoder_shape
from tests.models.flow_support import make_request, random_flow, run_flow

pytestmark = pytest.mark.unit
# tokens, prompt, streaming, finalize
MIXED = [
    (40, 20, True, False),
    (130, 20, True, False),
    (77, 33, True, True),
    (90, 0, False, True),
    (60, 55, False, True),
    (1, 0, True, True),
    (5, 9, False, False),
]


def job_of(flow: FlowModel, case: tuple[int, int, bool, bool], seed: int = 0) -> tuple[FlowJob, Tensor]:
    """A job, and the mel (M, 80) that the plain way makes of it."""
    count, prompt, streaming, finalize = case
    device = flow.encoder_proj.weight.device
    request = make_request(count, prompt, seed=seed)
    mels, _ = run_flow(flow, [request], streaming=streaming, finalize=finalize)
    with torch.inference_mode():
        speaker = flow.project_speaker(request.speaker[None].to(device))[0].float()
    tokens = torch.cat((request.prompt, request.tokens)).numpy()
    job = FlowJob(tokens, streaming, finalize, request.prompt_mel.to(device), speaker, 2 * prompt)
    return job, mels[0].t()


def compare(
    flow: FlowModel, packed: PackedFlow, cases: list[tuple[int, int, bool, bool]], bound: float
) -> None:
    jobs, expected = zip(*(job_of(flow, case, seed) for seed, case in enumerate(cases)))
    found, unsound = packed.run(jobs)
    assert not unsound.any() and len(found) == len(cases)
    for mel, wanted in zip(found, expected):
        assert mel.shape == wanted.shape
        assert (mel.float() - wanted.float()).abs().max() <= bound


def test_a_mixed_batch_equals_each_item_alone() -> None:
    flow = random_flow()
    packed = PackedFlow(flow, 8)
    compare(flow, packed, MIXED, 1e-5)
    compare(flow, packed, MIXED[::-1], 1e-5)  # the same buffers, other places
    compare(flow, packed, MIXED[1:2], 1e-5)


def test_later_frames_only() -> None:
    flow = random_flow()
    job, expected = job_of(flow, (80, 20, True, False))
    later = FlowJob(job.tokens, True, False, job.prompt_mel, job.speaker, job.first + 50)
    (mel,), _ = PackedFlow(flow, 1).run([later])
    assert (mel - expected[50:]).abs().max() <= 1e-5


def test_unsound_items_are_pointed_out_and_stay_alone() -> None:
    flow = copy.deepcopy(random_flow())
    (good, expected), (bad, _) = job_of(flow, (50, 10, False, True)), job_of(flow, (30, 10, True, False))
    spoiled = FlowJob(bad.tokens, True, False, bad.prompt_mel * float("nan"), bad.speaker, bad.first)
    (_, mel, _), unsound = PackedFlow(flow, 4).run([spoiled, good, spoiled])
    assert (unsound > 0).tolist() == [True, False, True]
    assert (mel - expected).abs().max() <= 1e-5


def test_encoder_shapes_are_few_and_hold_the_batch() -> None:
    shapes = set()
    for items in (1, 2, 3, 5, 8, 9, 12, 32, 64):
        for tokens in range(1, 1500, 7):
            rows, size = encoder_shape(items, tokens)
            shapes.add((rows, size))
            assert size >= tokens and (size <= 48 or 2 * size <= 3 * tokens + 3)
            assert rows < 2 * items and (rows >= items or 2 * rows * size**2 > packed_flow._ENCODER_SCORES)
            assert rows == 1 or rows * size**2 <= packed_flow._ENCODER_SCORES
    assert len(shapes) <= 70


def test_a_batch_too_large_for_the_encoder_is_encoded_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    flow = random_flow()
    packed = PackedFlow(flow, 8)
    jobs = [job_of(flow, case)[0] for case in MIXED]
    at_once = packed.encode(jobs)
    monkeypatch.setattr(packed_flow, "_ENCODER_SCORES", 2 * 192**2)
    parts = packed.encode(jobs)
    assert len(packed.encoders) == 2 and len(parts) >= len(jobs)
    for job, one, other in zip(jobs, at_once, parts):
        frames = packed.frames(job)
        assert (one[:frames] - other[:frames]).abs().max() <= 1e-5


@pytest.mark.gpu
@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_on_cuda(cuda: torch.device, graphs: bool, dtype: torch.dtype) -> None:
    flow = copy.deepcopy(random_flow()).to(cuda)
    packed = PackedFlow(copy.deepcopy(flow).to(dtype), 8, graphs=graphs)
    bound = {torch.float32: 1e-4, torch.float16: 0.05, torch.bfloat16: 0.4}[dtype]
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(3):  # eager, captured, replayed
            compare(flow, packed, MIXED, bound)
    assert packed.solver.programs.captured == int(graphs)


@pytest.mark.gpu
def test_compiled_on_cuda(cuda: torch.device) -> None:
    flow = copy.deepcopy(random_flow()).to(cuda)
    packed = PackedFlow(copy.deepcopy(flow).half(), 8, graphs=True, compiled=True)
    with torch.cuda.stream(torch.cuda.Stream()):
        for cases in (MIXED, MIXED[:3], MIXED, MIXED[:3], MIXED):
            compare(flow, packed, cases, 0.05)
