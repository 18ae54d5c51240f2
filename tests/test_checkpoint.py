"""Model folders: loading what is right, and one sentence that names the file for what is not."""

from __future__ import annotations

import json
import os
import pickle
import random
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from inference.checkpoint import check_folder, describe_folder, load_folder
from inference.frontend.tokenizer import SPECIAL_TOKENS
from inference.models.config import ModelConfig
from inference.models.flow import FlowModel
from inference.models.language_model import LanguageModel
from inference.models.vocoder import Vocoder, fold_weight_norm
from inference.tensor_files import read_any
from inference.types import CheckpointError
from tests.golden_data import ROOT, reference_folder
from tests.model_folder import TINY_CONFIG

State = dict[str, Tensor]


@pytest.fixture
def folder(random_model_dir: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    return Path(shutil.copytree(random_model_dir, tmp_path / "model"))


def rewrite(path: Path, change: Callable[[State], object]) -> None:
    state = torch.load(path, weights_only=True)
    change(state)
    torch.save(state, path)


def refused(folder: Path) -> CheckpointError:
    """The error of loading; `check_folder` has to find it too."""
    with pytest.raises(CheckpointError) as caught:
        load_folder(folder)
    error = caught.value
    assert error.code in [finding.code for finding in check_folder(folder)]
    assert "\n" not in error.message and len(error.message) < 400
    return error


def parameters(folder: Path) -> State:
    loaded = load_folder(folder)
    modules = {"llm": loaded.language_model, "flow": loaded.flow, "hift": loaded.vocoder}
    return {
        f"{stem}:{key}": value
        for stem, module in modules.items()
        for key, value in module.state_dict().items()
    }


@pytest.mark.unit
def test_a_whole_folder_loads(random_model_dir: Path) -> None:
    loaded = load_folder(str(random_model_dir))
    assert loaded.config == TINY_CONFIG
    assert (
        loaded.speaker_encoder.is_file()
        and loaded.speech_tokenizer.is_file()
        and loaded.text_tokenizer.is_dir()
    )
    assert loaded.presets["someone"]["embedding"].shape == (1, 192)
    for module in (loaded.language_model, loaded.flow, loaded.vocoder):
        assert not module.training
        for value in [*module.parameters(), *module.buffers()]:
            assert value.device.type == "cpu" and value.dtype == torch.float32 and not value.requires_grad
    stored = torch.load(random_model_dir / "flow.pt", weights_only=True)
    assert all(torch.equal(value, stored[key]) for key, value in loaded.flow.state_dict().items())
    folded = fold_weight_norm(torch.load(random_model_dir / "hift.pt", weights_only=True))
    assert torch.equal(loaded.vocoder.state_dict()["conv_pre.weight"], folded["conv_pre.weight"])
    assert check_folder(random_model_dir) == []
    assert any("preset speakers: someone" in line for line in describe_folder(random_model_dir))


@pytest.mark.unit
def test_loading_imports_no_compiler(random_model_dir: Path) -> None:
    """It takes a second and a hundred megabytes, and is only wanted for values that the file replaces."""
    code = (
        "import sys; from inference.checkpoint import load_folder; load_folder(sys.argv[1]);"
        "print([name for name in ('torch._dynamo', 'sympy') if name in sys.modules])"
    )
    command = [sys.executable, "-c", code, str(random_model_dir)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[]", done.stderr


def test_bookkeeping_and_the_unused_head_are_dropped(folder: Path, random_model_dir: Path) -> None:
    rewrite(folder / "llm.pt", lambda state: state.update(epoch=3, step=torch.tensor(12)))
    rewrite(folder / "flow.pt", lambda state: state.update(epoch=3, step=12))
    rewrite(folder / "llm.pt", lambda state: state.pop("llm.model.lm_head.weight"))
    found, expected = parameters(folder), parameters(random_model_dir)
    assert found.keys() == expected.keys() and all(torch.equal(found[key], expected[key]) for key in found)


@pytest.mark.unit
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_become_float32(folder: Path, random_model_dir: Path, dtype: torch.dtype) -> None:
    for stem in ("llm", "flow", "hift"):
        rewrite(folder / f"{stem}.pt", lambda s: s.update({key: value.to(dtype) for key, value in s.items()}))
    found, expected = parameters(folder), parameters(random_model_dir)
    for key, value in found.items():
        assert value.dtype == torch.float32
        assert torch.allclose(value, expected[key], rtol=0.02, atol=1e-6), key


@pytest.mark.unit
@pytest.mark.parametrize(
    "kind", ["safetensors", "deflate", "legacy", "gan prefix", "old norm names", "folded"]
)
def test_other_containers_hold_the_same(folder: Path, random_model_dir: Path, kind: str) -> None:
    for stem in ("llm", "flow", "hift"):
        path = folder / f"{stem}.pt"
        state = torch.load(path, weights_only=True)
        if kind == "safetensors":
            from safetensors.torch import save_file

            save_file({key: value.clone() for key, value in state.items()}, path.with_suffix(".safetensors"))
            path.unlink()
        elif kind == "deflate":
            plain = path.rename(path.with_suffix(".plain"))
            with zipfile.ZipFile(plain) as source, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as target:
                for name in source.namelist():
                    target.writestr(name, source.read(name))
        elif kind == "legacy":
            torch.save(state, path, _use_new_zipfile_serialization=False)
        elif stem == "hift":
            torch.save(respelled(state, kind), path)
    found, expected = parameters(folder), parameters(random_model_dir)
    assert found.keys() == expected.keys() and all(torch.equal(found[key], expected[key]) for key in found)


def respelled(state: State, kind: str) -> State:
    if kind == "gan prefix":
        return {f"generator.{key}": value for key, value in state.items()}
    if kind == "folded":
        return fold_weight_norm(state)
    ends = {
        ".parametrizations.weight.original0": ".weight_g",
        ".parametrizations.weight.original1": ".weight_v",
    }
    renamed = {}
    for key, value in state.items():
        for new, old in ends.items():
            key = key.replace(new, old)
        renamed[key] = value
    return renamed


@pytest.mark.unit
@pytest.mark.parametrize(
    "name",
    ["llm.pt", "flow.pt", "hift.pt", "campplus.onnx", "speech_tokenizer_v2.onnx", "CosyVoice-BlankEN/config.json",
     "CosyVoice-BlankEN/vocab.json", "CosyVoice-BlankEN/merges.txt"],
)  # fmt: skip
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    error = refused(folder)
    assert error.code == "checkpoint_missing_file"
    assert name.rpartition("/")[2] in error.message and "download" in error.message


@pytest.mark.unit
@pytest.mark.parametrize("extra", [0, 1])
def test_a_text_token_without_an_embedding_is_refused(folder: Path, extra: int) -> None:
    path = folder / "CosyVoice-BlankEN" / "vocab.json"
    vocabulary = json.loads(path.read_text(encoding="utf-8"))
    room = TINY_CONFIG.language_model.vocab_size - len(vocabulary) - len(SPECIAL_TOKENS)
    vocabulary |= {f"new{number}": len(vocabulary) + number for number in range(room + extra)}
    path.write_text(json.dumps(vocabulary), encoding="utf-8")
    if not extra:
        assert load_folder(folder).config == TINY_CONFIG
        return
    error = refused(folder)
    assert error.code == "checkpoint_vocabulary"
    assert "vocab.json has 1025" in error.message and "1024" in error.message and "download" in error.message


@pytest.mark.unit
@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
@pytest.mark.parametrize("stem", ["llm", "flow", "hift"])
def test_a_truncated_file_is_named(folder: Path, stem: str, share: float) -> None:
    path = folder / f"{stem}.pt"
    os.truncate(path, int(path.stat().st_size * share))
    error = refused(folder)
    assert error.code == "checkpoint_truncated"
    assert path.name in error.message and "download" in error.message


@pytest.mark.unit
def test_a_truncated_safetensors_is_named(folder: Path) -> None:
    from safetensors.torch import save_file

    state = torch.load(folder / "flow.pt", weights_only=True)
    twin = folder / "flow.safetensors"
    save_file(state, twin)
    os.truncate(twin, twin.stat().st_size // 2)
    error = refused(folder)
    assert error.code == "checkpoint_truncated" and "flow.safetensors" in error.message


@pytest.mark.unit
def test_any_bytes_are_refused_in_the_same_way(tmp_path: Path) -> None:
    path = tmp_path / "flow.pt"
    for seed in range(400):
        path.write_bytes(b"\x80\x02" * (seed % 2) + random.Random(seed).randbytes(5000))
        with pytest.raises(CheckpointError) as caught:
            read_any(path)
        assert caught.value.code == "checkpoint_unreadable"


class Harmful:
    def __reduce__(self) -> tuple[object, ...]:
        return (os.mkdir, ("harmed",))


@pytest.mark.unit
@pytest.mark.parametrize("kind", ["noise", "text", "pickle", "list", "empty dict", "lfs"])
def test_what_is_no_checkpoint_is_refused(
    folder: Path, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = folder / "flow.pt"
    contents = {
        "noise": random.Random(5).randbytes(5000),
        "text": b"<!DOCTYPE html><title>404</title>" * 9,
        "pickle": pickle.dumps({"a": Harmful()}, protocol=2),
        "lfs": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 450575567\n",
    }
    if kind in contents:
        path.write_bytes(contents[kind])
    else:
        torch.save([torch.zeros(3)] if kind == "list" else {}, path)
    error = refused(folder)
    assert error.code == ("checkpoint_lfs_pointer" if kind == "lfs" else "checkpoint_unreadable")
    assert "flow.pt" in error.message
    assert not (tmp_path / "harmed").exists()


@pytest.mark.unit
@pytest.mark.parametrize(
    ("file", "key"),
    [
        ("llm.pt", "llm_decoder.bias"),
        ("flow.pt", "encoder.up_layer.conv.weight"),
        ("hift.pt", "m_source.l_linear.weight"),
        ("hift.pt", "conv_pre.bias"),
    ],
)
def test_missing_extra_and_wrong_tensors_are_named(folder: Path, file: str, key: str) -> None:
    original = (folder / file).read_bytes()
    changes: dict[str, Callable[[State], object]] = {
        "checkpoint_missing_key": lambda state: state.pop(key),
        "checkpoint_extra_key": lambda state: state.update({f"{key}.more": torch.zeros(2)}),
        "checkpoint_wrong_shape": lambda state: state.update({key: torch.zeros(3, 2)}),
        "checkpoint_wrong_dtype": lambda state: state.update(
            {key: torch.zeros(state[key].shape, dtype=torch.int32)}
        ),
    }
    for code, change in changes.items():
        (folder / file).write_bytes(original)
        rewrite(folder / file, change)
        error = refused(folder)
        assert error.code == code
        assert file in error.message and key in error.message


@pytest.mark.unit
@pytest.mark.parametrize("half", ["original0", "original1"])
def test_a_broken_weight_norm_is_named(folder: Path, half: str) -> None:
    key = f"conv_post.parametrizations.weight.{half}"
    original = (folder / "hift.pt").read_bytes()
    rewrite(folder / "hift.pt", lambda state: state.pop(key))
    assert "conv_post" in refused(folder).message
    (folder / "hift.pt").write_bytes(original)
    rewrite(folder / "hift.pt", lambda state: state.update({key: torch.ones(5, 3, 2)}))
    assert refused(folder).code == "checkpoint_wrong_shape"


@pytest.mark.unit
def test_values_that_are_not_numbers_are_found(folder: Path) -> None:
    rewrite(folder / "flow.pt", lambda state: state["encoder_proj.bias"].fill_(float("nan")))
    assert [finding.code for finding in check_folder(folder)] == ["checkpoint_not_finite"]


@pytest.mark.unit
def test_check_tells_everything_at_once(folder: Path) -> None:
    (folder / "campplus.onnx").unlink()
    os.truncate(folder / "llm.pt", 100)
    rewrite(folder / "hift.pt", lambda state: state.pop("conv_pre.bias"))
    codes = [finding.code for finding in check_folder(folder)]
    assert codes == ["checkpoint_missing_file", "checkpoint_truncated", "checkpoint_missing_key"]


@pytest.mark.unit
@pytest.mark.parametrize(
    ("name", "said"),
    [("cosyvoice.yaml", "CosyVoice 1"), ("cosyvoice3.yaml", "CosyVoice 3"), ("x", "no cosyvoice2.yaml")],
)
def test_other_folders_are_refused(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / name).write_text("a: 1", encoding="utf-8")
    error = refused(tmp_path)
    assert error.code == "checkpoint_not_cosyvoice2" and said in error.message


@pytest.mark.unit
def test_no_folder_at_all(tmp_path: Path) -> None:
    assert refused(tmp_path / "nowhere").code == "checkpoint_no_folder"


@pytest.mark.unit
@pytest.mark.parametrize(
    "content",
    [
        [1],
        {"a": 3},
        {"a": {"embedding": torch.zeros(1, 5)}},
        {"a": {"embedding": torch.full((1, 192), float("nan"))}},
    ],
)
def test_unusable_presets_are_refused(folder: Path, content: object) -> None:
    torch.save(content, folder / "spk2info.pt")
    error = refused(folder)
    assert error.code == "checkpoint_bad_presets" and "spk2info.pt" in error.message


@pytest.mark.unit
def test_presets_are_optional(folder: Path) -> None:
    (folder / "spk2info.pt").unlink()
    assert load_folder(folder).presets == {}


@pytest.mark.golden
def test_the_full_manifest_fits_our_modules() -> None:
    source = reference_folder() / "manifest.json"
    if not source.is_file():
        pytest.skip(f"no {source}")
    files = json.loads(source.read_text(encoding="utf-8"))["files"]
    config = ModelConfig()
    with torch.device("meta"):
        modules: dict[str, nn.Module] = {
            "llm.pt": LanguageModel(config.language_model),
            "flow.pt": FlowModel(config.flow),
            "hift.pt": Vocoder(config.vocoder),
        }
    for file, module in modules.items():
        state = {row["key"]: torch.empty(row["shape"], device="meta") for row in files[file]["tensors"]}
        state.pop("llm.model.lm_head.weight", None)
        if file == "hift.pt":
            state = fold_weight_norm(state)
        expected = {key: value.shape for key, value in module.state_dict().items()}
        assert {key: value.shape for key, value in state.items()} == expected
        assert all(row["dtype"] == "float32" for row in files[file]["tensors"])
