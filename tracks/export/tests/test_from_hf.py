"""import_hf reads back what export wrote, fine-tuned by others or not; other folders leave nothing."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from models import leave_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from nanochat.checkpoint import manifest_hash
from nanochat.gpt import GPT
from nanochat.models import Trained, load_model
from nanochat.runtime import setup
from tracks.export import export, hf
from tracks.export.from_hf import read_folder, save_imported
from tracks.export.import_hf import Config, main
from tracks.export.tests.exports import tokenizer_of


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(tmp_path / "base"))
    fields = {"preset": "induction", "max_seq_len": 128, "more": {"stage": "chat_sft"}}
    leave_model(tmp_path / "base", "chat_sft", "d1", tokenizer_of(), **fields)
    export.main(export.Config(source="sft", tag="d1", out=str(tmp_path / "out")))
    return tmp_path / "out"


def opened(tag: str) -> Trained:
    with setup("cpu", "fp32") as runtime:
        return load_model("chat_sft", tag, -1, runtime)


def test_weights_tokenizer_and_origin_come_back(folder) -> None:
    main(Config(folder=str(folder), tag="home"))
    (before, tokenizer, origin), (after, words, home) = opened("d1"), opened("home")
    assert home.manifest["exported"] == manifest_hash(origin.manifest)
    assert (after.config, words.content_hash) == (before.config, tokenizer.content_hash)
    torch.testing.assert_close(after.state_dict(), before.state_dict(), atol=0, rtol=0)
    with pytest.raises(ValueError, match="chat_sft/home holds a run, use another --tag"):
        main(Config(folder=str(folder), tag="home"))


def test_a_model_that_others_trained_and_saved_comes_back(folder, tmp_path) -> None:
    """In bf16: the code, the manifest and the tokenizer travel along."""
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True, dtype=torch.bfloat16)
    model.embed.weight.data += 1
    AutoTokenizer.from_pretrained(folder, trust_remote_code=True).save_pretrained(tmp_path / "tuned")
    model.save_pretrained(tmp_path / "tuned")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "tuned", trust_remote_code=True).float()
    main(Config(folder=str(tmp_path / "tuned"), tag="home"))
    for name, weight in opened("home")[0].state_dict().items():
        assert torch.equal(weight, again.get_parameter(name)), name
        assert torch.equal(weight, model.get_parameter(name).float()), name


def test_rounded_weights_come_back(folder, tmp_path) -> None:
    export.main(export.Config(source="sft", tag="d1", out=str(tmp_path / "half"), dtype="bf16"))
    main(Config(folder=str(tmp_path / "half"), tag="home"))
    before, after = opened("d1")[0].state_dict(), opened("home")[0].state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(after[name], weight.bfloat16().float()) for name, weight in before.items())


def test_weights_that_cannot_be_read_leave_nothing(folder, tmp_path) -> None:
    """Whatever is raised: PyTorch says with a RuntimeError that there is no memory."""

    class NoMemory:
        def items(self) -> Iterator[tuple[str, torch.Tensor]]:
            yield from [*weights.items()][:2]
            raise RuntimeError("not enough memory")

    record, weights, tokenizer = read_folder(folder)
    with pytest.raises(RuntimeError, match="not enough memory"):
        save_imported(record, NoMemory(), tokenizer, "home", 0)
    assert not [*(tmp_path / "base").glob("*/home*")]
    main(Config(folder=str(folder), tag="home"))


def test_mistakes_are_refused_and_leave_nothing(folder, tmp_path) -> None:
    def refused(message: str) -> None:
        with pytest.raises((ValueError, OSError), match=message):
            main(Config(folder=str(folder), tag="home"))
        assert not list(tmp_path.glob("base/*/home"))

    hf.tokenizer_files.write_hf(tokenizer_of(700), folder, 128)
    refused("has another tokenizer than the model was trained with$")
    (folder / "tokenizer.json").write_text("{}")
    refused("tokenizer.json is not a tokenizer that tracks.export.export wrote$")
    weights = opened("d1")[0].state_dict()
    del weights["blocks.0.attn.o.weight"]
    hf.save_file(weights, folder / "model.safetensors", {"format": "pt"})
    refused("has other weights than config.json says: .*Missing.*attn.o.weight")
    with pytest.raises(ValueError, match=r"^the folder lacks the weights of a Linear: export the model again$"):
        AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    (folder / "model.safetensors").write_bytes(b"x" * 100)
    refused("model.safetensors cannot be read: ")
    settings = json.loads((folder / "config.json").read_text())
    elsewhere = settings["manifest"] | {"stage": f"{tmp_path}/elsewhere"}  # a folder of a stranger's
    (folder / "config.json").write_text(json.dumps(settings | {"manifest": elsewhere}))
    refused(f"out has a model of the stage {tmp_path}/elsewhere, which is none of base_train, ")
    assert not (tmp_path / "elsewhere").exists()
    (folder / "config.json").write_text(json.dumps(settings | {"version": 2}))
    refused(
        "out is not an export with version 1 of modeling_nanochat.py;"
        " python -m tracks.bases.bring takes models of other kinds$"
    )
    with pytest.raises(ValueError, match=r"config.json has version 2, modeling_nanochat.py 1: export it again"):
        AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)


def test_an_error_of_one_line_is_shown(folder, monkeypatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("not enough memory")

    monkeypatch.setattr(GPT, "load_state_dict", fail)
    with pytest.raises(ValueError, match=r"has other weights than config.json says: not enough memory$"):
        main(Config(folder=str(folder), tag="home"))
