"""Vocoder in pieces: the recorded streams of the original, and our own joins against the whole."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from inference.runtime.mel_speed import MelSpeed, change_speed
from inference.runtime.vocoder_stream import VocoderState, VocoderStream, _excite, fade_window, step
from inference.types import EngineError
from tests.golden_data import Case, load_case, parametrize, relative_error
from tests.models.vocoder_support import speechlike_mel, tiny_vocoder

pytestmark = pytest.mark.unit
_TOLERANCE = 1e-4


def _chunks(case: Case) -> range:
    return range(sum(1 for key in case.arrays if key.startswith("chunk") and key.endswith("_wav")))


def _pieces(mel: Tensor, sizes: list[int]) -> list[Tensor]:
    return list(mel.split(sizes, dim=2))


def _streamed(mel: Tensor, sizes: list[int], **options: object) -> Tensor:
    stream = VocoderStream(tiny_vocoder(), **options)  # type: ignore[arg-type]
    pieces = _pieces(mel, sizes)
    return torch.cat([stream.push(piece, final=i == len(pieces) - 1) for i, piece in enumerate(pieces)])


# ------------------------------------------------------------------------------------------------ golden
@pytest.mark.golden
@parametrize("name", "hift_stream")
@torch.inference_mode()
def test_stream_equals_recorded(name: str) -> None:
    case, vocoder = load_case(name), tiny_vocoder()
    pieces = _pieces(case.tensor("mel"), case.meta["chunk_frames"])
    state: VocoderState | None = None
    for i, piece in enumerate(pieces):
        source = case.tensor(f"chunk{i}_source")
        final = i == len(pieces) - 1
        wave, state = step(vocoder, piece, state, final, exact=True, source=source)
        assert relative_error(wave, case.tensor(f"chunk{i}_wav")) <= _TOLERANCE
        if state is not None:
            assert relative_error(state.speech, case.tensor(f"chunk{i}_cache_speech")) <= _TOLERANCE
            assert torch.equal(state.source, case.tensor(f"chunk{i}_cache_source"))
            assert torch.equal(case.tensor(f"chunk{i + 1}_source")[:, :, : 8 * 480], state.source)
    assert state is None


@pytest.mark.golden
@parametrize("name", "pipe_")
@torch.inference_mode()
def test_pipeline_vocoder_equals_recorded(name: str) -> None:
    case, vocoder = load_case(name), tiny_vocoder()
    state: VocoderState | None = None
    count = len(_chunks(case))
    for i in _chunks(case):
        mel_in = case.tensor(f"chunk{i}_mel_in")
        if state is not None:
            assert relative_error(mel_in[:, :, :8], state.mel) <= 1e-6
        new = mel_in if state is None else mel_in[:, :, 8:]
        source = case.tensor(f"chunk{i}_source")
        wave, state = step(vocoder, new, state, i == count - 1, exact=True, source=source)
        assert relative_error(wave, case.tensor(f"chunk{i}_wav")) <= _TOLERANCE


def test_exact_window_is_the_halves_of_a_symmetric_hamming() -> None:
    rising, falling = fade_window(3840, True, torch.device("cpu"))
    assert abs(float(rising[0]) - 0.08) < 1e-6 and torch.allclose(rising, falling.flip(0))
    assert abs(float((rising + falling).mean()) - 1.08) < 1e-3


def test_users_window_keeps_the_level() -> None:
    rising, falling = fade_window(3840, False, torch.device("cpu"))
    assert torch.allclose(rising + falling, torch.ones(3840), atol=1e-6)
    assert float(rising[0]) < 1e-5 and (rising.diff() > 0).all()


# ------------------------------------------------------------------------------------------------ joins
@pytest.mark.parametrize("sizes", [[50, 50, 20], [26, 94], [9, 9, 102], [3, 4, 2, 111], [119, 1], [1, 119]])
@pytest.mark.parametrize("exact", [False, True])
def test_sample_counts(sizes: list[int], exact: bool) -> None:
    mel = speechlike_mel(120)
    stream = VocoderStream(tiny_vocoder(), exact=exact)
    received = 0
    for i, piece in enumerate(_pieces(mel, sizes)):
        received += piece.shape[2]
        final = i == len(sizes) - 1
        stream_length = stream.push(piece, final).shape[0]
        held = 0 if stream.state is None else stream.state.speech.shape[1]
        assert held == (0 if final else min(8, received) * 480)
        received_before = received - piece.shape[2]
        held_before = min(8, received_before) * 480
        assert stream_length == piece.shape[2] * 480 + held_before - held


@torch.inference_mode()
def test_pieces_sound_like_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    vocoder, mel = tiny_vocoder(), speechlike_mel(160, seed=11)
    steady = lambda mel, lengths=None: torch.full((1, mel.shape[2]), 213.0)  # noqa: E731
    monkeypatch.setattr(vocoder, "f0", steady)  # F0 without need of context: all that is left are the joins
    whole, _ = vocoder(mel)
    parts, original = _streamed(mel, [50, 60, 50]), _streamed(mel, [50, 60, 50], exact=True)
    ours, theirs = relative_error(parts, whole[0]), relative_error(original, whole[0])
    assert ours < 0.05 < theirs


@torch.inference_mode()
def test_no_click_and_no_level_jump_at_joins() -> None:
    mel = speechlike_mel(200, seed=5)
    whole, _ = tiny_vocoder()(mel)
    parts = _streamed(mel, [60, 70, 70])
    highest = whole.diff().abs().max()
    for join in (60 * 480, 130 * 480):
        for place in (join - 3840, join):  # where a piece ends, and where the overlap does
            around = parts[place - 2 : place + 2]
            assert around.diff().abs().max() <= highest
        level = parts[join - 3840 : join].square().mean().sqrt()
        expected = whole[0, join - 3840 : join].square().mean().sqrt()
        assert 0.9 <= level / expected <= 1.1


@torch.inference_mode()
def test_phases_run_on_behind_the_overlap() -> None:
    vocoder, mel = tiny_vocoder(), speechlike_mel(80, seed=2)
    _, whole = vocoder(mel)
    _, state = step(vocoder, mel[:, :, :40], None, False)
    assert state is not None and state.frame == 32
    _, after = step(vocoder, mel[:, :, 40:], state, False)
    assert after is not None
    seam = 3840 - 240  # from here on the source is new
    source, _ = _excite(vocoder, mel[:, :, 32:], state, True, 0, False)
    assert (source[0, 0, seam] - source[0, 0, seam - 1]).abs() <= whole.diff().abs().max()


@torch.inference_mode()
def test_a_stream_in_one_piece_equals_the_whole() -> None:
    mel = speechlike_mel(33)
    whole, _ = tiny_vocoder()(mel, seeds=torch.tensor([4]))
    assert torch.equal(_streamed(mel, [33], seed=4), whole[0])


def test_a_seed_repeats_and_another_differs() -> None:
    mel = speechlike_mel(60)
    assert torch.equal(_streamed(mel, [30, 30], seed=1), _streamed(mel, [30, 30], seed=1))
    assert not torch.equal(_streamed(mel, [30, 30], seed=1), _streamed(mel, [30, 30], seed=2))


def test_an_empty_last_piece_gives_what_was_held_back() -> None:
    stream = VocoderStream(tiny_vocoder())
    first = stream.push(speechlike_mel(30), final=False)
    rest = stream.push(torch.zeros(1, 80, 0), final=True)
    assert first.shape == (22 * 480,) and rest.shape == (8 * 480,)


def test_a_stream_without_frames_is_refused() -> None:
    stream = VocoderStream(tiny_vocoder())
    assert stream.push(torch.zeros(1, 80, 0), final=False).shape == (0,)
    with pytest.raises(EngineError):
        stream.push(torch.zeros(1, 80, 0), final=True)


# ------------------------------------------------------------------------------------------------ speed
@given(
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=5).filter(lambda s: sum(s) > 0),
    speed=st.floats(0.5, 2.0),
)
@settings(max_examples=80, deadline=None)
def test_speed_in_pieces_equals_the_whole(sizes: list[int], speed: float) -> None:
    mel = torch.randn(1, 4, sum(sizes), generator=torch.Generator().manual_seed(sum(sizes)))
    whole = change_speed(mel, speed)
    assert whole.shape[2] == max(1, int(mel.shape[2] / speed)) or speed == 1.0
    reader = MelSpeed(speed)
    pieces = [reader.push(piece, i == len(sizes) - 1) for i, piece in enumerate(_pieces(mel, sizes))]
    assert torch.equal(torch.cat(pieces, dim=2), whole)


@pytest.mark.parametrize("speed", [0.5, 0.8, 1.25, 2.0])
def test_speed_equals_linear_interpolation_where_lengths_divide(speed: float) -> None:
    mel = torch.randn(2, 80, 200)
    torch.testing.assert_close(
        change_speed(mel, speed), change_speed(mel, speed, exact=True), atol=1e-4, rtol=1e-4
    )


def test_speed_one_changes_nothing() -> None:
    mel = torch.randn(1, 80, 7)
    assert change_speed(mel, 1.0) is mel


@pytest.mark.parametrize("speed", [0.7, 1.6])
def test_a_faster_or_slower_stream_has_the_length_of_the_whole(speed: float) -> None:
    mel = speechlike_mel(120)
    found = _streamed(mel, [50, 50, 20], speed=speed)
    assert found.shape[0] == int(120 / speed) * 480 and torch.isfinite(found).all()


@pytest.mark.gpu
@torch.inference_mode()
def test_stream_on_cuda_equals_cpu(cuda: torch.device) -> None:
    vocoder, mel = tiny_vocoder(), speechlike_mel(60)
    here = _streamed(mel, [30, 30])
    try:
        vocoder.to(cuda)
        there = _streamed(mel.to(cuda), [30, 30]).cpu()
    finally:
        vocoder.cpu()
    assert relative_error(there, here) <= 5e-3  # F0's last bits grow in the phases
