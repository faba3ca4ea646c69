"""Models: --model values, manifests, and trained ones that a command line names."""

import json
import math
import os
import subprocess
import sys
from dataclasses import asdict, fields
from pathlib import Path

import pytest
import torch
from base_runs import Base
from conftest import cells
from forks import Forked, run_module
from loop_parts import ALONE
from models import CONFIGS, OLD_RECORD, leave_model

from nanochat import registry
from nanochat.checkpoint import Saver, load
from nanochat.errors import UserError
from nanochat.gpt import GPT, GPTConfig
from nanochat.induction import InductionConfig, InductionGPT
from nanochat.models import (
    IDLE,
    KINDS,
    build_model,
    config_fields,
    config_of,
    config_with,
    kind_with,
    load_chosen,
    load_model,
    model_class,
    record_of,
    trained,
    verified,
    weights_hash,
)
from nanochat.paths import saved_steps
from nanochat.runtime import setup
from nanochat.settings import ModelChoice
from nanochat.tokenizer import Tokenizer


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_survives_a_manifest(name) -> None:
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
def test_manifests_from_before_there_were_kinds(name, changes, kind) -> None:
    """Tracks try their own."""
    config = config_of({"model": OLD_RECORD | changes})
    assert config.kind == kind
    assert config == config_with(SIZES | config_fields(name))
    assert config_of({"model": record_of(config)}) == config


def test_fields_of_a_manifest_that_no_kind_has_together_are_refused() -> None:
    with pytest.raises(ValueError, match="no kind of model has these fields together: exclusive_last, supervision"):
        config_of({"model": OLD_RECORD | {"exclusive_last": 2, "supervision": 4}})
    # Without recursion its other fields never had an effect.
    assert config_of({"model": OLD_RECORD | {"loops": 3}}).kind == "gpt"


def test_a_kind_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ValueError, match="the kind of model novel is not known, choose from gpt, induction, golf"):
        config_of({"model": OLD_RECORD | {"kind": "novel"}})


def test_a_kind_whose_track_is_not_here_is_one_sentence(monkeypatch) -> None:
    gone = registry.Door("kind of model", "MODELS", {"looped": "tracks.gone.model"})
    monkeypatch.setattr(registry, "MODELS", gone)
    sentence = "the kind of model looped belongs to tracks/gone, which is not here"
    for record in (OLD_RECORD | {"sweeps": 2}, {**SIZES, "kind": "looped", "sweeps": 2}):
        with pytest.raises(ValueError, match=sentence):
            config_of({"model": record})
    with pytest.raises(ValueError, match=sentence):
        config_with(config_fields("reference,sweeps=2"))


def test_the_fields_of_a_config_choose_the_kind() -> None:
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


def test_a_model_flag_names_a_configuration_and_changes_of_it() -> None:
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
reference,supervision=3 | supervision is set by a flag of python -m tracks.recursion.train
reference,smear=yes | smear cannot be yes, write a bool
reference,softcap=much | softcap cannot be much, write a float
"""


@pytest.fixture
def tokenizer() -> Tokenizer:
    return Tokenizer.train(["a text to learn from"], 300)


def test_the_default_model_is_of_the_last_stage_and_the_run_trained_last(base, tokenizer) -> None:
    with pytest.raises(ValueError, match="there is no model below"):
        trained()
    for age, run in enumerate(("base_train/a", "chat_sft/a", "chat_sft/b", "base_train/b")):
        leave_model(base, *run.split("/"), tokenizer)
        os.utime(base / run, (1000 - age, 1000 - age))
    assert trained() == [("base", "b"), ("base", "a"), ("sft", "b"), ("sft", "a")]
    assert trained("base")[-1] == ("base", "a")
    assert trained(tag="b")[-1] == ("sft", "b")


def test_a_trained_model_is_loaded_with_what_belongs_to_it(base, tokenizer, capsys) -> None:
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
    assert load_model("chat_sft", "a", 7, ALONE, sha256=weights_hash(found.checkpoint.manifest)).checkpoint.step == 7
    with pytest.raises(UserError, match=r"a/step_0+7 have changed since another model was trained from them"):
        load_model("chat_sft", "a", 7, ALONE, sha256="0" * 64)
    with pytest.raises(ValueError, match="--exits is for recursive models"):
        load_model("chat_sft", "a", -1, ALONE, exits=2)
    Tokenizer.train(["another text"], 299).save(base / "tok_train/default/tokenizer.json")
    with pytest.raises(ValueError, match="was trained with another tokenizer than tok_train now has"):
        load_model("chat_sft", "a", -1, ALONE)


def test_a_chosen_model_is_rounded_where_the_command_line_asks_for_it(base, tokenizer) -> None:
    leave_model(base, "chat_sft", "a", tokenizer)
    plain, rounded = (load_chosen(ModelChoice(tag="a", quant=quant), ALONE).model for quant in ("", "int8-row"))
    floats = load_chosen(ModelChoice(tag="a", quant="int8-row"), ALONE, in_floats=True).model
    assert not torch.equal(plain.head.weight, floats.head.weight)
    torch.testing.assert_close(plain.head.weight, floats.head.weight, atol=0.01, rtol=0)
    assert rounded.head.weight.dtype == torch.int8
    assert torch.equal(rounded.head.active_weight, floats.head.weight)


def test_making_models_loads_neither_quantization_nor_sharding() -> None:
    later = {"nanochat.quant", "nanochat.int8", "nanochat.sharding"}
    code = f"import sys, nanochat.models; print({later} & set(sys.modules))"
    root = Path(__file__).resolve().parent.parent
    assert subprocess.check_output([sys.executable, "-c", code], cwd=root, text=True) == "set()\n"


def draw_and_compare(folder: Path) -> None:
    config = config_with(CONFIGS["reference"])
    with setup("cpu", "fp32") as runtime:
        drawn = []
        original = GPT.initial

        def counted(self: GPT, seed: int, name: str) -> torch.Tensor:
            drawn.append(self.get_parameter(name).numel())
            return original(self, seed, name)

        GPT.initial = counted
        shared = build_model(config, runtime, 3)
        GPT.initial = original
        alone = build_model(config, ALONE, 3)
        for name, values in alone.state_dict().items():
            assert torch.equal(shared.state_dict()[name], values), name
        total = sum(parameter.numel() for parameter in alone.parameters())
        assert sum(drawn) < 0.7 * total
        assert sum(runtime.all_gather(sum(drawn))) == total


def test_ranks_share_the_drawing_of_new_weights_bit_for_bit(tmp_path) -> None:
    Forked(tmp_path, draw_and_compare, tmp_path, ranks=2, NANOCHAT_BASE_DIR=str(tmp_path)).done()


@pytest.mark.parametrize("ranks", [1, 2])
def test_weights_that_are_not_finite_are_refused(ranks, tmp_path) -> None:
    """Their hashes are right: a run had saved them."""
    base = Base(tmp_path)
    base.run("good", "--num-iterations=6")
    for step in (6, 3):
        saved = load(base.of("good"), step)
        tensors = dict(saved.model_tensors())
        tensors["blocks.1.mlp.up.weight"][0, 0] = math.nan
        with Saver(base.of("bad"), keep_last=0) as saver:
            owned = [(name, saved.optimizer_state(name)) for name in saved.manifest["optimizer"]]
            saver.save(step, tensors if step == 6 else saved.model_tensors(), owned, saved.manifest)
    found = "step_000006 has weights that are not finite, such as blocks.1.mlp.up.weight: the step before is 3"
    assert found in base.refused("bad", "--num-iterations=9", ranks=ranks)
    if ranks == 2:
        assert found in base.refused("bad", "--num-iterations=9", "--shard-weights", "--resume=6", ranks=ranks)
        return
    for script in ("base_loss", "chat_cli"):
        words = ["--tag=bad"] if script == "base_loss" else ["-i", "base", "-g", "bad", "-p", "hello"]
        job = base.fork(run_module, None, f"scripts.{script}", *words)
        assert set(job.codes()) == {2}
        assert found in job.err().splitlines()[-1]  # chat_cli has written what it loads before
    assert "step 00006/00006" in base.run("bad", "--num-iterations=6", "--resume=3")
