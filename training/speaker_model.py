"""The bundled speaker encoder: dilated convolutions, squeeze and excitation, attentive statistics."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SPEAKER_SIZE = 192
_WIDTH = 256
_TARGET_NORM = 12.0  # roughly what a vector of 192 unit-variance values has


class TdnnBlock(nn.Module):
    """Pointwise, dilated and pointwise convolution with a gate per channel, added to the input."""

    def __init__(self, dilation: int) -> None:
        super().__init__()
        self.before = nn.Conv1d(_WIDTH, _WIDTH // 2, 1)
        self.norm1 = nn.BatchNorm1d(_WIDTH // 2)
        self.wide = nn.Conv1d(_WIDTH // 2, _WIDTH // 2, 3, padding=dilation, dilation=dilation)
        self.norm2 = nn.BatchNorm1d(_WIDTH // 2)
        self.after = nn.Conv1d(_WIDTH // 2, _WIDTH, 1)
        self.norm3 = nn.BatchNorm1d(_WIDTH)
        self.squeeze = nn.Linear(_WIDTH, 64)
        self.excite = nn.Linear(64, _WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """(B, 256, T) to the same."""
        y = F.relu(self.norm1(self.before(x)))
        y = F.relu(self.norm2(self.wide(y)))
        y = F.relu(self.norm3(self.after(y)))
        gate = torch.sigmoid(self.excite(F.relu(self.squeeze(y.mean(2)))))
        return x + y * gate[:, :, None]


class SpeakerNetwork(nn.Module):
    """Kaldi filter bank less its mean (SPEC 2.3) to a speaker vector, not normalised (SPEC 2.5)."""

    def __init__(self) -> None:
        super().__init__()
        self.entry = nn.Conv1d(80, _WIDTH, 5, stride=2, padding=2)
        self.entry_norm = nn.BatchNorm1d(_WIDTH)
        self.blocks = nn.ModuleList(TdnnBlock(dilation) for dilation in (1, 2, 3, 4))
        self.gather = nn.Conv1d(4 * _WIDTH, 384, 1)
        self.attend = nn.Conv1d(384, 64, 1)
        self.score = nn.Conv1d(64, 384, 1)
        self.pool_norm = nn.BatchNorm1d(768)
        self.output = nn.Linear(768, SPEAKER_SIZE)

    def forward(self, fbank: Tensor) -> Tensor:
        """fbank: (B, N, 80); returns (B, 192)."""
        x = F.relu(self.entry_norm(self.entry(fbank.transpose(1, 2) * 0.3)))
        outputs = []
        for block in self.blocks:
            x = block(x)
            outputs.append(x)
        x = F.relu(self.gather(torch.cat(outputs, dim=1)))
        weights = torch.softmax(self.score(torch.tanh(self.attend(x))), dim=2)
        mean = (x * weights).sum(2)
        spread = ((x * x * weights).sum(2) - mean * mean).clamp(min=1e-5).sqrt()
        vector = self.output(self.pool_norm(torch.cat([mean, spread], dim=1)))
        norm = (vector * vector).sum(1, keepdim=True).clamp(min=1e-8).sqrt()
        return torch.mul(vector, _TARGET_NORM / norm)


def save_speaker(path: Path, network: SpeakerNetwork) -> None:
    """Write to a temporary name, then rename."""
    temporary = path.with_suffix(".tmp")
    torch.save(network.state_dict(), temporary)
    temporary.rename(path)


def load_speaker(path: Path) -> SpeakerNetwork:
    """Read `speaker.pt`, or the folder it lies in; in eval mode on the CPU."""
    network = SpeakerNetwork()
    state = torch.load(path / "speaker.pt" if path.is_dir() else path, map_location="cpu", weights_only=True)
    network.load_state_dict(state)
    return network.eval()
