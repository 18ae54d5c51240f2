"""The lanes' kernels for a card that may be absent, in JSON.

`python -m tests.runtime.compile_for CAPABILITY SHARED_BYTES [CAPABILITY SHARED_BYTES]`: the second card is one whose
kernels are known already, so that those which both cards would launch alike are left out.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from typing import Any

import torch

from inference.models.config import ModelConfig
from inference.models.flow import FlowModel
from inference.models.language_model import LanguageModel
from inference.models.vocoder import Vocoder
from inference.runtime import gpu_traits
from inference.runtime.kernel_build import Variant, set_target
from inference.runtime.kernel_variant import stand_in, variant
from inference.settings import LaneSettings

Variants = dict[str, list[Variant]]  # by lane


def main() -> None:
    cards = [int(word) for word in sys.argv[1:]]
    torch.set_num_threads(1)
    known: set[str] = set()
    if len(cards) > 2:
        known = {one.key for found in _variants(*cards[2:]).values() for one in found}
    wanted = _variants(*cards[:2])
    set_target(cards[0])
    facts = [
        {"lane": lane, **_compile(one)}
        for lane, found in wanted.items()
        for one in found
        if one.key not in known
    ]
    print(json.dumps(facts))


def _variants(capability: int, shared: int) -> Variants:
    """As `kernel_plan` collects them, at the public sizes. Traits are those of the card: nothing asks a driver."""
    overlap = capability >= 90
    vars(gpu_traits).update(
        capability=lambda device: divmod(capability, 10),
        has_copy_engine=lambda device: overlap,
        kernels_overlap=lambda device: overlap,
        shared_bytes=lambda device: shared,
    )
    from inference.runtime import lm_variants, paged_variants, velocity_variants
    from inference.runtime.vocoder_fused import FusedVocoder

    cfg, dtype = ModelConfig(), torch.float16
    with torch.device("meta"):
        language_model = LanguageModel(cfg.language_model).to(dtype)
    lanes = LaneSettings(slots=64, graphs=True, context=3072)
    streams = paged_variants.kernel_variants(cfg.flow, dtype, overlap)
    return {
        "language model": lm_variants.kernel_variants(language_model, lanes),
        "flow": velocity_variants.kernel_variants(FlowModel(cfg.flow).to(dtype), lanes),
        "streams": [variant(*one) for one in streams],
        "vocoder": FusedVocoder(Vocoder(cfg.vocoder).eval(), 1).kernel_variants(),
    }


def _compile(one: Variant) -> dict[str, Any]:
    kernel = getattr(importlib.import_module(one.module), one.name)
    constants = {name: stand_in(value) for name, value in one.constants}
    facts: dict[str, Any] = {"name": one.name, "constants": repr(one.constants), "error": ""}
    try:
        made = kernel.warmup(*(stand_in(value) for value in one.arguments), grid=(1,), **constants)
    except Exception as error:  # whatever the compiler raises
        return {**facts, "error": f"{type(error).__name__}: {error}"}
    halves = re.findall(r"ld\.global[.:\w]*\.[bu]16", made.asm["ptx"])
    return {**facts, "shared": made.metadata.shared, "loads_of_two_bytes": len(halves)}


if __name__ == "__main__":
    main()
