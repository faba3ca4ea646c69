"""The model: shape, initial values, layers, and the forward by hand."""

import pytest
import torch
import torch.nn.functional as F
from conftest import each_row
from engines import devices
from models import BOS, CONFIGS, SMALL, lively, tokens
from torch.testing import assert_close

from nanochat.attention import RotaryTable, exclude_own
from nanochat.gpt import GPT, MLP_KINDS, GPTConfig
from nanochat.param_groups import parameter_counts
from nanochat.scaling import flops_per_token

REFUSED = """
mlp="gelu" | mlp=gelu is not known, take one of relu2, swiglu
window_pattern="SX" | letters S and L
rope_dims=18 | rope_dims=18 has to be even, and at most 16, the head's size
rope_dims=3 | rope_dims=3 has to be even
induction=True, smear=False | induction needs smear
"""


@each_row("fields words", REFUSED)
def test_a_config_that_cannot_be_is_refused(fields, words):
    with pytest.raises(ValueError, match=words):
        eval(f"GPTConfig(**SMALL, {fields})")


def test_the_reference_shapes():
    config = GPTConfig(depth=24, width=1536, heads=12)
    assert config.kv_heads == 12
    assert config.windows == [513, 513, 513, 0] * 6  # as in the public reference: 512 keys and the token's own
    assert GPTConfig(depth=6, max_seq_len=1024, window_pattern="SL").windows == [257, 0] * 3
    assert GPTConfig(depth=3, max_seq_len=600, window_pattern="S").windows == [257, 257, 0]
    assert GPTConfig(depth=3, max_seq_len=128, window_pattern="S").windows == [0, 0, 0]  # all is short enough
    assert GPTConfig(depth=5).value_layers == [0, 2, 4]
    assert GPTConfig(depth=4).value_layers == [1, 3]


def test_flops_of_a_small_model_by_hand():
    """test_scaling.py compares numbers of parameters with those of the reference."""
    model = GPT(GPTConfig(**SMALL))  # width 64, 4 heads of 16, 2 for keys and values; vocabulary 100 → 128
    layer = 64 * 64 + 2 * 32 * 64 + 64 * 64 + 2 * 64 * 256
    weights = 4 * layer + 2 * 12 * 2 + 128 * 64 + 24  # layers, gates of values, head, smear
    assert flops_per_token(model, 512) == 6 * weights + 12 * 64 * (129 + 129 + 129 + 512)
    assert flops_per_token(model, 200) == 6 * weights + 12 * 64 * (129 + 129 + 129 + 200)  # in shorter rows
    tied = GPT(GPTConfig(**SMALL, tie_embeddings=True))
    assert parameter_counts(tied)["head"] == 0
    assert flops_per_token(tied, 512) == flops_per_token(model, 512)


def test_initial_values_and_orthogonal_matrices():
    """Orthogonal matrices are smaller where many layers write."""
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
    model = GPT(GPTConfig(**SMALL, orthogonal=True))
    model.init_weights(1)
    for name, weight in model.named_parameters():
        if name.startswith("blocks.") and weight.ndim == 2 and "ve_gate" not in name:
            factor = (2 * len(model.blocks)) ** -0.5 if name.endswith(("o.weight", "down.weight")) else 1.0
            small = weight if weight.shape[0] <= weight.shape[1] else weight.T
            assert_close(small @ small.T, factor**2 * torch.eye(len(small)), atol=1e-5, rtol=0)


def test_the_seed_alone_decides():
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
def test_no_token_sees_a_later_one(name):
    model, ids = lively(CONFIGS[name]), tokens()
    before = model(ids)
    for place in (1, 130, 199):
        changed = ids.clone()
        changed[:, place] = 4 + (changed[:, place] + 1) % 90
        after = model(changed)
        assert torch.equal(after[:, :place], before[:, :place])
        assert ((after[:, place:] - before[:, place:]).abs().amax(dim=(0, 2)) > 0)[:2].all()


def test_a_layer_by_hand():
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
def test_gradients_of_tables_are_added_to_the_optimizers_buffer(device, tied):
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


def loss_of_a_repetition(**fields):
    """Return the loss on the second half of rows with equal random halves, after some training steps."""
    config = GPTConfig(**{**SMALL, "depth": 2, "kv_heads": 4, "bos_id": -1, **fields})
    model, generator = GPT(config), torch.Generator().manual_seed(4)
    model.init_weights(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003, weight_decay=0)
    for _ in range(60):
        half = torch.randint(1, config.vocab_size, (32, 16), generator=generator)
        ids = torch.cat([half, half], dim=1)
        targets = ids[:, 1:].clone()
        targets[:, :15] = -1
        loss = model(ids[:, :-1], targets) / (targets >= 0).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def test_induction_heads_soon_learn_to_look_up():
    assert loss_of_a_repetition(induction=True) < 2.2
    assert loss_of_a_repetition() > 3


def test_parts_of_a_golf_layer():
    """Attention without the own value, partial rotation, and the square of a leaky ReLU."""
    y, v = torch.randn(2, 5, 4, 8), torch.randn(2, 5, 2, 8)
    own = v.repeat_interleave(2, dim=2)  # two heads share a value
    share = (y * own).sum(-1, keepdim=True) / own.square().sum(-1, keepdim=True)
    assert_close(exclude_own(y, v), y - share * own)
    table, x = RotaryTable(16, 4, 100.0), torch.randn(1, 16, 2, 12)
    table.fill()
    turned = table(slice(16)).apply(x)
    assert torch.equal(turned[..., 4:], x[..., 4:])
    assert_close(turned[..., :4], table(slice(16)).apply(x[..., :4]))
    assert not torch.allclose(turned[:, 1:, :, :4], x[:, 1:, :, :4])
    _, activation = MLP_KINDS["leaky2"]
    assert_close(activation(torch.tensor([-2.0, 0.0, 3.0]), None), torch.tensor([1.0, 0.0, 9.0]))


def test_an_initial_gain_of_one_changes_nothing_and_is_learned_for_each_head():
    fields = {**SMALL, "qk_scale": 1.0}
    plain, gained = GPT(GPTConfig(**fields)), GPT(GPTConfig(**fields, query_gain=1.0))
    for model in (plain, gained):
        model.init_weights(1)
    ids = torch.arange(20)[None]
    assert_close(gained(ids), plain(ids), atol=1e-5, rtol=1e-5)
    assert gained.blocks[0].attn.gain.shape == (plain.config.heads,)
    with torch.no_grad():
        for block in gained.blocks:
            block.attn.gain.fill_(1.5)
    sharper = GPT(GPTConfig(**fields | {"qk_scale": 1.5**0.5}))
    sharper.load_state_dict(plain.state_dict())
    assert_close(gained(ids), sharper(ids), atol=1e-5, rtol=1e-5)
