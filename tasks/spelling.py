"""Spelling words and counting letters in words: knowledge that tokens hide from a model. No file is fetched.

The words are frequent in the tokenizer's training text; a word is always in the same split.
"""

import re
from collections import Counter
from itertools import islice
from random import Random
from string import ascii_lowercase
from zlib import crc32

from nanochat.data.corpus import learned_text, parse_data, shard_files
from nanochat.data.documents import documents
from nanochat.protocols import Conversation
from tasks.common import Task, exchange
from tasks.gsm8k import GSM8K, with_calls

# Two to fifteen letters of any script.
WORD = re.compile(r"[^\W\d_]{2,15}")
MAX_WORDS = 50_000  # the most frequent ones
HELD_OUT = 10  # one word in this many belongs to the test split
MAX_TESTS = 256  # words in the test split
DOCUMENTS = 5_000  # read from each source
QUESTIONS = (
    "How many {letter} are in {word}?",
    "How often does the letter {letter} occur in the word {word}?",
    "Count the letter {letter} in {word}.",
    'How many times does "{letter}" appear in "{word}"?',
    "What is the number of {letter}'s in {word}?",
    "In {word}, how many letters are {letter}?",
    "{word}에 {letter}가 몇 개 있어?",
)


def frequent_words(tokenizer: str = "default") -> list[str]:
    """Return the lower-case words in a tokenizer's training text, the most frequent first."""
    counts: Counter[str] = Counter()
    for source, _ in parse_data(learned_text(tokenizer)):
        first_shard = shard_files(source, 1)[0]
        for text in islice(documents(first_shard), DOCUMENTS):
            counts.update(WORD.findall(text.lower()))
    # Equally frequent words are in alphabetical order: the list does not depend on the text's order.
    return sorted(counts, key=lambda word: (-counts[word], word))[:MAX_WORDS]


class SimpleSpelling(Task):
    def open_rows(self) -> list[list[str]]:
        held_out = self.split != "train"
        # A hash, so that a word stays in its split when the text changes.
        words = frequent_words(self.tokenizer)
        rows = [[word] for word in words if (crc32(word.encode()) % HELD_OUT == 0) == held_out]
        return rows[:MAX_TESTS] if held_out else rows

    def conversation(self, word: str) -> Conversation:
        return exchange(f"Spell the word: {word}", "-".join(word))


class SpellingBee(SimpleSpelling, GSM8K):
    """Letters counted by hand, then by the calculator; the answer looks like GSM8K's."""

    def conversation(self, word: str) -> Conversation:  # ty: ignore[incompatible-method-override]  # rows differ
        # The word's hash is the seed, so that a word has the same question in every run.
        random = Random(crc32(word.encode()))
        # One question in ten is about a letter that may not occur.
        letter = random.choice(word if random.random() < 0.9 else ascii_lowercase)
        positions = [str(position) for position, other in enumerate(word, 1) if other == letter]
        found = f"{letter} is at {', '.join(positions)}" if positions else f"{letter} is nowhere"
        count = len(positions)
        spelled = f"{word} is spelled {'-'.join(word)}. There {found}, which makes {count}. With Python: "
        solution = f'{spelled}<<"{word}".count("{letter}")={count}>>\n\n#### {count}'
        return exchange(random.choice(QUESTIONS).format(letter=letter, word=word), with_calls(solution))
