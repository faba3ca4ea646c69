"""Generation, ours and the reference in turn: tokens per second for one row, many prompts, many samples of one prompt.

    python -m bench.engine [--reference CHECKOUT] [--depth 6] [--repeats 3]

Random weights of the same sizes and dtype, 128 new tokens in each row at temperature 1, no row ends early. The peer is
a checkout of the public nanochat; its engine takes one prompt at a time. An unmeasured run warms each up.
"""

import random

from bench.common import Figure, compare, contenders, our_model, parser_of, reference_model
from bench.findings import Findings

CASES = {"one row": (1, 1), "32 prompts": (32, 1), "32 samples of one prompt": (1, 32)}  # prompts, samples of each
VOCABULARY = 4096
LENGTH = 1024
NEW = 128
RESERVED = 9  # ids of special tokens
FIGURES = [Figure("rate", "tokens/s", less_is_better=False, shown=",.0f"), Figure("memory", "MB", shown=",.0f")]


def prompts(count: int):
    """Return prompts of 16 to 128 random tokens; a single prompt has 64."""
    rng = random.Random(7)
    lengths = [rng.randint(16, 128) for _ in range(count)] if count > 1 else [64]
    return [[rng.randrange(VOCABULARY - RESERVED) for _ in range(length)] for length in lengths]


def ours(depth: int, count: int, samples: int):
    from types import SimpleNamespace

    from nanochat.engine import Engine, Request
    from nanochat.tokenizer import SPECIAL_TOKENS

    model, _ = our_model(VOCABULARY, depth, 64 * depth, depth, depth, max_seq_len=LENGTH, bos_id=0)
    special = dict(zip(SPECIAL_TOKENS, range(VOCABULARY - RESERVED, VOCABULARY), strict=True))
    # No row ends early.
    tokenizer = SimpleNamespace(special_tokens=special, turn_ends=(), encode=lambda text: [1], decode=lambda ids: "")
    engine = Engine(model, tokenizer)
    options = {"temperature": 1.0, "stop": frozenset()}
    requests = [Request(prompt, NEW, n=samples, **options) for prompt in prompts(count)]
    engine.generate(requests)  # warm-up

    def facts(answers: list):
        return {"count": sum(len(one.tokens) for completions in answers for one in completions)}

    return lambda: engine.generate(requests), facts


def reference(depth: int, count: int, samples: int):
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
    options = parser_of("engine", __doc__, has_reference=True, depth=6, repeats=3).parse_args()
    findings = Findings("engine", options.json)
    for name, case in CASES.items():
        job = options.depth, *case
        runs = contenders(options.reference, {"ours": (ours, *job), "reference": (reference, *job)})
        compare(findings, name, runs, FIGURES, options.repeats)
    findings.finish()


if __name__ == "__main__":
    main()
