"""The registry of models: manifests, --model values."""

import dataclasses
import json

import pytest
from conftest import cells
from models import CONFIGS

from nanochat.gpt import GPTConfig
from nanochat.models import config_fields, config_of


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
