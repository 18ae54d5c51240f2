"""The token-to-wave lane: batches against each piece alone, bad neighbours, memory, what makes a batch."""

from __future__ import annotations

import copy
import logging
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from inference.models.flow import FlowModel
from inference.models.vocoder import Vocoder
from inference.runtime import packed_velocity, paged_ops
from inference.runtime.paged_layout import row_ladder
from inference.runtime.schedule import ChunkCall
from inference.runtime.wave_costs import BatchSizer, Cost
from inference.runtime.wave_lane import Batch, WaveItem, WaveLane, WaveResult
from inference.runtime.wave_parts import vocoder_parts
from inference.runtime.wave_stream import Work
from tests.runtime.wave_support import (
    Speaker,
    make_lane,
    make_tokens,
    model_input,
    own_flow,
    quiet_vocoder,
    samples,
    speak_together,
)

pytestmark = pytest.mark.unit


def company() -> list[Speaker]:
    """First, later and last chunks, whole segments, with and without prompt, slow and fast."""
    return [
        Speaker(140, 20, seed=1),
        Speaker(60, 0, seed=2),
        Speaker(70, 33, whole=True, seed=3),
        Speaker(20, 10, seed=4),
        Speaker(90, 7, seed=5, speed=0.5),
        Speaker(110, 40, seed=6, speed=2.0),
        Speaker(30, 25, whole=True, seed=7, speed=1.3),
        Speaker(41, 12, seed=8, exact=True),
    ]


# ------------------------------------------------------------------------------------------- batches, alone
def test_on_the_cpu_company_changes_no_bit() -> None:
    speakers = company()
    found = speak_together(make_lane(batched=False), speakers)
    for speaker, results in zip(speakers, found):
        assert len(results) == len(speaker.calls)
        for result, expected in zip(results, speaker.alone()):
            assert result.error is None and np.array_equal(result.pcm, expected)


def test_on_the_cpu_the_budget_of_the_caches_changes_no_bit() -> None:
    speakers = [Speaker(140, 20, seed=1), Speaker(60, 0, seed=2)]
    found = speak_together(make_lane(batched=False, flow_cache_bytes=1 << 27), speakers)
    for speaker, results in zip(speakers, found):
        assert np.array_equal(samples(results), np.concatenate(speaker.alone()))


def test_packed_batches_sound_like_each_piece_alone() -> None:
    speakers = company()
    found = speak_together(make_lane(batched=True), speakers)
    for speaker, results in zip(speakers, found):
        for result, expected in zip(results, speaker.alone()):
            assert result.error is None and result.pcm is not None
            assert result.pcm.shape == expected.shape
            difference = result.pcm.astype(np.int64) - expected
            assert np.abs(difference).max(initial=0) <= 1  # 3e-5 of full scale, by rounding


def test_chunks_join_without_a_seam() -> None:
    found = speak_together(make_lane(batched=True), [Speaker(140, 20, seed=1), Speaker(80, 5, seed=2)])
    for results in found:
        wave = samples(results).astype(np.float64)
        step = np.abs(np.diff(wave))
        borders = np.cumsum([len(result.pcm) for result in results[:-1] if result.pcm is not None])
        assert len(borders) and all(step[b - 3 : b + 3].max() <= step.max() for b in borders)
        assert len(wave) % 480 == 0


def test_all_pieces_make_up_the_whole_length() -> None:
    speakers = [Speaker(140, 20, speed=speed, seed=9) for speed in (0.5, 1.0, 2.0)]
    for speaker, results in zip(speakers, speak_together(make_lane(batched=True), speakers)):
        assert len(samples(results)) == int(2 * 140 / speaker.speed) * 480


def test_a_cached_stream_sounds_like_a_recomputed_one() -> None:
    speakers = [Speaker(140, 20, seed=1), Speaker(120, 40, seed=2), Speaker(60, 10, whole=True, seed=3)]
    lane = make_lane(batched=True, flow_cache_bytes=1 << 27)
    for speaker, results in zip(speakers, speak_together(lane, speakers)):
        difference = samples(results).astype(np.int64) - np.concatenate(speaker.alone())
        assert np.abs(difference).max() <= 1
    assert lane.memory_bytes() > 0


def test_caches_without_room_are_done_without() -> None:
    speakers = [Speaker(140, 20, seed=1), Speaker(120, 40, seed=2)]
    lane = make_lane(batched=True, flow_cache_bytes=1)
    for speaker, results in zip(speakers, speak_together(lane, speakers)):
        difference = samples(results).astype(np.int64) - np.concatenate(speaker.alone())
        assert np.abs(difference).max() <= 1


# -------------------------------------------------------------------------------------------- bad neighbours
class Spoiled(nn.Embedding):
    """Turns one token into what is not finite, as an overflow would."""

    poison = 77

    def forward(self, ids: Tensor) -> Tensor:
        found = super().forward(ids)
        return torch.where((ids == self.poison)[..., None], float("inf"), found)


def spoiled_flow() -> FlowModel:
    flow = own_flow()
    spoiled = Spoiled(*flow.input_embedding.weight.shape)
    spoiled.load_state_dict(flow.input_embedding.state_dict())
    flow.input_embedding = spoiled
    return flow


def poisoned(speaker: Speaker) -> Speaker:
    tokens = [token if token != Spoiled.poison else 0 for token in speaker.tokens]
    tokens[10] = Spoiled.poison
    speaker.tokens = tuple(tokens)
    return speaker


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("cache", [0, 1 << 27])
def test_what_is_not_finite_ends_its_own_item_only(batched: bool, cache: int) -> None:
    speakers = [
        Speaker(60, 20, seed=1),
        poisoned(Speaker(50, 11, seed=2)),
        Speaker(55, 5, seed=3, whole=True),
    ]
    lane = make_lane(batched=batched, flow=spoiled_flow(), flow_cache_bytes=cache)
    good, bad, whole = speak_together(lane, speakers)
    assert bad[0].error is not None and bad[0].error.code == "non_finite" and bad[0].pcm is None
    for speaker, results in ((speakers[0], good), (speakers[2], whole)):
        difference = samples(results).astype(np.int64) - np.concatenate(speaker.alone())
        assert np.abs(difference).max() <= 1


def test_impossible_lengths_end_their_own_item_only() -> None:
    lane = make_lane(batched=True)
    voice = model_input(10)
    long_voice = model_input(5, frames=200)
    streams = [lane.open(given, seed=0, speed=1.0, exact=False) for given in (voice, voice, long_voice)]
    items = [
        WaveItem(0, streams[0], make_tokens(20), None),
        WaveItem(1, streams[1], make_tokens(8000), None),
        WaveItem(2, streams[2], make_tokens(20), None),
    ]
    codes = [result.error.code if result.error else "" for result in lane.run(items)]
    assert codes == ["", "too_long", "prompt_mel_too_long"]


def test_a_half_precision_overflow_is_made_good_in_float32(caplog: pytest.LogCaptureFixture) -> None:
    flow = own_flow()
    with torch.no_grad():  # beyond float16's range behind this layer, well within float32's
        flow.decoder.estimator.final_proj.weight.mul_(1e5)
        flow.decoder.estimator.final_proj.bias.zero_()
    lane = make_lane(batched=True, flow=flow.half())
    with caplog.at_level(logging.WARNING):
        found = speak_together(lane, [Speaker(40, 10, seed=1), Speaker(30, 0, seed=2, whole=True)])
    assert all(result.error is None for results in found for result in results)
    assert sum("float32 from now on" in record.message for record in caplog.records) == 1


def test_a_closed_stream_gets_nothing_and_disturbs_nobody() -> None:
    for batched in (False, True):
        lane = make_lane(batched=batched, flow_cache_bytes=1 << 27)
        gone, stays = Speaker(140, 20, seed=1), Speaker(140, 20, seed=2)
        first, second = gone.open(lane), stays.open(lane)
        expected = stays.alone()
        for number, call in enumerate(stays.calls):
            assert call is not None
            items = [
                WaveItem(0, first, gone.tokens[: call.token_count], call),
                WaveItem(1, second, stays.tokens[: call.token_count], call),
            ]
            if number == 1:
                lane.close(first)
                lane.close(first)
            results = lane.run(items)
            assert (results[0].pcm is None) == (number >= 1) and results[0].error is None
            assert results[1].pcm is not None
            assert np.abs(results[1].pcm.astype(np.int64) - expected[number]).max() <= 1


# ---------------------------------------------------------------------------------------------------- memory
@pytest.fixture
def small_device(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A device whose memory suffices for rows of so many frames (the list's only entry)."""
    limit = [10**9]
    real = packed_velocity.PackedVelocity.__call__

    def call(self: packed_velocity.PackedVelocity, x: Tensor, *rest: object) -> Tensor:
        if x.shape[1] > limit[0]:
            raise torch.OutOfMemoryError("CUDA out of memory. (so it is said)")
        return real(self, x, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(packed_velocity.PackedVelocity, "__call__", call)
    return limit


def test_too_little_memory_splits_the_batch(
    small_device: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    speakers = [Speaker(40, 10, seed=seed, whole=True) for seed in range(6)]
    lane = make_lane(batched=True)
    small_device[0] = 320
    with caplog.at_level(logging.WARNING):
        for speaker, results in zip(speakers, speak_together(lane, speakers)):
            difference = samples(results).astype(np.int64) - np.concatenate(speaker.alone())
            assert np.abs(difference).max() <= 1
    assert lane.max_batch == 3
    assert len(caplog.records) == 1


def test_one_that_fits_nowhere_is_told_so_alone(small_device: list[int]) -> None:
    speakers = [Speaker(40, 10, seed=1, whole=True), Speaker(300, 10, seed=2, whole=True)]
    lane = make_lane(batched=True)
    small_device[0] = 320
    (fine,), (large,) = speak_together(lane, speakers)
    assert fine.pcm is not None and large.error is not None and large.error.code == "out_of_memory"
    small_device[0] = 10**9
    assert samples(speak_together(lane, [speakers[1]])[0]).size


# ------------------------------------------------------------------------------------------------------ take
def items_of(lane: WaveLane, *sizes: tuple[int, ChunkCall | None]) -> list[WaveItem]:
    given = model_input(10)
    return [
        WaveItem(key, lane.open(given, seed=0, speed=1.0, exact=False), make_tokens(tokens), call)
        for key, (tokens, call) in enumerate(sizes)
    ]


def test_take_keeps_batches_short_where_somebody_listens() -> None:
    lane = make_lane(batched=True, max_batch_frames=16384)
    first, later = ChunkCall(40, 0, False), ChunkCall(190, 115, False)
    assert lane.take(items_of(lane, *[(40, first)] * 8)) == 8
    assert lane.take(items_of(lane, *[(40, first)] * 12)) == 8  # max_batch
    assert lane.take(items_of(lane, (40, first), (700, None), (700, None), (700, None))) == 2
    assert lane.take(items_of(lane, (190, later), (600, None), (1100, None))) == 2
    assert lane.take(items_of(lane, (5000, None))) == 1
    whole = items_of(lane, *[(500, None)] * 8)
    assert lane.take(whole) > lane.take(whole, hurried=True) >= 1
    assert lane.take([]) == 0


def test_on_the_cpu_each_thread_takes_one_item() -> None:
    lane = make_lane(batched=False)
    assert lane.loops == 2 and make_lane(batched=True).loops == 1
    assert lane.take(items_of(lane, *[(40, ChunkCall(40, 0, False))] * 5)) == 1
    assert lane.take(items_of(lane, (40, None), (400, None), (9, None))) == 1
    assert lane.take([]) == 0


def test_on_the_cpu_threads_share_the_lane_and_change_no_bit() -> None:
    lane = make_lane(batched=False)
    speakers = company() * 2
    with ThreadPoolExecutor(lane.loops) as threads:
        found = list(threads.map(lambda speaker: speak_together(lane, [speaker])[0], speakers))
    for speaker, results in zip(speakers, found):
        for result, expected in zip(results, speaker.alone(), strict=True):
            assert result.error is None and np.array_equal(result.pcm, expected)


def test_warm_up_leaves_no_stream_behind() -> None:
    lane = make_lane(batched=True, flow_cache_bytes=1 << 26, graphs=True, max_batch=2, max_batch_frames=256)
    told: list[str] = []
    lane.warm_up(told.append)
    assert len(told) == 5 and all(stage.startswith("warming up") for stage in told)
    assert lane._batched is not None and lane._batched.paged is not None
    assert lane._batched.paged.used_bytes == 0
    assert samples(speak_together(lane, [Speaker(30, 10, seed=1)])[0]).size


def test_streams_that_come_out_wrong_are_computed_from_frame_0(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(paged_ops.PlainPages, "keep", lambda *_: None)  # convolutions look back on nothing
    lane = make_lane(batched=True, flow_cache_bytes=1 << 26)
    with caplog.at_level(logging.WARNING):
        lane.warm_up()
    assert any("come out wrong" in record.message for record in caplog.records)
    speaker = Speaker(90, 20, seed=1)
    (results,) = speak_together(lane, [speaker])
    difference = samples(results).astype(np.int64) - np.concatenate(speaker.alone())
    assert np.abs(difference).max() <= 1


def test_a_batch_is_begun_before_the_one_before_it_is_waited_for() -> None:
    speakers = [Speaker(60, 20, seed=1), Speaker(55, 5, seed=3, whole=True), Speaker(70, 30, seed=4)]
    lane = make_lane(batched=True, flow_cache_bytes=1 << 27)
    streams = [speaker.open(lane) for speaker in speakers]
    found: list[list[WaveResult]] = [[] for _ in speakers]
    begun: list[Batch] = []
    for number in range(3):  # each speaker in a batch of its own, two of them at a time
        for key, (speaker, stream) in enumerate(zip(speakers, streams)):
            if number < len(speaker.calls):
                call = speaker.calls[number]
                tokens = speaker.tokens if call is None else speaker.tokens[: call.token_count]
                begun.append(lane.start([WaveItem(key, stream, tokens, call)]))
            if len(begun) == 2:
                lane.nearly_done(begun[0])
                (result,) = lane.finish(begun.pop(0))
                found[result.key].append(result)
        while begun:  # no speaker may have two pieces on their way
            (result,) = lane.finish(begun.pop(0))
            found[result.key].append(result)
    for speaker, results in zip(speakers, found):
        difference = samples(results).astype(np.int64) - np.concatenate(speaker.alone())
        assert np.abs(difference).max() <= 1


def batch_of(count: int) -> list[Cost]:
    return [Cost(250, 275, True)] * count


def test_batches_are_measured_and_fill_rows() -> None:
    sizer = BatchSizer(8192)
    assert sizer.tail_share(batch_of(4)) == 0.0  # not yet known
    # More than 3072 frames of first chunks go together all the same; behind two of them comes what finds room.
    assert sizer.count_hurried(batch_of(40), 20) == 20 and sizer.count_hurried(batch_of(40), 2) in (10, 11)
    assert sizer.count(batch_of(40)) in (28, 29)
    for items in (4, 8, 16, 4, 8, 16):  # 20 ms and 1 ms an item
        sizer.measured(batch_of(items), 0.02 + 0.001 * items)
    sizer.measured(batch_of(1), 1e9)  # too little to learn from
    assert sizer.count(batch_of(40)) in (28, 29)  # 230 ms would be 230 items: what bounds it is memory
    later = [Cost(600, 700, True)] * 9
    assert sizer.count_hurried([*batch_of(20), *later], 20) in range(20, 24)  # 8192 frames
    count = sizer.count_hurried([Cost(600, 700, True)] * 64, 1)  # 60 ms: 40 × 275 frames, 8192 at most
    assert 8 <= count <= 11 and 600 * count > 0.9 * row_ladder(600 * count)[-1]
    assert sizer.count([Cost(9000, 9900, False)]) == 1
    assert sizer.tail_share(batch_of(20)) == pytest.approx(0.012 / 0.04, rel=1e-3)
    assert sizer.tail_share(batch_of(1)) == 0.5


def test_crowds_of_first_chunks_go_in_parts() -> None:
    sizer = BatchSizer(1 << 20)
    for items in (4, 8, 16, 32):
        sizer.measured(batch_of(items), 0.02 + 0.0025 * items)
    assert sizer.count_hurried(batch_of(64), 32) == 32  # 100 ms
    assert 30 <= sizer.count_hurried(batch_of(64), 64) <= 40  # of 180 ms, 120 at most
    assert 12 <= sizer.count_hurried(batch_of(64), 3) <= 16  # 60 ms: somebody waits for a first sound
    assert 30 <= sizer.count_hurried(batch_of(64), 0) <= 40


def test_a_batch_is_cut_into_vocoder_rows_of_bounded_length() -> None:
    lane = make_lane(batched=True)
    stream = lane.open(model_input(5), seed=0, speed=1.0, exact=False)
    works = [
        Work(WaveItem(i, stream, (), None), mel=torch.zeros(n, 80)) for i, n in enumerate((40, 50, 200, 9))
    ]
    assert [[work.item.key for work in part] for part in vocoder_parts(works, 8, 100)] == [[0, 1], [2], [3]]
    assert [len(part) for part in vocoder_parts(works, 3, 1000)] == [3, 1]


# ------------------------------------------------------------------------------------------------------- gpu
@pytest.mark.gpu
@pytest.mark.parametrize("graphs", [False, True])
def test_on_cuda_a_mixed_batch_sounds_like_each_piece_alone(cuda: torch.device, graphs: bool) -> None:
    flow, vocoder = own_flow().to(cuda), quiet_vocoder_on(cuda)
    speakers = company()
    lane = make_lane(batched=True, flow=flow, vocoder=vocoder, graphs=graphs)
    for _ in range(3):  # eager, captured, replayed
        for speaker, results in zip(speakers, speak_together(lane, speakers)):
            expected = np.concatenate(speaker.alone(flow, vocoder)).astype(np.int64)
            assert np.abs(samples(results) - expected).max() <= 40


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_on_cuda_half_precision_stays_near_float32(cuda: torch.device, dtype: torch.dtype) -> None:
    vocoder = quiet_vocoder_on(cuda)
    speakers = company()[:7]
    lane = make_lane(batched=True, flow=own_flow().to(cuda, dtype), vocoder=vocoder, graphs=True)
    bound = 0.02 if dtype == torch.float16 else 0.1
    for _ in range(3):
        for speaker, results in zip(speakers, speak_together(lane, speakers)):
            expected = np.concatenate(speaker.alone(own_flow().to(cuda), vocoder)).astype(np.float64)
            error = np.linalg.norm(samples(results) - expected) / np.linalg.norm(expected)
            assert error <= bound


def quiet_vocoder_on(device: torch.device) -> Vocoder:
    return copy.deepcopy(quiet_vocoder()).to(device)
