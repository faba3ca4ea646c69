"""The model for generation against the model itself."""

import pytest
import torch
from models import CONFIGS, SMALL, lively, tokens
from torch import nn

from nanochat.fused import SIZES, Fused, Stacked
from nanochat.kvcache import KVCache


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 2e-6), (torch.bfloat16, 0.03)], ids=str)
@pytest.mark.parametrize("name", CONFIGS)
@torch.inference_mode()
def test_it_is_the_model(name, dtype, bound):
    """A prompt at once, then token by token, past the short window."""
    model, ids = lively(CONFIGS[name]), tokens(3, 150)
    exact = model(ids)
    model.compute_dtype = dtype
    fused, cache = Fused(model), KVCache(model.config, 3, 192, dtype, torch.device("cpu"))
    slots = torch.arange(3)
    logits = [fused.logits(fused.hidden(ids[:, :100], cache=cache.filling(slots, 100)))]
    for i in range(100, 150):
        view = cache.growing(torch.full((3, 1), i), ids[:, i - 1 : i], 192)
        logits.append(fused.logits(fused.hidden(ids[:, i : i + 1], cache=view)))
    ours = torch.cat(logits, dim=1)
    assert ours.dtype == torch.float32
    assert (ours - exact).norm() < bound * exact.norm()


def ask(fused, ids):
    cache = KVCache(fused.config, len(ids), ids.shape[1], torch.float32, ids.device)
    return fused.logits(fused.hidden(ids, cache=cache.filling(torch.arange(len(ids)), ids.shape[1])))


@torch.inference_mode()
def test_nothing_is_shared_and_refresh_takes_all():
    for fields in CONFIGS.values():
        model, ids = lively(fields), tokens(2, 20)
        fused = Fused(model)
        before = ask(fused, ids)
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
        assert torch.equal(ask(fused, ids), before)
        fused.refresh()
        assert torch.equal(ask(fused, ids), ask(Fused(model), ids))
        assert not torch.equal(ask(fused, ids), before)


@pytest.mark.parametrize("rows", [1, 7, 32, 200, 256, 300, 1000])
def test_stacked_layers_are_the_layers_side_by_side(rows):
    layers = [nn.Linear(64, size, bias=False) for size in (64, 32, 96)]
    stacked, x = Stacked(*(layer.weight for layer in layers), dtype=torch.float32), torch.randn(rows, 1, 64)
    with torch.inference_mode():
        stacked.refresh()
        expected = torch.cat([layer(x) for layer in layers], dim=-1)
        torch.testing.assert_close(stacked(x), expected, atol=1e-6, rtol=1e-5)
        stacked.packed = False
        stacked.weight = None
        stacked.refresh()
        place = stacked.weight.data_ptr()
        stacked.refresh()
        assert stacked.weight.data_ptr() == place  # where a CUDA graph looks for it
        torch.testing.assert_close(stacked(x), expected, atol=1e-6, rtol=1e-5)


def test_small_weights_are_left_as_they_are():
    fused = Fused(lively(SMALL))
    stacks = {name: module.packed for name, module in fused.named_modules() if isinstance(module, Stacked)}
    assert not stacks["blocks.1.ve_gate"]
    assert not stacks["smear_gate"]
    assert stacks["head"] == stacks["blocks.0.qkv"] == torch.backends.mkldnn.is_available()


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch has no oneDNN here, which packs weights")
@torch.inference_mode()
def test_any_number_of_rows_takes_few_kernels(monkeypatch):
    """Each number that a packed weight meets at once leaves a kernel in memory."""
    seen, multiply = set(), torch.ops.mkldnn._linear_pointwise

    def counted(x, *others):
        seen.add(len(x))
        return multiply(x, *others)

    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", counted)
    stacked = Stacked(torch.randn(64, 48), dtype=torch.float32)
    stacked.refresh()
    for rows in range(1, 1100):
        assert stacked(torch.randn(rows, 1, 48)).shape == (rows, 1, 64)
    assert seen == set(SIZES)
