"""Models, requests and devices for tests of the engine."""

import random

import pytest
from models import CONFIGS, lively

import rustbpe
from nanochat.engine import Request
from nanochat.tokenizer import SPECIAL_TOKENS, Tokenizer

TOKENIZER = Tokenizer(rustbpe.Tokenizer([], SPECIAL_TOKENS))  # bytes are their own ids
ID = TOKENIZER.special_tokens
SIZES = {"vocab_size": TOKENIZER.vocab_size, "max_seq_len": 192, "bos_id": ID["<|bos|>"]}  # short windows are of 129
NEVER = frozenset()


def model_of(name="reference", **fields):
    return lively({**CONFIGS[name], **SIZES, **fields}).requires_grad_(False)


def mixed(count, seed=3, **settings):
    """Prompts of all lengths, with lengths to generate that reach the end of the context or do not."""
    dice = random.Random(seed)
    requests = []
    for i in range(count):
        length = dice.choice([1, 2, 191, dice.randint(1, 191), dice.randint(1, 191)])
        prompt = [ID["<|bos|>"], *(dice.randrange(256) for _ in range(length - 1))]
        requests.append(Request(prompt, dice.choice([1, 5, 20, 100]), stop=NEVER, seed=i, **settings))
    return requests


SETTINGS = [
    {"temperature": 1.0},
    {"temperature": 0.7, "top_k": 5},
    {"temperature": 1.3, "top_p": 0.8},
    {"temperature": 1.0, "top_k": 40, "top_p": 0.6},
    {"top_k": 3},  # greedy
]


def tokens_of(found):
    return [[completion.tokens for completion in samples] for samples in found]


class Late:
    """A decoder on the CPU that is followed one step late, as one on a GPU is."""

    on_cuda = True

    def __init__(self, decoder):
        self.decoder = decoder

    def __getattr__(self, name):
        return getattr(self.decoder, name)

    def step(self, rows, longest, kind):
        return self.decoder.step(rows, longest + 1, kind)


def devices():
    """The CPU, and a GPU where there is one: what holds for steps holds for graphs that are looked at one step late."""
    return ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
