"""One training step of the vocoder on buffers that stay where they are: nothing here waits for the device.

What a full step of nano costs at batch 16, 40 frames (counted operations; times E): the generator 10.3 GFLOP an item,
the discriminators 52 (pass 13, their own gradients 26, the generator's 13), 1.0 TFLOP together; some 25 GB of memory
traffic with compiled activations, 35 GB without; about 3,000 kernels. So 15 to 20 ms on an H200 of one's own as a graph
(50 to 65 steps a second), a third of that beside two other busy processes, and 4 to 10 steps started kernel by kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inference.frontend.features import log_mel_24k
from inference.models.source import Excitation
from inference.models.vocoder import Vocoder
from training.audio_store import F0_HOP
from training.discriminators import Discriminators
from training.losses import discriminator_loss, feature_loss, generator_loss, spectral_loss
from training.vocoder_data import disturbed

MEL_WEIGHT, SPECTRAL_WEIGHT, PITCH_WEIGHT = 15.0, 2.5, 0.5
# In the proportions of HiFi-GAN (45 : 1 : 2 a feature), but for the adversarial part, three times as strong.
GAN_WEIGHT, FEATURE_WEIGHT = 1.0, 25.0
OWN_PITCH_SHARE = 0.7  # items whose source follows the predicted pitch, as it always does in use
EDGE = 4  # mel frames at either end that only serve as context
PITCH_SCALE = 100.0  # Hz
LARGEST_NORM = 10.0


class Phase(Enum):
    """What a step consists of."""

    SPECTRA = "spectra"
    LEARNING = "discriminators learn"  # … from what the generator makes, which does not hear them yet
    FULL = "full"


@dataclass(frozen=True)
class Schedule:
    """Shares of the run at which things begin."""

    learning: float
    joining: float
    ramp: float  # over which the discriminators' say grows from nothing to all
    own_pitch: float

    def phase(self, fraction: float) -> Phase:
        if fraction >= self.joining:
            return Phase.FULL
        return Phase.LEARNING if fraction >= self.learning else Phase.SPECTRA

    def say(self, fraction: float) -> float:
        return min(1.0, max(0.0, (fraction - self.joining) / self.ramp))

    def own_share(self, fraction: float) -> float:
        return OWN_PITCH_SHARE if fraction >= self.own_pitch else 0.0


FROM_SCRATCH = Schedule(learning=0.23, joining=0.25, ramp=0.03, own_pitch=0.15)
# Choosing kernels and compiling take a part of the first minute, hence not sooner.
FROM_WEIGHTS = Schedule(learning=0.0, joining=0.06, ramp=0.04, own_pitch=0.0)


class Learner:
    """A network with its optimiser. Rate, clipping and what to do about broken gradients live on the device."""

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        self.parameters = list(module.parameters())
        self.rate = torch.zeros((), device=device)
        self.optimiser = torch.optim.AdamW(
            self.parameters,
            self.rate,
            betas=(0.8, 0.99),
            weight_decay=0.0,
            fused=True,
            capturable=device.type == "cuda",
        )

    def forget(self) -> None:
        """Let go of the gradients."""
        self.optimiser.zero_grad(set_to_none=True)

    def update(self) -> None:
        """One update from the gradients, clipped by their norm; none at all when they are not finite."""
        found = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(found)))
        # The fused kernel divides by the one and obeys the other, as it does for loss scaling.
        scaling = {
            "grad_scale": (norm / LARGEST_NORM).clamp_min(1.0),
            "found_inf": torch.logical_not(norm.isfinite()).float(),
        }
        for name, value in scaling.items():
            setattr(self.optimiser, name, value)
        self.optimiser.step()

    def state(self) -> dict[str, object]:
        return self.optimiser.state_dict()

    def load(self, state: dict[str, object]) -> None:
        self.optimiser.load_state_dict(state)
        for group in self.optimiser.param_groups:
            group["lr"] = self.rate


class VocoderStep:
    """Losses and updates on the static buffers `wave` (B, 480*T) and `pitch` (B, T)."""

    def __init__(
        self, generator: Vocoder, judges: Discriminators, device: torch.device, batch: int, frames: int
    ) -> None:
        self.generator, self.judges, self.device = generator, judges, device
        self.speaker, self.judging = Learner(generator, device), Learner(judges, device)
        self.wave = torch.zeros(batch, frames * F0_HOP, device=device)
        self.pitch = torch.zeros(batch, frames, device=device)
        self.say = torch.zeros((), device=device)
        self.own_share = torch.zeros((), device=device)
        self.random: torch.Generator | None = None  # the device's default one, which graphs know

    def prepare(self, wave: Tensor, pitch: Tensor, rate: float, say: float, own_share: float) -> None:
        """Fill the buffers for the next call."""
        self.wave.copy_(wave)
        self.pitch.copy_(pitch)
        for control, value in (
            (self.speaker.rate, rate),
            (self.judging.rate, rate),
            (self.say, say),
            (self.own_share, own_share),
        ):
            control.fill_(value)

    def __call__(self, phase: Phase) -> dict[str, Tensor]:
        """One update of the generator and, once they learn, of the discriminators; returns the losses."""
        self.speaker.forget()
        self.judging.forget()
        mel = log_mel_24k(self.wave)
        made, pitch_loss = self.speak(mel)
        inner = slice(EDGE * F0_HOP, -EDGE * F0_HOP)
        real, heard = self.wave[:, inner], made[:, inner]
        losses = {
            "mel": F.l1_loss(log_mel_24k(made)[..., EDGE:-EDGE], mel[..., EDGE:-EDGE]),
            "spectra": spectral_loss(heard, real),
            "pitch": pitch_loss,
        }
        total = (
            MEL_WEIGHT * losses["mel"] + SPECTRAL_WEIGHT * losses["spectra"] + PITCH_WEIGHT * losses["pitch"]
        )
        if phase is not Phase.SPECTRA:
            total = total + self._play(real, heard, phase, losses)
        total.backward()
        self.speaker.update()
        return {name: value.detach() for name, value in losses.items()}

    def speak(self, mel: Tensor) -> tuple[Tensor, Tensor]:
        """Sound (B, n) made from a (mostly slightly disturbed) mel, and the loss of the pitch predictor."""
        mel = disturbed(mel, self.random)
        predicted = self.generator.f0(mel)
        pitch_loss = F.smooth_l1_loss(predicted / PITCH_SCALE, self.pitch / PITCH_SCALE, beta=0.1)
        own = torch.rand(len(mel), 1, device=self.device, generator=self.random) < self.own_share
        driving = torch.where(own, predicted.detach(), self.pitch)
        zeros = torch.zeros(len(mel), dtype=torch.int64, device=self.device)
        seeds = torch.randint(0, 2**31, (len(mel),), device=self.device, generator=self.random)
        source, _ = self.generator.source(driving, Excitation(seeds, zeros))
        with self._autocast():
            spectrum = self.generator.spectrum(mel, source)
        return self.generator.to_sound(spectrum), pitch_loss

    def _play(self, real: Tensor, heard: Tensor, phase: Phase, losses: dict[str, Tensor]) -> Tensor:
        """Teach the discriminators and ask them; the generator's loss (0 while they only learn).

        Both sides' gradients come from one pass over real and made sound, at the same weights.
        """
        made = heard.detach().requires_grad_(phase is Phase.FULL)
        with self._autocast():
            scores, features = self.judges(torch.cat((real, made)))
        halves = [score.chunk(2) for score in scores]
        losses["judges"] = discriminator_loss([half[0] for half in halves], [half[1] for half in halves])
        passed = heard.new_zeros(())
        if phase is Phase.FULL:
            losses["fooling"] = generator_loss([half[1] for half in halves])
            pairs = [[feature.chunk(2) for feature in part] for part in features]
            losses["features"] = feature_loss(
                [[pair[0] for pair in part] for part in pairs], [[pair[1] for pair in part] for part in pairs]
            )
            wish = GAN_WEIGHT * losses["fooling"] + FEATURE_WEIGHT * losses["features"]
            (slope,) = torch.autograd.grad(wish, made, retain_graph=True)
            passed = (heard * (self.say * slope)).sum()  # whose gradient is that slope
        losses["judges"].backward(inputs=self.judging.parameters)
        self.judging.update()
        return passed

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda")

    def make_new_random(self, seed: int) -> None:
        """Draw from a generator of our own: a recording that broke off leaves the default one unusable."""
        self.random = torch.Generator(self.device).manual_seed(seed)
        self.speaker.forget()
        self.judging.forget()
