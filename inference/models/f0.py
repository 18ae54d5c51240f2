"""F0 predictor of the vocoder (SPEC 6.1)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

_LAYERS = 5


class F0Predictor(nn.Module):
    """Five convolutions over the mel, then one number a frame. Looks 5 frames to either side."""

    def __init__(self, mel_bins: int, channels: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for i in range(_LAYERS):
            layers += [nn.Conv1d(channels if i else mel_bins, channels, 3, padding=1), nn.ELU()]
        self.condnet = nn.Sequential(*layers)
        self.classifier = nn.Linear(channels, 1)

    def forward(self, mel: Tensor, mask: Tensor | None = None) -> Tensor:
        """mel (B, mel_bins, T), mask (B, 1, T) bool or None → F0 (B, T) in Hz, 0 where masked."""
        x = mel
        with torch.autocast(mel.device.type, enabled=False):
            for layer in self.condnet:
                if mask is not None and isinstance(layer, nn.Conv1d):
                    x = torch.where(mask, x, 0.0)
                x = layer(x)
            f0: Tensor = self.classifier(x.transpose(1, 2)).squeeze(-1).abs()
        return f0 if mask is None else torch.where(mask[:, 0], f0, 0.0)
