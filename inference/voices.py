"""The library of saved voices: a folder of files that the page, the API and the command line share.

    library = VoiceLibrary(Path("voices"), model_dir)
    await save_clip(pool, library, "Anna", Reference(Path("anna.wav"), "What Anna says."))
    pool.submit(SynthesisRequest(Mode.CLONE, "Hello.", voice="Anna"))      # a pool that was given the library

A saved voice holds what is heard, never a prompt built for one mode; each mode makes its own of it. Two files each:
`<id>.safetensors` (see `voice_file`) and `<id>.json`, which makes it part of the library and carries its name.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import threading
from collections import OrderedDict
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from inference.types import EngineError, Int16Audio, Reference, RequestError, Voice
from inference.voice_entry import (
    MAX_NAME,
    VOICE_ID,
    SavedVoice,
    checked_name,
    checked_transcript,
    entry_bytes,
    folded,
    model_fingerprint,
    read_entry,
)
from inference.voice_file import KeptVoice, pack, tensor_hash, unpack, voice_file_bad

if TYPE_CHECKING:
    from inference.frontend.reference import PreparedClip

MAX_VOICES = 1000
_KEPT_IN_MEMORY = 32


class VoicePool(Protocol):
    """What prepares a clip: `WorkerPool`."""

    async def voice(self, reference: Reference) -> Voice: ...


class VoiceLibrary:
    """Saved voices in one folder. Methods may be called from any thread and take milliseconds.

    Where a method takes `name_or_id`, an unknown one raises RequestError("voice_unknown"). What changes or hands out
    a voice raises RequestError("voices_locked") in a library that is `locked`, and EngineError("voices_not_writable").
    """

    def __init__(self, folder: Path, model_dir: Path | None = None, *, locked: bool = False) -> None:
        """The folder is made when the first voice is saved. `model_dir`: the model that will speak."""
        self.folder = folder
        self.locked = locked
        self.model = model_fingerprint(model_dir) if model_dir else ""
        self._lock = threading.RLock()
        self._cache: OrderedDict[tuple[str, str], KeptVoice] = OrderedDict()

    # ------------------------------------------------------------------------------------------------ looking
    def voices(self) -> list[SavedVoice]:
        """All voices, by name."""
        found = (read_entry(path) for path in self.folder.glob("v_*.json"))
        return sorted((entry for entry in found if entry), key=lambda entry: folded(entry.name))

    def find(self, name_or_id: str) -> SavedVoice:
        """The entry with that id, else with that name in any capitals."""
        if VOICE_ID.fullmatch(name_or_id):
            entry = read_entry(self._path(name_or_id, "json"))
            if entry:
                return entry
        wanted = folded(name_or_id)
        for entry in self.voices():
            if folded(entry.name) == wanted:
                return entry
        raise RequestError(
            "voice_unknown", f"There is no saved voice {name_or_id!r}.", name=str(name_or_id)[:MAX_NAME]
        )

    def load(self, name_or_id: str) -> Voice | Reference:
        """What a request's `voice` takes. A voice that another model prepared is given as its clip.

        Raises RequestError("voice_file_bad") for a damaged file.
        """
        kept = self._kept(self.find(name_or_id))
        return kept.voice if not self.model or kept.model == self.model else kept.reference()

    def sound(self, name_or_id: str) -> tuple[Int16Audio, int]:
        """What is heard of the voice: (n,) samples and their rate in Hz."""
        kept = self._kept(self.find(name_or_id))
        return kept.pcm, kept.sample_rate

    def wav(self, name_or_id: str) -> bytes:
        """`sound` as a WAV file."""
        return self._kept(self.find(name_or_id)).wav()

    # ----------------------------------------------------------------------------------------------- changing
    def check_new(self, name: str) -> None:
        """Raise what `save` would say against this name, before a clip is prepared for nothing."""
        self._require_open()
        self._require_free(checked_name(name))

    def save(self, name: str, voice: Voice, clip: PreparedClip) -> SavedVoice:
        """Keep a prepared voice and its sound. Raises RequestError voice_name_bad, voice_name_taken,
        transcript_too_long, voices_full.
        """
        pcm = (np.clip(clip.samples, -1.0, 1.0) * 32767).round().astype(np.int16)
        checked_transcript(voice.transcript)
        kept = KeptVoice(checked_name(name), voice, pcm, clip.sample_rate, self.model)
        with self._lock:
            self._require_open()
            self._require_free(kept.name)
            return self._keep(kept)

    def rename(self, name_or_id: str, name: str) -> SavedVoice:
        """Raises RequestError voice_name_bad, voice_name_taken."""
        wanted = checked_name(name)
        with self._lock:
            self._require_open()
            entry = self.find(name_or_id)
            self._require_free(wanted, but=entry.id)
            return self._write_entry(replace(entry, name=wanted))

    def set_transcript(self, name_or_id: str, transcript: str) -> SavedVoice:
        """Put right what is said in the voice's clip; "" for unknown. Raises RequestError("transcript_too_long")."""
        with self._lock:
            self._require_open()
            return self._write_entry(
                replace(self.find(name_or_id), transcript=checked_transcript(transcript))
            )

    def delete(self, name_or_id: str) -> None:
        """Remove a voice for good."""
        with self._lock:
            self._require_open()
            entry = self.find(name_or_id)
            try:
                # The entry first: a file of tensors without one is nobody's, the other way round it would be a fault.
                self._path(entry.id, "json").unlink()
                self._path(entry.id, "safetensors").unlink(missing_ok=True)
            except OSError as error:
                raise self._not_writable(error) from error

    def export(self, name_or_id: str) -> bytes:
        """One file with everything, for `restore` here or elsewhere."""
        self._require_open()
        entry = self.find(name_or_id)
        return pack(self._kept(entry))

    def restore(self, data: bytes, name: str = "") -> SavedVoice:
        """Take in an exported voice, under `name` or its own; a number is added to one that is taken.

        Raises RequestError voice_file_bad, voice_file_too_large, voice_name_bad, voices_full.
        """
        self._require_open()
        kept = unpack(data)
        wanted = checked_name(name or kept.name)
        with self._lock:
            return self._keep(replace(kept, name=self._free_name(wanted)))

    # ------------------------------------------------------------------------------------------------ the files
    def _keep(self, kept: KeptVoice) -> SavedVoice:
        if len(self.voices()) >= MAX_VOICES:
            raise RequestError(
                "voices_full", f"The library is full ({MAX_VOICES} voices); delete one.", limit=MAX_VOICES
            )
        data = pack(kept)
        entry = SavedVoice(
            id=f"v_{secrets.token_hex(6)}",
            name=kept.name,
            transcript=kept.voice.transcript,
            created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            seconds=round(kept.seconds, 2),
            sample_rate=kept.sample_rate,
            content_hash=tensor_hash(data),
            model=kept.model,
            warnings=kept.voice.report.warnings if kept.voice.report else (),
        )
        self._write(self._path(entry.id, "safetensors"), data)
        return self._write_entry(entry)

    def _write_entry(self, entry: SavedVoice) -> SavedVoice:
        self._write(self._path(entry.id, "json"), entry_bytes(entry))
        return entry

    def _kept(self, entry: SavedVoice) -> KeptVoice:
        """What the voice's file holds, called and transcribed as its entry says."""
        kept = self._file(entry)
        voice = replace(kept.voice, transcript=entry.transcript)
        return replace(kept, name=entry.name, voice=voice)

    def _file(self, entry: SavedVoice) -> KeptVoice:
        key = (entry.id, entry.content_hash)
        with self._lock:
            if key in self._cache:
                self._cache.move_to_end(key)
                return self._cache[key]
        try:
            data = self._path(entry.id, "safetensors").read_bytes()
        except OSError as error:
            raise voice_file_bad() from error
        kept = unpack(data)
        if tensor_hash(data) != entry.content_hash:
            raise voice_file_bad()
        with self._lock:
            self._cache[key] = kept
            while len(self._cache) > _KEPT_IN_MEMORY:
                self._cache.popitem(last=False)
        return kept

    def _path(self, voice_id: str, ending: str) -> Path:
        return self.folder / f"{voice_id}.{ending}"

    def _write(self, path: Path, data: bytes) -> None:
        partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with partial.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())  # a name must never point to a file that a power cut left empty
            partial.replace(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                partial.unlink()
            raise self._not_writable(error) from error

    def _not_writable(self, error: OSError) -> EngineError:
        return EngineError(
            "voices_not_writable",
            f"Voices cannot be saved in {self.folder} ({error.strerror}); check permissions and free space.",
            folder=str(self.folder),
        )

    # ------------------------------------------------------------------------------------------------- rules
    def _require_open(self) -> None:
        if self.locked:
            raise RequestError("voices_locked", "The voices of this studio cannot be changed from here.")

    def _require_free(self, name: str, but: str = "") -> None:
        if any(folded(entry.name) == folded(name) and entry.id != but for entry in self.voices()):
            raise RequestError("voice_name_taken", f"There is a voice {name!r} already.", name=name)

    def _free_name(self, name: str) -> str:
        taken = {folded(entry.name) for entry in self.voices()}
        free, number = name, 2
        while folded(free) in taken:
            suffix = f" ({number})"
            free, number = name[: MAX_NAME - len(suffix)] + suffix, number + 1
        return free


async def save_clip(pool: VoicePool, library: VoiceLibrary, name: str, reference: Reference) -> SavedVoice:
    """Prepare a clip as a request would, and keep it under `name`. Raises what the two raise, the name first."""
    from inference.frontend.audio import decode_audio
    from inference.frontend.reference import prepare_clip

    def heard() -> PreparedClip:
        library.check_new(name)
        return prepare_clip(decode_audio(reference.audio), bool(reference.transcript.strip()))

    clip = await asyncio.to_thread(heard)
    voice = await pool.voice(reference)
    return await asyncio.to_thread(library.save, name, voice, clip)
