"""Models, requests and devices for tests of the engine."""

import random
import re

import pytest
import torch
from models import CONFIGS, lively

import rustbpe
from nanochat.chat import Reply
from nanochat.engine import Completion, Engine, Request
from nanochat.gpt import GPT
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


def collected(events):
    """Return (tokens, reason) of each sample in some events, by prompt and number; reason "" without an end."""
    found = {}
    for event in events:
        sample = event.sample.prompt_number, event.sample.number
        found.setdefault(sample, Completion()).append(event)
    return {sample: (completion.tokens, completion.reason) for sample, completion in sorted(found.items())}


def ids_of(text, tokenizer=TOKENIZER):
    """Ids of a text in which [x], or <|x|>, is a special token."""
    ids = []
    for number, piece in enumerate(re.split(r"\[(\w+)\]", re.sub(r"<\|(\w+)\|>", r"[\1]", text))):
        ids += [tokenizer.special_tokens[f"<|{piece}|>"]] if number % 2 else tokenizer.encode(piece)
    return ids


def text_of(tokens, tokenizer=TOKENIZER, calls=False):
    """Return the text of an answer, with or without the calculator's turns."""
    reply = Reply(tokenizer)
    pieces = [piece for token in tokens for piece in reply.feed(token)] + reply.close()
    return "".join(piece.text for piece in pieces if calls or piece.kind == "text")


class Late:
    """A decoder on the CPU that is followed one step late, as one on a GPU is."""

    on_cuda = True

    def __init__(self, decoder) -> None:
        self.decoder = decoder

    def __getattr__(self, name):
        return getattr(self.decoder, name)

    def step(self, rows, longest, kind):
        return self.decoder.step(rows, longest + 1, kind)


def devices():
    """The CPU, and a GPU where there is one: what holds for steps holds for graphs that are looked at one step late."""
    return ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def check_greedy(model: GPT) -> None:
    """One pass over a row gives what a loop without a cache would have chosen at each of its positions."""
    requests = mixed(40)
    ended = 0
    for request, [completion] in zip(requests, Engine(model, TOKENIZER, slots=16).generate(requests), strict=True):
        ids = [*request.tokens, *completion.tokens]
        assert len(completion.tokens) == min(request.max_new_tokens, 192 - len(request.tokens))
        chosen = model(torch.tensor([ids[:-1]]))[0].argmax(-1).tolist()
        assert ids[len(request.tokens) :] == chosen[len(request.tokens) - 1 :]
        assert completion.reason == "length"
        assert completion.mask == [1] * len(completion.tokens)
        ended += len(ids) == 192
    assert ended > 4
