"""The recursive model: against the formulas written out, and what it promises about exits, gradients and caches."""

from dataclasses import asdict, fields

import pytest
import torch
from engines import SIZES, check_greedy
from loop_parts import ALONE
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
    gradients,
)
from models import OLD_RECORD, SMALL, leave_model, lively, tokens
from plain_core import check_decisions
from test_objectives import check_answers_in_parts
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from nanochat import registry
from nanochat.decoder import Decoder
from nanochat.induction import InductionConfig
from nanochat.models import build_model, config_of, load_model, record_of
from nanochat.scaling import flops_per_token
from nanochat.tokenizer import Tokenizer
from tracks.recursion.model import LoopedConfig, LoopedGPT, RecursiveConfig, RecursiveGPT
from tracks.recursion.objective import DeepSupervision
from tracks.recursion.tests.recursive_models import CONFIGS, RECURSIVE
from tracks.recursion.tests.written_out import written_out

SETTINGS = {"depth": 2, "supervision": 3, "loops": 2}


@pytest.mark.parametrize("name", RECURSIVE)
def test_every_exit_is_that_of_the_formulas(name) -> None:
    model, ids = lively(CONFIGS[name]), tokens()
    exits = [model.logits(hidden) for hidden in model.exits(ids)]
    assert len(exits) == model.config.supervision
    expected = written_out(model, ids)
    gradients = []
    for logits in (exits, expected):
        model.zero_grad()
        sum(some.square().sum() for some in logits).backward()
        gradients.append({name: parameter.grad.clone() for name, parameter in model.named_parameters()})
    assert_close((exits, gradients[0]), (expected, gradients[1]), atol=1e-3, rtol=1e-4)
    assert torch.equal(model(ids), exits[-1])
    model.steps = 1
    assert torch.equal(model(ids), exits[0])


@pytest.mark.parametrize("changes", [{}, {"passes": 2}, {"loops": 1, "supervision": 2}])
def test_flops_are_those_of_the_products(changes) -> None:
    """Against a count of the products as they run, attention aside: the formula takes all keys as seen."""
    shape = RecursiveConfig(
        vocab_size=128, width=64, heads=2, kv_heads=2, max_seq_len=32, bos_id=0, **SETTINGS | changes
    )
    model = build_model(shape, ALONE, 1)
    ids = torch.randint(128, (1, 32))
    with FlopCounterMode(display=False) as counter:
        loss, *_ = DeepSupervision(5.0, 1.0)(model, (ids, ids))
        loss.backward()
    counts = counter.get_flop_counts()["Global"]
    products = sum(
        number for operation, number in counts.items() if "mm" in str(operation) and "bmm" not in str(operation)
    )
    attention = 12 * 64 * 2 * 32 * (shape.loops + 1) * shape.supervision * (1 + (shape.passes - 1) / 3)
    assert products / 32 == pytest.approx(flops_per_token(model, 32) - attention, rel=0.01)


def test_the_scale_of_updates_is_that_of_all_applications() -> None:
    config = RecursiveConfig(depth=2, supervision=4, loops=2, passes=1, residual_power=0.5)
    assert config.update_scale == pytest.approx(24**-0.5)
    assert RecursiveConfig().update_scale == 1
    model, ids = lively(RECURSIVE["recursive scaled"]), tokens()
    two = list(model.exits(ids))
    model.steps = 4
    assert torch.equal(list(model.exits(ids))[1], two[1])  # more exits than were trained do not change it


def test_other_numbers_of_exits_are_told(base, capsys, monkeypatch) -> None:
    tokenizer = Tokenizer.train(["a fox and a dog"], 300)
    leave_model(base, "base_train", "recursive", tokenizer, preset=CONFIGS["recursive"])
    leave_model(base, "base_train", "reference", tokenizer, preset="reference")
    model, _, _ = load_model("base_train", "recursive", -1, ALONE, exits=2)
    assert isinstance(model, RecursiveGPT)
    assert capsys.readouterr().out.endswith("recursion: 2 exits, trained with 3\n")
    assert model.steps == len(list(model.exits(tokens()))) == 2
    with pytest.raises(ValueError, match="--exits is for recursive models, and this is not one"):
        load_model("base_train", "reference", -1, ALONE, exits=2)
    monkeypatch.setattr("nanochat.decoder.free_memory", lambda device: 1e6)
    model.steps = 600
    decoder = Decoder(model)
    for _ in range(2):  # a second try meets the same
        with pytest.raises(ValueError, match=r"one row of 128 tokens needs 0.1 GB, 0.0 GB are free: use fewer --exits"):
            decoder.make_room(1, 128)


def test_a_looped_model_is_the_stack_over_and_over() -> None:
    model, ids = lively(CONFIGS["looped"]), tokens()
    context = model.context(ids)
    x = context.x0
    for _ in range(3):
        x = model.sweep(x, context)
    assert torch.equal(model(ids), model.logits(x))
    plain = lively({**CONFIGS["looped"], "sweeps": 1})
    assert plain.config.kind == "gpt"
    blocks = 6 * sum(p.numel() for p in plain.blocks.parameters() if p.ndim == 2)
    more = flops_per_token(model, 512) - flops_per_token(plain, 512)
    keys = sum(window or 512 for window in plain.config.windows)
    assert more == 2 * (blocks + 12 * 64 * keys)


def test_manifests_from_before_there_were_kinds() -> None:
    for changes, kind in (
        ({"supervision": 4, "tie_embeddings": True, "induction": True}, "recursive"),
        ({"supervision": 2, "loops": 1, "passes": 2, "detached": 1}, "recursive"),
        ({"sweeps": 12}, "looped"),
    ):
        config = config_of({"model": OLD_RECORD | changes})
        assert config.kind == kind
        newer = {"residual_power": 0.0}  # a field from after there were kinds
        assert asdict(config).items() <= (newer | OLD_RECORD | changes).items()
        assert config_of({"model": record_of(config)}) == config


# ---- what every model has to keep ----


def test_the_registry_has_the_fields() -> None:
    """With the values that change nothing: no exit is no recursion."""
    trunk = {field.name for field in fields(InductionConfig)}
    for config_class, kind in ((RecursiveConfig, "recursive"), (LoopedConfig, "looped")):
        own = {field.name: field.default for field in fields(config_class) if field.name not in trunk}
        found = registry.MODEL_FIELDS[kind]
        assert found.keys() == own.keys()
        if kind == "recursive":
            assert found == own | {"supervision": 0}


def test_a_config_that_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="sweeps=0 has to be at least 1"):
        lively({**CONFIGS["looped"], "sweeps": 0})
    with pytest.raises(ValueError, match="no kind of model has these fields together: supervision, sweeps"):
        lively({**CONFIGS["recursive"], "sweeps": 2})
    with pytest.raises(ValueError, match="a recursive model needs at least one exit and one pass"):
        RecursiveConfig(**SMALL, passes=0)


OTHER_VALUES = {"supervision": 3, "loops": 1, "passes": 2, "detached": 1, "residual_power": 0.5, "sweeps": 2}
TRUNK = {field.name for field in fields(InductionConfig)}
USUAL = {**SMALL, "supervision": 2}
CASES = field_cases(RecursiveConfig, TRUNK, OTHER_VALUES, USUAL) + field_cases(LoopedConfig, TRUNK, OTHER_VALUES)


@each_case(CASES)
def test_every_field_acts_trains_and_is_known_to_inference(case, monkeypatch) -> None:
    if case.name == "detached":
        usual, other = lively(case.usual), lively(case.switched)
        assert not torch.allclose(
            gradients(usual, tokens())["embed.weight"], gradients(other, tokens())["embed.weight"]
        )
    else:
        check_that_it_acts(case)
    check_training_and_inference(case)
    check_bound_of_scores(case, monkeypatch)


@pytest.mark.parametrize("name", CONFIGS)
def test_every_configuration_is_one_model_in_all_ways(name, tmp_path, monkeypatch) -> None:
    fields = CONFIGS[name]
    check_causality(fields)
    check_half_precision(fields, torch.bfloat16)
    check_packed_weights(fields)
    check_decoding(fields, "decode", torch.float32, 2e-6)
    check_decoding(fields, "decode", torch.bfloat16, 0.03)
    check_decoding(fields, "decode", plan="int8-row", bound=2e-5)
    check_letters(fields)
    check_decisions(fields, tmp_path, monkeypatch)
    check_answers_in_parts(lively(fields), monkeypatch)
    check_answers_in_parts(lively(fields, checkpointing=True), monkeypatch)


@pytest.mark.parametrize("name", RECURSIVE)
@pytest.mark.parametrize("exits", [1, 5])
def test_a_cache_has_keys_for_every_application_at_any_number_of_exits(name, exits) -> None:
    check_decoding(CONFIGS[name], "decode", bound=5e-6, exits=exits)


def test_greedy_is_the_plain_loop() -> None:
    check_greedy(lively({**CONFIGS["recursive"], **SIZES}).requires_grad_(False))


def test_every_row_of_parameters_is_used() -> None:
    all_tricks = {**SMALL, "mlp": "swiglu", "induction": True}
    check_rows(RecursiveGPT, [lively({**all_tricks, "supervision": 2})])
    check_rows(LoopedGPT, [lively({**all_tricks, "sweeps": 2})])
