"""A pool that is given a library speaks with saved voices as with their clips, in every mode."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from inference import CosyVoice, Mode, WorkerPool
from inference.types import Reference, RequestError
from inference.voices import VoiceLibrary, save_clip
from tests.engine_support import CLIP, GOOD, REQUESTS, pcm_of
from tests.scheduler_support import assert_same, pool_settings

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def pool(random_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerPool]:
    library = VoiceLibrary(tmp_path_factory.mktemp("voices"), random_model_dir)
    with WorkerPool(pool_settings(random_model_dir), library) as pool:
        asyncio.run(save_clip(pool, library, "Anna", CLIP))
        yield pool


@pytest.mark.parametrize("mode", [Mode.CLONE, Mode.CROSS_LINGUAL, Mode.INSTRUCT])
def test_a_saved_voice_speaks_as_its_clip(pool: WorkerPool, mode: Mode) -> None:
    request = replace(REQUESTS[mode], text="hello world")
    by_clip = list(pool.synthesize(request))
    by_name = list(pool.synthesize(replace(request, voice="anna")))
    assert_same(by_name, by_clip)


def test_the_kept_sound_alone_gives_nearly_the_same_voice(pool: WorkerPool, random_model_dir: Path) -> None:
    """What another model gets: the clip as it was heard, prepared anew."""
    assert pool.voices is not None
    pcm = pool.voices.wav("Anna")
    engine = CosyVoice(random_model_dir, device="cpu")
    again, first = engine.prepare_voice(Reference(pcm, CLIP.transcript)), engine.prepare_voice(CLIP)
    assert again.speech_tokens.shape == first.speech_tokens.shape
    assert float(abs(again.mel - first.mel).mean()) < 0.05
    assert len(pcm_of(list(engine.synthesize(replace(GOOD, voice=again))))) > 0


def test_an_unknown_voice_is_refused_at_once(pool: WorkerPool) -> None:
    with pytest.raises(RequestError) as caught:
        pool.submit(replace(GOOD, voice="nobody"))
    assert caught.value.code == "voice_unknown"
