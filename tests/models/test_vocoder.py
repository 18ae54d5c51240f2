"""HiFT against the recorded values of the original, and what the original cannot do: padded batches, own noise."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from inference.models.config import VocoderConfig
from inference.models.counter_noise import counter_normal
from inference.models.source import Excitation
from inference.models.vocoder import Vocoder, fold_weight_norm
from inference.types import CheckpointError, EngineError
from tests.golden_data import (
    full_manifest,
    load_case,
    parametrize,
    relative_error,
    tiny_weights,
)
from tests.models.vocoder_support import speechlike_mel, tiny_vocoder, vocoder_for

pytestmark = pytest.mark.unit
_TOLERANCE = 1e-4


def _ids(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


# ------------------------------------------------------------------------------------------------ golden
@pytest.mark.golden
@parametrize("name", "hift_f0")
@torch.inference_mode()
def test_f0_equals_recorded(name: str) -> None:
    case = load_case(name)
    found = vocoder_for(name).f0(case.tensor("mel"))
    assert relative_error(found, case.tensor("f0")) <= _TOLERANCE
    assert (found - case.tensor("f0")).abs().max() <= 1e-3 * max(1.0, float(found.max()) / 400)


@pytest.mark.golden
@parametrize("name", "hift_source")
@torch.inference_mode()
def test_source_equals_recorded(name: str) -> None:
    case, module = load_case(name), vocoder_for(name).m_source
    f0, noise = case.tensor("f0"), case.tensor("noise_normal").float()
    assert relative_error(module.exact_sines(f0, noise), case.tensor("sine")) <= _TOLERANCE
    assert relative_error(module.exact(f0, noise).transpose(1, 2), case.tensor("merged")) <= _TOLERANCE


@pytest.mark.golden
@parametrize("name", "hift_decode")
@torch.inference_mode()
def test_decode_equals_recorded(name: str) -> None:
    case, vocoder = load_case(name), vocoder_for(name)
    mel, source = case.tensor("mel"), case.tensor("source")
    spectrum = vocoder.fourier.transform(source[:, 0])
    real, imaginary = spectrum.chunk(2, dim=1)
    count = case.tensor("source_stft_real").shape[2]
    assert relative_error(real[:, :, :count], case.tensor("source_stft_real")) <= _TOLERANCE
    assert relative_error(imaginary[:, :, :count], case.tensor("source_stft_imag")) <= _TOLERANCE
    assert relative_error(vocoder.decode(mel, source), case.tensor("wav")) <= _TOLERANCE


@pytest.mark.golden
@parametrize("name", "hift_inference")
@torch.inference_mode()
def test_inference_equals_recorded(name: str) -> None:
    case, vocoder = load_case(name), vocoder_for(name)
    mel = case.tensor("mel")
    f0 = vocoder.f0(mel)
    assert relative_error(f0, case.tensor("f0")) <= _TOLERANCE
    assert relative_error(vocoder.decode(mel, case.tensor("source")), case.tensor("wav")) <= _TOLERANCE
    # The recorded source holds unknown noise; both of ours differ from it by no more than that noise.
    ours, _ = vocoder.source(f0, vocoder.from_start(mel))
    other, _ = vocoder.source(f0, vocoder.from_start(mel, _ids([1])))
    between = (ours - other).square().mean().sqrt()
    assert (ours - case.tensor("source")).square().mean().sqrt() <= 1.2 * between


@pytest.mark.golden
@pytest.mark.gpu
@parametrize("name", "hift_decode")
@torch.inference_mode()
def test_decode_on_cuda(name: str, cuda: torch.device) -> None:
    case, vocoder = load_case(name), vocoder_for(name)
    try:
        found = vocoder.to(cuda).decode(case.tensor("mel").to(cuda), case.tensor("source").to(cuda))
    finally:
        vocoder.cpu()
    assert relative_error(found, case.tensor("wav")) <= 1e-3


# ------------------------------------------------------------------------------------------------ weights
@pytest.mark.golden
def test_whole_manifest_fits() -> None:
    manifest = full_manifest()
    entries = manifest["files"]["hift.pt"]["tensors"]
    with torch.device("meta"):
        vocoder = Vocoder(VocoderConfig())
        state = {entry["key"]: torch.empty(entry["shape"]) for entry in entries}
    vocoder.load_state_dict(fold_weight_norm(state), strict=True, assign=True)
    assert sum(tensor.numel() for tensor in state.values()) == manifest["files"]["hift.pt"]["n_parameters"]
    assert not any(buffer.is_meta for buffer in vocoder.buffers())


@pytest.mark.golden
def test_both_spellings_and_prefix_fold_alike() -> None:
    state = tiny_weights("hift.pt")
    endings = (
        ("parametrizations.weight.original0", "weight_g"),
        ("parametrizations.weight.original1", "weight_v"),
    )
    old = {}
    for key, value in state.items():
        for new_end, old_end in endings:
            key = key.replace(new_end, old_end)
        old["generator." + key.replace("f0_predictor.", "f0_predictor.generator.")] = value
    folded, again = fold_weight_norm(state), fold_weight_norm(old)
    assert folded.keys() == again.keys() == tiny_vocoder().state_dict().keys()
    assert all(torch.equal(folded[key], again[key]) for key in folded)


def test_fold_equals_torch_weight_norm() -> None:
    layer = torch.nn.utils.parametrizations.weight_norm(torch.nn.ConvTranspose1d(4, 3, 5))
    with torch.no_grad():
        layer.parametrizations.weight.original0.mul_(1.7)
    folded = fold_weight_norm({f"ups.0.{key}": value for key, value in layer.state_dict().items()})
    torch.testing.assert_close(folded["ups.0.weight"], layer.weight)


def test_half_a_normalised_weight_is_refused() -> None:
    with pytest.raises(CheckpointError) as caught:
        fold_weight_norm({"conv_pre.weight_g": torch.ones(2, 1, 1)})
    assert caught.value.code == "incomplete_weight_norm"


# ------------------------------------------------------------------------------------------------ batches
@torch.inference_mode()
def test_padded_batch_gives_each_item_what_it_gets_alone(device: torch.device) -> None:
    vocoder = tiny_vocoder().to(device)
    lengths, seeds = [23, 1, 40, 9], [5, 6, 7, 8]
    mel = speechlike_mel(40, 4).to(device)
    try:
        wave, source = vocoder(mel, _ids(lengths).to(device), seeds=_ids(seeds).to(device))
        for i, (frames, seed) in enumerate(zip(lengths, seeds)):
            alone, its_source = vocoder(mel[i : i + 1, :, :frames], seeds=_ids([seed]).to(device))
            samples = 480 * frames
            # F0 differs in its last bit with the batch size, and phases add that up over the frames.
            assert relative_error(source[i : i + 1, :, :samples], its_source) <= 2e-3
            assert relative_error(wave[i : i + 1, :samples], alone) <= 2e-3
            given = vocoder.decode(mel[i : i + 1, :, :frames], source[i : i + 1, :, :samples])
            assert relative_error(wave[i : i + 1, :samples], given) <= 1e-5
            assert not wave[i, samples:].any() and not source[i, :, samples:].any()
    finally:
        vocoder.cpu()


@torch.inference_mode()
def test_padded_batch_with_given_noise() -> None:
    vocoder, mel = tiny_vocoder(), speechlike_mel(12, 2)
    noise = torch.randn(2, 12 * 480, 9)
    wave, _ = vocoder(mel, _ids([12, 5]), noise=noise)
    alone, _ = vocoder(mel[1:, :, :5], noise=noise[1:, : 5 * 480])
    assert relative_error(wave[1:, : 5 * 480], alone) <= _TOLERANCE


@torch.inference_mode()
def test_full_lengths_equal_no_lengths() -> None:
    vocoder, mel = tiny_vocoder(), speechlike_mel(11, 2)
    masked, _ = vocoder(mel, _ids([11, 11]))
    plain, _ = vocoder(mel)
    assert relative_error(masked, plain) <= 1e-5


@torch.inference_mode()
def test_garbage_in_the_padding_is_never_heard() -> None:
    vocoder, mel = tiny_vocoder(), speechlike_mel(16, 2)
    dirty = mel.clone()
    dirty[1, :, 6:] = 1e4
    clean_wave, _ = vocoder(mel, _ids([16, 6]))
    dirty_wave, _ = vocoder(dirty, _ids([16, 6]))
    assert torch.equal(clean_wave, dirty_wave)


# ------------------------------------------------------------------------------------------------ source and noise
@torch.inference_mode()
def test_exact_and_carried_phases_agree() -> None:
    module = tiny_vocoder().m_source
    f0 = (torch.rand(2, 60) * 300 + 90) * (torch.rand(2, 60) > 0.2)
    quiet = torch.zeros(2, 60 * 480, 9)
    exact = module.exact(f0, quiet)
    zeros = _ids([0, 0])
    ours, _ = module(f0, Excitation(zeros, zeros))
    # Only the noise is between them: at most its level through the mix, everywhere.
    level = module.l_linear.weight.norm() * torch.where(f0 > 10, 0.003, 0.1 / 3).repeat_interleave(480, 1)
    assert ((ours - exact)[:, 0].abs() <= 3.5 * level + 1e-3).all()


@torch.inference_mode()
def test_source_in_pieces_equals_the_whole() -> None:
    module = tiny_vocoder().m_source
    f0 = torch.rand(1, 30) * 300 + 80
    whole, cycles = module(f0, Excitation(_ids([9]), _ids([0])))
    first, early = module(f0[:, :12], Excitation(_ids([9]), _ids([0]), open_end=True))
    second, _ = module(f0[:, 10:], Excitation(_ids([9]), _ids([10]), anchor=(1, early[:, 11])))
    centre = 11 * 480 + 240
    assert (first[:, :, :centre] - whole[:, :, :centre]).abs().max() <= 1e-3
    assert (second[:, :, 720:] - whole[:, :, centre:]).abs().max() <= 1e-3
    assert cycles.shape == (1, 30, 9)


def test_counter_noise_is_normal_and_belongs_to_its_seed() -> None:
    values = counter_normal(_ids([1, 2]), _ids([0, 0]), 40000)
    assert values.mean().abs() < 0.02 and (values.std() - 1).abs() < 0.02
    assert torch.corrcoef(values)[0, 1].abs() < 0.02
    assert (values[:, 1:] * values[:, :-1]).mean().abs() < 0.02
    alone = counter_normal(_ids([2]), _ids([0]), 40000)
    later = counter_normal(_ids([2]), _ids([777]), 100)
    assert torch.equal(values[1:], alone) and torch.equal(later, alone[:, 777:877])


@pytest.mark.gpu
def test_counter_noise_has_the_same_bits_on_cuda(cuda: torch.device) -> None:
    here = counter_normal(_ids([3, -4]), _ids([10, 1 << 40]), 5000)
    there = counter_normal(_ids([3, -4]).to(cuda), _ids([10, 1 << 40]).to(cuda), 5000)
    assert torch.equal(here, there.cpu())


# ------------------------------------------------------------------------------------------------ odd input
@pytest.mark.parametrize("frames", [1, 2, 3, 50])
@pytest.mark.parametrize("value", [0.0, -11.5, 6.0, 60.0])
@torch.inference_mode()
def test_any_constant_mel_gives_finite_bounded_sound(frames: int, value: float) -> None:
    wave, source = tiny_vocoder()(torch.full((1, 80, frames), value))
    assert wave.shape == (1, frames * 480) and source.shape == (1, 1, frames * 480)
    assert torch.isfinite(wave).all() and wave.abs().max() <= 0.99


def test_a_mel_without_frames_is_refused() -> None:
    with pytest.raises(EngineError) as caught:
        tiny_vocoder()(torch.zeros(1, 80, 0))
    assert caught.value.code == "empty_mel"


@torch.inference_mode()
def test_autocast_outside_changes_nothing() -> None:
    vocoder, mel = tiny_vocoder(), speechlike_mel(8)
    plain, _ = vocoder(mel)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside, _ = vocoder(mel)
    assert torch.equal(plain, inside)
