"""Data sets with questions in common: a benchmark is not held out if what is learned, or decided by, has its questions.

`overlap` and `decided` return a sentence for such a pair. The train split of a task beside its own test split is none.
Files of conversations have no known names: the track chatdata compares their questions with those of benchmarks.
"""

from collections.abc import Iterable

# The train split of the first has questions of the others' test splits.
LEARNED = {
    "CLIcK-Halves": ("CLIcK",),
    # Made from KMMLU; of which of its splits is not documented.
    "KMMLU": ("KMMLU-Redux",),
    # All instructions, also those that test splits add a constraint to.
    "Alpaca": ("Alpaca-Constrained", "Alpaca-Part-Constrained"),
    "Alpaca-Part": ("Alpaca-Constrained", "Alpaca-Part-Constrained"),
}
# Test splits with questions in common: parts, translations, other forms of the answer, and the form of CORE.
TESTS = (
    # HRM8K has the problems of MATH with a number as the answer, in Korean, and all of GSM8K; MT-MATH100 too is MATH's.
    ("MATH", "MATH-500", "MT-MATH100", "HRM8K"),
    ("GSM8K", "HRM8K"),
    ("MMLU", "HRM8K"),
    ("AQUA", "AQUA-Letter", "AQUA-Rationale"),
    ("CLIcK", "CLIcK-Halves"),
    ("KMMLU", "KMMLU-Redux"),
    ("Alpaca-Constrained", "Alpaca-Part-Constrained"),
    ("ARC-Easy", "arc_easy"),
    ("ARC-Challenge", "arc_challenge"),
    ("hellaswag", "hellaswag_zeroshot"),
)


def overlap(learned: Iterable[str], benchmark: str, known: str, *, asks_tests: bool) -> str:
    """Return a sentence if a benchmark cannot be held out, else "".

    learned: the tasks that a lab learns, without augmentations. known: the benchmark in the same form. asks_tests: the
    stage asks the test prompts of its tasks too.
    """
    for name in learned:
        if known in LEARNED.get(name, ()):
            return f"{benchmark} has questions that are learned with {name}, and cannot be held_out"
        if asks_tests and name == known:
            return f"{benchmark} is learned by chat_rl, and cannot be held_out"
        if asks_tests and any({name, known} <= {*group} for group in TESTS):
            return f"{benchmark} has test prompts of {name}, which chat_rl asks while it trains, and cannot be held_out"
    return ""


def decided(dev: str, benchmark: str, plain: tuple[str, str]) -> str:
    """Return a sentence if a benchmark of dev has the questions of one that is to be held out, else "".

    plain: both names without augmentations.
    """
    if len({*plain}) == 1 or any({*plain} <= {*group} for group in TESTS):
        return f"{benchmark} has questions of {dev}, by which the lab decides, and cannot be held_out"
    return ""
