"""Layers of whole numbers, against the rounded model in fp32."""

import pytest
import torch
from model_checks import check_decoding
from models import CONFIGS, lively, tokens
from torch import Tensor
from torch.testing import assert_close

from nanochat import int8, quant
from nanochat.fused import PackedLinear, pack
from nanochat.int8 import Int8, Int8Embedding, Int8Linear, PackedInt8Linear, keep_int8
from nanochat.quant import Recipe, quantize


@pytest.fixture(params=[True, False], ids=["fbgemm", "without fbgemm"])
def fbgemm(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(int8, "HAS_FBGEMM", request.param and int8.HAS_FBGEMM)
    return request.param


def matrix(rows: int, columns: int) -> quant.Quantized:
    return quantize(torch.randn(rows, columns) * torch.rand(rows, 1), Recipe(8))


@pytest.mark.parametrize("rows", [1, 3, 17, 200])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-6), (torch.bfloat16, 2**-8), (torch.float16, 2**-10)])
@torch.inference_mode()
def test_products_are_those_of_the_rounded_weights(rows: int, dtype: torch.dtype, bound: float, fbgemm: bool) -> None:
    layers = [Int8Linear(matrix(size, 96)) for size in (64, 33, 32)]
    x = (100 * torch.randn(rows, 1, 96)).to(dtype)  # times the whole numbers, fp16 would overflow
    exact = [x.double() @ layer.active_weight.double().T for layer in layers]
    joined = torch.cat(exact, -1)
    order = torch.randperm(129)
    found = [*(layer(x) for layer in layers), PackedInt8Linear(layers, dtype)(x)]
    found.append(PackedInt8Linear(layers, dtype, order)(x))
    for ours, expected in zip(found, [*exact, joined, joined[..., order]], strict=True):
        assert ours.dtype == dtype
        assert (ours - expected).norm() < bound * expected.norm()


@torch.inference_mode()
def test_a_table_gives_rounded_rows() -> None:
    table = Int8Embedding(matrix(50, 16))
    ids = torch.tensor([[3, 49], [0, 3]])
    assert torch.equal(table(ids), table.active_weight[ids])


def rounded(fields: dict) -> tuple[torch.nn.Module, Tensor, Tensor]:
    """Return a model that keeps whole numbers, ids, and the logits of the same rounded weights in fp32."""
    model, ids = lively(fields), tokens(2, 40)
    stored = quant.apply(model, "int8-row")
    exact = model(ids)
    keep_int8(model, stored)
    return model, ids, exact


@pytest.mark.parametrize("name", CONFIGS)
@torch.inference_mode()
def test_a_model_computes_as_its_rounded_weights(name: str, fbgemm: bool) -> None:
    model, ids, exact = rounded(CONFIGS[name])
    assert_close(model(ids), exact, atol=1e-4, rtol=1e-4)
    packed = pack(model)
    assert_close(packed.logits(packed.hidden(ids)), exact, atol=1e-4, rtol=1e-4)
    assert not quant.matrices(model)  # no matrix that was rounded is kept as floats
    assert all(layer.matrix().numel() < 1024 for layer in packed.modules() if isinstance(layer, PackedLinear))
    assert not quant.matrices(packed)
    assert sum(isinstance(module, PackedInt8Linear) for module in packed.modules()) > len(model.blocks)


@pytest.mark.parametrize("name", CONFIGS)
def test_decoding_is_the_full_pass(name: str, fbgemm: bool) -> None:
    check_decoding(CONFIGS[name], "decode", plan="int6-row", bound=2e-5)


@torch.inference_mode()
def test_numbers_take_a_byte_in_the_model() -> None:
    model, _, _ = rounded(CONFIGS["reference"])
    layers = [module for module in model.modules() if isinstance(module, Int8)]
    weights = sum(layer.weight.numel() for layer in layers)
    held = [*model.parameters(), *(value for layer in layers for value in vars(layer).values())]
    assert sum(value.nbytes for value in held if isinstance(value, Tensor)) < 1.2 * weights
