"""Models: --model values, manifests, and trained ones that a command line names."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import cells
from loop_parts import ALONE
from models import CONFIGS, leave_model

from nanochat.checkpoint import saved_steps
from nanochat.gpt import GPTConfig
from nanochat.models import config_fields, config_of, load_chosen, load_model, trained, verified
from nanochat.settings import ModelChoice
from nanochat.tokenizer import Tokenizer


def test_a_config_survives_a_manifest():
    config = GPTConfig(**CONFIGS["portable"])
    entry = json.loads(json.dumps(dataclasses.asdict(config)))
    assert config_of({"model": entry}) == config
    with pytest.raises(ValueError, match="another version of this code has written the checkpoint"):
        config_of({"model": {**entry, "qk_gain": True}})


def test_a_model_flag_names_a_configuration_and_changes_of_it():
    assert config_fields("reference") == {}
    changed = config_fields("october-2025,smear=true,softcap=0,mlp=swiglu")
    assert changed == {**config_fields("october-2025"), "smear": True, "softcap": 0.0, "mlp": "swiglu"}
    for text, words in cells(REFUSED):
        with pytest.raises(ValueError, match=words):
            config_fields(text)


REFUSED = """
gpt | --model: gpt is not known, choose from reference
reference,novelty=1 | the field novelty is not known, choose from mlp
reference,depth=3 | depth is set by its own flag
reference,smear=yes | smear cannot be yes, write a bool
reference,softcap=much | softcap cannot be much, write a float
"""


@pytest.fixture
def tokenizer() -> Tokenizer:
    return Tokenizer.train(["a text to learn from"], 300)


def test_the_default_model_is_of_the_last_stage_and_the_run_trained_last(base, tokenizer):
    with pytest.raises(ValueError, match="there is no model below"):
        trained()
    for age, run in enumerate(("base_train/a", "chat_sft/a", "chat_sft/b", "base_train/b")):
        leave_model(base, *run.split("/"), tokenizer)
        os.utime(base / run, (1000 - age, 1000 - age))
    assert trained() == [("base", "b"), ("base", "a"), ("sft", "b"), ("sft", "a")]
    assert trained("base")[-1] == ("base", "a")
    assert trained(tag="b")[-1] == ("sft", "b")


def test_a_trained_model_is_loaded_with_what_belongs_to_it(base, tokenizer, capsys):
    left = leave_model(base, "chat_sft", "a", tokenizer)
    found = load_model("chat_sft", "a", -1, ALONE)
    assert "model: chat_sft a, step 7" in capsys.readouterr().out
    assert (found.checkpoint.step, found.tokenizer.content_hash) == (7, tokenizer.content_hash)
    assert not found.model.training
    weights = dict(found.model.named_parameters())
    assert all(torch.equal(weights[name], value) for name, value in left.named_parameters())
    assert not any(value.requires_grad for value in weights.values())
    assert saved_steps(base / "chat_sft/a") == [7]
    with pytest.raises(ValueError, match=r"has no checkpoint of step 9, only \[7\]"):
        verified("chat_sft", "a", 9)
    with pytest.raises(ValueError, match=r"there is no model in .*: python -m scripts.mid_train makes one"):
        verified("mid_train", "a")
    with pytest.raises(ValueError, match="--exits is for recursive models"):
        load_model("chat_sft", "a", -1, ALONE, exits=2)
    Tokenizer.train(["another text"], 299).save(base / "tok_train/default/tokenizer.json")
    with pytest.raises(ValueError, match="was trained with another tokenizer than tok_train now has"):
        load_model("chat_sft", "a", -1, ALONE)


def test_a_chosen_model_is_rounded_where_the_command_line_asks_for_it(base, tokenizer):
    leave_model(base, "chat_sft", "a", tokenizer)
    plain, rounded = (load_chosen(ModelChoice(tag="a", quant=quant), ALONE).model for quant in ("", "int8-row"))
    assert not torch.equal(plain.head.weight, rounded.head.weight)
    torch.testing.assert_close(plain.head.weight, rounded.head.weight, atol=0.01, rtol=0)


def test_making_models_loads_neither_quantization_nor_sharding():
    code = "import sys, nanochat.models; print({'nanochat.quant', 'nanochat.sharding'} & set(sys.modules))"
    root = Path(__file__).resolve().parent.parent
    assert subprocess.check_output([sys.executable, "-c", code], cwd=root, text=True) == "set()\n"
