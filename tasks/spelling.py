"""Spelling words and counting letters in them: what a model does not see in its tokens. Nothing is fetched for it.

The words are the frequent ones of the text that the tokenizer was trained on, each always of the same split.
"""

import json
import re
from collections import Counter
from hashlib import sha256
from itertools import islice
from random import Random
from zlib import crc32

from nanochat.data import hub
from nanochat.data.corpus import AUTO, CORPORA, find
from nanochat.data.documents import Bad, documents
from nanochat.paths import stage_dir
from tasks.common import DataSet, Task
from tasks.gsm8k import GSM8K

WORD = re.compile(r"[^\W\d_]{2,15}")
WORDS, HELD_OUT, TESTS = 50_000, 10, 256  # the most frequent; one of so many is held out; so many of those are asked
DOCUMENTS = 5_000  # of a source are read
ASKS = (
    "How many {letter} are in {word}?",
    "How often does the letter {letter} occur in the word {word}?",
    "Count the letter {letter} in {word}.",
    'How many times does "{letter}" appear in "{word}"?',
    "What is the number of {letter}'s in {word}?",
    "In {word}, how many letters are {letter}?",
    "{word}에 {letter}가 몇 개 있어?",
)


def _source(tag: str) -> tuple[str, bool]:
    """The text of a tokenizer, or else what is on this machine; and whether damage in it is skipped."""
    record = stage_dir("tok_train", tag) / "outcome.json"
    if record.is_file():
        config = json.loads(record.read_text(encoding="utf-8"))["config"]
        return config["data"], config["skip_bad"]
    here = [name for name in AUTO if hub.is_here(CORPORA[name].files())]
    if ((hub.mirror() or hub.world_dir()) / "datasets/local/world").is_dir():
        here.insert(0, "world")
    if not here:
        raise ValueError("words to spell are those of the tokenizer's text: train one by scripts.tok_train")
    return here[0], True


def frequent_words(tokenizer: str = "default") -> list[str]:
    """Of the text that it was trained on, in small letters, the most frequent first."""
    data, skip_bad = _source(tokenizer)
    counts: Counter = Counter()
    for listing, _ in find(data):
        texts = documents(listing.shards(skip_bad)[0], Bad(skip=True), listing.column)
        for text in islice(texts, DOCUMENTS):
            counts.update(WORD.findall(text.lower()))
    return sorted(counts, key=lambda word: (-counts[word], word))[:WORDS]


class SimpleSpelling(Task):
    def open(self) -> int:
        held_out = self.split != "train"
        words = [word for word in frequent_words(self.tokenizer) if (crc32(word.encode()) % HELD_OUT == 0) == held_out]
        self._words = words[:TESTS] if held_out else words
        return len(self._words)

    def hashes(self) -> dict[str, str]:
        return {"words": sha256("\n".join(self._words).encode()).hexdigest()}

    def place(self, number: int) -> str:
        return "the tokenizer's text"

    def cells(self, number: int) -> list:
        return [self._words[number]]

    def conversation(self, word: str) -> dict:
        asked = {"role": "user", "content": f"Spell the word: {word}"}
        return {"messages": [asked, {"role": "assistant", "content": "-".join(word)}]}

    def evaluate(self, conversation: dict, completion: str) -> bool:
        return completion.strip() == conversation["messages"][-1]["content"]


class SpellingBee(SimpleSpelling, GSM8K):
    """Counted by hand, then by the calculator; the answer stands where GSM8K has it."""

    evaluate = GSM8K.evaluate

    def conversation(self, word: str) -> dict:
        dice = Random(crc32(word.encode()))
        letter = dice.choice(word if dice.random() < 0.9 else "abcdefghijklmnopqrstuvwxyz")
        places = [str(place) for place, other in enumerate(word, 1) if other == letter]
        found = f"{letter} is at {', '.join(places)}" if places else f"{letter} is nowhere"
        count = str(len(places))
        parts = [
            ("text", f"{word} is spelled {'-'.join(word)}. There {found}, which makes {count}. With Python: "),
            ("python", f'"{word}".count("{letter}")'),
            ("python_output", count),
            ("text", f"\n\n#### {count}"),
        ]
        asked = {"role": "user", "content": dice.choice(ASKS).format(letter=letter, word=word)}
        answer = [{"type": kind, "text": text} for kind, text in parts]
        return {"messages": [asked, {"role": "assistant", "content": answer}]}


SETS = {
    "SimpleSpelling": DataSet(SimpleSpelling, "", "", "train test"),
    "SpellingBee": DataSet(SpellingBee, "", "", "train test"),
}
