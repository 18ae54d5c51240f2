"""The tokenizer's and speaker encoder's building blocks: exactness where tokens depend on it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from inference.frontend.features import kaldi_fbank, sinc_resample, whisper_log_mel
from training.audio_store import AudioStore, BalancedSampler
from training.augment import augment, warp_bins
from training.exact_features import fbanks, length_batches, log_mels, waves_16k
from training.features import FeatureWriter, target_of
from training.measures import alarms, english_words, median_pitch, number_words, word_errors
from training.phones import PhoneTable, edit_distance, greedy_phones
from training.speaker_model import SpeakerNetwork
from training.tokenizer_model import DIGITS, MaskedBatchNorm, SpeechTokenizerNetwork, TokenizerHead, to_ids
from training.tokenizer_report import digits_of
from training.tokenizer_views import pitch_targets, view_pair
from training.weight_quantization import dequantize_rows, quantize_rows, round_weights
from training.whisper_front import BinMap, WhisperFront

pytestmark = pytest.mark.unit
CPU = torch.device("cpu")


def tone(samples: int, hertz: float, rate: int = 24000) -> np.ndarray:
    time = np.arange(samples) / rate
    waves = [np.sin(2 * np.pi * hertz * k * time) / k for k in range(1, 12)]
    return 0.1 * sum(waves) * (1.2 + np.sin(2 * np.pi * 4 * time))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> AudioStore:
    """Two shards of three harmonic tones, 1 to 2 s, the last of each split "test"."""
    folder = tmp_path_factory.mktemp("data")
    generator = np.random.default_rng(0)
    for shard in range(2):
        lengths = [960 * int(n) for n in generator.integers(25, 50, 3)]
        hertz = [100.0 + 40 * i + 10 * shard for i in range(3)]
        audio = [tone(n, f) + generator.normal(0, 0.003, n) for n, f in zip(lengths, hertz)]
        f0 = [np.full(n // 480, f, np.float16) for n, f in zip(lengths, hertz)]
        meta = [
            {
                "text": "a",
                "lang": "en",
                "engine": f"engine{i}",
                "speaker": "s",
                "split": "test" if i == 2 else "train",
                "phones": "a b ˈ c",
            }
            for i in range(3)
        ]
        np.savez(
            folder / f"shard-0-{shard}.npz",
            audio=(np.clip(np.concatenate(audio), -1, 1) * 32767).astype(np.int16),
            audio_offsets=np.cumsum([0, *lengths]),
            f0=np.concatenate(f0),
            f0_offsets=np.cumsum([0, *(n // 480 for n in lengths)]),
            meta=np.array(json.dumps(meta)),
        )
    result = AudioStore(folder, CPU)
    assert result.scan() == 6
    assert result.scan() == 0
    return result


@pytest.fixture(scope="module")
def network() -> SpeechTokenizerNetwork:
    torch.manual_seed(0)
    front = WhisperFront(layers=1)
    front.bin_map.matrix.copy_(torch.rand(80, 128) * 0.05)
    head = TokenizerHead()
    with torch.no_grad():
        head.to_digits.weight.mul_(10)
    return SpeechTokenizerNetwork(front, head).eval()


def alone(store: AudioStore, i: int) -> torch.Tensor:
    entry = store.utterances[i]
    return store.gather(np.array([entry.start]), np.array([entry.samples]))


def test_gather_is_silent_outside(store: AudioStore) -> None:
    wave = store.gather(np.array([-5, 0]), np.array([10, 4]))
    assert wave.shape == (2, 10)
    assert wave[0, :5].abs().max() == 0
    assert torch.equal(wave[0, 5:], store.audio[:5].float() / 32768)
    assert wave[1, 4:].abs().max() == 0


def test_batched_features_are_those_of_each_alone(store: AudioStore) -> None:
    batch = list(range(6))
    wave, lengths = waves_16k(store, batch)
    mel, frames = log_mels(wave, lengths)
    bank, bank_frames = fbanks(wave, lengths)
    for row, i in enumerate(batch):
        single = sinc_resample(alone(store, i), 24000, 16000)
        assert single.shape[1] == lengths[row]
        difference = (mel[row, :, : frames[row]] - whisper_log_mel(single)[0]).abs()
        assert difference.max() < 0.05  # nearly empty bins of one frame: the FFT's own rounding
        assert difference.flatten().quantile(0.999) < 1e-3
        assert difference[:, -2:].max() < 1e-3  # where the end is mirrored
        expected = kaldi_fbank(single)[0]
        assert len(expected) == bank_frames[row]
        torch.testing.assert_close(bank[row, : len(expected)], expected, atol=2e-3, rtol=0)
        assert bank[row, len(expected) :].abs().sum() == 0


def test_batched_codes_are_those_of_each_alone(store: AudioStore, network: SpeechTokenizerNetwork) -> None:
    wave, lengths = waves_16k(store, list(range(6)))
    with torch.no_grad():
        together = network.ids(*log_mels(wave, lengths))
        for i in range(6):
            mel = whisper_log_mel(sinc_resample(alone(store, i), 24000, 16000))
            expected = network(mel, torch.tensor([mel.shape[2]], dtype=torch.int32))[0]
            assert len(expected) == store.utterances[i].samples // 960
            same = (together[i, : len(expected)] == expected).float().mean()
            assert same >= 0.97
            assert len(expected.unique()) > 1


def test_feature_file(store: AudioStore, network: SpeechTokenizerNetwork) -> None:
    shard = store.folder / "shard-0-1.npz"
    writer = FeatureWriter(network, SpeakerNetwork(), CPU)
    assert writer.write(shard, target_of(shard)) == 3
    with np.load(store.folder / "features-0-1.npz") as stored:
        lengths = [entry.samples // 960 for entry in store.utterances[3:]]
        assert stored["token_offsets"].tolist() == np.cumsum([0, *lengths]).tolist()
        assert stored["tokens"].dtype == np.int16
        assert 0 <= stored["tokens"].min() and stored["tokens"].max() < 3**DIGITS
        assert stored["speaker_vectors"].shape == (3, 192)
        assert np.isfinite(stored["speaker_vectors"]).all()


def test_batches_respect_the_budget(store: AudioStore) -> None:
    batches = list(length_batches(store, list(range(6)), 4.0))
    assert sorted(i for batch in batches for i in batch) == list(range(6))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(store.utterances[i].samples for i in batch) <= 4 * 24000


def test_rare_engines_are_drawn_more_than_their_share(store: AudioStore) -> None:
    sampler = BalancedSampler(store, [0, 1, 3], seed=0)  # engine0 twice, engine1 once
    drawn = [i for _ in range(300) for i in sampler.draw(2)]
    share = sum(store.utterances[i].engine == "engine1" for i in drawn) / len(drawn)
    assert 0.36 < share < 0.47  # 1 / (1 + sqrt 2) = 0.414, its share of the utterances is 0.333


def test_views_describe_the_same_tokens(store: AudioStore) -> None:
    np.random.seed(3)
    torch.manual_seed(3)
    bins = BinMap()
    bins.matrix.copy_(torch.rand(80, 128) * 0.05)
    for _ in range(8):
        views = view_pair(store, [0, 1, 3], bins)
        assert views.mel80.shape[0] == 6 and torch.isfinite(views.mel80).all()
        assert views.first[:3].tolist() == [0, 0, 0]
        ends = views.first + torch.tensor(views.token_counts)
        whole = views.whole.bool()
        assert (ends[whole] <= views.mask.sum(1)[whole]).all()
        assert (views.valid.sum(1)[whole] >= 20).all()
        pitch, voiced, inside = pitch_targets(store, [0, 1, 3], views)
        assert pitch.shape == (3, views.steps, 2)
        assert pitch.abs().max() < 0.02  # the tones do not move
        assert (voiced == inside).all()


def test_augmented_speech_keeps_its_length(store: AudioStore) -> None:
    torch.manual_seed(0)
    wave, lengths = waves_16k(store, list(range(6)))
    heard = augment(wave, lengths, clean_share=0.0)
    assert heard.shape == wave.shape and torch.isfinite(heard).all()
    for row, length in enumerate(lengths.tolist()):
        assert heard[row, length:].abs().sum() == 0
        assert heard[row, :length].std() > 1e-3
    assert torch.equal(augment(wave, lengths, clean_share=1.0), wave)


def test_warped_bins_move_by_the_factor() -> None:
    ramp = torch.arange(80.0)[None, :, None].expand(2, -1, 3)
    moved = warp_bins(ramp, torch.tensor([1.0, 1.1]))
    torch.testing.assert_close(moved[0], ramp[0])
    torch.testing.assert_close(moved[1, :, 0], torch.arange(80.0) / 1.1)


def test_masked_norm_ignores_padding() -> None:
    norm = MaskedBatchNorm(3, momentum=1.0).train()
    x = torch.randn(2, 5, 3)
    mask = torch.tensor([[True] * 5, [True, True, False, False, False]])
    x[1, 2:] = 1e4
    result = norm(x, mask)
    valid = x[mask]
    torch.testing.assert_close(norm.mean, valid.mean(0))
    torch.testing.assert_close(result[mask].std(0, unbiased=False), torch.full((3,), 1.27), atol=1e-3, rtol=0)
    norm.eval()
    torch.testing.assert_close(norm(x, None)[mask], result[mask])


def test_ids_and_digits_are_inverse() -> None:
    ids = torch.arange(3**DIGITS)
    assert torch.equal(to_ids(digits_of(ids) * 0.9), ids.to(torch.int32))


def test_rounding_weights_twice_changes_nothing() -> None:
    torch.manual_seed(1)
    layer = torch.nn.Linear(200, 150)
    before = layer.weight.detach().clone()
    round_weights(layer)
    once = layer.weight.detach().clone()
    round_weights(layer)
    torch.testing.assert_close(layer.weight, once, atol=1e-7, rtol=0)
    assert 0 < (once - before).abs().max() <= before.abs().max() / 254 * 1.01
    integers, scale = quantize_rows(once)
    assert integers.abs().amax(1).eq(127).all()
    torch.testing.assert_close(dequantize_rows(integers, scale), once, atol=1e-7, rtol=0)


@pytest.mark.parametrize(
    ("first", "second", "distance"),
    [("abc", "abc", 0), ("kitten", "sitting", 3), ("", "ab", 2), ("abc", "", 3)],
)
def test_edit_distance(first: str, second: str, distance: int) -> None:
    assert edit_distance(list(first), list(second)) == distance


def test_phone_table_drops_marks_and_overflow() -> None:
    table = PhoneTable(3)
    assert table.encode("a ˈ b , a c") == [1, 2, 1]  # c does not fit
    assert table.symbols == ["a", "b"]


def test_greedy_phones_collapse() -> None:
    best = torch.tensor([[0, 1, 1, 0, 1, 2, 2, 0]])
    logits = torch.nn.functional.one_hot(best, 3).float()
    assert greedy_phones(logits, [8]) == [[1, 1, 2]]
    assert greedy_phones(logits, [3]) == [[1]]


def test_words_are_compared_without_dress() -> None:
    assert number_words(1_999) == "one thousand nine hundred ninety nine"
    assert number_words(20_005) == "twenty thousand five"
    assert english_words("It's 1,250; twenty-one!") == "its one thousand two hundred fifty twenty one".split()
    assert word_errors("Two cats, please.", "2 cats please") == (0, 3)
    assert word_errors("a b c", "a x") == (2, 3)


def test_median_pitch_of_a_tone() -> None:
    for hertz in (90.0, 150.0, 240.0):
        found = median_pitch(tone(32000, hertz, 16000).astype(np.float32))
        assert abs(found / hertz - 1) < 0.03
    assert median_pitch(np.zeros(16000, np.float32)) == 0.0


def test_alarms_name_what_is_wrong() -> None:
    noise = np.random.default_rng(0).normal(0, 0.05, 32000).astype(np.float32)
    assert alarms(noise, "one two three four") == []
    assert "silent" in alarms(noise * 1e-4, "one two three four")
    assert "runaway" in alarms(np.tile(noise, 10), "one two")
    assert "too_short" in alarms(noise[:3000], "one two three four five six")
    whistle = noise + 0.05 * np.sin(2 * np.pi * 3000 * np.arange(32000) / 16000).astype(np.float32)
    assert "buzz" in alarms(whistle, "one two three four")
    assert "clipped" in alarms(np.clip(noise * 60, -1, 1), "one two three four")


def test_exported_files_agree_with_torch(network: SpeechTokenizerNetwork, tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    from training.export_onnx import export_speaker, export_tokenizer

    round_weights(network)
    assert export_tokenizer(network, tmp_path / "speech_tokenizer_v2.onnx") >= 0.99
    assert export_speaker(SpeakerNetwork(), tmp_path / "campplus.onnx") < 1e-2
