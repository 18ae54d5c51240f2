"""Speech tokens and speaker vectors of every shard, beside it as `features-<name>.npz`.

    python -m training.features --data DATA --tokenizer WORK/tokenizer --speaker WORK/speaker --watch --minutes 15

Tokens come from the very weights of the exported files (the int8 and float16 values, loaded back), in batches on the
device and in full float32: TensorFloat-32 would move a few codes.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from training.audio_store import AudioStore
from training.exact_features import fbanks, length_batches, log_mels, waves_16k
from training.speaker_model import SpeakerNetwork, load_speaker
from training.tokenizer_model import SpeechTokenizerNetwork
from training.tokenizer_report import load_tokenizer
from training.whisper_front import DEFAULT_FILE

SAMPLES_A_TOKEN = 960
SECONDS_AT_ONCE = {"cuda": 1200.0, "cpu": 60.0}

Tokens = npt.NDArray[np.int16]


class FeatureWriter:
    """Both networks, frozen, on one device."""

    def __init__(
        self,
        tokenizer: SpeechTokenizerNetwork,
        speaker: SpeakerNetwork,
        device: torch.device,
        tokens_only: bool = False,
    ) -> None:
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
        self.tokenizer = tokenizer.to(device).eval()
        self.speaker = speaker.to(device).eval()
        self.device = device
        self.tokens_only = tokens_only

    @torch.no_grad()
    def compute(self, store: AudioStore) -> tuple[list[Tokens], npt.NDArray[np.float16]]:
        """Tokens of each utterance (samples / 960 of them) and (n, 192) speaker vectors, in the store's order.

        With `tokens_only` there are no vectors: (0, 192).
        """
        tokens: dict[int, Tokens] = {}
        speakers: dict[int, npt.NDArray[np.float16]] = {}
        everything = list(range(len(store.utterances)))
        for batch in length_batches(store, everything, SECONDS_AT_ONCE[self.device.type]):
            wave, lengths = waves_16k(store, batch)
            ids = self.tokenizer.ids(*log_mels(wave, lengths)).to(torch.int16).cpu().numpy()
            for row, i in enumerate(batch):
                tokens[i] = ids[row, : store.utterances[i].samples // SAMPLES_A_TOKEN]
            if not self.tokens_only:
                speakers.update(zip(batch, self._speakers(wave, lengths)))
        found = [speakers[i] for i in everything if i in speakers]
        vectors = np.stack(found) if found else np.zeros((0, 192), np.float16)
        return [tokens[i] for i in everything], vectors

    def _speakers(self, wave: torch.Tensor, lengths: torch.Tensor) -> list[npt.NDArray[np.float16]]:
        """One at a time where lengths differ (pooling has no mask), together where they agree."""
        vectors: list[npt.NDArray[np.float16]] = []
        sizes = [int(n) for n in lengths.tolist()]
        first = 0
        while first < len(sizes):
            last = first
            while last < len(sizes) and sizes[last] == sizes[first]:
                last += 1
            features, _ = fbanks(wave[first:last, : sizes[first]], lengths[first:last])
            vectors.extend(self.speaker(features).half().cpu().numpy())
            first = last
        return vectors

    def write(self, shard: Path, target: Path) -> int:
        """Features of one shard; returns the number of utterances. Raises ValueError for odd lengths."""
        store = AudioStore(shard.parent, self.device)
        store.read(shard)
        for entry in store.utterances:
            if entry.samples % SAMPLES_A_TOKEN:
                raise ValueError(
                    f"{shard.name}: an utterance of {entry.samples} samples is no whole number of tokens"
                )
        tokens, speakers = self.compute(store)
        offsets = np.cumsum([0, *(len(part) for part in tokens)], dtype=np.int64)
        temporary = target.with_name(f".{target.stem}.tmp.npz")
        np.savez(temporary, tokens=np.concatenate(tokens), token_offsets=offsets, speaker_vectors=speakers)
        temporary.rename(target)
        return len(tokens)


def target_of(shard: Path) -> Path:
    return shard.with_name(shard.name.replace("shard-", "features-", 1))


def drop_audio(shard: Path) -> None:
    """Replace a shard by one that holds its `meta` alone."""
    with np.load(shard) as full:
        meta = full["meta"]
    temporary = shard.with_name(f".{shard.stem}.tmp.npz")
    np.savez(temporary, meta=meta)
    temporary.rename(shard)


def check_against_onnx(writer: FeatureWriter, shard: Path, onnx: Path, utterances: int = 12) -> float:
    """Share of codes that the exported file gives alike through the engine's own front end."""
    from inference.frontend.features import sinc_resample, whisper_log_mel
    from inference.frontend.onnx_models import SpeechTokenizer

    store = AudioStore(shard.parent, torch.device("cpu"))
    store.read(shard)
    engine = SpeechTokenizer(onnx)
    with np.load(target_of(shard)) as features:
        tokens, offsets = features["tokens"], features["token_offsets"]
    equal = total = 0
    for i, entry in enumerate(store.utterances[:utterances]):
        wave = store.gather(np.array([entry.start]), np.array([entry.samples]))
        found = engine.encode(whisper_log_mel(sinc_resample(wave, 24000, 16000))[0].numpy())
        stored = tokens[offsets[i] : offsets[i + 1]]
        if len(found) != len(stored):
            raise ValueError(f"{len(found)} tokens from {onnx}, {len(stored)} stored")
        equal, total = equal + int((found == stored).sum()), total + len(stored)
    return equal / max(total, 1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True, help="tokenizer.pt or its folder")
    parser.add_argument("--speaker", type=Path, required=True, help="speaker.pt or its folder")
    parser.add_argument("--front", type=Path, default=DEFAULT_FILE)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--watch", action="store_true", help="keep looking for new shards until the minutes are over"
    )
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--overwrite", action="store_true")
    parser.add_argument(
        "--words-only",
        action="store_true",
        help="for the language model alone: no speaker vectors, and a finished shard loses its audio",
    )
    args = parser.parse_args()
    writer = FeatureWriter(
        load_tokenizer(args.tokenizer, args.front)[0],
        load_speaker(args.speaker),
        torch.device(args.device),
        args.words_only,
    )
    run(writer, args)


def run(writer: FeatureWriter, args: argparse.Namespace) -> None:
    """All shards there are; with --watch also those that appear later."""
    end = time.monotonic() + args.minutes * 60.0
    done: set[str] = set()
    checked = False
    while time.monotonic() < end:
        for shard in sorted(args.data.glob("shard-*.npz")):
            if shard.name in done or (target_of(shard).exists() and not args.overwrite):
                continue
            started = time.monotonic()
            count = writer.write(shard, target_of(shard))
            done.add(shard.name)
            if args.words_only and checked:
                drop_audio(shard)
            print(
                f"{target_of(shard).name}: {count} utterances in {time.monotonic() - started:.1f} s",
                flush=True,
            )
            onnx = args.tokenizer / "speech_tokenizer_v2.onnx"
            if not checked and onnx.exists():
                checked = True
                share = check_against_onnx(writer, shard, onnx)
                print(
                    f"{100 * share:.2f} % of codes equal to {onnx}" + ("" if share >= 0.995 else "  WARNING"),
                    flush=True,
                )
        if not args.watch:
            return
        time.sleep(1.0)


if __name__ == "__main__":
    main()
