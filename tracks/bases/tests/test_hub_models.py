"""Models of a hub: what is downloaded of them, and what is refused before."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from bad_hub import BadHub
from huggingface_hub import constants

from nanochat.errors import UserError
from tracks.bases.sources import open_source
from tracks.bases.tests.public_models import (
    save_folder,
)


def test_a_model_of_the_hub(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a mirror here; the hub's own client is tried in tests/data/test_hub.py."""
    shutil.copytree(saved, tmp_path / "models" / "someone" / "llama")
    monkeypatch.setenv("NANOCHAT_HUB", str(tmp_path))
    source = open_source("hub:someone/llama")
    assert torch.equal(source.read("norm.gain"), open_source(str(saved)).read("norm.gain"))
    with pytest.raises(
        UserError, match=r"someone/llama is a copy of hub:someone/llama without revisions: leave @abc out"
    ):
        open_source("hub:someone/llama@abc")
    (tmp_path / "models" / "someone" / "packed").mkdir()
    for name in ("m-Q4_K_M.gguf", "README.md"):
        (tmp_path / "models" / "someone" / "packed" / name).write_bytes(b"")
    told = r"has no config\.json: .* reads; it has m-Q4_K_M\.gguf: download that file, and name it by --from"
    with pytest.raises(UserError, match=told):
        open_source("hub:someone/packed")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UserError, match="the model someone/other"):
        open_source("hub:someone/other")


def use_hub(server: BadHub, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let downloads come from a local hub, without a mirror."""
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.address + "/{repo_id}/resolve/{revision}/{filename}"
    )
    monkeypatch.setattr(constants, "ENDPOINT", server.address)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.delenv("NANOCHAT_HUB", raising=False)


@pytest.mark.parametrize("has_notice", [True, False])
def test_the_files_of_a_license_come_from_the_hub(
    has_notice: bool,
    saved: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One that the hub lists and does not send is named: the model comes without it."""
    files = {path.name: path.read_bytes() for path in saved.iterdir()}
    texts = {"LICENSE": b"Pass this on.", "NOTICE": b"Made by a fox." if has_notice else b""}
    with BadHub({**files, **texts, "licenses/LICENSE": b"of a part", "weights.bin": b"x"}) as server:
        use_hub(server, tmp_path, monkeypatch)
        source = open_source("hub:some/set")
    assert {name: text.encode() for name, text in source.licence_texts.items()} == {
        name: content for name, content in texts.items() if content
    }
    assert ("import: without NOTICE: " in capsys.readouterr().err) != has_notice
    assert not [*tmp_path.glob("*/snapshots/*/weights.bin"), *tmp_path.glob("*/snapshots/*/licenses")]


@pytest.mark.parametrize("single", [False, True])
def test_weights_in_another_form_are_not_downloaded(
    single: bool, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those count that `transformers` reads: of one file, or else of an index."""
    save_folder("llama", tmp_path / "single")
    own = tmp_path / "single" if single else saved
    files = {path.name: path.read_bytes() for path in own.iterdir()}
    variants = {f"model.{name}.safetensors": b"w" * 1000 for name in ("fp16", "fp32-00001-of-00001")}
    variants |= {"consolidated.safetensors": b"w" * 1000}
    index = json.dumps({"weight_map": dict.fromkeys("ab", "model.fp32-00001-of-00001.safetensors")}).encode()
    name = "model.safetensors.index.json" if single else "model.safetensors.index.fp32.json"
    with BadHub({**files, **variants, name: index}) as server:
        use_hub(server, tmp_path / "cache", monkeypatch)
        source = open_source("hub:some/set")
    assert torch.equal(source.read("norm.gain"), open_source(str(own)).read("norm.gain"))
    found = {path.name for path in (tmp_path / "cache").glob("*/snapshots/*/*")}
    assert found == {*files, name}


def test_a_model_that_cannot_be_read_is_refused_before_its_weights_are_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = json.dumps({"architectures": ["GPT2LMHeadModel"]}).encode()
    with BadHub({"config.json": config, "model.safetensors": b"w" * 1000, "tokenizer.json": b"{}"}) as server:
        use_hub(server, tmp_path, monkeypatch)
        with pytest.raises(UserError, match="its architecture is GPT2LMHeadModel: only"):
            open_source("hub:some/set")
    assert [path.name for path in tmp_path.glob("*/snapshots/*/*")] == ["config.json"]
