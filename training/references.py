"""Collects voices that training never heard into a folder of reference clips for `training.evaluate`.

    python -m training.references --data DATA --clips /work/shared/reference/audio --g722 SOUNDS --out REFS

`SOUNDS` is Debian's `asterisk-core-sounds-en-g722`, unpacked (CC-BY-SA: for evaluation only, never trained on or
shipped).
"""

from __future__ import annotations

import argparse
import json
import wave
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch

from training.audio_store import RATE, AudioStore

_SHORTEST, _LONGEST = 4.0, 9.0  # seconds
_PROMPTS = 10


def write_wav(path: Path, pcm: np.ndarray, rate: int) -> None:
    """Mono 16 bit."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(pcm.astype("<i2").tobytes())


def from_shards(data: Path, out: Path, most: int) -> list[dict[str, str]]:
    """One clip for each speaker of the split "test": utterances joined until they last 4 s."""
    store = AudioStore(data, torch.device("cpu"))
    store.scan()
    by_speaker: dict[str, list[int]] = defaultdict(list)
    for i in store.of_split("test"):
        by_speaker[f"{store.utterances[i].engine}-{store.utterances[i].speaker}"].append(i)
    rows = []
    for name, indices in sorted(by_speaker.items()):
        pieces, texts, seconds = [], [], 0.0
        for i in indices:
            entry = store.utterances[i]
            if seconds >= _SHORTEST or entry.language != store.utterances[indices[0]].language:
                break
            pieces.append(store.audio[entry.start : entry.start + entry.samples].numpy())
            texts.append(entry.text)
            seconds += entry.samples / RATE
        if _SHORTEST * 0.6 <= seconds <= _LONGEST * 2:
            first = store.utterances[indices[0]]
            write_wav(out / f"{name}.wav", np.concatenate(pieces), RATE)
            group = "warp" if "warp" in first.engine else "engine"
            rows.append(
                {"name": name, "group": group, "transcript": " ".join(texts), "language": first.language}
            )
    return rows[: most or None]


def from_clips(folder: Path, out: Path) -> list[dict[str, str]]:
    """The two real Mandarin clips; their transcripts are in Chinese and left to the caller."""
    rows = []
    for path in sorted(folder.glob("*_prompt.wav")):
        (out / path.name).write_bytes(path.read_bytes())
        rows.append({"name": path.stem, "group": "real_zh", "transcript": "", "language": "zh"})
    return rows


def from_g722(folder: Path, out: Path) -> list[dict[str, str]]:
    """Ten of the longer prompts of a real speaker. Needs `av`."""
    import av

    rows: list[dict[str, str]] = []
    for path in sorted(folder.rglob("*.g722"), key=lambda path: path.stat().st_size, reverse=True):
        if "silence" in path.parts or not 30_000 < path.stat().st_size < 72_000:  # 8000 bytes a second
            continue
        with av.open(str(path), format="g722") as container:
            resampler = av.AudioResampler(format="s16", layout="mono", rate=16000)
            frames = [out for frame in container.decode(audio=0) for out in resampler.resample(frame)]
        pcm = np.concatenate([frame.to_ndarray().reshape(-1) for frame in frames])
        write_wav(out / f"asterisk-{path.stem}.wav", pcm, 16000)
        rows.append({"name": f"asterisk-{path.stem}", "group": "real_en", "transcript": "", "language": "en"})
        if len(rows) == _PROMPTS:
            break
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="folder of shards")
    parser.add_argument("--clips", type=Path)
    parser.add_argument("--g722", type=Path)
    parser.add_argument("--most", type=int, default=24, help="at most so many speakers of the shards")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    rows = from_shards(args.data, args.out, args.most) if args.data else []
    rows += from_clips(args.clips, args.out) if args.clips else []
    rows += from_g722(args.g722, args.out) if args.g722 else []
    (args.out / "references.json").write_text(json.dumps(rows, indent=1, ensure_ascii=False))
    print(f"{len(rows)} references in {args.out}")


if __name__ == "__main__":
    main()
