"""Puts trained modules together as a model folder of the public layout, small enough to bundle.

    python -m training.export --language-model llm.pt --flow flow.pt --vocoder hift.pt --onnx DIR --out assets/nano

Weights are rounded to eight significant bits, stored as float16 and deflated inside the `.pt` archive, which
`torch.load` reads as it is: rows of unused speech ids take no space.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import zipfile
from pathlib import Path

import torch
from torch import Tensor

from inference.models.config import LanguageModelConfig
from training.nano import NANO


def shrink(value: Tensor, exact: bool) -> Tensor:
    """float16, unless `exact` rounded to bfloat16's precision first so that it deflates well."""
    value = value.detach().float().cpu()
    return (value if exact else value.bfloat16().float()).half()


def pack(state: dict[str, Tensor], path: Path, exact: bool = False) -> None:
    """Write a deflated `.pt` to a temporary name, then rename it."""
    plain, packed = path.with_suffix(".plain"), path.with_suffix(".packed")
    torch.save({key: shrink(value, exact) for key, value in state.items()}, plain)
    with (
        zipfile.ZipFile(plain) as source,
        zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as out,
    ):
        for entry in source.infolist():
            out.writestr(entry.filename, source.read(entry.filename))
    plain.unlink()
    os.replace(packed, path)


def qwen_config(cfg: LanguageModelConfig) -> dict[str, object]:
    """The language model's `config.json`."""
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_act": "silu",
        "hidden_size": cfg.hidden_size,
        "intermediate_size": cfg.intermediate_size,
        "num_hidden_layers": cfg.num_layers,
        "num_attention_heads": cfg.num_heads,
        "num_key_value_heads": cfg.num_kv_heads,
        "max_position_embeddings": 32768,
        "rms_norm_eps": cfg.rms_norm_eps,
        "rope_theta": cfg.rope_theta,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
        "vocab_size": cfg.vocab_size,
    }


def export(language_model: Path, flow: Path, vocoder: Path, onnx: Path, out: Path) -> None:
    """Write the whole folder; the text tokenizer's files must be there already (`training.text_tokenizer`)."""
    from inference.model_yaml import dump

    out.mkdir(parents=True, exist_ok=True)
    (out / "cosyvoice2.yaml").write_text(dump(NANO), encoding="utf-8")
    text = out / "CosyVoice-BlankEN" / "config.json"
    text.write_text(json.dumps(qwen_config(NANO.language_model), indent=1) + "\n", encoding="utf-8")
    for source, name in ((language_model, "llm.pt"), (flow, "flow.pt"), (vocoder, "hift.pt")):
        pack(torch.load(source, weights_only=True, map_location="cpu"), out / name)
    for name in ("speech_tokenizer_v2.onnx", "campplus.onnx"):
        if (onnx / name).resolve() != (out / name).resolve():
            shutil.copyfile(onnx / name, out / name)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--language-model", type=Path, required=True)
    parser.add_argument("--flow", type=Path, required=True)
    parser.add_argument("--vocoder", type=Path, required=True)
    parser.add_argument("--onnx", type=Path, required=True, help="folder with the two ONNX files")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    export(args.language_model, args.flow, args.vocoder, args.onnx, args.out)
    print(f"{sum(f.stat().st_size for f in args.out.rglob('*') if f.is_file()) / 1e6:.1f} MB in {args.out}")


if __name__ == "__main__":
    main()
