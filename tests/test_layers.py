import math

import pytest
import torch
from torch import nn

from nanochat.layers import Embedding, Linear, norm, rotate


def test_gradients_of_a_product_add_up_in_fp32():
    layer, plain = Linear(8, 4), nn.Linear(8, 4, bias=False)
    nn.init.normal_(layer.weight)
    plain.load_state_dict(layer.state_dict())
    x = torch.randn(3, 8, dtype=torch.bfloat16)
    out = layer(x)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), plain(x.float()), atol=0.1, rtol=0.02)
    out.sum().backward()
    assert layer.weight.grad.dtype == torch.float32


@pytest.mark.parametrize("make", [lambda: Linear(8, 4), lambda: Embedding(8, 4)])
def test_no_value_is_drawn_before_it_is_given(make):
    torch.manual_seed(3)
    before = torch.get_rng_state()
    make()
    assert torch.equal(torch.get_rng_state(), before)


def test_the_norm_is_the_root_of_the_mean_square():
    x = torch.tensor([[3.0, 4.0]])
    torch.testing.assert_close(norm(x, 0.0), x / math.sqrt(12.5))
    torch.testing.assert_close(norm(x, 12.5), x / 5)


def test_pairs_are_turned_and_the_rest_and_the_still_heads_stay():
    angle = torch.tensor([0.3, -1.1])
    x = torch.arange(10.0).view(1, 1, 2, 5)
    turned = rotate(x, angle.cos(), angle.sin(), still=1)[0, 0]
    assert turned[0].tolist() == x[0, 0, 0].tolist()
    for pair in (0, 1):
        a, b = x[0, 0, 1, pair].item(), x[0, 0, 1, pair + 2].item()
        expected = complex(a, b) * complex(math.cos(angle[pair]), math.sin(angle[pair]))
        assert turned[1, pair].item() == pytest.approx(expected.real, abs=1e-5)
        assert turned[1, pair + 2].item() == pytest.approx(expected.imag, abs=1e-5)
    assert turned[1, 4] == x[0, 0, 1, 4]
