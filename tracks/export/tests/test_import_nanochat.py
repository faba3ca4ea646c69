"""import_nanochat: a checkpoint of the public nanochat becomes one of ours, to use, fine-tune and export."""

import shutil
from pathlib import Path

import pytest
import torch
from chat_files import chat, write_lines
from conftest import cells
from old_models import forward_of_october, leave, october
from torch.testing import assert_close

from nanochat.models import load_model
from nanochat.runtime import setup
from scripts.chat_sft import Config as TeachConfig
from scripts.chat_sft import main as teach
from tracks.export.export import Config as ExportConfig
from tracks.export.export import main as export
from tracks.export.import_nanochat import Config, main
from tracks.export.tests.exports import tokenizer_of


@pytest.fixture(scope="module")
def tokenizer():
    return tokenizer_of()


@pytest.fixture
def flags(tokenizer, tmp_path, base):
    """Flags that import a checkpoint of October."""
    tokenizer.save(tmp_path / "tokenizer.json")
    path = leave(tmp_path / "old", october())
    return {"checkpoint": str(path), "tokenizer": str(tmp_path / "tokenizer.json"), "tag": "d3"}


def test_imported_exported_and_loaded_again(flags, tokenizer, tmp_path, capsys) -> None:
    main(Config(**flags, source="sft"))
    assert capsys.readouterr().out == f"import: model_000650.pt is {tmp_path / 'base/chat_sft/d3'}, step 650\n"
    with setup("cpu", "fp32") as runtime:
        model, found, checkpoint = load_model("chat_sft", "d3", -1, runtime)
    assert found.content_hash == tokenizer.content_hash
    assert checkpoint.manifest["loop"]["step"] == checkpoint.step == 650
    ids = torch.randint(701, (1, 192), generator=torch.Generator().manual_seed(4))
    assert_close(model(ids), forward_of_october(october(), ids), atol=1e-5, rtol=0)
    export(ExportConfig(tag="d3"))
    out = tmp_path / "base/export/d3-sft-hf"
    said = capsys.readouterr().out
    assert said.endswith(f"export: {out}\n")
    assert "the same ids for 5000 texts" in said


def test_an_imported_model_is_fine_tuned(flags, tmp_path, capsys) -> None:
    main(Config(**flags))
    mixture = write_lines(tmp_path / "chats.jsonl", *[chat(0)] * 40)
    words = {"tag": "d3", "mixture": mixture, "source": "base", "num_iterations": 2, "eval_metrics_every": -1}
    words |= {"total_batch_size": 192, "device_type": "cpu", "dtype": "fp32", "eval_tokens": 200}
    with pytest.raises(ValueError, match="has no optimizer state to start with: give --no-warm-start"):
        teach(TeachConfig(**words))
    teach(TeachConfig(**words, warm_start=False))
    assert "step 00002" in capsys.readouterr().out
    assert (tmp_path / "base/chat_sft/d3/step_000002/manifest.json").exists()


def test_a_folder_with_an_imported_model_does_not_train_on(flags, tmp_path) -> None:
    main(Config(**flags, source="sft"))
    mixture = write_lines(tmp_path / "chats.jsonl", *[chat(0)] * 40)
    with pytest.raises(ValueError, match="holds an imported model, which does not train on: use another --tag"):
        teach(TeachConfig(tag="d3", mixture=mixture, device_type="cpu", dtype="fp32"))


MISTAKES = """
checkpoint | damaged/model_000650.pt | model_000650.pt holds no weights that can be read
checkpoint | model_000009.pt | meta_000009.json
checkpoint | last.pt | last.pt is not named like model_021400.pt
tokenizer | none.json | none.json
tokenizer | old/model_000650.pt | neither our tokenizer.json nor a file of tiktoken
tokenizer | other.json | has 700 ids and the model 701: use the tokenizer of this
"""


def test_mistakes_are_refused_and_leave_nothing(flags, tmp_path) -> None:
    other = tokenizer_of(700)
    other.save(tmp_path / "other.json")
    whole = Path(flags["checkpoint"])
    damaged = tmp_path / "damaged" / whole.name
    shutil.copytree(whole.parent, damaged.parent)
    damaged.write_bytes(whole.read_bytes()[:-1000])
    for flag, path, words in cells(MISTAKES):
        with pytest.raises((ValueError, OSError), match=words):
            main(Config(**{**flags, flag: str(tmp_path / path)}))
    assert not list((tmp_path / "base").rglob("step_*"))
    main(Config(**flags))
    with pytest.raises(ValueError, match="base_train/d3 holds a run, use another --tag"):
        main(Config(**flags))
    other.save(tmp_path / "base/tok_train/d3/tokenizer.json")
    with pytest.raises(ValueError, match=r"tok_train/d3/tokenizer.json is another tokenizer, use another --tag"):
        main(Config(**flags, source="rl"))
