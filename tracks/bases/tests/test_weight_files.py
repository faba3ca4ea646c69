"""The weights of a folder: which files count, and under which names."""

import shutil
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from nanochat.errors import UserError
from nanochat.paths import read_sha256
from tracks.bases.sources import open_source
from tracks.bases.tests.public_models import VOCABULARY, change, model_of, save_folder
from tracks.bases.weights import weights_of


def test_one_file_counts_before_an_index_that_another_save_has_left(saved: Path, tmp_path: Path) -> None:
    """As `transformers` reads such a folder."""
    save_folder("qwen3", tmp_path / "other")
    shutil.copy(saved / "model.safetensors.index.json", tmp_path / "other")
    source = open_source(str(tmp_path / "other"))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "other")
    assert torch.equal(source.read("norm.gain"), theirs.state_dict()["model.norm.weight"])


def test_a_model_in_several_files(saved: Path, tmp_path: Path) -> None:
    shards = sorted(saved.glob("*.safetensors"))
    assert len(shards) > 2
    source = open_source(str(saved))
    weights = weights_of(source)
    save_folder("llama", tmp_path / "one")
    for name, value in weights_of(open_source(str(tmp_path / "one"))).items():
        assert torch.equal(weights[name], value)
    assert weights["embed.weight"].shape == (704, 48)  # a multiple of 64
    assert not weights["head.weight"][VOCABULARY:].any()
    hashes = source.hashes()
    assert hashes["config.json"] == read_sha256(saved / "config.json")
    assert {*hashes} == {path.name for path in saved.iterdir()}


def test_half_precision_is_read(tmp_path: Path) -> None:
    save_folder("qwen3", tmp_path)
    file = tmp_path / "model.safetensors"
    stored = {name: value.bfloat16() for name, value in load_file(file).items()}
    save_file(stored, file)
    weights = weights_of(open_source(str(tmp_path)))
    assert torch.equal(weights["norm.gain"], stored["model.norm.weight"].float())


def test_a_head_beside_the_embedding_counts(tmp_path: Path) -> None:
    """If a config says that they are one and the file has two, `transformers` takes the two."""
    save_folder("gemma3", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    assert open_source(str(tmp_path)).config.tie_embeddings
    save_file(tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"] + 1}, tmp_path / "model.safetensors")
    source = open_source(str(tmp_path))
    assert not source.config.tie_embeddings
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    ids = torch.arange(20)[None]
    with torch.no_grad():
        torch.testing.assert_close(model_of(source)(ids), theirs(ids).logits, rtol=1e-4, atol=1e-4)
    same = {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}
    save_file(tensors | same, tmp_path / "model.safetensors")
    assert open_source(str(tmp_path)).config.tie_embeddings


def test_tied_weights_under_the_name_of_the_head(tmp_path: Path) -> None:
    """Of two names of one tensor `save_model` of safetensors may leave either."""
    save_folder("qwen2", tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    before = weights_of(open_source(str(tmp_path)))
    tensors["lm_head.weight"] = tensors.pop("model.embed_tokens.weight")
    save_file(tensors, file, {"format": "pt"})
    source = open_source(str(tmp_path))
    assert source.config.tie_embeddings
    assert all(torch.equal(value, before[name]) for name, value in weights_of(source).items())
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(theirs.get_input_embeddings().weight, tensors["lm_head.weight"])
    change(tmp_path / "config.json", tie_word_embeddings=False)
    with pytest.raises(UserError, match=r"model\.embed_tokens\.weight is missing"):
        open_source(str(tmp_path))
