"""Generation, ours and the reference in turn: tokens per second for one row, many prompts, many samples of one prompt.

    python -m bench.engine [--reference CHECKOUT] [--depth 6] [--repeats 3]

Random weights of the same sizes and dtype, 128 new tokens in each row at temperature 1, no row ends early. The peer is
a checkout of the public nanochat; its engine takes one prompt at a time. An unmeasured run warms each up.
"""

import argparse
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench.common import ROOT, Figure, compare, finish, in_child

CASES = {"one row": (1, 1), "32 prompts": (32, 1), "32 samples of one prompt": (1, 32)}  # prompts, samples of each
VOCABULARY, LENGTH, NEW = 4096, 1024, 128
SPECIAL = ("bos", *(f"{part}_{end}" for part in ("user", "assistant", "python", "output") for end in ("start", "end")))
FIGURES = [Figure("rate", "tokens/s", less_is_better=False, shown=",.0f"), Figure("memory", "MB", shown=",.0f")]


def prompts(count: int) -> list[list[int]]:
    """Return prompts of 16 to 128 random tokens; a single prompt has 64."""
    rng = random.Random(7)
    lengths = [rng.randint(16, 128) for _ in range(count)] if count > 1 else [64]
    return [[rng.randrange(VOCABULARY - len(SPECIAL)) for _ in range(length)] for length in lengths]


def ours(depth: int, count: int, samples: int) -> tuple[Callable, Callable]:
    from types import SimpleNamespace

    import torch

    from nanochat.checkpoint import build_model
    from nanochat.engine import Engine, Request
    from nanochat.gpt import GPTConfig
    from nanochat.runtime import Runtime

    gpu = torch.cuda.is_available()
    runtime = Runtime(torch.device("cuda" if gpu else "cpu"), torch.bfloat16 if gpu else torch.float32, "sdpa")
    model = build_model(GPTConfig(VOCABULARY, depth, 64 * depth, depth, max_seq_len=LENGTH, bos_id=0), runtime, 1)
    special = {f"<|{name}|>": VOCABULARY - 1 - i for i, name in enumerate(SPECIAL)}
    tokenizer = SimpleNamespace(special_tokens=special, encode=lambda text: [1], decode=lambda ids: "")
    engine, options = Engine(model.eval(), tokenizer), {"temperature": 1.0, "stop": frozenset()}
    requests = [Request(prompt, NEW, n=samples, **options) for prompt in prompts(count)]
    engine.generate(requests)  # warm-up

    def facts(answers: list) -> dict:
        return {"tokens": sum(len(one.tokens) for completions in answers for one in completions)}

    return lambda: engine.generate(requests), facts


def reference(depth: int, count: int, samples: int) -> tuple[Callable, Callable]:
    from types import SimpleNamespace

    import torch

    from nanochat.engine import Engine
    from nanochat.gpt import GPT, GPTConfig

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with torch.device("meta"):
        model = GPT(GPTConfig(LENGTH, VOCABULARY, depth, depth, depth, 64 * depth))
    model.to_empty(device=device)
    model.init_weights()
    tokenizer = SimpleNamespace(encode_special=lambda name: -1, get_bos_token_id=lambda: -1)
    engine = Engine(model.eval(), tokenizer)

    def generate() -> int:
        rows = (row for prompt in prompts(count) for row in engine.generate(prompt, samples, NEW, temperature=1.0))
        return sum(len(column) for column, _ in rows)

    generate()
    return generate, lambda tokens: {"tokens": tokens}


def run(work: Callable, checkout: Path, depth: int, case: tuple[int, int], repeat: int) -> dict:
    """Measure one contender in a process of its own."""
    found = in_child(work, depth, *case, checkout=checkout)
    return found | ({"rate": found["tokens"] / found["seconds"]} if "seconds" in found else {})


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.engine", description=__doc__.splitlines()[0])
    parser.add_argument("--reference", help="checkout of the public nanochat")
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", help="file to write all figures to")
    options, records = parser.parse_args(), []
    works = {"ours": (ours, ROOT)}
    if options.reference:
        works["reference"] = (reference, Path(options.reference).resolve())
    for name, case in CASES.items():
        runs = {who: partial(run, *work, options.depth, case) for who, work in works.items()}
        records += compare(name, runs, FIGURES, options.repeats)
    finish(options.json, records)


if __name__ == "__main__":
    main()
