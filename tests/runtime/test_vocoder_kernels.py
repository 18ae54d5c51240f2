"""The vocoder's Triton kernels against the plain modules: in the interpreter, or on CUDA where there is one."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inference.models.vocoder import Snake, Vocoder, snake
from inference.runtime.packed_vocoder import PackedVocoder
from inference.runtime.precision import relative_error
from inference.runtime.vocoder_convolve import FusedConvolutions
from inference.runtime.vocoder_ends import FusedEnds
from inference.runtime.vocoder_fused import FusedSpectrum, FusedVocoder
from inference.runtime.vocoder_generator import exact_spectrum
from inference.runtime.vocoder_pack import VocoderJob
from inference.runtime.vocoder_stream import VocoderState
from inference.runtime.vocoder_tiles import Tile, tile_for
from inference.runtime.vocoder_weights import ConvPack, pack_parallel, pack_upsampling, pack_wide
from tests.models.vocoder_support import speechlike_mel
from tests.runtime.wave_support import quiet_vocoder
from tests.triton_interpreter import need_triton

pytestmark = [pytest.mark.unit, *([pytest.mark.gpu] if torch.cuda.is_available() else [])]


def tile(kind: str, width: int, inner: int, frames: int) -> Tile:
    """One block for nearly everything: the interpreter's time goes with their number."""
    return tile_for(kind, width, inner, frames) if torch.cuda.is_available() else Tile(2048, 32, 32)


@lru_cache(maxsize=1)
def model() -> Vocoder:
    return copy.deepcopy(quiet_vocoder()).to(need_triton())


@lru_cache(maxsize=1)
def convolutions() -> FusedConvolutions:
    return FusedConvolutions(model(), tile)


class Rows:
    """Two items of 3 and 5 frames, `spread` positions each, in a row of 14 frames."""

    def __init__(self, spread: int, closed: bool) -> None:
        self.device = need_triton()
        self.spread, self.closed = spread, closed
        self.rows = 14 * spread + closed
        self.flags = torch.tensor([0, 0, 3, 1, 1, 0, 0, 0, 3, 1, 1, 1, 1, 0, 0, 0], dtype=torch.int8).to(
            self.device
        )
        self.inside = torch.zeros(self.rows, 1, dtype=torch.bool, device=self.device)
        for first, end in ((1, 4), (7, 12)):
            self.inside[first * spread : end * spread + closed] = True

    def noise(self, branches: int, width: int) -> Tensor:
        return torch.randn(branches, self.rows, width, device=self.device).half()

    def launch(self, kind: str, pack: ConvPack, x: Tensor, out: Tensor | None, **named: Any) -> None:
        where = {"spread": self.spread, "closed": self.closed, **named}
        convolutions().launch(kind, pack, x, out, self.flags, self.rows, **where)


def convs(width: int, kernels: tuple[int, ...], dilation: int) -> list[nn.Conv1d]:
    return [
        nn.Conv1d(width, width, k, dilation=dilation, padding=(k - 1) * dilation // 2).half().float()
        for k in kernels
    ]


def on_device(*modules: nn.Module) -> None:
    for module in modules:
        module.to(need_triton())
        with torch.no_grad():
            for value in module.parameters():
                value.copy_(value.half())


def slopes_of(activations: list[Snake], width: int) -> Tensor:
    from inference.runtime.vocoder_weights import _slopes

    return _slopes(activations, width)


def snakes(count: int, width: int) -> list[Snake]:
    found = [Snake(width).to(need_triton()) for _ in range(count)]
    for activation in found:
        activation.alpha.data.uniform_(0.1, 3.0)
    return found


SHAPES = [(3, False, False), (1, True, False), (5, True, False), (1, False, True)]


@torch.no_grad()
@pytest.mark.parametrize(("dilation", "pair", "engine"), SHAPES)
def test_parallel_convolutions_with_residual_and_snake(dilation: int, pair: bool, engine: bool) -> None:
    rows, width = Rows(8, False), 32
    layers, activations = convs(width, (3, 7, 11), dilation), snakes(3, width)
    on_device(*layers)
    x, residual = rows.noise(3, width), rows.noise(3, width)
    x[:, ~rows.inside[:, 0]] = 0.0
    out, act = torch.empty_like(x), torch.empty_like(x)
    pack = pack_parallel(layers, torch.float16, pair=pair)
    sizes = Tile(64, 32, 32, pair=pair, engine=engine)
    rows.launch(
        "conv",
        pack,
        x,
        out,
        finish="RESIDUAL",
        act=act,
        slopes=slopes_of(activations, width),
        res=residual,
        tile=sizes,
    )
    only = torch.empty_like(x)
    rows.launch(
        "conv", pack, x, None, finish="ACTIVATE", act=only, slopes=slopes_of(activations, width), tile=sizes
    )
    for branch, (layer, activation) in enumerate(zip(layers, activations)):
        convolved = layer(x[branch].float().t()[None])
        value = torch.where(rows.inside.t(), convolved + residual[branch].float().t(), 0.0)
        assert (out[branch].t() - value[0]).abs().max() <= 4e-3
        assert (act[branch].t() - snake(value, activation.alpha, None)[0]).abs().max() <= 2e-2
        value = torch.where(rows.inside.t(), convolved, 0.0)
        assert (only[branch].t() - snake(value, activation.alpha, None)[0]).abs().max() <= 2e-2


@torch.no_grad()
@pytest.mark.parametrize("pair", [False, True])
def test_mean_of_parallel_convolutions(pair: bool) -> None:
    rows, width = Rows(4, True), 32
    layers = convs(width, (3, 7, 11), 1)
    on_device(*layers)
    x, residual, out = rows.noise(3, width), rows.noise(3, width), rows.noise(1, width)
    pack = pack_parallel(layers, torch.float16, pair=pair, total=True)
    rows.launch(
        "mean", pack, x, out, finish="MEAN", res=residual, res_count=3, scale=1 / 3, leak=0.1,
        tile=Tile(64, 32, 32, pair=pair),
    )  # fmt: skip
    total = sum(layer(x[i].float().t()[None])[0].t() + residual[i] for i, layer in enumerate(layers))
    expected = torch.where(rows.inside, F.leaky_relu(torch.as_tensor(total) / 3, 0.1), 0.0)
    assert (out[0] - expected).abs().max() <= 4e-3


@torch.no_grad()
@pytest.mark.parametrize(("rate", "size", "last"), [(8, 16, False), (5, 11, False), (3, 7, True)])
def test_upsampling(rate: int, size: int, last: bool) -> None:
    rows, width = Rows(2 * rate, last), 32
    layer = nn.ConvTranspose1d(2 * width, width, size, rate, padding=(size - rate) // 2)
    on_device(layer)
    activations = snakes(3, width)
    x = torch.randn(28, 2 * width, device=rows.device).half()
    residual, out, act = rows.noise(1, width), rows.noise(1, width), rows.noise(3, width)
    rows.launch(
        "up", pack_upsampling(layer, torch.float16), x, out, finish="UPSAMPLE", act=act,
        slopes=slopes_of(activations, width), res=residual, tile=Tile(32, 32, 32),
    )  # fmt: skip
    longer = layer(x.float().t()[None])[0].t()
    if last:  # one more row, and an item's first is the mirror image of its third
        longer = F.pad(longer, (0, 0, 1, 0))
        for first in (1 * 2 * rate, 7 * 2 * rate):
            longer[first] = longer[first + 2]
    value = torch.where(rows.inside, longer + residual[0], 0.0)
    inside = rows.inside[:, 0]
    assert (out[0] - value)[inside].abs().max() <= 4e-3
    for activation, found in zip(activations, act):
        expected = snake(value.t()[None], activation.alpha, None)[0].t()
        assert (found - expected)[inside].abs().max() <= 2e-2


@torch.no_grad()
def test_two_halves_are_as_good_as_float32() -> None:
    rows, width = Rows(1, False), 32
    layer = nn.Conv1d(20, width, 3, padding=1).to(rows.device)
    x = torch.randn(14, 20, device=rows.device) * 5
    x[~rows.inside[:, 0]] = 0.0
    halves = torch.zeros(14, 64, dtype=torch.float16, device=rows.device)
    halves[:, :20] = x.half()
    halves[:, 32:52] = (x - x.half().float()).half()
    pack, scale = pack_wide(layer, 32)
    out = torch.empty(14, 2 * width, dtype=torch.float16, device=rows.device)
    rows.launch("wide", pack, halves, out, finish="ELU_SPLIT", scale=scale, tile=Tile(16, 32, 32))
    expected = torch.where(rows.inside, F.elu(layer(x.t()[None]))[0].t(), 0.0)
    found = out[:, :width].float() + out[:, width:].float()
    assert relative_error(found, expected) <= 1e-6


@pytest.mark.parametrize("pair", [False, True])
def test_spectrum_backend_equals_the_modules(pair: bool) -> None:
    def tiles(kind: str, width: int, inner: int, frames: int) -> Tile:
        found = tile(kind, width, inner, frames)
        return Tile(found.rows, 32, 32, pair=pair)

    vocoder = model()
    mel = speechlike_mel(4, seed=2).view(1, 80, 2, 2).transpose(0, 2)[:, :, 0].to(need_triton())
    with torch.inference_mode():
        source, _ = vocoder.source(torch.full((2, 2), 150.0, device=mel.device), vocoder.from_start(mel))
        excitation = vocoder.fourier.transform(source[:, 0])
    found = FusedSpectrum.of(vocoder, tiles)(mel, excitation)
    expected = exact_spectrum(vocoder, mel, excitation)
    assert found.shape == expected.shape
    assert relative_error(found, expected) <= 1e-3


def some_state(seed: int) -> VocoderState:
    random = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> Tensor:
        return (0.1 * torch.randn(*shape, generator=random)).to(need_triton())

    mel = speechlike_mel(8, seed=seed).to(need_triton())
    return VocoderState(mel, noise(1, 1, 3840).tanh(), noise(1, 3840).tanh(), noise(1, 9).abs(), 40)


def some_jobs() -> list[VocoderJob]:
    mel = speechlike_mel(20, seed=1)[0].t().to(need_triton())
    return [
        VocoderJob(mel[:9], None, False, 5),
        VocoderJob(mel[9:12], some_state(1), True, 1 << 40),
        VocoderJob(mel[12:], some_state(2), False, 6),
    ]


@torch.inference_mode()
def test_what_comes_before_the_convolutions() -> None:
    """Mel, F0, phases, source with what streams kept, and its spectrum, against the plain packed vocoder."""
    jobs, vocoder = some_jobs(), model()
    plain, fused = PackedVocoder(vocoder, 4), FusedVocoder(vocoder, 4, tiles=tile)
    pack, _, _ = plain.run(jobs)
    expected = plain.programs.get(pack.rows, lambda: pytest.fail("no buffers"), plain._body).buffers
    from inference.runtime.vocoder_fused import FusedPack
    from inference.runtime.vocoder_pack import VocoderLayout

    table = FusedPack(jobs, 4, fused._nothing)
    b = fused._make(table.rows)
    b.table.copy_(torch.from_numpy(table.table))
    ends = fused.ends
    halves = ends.gather(b.table, b.mel, b.flags)
    assert torch.equal(b.mel, expected.mel)
    joined = halves[:, :80].float() + halves[:, 96:176].float()
    assert (joined - b.mel).abs().max() <= 1e-5
    f0 = ends.classify(fused.convolutions.pitch(halves, b.flags), b.flags)
    where = VocoderLayout.of(expected.table, pack.rows, 4)
    wanted = vocoder.f0_predictor(expected.mel.t()[None], where.inside[None, None])[0]
    assert (f0 - wanted).abs().max() <= 1e-3
    ends.excite(b.table, f0, b.cycles, b.source)
    inside = where.inside
    apart = (b.cycles - expected.cycles)[inside].abs()
    assert torch.minimum(apart, 1 - apart).max() <= 1e-4
    assert (b.source - expected.source)[inside].abs().max() <= 1e-4
    b.source.copy_(expected.source)
    spectrum = ends.analyse(b.table, b.flags, b.source, torch.float32)
    reference = plain._excitation(expected.source.clone(), where)
    mask = PackedVocoder._spread_mask(inside, 120, closed=True)
    count = pack.rows * 120 + 1
    assert (spectrum[:count, :18].t() - torch.where(mask[0], reference[0], 0.0)).abs().max() <= 1e-5
    assert not spectrum[:count, 18:].any()


@torch.inference_mode()
def test_what_comes_behind_the_convolutions() -> None:
    """The last convolution, the inverse transform, the cross-fade, int16, states and what is not finite."""
    jobs, vocoder, device = some_jobs(), model(), need_triton()
    fused = FusedVocoder(vocoder, 4, tiles=tile)
    from inference.runtime.vocoder_fused import FusedPack
    from inference.runtime.vocoder_pack import VocoderLayout

    table = FusedPack(jobs, 4, fused._nothing)
    b = fused._make(table.rows)
    b.table.copy_(torch.from_numpy(table.table))
    fused.ends.gather(b.table, b.mel, b.flags)
    where = VocoderLayout.of(b.table[: -5 * 4], table.rows, 4)
    b.source.normal_()
    b.cycles.uniform_()
    mask = PackedVocoder._spread_mask(where.inside, 120, closed=True)
    hidden = torch.randn(table.rows * 120 + 1, 32, device=device).half()
    hidden[~mask[0, 0]] = 0.0
    hidden[:, 4:] = 0.0  # padding
    hidden[int(table.starts[2]) * 120 + 50] = float("nan")
    parts = fused.ends.spectrum(hidden, b.flags, sound=True)
    fused.ends.finish(b.table, b.flags, parts, b.mel, b.source, b.wave, b.cycles, b.answer, b.slab)
    spectrum = vocoder.conv_post(hidden[:, :4].float().t()[None])
    columns = FusedEnds(vocoder, 1).spectrum(hidden, b.flags, sound=False)
    clean = torch.isfinite(spectrum[0].t()).all(dim=1)
    assert (columns[:, :9] - spectrum[0, :9].t())[clean].abs().max() <= 1e-5
    assert (columns[:, 16:25] - spectrum[0, 9:].t())[clean].abs().max() <= 1e-5
    wave = vocoder.invert(spectrum, mask).view(table.rows, 480)
    for i, job in enumerate(jobs[:2]):
        start, end = int(table.starts[i]), int(table.ends[i])
        expected = wave[start:end].flatten()
        if job.state is not None:
            rising = torch.sin((torch.arange(3840, device=device) + 0.5) * (torch.pi / 7680)) ** 2
            expected[:3840] = expected[:3840] * rising + job.state.speech[0] * (1 - rising)
        found = b.answer[start * 480 : end * 480]
        assert (found.float() - expected * 32768).abs().max() <= 1.5
    assert b.answer[table.rows * 480 :].tolist() == [0, 0, 1, 0]
    first, second, third = fused._states(b, jobs)
    assert second is None and first is not None and first.cycles is not None and third is not None
    end = int(table.ends[0])
    assert torch.equal(first.mel[0].t(), b.mel[end - 8 : end]) and first.frame == 1
    assert torch.equal(first.source.flatten(), b.source[end - 8 : end].flatten())
    assert torch.equal(first.speech.flatten(), b.wave[end - 8 : end].flatten())
    assert torch.equal(first.cycles, b.cycles[end - 1 : end]) and third.frame == 48


@pytest.fixture
def dirty_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fresh tensors are not numbers: nothing that was not written may matter."""
    for name in ("empty", "empty_like"):
        make = getattr(torch, name)

        def filled(*arguments: Any, make: Any = make, **named: Any) -> Tensor:
            found: Tensor = make(*arguments, **named)
            return found.fill_(float("nan")) if found.is_floating_point() else found

        monkeypatch.setattr(torch, name, filled)


@pytest.mark.slow
def test_whole_pieces_equal_the_plain_packed_ones(dirty_memory: None) -> None:
    vocoder = model()
    plain, fused = PackedVocoder(vocoder, 2), FusedVocoder(vocoder, 2, tiles=tile)
    mel = speechlike_mel(60, seed=1)[0].t().to(need_triton())
    # Together with their gaps the first round's items fill the row to its very end.
    rounds = [[VocoderJob(mel[:20], None, False, 5), VocoderJob(mel[:36], None, True, 6)]]
    rounds.append([VocoderJob(mel[20:], None, True, 5)])
    states: tuple[VocoderState | None, VocoderState | None] = (None, None)
    for jobs in rounds:
        here = [replace(jobs[0], state=state) for state in states]
        pack, expected, plain_states = plain.run([here[0], *jobs[1:]])
        fused_pack, found, fused_states = fused.run([here[1], *jobs[1:]])
        for i in range(len(jobs)):
            one = expected[int(pack.starts[i]) * 480 : int(pack.ends[i]) * 480]
            other = found[int(fused_pack.starts[i]) * 480 : int(fused_pack.ends[i]) * 480]
            assert (one.float() - other.float()).abs().max() <= 2
        states = plain_states[0], fused_states[0]
