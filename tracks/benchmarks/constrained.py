"""Real instructions, each with a constraint that a program checks: to learn to follow what is asked, and to test it.

The prompts are those of a set of chats; a hash of the prompt decides its constraint, and which split it is in.
"""

from collections.abc import Callable, Sequence
from random import Random

from nanochat.errors import UserError
from nanochat.paths import text_sha256
from tasks.common import Rows
from tracks.benchmarks.instructions import CheckedConversation, FollowedInstructions, Instruction, words_of

HELD_OUT = 8  # one prompt in this many is in the test split
MAX_TESTS = 400
LEAST_WORDS = 3  # so that an empty answer follows nothing


def lowercase(dice: Random, words: Sequence[str]) -> tuple[str, Instruction]:
    sentence = dice.choice(["Write all of it in lowercase letters.", "Your whole answer must be in lowercase."])
    return sentence, {"kind": "change_case:english_lowercase", "values": {}}


def no_comma(dice: Random, words: Sequence[str]) -> tuple[str, Instruction]:
    sentence = dice.choice(["Do not use any commas.", "Your answer must not have a comma in it."])
    return sentence, {"kind": "punctuation:no_comma", "values": {}}


def quotation(dice: Random, words: Sequence[str]) -> tuple[str, Instruction]:
    sentence = dice.choice(
        ["Put double quotation marks around your whole answer.", "Wrap the answer in double quotes."]
    )
    return sentence, {"kind": "startend:quotation", "values": {}}


def title(dice: Random, words: Sequence[str]) -> tuple[str, Instruction]:
    sentence = dice.choice(
        [
            "Give the answer a title in double angular brackets, like <<A title>>.",
            "Begin with a title like <<My title>>.",
        ]
    )
    return sentence, {"kind": "detectable_format:title", "values": {}}


def bullets(dice: Random, words: Sequence[str]) -> tuple[str, Instruction]:
    number = dice.randint(2, 4)
    sentence = f"Answer with exactly {number} bullet points, like\n* This is a point."
    return sentence, {"kind": "detectable_format:number_bullet_lists", "values": {"num_bullets": number}}


def few_words(dice: Random, words: Sequence[str]) -> tuple[str, Instruction]:
    number = dice.choice([15, 20, 30, 40])
    values = {"num_words": number, "relation": "less than"}
    return f"Use less than {number} words.", {"kind": "length_constraints:number_words", "values": values}


def ending(dice: Random, words: Sequence[str]) -> tuple[str, Instruction]:
    phrase = dice.choice(["Is there anything else?", "That is all.", "I hope this helps."])
    sentence = f"Finish with exactly these words: {phrase} Nothing may follow them."
    return sentence, {"kind": "startend:end_checker", "values": {"end_phrase": phrase}}


def keyword(dice: Random, words: Sequence[str]) -> tuple[str, Instruction]:
    word = dice.choice(words)
    values = {"keyword": word, "frequency": 2, "relation": "at least"}
    return f'Use the word "{word}" at least twice.', {"kind": "keywords:frequency", "values": values}


CONSTRAINTS: tuple[Callable[[Random, Sequence[str]], tuple[str, Instruction]], ...] = (
    lowercase,
    no_comma,
    quotation,
    title,
    bullets,
    few_words,
    ending,
    keyword,
)


class Constrained(FollowedInstructions):
    """Instructions with a constraint. A row is an instruction and its input, as in Alpaca."""

    def open_rows(self) -> Rows:
        rows = super().open_rows()
        split = [rows[number][:2] for number in range(len(rows))]
        found = [row for row in split if (digest(row) % HELD_OUT == 0) == (self.split == "test")]
        return found[:MAX_TESTS] if self.split == "test" else found

    def conversation(self, instruction: str, given: str | None) -> CheckedConversation:  # ty: ignore[incompatible-method-override]  # rows differ
        if not instruction.strip():
            raise UserError("the instruction is empty")
        dice = Random(digest([instruction, given]))
        prompt = f"{instruction.strip()}\n\n{given.strip()}" if given and given.strip() else instruction.strip()
        # Words that may be asked for: the longer ones of the instruction.
        words = [word.lower() for word in words_of(instruction) if len(word) > 4] or ["answer"]
        sentence, one = dice.choice(CONSTRAINTS)(dice, words)
        found = super().conversation(f"{prompt}\n\n{sentence}", [one["kind"]], [one["values"]])
        found["instructions"].append(
            {"kind": "length_constraints:number_words", "values": {"num_words": LEAST_WORDS, "relation": "at least"}}
        )
        return found

    def forms(self, prompt: str) -> tuple[str, ...]:
        return prompt.rpartition("\n\n")[0], prompt  # the data set's own, and with the constraint


def digest(row: Sequence[str | None]) -> int:
    """Return a number that follows from a prompt alone."""
    return int(text_sha256("\0".join(cell or "" for cell in row))[:12], 16)
