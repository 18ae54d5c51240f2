"""The library of saved voices: what goes in comes out, names, broken files, two at once."""

from __future__ import annotations

import asyncio
import io
import json
import wave
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from inference.types import EngineError, Reference, RequestError, SynthesisError, Voice
from inference.voice_file import MAX_FILE_BYTES, KeptVoice, pack, unpack
from inference.voices import VoiceLibrary, save_clip
from tests.make_clips import silence, speech, wav_bytes
from tests.voice_support import RATE, VoiceMaker, made_voice, prepared_clip

pytestmark = pytest.mark.unit


@pytest.fixture
def library(tmp_path: Path) -> VoiceLibrary:
    return VoiceLibrary(tmp_path / "voices")


def same(first: Voice, second: Voice) -> bool:
    arrays = [(getattr(first, name), getattr(second, name)) for name in ("speech_tokens", "mel", "speaker")]
    return all(np.array_equal(*pair) for pair in arrays) and first.transcript == second.transcript


def code_of(action: object) -> str:
    with pytest.raises(SynthesisError) as caught:
        action()  # type: ignore[operator]
    return caught.value.code


def test_a_voice_comes_back_as_it_was_saved(library: VoiceLibrary, tmp_path: Path) -> None:
    assert library.voices() == []
    voice, clip = made_voice("Hello there."), prepared_clip()
    entry = library.save("  Anna   Maria ", voice, clip)
    assert entry.name == "Anna Maria" and entry.transcript == "Hello there."
    assert entry.seconds == pytest.approx(len(clip.samples) / RATE, abs=0.01)
    fresh = VoiceLibrary(tmp_path / "voices")  # nothing but the files
    assert fresh.voices() == [entry]
    for name in (entry.id, "Anna Maria", "anna maria"):
        loaded = fresh.load(name)
        assert isinstance(loaded, Voice) and same(loaded, voice)
    assert loaded.report == voice.report and loaded.content_hash == voice.content_hash
    with wave.open(io.BytesIO(fresh.wav("Anna Maria"))) as sound:
        heard = np.frombuffer(sound.readframes(sound.getnframes()), np.int16)
    np.testing.assert_allclose(heard / 32767, clip.samples, atol=1 / 32767)


def test_names_are_found_in_any_capitals_and_taken_once(library: VoiceLibrary) -> None:
    anna = library.save("Anna", made_voice(), prepared_clip())
    library.save("小安", made_voice(), prepared_clip())
    assert [entry.name for entry in library.voices()] == ["Anna", "小安"]
    assert code_of(lambda: library.save("ＡＮＮＡ", made_voice(), prepared_clip())) == "voice_name_taken"
    assert code_of(lambda: library.rename("小安", "anna")) == "voice_name_taken"
    assert library.rename("anna", "ANNA").id == anna.id  # its own name in other capitals
    for nonsense in ("", "   ", "x" * 61, "a\x00b", "a\u202eb", anna.id):
        assert code_of(lambda name=nonsense: library.rename("ANNA", name)) == "voice_name_bad"
    for unknown in ("nobody", "", "v_000000000000", "../../etc/passwd", "v_000000000000/../x"):
        assert code_of(lambda name=unknown: library.load(name)) == "voice_unknown"


def test_rename_transcript_and_delete(library: VoiceLibrary) -> None:
    entry = library.save("Anna", made_voice("Wrong."), prepared_clip())
    library.rename(entry.id, "Berta")
    library.set_transcript("Berta", " Right. ")
    loaded = library.load("berta")
    assert isinstance(loaded, Voice) and loaded.transcript == "Right."
    assert library.find(entry.id).content_hash == entry.content_hash
    assert code_of(lambda: library.set_transcript("Berta", "x" * 1001)) == "transcript_too_long"
    library.delete("Berta")
    assert library.voices() == [] and list(library.folder.iterdir()) == []
    assert code_of(lambda: library.load(entry.id)) == "voice_unknown"


def test_export_and_import_keep_all_but_the_name(library: VoiceLibrary, tmp_path: Path) -> None:
    entry = library.save("Anna", made_voice("Before."), prepared_clip())
    library.rename("Anna", "Anna the Second")
    library.set_transcript(entry.id, "After.")
    data = library.export(entry.id)
    other = VoiceLibrary(tmp_path / "elsewhere")
    taken_in = other.restore(data)
    assert (taken_in.name, taken_in.transcript) == ("Anna the Second", "After.")
    assert taken_in.content_hash == entry.content_hash
    assert same(other.load(taken_in.id), library.load(entry.id))  # type: ignore[arg-type]
    assert other.restore(data).name == "Anna the Second (2)"
    assert other.restore(data, name="Carla").name == "Carla"


def test_a_voice_of_another_model_is_given_as_its_clip(tmp_path: Path) -> None:
    for number in (1, 2):
        folder = tmp_path / f"model{number}"
        folder.mkdir()
        for network in ("campplus.onnx", "speech_tokenizer_v2.onnx"):
            (folder / network).write_bytes(bytes([number]) * 100)
    first, second = (VoiceLibrary(tmp_path / "voices", tmp_path / f"model{number}") for number in (1, 2))
    assert first.model and first.model != second.model
    entry = first.save("Anna", made_voice("Said."), prepared_clip())
    assert isinstance(first.load("Anna"), Voice)
    given = second.load("Anna")
    assert (
        isinstance(given, Reference) and given.audio == second.wav(entry.id) and given.transcript == "Said."
    )


def test_broken_files_are_left_out_or_told(library: VoiceLibrary) -> None:
    entry = library.save("Anna", made_voice(), prepared_clip())
    (library.folder / "v_0123456789ab.json").write_text("{not json")
    (library.folder / "v_ffffffffffff.json").write_text(json.dumps({"id": "v_000000000000"}))
    (library.folder / ".v_half.json.1234.part").write_text("{")
    assert [found.name for found in library.voices()] == ["Anna"]
    tensors = library.folder / f"{entry.id}.safetensors"
    data = bytearray(tensors.read_bytes())
    data[-3] ^= 1  # one bit on the disk
    tensors.write_bytes(data)
    assert code_of(lambda: library.load("Anna")) == "voice_file_bad"
    tensors.unlink()
    assert code_of(lambda: library.load("Anna")) == "voice_file_bad"


def kept(**changes: object) -> KeptVoice:
    voice = replace(made_voice(), **{key: value for key, value in changes.items() if key != "pcm"})  # type: ignore[arg-type]
    pcm = changes.get("pcm", (prepared_clip().samples * 32767).astype(np.int16))
    return KeptVoice("Anna", voice, pcm, RATE, "")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 8,
        b"RIFF" + bytes(100),
        bytes(8) + b"{}",
        pack(kept())[:-10],
        pack(kept()).replace(b"cosyvoice-studio-voice", b"cosyvoice-studio-other"),
        pack(kept(speech_tokens=np.full(75, 6561, np.int32))),
        pack(kept(speech_tokens=np.full(75, -1, np.int32))),
        pack(kept(mel=np.zeros((149, 80), np.float32))),
        pack(kept(mel=np.full((150, 80), np.nan, np.float32))),
        pack(kept(speaker=np.zeros(64, np.float32))),
        pack(kept(pcm=np.zeros(0, np.int16))),
        pack(kept(pcm=np.zeros(RATE * 40, np.int16))),
        pack(kept(transcript="x" * 1001)),
    ],
    ids=lambda value: f"{len(value)} bytes",
)
def test_files_that_are_no_voice_are_refused(library: VoiceLibrary, data: bytes) -> None:
    assert code_of(lambda: library.restore(data)) == "voice_file_bad"
    assert library.voices() == []


def test_every_cut_of_a_file_is_refused_without_another_error(library: VoiceLibrary) -> None:
    data = pack(kept())
    for length in [*range(0, 2000, 37), *range(2000, len(data), len(data) // 20)]:
        with pytest.raises(RequestError):
            unpack(data[:length])
    assert code_of(lambda: library.restore(bytes(MAX_FILE_BYTES + 1))) == "voice_file_too_large"


def test_a_locked_library_is_only_used(tmp_path: Path) -> None:
    open_library = VoiceLibrary(tmp_path)
    entry = open_library.save("Anna", made_voice(), prepared_clip())
    data = open_library.export("Anna")
    locked = VoiceLibrary(tmp_path, locked=True)
    assert isinstance(locked.load("Anna"), Voice) and locked.wav("Anna")
    for action in (
        lambda: locked.save("B", made_voice(), prepared_clip()),
        lambda: locked.rename("Anna", "B"),
        lambda: locked.set_transcript("Anna", "B"),
        lambda: locked.delete("Anna"),
        lambda: locked.export("Anna"),
        lambda: locked.restore(data),
    ):
        assert code_of(action) == "voices_locked"
    assert locked.voices() == [entry]


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "voices").write_text("a file where the folder should be")
    with pytest.raises(EngineError) as caught:
        VoiceLibrary(tmp_path / "voices").save("Anna", made_voice(), prepared_clip())
    assert caught.value.code == "voices_not_writable"


def test_many_at_once_give_each_name_to_one(library: VoiceLibrary) -> None:
    def save(number: int) -> bool:
        try:
            library.save(f"Voice {number % 4}", made_voice(seed=number), prepared_clip())
            return True
        except RequestError as error:
            assert error.code == "voice_name_taken"
            return False

    with ThreadPoolExecutor(8) as executor:
        assert sum(executor.map(save, range(16))) == 4
    assert len(library.voices()) == 4 == len({entry.id for entry in library.voices()})


def test_a_clip_is_cut_and_kept_as_it_is_heard(library: VoiceLibrary) -> None:
    maker = VoiceMaker()
    long = Reference(wav_bytes(speech(25.0, 16000), 16000), "")
    entry = asyncio.run(save_clip(maker, library, "Long", long))
    assert 3.0 <= entry.seconds <= 11.0 and maker.clips == [long]


def test_a_bad_name_or_clip_costs_no_model(library: VoiceLibrary) -> None:
    maker = VoiceMaker()
    good = Reference(wav_bytes(speech(4.0, 16000), 16000))
    silent = Reference(wav_bytes(silence(4.0, 16000), 16000))
    for name, clip, code in (("", good, "voice_name_bad"), ("Anna", silent, "reference_silent")):
        assert (
            code_of(lambda name=name, clip=clip: asyncio.run(save_clip(maker, library, name, clip))) == code
        )
    assert maker.clips == [] and library.voices() == []
