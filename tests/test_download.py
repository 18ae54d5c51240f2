"""Downloads from a real server that behaves as badly as networks do."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from inference import download as downloads
from inference.download import BUNDLED, download, find_model_dir, hubs, public_files
from inference.fetch import Hub, PublicFile, is_complete, part_of
from inference.types import CheckpointError, RequestError
from tests.golden_data import reference_folder
from tests.hub_server import CONTENT, FILES, VARIABLES, Server, running_server

pytestmark = pytest.mark.unit


@pytest.fixture
def server() -> Iterator[Server]:
    with running_server() as running:
        yield running


@pytest.fixture(autouse=True)
def _online(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def get(folder: Path, *sources: Hub, files: list[PublicFile] | None = None) -> Path:
    return download(folder, progress=False, files=files or FILES, sources=sources, pause=0.001)


def assert_whole(folder: Path) -> None:
    for path, content in CONTENT.items():
        assert (folder / path).read_bytes() == content
    assert list(folder.rglob("*.part")) == []


def test_everything_arrives_once(server: Server, tmp_path: Path) -> None:
    folder = get(tmp_path / "new", server.hub("good"))
    assert_whole(folder)
    asked = len(server.asked)
    get(folder, server.hub("good"))
    assert len(server.asked) == asked == len(CONTENT)


def test_a_broken_transfer_goes_on_where_it_stopped(server: Server, tmp_path: Path) -> None:
    server.cuts = 2
    assert_whole(get(tmp_path, server.hub("breaks")))
    assert server.asked_for("breaks/a.bin") == [None, "bytes=150000-", "bytes=225000-"]


def test_a_later_call_goes_on_too(server: Server, tmp_path: Path) -> None:
    server.cuts = 100
    with pytest.raises(CheckpointError) as caught:
        get(tmp_path, server.hub("breaks"), files=FILES[:1])
    assert caught.value.code == "download_failed" and "a.bin" in caught.value.message
    kept = part_of(tmp_path, FILES[0]).stat().st_size
    assert 150_000 < kept < 300_000 and not (tmp_path / "a.bin").exists()
    assert_whole(get(tmp_path, server.hub("good")))
    assert server.asked_for("good/a.bin") == [f"bytes={kept}-"]


def test_a_server_without_ranges_starts_again(server: Server, tmp_path: Path) -> None:
    server.cuts = 1
    assert_whole(get(tmp_path, server.hub("norange")))
    assert server.asked_for("norange/a.bin") == [None, "bytes=150000-"]


def test_redirects_keep_the_range(server: Server, tmp_path: Path) -> None:
    part_of(tmp_path, FILES[0]).write_bytes(CONTENT["a.bin"][:1000])
    assert_whole(get(tmp_path, server.hub("moved")))
    assert server.asked_for("good/a.bin") == ["bytes=1000-"]


@pytest.mark.parametrize("bad", ["missing", "wrong", "huge", "ill"])
def test_the_other_hub_helps_out(server: Server, tmp_path: Path, bad: str) -> None:
    assert_whole(get(tmp_path, server.hub(bad), server.hub("good")))


def test_a_hub_that_is_not_there(server: Server, tmp_path: Path) -> None:
    nowhere = Hub("nowhere", "http://127.0.0.1:9")  # the discard port: nothing listens
    assert_whole(get(tmp_path, nowhere, server.hub("good")))


@pytest.mark.parametrize(
    ("bad", "said"), [("missing", "404"), ("wrong", "SHA-256"), ("huge", "another file"), ("ill", "503")]
)
def test_no_wrong_file_ever_gets_its_final_name(server: Server, tmp_path: Path, bad: str, said: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        get(tmp_path, server.hub(bad))
    assert caught.value.code == "download_failed"
    assert said in caught.value.message and bad in caught.value.message
    assert not (tmp_path / "a.bin").exists()


def test_a_part_with_other_content_is_thrown_away(server: Server, tmp_path: Path) -> None:
    part_of(tmp_path, FILES[0]).write_bytes(bytes(1000))
    assert_whole(get(tmp_path, server.hub("good"), server.hub("breaks")))


def test_a_part_that_is_too_long_or_whole_is_handled(server: Server, tmp_path: Path) -> None:
    part_of(tmp_path, FILES[0]).write_bytes(bytes(400_000))
    whole = part_of(tmp_path, FILES[1])
    whole.parent.mkdir()
    whole.write_bytes(CONTENT["sub/b.bin"])
    assert_whole(get(tmp_path, server.hub("good")))
    assert server.asked_for("good/sub/b.bin") == []


def test_a_damaged_file_is_fetched_again(server: Server, tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(bytes(300_000))
    assert_whole(get(tmp_path, server.hub("good")))


def test_two_downloads_take_turns(server: Server, tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        for result in [pool.submit(get, tmp_path, server.hub("good")) for _ in range(4)]:
            assert_whole(result.result(timeout=30))
    assert len(server.asked) == len(CONTENT)


def test_offline_is_respected(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(CheckpointError) as caught:
        get(tmp_path, server.hub("good"))
    assert caught.value.code == "download_offline" and server.asked == []


def test_a_full_disk_is_told_before_anything_moves(server: Server, tmp_path: Path) -> None:
    enormous = PublicFile("a.bin", 10**18, "0" * 64)
    with pytest.raises(CheckpointError) as caught:
        get(tmp_path, server.hub("good"), files=[enormous])
    assert caught.value.code == "download_disk_full" and server.asked == []


def test_a_folder_that_cannot_be_made(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    with pytest.raises(CheckpointError) as caught:
        get(tmp_path / "file" / "folder", server.hub("good"))
    assert caught.value.code == "download_not_writable"


def test_hub_order_and_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [hub.name for hub in hubs()] == ["ModelScope", "Hugging Face"]
    assert [hub.name for hub in hubs("huggingface")] == ["Hugging Face", "ModelScope"]
    monkeypatch.setenv("HF_ENDPOINT", "https://mirror.example/")
    first = hubs()[0]
    assert (
        first.address(FILES[1]) == "https://mirror.example/FunAudioLLM/CosyVoice2-0.5B/resolve/main/sub/b.bin"
    )
    with pytest.raises(RequestError) as caught:
        hubs("elsewhere")
    assert caught.value.code == "unknown_hub"


def test_the_list_of_public_files_is_the_recorded_one() -> None:
    paths = [file.path for file in public_files()]
    assert {"cosyvoice2.yaml", "llm.pt", "flow.pt", "hift.pt", "campplus.onnx"} < set(paths)
    assert "CosyVoice-BlankEN/model.safetensors" not in paths
    source = reference_folder()
    for file in public_files():
        if file.path.startswith("CosyVoice-BlankEN/") and (source / file.path).is_file():
            assert is_complete(source, file)


def test_which_folder_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundled, downloaded = tmp_path / "nano", tmp_path / "full"
    monkeypatch.setattr(downloads, "BUNDLED", bundled)
    monkeypatch.setattr(downloads, "DOWNLOADED", downloaded)
    monkeypatch.setattr(downloads, "public_files", lambda: tuple(FILES))
    with pytest.raises(CheckpointError) as caught:
        find_model_dir()
    assert caught.value.code == "checkpoint_no_folder"
    bundled.mkdir()
    (bundled / "cosyvoice2.yaml").touch()
    assert find_model_dir()[0] == bundled
    for path, content in CONTENT.items():
        assert find_model_dir()[0] == bundled  # until the last file is there
        (downloaded / path).parent.mkdir(parents=True, exist_ok=True)
        (downloaded / path).write_bytes(content)
    folder, sentence = find_model_dir()
    assert folder == downloaded and str(downloaded) in sentence
    monkeypatch.setenv("COSYVOICE_MODEL_DIR", "/elsewhere")
    assert find_model_dir()[0] == Path("/elsewhere")
    assert find_model_dir("mine")[0] == Path("mine")
    assert BUNDLED.name == "nano"
