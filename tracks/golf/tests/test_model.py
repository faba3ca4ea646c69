"""Golf's kind of model: its parts by hand, and every field in training and inference."""

from dataclasses import asdict, fields

import pytest
import torch
from model_checks import (
    check_bound_of_scores,
    check_causality,
    check_decoding,
    check_half_precision,
    check_letters,
    check_packed_weights,
    check_rows,
    check_that_it_acts,
    check_training_and_inference,
    each_case,
    field_cases,
)
from models import OLD_RECORD, SMALL, lively
from plain_core import check_decisions
from test_objectives import check_answers_in_parts
from torch.testing import assert_close

from nanochat import registry
from nanochat.gpt import GPT, GPTConfig
from nanochat.induction import InductionConfig
from nanochat.models import IDLE, config_fields, config_of, config_with, record_of
from nanochat.param_groups import build_groups, group_rates
from nanochat.settings import OptimizerSettings
from tracks.golf.model import GolfConfig, GolfGPT, exclude_own, require_golf
from tracks.golf.tests.golf_models import CONFIGS


def test_the_registry_has_the_fields() -> None:
    """With the values that change nothing, which are the defaults."""
    own = {field.name: field.default for field in fields(GolfConfig)}
    for field in fields(InductionConfig):
        del own[field.name]
    assert registry.MODEL_FIELDS["golf"] == own


def test_without_tricks_it_is_a_plain_gpt() -> None:
    plain, golf = GPT(GPTConfig(**SMALL)), GolfGPT(GolfConfig(**SMALL))
    for model in (plain, golf):
        model.init_weights(3)
    assert all(map(torch.equal, plain.parameters(), golf.parameters()))
    ids = torch.arange(20)[None]
    assert torch.equal(plain(ids), golf(ids))


def test_manifests_from_before_there_were_kinds() -> None:
    changes = {"mlp_ratio": 3.0, "window_pattern": "L", "rope_base": 10000.0, "rope_dims": 32, "qk_scale": 1.0}
    changes |= {"query_gain": 1.75, "qk_eps": 1e-06, "exclusive_last": 2, "orthogonal": True, "softcap": 30.0}
    changes |= {"tie_embeddings": True} | dict.fromkeys(("residual_lambdas", "x0_lambdas", "value_embeds"), False)
    changes |= dict.fromkeys(("smear", "backout"), False)
    config = config_of({"model": OLD_RECORD | changes})
    assert config.kind == "golf"
    assert asdict(config) | config_fields("golf-seed") == asdict(config)
    assert config_of({"model": record_of(config)}) == config
    golf = {"mlp": "leaky2", "mlp_ratio": 3.0, "tie_embeddings": True, "induction": True}
    golf |= dict.fromkeys(("residual_lambdas", "x0_lambdas", "value_embeds"), False)
    config = config_of({"model": OLD_RECORD | golf})
    assert config.kind == "induction"  # it needs nothing of this track
    assert asdict(config) | config_fields("golf") == asdict(config)


@pytest.mark.parametrize("dims", [18, 3, -2])
def test_a_config_that_cannot_be_is_refused(dims) -> None:
    with pytest.raises(ValueError, match=f"rope_dims={dims} has to be even, and at most 16, the head's size"):
        GolfConfig(**SMALL, rope_dims=dims)


def test_an_artifact_holds_no_other_kind() -> None:
    require_golf(config_with(SMALL))
    require_golf(config_with(CONFIGS["golf"]))
    with pytest.raises(ValueError, match="golf artifacts hold plain models: train without sweeps"):
        require_golf(config_with({**SMALL, "sweeps": 2}))


def test_attention_without_the_own_value() -> None:
    y, v = torch.randn(2, 5, 4, 8), torch.randn(2, 5, 2, 8)
    own = v.repeat_interleave(2, dim=2)  # two heads share a value
    share = (y * own).sum(-1, keepdim=True) / own.square().sum(-1, keepdim=True)
    assert_close(exclude_own(y, v), y - share * own)


def test_matrices_start_orthogonal_and_smaller_where_many_layers_write() -> None:
    model = lively({**SMALL, "orthogonal": True})
    model.init_weights(1)
    for name, weight in model.named_parameters():
        if name.startswith("blocks.") and weight.ndim == 2 and "ve_gate" not in name:
            factor = (2 * len(model.blocks)) ** -0.5 if name.endswith(("o.weight", "down.weight")) else 1.0
            small = weight if weight.shape[0] <= weight.shape[1] else weight.T
            assert_close(small @ small.T, factor**2 * torch.eye(len(small)), atol=1e-5, rtol=0)


def test_an_initial_gain_of_one_changes_nothing_and_is_learned_for_each_head() -> None:
    fields = {**SMALL, "qk_scale": 1.0}
    plain, gained = GPT(GPTConfig(**fields)), GolfGPT(GolfConfig(**fields, query_gain=1.0))
    for model in (plain, gained):
        model.init_weights(1)
    ids = torch.arange(20)[None]
    assert_close(gained(ids), plain(ids), atol=1e-5, rtol=1e-5)
    assert gained.blocks[0].attn.gain.shape == (plain.config.heads,)
    with torch.no_grad():
        for block in gained.blocks:
            block.attn.gain.fill_(1.5)
    sharper = GPT(GPTConfig(**fields | {"qk_scale": 1.5**0.5}))
    sharper.load_state_dict(plain.state_dict())
    assert_close(gained(ids), sharper(ids), atol=1e-5, rtol=1e-5)


def test_the_learning_rate_of_gains_is_a_flag_and_scales_with_the_batch() -> None:
    model = lively({**SMALL, "query_gain": 1.0})
    rates = []
    for scalar_lr, scale in ((0.5, 1.0), (0.5, 2.0), (1.5, 1.0)):
        final = group_rates(OptimizerSettings(scalar_lr=scalar_lr), SMALL["width"], scale, 0.1)
        groups = {group.name: group for group in build_groups(model, final)}
        assert [name for name, _ in groups["gains"].params] == [f"blocks.{i}.attn.gain" for i in range(4)]
        rates.append(groups["gains"].lr)
    assert rates == pytest.approx([0.05, 0.1, 0.15])


# ---- what every model has to keep ----

OTHER_VALUES = {"rope_dims": 8, "query_gain": 1.5, "qk_eps": 0.1, "exclusive_last": 2}
TRUNK = {field.name for field in fields(InductionConfig)}
CASES = field_cases(GolfConfig, TRUNK | {"orthogonal"}, OTHER_VALUES)  # which changes the first weights alone


@each_case(CASES)
def test_every_field_acts_trains_and_is_known_to_inference(case, monkeypatch) -> None:
    assert lively(case.switched).config.kind == "golf"
    assert IDLE[case.name] != case.value
    check_that_it_acts(case)
    check_training_and_inference(case)
    check_bound_of_scores(case, monkeypatch)


def test_every_row_of_parameters_is_used() -> None:
    check_rows(GolfGPT, [lively({**SMALL, "mlp": "swiglu", "query_gain": 1.0})])


@pytest.mark.parametrize("name", CONFIGS)
def test_every_configuration_is_one_model_in_all_ways(name, tmp_path, monkeypatch) -> None:
    fields = CONFIGS[name]
    check_letters(fields)
    check_decisions(fields, tmp_path, monkeypatch)
    check_causality(fields)
    check_half_precision(fields, torch.bfloat16)
    check_packed_weights(fields)
    check_decoding(fields, "decode", torch.float32, 2e-6)
    check_decoding(fields, "decode", torch.bfloat16, 0.03)
    check_decoding(fields, "decode", plan="int8-row", bound=2e-5)
    check_answers_in_parts(lively(fields), monkeypatch)
