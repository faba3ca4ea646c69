"""The registry of models: manifests, --model values."""

import json

import pytest
import torch
from models import CONFIGS, SMALL

from nanochat.gpt import GPT, GPTConfig
from nanochat.models import config_fields, config_of, describe_config, new_model


def test_a_config_survives_a_manifest():
    config = GPTConfig(**CONFIGS["portable"])
    entry = json.loads(json.dumps(describe_config(config)))
    assert entry["kind"] == "gpt"
    assert config_of({"model": entry}) == config
    del entry["kind"]  # as checkpoints of older runs have it
    assert config_of({"model": entry}) == config
    with pytest.raises(ValueError, match="a model of kind mamba, take one of gpt"):
        config_of({"model": {**entry, "kind": "mamba"}})


def test_a_config_builds_a_model_of_its_kind():
    with torch.device("meta"):
        model = new_model(GPTConfig(**SMALL), "chunks", checkpointing=True)
    assert type(model) is GPT
    assert (model.attention, model.checkpointing) == ("chunks", True)


def test_a_model_flag_names_a_configuration_and_changes_of_it():
    assert config_fields("reference") == {}
    changed = config_fields("october-2025,qk_gain=true,softcap=0,mlp=swiglu")
    assert changed == {**config_fields("october-2025"), "qk_gain": True, "softcap": 0.0, "mlp": "swiglu"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gpt", "--model=gpt is not known, take one of reference"),
        ("reference,novelty=1", "novelty is no field of GPTConfig, take one of mlp"),
        ("reference,depth=3", "depth is no field of GPTConfig"),
        ("reference,qk_gain=yes", "qk_gain is yes, write true or false"),
        ("reference,softcap=much", "softcap is much, write a value of type float"),
    ],
)
def test_other_model_flags_are_refused(text, words):
    with pytest.raises(ValueError, match=words):
        config_fields(text)
