"""The model: shape, initial values, layers, and the forward by hand."""

import pytest
import torch
import torch.nn.functional as F
from conftest import each_row
from engines import devices
from model_checks import check_causality
from models import BOS, CONFIGS, SMALL, lively, tokens
from torch.testing import assert_close

from nanochat.attention import RotaryTable
from nanochat.gpt import GPT, MLP_KINDS, GPTConfig
from nanochat.param_groups import parameter_counts
from nanochat.scaling import flops_per_token

REFUSED = """
mlp="gelu" | mlp=gelu is not known, use one of relu2, swiglu
window_pattern="SX" | letters S and L
kv_heads=3 | kv_heads=3 does not divide heads=4
kv_heads=0 | kv_heads=0 does not divide heads=4
"""


@each_row("fields words", REFUSED)
def test_a_config_that_cannot_be_is_refused(fields, words) -> None:
    with pytest.raises(ValueError, match=words):
        eval(f"GPTConfig(**SMALL | dict({fields}))")


def test_the_reference_shapes() -> None:
    assert (GPTConfig().heads, GPTConfig().kv_heads) == (6, 6)
    config = GPTConfig(depth=24, width=1536, heads=12, kv_heads=12)
    assert config.windows == [513, 513, 513, 0] * 6  # as in the public reference: 512 keys and the token's own
    assert GPTConfig(depth=6, max_seq_len=1024, window_pattern="SL").windows == [257, 0] * 3
    assert GPTConfig(depth=3, max_seq_len=600, window_pattern="S").windows == [257, 257, 0]
    assert GPTConfig(depth=3, max_seq_len=128, window_pattern="S").windows == [0, 0, 0]  # all is short enough
    assert GPTConfig(depth=5).value_layers == [0, 2, 4]
    assert GPTConfig(depth=4).value_layers == [1, 3]


def test_flops_of_a_small_model_by_hand() -> None:
    """test_scaling.py compares numbers of parameters with those of the reference."""
    model = GPT(GPTConfig(**SMALL))  # width 64, 4 heads of 16, 2 for keys and values; vocabulary 100 → 128
    layer = 64 * 64 + 2 * 32 * 64 + 64 * 64 + 2 * 64 * 256
    weights = 4 * layer + 2 * 12 * 2 + 128 * 64 + 24  # layers, gates of values, head, smear
    assert flops_per_token(model, 512) == 6 * weights + 12 * 64 * (129 + 129 + 129 + 512)
    assert flops_per_token(model, 200) == 6 * weights + 12 * 64 * (129 + 129 + 129 + 200)  # in shorter rows
    tied = GPT(GPTConfig(**SMALL, tie_embeddings=True))
    assert parameter_counts(tied)["head"] == 0
    assert flops_per_token(tied, 512) == flops_per_token(model, 512)


def test_initial_values() -> None:
    model = GPT(GPTConfig(**{**SMALL, "width": 256}))
    model.init_weights(11)
    values = dict(model.named_parameters())
    bound = 3**0.5 / 256**0.5
    for name in ("q", "k", "v"):
        assert 0.95 * bound < values[f"blocks.2.attn.{name}.weight"].abs().max() < bound
    deviations = {"blocks.0.mlp.up": 0.4 / 256**0.5, "value_embeds.1": 1 / 256**0.5, "embed": 0.8, "head": 0.001}
    for name, deviation in deviations.items():
        assert values[f"{name}.weight"].std().item() == pytest.approx(deviation, rel=0.05), name
    for name in ("blocks.1.attn.o.weight", "blocks.1.mlp.down.weight", "smear_lambda"):
        assert not values[name].any()
    for name in ("blocks.1.attn.ve_gate.weight", "smear_gate.weight"):
        assert values[name].min() >= 0
        assert 0 < values[name].max() < 0.02
    assert_close(model.residual_lambdas.data, torch.tensor([1.15, 1.15 - 0.1 / 3, 1.05 + 0.1 / 3, 1.05]))
    assert_close(model.x0_lambdas.data, torch.tensor([0.20, 0.15, 0.10, 0.05]))
    assert model.backout_lambda.item() == pytest.approx(0.2)


def test_the_seed_alone_decides() -> None:
    here, deeper, other = (GPT(GPTConfig(**{**SMALL, "depth": depth})) for depth in (4, 6, 4))
    with torch.device("meta"):
        there = GPT(GPTConfig(**SMALL))
    there.to_empty(device="cpu")
    for model, seed in ((here, 1), (deeper, 1), (other, 2), (there, 1)):
        torch.manual_seed(torch.initial_seed() + 1)  # the global generator has no say
        model.init_weights(seed)
    assert_close(here.state_dict(), there.state_dict(), atol=0, rtol=0)
    first, second, third = (model.blocks[2].attn.q.weight for model in (here, deeper, other))
    equal = [torch.equal(first, weight) for weight in (second, third, here.blocks[1].attn.q.weight)]
    assert equal == [True, False, False]
    assert torch.equal(here(tokens()), there(tokens()))  # the tables of rotation are filled too
    there.to_empty(device="cpu")
    there.load_state_dict(here.state_dict())
    assert torch.equal(here(tokens()), there(tokens()))


@pytest.mark.parametrize("name", CONFIGS)
def test_no_token_sees_a_later_one(name) -> None:
    check_causality(CONFIGS[name])


def test_a_layer_by_hand() -> None:
    """The reference at depth 1, from the formulas; tests of the import have the plain block of October 2025."""
    model, ids = lively({**SMALL, "depth": 1, "kv_heads": 4}), tokens(1, 20)
    p = {key: value.detach() for key, value in model.named_parameters()}
    rms = lambda x: x / (x.square().mean(-1, keepdim=True) + 2**-23).sqrt()  # noqa: E731
    x = rms(p["embed.weight"][ids[0]])
    gate = p["smear_lambda"] * torch.sigmoid(x[:, :24] @ p["smear_gate.weight"].T)
    for t in reversed(range(1, 20)):
        if ids[0, t] != BOS:
            x[t] += gate[t] * x[t - 1]
    x = (p["residual_lambdas"] + p["x0_lambdas"]) * x
    y = rms(x)
    q, k, v = ((y @ p[f"blocks.0.attn.{name}.weight"].T).view(20, 4, 16).transpose(0, 1) for name in ("q", "k", "v"))
    gate = 3 * torch.sigmoid(y[:, :12] @ p["blocks.0.attn.ve_gate.weight"].T)
    v = v + (gate[..., None] * p["value_embeds.0.weight"][ids[0]].view(20, 4, 16)).transpose(0, 1)
    turns = torch.polar(torch.ones(20, 8), torch.arange(20.0)[:, None] * 100_000.0 ** -(torch.arange(8.0) / 8))
    q, k = (torch.view_as_real(torch.complex(x[..., :8], x[..., 8:]) * turns).mT.flatten(-2) for x in (q, k))
    scores = rms(q) @ rms(k).mT * 1.44 / 4
    weights = scores.masked_fill(torch.ones(20, 20).triu(1).bool(), -torch.inf).softmax(-1)
    x = x + (weights @ v).transpose(0, 1).flatten(1) @ p["blocks.0.attn.o.weight"].T
    x = x + F.relu(rms(x) @ p["blocks.0.mlp.up.weight"].T).square() @ p["blocks.0.mlp.down.weight"].T
    x = (1 - p["backout_lambda"]) * x
    logits = 15 * torch.tanh(rms(x) @ p["head.weight"][:100].T / 15)
    assert_close(model(ids)[0], logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("device", devices())
def test_gradients_of_tables_are_added_to_the_optimizers_buffer(device, tied) -> None:
    fields = SMALL | {"tie_embeddings": tied}
    model, plain, ids = lively(fields).to(device), lively(fields).to(device), tokens().to(device)
    places = {name: torch.zeros_like(parameter)[:] for name, parameter in model.named_parameters()}
    for name, parameter in model.named_parameters():
        parameter.grad = places[name]  # a view, as in the optimizer
    for _ in range(2):
        model(ids, ids).backward()
        plain(ids, ids).backward()
    for name, parameter in plain.named_parameters():
        assert_close(places[name], parameter.grad)
    assert all(parameter.grad is places[name] for name, parameter in model.named_parameters())
    assert model.embed(ids).grad_fn._saved_sparse
    assert not plain.embed(ids).grad_fn._saved_sparse


def test_partial_rotation_and_the_square_of_a_leaky_relu() -> None:
    """A table may rotate a part of a head's channels."""
    table, x = RotaryTable(16, 4, 100.0), torch.randn(1, 16, 2, 12)
    table.fill()
    turned = table(slice(16)).apply(x)
    assert torch.equal(turned[..., 4:], x[..., 4:])
    assert_close(turned[..., :4], table(slice(16)).apply(x[..., :4]))
    assert not torch.allclose(turned[:, 1:, :, :4], x[:, 1:, :, :4])
    squares = MLP_KINDS["leaky2"].activation(torch.tensor([-2.0, 0.0, 3.0]))
    assert_close(squares, torch.tensor([1.0, 0.0, 9.0]))
