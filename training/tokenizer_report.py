"""Saving the speech tokenizer, reading it back, and judging it on speech it has not seen.

python -m training.tokenizer_report --tokenizer OUT --data DATA
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter, defaultdict
from pathlib import Path

import torch
from torch import Tensor

from training.audio_store import AudioStore
from training.exact_features import length_batches, log_mels, waves_16k
from training.phones import PhoneTable, edit_distance, greedy_phones
from training.tokenizer_model import (
    DIGITS,
    PHONE_CAPACITY,
    PhoneDecoder,
    SpeechTokenizerNetwork,
    TokenizerHead,
)
from training.whisper_front import DEFAULT_FILE, WhisperFront

SECONDS_AT_ONCE = 400.0
_MAX_SECONDS = 29.0


def save_tokenizer(path: Path, head: TokenizerHead, decoder: PhoneDecoder, phones: PhoneTable) -> None:
    """Write to a temporary name, then rename."""
    temporary = path.with_suffix(".tmp")
    torch.save(
        {"head": head.state_dict(), "decoder": decoder.state_dict(), "phones": phones.symbols}, temporary
    )
    temporary.rename(path)


def load_tokenizer(
    path: Path, front: Path = DEFAULT_FILE
) -> tuple[SpeechTokenizerNetwork, PhoneDecoder, PhoneTable]:
    """Read `tokenizer.pt`, or the folder it lies in; all in eval mode on the CPU."""
    saved = torch.load(
        path / "tokenizer.pt" if path.is_dir() else path, map_location="cpu", weights_only=True
    )
    head, decoder = TokenizerHead(), PhoneDecoder()
    head.load_state_dict(saved["head"])
    decoder.load_state_dict(saved["decoder"])
    network = SpeechTokenizerNetwork(WhisperFront.load(front), head.eval())
    return network.eval(), decoder.eval(), PhoneTable(PHONE_CAPACITY, saved["phones"])


def digits_of(ids: Tensor) -> Tensor:
    """(...,) ids to (..., 6) values -1, 0, 1."""
    weights = torch.tensor([3**i for i in range(DIGITS)], device=ids.device)
    return (torch.div(ids[..., None], weights, rounding_mode="floor") % 3 - 1).float()


@torch.no_grad()
def report(
    network: SpeechTokenizerNetwork, decoder: PhoneDecoder, phones: PhoneTable, store: AudioStore, most: int
) -> dict[str, object]:
    """Phone error in per cent by split and engine (through the rounded digits), agreement after a shift of 10 ms
    and under noise of 20 dB, and how many codes are in use. At most `most` utterances an engine and split."""
    network.eval()
    decoder.eval()
    groups: dict[str, list[int]] = defaultdict(list)
    for i, entry in enumerate(store.utterances):
        if entry.split != "train" and entry.phones and entry.samples < _MAX_SECONDS * 24000:
            key = f"{entry.split} {entry.engine} {entry.language}"
            if len(groups[key]) < most:
                groups[key].append(i)
    errors: dict[str, float] = {}
    totals: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    used: Counter[int] = Counter()
    stable: dict[str, list[float]] = defaultdict(list)
    for key, indices in sorted(groups.items()):
        wrong = spoken = 0
        for batch in length_batches(store, indices, SECONDS_AT_ONCE):
            wave, lengths = waves_16k(store, batch)
            ids, counts = _codes(network, wave, lengths)
            ends = torch.tensor(counts, device=ids.device)[:, None]
            mask = torch.arange(ids.shape[1], device=ids.device)[None] < ends
            logits, _ = decoder(digits_of(ids), mask)
            slots = logits.reshape(len(batch), -1, PHONE_CAPACITY)
            for i, found in zip(batch, greedy_phones(slots, [2 * n for n in counts])):
                expected = phones.encode(store.utterances[i].phones)
                wrong, spoken = wrong + edit_distance(expected, found), spoken + len(expected)
            used.update(ids[mask].tolist())
            for name, share in _stability(network, wave, lengths, ids, mask).items():
                stable[f"{key.split()[0]} {name}"].append(share)
        errors[key] = round(100.0 * wrong / max(spoken, 1), 2)
        totals[key.split()[0]][0] += wrong
        totals[key.split()[0]][1] += spoken
    frames = sum(used.values())
    bits = -sum(n / frames * math.log2(n / frames) for n in used.values()) if frames else 0.0
    return {
        "phone_error": errors,
        "phone_error_by_split": {k: round(100.0 * a / max(b, 1), 2) for k, (a, b) in totals.items()},
        "equal_codes": {name: round(100.0 * sum(v) / len(v), 1) for name, v in stable.items()},
        "codes_used": len(used),
        "code_bits": round(bits, 2),
        "tokens": frames,
    }


def _codes(network: SpeechTokenizerNetwork, wave: Tensor, lengths: Tensor) -> tuple[Tensor, list[int]]:
    mel, frames = log_mels(wave, lengths)
    counts = [(((int(n) + 1) // 2) + 1) // 2 for n in frames.tolist()]
    return network.ids(mel, frames)[:, : max(counts)], counts


def _stability(
    network: SpeechTokenizerNetwork, wave: Tensor, lengths: Tensor, ids: Tensor, mask: Tensor
) -> dict[str, float]:
    """Share of tokens that stay the same."""
    level = wave.square().mean(1, keepdim=True).sqrt()
    changed = {
        "10 ms later": torch.nn.functional.pad(wave, (160, 0))[:, :-160],
        "noise 20 dB": wave + torch.randn_like(wave) * level * 0.1,
        "half as loud": wave * 0.5,
    }
    shares = {}
    for name, other in changed.items():
        codes, _ = _codes(network, other, lengths)
        shares[name] = float(((codes == ids) & mask).sum() / mask.sum())
    return shares


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--front", type=Path, default=DEFAULT_FILE)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--most", type=int, default=200)
    args = parser.parse_args()
    device = torch.device(args.device)
    network, decoder, phones = load_tokenizer(args.tokenizer, args.front)
    store = AudioStore(args.data, device)
    store.scan()
    result = report(network.to(device), decoder.to(device), phones, store, args.most)
    print(json.dumps(result, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
