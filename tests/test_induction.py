"""Induction heads: a model with them soon looks up what followed a token before. test_gpt_ways.py has the rest."""

import pytest
import torch
from models import SMALL

from nanochat.gpt import GPT, GPTConfig
from nanochat.induction import InductionConfig, InductionGPT


def test_induction_needs_smear_and_two_key_heads() -> None:
    for fields in ({"smear": False}, {"kv_heads": 1}):
        with pytest.raises(ValueError, match="induction needs smear, and kv_heads above 1"):
            InductionConfig(**{**SMALL, "induction": True, **fields})


def test_without_induction_it_is_a_plain_gpt() -> None:
    plain, other = GPT(GPTConfig(**SMALL)), InductionGPT(InductionConfig(**SMALL))
    for model in (plain, other):
        model.init_weights(3)
    assert all(map(torch.equal, plain.parameters(), other.parameters()))
    ids = torch.arange(20)[None]
    assert torch.equal(plain(ids), other(ids))


def test_keys_that_are_shifted_begin_as_the_queries_they_serve() -> None:
    model = InductionGPT(InductionConfig(**SMALL, induction=True))
    model.init_weights(3)
    for block in model.blocks:
        q, k = (weight.unflatten(0, (-1, 16)) for weight in (block.attn.q.weight, block.attn.k.weight))
        assert torch.equal(k[0], q[0])
        assert not torch.equal(k[1], q[2])
    assert model.smear_lambda.item() == 1


def loss_of_a_repetition(**fields: bool) -> float:
    """Return the loss on the second half of rows with equal random halves, after some training steps."""
    config = InductionConfig(**{**SMALL, "depth": 2, "kv_heads": 4, "bos_id": -1, **fields})
    model, generator = InductionGPT(config), torch.Generator().manual_seed(4)
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


def test_induction_heads_soon_learn_to_look_up() -> None:
    assert loss_of_a_repetition(induction=True) < 2.2
    assert loss_of_a_repetition() > 3
