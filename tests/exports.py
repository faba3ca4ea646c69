"""Small trained models and tokenizers to export."""

<<<<<<< HEAD
from pathlib import Path

from bundles import memorized
=======
import torch
from corpora import SAMPLES
from models import CONFIGS, learn, lively
>>>>>>> sd

from nanochat.gpt import GPT
from nanochat.tokenizer import Tokenizer

SMALL = {"vocab_size": 701, "max_seq_len": 192, "kv_heads": 1}  # the vocabulary is no multiple of 64


def tokenizer_of(size: int = SMALL["vocab_size"]) -> Tokenizer:
    return Tokenizer.train(SAMPLES, size)


<<<<<<< HEAD
def trained(name: str, tokenizer: Tokenizer) -> GPT:
    """Return a model after a few steps on the samples, so that no weight has its initial value."""
    return memorized(tokenizer, "".join(TEXTS), name, steps=4, lr=0.001, **SMALL)
=======
def trained(name: str, tokenizer: Tokenizer, **fields) -> GPT:
    """A model after a few steps on the samples, so that no weight has its initial value."""
    model = lively({**CONFIGS[name], **SMALL, **fields})
    ids = torch.tensor(tokenizer.encode("".join(SAMPLES))[: 4 * 97]).view(4, 97)
    return learn(model, ids, steps=4, rate=1e-3)
>>>>>>> sd
