"""The loss in chunks against the plain one, which makes all logits at once."""

import pytest
import torch
from torch.nn import functional
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from nanochat.cross_entropy import chunk_length, cross_entropy

# Greatest difference from the plain loss computed in fp64, relative to the greatest value. In both, the weight is
# rounded to the dtype of the hidden states first.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}


def plain(hidden, weight, targets, softcap=0.0, vocab_size=None, reduction="sum"):
    """In fp64 from the same numbers."""
    logits = (hidden.double() @ weight.to(hidden.dtype).double().t())[:, :vocab_size]
    if softcap:
        logits = softcap * torch.tanh(logits / softcap)
    return functional.cross_entropy(logits, targets, ignore_index=-1, reduction=reduction)


def problem(seed, dtype, tokens=50, vocab=37, padded=40):
    """(hidden, weight, targets) with logits of size 2; every third token is ignored; the weight is in fp32 at least."""
    torch.manual_seed(seed)
    weight = torch.randn(padded, 16, dtype=torch.promote_types(dtype, torch.float32))
    hidden = (0.5 * torch.randn(tokens, 16)).to(dtype)
    targets = torch.randint(vocab, (tokens,))
    targets[::3] = -1
    return hidden.requires_grad_(), weight.requires_grad_(), targets


def assert_near(ours, expected, dtype) -> None:
    for one, other in zip(ours, expected, strict=True):
        error = (one.double() - other.double()).abs().max() / other.double().abs().max()
        assert error <= TOLERANCE[dtype], error


def loss_and_gradients(loss, hidden, weight):
    return loss.detach(), *torch.autograd.grad(loss / 8, (hidden, weight))


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("softcap", [0.0, 3.0])
def test_loss_and_gradients_equal_the_plain_ones(dtype, softcap, seed) -> None:
    for tokens, padded, chunk in ((50, 37, 0), (50, 40, 7), (50, 40, 1), (1, 40, 99)):
        hidden, weight, targets = problem(seed, dtype, tokens, padded=padded)
        targets[0] = 36
        ours = cross_entropy(hidden, weight, targets, softcap=softcap, vocab_size=37, chunk=chunk)
        expected = plain(hidden, weight, targets, softcap, vocab_size=37)
        assert ours.dtype == torch.promote_types(dtype, torch.float32)
        ours, expected = (loss_and_gradients(loss, hidden, weight) for loss in (ours, expected))
        assert ours[1].dtype == dtype
        assert ours[2].dtype == weight.dtype
        assert_near(ours, expected, dtype)
        assert not ours[2][37:].any()


def test_the_loss_of_each_token_and_a_sum_weighed_by_factors() -> None:
    hidden, weight, targets = problem(3, torch.float32)
    arguments = {"softcap": 15.0, "vocab_size": 37, "reduction": "none"}
    expected = plain(hidden, weight, targets, **arguments)
    each = cross_entropy(hidden, weight, targets, **arguments, chunk=7)
    assert not each[targets == -1].any()
    assert_near([each], [expected], torch.float32)
    advantages = torch.randn(len(targets))
    wanted = torch.autograd.grad((expected * advantages).sum(), (hidden, weight))
    assert_near(torch.autograd.grad((each * advantages).sum(), (hidden, weight)), wanted, torch.float32)
    with torch.no_grad():
        assert torch.equal(cross_entropy(hidden, weight, targets, **arguments, chunk=7), each)
        total = cross_entropy(hidden, weight, targets, softcap=15.0, vocab_size=37)
    assert not total.requires_grad
    assert_near([total], [expected.sum()], torch.float32)
    # A sum of losses times factors, of rows, and the losses beside it.
    rows, goals, factors = hidden.view(5, 10, -1), targets.view(5, 10), advantages.view(5, 10)
    expected = plain(hidden, weight, targets, **arguments).view(5, 10)
    del arguments["reduction"]
    wanted = (expected * factors).sum()
    total, each = cross_entropy(rows, weight, goals, **arguments, factors=factors, chunk=7)
    assert total.requires_grad
    assert not each.requires_grad
    with torch.no_grad():
        assert_near(cross_entropy(rows, weight, goals, **arguments, factors=factors), (wanted, expected), torch.float32)
    assert_near([each], [expected], torch.float32)
    assert_near(*(loss_and_gradients(loss, hidden, weight) for loss in (total, wanted)), torch.float32)


def test_small_differences_keep_their_gradient() -> None:
    """1 - p is not lost in the logits' few digits, nor a gradient of 2e-8 in fp16, which ends at 6e-8."""
    hidden = torch.tensor([[4.0]], dtype=torch.bfloat16, requires_grad=True)
    weight = torch.tensor([[1.0], [-1.0]], requires_grad=True)
    got, wanted = (loss(hidden, weight, torch.tensor([0])) for loss in (cross_entropy, plain))
    assert_near(*(torch.autograd.grad(loss, (hidden, weight)) for loss in (got, wanted)), torch.bfloat16)
    hidden = torch.ones(2000, 1, dtype=torch.float16, requires_grad=True)
    weight = torch.tensor([[5.0], [5.0], [-12.0]], requires_grad=True)
    targets = torch.arange(2000) % 2
    [ours] = torch.autograd.grad(cross_entropy(hidden, weight, targets), weight)
    [expected] = torch.autograd.grad(plain(hidden.double(), weight.double(), targets), weight)
    assert 1e-5 < expected[2].item() < 1e-4
    assert_close(ours[2].double(), expected[2].double(), rtol=0.1, atol=0)


class Largest(TorchDispatchMode):
    """Remembers the elements of the largest tensor that was made."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        self.elements = max(self.elements, made.numel() if isinstance(made, torch.Tensor) else 0)
        return made


@pytest.mark.parametrize("reduction", ["sum", "none"])
def test_the_logits_of_the_batch_never_exist(reduction) -> None:
    hidden, weight, targets = problem(6, torch.bfloat16, tokens=640, vocab=128, padded=128)
    with Largest() as largest:
        cross_entropy(hidden, weight, targets, softcap=15.0, reduction=reduction, chunk=64).sum().backward()
    assert largest.elements == max(64 * 128, hidden.numel())
    with Largest() as largest:
        plain(hidden, weight, targets)
    assert largest.elements == 640 * 128


@pytest.mark.parametrize("compiles", [False, True])
def test_it_may_stand_inside_a_compiled_graph(compiles) -> None:
    def loss(hidden, weight, targets):
        return cross_entropy(hidden * 2, weight, targets, softcap=15.0, vocab_size=37, chunk=16, compiled=compiles) / 8

    hidden, weight, targets = problem(8, torch.float32)
    whole = torch.compile(loss, fullgraph=True, backend="aot_eager")(hidden, weight, targets)
    expected = plain(hidden * 2, weight, targets, softcap=15.0, vocab_size=37) / 8
    assert_near(*(loss_and_gradients(loss, hidden, weight) for loss in (whole, expected)), torch.float32)


@pytest.mark.parametrize(
    ("tokens", "most", "unit", "length"),
    [
        (16 * 2048, 5461, 256, 4096),  # depth 22 on an H100: 7 chunks would have 4,682 tokens
        (16 * 2048, 5461, 1, 4682),  # on a CPU nothing is gained
        (32 * 2048, 5461, 256, 4096),
        (65536, 4000, 256, 3856),  # 17 chunks; the next aligned ones would be 32
        (8192, 512, 256, 512),
        (2048, 4096, 256, 2048),
        (1000, 512, 256, 500),  # no multiple is near
        (3 * 256, 300, 256, 256),
        (7, 100, 256, 7),
        (0, 100, 256, 1),
    ],
)
def test_chunks_are_equal_and_where_it_costs_little_aligned(tokens, most, unit, length) -> None:
    assert chunk_length(tokens, most, unit) == length
