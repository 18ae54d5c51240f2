"""The flow's kernels for a card that may be absent: `python -m tests.runtime.compile_for CAPABILITY SHARED_BYTES`."""

from __future__ import annotations

import importlib
import json
import re
import sys
from typing import Any

import torch

from inference.models.config import FlowConfig
from inference.models.flow import FlowModel
from inference.runtime import gpu_traits
from inference.runtime.kernel_build import Variant, set_target
from inference.runtime.kernel_variant import stand_in


def main() -> None:
    """Device traits are those of the card: nothing here asks a driver."""
    capability, shared = int(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    vars(gpu_traits).update(
        has_copy_engine=lambda device: capability >= 90,
        kernels_overlap=lambda device: capability >= 90,
        shared_bytes=lambda device: shared,
    )
    from inference.runtime.velocity_variants import kernel_variants

    set_target(capability)
    flow = FlowModel(FlowConfig()).half()
    print(json.dumps([_compile(one) for one in kernel_variants(flow)]))


def _compile(one: Variant) -> dict[str, Any]:
    kernel = getattr(importlib.import_module(one.module), one.name)
    constants = {name: stand_in(value) for name, value in one.constants}
    facts: dict[str, Any] = {"name": one.name, "constants": repr(one.constants), "error": ""}
    try:
        made = kernel.warmup(*(stand_in(value) for value in one.arguments), grid=(1,), **constants)
    except Exception as error:  # whatever the compiler raises
        return {**facts, "error": f"{type(error).__name__}: {error}"}
    halves = re.findall(r"ld\.global(?:\.\w+)*\.[bu]16", made.asm["ptx"])
    return {**facts, "shared": made.metadata.shared, "loads_of_two_bytes": len(halves)}


if __name__ == "__main__":
    main()
