"""Recipes: rounding, GPTQ, and fake quantization, against plain twins."""

import re

import pytest
import torch
from conftest import each_row
from hypothesis import given
from hypothesis import strategies as st
from models import CONFIGS, lively, tokens
from torch.testing import assert_close

from nanochat import quant
from nanochat.quant import Recipe, assign, parse_recipe, quantize


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(1)


WIDTHS = {"int8-row": 127, "int6-row": 31, "int5-row": 15}


def test_recipes_and_patterns_that_choose_them() -> None:
    assert parse_recipe("int8-row") == Recipe(8)
    assert parse_recipe("int6-row+clip-12.85") == Recipe(6, clip=12.85)
    assert parse_recipe("int5-row+clip-4+gptq") == Recipe(5, clip=4.0, gptq=True)
    assert assign("int8-row", NAMES) == dict.fromkeys(NAMES, "int8-row")
    found = assign("attn|mlp=int6-row,embed=int8-row+clip-20", NAMES)
    assert list(found.values()) == ["int8-row+clip-20", "int6-row", "int6-row"]


NAMES = ["embed.weight", "blocks.0.attn.q.weight", "blocks.0.mlp.up.weight"]


PLANS = r"""
attn=int6-row,embed=int8-row => blocks\.0\.mlp\.up\.weight has no recipe in the plan
attn|mlp=int6-row,embed=int8-row,blocks=int5-row => q\.weight has two recipes, int6-row and int5-row
blocks=int6-row,embed=int8-row,head=int8-row => head=int8-row in the plan matches no tensor
(=int6-row,embed=int8-row => \( in the plan is not a pattern
int6-row,embed=int8-row => embed.weight has two recipes, int6-row and int8-row
"""


@each_row("plan words", PLANS, " => ")
def test_bad_plans_are_refused(plan, words) -> None:
    with pytest.raises(ValueError, match=words):
        assign(plan, NAMES)


@pytest.mark.parametrize(
    "text", "int7-row int8-row+clip int8-row+gptq-3 clip-3 int6-row+int8-row int6-row+gptq+clip int6-row+".split()
)
def test_bad_recipes_are_refused(text) -> None:
    with pytest.raises(ValueError, match=re.escape(f"the recipe {text} is not known: write int8-row, int6-row")):
        assign(text, NAMES)


@given(
    recipe=st.sampled_from(sorted(WIDTHS)),
    rows=st.integers(1, 5),
    columns=st.integers(1, 9),
    seed=st.integers(0, 99),
    outlier=st.booleans(),
)
def test_rounding_is_within_half_a_step_of_the_row(recipe, rows, columns, seed, outlier) -> None:
    weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))
    if outlier:
        weight[0, 0] = 1000.0
    found = quantize(weight, parse_recipe(recipe))
    top = WIDTHS[recipe]
    assert found.codes.abs().max() <= top
    step = weight.abs().amax(1, keepdim=True) / top
    # The scale is rounded to fp16, by 2^-11 of itself.
    assert ((found.dequantize() - weight).abs() <= step / 2 + 2**-10 * weight.abs() + 1e-7).all()


def test_values_at_the_edge() -> None:
    found = quantize(torch.tensor([[1e9, -1.0], [1.0, 0.0]]), parse_recipe("int8-row")).dequantize()
    assert found.isfinite().all()
    assert found[1].tolist() == pytest.approx([1, 0], abs=1e-3)
    weight = torch.randn(3, 8)
    weight[1] = 0
    assert not quantize(weight, Recipe(6)).dequantize()[1].any()
    assert not quantize(weight, Recipe(6, clip=3.0)).dequantize()[1].any()


def test_a_clip_is_in_deviations_of_the_row_and_entropy_is_that_of_the_frequencies() -> None:
    weight = torch.randn(4, 4000, generator=torch.Generator().manual_seed(1))
    weight[0, 0] = 9.0
    found = quantize(weight, Recipe(8, clip=4.0))
    assert_close(127 * found.scales.float(), 4 * weight.std(1, correction=0), rtol=1e-3, atol=0)
    assert found.codes.abs().max() == 127
    assert quant.entropy(torch.tensor([1, 1, 1, 1])) == pytest.approx(0)
    assert quant.entropy(torch.tensor([-3, 5, 0, 0])) == pytest.approx(1.5)


def inputs():
    """Inputs that depend on each other."""
    generator = torch.Generator().manual_seed(1)
    causes, mixed, noise = (torch.randn(size, generator=generator) for size in ((500, 6), (6, 24), (500, 24)))
    return causes @ mixed + 0.1 * noise


def output_error(weight, found, x):
    return (x @ (found.dequantize() - weight).T).norm().item()


def test_gptq_has_a_smaller_error_in_the_outputs_at_equal_steps() -> None:
    weight, x = torch.randn(16, 24), inputs()
    hessian = x.T @ x
    plain, better = quantize(weight, Recipe(5)), quantize(weight, Recipe(5, gptq=True), hessian)
    assert torch.equal(plain.scales, better.scales)
    assert output_error(weight, better, x) < 0.6 * output_error(weight, plain, x)
    # Inputs that do not depend on each other leave nothing to make up for.
    alone = quantize(weight, Recipe(5, gptq=True), torch.eye(24))
    assert torch.equal(alone.codes, plain.codes)


def test_hessians_are_those_of_the_layers_inputs() -> None:
    model, ids = lively(CONFIGS["reference"]), tokens()
    found = quant.collect_hessians(model, [ids[:2], ids[2:]])
    hidden = model.hidden(ids).detach().flatten(0, 1)
    assert_close(found["head.weight"], hidden.T @ hidden, rtol=1e-4, atol=1e-2)
    assert {name for name in found if "mlp.down" in name} == {f"blocks.{i}.mlp.down.weight" for i in range(4)}
    with pytest.raises(ValueError, match=r"embed\.weight has no inputs for gptq, it is a table"):
        quant.quantize_weights({"embed.weight": model.embed.weight}, {"embed.weight": "int8-row+gptq"}, found)


def test_a_loaded_model_is_rounded_in_place(capsys) -> None:
    model, twin = lively(CONFIGS["reference"]), lively(CONFIGS["reference"])
    with pytest.raises(ValueError, match=r"--quant=int6-row\+gptq: gptq needs training text, leave it out"):
        quant.apply(model, "int6-row+gptq")
    quant.apply(model, "")
    assert torch.equal(model.embed.weight, twin.embed.weight)
    quant.apply(model, "embed=int8-row,blocks|head=int6-row")
    assert capsys.readouterr().out.endswith("matrices, embed=int8-row,blocks|head=int6-row\n")
    assert torch.equal(model.embed.weight, quantize(twin.embed.weight, Recipe(8)).dequantize())
    assert torch.equal(model.head.weight, quantize(twin.head.weight, Recipe(6)).dequantize())
    assert torch.equal(model.residual_lambdas, twin.residual_lambdas)
