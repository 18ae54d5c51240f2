"""The speaker network of resemblyzer (Apache-2.0, trained on real people), as a frozen teacher and as a judge.

pip download --no-deps -d WHEELS resemblyzer
python -m training.speaker_teacher --wheels WHEELS --out .carry_front/speaker_teacher.npz
"""

from __future__ import annotations

import argparse
import zipfile
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inference.frontend.features import slaney_filterbank

DEFAULT_FILE = Path(".carry_front/speaker_teacher.npz")
TEACHER_SIZE = 256
WINDOW = 160  # frames of 10 ms that it was trained on
_LEVEL = 10.0 ** (-30.0 / 20.0)  # quieter speech is brought up to -30 dBFS


class SpeakerTeacher(nn.Module):
    """Three LSTM layers over 40 mel powers; the last state, projected and normalised, is the speaker."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(40, TEACHER_SIZE, 3, batch_first=True)
        self.linear = nn.Linear(TEACHER_SIZE, TEACHER_SIZE)
        self.requires_grad_(False)

    def mels(self, wave: Tensor, lengths: Tensor) -> Tensor:
        """(B, n) at 16 kHz and (B,) samples; returns (B, 1 + n // 160, 40) mel powers."""
        inside = torch.arange(wave.shape[1], device=wave.device)[None] < lengths[:, None]
        level = ((wave.square() * inside).sum(1, keepdim=True) / lengths[:, None].clamp_min(1)).sqrt()
        loud = wave * (_LEVEL / level.clamp_min(1e-6)).clamp_min(1.0)
        window = torch.hann_window(400, device=wave.device)
        spectrum = torch.stft(
            loud, 400, 160, window=window, center=True, pad_mode="constant", return_complex=True
        )
        power = torch.view_as_real(spectrum).square().sum(-1)
        return (slaney_filterbank(16000, 400, 40, 8000.0, wave.device) @ power).transpose(1, 2)

    def forward(self, mels: Tensor) -> Tensor:
        """(B, 160, 40) to (B, 256) of length 1."""
        _, (state, _) = self.lstm(mels)
        return F.normalize(torch.relu(self.linear(state[-1])), dim=1)

    def embed(self, wave: Tensor, lengths: Tensor, windows: int = 4) -> Tensor:
        """Mean over evenly spaced windows of each item, normalised: (B, n) at 16 kHz to (B, 256)."""
        mels = self.mels(wave, lengths)
        if mels.shape[1] < WINDOW:
            mels = F.pad(mels, (0, 0, 0, WINDOW - mels.shape[1]))
        last = (torch.div(lengths, 160, rounding_mode="floor") - WINDOW).clamp(0, mels.shape[1] - WINDOW)
        shares = torch.linspace(0.0, 1.0, windows, device=wave.device)
        begin = (last[:, None] * shares).long()
        index = (begin[:, :, None] + torch.arange(WINDOW, device=wave.device)).reshape(len(mels), -1)
        cut = mels.gather(1, index[..., None].expand(-1, -1, 40)).reshape(-1, WINDOW, 40)
        return F.normalize(self(cut).reshape(len(mels), windows, -1).mean(1), dim=1)

    @classmethod
    def load(cls, path: Path = DEFAULT_FILE) -> SpeakerTeacher:
        """Read what the command of this module wrote. Raises FileNotFoundError."""
        teacher = cls()
        with np.load(path) as stored:
            teacher.load_state_dict({name: torch.from_numpy(stored[name]).float() for name in stored.files})
        return teacher.eval()


def extract(wheels: Path, out: Path) -> None:
    """Keep LSTM and projection as float16. Raises FileNotFoundError where there is no wheel."""
    found = sorted(wheels.glob("[Rr]esemblyzer-*.whl"))
    if not found:
        raise FileNotFoundError(f"no resemblyzer wheel in {wheels}")
    with zipfile.ZipFile(found[-1]) as archive:
        saved = torch.load(
            BytesIO(archive.read("resemblyzer/pretrained.pt")), map_location="cpu", weights_only=False
        )
    state = {
        name: value for name, value in saved["model_state"].items() if name.startswith(("lstm", "linear"))
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    np.savez(out, **{name: value.half().numpy() for name, value in state.items()})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--wheels", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=DEFAULT_FILE)
    args = parser.parse_args()
    extract(args.wheels, args.out)
    print(f"{args.out}: {args.out.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
