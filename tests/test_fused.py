"""The layers of the model packed for generation; tests/test_gpt_ways.py compares the packed model with the model."""

import pytest
import torch
from model_checks import check_packed_weights
from models import CONFIGS
from torch import nn
from torch.testing import assert_close

from nanochat.fused import SIZES, PackedLinear


def test_no_weight_is_shared_and_refresh_takes_all():
    for fields in CONFIGS.values():
        check_packed_weights(fields)


@pytest.mark.parametrize("rows", [1, 7, 32, 200, 256, 300, 1000])
def test_packed_layers_are_the_layers_side_by_side(rows):
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


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch has no oneDNN here, which packs weights")
@torch.inference_mode()
def test_any_number_of_rows_takes_few_kernels(monkeypatch):
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
