"""The packed vocoder against the plain stream, piece by piece; half-precision convolutions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from inference.runtime.packed_vocoder import PackedVocoder
from inference.runtime.vocoder_generator import generator_error, half_generator, make_generator
from inference.runtime.vocoder_pack import VocoderJob, rows_used
from inference.runtime.vocoder_stream import VocoderState, VocoderStream
from tests.models.vocoder_support import speechlike_mel
from tests.runtime.wave_support import quiet_vocoder

pytestmark = pytest.mark.unit
PIECES = [[50, 70, 80], [30, 1, 169], [200], [9, 8, 43], [5], [100, 100]]


class Listener:
    """A stream that is made both ways."""

    def __init__(self, pieces: list[int], seed: int) -> None:
        self.pieces = list(speechlike_mel(sum(pieces), seed=seed).split(pieces, dim=2))
        self.seed = seed
        self.plain = VocoderStream(quiet_vocoder(), seed=seed)
        self.state: VocoderState | None = None

    def job(self, number: int) -> VocoderJob:
        return VocoderJob(self.pieces[number][0].t(), self.state, number == len(self.pieces) - 1, self.seed)


def listeners() -> list[Listener]:
    return [Listener(pieces, seed) for seed, pieces in enumerate(PIECES)]


def test_packed_pieces_equal_plain_ones() -> None:
    packed = PackedVocoder(quiet_vocoder(), 8)
    everybody = listeners()
    for number in range(3):
        here = [one for one in everybody if number < len(one.pieces)]
        jobs = [one.job(number) for one in here]
        pack, answer, states = packed.run(jobs)
        assert not answer[pack.rows * 480 :].any()
        for i, (one, job, state) in enumerate(zip(here, jobs, states)):
            expected = one.plain.push(one.pieces[number], job.final)
            found = answer[pack.starts[i] * 480 : (pack.ends[i] - job.held) * 480]
            assert found.shape == expected.shape
            assert (found.float() - expected * 32768).abs().max() <= 1.5
            one.state = state
            _same_state(state, one.plain.state)


def _same_state(found: VocoderState | None, expected: VocoderState | None) -> None:
    if expected is None or found is None:
        assert found is expected
        return
    assert found.frame == expected.frame and torch.equal(found.mel, expected.mel)
    for name in ("source", "speech", "cycles"):
        value, wanted = getattr(found, name), getattr(expected, name)
        assert value.shape == wanted.shape
        apart = (value - wanted).abs()
        if name == "cycles":  # 0.999… and 0 are the same phase
            apart = torch.minimum(apart, 1 - apart)
        assert apart.max() <= 2e-4


def test_states_outlive_the_buffers_they_came_from() -> None:
    packed = PackedVocoder(quiet_vocoder(), 8)
    (state,) = packed.run([Listener([50, 50], 1).job(0)])[2]
    assert state is not None
    kept = [value.clone() for value in (state.mel, state.source, state.speech)]
    packed.run([Listener([50, 50], 2).job(0)])  # the same shape
    assert all(torch.equal(a, b) for a, b in zip(kept, (state.mel, state.source, state.speech)))


def test_what_is_not_finite_is_pointed_out_and_stays_alone() -> None:
    packed = PackedVocoder(quiet_vocoder(), 8)
    one = Listener([60], 3)
    spoiled = VocoderJob(torch.full((40, 80), float("nan")), None, True, 0)
    pack, answer, _ = packed.run([spoiled, one.job(0), spoiled])
    assert answer[pack.rows * 480 :][:3].tolist() == [1, 0, 1]
    found = answer[pack.starts[1] * 480 : pack.ends[1] * 480]
    expected = one.plain.push(one.pieces[0], True)
    assert (found.float() - expected * 32768).abs().max() <= 1.5


def test_rows_used_counts_what_a_batch_takes() -> None:
    packed = PackedVocoder(quiet_vocoder(), 8)
    pack, _, _ = packed.run([Listener([50], 1).job(0), Listener([30], 2).job(0)])
    assert pack.ends[-1] < rows_used([50, 30]) <= pack.rows


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float16, 5e-3), (torch.bfloat16, 5e-2)])
def test_half_precision_convolutions_stay_near(dtype: torch.dtype, bound: float) -> None:
    vocoder = quiet_vocoder()
    generator = half_generator(vocoder, dtype)
    assert 0 < generator_error(vocoder, generator) <= bound
    assert vocoder.conv_pre.weight.dtype == torch.float32
    assert generator.conv_post.weight.dtype == torch.float32


def test_float32_needs_no_copy() -> None:
    assert make_generator(quiet_vocoder(), torch.float32, False) is quiet_vocoder()


def test_an_overflow_counts_as_no_result() -> None:
    generator = half_generator(quiet_vocoder(), torch.float16)
    with torch.no_grad():
        generator.conv_pre.weight.fill_(60000.0)
    assert np.isnan(generator_error(quiet_vocoder(), generator))


@pytest.mark.gpu
@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
def test_on_cuda(cuda: torch.device, graphs: bool, compiled: bool) -> None:
    import copy

    vocoder = copy.deepcopy(quiet_vocoder()).to(cuda)
    mel = speechlike_mel(120, seed=3).to(cuda)
    expected = VocoderStream(vocoder, seed=3).push(mel, True)
    generator = make_generator(vocoder, torch.float16, compiled)
    packed = PackedVocoder(vocoder, 4, generator=generator, graphs=graphs)
    job = VocoderJob(mel[0].t(), None, True, 3)
    with torch.cuda.stream(torch.cuda.Stream()) as _:
        for _ in range(3):
            pack, answer, _states = packed.run([job, job])
            found: Tensor = answer[pack.starts[1] * 480 : pack.ends[1] * 480].float() / 32768
            assert torch.linalg.vector_norm(found - expected) <= 0.02 * torch.linalg.vector_norm(expected)
