"""Which runner serves the language model's lane on a device."""

from __future__ import annotations

import logging

from inference.models.language_model import LanguageModel
from inference.runtime.block_runner import BlockRunner
from inference.runtime.bucket_runner import BucketRunner
from inference.runtime.slot_runner import SlotRunner
from inference.runtime.spare_cores import SpareCores
from inference.settings import LaneSettings

logger = logging.getLogger(__name__)


def make_runner(model: LanguageModel, settings: LaneSettings, cores: SpareCores | None = None) -> SlotRunner:
    """What runs steps on the model's device; `cores` tells on the CPU which ones are idle."""
    if model.device.type != "cuda":
        return BlockRunner(model, settings.slots, settings.context, settings.prefill_tokens, cores=cores)
    return _kernel_runner(model, settings) or BucketRunner(
        model,
        settings.slots,
        settings.context,
        settings.prefill_tokens,
        graphs=settings.graphs,
    )


def _kernel_runner(model: LanguageModel, settings: LaneSettings) -> SlotRunner | None:
    """Steps by our own kernels, where these run and prove sound."""
    try:
        from inference.runtime.lm_self_test import kernel_runner
    except ImportError as error:
        logger.warning("No Triton here (%s): the language model runs by plain steps, more slowly.", error)
        return None
    return kernel_runner(model, settings)
