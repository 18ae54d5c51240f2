"""Configuration files: read as data, checked, written and read back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.model_yaml import dump, dump_config_json, model_config, read_model_config
from inference.models.config import ModelConfig
from inference.restricted_yaml import Document, parse_yaml, read_yaml
from inference.types import CheckpointError
from tests.golden_data import reference_folder
from tests.model_folder import TINY_CONFIG
from training.nano import NANO

pytestmark = pytest.mark.unit


def build(yaml_text: str, qwen_text: str) -> ModelConfig:
    return model_config(
        parse_yaml(yaml_text, "cosyvoice2.yaml"), Document("config.json", json.loads(qwen_text))
    )


def public(old: str = "", new: str = "") -> str:
    """The public sizes as a file, with one passage changed."""
    text = dump(ModelConfig())
    assert old in text
    return text.replace(old, new, 1) if old else text


def value_of(yaml_text: str, path: str = "x") -> object:
    return parse_yaml(yaml_text, "f.yaml").get(path)


@pytest.mark.golden
def test_the_public_files_give_the_public_sizes() -> None:
    folder = reference_folder()
    if not (folder / "cosyvoice2.yaml").is_file():
        pytest.skip(f"no cosyvoice2.yaml in {folder}")
    assert read_model_config(folder) == ModelConfig()


@pytest.mark.parametrize("config", [ModelConfig(), TINY_CONFIG, NANO], ids=["public", "tiny", "nano"])
def test_what_is_written_reads_back_the_same(config: ModelConfig) -> None:
    changed = replace(
        config,
        flow=replace(
            config.flow, n_timesteps=6, cfg_rate=0.5, encoder=replace(config.flow.encoder, num_up_blocks=2)
        ),
    )
    for sizes in (config, changed):
        assert build(dump(sizes), dump_config_json(sizes)) == sizes


@pytest.mark.parametrize(
    "text",
    [
        "x: !apply:os.system ['touch {file}']",
        "x: !new:subprocess.Popen {{args: ['touch', '{file}']}}",
        "x: !name:os.system",
        "x: !apply:pathlib.Path.touch [!new:pathlib.Path ['{file}']]",
        "x: !!python/object/apply:os.system ['touch {file}']",
        "x: !ref <y.__class__>\ny: 1",
    ],
)
def test_tags_are_never_executed(text: str, tmp_path: Path) -> None:
    target = tmp_path / "made"
    try:
        document = parse_yaml(
            text.replace("{file}", str(target)).replace("{{", "{").replace("}}", "}"), "f.yaml"
        )
        document.get("x")
    except CheckpointError as error:
        assert error.code in ("checkpoint_bad_yaml", "checkpoint_bad_value")
    assert not target.exists()


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("<a> * <b>", 50),
        ("<a>", 25),
        ("<a>*<b>+1", 51),
        ("(<a> + 1) * 2", 52),
        ("<a> - -5", 30),
        ("<a> / 2", 12.5),
        ("<a> // 2", 12),
        ("1.5e2 + 0", 150.0),
        ("<deep.er[est]> * 2", 14),
        ("<chain> + 1", 26),
        ("2 - 3 - 4", -5),
    ],
)
def test_references_are_arithmetic(expression: str, expected: float) -> None:
    text = f"a: 25\nb: 2\nchain: !ref <a>\ndeep: {{er: {{est: 7}}}}\nx: !ref {expression}"
    assert value_of(text) == expected


def test_a_reference_alone_can_be_any_value() -> None:
    assert value_of("a: {b: [1, 2]}\nx: !ref <a>", "x.b") == [1, 2]


@pytest.mark.parametrize(
    "expression",
    ["<x>", "<nobody>", "<a> *", "<a> + * 2", "<a> / 0", "<a> ** 9", "__import__('os')", "(<a>", "<word> * 2", "",
     "1e308 * 10", "9" * 400, "9" * 9000, "(" * 500 + "1" + ")" * 500, "-" * 60 + "(", "1 2"],
)  # fmt: skip
def test_other_references_are_refused(expression: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        parse_yaml(f"a: 1\nword: 'w'\nx: !ref {expression}", "f.yaml").number("x")
    assert caught.value.code == "checkpoint_bad_value"
    assert "f.yaml" in caught.value.message and "x" in str(caught.value.details["key"])


def test_mutual_references_end() -> None:
    with pytest.raises(CheckpointError):
        value_of("x: !ref <y>\ny: !ref <x>")


def test_a_bomb_of_aliases_costs_nothing() -> None:
    rows = ["a0: &a0 [1, 2]"] + [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 40)]
    with pytest.raises(CheckpointError) as caught:
        parse_yaml("\n".join(rows), "f.yaml").number("a39")
    assert len(caught.value.message) < 300


@pytest.mark.parametrize(
    ("old", "new", "code", "key"),
    [
        ("token_frame_rate: 25", "", "checkpoint_missing_value", "token_frame_rate"),
        ("    base_channels: 512\n", "", "checkpoint_missing_value", "hift.base_channels"),
        ("num_blocks: 6", "num_blocks: many", "checkpoint_bad_value", "flow.encoder.num_blocks"),
        ("num_blocks: 6", "num_blocks: 6.5", "checkpoint_bad_value", "flow.encoder.num_blocks"),
        ("num_blocks: 6", "num_blocks: 999999999", "checkpoint_bad_value", "flow.encoder.num_blocks"),
        ("num_blocks: 6", "num_blocks: -1", "checkpoint_bad_value", "flow.encoder.num_blocks"),
        ("num_blocks: 6", "num_blocks: true", "checkpoint_bad_value", "flow.encoder.num_blocks"),
        ("top_p: 0.8", "top_p: .nan", "checkpoint_bad_value", "llm.sampling.top_p"),
        ("mix_ratio: [5, 15]", "mix_ratio: [5]", "checkpoint_bad_value", "llm.mix_ratio"),
        ("channels: [256]", "channels: [256, 256]", "checkpoint_bad_value", "flow.decoder.estimator.channels"),
        ("llm_input_size: 896", "llm_input_size: 512", "checkpoint_bad_value", "llm.llm_input_size"),
        ("upsample_rates: [8, 5, 3]", "upsample_rates: [8, 5, 4]", "checkpoint_bad_value", "hift.upsample_rates"),
        ("vocab_size: 6561", "vocab_size: 4096", "checkpoint_bad_value", "flow.vocab_size"),
        ("solver: 'euler'", "solver: 'heun'", "checkpoint_unsupported_value", "flow.decoder.cfm_params.content.solver"),
        ("sample_rate: 24000", "sample_rate: 22050", "checkpoint_unsupported_value", "sample_rate"),
        ("macaron_style: False", "macaron_style: True", "checkpoint_unsupported_value", "flow.encoder.macaron_style"),
        ("fmax: 8000", "fmax: null", "checkpoint_unsupported_value", "feat_extractor.fmax"),
        ("llm: !new:cosyvoice.llm.llm.Qwen2LM", "llm: !evil:x", "checkpoint_bad_yaml", None),
        ("flow: ", "flow: [", "checkpoint_bad_yaml", None),
    ],
)  # fmt: skip
def test_a_wrong_value_is_named(old: str, new: str, code: str, key: str | None) -> None:
    with pytest.raises(CheckpointError) as caught:
        build(public(old, new), dump_config_json(ModelConfig()))
    assert caught.value.code == code
    assert "cosyvoice2.yaml" in caught.value.message
    assert caught.value.details.get("key") == key
    if key is not None:
        assert key in caught.value.message


def test_newer_names_of_qwen_values_are_read() -> None:
    qwen = json.loads(dump_config_json(ModelConfig()))
    theta = qwen.pop("rope_theta")
    qwen["rope_parameters"] = {"rope_theta": theta, "rope_type": "default"}
    assert build(public(), json.dumps(qwen)) == ModelConfig()


@pytest.mark.parametrize(
    "change", [{"hidden_act": "gelu"}, {"num_attention_heads": 13}, {"vocab_size": None}]
)
def test_a_wrong_qwen_config_is_named(change: dict[str, object]) -> None:
    qwen = json.loads(dump_config_json(ModelConfig())) | change
    with pytest.raises(CheckpointError, match="config.json") as caught:
        build(public(), json.dumps(qwen))
    assert next(iter(change)) in caught.value.message


def test_files_that_are_no_configuration(tmp_path: Path) -> None:
    path = tmp_path / "cosyvoice2.yaml"
    with pytest.raises(CheckpointError) as caught:
        read_yaml(path)
    assert caught.value.code == "checkpoint_missing_file"
    for content in (
        b"",
        b"\xff\xfe\x00",
        b"just text",
        b"- 1\n- 2",
        b"a: " + b"[" * 3000,
        b"x" * 2_000_000,
        b"a:\n\t- b",
    ):
        path.write_bytes(content)
        with pytest.raises(CheckpointError) as caught:
            read_yaml(path)
        assert caught.value.code == "checkpoint_bad_yaml"
        assert "cosyvoice2.yaml" in caught.value.message and len(caught.value.message) < 300


@given(st.text(max_size=200))
def test_any_text_is_a_document_or_a_clear_error(text: str) -> None:
    try:
        parse_yaml(text, "f.yaml").number("x", 1.0)
    except CheckpointError as error:
        assert "f.yaml" in error.message


@given(st.text(alphabet="<>ab0123456789.+-*/() e", max_size=40))
def test_any_reference_is_a_number_or_a_clear_error(expression: str) -> None:
    try:
        parse_yaml("a: 3\nb: 4\nx: !ref " + json.dumps(expression), "f.yaml").number(
            "x", low=-1e300, high=1e300
        )
    except CheckpointError as error:
        assert error.code in ("checkpoint_bad_value", "checkpoint_missing_value")
