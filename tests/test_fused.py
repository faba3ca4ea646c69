"""The layers of the model packed for generation; tests/test_gpt_ways.py compares the packed model with the model."""

import pytest
import torch
from model_checks import check_packed_weights
from models import CONFIGS, lively, tokens
from torch import nn
from torch.testing import assert_close

from nanochat.fp8 import Float8Linear, convert
from nanochat.fused import SIZES, PackedLinear, copy_weights, pack


def logits(packed, ids):
    return packed.logits(packed.hidden(ids))


def test_no_weight_is_shared_and_all_are_copied() -> None:
    for fields in CONFIGS.values():
        check_packed_weights(fields)


@pytest.mark.parametrize("rows", [1, 7, 32, 200, 256, 300, 1000])
def test_packed_layers_are_the_layers_side_by_side(rows) -> None:
    layers = [nn.Linear(64, size, bias=False) for size in (64, 32, 96)]
    packed = PackedLinear(lambda: torch.cat([layer.weight for layer in layers]), torch.float32)
    x = torch.randn(rows, 1, 64)
    with torch.inference_mode():
        packed.refresh()
        expected = torch.cat([layer(x) for layer in layers], dim=-1)
        assert_close(packed(x), expected, atol=1e-6, rtol=1e-5)
        packed.packed = False
        packed.weight = None
        packed.refresh()
        place = packed.weight.data_ptr()
        packed.refresh()
        assert packed.weight.data_ptr() == place  # where a CUDA graph looks for it
        assert_close(packed(x), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", CONFIGS)
@torch.inference_mode()
def test_a_model_that_trains_in_fp8_is_packed_as_it_evaluates(name) -> None:
    model, ids = lively(CONFIGS[name]), tokens(2, 20)
    expected = model(ids)
    assert convert(model, min_dim=16, emulated=True)
    packed = pack(model)
    assert_close(logits(packed, ids), expected, atol=1e-4, rtol=1e-4)
    layer = next(module for module in model.modules() if isinstance(module, Float8Linear))
    layer.weight.mul_(2)
    copy_weights(packed, model)
    assert_close(logits(packed, ids), model.eval()(ids), atol=1e-4, rtol=1e-4)


@pytest.fixture
def without_bf16(monkeypatch):
    """Return a call after which oneDNN has no bf16 in this test, as on a CPU with AVX2 alone."""

    def refuse(*_: object):
        raise RuntimeError("mkldnn_reorder_linear_weight: bf16 path needs the cpu support")

    def begin() -> None:
        monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False, raising=False)
        monkeypatch.setattr(torch.ops.mkldnn, "_reorder_linear_weight", refuse, raising=False)

    return begin


@pytest.mark.parametrize("rows", [1, 7, 32, 300])
@torch.inference_mode()
def test_without_bf16_in_onednn_a_layer_keeps_its_weight_as_it_is(rows, without_bf16) -> None:
    weight, x = torch.randn(96, 64).bfloat16(), torch.randn(rows, 1, 64).bfloat16()
    packed = PackedLinear(weight.detach, torch.bfloat16)
    packed.refresh()
    without_bf16()
    plain = PackedLinear(weight.detach, torch.bfloat16)
    plain.refresh()
    assert torch.equal(plain.weight, weight)
    exact = x.float() @ weight.float().T
    for layer in (packed, plain):
        assert layer(x).dtype == torch.bfloat16
        assert_close(layer(x).float(), exact, atol=1e-4, rtol=torch.finfo(torch.bfloat16).eps)


@pytest.mark.parametrize("name", CONFIGS)
@torch.inference_mode()
def test_without_bf16_in_onednn_a_model_computes_the_same(name, without_bf16) -> None:
    model, ids = lively(CONFIGS[name]), tokens(2, 20)
    exact = model(ids)
    model.compute_dtype = torch.bfloat16
    packed = logits(pack(model), ids)
    without_bf16()
    plain = logits(pack(model), ids)
    assert (plain - packed).norm() < 0.03 * exact.norm()
    assert (plain - exact).norm() < 0.03 * exact.norm()


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch has no oneDNN here, which packs weights")
@torch.inference_mode()
def test_any_number_of_rows_takes_few_kernels(monkeypatch) -> None:
    """Each number that a packed weight meets at once leaves a kernel in memory."""
    seen, multiply = set(), torch.ops.mkldnn._linear_pointwise

    def counted(x, *others):
        seen.add(len(x))
        return multiply(x, *others)

    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", counted)
    packed = PackedLinear(torch.randn(64, 48).detach, torch.float32)
    packed.refresh()
    for rows in range(1, 1100):
        assert packed(torch.randn(rows, 1, 48)).shape == (rows, 1, 64)
    assert seen == set(SIZES)
