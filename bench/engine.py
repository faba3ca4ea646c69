"""Generation, ours and the reference in turn: tokens per second for one row, many prompts, many samples of one prompt.

    python -m bench.engine [--reference CHECKOUT] [--depth 6] [--repeats 3] [--quant int8-row]
    python -m bench.engine --model base/smol --quant int8-row

Random weights of the same sizes and dtype, 128 new tokens in each row at temperature 1, no row ends early. The peer is
a checkout of the public nanochat; its engine takes one prompt at a time. --quant adds our own model, rounded. --model
takes a trained one of ours, in fp32 on a CPU. An unmeasured run warms each up.
"""

import random
import re
from collections.abc import Callable
from pathlib import Path

from bench.common import Figure, compare, contenders, our_model, parser_of, reference_model
from bench.findings import Findings

CASES = {"one row": (1, 1), "32 prompts": (32, 1), "32 samples of one prompt": (1, 32)}  # prompts, samples of each
VOCABULARY = 4096
LENGTH = 1024
NEW = 128
RESERVED = 9  # ids of special tokens
FIGURES = [
    Figure("rate", "tokens/s", less_is_better=False, shown=",.0f"),
    Figure("memory", "MB", shown=",.0f"),  # at most, also while a model was loaded and rounded
    Figure("held", "MB held", shown=",.0f"),
]


def prompts(count: int, vocabulary: int = VOCABULARY) -> list[list[int]]:
    """Return prompts of 16 to 128 random tokens; a single prompt has 64."""
    rng = random.Random(7)
    lengths = [rng.randint(16, 128) for _ in range(count)] if count > 1 else [64]
    return [[rng.randrange(vocabulary - RESERVED) for _ in range(length)] for length in lengths]


def held_memory() -> float:
    """Return the memory of this process in MB, as it is now; Linux only."""
    return int(re.search(r"VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024 / 1e6


def ours(depth: int, count: int, samples: int, trained: str = "", plan: str = "") -> tuple[Callable, Callable]:
    """Generate with a model of random weights, or a trained one (SOURCE/TAG), rounded by the plan."""
    from types import SimpleNamespace

    from nanochat import int8, quant
    from nanochat.engine import Engine, Request
    from nanochat.models import load_chosen
    from nanochat.runtime import setup
    from nanochat.settings import ModelChoice
    from nanochat.tokenizer import SPECIAL_TOKENS

    if trained:
        source, _, tag = trained.partition("/")
        with setup("cpu", "fp32") as runtime:
            model = load_chosen(ModelChoice(source=source, tag=tag, quant=plan), runtime).model
        if model.config.max_seq_len < 2 * NEW:
            raise SystemExit(f"{trained} has a context of {model.config.max_seq_len} tokens: {2 * NEW} are needed")
    else:
        model, _ = our_model(VOCABULARY, depth, 64 * depth, depth, depth, max_seq_len=LENGTH, bos_id=0)
        stored = quant.apply(model, plan)
        if model.device.type == "cpu":
            int8.keep_int8(model, stored)
    vocabulary = model.config.vocab_size
    special = dict(zip(SPECIAL_TOKENS, range(vocabulary - RESERVED, vocabulary), strict=True))
    # No row ends early.
    tokenizer = SimpleNamespace(special_tokens=special, turn_ends=(), encode=lambda text: [1], decode=lambda ids: "")
    engine = Engine(model, tokenizer)
    options = {"temperature": 1.0, "stop": frozenset()}
    requests = [Request(prompt, NEW, n=samples, **options) for prompt in prompts(count, vocabulary)]
    engine.generate(requests)  # warm-up
    held = held_memory()

    def facts(answers: list) -> dict[str, float]:
        return {"count": sum(len(one.tokens) for completions in answers for one in completions), "held": held}

    return lambda: engine.generate(requests), facts


def reference(depth: int, count: int, samples: int) -> tuple[Callable, Callable]:
    from types import SimpleNamespace

    from nanochat.engine import Engine

    model = reference_model(LENGTH, VOCABULARY, depth, depth, depth, 64 * depth)
    tokenizer = SimpleNamespace(encode_special=lambda name: -1, get_bos_token_id=lambda: -1)
    engine = Engine(model.eval(), tokenizer)

    def generate():
        rows = (row for prompt in prompts(count) for row in engine.generate(prompt, samples, NEW, temperature=1.0))
        return sum(len(column) for column, _ in rows)

    generate()
    return generate, lambda tokens: {"count": tokens}


def main() -> None:
    parser = parser_of("engine", __doc__, has_reference=True, depth=6, repeats=3)
    parser.add_argument(
        "--model", default="", metavar="SOURCE/TAG", help="a trained model of ours; without --reference"
    )
    parser.add_argument("--quant", default="", help="also our own model with weights rounded by this plan")
    options = parser.parse_args()
    if options.model and options.reference:
        parser.error("--model is no model of the reference: leave --reference out")
    findings = Findings("engine", options.json)
    for name, case in CASES.items():
        job = options.depth, *case
        works = {"ours": (ours, *job, options.model), "reference": (reference, *job)}
        if options.quant:
            works[options.quant] = (ours, *job, options.model, options.quant)
        compare(findings, name, contenders(options.reference, works), FIGURES, options.repeats)
    findings.finish()


if __name__ == "__main__":
    main()
