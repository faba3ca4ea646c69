"""The registry of models: manifests, --model values, and kinds of model."""

import json
from dataclasses import asdict, fields

import pytest
from conftest import cells
from models import CONFIGS, OLD_RECORD

from nanochat import registry
from nanochat.gpt import GPT, GPTConfig
from nanochat.induction import InductionConfig, InductionGPT
from nanochat.models import IDLE, KINDS, config_fields, config_of, config_with, kind_with, model_class, record_of


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_survives_a_manifest(name):
    config = config_with(CONFIGS[name])
    record = json.loads(json.dumps(record_of(config)))
    assert config_of({"model": record}) == config
    assert config.kind == ("induction" if name == "induction" else "gpt")
    # A plain GPT has no kind there: programs from before there were kinds read it.
    assert record == asdict(config) | ({} if config.kind == "gpt" else {"kind": "induction"})
    with pytest.raises(ValueError, match="another version of this code has written the checkpoint"):
        config_of({"model": {**record, "qk_gain": True}})


SIZES = {
    name: OLD_RECORD[name] for name in ("vocab_size", "depth", "width", "heads", "kv_heads", "max_seq_len", "bos_id")
}
OCTOBER = {"window_pattern": "L", "rope_base": 10000.0, "qk_scale": 1.0} | dict.fromkeys(
    ("residual_lambdas", "x0_lambdas", "value_embeds", "smear", "backout"), False
)
PORTABLE = {"mlp": "swiglu", "mlp_ratio": 2.6666666666666665, "window_pattern": "L", "softcap": 0.0}
PORTABLE |= dict.fromkeys(("x0_lambdas", "value_embeds", "smear", "backout"), False)
INDUCTION = {"tie_embeddings": True, "induction": True}


@pytest.mark.parametrize(
    ("name", "changes", "kind"),
    [
        ("reference", {}, "gpt"),
        ("october-2025", OCTOBER, "gpt"),
        ("portable", PORTABLE, "gpt"),
        ("induction", INDUCTION, "induction"),
    ],
)
def test_manifests_from_before_there_were_kinds(name, changes, kind):
    """Tracks try their own."""
    config = config_of({"model": OLD_RECORD | changes})
    assert config.kind == kind
    assert config == config_with(SIZES | config_fields(name))
    assert config_of({"model": record_of(config)}) == config


def test_fields_of_a_manifest_that_no_kind_has_together_are_refused():
    with pytest.raises(ValueError, match="no kind of model has these fields together: exclusive_last, supervision"):
        config_of({"model": OLD_RECORD | {"exclusive_last": 2, "supervision": 4}})
    # Without recursion its other fields never had an effect.
    assert config_of({"model": OLD_RECORD | {"loops": 3}}).kind == "gpt"


def test_a_kind_that_nobody_knows_is_refused():
    with pytest.raises(ValueError, match="the kind of model novel is not known, choose from gpt, induction, golf"):
        config_of({"model": OLD_RECORD | {"kind": "novel"}})


def test_a_kind_whose_track_is_not_here_is_one_sentence(monkeypatch):
    gone = registry.Door("kind of model", "MODELS", {"looped": "tracks.gone.model"})
    monkeypatch.setattr(registry, "MODELS", gone)
    sentence = "the kind of model looped belongs to tracks/gone, which is not here"
    for record in (OLD_RECORD | {"sweeps": 2}, {**SIZES, "kind": "looped", "sweeps": 2}):
        with pytest.raises(ValueError, match=sentence):
            config_of({"model": record})
    with pytest.raises(ValueError, match=sentence):
        config_with(config_fields("reference,sweeps=2"))


def test_the_fields_of_a_config_choose_the_kind():
    assert kind_with(["depth", "smear"]) == "gpt"
    assert kind_with(["depth", "induction"]) == "induction"
    assert kind_with(["induction", "sweeps"]) == "looped"
    assert kind_with(["query_gain", "rope_dims"]) == "golf"
    assert config_with(IDLE) == GPTConfig()
    assert model_class(GPTConfig()) is GPT
    assert model_class(InductionConfig()) is InductionGPT
    assert {kind: model.config_class.kind for kind, model in KINDS.items()} == {kind: kind for kind in KINDS}
    own = {field.name for field in fields(InductionConfig)} - {field.name for field in fields(GPTConfig)}
    assert own == {"induction"}
    assert OLD_RECORD.keys() <= {field.name for field in fields(GPTConfig)} | IDLE.keys()  # none is forgotten


def test_a_model_flag_names_a_configuration_and_changes_of_it():
    assert config_fields("reference") == {}
    changed = config_fields("october-2025,smear=true,softcap=0,mlp=swiglu")
    assert changed == {**config_fields("october-2025"), "smear": True, "softcap": 0.0, "mlp": "swiglu"}
    assert config_with(config_fields("reference,induction=true")).kind == "induction"
    assert config_with(config_fields("induction,induction=false")).kind == "gpt"
    for text, words in cells(REFUSED):
        with pytest.raises(ValueError, match=words):
            config_fields(text)


REFUSED = """
gpt | --model: gpt is not known, choose from reference
reference,novelty=1 | the field novelty is not known, choose from mlp
reference,depth=3 | depth is set by its own flag
reference,supervision=3 | supervision is set by its own flag
reference,smear=yes | smear cannot be yes, write a bool
reference,softcap=much | softcap cannot be much, write a float
"""
