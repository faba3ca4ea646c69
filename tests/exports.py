"""Small models that could be exported, trained a little, and what else the tests of it share."""

from pathlib import Path

import torch
from models import CONFIGS, lively

from nanochat.gpt import GPT
from nanochat.tokenizer import Tokenizer

TEXTS = [path.read_text(encoding="utf-8") for path in sorted(Path("scripts/samples").glob("*.txt"))]
ODD = {"vocab_size": 701, "max_seq_len": 192, "kv_heads": 1}  # no multiple of 64, as the vocabulary


def tokenizer_of(size: int = ODD["vocab_size"]) -> Tokenizer:
    return Tokenizer.train(TEXTS, size)


def trained(name: str, tokenizer: Tokenizer, **fields) -> GPT:
    """A few steps on the samples, so that no weight is where it began."""
    model = lively({**CONFIGS[name], **ODD, **fields})
    ids = torch.tensor(tokenizer.encode("".join(TEXTS))[: 4 * 97]).view(4, 97)
    optimizer, losses = torch.optim.AdamW(model.parameters(), 1e-3), []
    for _ in range(4):
        loss = model(ids[:, :-1], ids[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    return model.eval().requires_grad_(False)
