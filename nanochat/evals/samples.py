"""What a base model writes behind fixed prompts: the plainest look at what it has learned."""

from collections.abc import Callable
from typing import Any

from nanochat.engine import Engine, Request
from nanochat.log import print0

PROMPTS = (  # the public reference's, so that samples can be laid side by side
    "The capital of France is",
    "The chemical symbol of gold is",
    "If yesterday was Friday, then tomorrow will be",
    "The opposite of hot is",
    "The planets of the solar system are:",
    "My favorite color is",
    "If 5*x + 3 = 13, then x is",
)


def write_samples(model: Any, tokenizer: Any, count: int) -> list[list[str]]:
    """[prompt, the `count` tokens that seem likeliest behind it] of each; shown as they are made."""
    bos, room = tokenizer.special_tokens["<|bos|>"], model.config.max_seq_len - 1
    prompts = [[bos, *tokenizer.encode(prompt)][-room:] for prompt in PROMPTS]
    asked = [Request(prompt, count, stop=frozenset([bos])) for prompt in prompts]
    written = [tokenizer.decode(one.tokens) for (one,) in Engine(model, tokenizer).generate(asked)]
    rows = [[prompt, " ".join(text.split())] for prompt, text in zip(PROMPTS, written, strict=True)]
    print0(*(f"sample: {prompt} ... {text}" for prompt, text in rows), sep="\n")
    return rows


def sampling(model: Any, tokenizer: Any, count: int, runtime: Any) -> Callable[[Any], None]:
    """A hook of the training loop: rank 0 writes."""

    def sample(state: Any) -> None:
        if runtime.rank == 0:
            write_samples(model, tokenizer, count)

    return sample
