"""Samples: the likeliest continuation of each prompt, as a plain loop without a cache finds it."""

from types import SimpleNamespace

import torch
from models import lively

from nanochat.evals.samples import PROMPTS, sampling, write_samples
from nanochat.tokenizer import Tokenizer


def plain(model, tokenizer, prompt, count):
    bos = tokenizer.special_tokens["<|bos|>"]
    ids = [bos, *tokenizer.encode(prompt)]
    ids = ids[-(model.config.max_seq_len - 1) :]
    written = []
    for _ in range(min(count, model.config.max_seq_len - len(ids))):
        with torch.no_grad():
            token = int(model(torch.tensor([ids + written]))[0, -1].argmax())
        if token == bos:
            break
        written.append(token)
    return " ".join(tokenizer.decode(written).split())


def test_they_are_the_plain_ones_and_are_shown(capsys):
    tokenizer = Tokenizer.train([*PROMPTS] * 3, 300)
    shape = {"vocab_size": tokenizer.vocab_size, "bos_id": tokenizer.special_tokens["<|bos|>"]}
    for longest in (64, 20):  # of which the second is shorter than prompts are
        model = lively({"depth": 2, "width": 64, "heads": 2, "max_seq_len": longest} | shape).eval()
        rows = write_samples(model, tokenizer, 9)
        assert rows == [[prompt, plain(model, tokenizer, prompt, 9)] for prompt in PROMPTS]
        assert all(f"sample: {prompt} ... {text}" in capsys.readouterr().out for prompt, text in rows[:1])


def test_one_rank_writes(capsys):
    tokenizer = Tokenizer.train([*PROMPTS], 300)
    model = lively({"depth": 1, "width": 64, "heads": 2, "max_seq_len": 64, "vocab_size": tokenizer.vocab_size}).eval()
    for rank in (0, 1):
        sampling(model, tokenizer, 2, SimpleNamespace(rank=rank))(None)
        assert capsys.readouterr().out.count("sample: ") == (7 if rank == 0 else 0)
