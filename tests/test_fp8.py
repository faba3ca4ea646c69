"""Linear layers in fp8 against their own arithmetic written out, and against the plain product."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from nanochat import fp8
from nanochat.fp8 import BACKWARD, FORWARD, Float8Linear, convert, quantize, requantize

# ‖fp8 product - product‖ / ‖product‖ for normal numbers: e4m3 keeps 3 binary digits, e5m2 keeps 2.
FORWARD_ERROR, BACKWARD_ERROR = (0.02, 0.05), (0.03, 0.08)


class Block(nn.Module):
    """Layers as a model has them: some to convert, some to leave."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(32, 64, bias=False)
        self.down = nn.Linear(64, 32, bias=False)
        self.gate = nn.Linear(32, 16, bias=False)
        self.odd = nn.Linear(32, 40, bias=False)
        self.head = nn.Linear(32, 128, bias=False)

    def forward(self, x):
        return self.head(self.down(torch.relu(self.up(x))))


def block(min_dim=32):
    model = Block()
    convert(model, min_dim=min_dim, emulated=True)
    return model


def back(x, dtype):
    """x after a trip through fp8, in fp32."""
    digits, scale = quantize(x, dtype)
    return digits.float() * scale


def distance(one, other):
    return ((one.double() - other.double()).norm() / other.double().norm()).item()


@pytest.fixture(autouse=True)
def seeded(seed) -> None:
    torch.manual_seed(seed)


def layer_and_input(dtype, device="cpu"):
    linear = nn.Linear(64, 32, bias=False, device=device)
    x = torch.randn(48, 64, device=device).to(dtype).requires_grad_()
    outer = 1e-4 * torch.randn(48, 32, device=device).to(dtype)
    return Float8Linear(linear), x, outer


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_output_and_gradients(dtype, device) -> None:
    """Equal to the emulation but for rounding of the result, near the plain ones."""
    if device == "cuda":
        if not torch.cuda.is_available() or torch.cuda.get_device_capability() < fp8.FIRST_CAPABILITY:
            pytest.skip("needs a GPU with fp8")
        assert convert(nn.Sequential(nn.Linear(128, 128, bias=False)).cuda()) == ["0"]
    layer, x, outer = layer_and_input(dtype, device=device)
    y = layer(x)
    got = y, *torch.autograd.grad(y, (x, layer.weight), outer)
    assert [value.dtype for value in got] == [dtype, dtype, torch.float32]

    x8, w8, outer8 = back(x, FORWARD), back(layer.weight, FORWARD), back(outer, BACKWARD)
    emulated = x8 @ w8.t(), outer8 @ w8, outer8.t() @ x8
    x, w, outer = x.float(), layer.weight, outer.float()
    plain = x @ w.t(), outer @ w, outer.t() @ x
    rounding = 1e-3 if device == "cuda" else 1e-6  # a GPU's sums keep fewer digits
    errors = FORWARD_ERROR, BACKWARD_ERROR, BACKWARD_ERROR
    for (low, high), value, twin, exact in zip(errors, got, emulated, plain, strict=True):
        assert distance(value, twin) < (4e-3 if value.dtype == torch.bfloat16 else rounding)
        assert low < distance(value, exact) < high


@pytest.mark.parametrize(("dtype", "digits", "smallest"), [(FORWARD, 3, 2**-9), (BACKWARD, 2, 2**-16)], ids=str)
@pytest.mark.parametrize("size", [1e-8, 1.0, 1e30])
def test_rounding_is_to_the_nearest(dtype, digits, smallest, size) -> None:
    torch.manual_seed(0)
    x = size * torch.randn(64, 64).exp() * torch.randn(64, 64)
    _, scale = quantize(x, dtype)
    error = (back(x, dtype) - x).abs()
    assert (error <= 1.001 * torch.maximum(x.abs() * 2 ** -(digits + 1), scale * smallest / 2)).all()
    assert back(x, dtype).abs().max() == pytest.approx(x.abs().max().item(), rel=1e-6)


@pytest.mark.parametrize("dtype", [FORWARD, BACKWARD], ids=str)
def test_numbers_at_the_edge(dtype) -> None:
    for value in (0.0, 1e-30, 1e-40, torch.finfo(torch.float32).max, -torch.finfo(torch.bfloat16).max):
        digits, scale = quantize(torch.full((16, 16), value), dtype)
        assert torch.isfinite(digits.float() * scale).all()
        assert torch.isfinite(scale)
    assert not back(torch.zeros(16, 16), dtype).any()
    for value in (torch.inf, -torch.inf, torch.nan):
        x = torch.ones(16, 16)
        x[3, 4] = value
        assert back(x, dtype)[3, 4].isnan()
    assert quantize(torch.randn(16, 32).t(), dtype)[0].is_contiguous()


def test_a_refresh_keeps_the_memory_and_stale_copies_are_not_used_in_backward() -> None:
    layer, x, outer = layer_and_input(torch.float32)
    y = layer(x)
    addresses = [tensor.data_ptr() for tensor in layer.quantized]
    layer.weight.data.mul_(2)  # behind the back of the version counter
    requantize(layer)
    assert [tensor.data_ptr() for tensor in layer.quantized] == addresses
    assert distance(layer(x), 2 * y) < 1e-6
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward(outer)


def test_evaluation_is_not_in_fp8() -> None:
    layer, x, _ = layer_and_input(torch.bfloat16)
    exact = functional.linear(x, layer.weight.to(x.dtype))
    assert not torch.equal(layer(x), exact)
    with torch.no_grad():
        assert torch.equal(layer(x), exact)
        assert layer(x[:5]).shape == (5, 32)
    assert torch.equal(layer.eval()(x), exact)


def test_converting_a_model() -> None:
    model = Block()
    before = {name: (parameter.data_ptr(), id(parameter)) for name, parameter in model.named_parameters()}
    saved = list(model.state_dict())
    assert convert(model, min_dim=32, emulated=True) == ["up", "down"]
    assert {name: (parameter.data_ptr(), id(parameter)) for name, parameter in model.named_parameters()} == before
    assert list(model.state_dict()) == saved
    model.to(torch.bfloat16)
    assert model.up.quantized[0].dtype == FORWARD
    with pytest.raises(ValueError, match=r"this device does not multiply in fp8 .* omit --fp8"):
        convert(Block())
    with pytest.raises(ValueError, match="15 tokens in a micro-batch: fp8 needs a multiple of 16"):
        block()(torch.randn(3, 5, 32))


def test_a_graph_is_whole_and_reads_refreshed_weights() -> None:
    torch.manual_seed(0)
    model, x = block(), torch.randn(2, 16, 32, requires_grad=True)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for step in range(3):
        with torch._dynamo.config.patch(error_on_recompile=step > 0):
            ours = compiled(x)
        expected = model(x)
        assert distance(ours, expected) < 1e-3
        gradients = (torch.autograd.grad(y.square().sum(), (x, model.up.weight)) for y in (ours, expected))
        assert all(distance(one, other) < 5e-2 for one, other in zip(*gradients, strict=True))
        with torch.no_grad():
            model.up.weight.add_(torch.randn(64, 32))
        requantize(model)
