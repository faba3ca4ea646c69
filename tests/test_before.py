"""What stands before a token, against the same said in loops; and what heads that look there are good for."""

import torch
from models import SMALL

from nanochat.before import Place, behind, shifted
from nanochat.gpt import GPT, GPTConfig


def drawn(*shape):
    print("seed 3")
    return torch.randn(shape, generator=torch.Generator().manual_seed(3))


def test_rows_of_one_document():
    x, first = drawn(2, 5, 3), drawn(2, 1, 3)
    assert torch.equal(behind(x)[:, 1:], x[:, :-1])
    assert not behind(x)[:, 0].any()
    assert torch.equal(behind(x, first)[:, :1], first)


def test_rows_of_several_documents_and_of_branches():
    x = drawn(2, 6, 4)
    starts = torch.tensor([[0, 0, 2, 2, 2, 5], [0, 1, 1, 1, 4, 4]])
    found = Place.of(starts, None).before(x)
    for row in range(2):
        for i in range(6):
            expected = torch.zeros(4) if starts[row, i] == i else x[row, i - 1]
            assert torch.equal(found[row, i], expected), (row, i)
    starts = torch.tensor([[0, 0, 0, 3, 3, 5], [0, 0, 2, 3, 3, 3]])
    trunks = torch.tensor([[3], [2]])
    found = Place.of(starts, trunks).before(x)
    for row in range(2):
        for i in range(6):
            at = trunks[row] - 1 if i and starts[row, i] == i else i - 1
            expected = torch.zeros(4) if i == 0 else x[row, at].flatten()
            assert torch.equal(found[row, i], expected), (row, i)


def test_only_the_first_heads_are_shifted():
    k = drawn(2, 5, 3, 4)
    assert shifted(k, 0) is k
    found = shifted(k, 2)
    assert torch.equal(found[:, :, 2], k[:, :, 2])
    assert torch.equal(found[:, :, :2], behind(k[:, :, :2]))


def loss_of_a_repetition(fields) -> float:
    """Of the second half of rows whose halves are the same random tokens, after some steps of training."""
    print("seed 4")
    model, generator = GPT(GPTConfig(**fields)), torch.Generator().manual_seed(4)
    model.init_weights(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003, weight_decay=0)
    for _ in range(60):
        half = torch.randint(1, fields["vocab_size"], (32, 16), generator=generator)
        ids = torch.cat([half, half], dim=1)
        targets = ids[:, 1:].clone()
        targets[:, :15] = -1
        loss = model(ids[:, :-1], targets) / (targets >= 0).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def test_heads_that_look_before_learn_soon_to_look_up():
    fields = {**SMALL, "depth": 2, "width": 64, "heads": 4, "kv_heads": 4, "bos_id": -1}
    assert loss_of_a_repetition({**fields, "induction": True}) < 2.2
    assert loss_of_a_repetition(fields) > 3
