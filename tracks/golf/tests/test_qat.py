"""Quantization-aware training: layers act as their rounded weights, whose gradients they pass straight through."""

import models
import pytest
import torch
from models import lively, tokens
from torch.testing import assert_close

from nanochat import quant
from nanochat.fused import pack
from nanochat.quant import assign, parse_recipe, quantize
from tracks.golf.qat import FakeQuantization
from tracks.golf.tests import golf_models

CONFIGS = {name: models.CONFIGS[name] for name in ("reference", "portable")} | golf_models.CONFIGS


@pytest.mark.parametrize("name", CONFIGS)
def test_fake_quantization_acts_as_the_quantized_weights_and_its_gradient_passes_straight(name) -> None:
    model, twin, ids = lively(CONFIGS[name]), lively(CONFIGS[name]), tokens()
    plan = "int5-row+clip-3"
    rounding = FakeQuantization(model, plan, 0.5)
    rounding(0.49)
    assert_close(model(ids), twin(ids), atol=0, rtol=0)
    rounding(0.5)
    recipes = assign(plan, quant.matrices(twin))
    rounded = {
        key: quantize(value, parse_recipe(recipes[key])).dequantize() for key, value in quant.matrices(twin).items()
    }
    before = twin(ids)
    twin.load_state_dict(rounded, strict=False)
    assert (twin(ids) - before).abs().max() > 1e-3
    assert_close(model(ids), twin(ids), atol=1e-6, rtol=1e-5)
    packed = pack(model)  # its samples are the rounded model's
    assert_close(packed.logits(packed.hidden(ids)), twin(ids), atol=1e-4, rtol=1e-4)
    (model(ids, ids) / 100).backward()
    (twin(ids, ids) / 100).backward()
    for (key, one), other in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert_close(one.grad, other.grad, atol=1e-5, rtol=1e-3, msg=key)
    # The weights themselves are what they were, and the first layers can come back.
    rounding.switch(False)
    assert_close(model(ids), before)


def test_weights_are_rounded_again_after_a_step() -> None:
    model, ids = lively(CONFIGS["golf"]), tokens()
    rounding = FakeQuantization(model, "int6-row", 0)
    rounding(0)
    before = model(ids)
    with torch.no_grad():
        model.blocks[0].mlp.up.weight.mul_(-1)
    assert torch.equal(model(ids), before)
    rounding(0)
    assert not torch.allclose(model(ids), before)


def test_parameters_stay_the_optimizers() -> None:
    """Layers are replaced: parameters, their names and order are the same. An empty plan replaces none."""
    model = lively(CONFIGS["golf"])
    before = dict(model.named_parameters())
    layers = list(model.modules())
    FakeQuantization(model, "", 0)
    assert list(model.modules()) == layers
    FakeQuantization(model, "int6-row", 0)
    after = dict(model.named_parameters())
    assert list(after) == list(before)
    assert all(after[name] is before[name] for name in before)


def test_gptq_needs_text() -> None:
    with pytest.raises(ValueError, match=r"--qat=int6-row\+gptq: gptq cannot be used in training, leave it out"):
        FakeQuantization(lively(CONFIGS["golf"]), "int6-row+gptq", 0)
