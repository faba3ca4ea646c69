"""Entries from elsewhere: an honest one has the score of its own arithmetic, and each cheat is refused by name."""

import math
from collections import Counter
from pathlib import Path

import pytest
from contain import NEEDS_SANDBOX

from nanochat.errors import UserError
from tracks.golf.foreign import entry_files, library_paths
from tracks.golf.judging import Limits, check_rows, judge

pytestmark = NEEDS_SANDBOX

TEXTS = ["the fox and the hen and the fox", "", "여우 and 암탉", "the end of the end of the end of the text"]
# Bytes after bytes, counted in what has its score; b"" is a mark that begins each document.
HONEST = """
import numpy as np

MARK = 256

class Entry:
    vocabulary = [bytes([value]) for value in range(256)] + [b""]
    context, stride = 8, 4

    def __init__(self) -> None:
        self.counts = np.ones((257, 257))

    def encode(self, text) -> list:
        return [MARK, *text]

    def log_probs(self, ids, first) -> np.ndarray:
        rows = [self.row(ids[place - 1] if place else None) for place in range(first, len(ids) + 1)]
        return np.log(np.array(rows))

    def row(self, before) -> np.ndarray:
        if before is None:
            return np.full(257, 1 / 257)
        return self.counts[before] / self.counts[before].sum()

    def learn(self, ids, first) -> None:
        for place in range(max(first, 1), len(ids)):
            self.counts[ids[place - 1], ids[place]] += 1

def load() -> Entry:
    return Entry()
"""


def expected_bpb() -> float:
    """The same model, written out: a part of four tokens is counted once it has its scores."""
    counts = {before: Counter(dict.fromkeys(range(257), 1)) for before in range(257)}
    nats = 0.0
    for text in filter(None, TEXTS):
        ids = [256, *text.encode()]
        for begin in range(0, len(ids), 4):
            places = range(begin, min(begin + 4, len(ids)))
            for place in places:
                row = counts[ids[place - 1]] if place else None
                nats -= math.log(row[ids[place]] / row.total() if row else 1 / 257)
            for place in places:
                if place:
                    counts[ids[place - 1]][ids[place]] += 1
    return nats / math.log(2) / sum(len(text.encode()) for text in TEXTS)


def written(folder: Path, program: str) -> Path:
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    (folder / "scorer.py").write_text(program)
    (folder / "scorer.py").chmod(0o644)
    return folder


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for folder in [tmp_path, *tmp_path.parents][:3]:  # the sandbox's user reads it
        folder.chmod(0o755)
    return tmp_path / "entry"


def test_an_honest_entry(place: Path) -> None:
    found = judge(written(place, HONEST), TEXTS, Limits(60))
    assert found.bpb == pytest.approx(expected_bpb(), rel=1e-6)
    counts = [len(text.encode()) + 1 for text in TEXTS if text]
    assert found.tokens == sum(counts)
    assert found.parts == sum(math.ceil(count / 4) for count in counts)
    assert found.places == 4 * found.parts  # all parts are equally long: none tells where a document ends
    # Of each four places the last one's own token is not in the question, but for the ends of documents.
    assert found.probes == found.open_places == sum(count - count // 4 for count in counts)
    assert found.difference < 1e-6


def test_with_a_place_at_a_time_nothing_can_be_looked_at(place: Path) -> None:
    single = HONEST.replace("context, stride = 8, 4", "context, stride = 8, 1")
    found = judge(written(place, single), TEXTS, Limits(60))
    assert (found.open_places, found.probes) == (0, 0)
    assert check_rows(found)[1] == ["causal", "no place's own token is in its question"]
    peeking = single.replace("return np.log(np.array(rows))", CHEATS["the next token"][1])
    assert judge(written(place, peeking), TEXTS, Limits(60)).bpb == found.bpb  # there is nothing to see


def test_a_few_places_that_look_ahead_are_found_in_a_long_text(place: Path) -> None:
    """One question for the whole text, and a place in ten: probes are of places, not of questions."""
    few = HONEST.replace("context, stride = 8, 4", "context, stride = 4096, 4096")
    few = few.replace(
        "return np.log(np.array(rows))",
        "for row, token in list(zip(rows, ids[first:]))[::10]:\n"
        "            row[:] = 1e-9\n"
        "            row[token] = 1 - 256e-9\n"
        "        return np.log(np.array(rows))",
    )
    with pytest.raises(UserError, match=r"^refused, causal: "):
        judge(written(place, few), [" ".join(TEXTS) * 20], Limits(60))


# What each cheat changes in the honest entry, and the rule that it breaks.
CHEATS = {
    "the next token": (
        "return np.log(np.array(rows))",
        "for row, token in zip(rows, ids[first:]):\n"
        "            row[:] = 1e-9\n"
        "            row[token] = 1 - 256e-9\n"
        "        return np.log(np.array(rows))",
        "causal",
    ),
    "a hash of what follows": (
        "return np.log(np.array(rows))",
        "for row, token in zip(rows, ids[first:]):\n"
        "            row *= np.where(np.arange(257) % 2 == hash(token) % 2, 1, 1e-9)\n"
        "            row /= row.sum()\n"
        "        return np.log(np.array(rows))",
        "causal",
    ),
    "the next token, and no number for whoever asks for one place": (
        "return np.log(np.array(rows))",
        "for row, token in zip(rows, ids[first:]):\n"
        "            row[:] = 1e-9\n"
        "            row[token] = 1 - 256e-9\n"
        "        if len(rows) == 1:\n"
        "            rows[0][:] = np.nan\n"
        "        return np.log(np.array(rows))",
        "normalised",
    ),
    "a cache filled before scoring": (
        "        rows = [self.row(ids",
        "        self.learn(ids, first)\n        rows = [self.row(ids",
        "score first",
    ),
    "probabilities that sum to 2": (
        "return np.log(np.array(rows))",
        "return np.log(2 * np.array(rows))",
        "normalised",
    ),
    "no number": ("return np.log(np.array(rows))", "return np.log(np.array(rows)) * np.nan", "normalised"),
    "code outside the bill": ("import numpy as np\n", "import numpy as np\nimport nanochat.gpt\n", "bytes"),
    "a package with weights": ("import numpy as np\n", "import numpy as np\nimport tokenizers\n", "bytes"),
    "a file outside the folder": ("return Entry()", "return open('/var/tmp/counts').read()", "bytes"),
    "tokens of another text": ("return [MARK, *text]", "return [MARK, *text[::2]]", "bytes"),
    "tokens that are not there": ("return [MARK, *text]", "return [MARK, *text, 300]", "bytes"),
    "chance": ("return np.log(np.array(rows))", "return np.log(np.roll(rows, np.random.randint(9), 1))", "score first"),
    "a long pause": ("return np.log(np.array(rows))", "import time; time.sleep(60)", "time"),
    "work between two questions": (
        "        for place in range(max(",
        "        import time; time.sleep(60)\n        for place in range(max(",
        "time",
    ),
}


@pytest.mark.parametrize("name", CHEATS)
def test_a_cheat_is_refused_by_name(name: str, place: Path) -> None:
    old, new, rule = CHEATS[name]
    assert old in HONEST
    with pytest.raises(UserError, match=f"^refused, {rule}: "):
        judge(written(place, HONEST.replace(old, new)), TEXTS, Limits(5))


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("return Entry()", "raise ValueError('no\\nweights')", "scorer.py: ValueError: no weights"),
        ("return Entry()", "import os, time; os.closerange(3, 2**16); time.sleep(99)", "its process has ended: "),
        ('[b""]', "['x']", "scorer.py: TypeError: "),
        ("return [MARK, *text]", "return [MARK] * 100 + list(text)", "an answer of .* bytes, where .* were asked for"),
        ("return np.log(np.array(rows))", "return np.zeros((1, 2))", r"log_probs gave 2 numbers, not 4 x 257"),
        ("return np.log(np.array(rows))", "import os; os._exit(3)", "its process has ended: it printed nothing"),
        ("context, stride = 8, 4", "context, stride = 4, 8", "1 <= stride <= context <= 65,536"),
    ],
)
def test_a_mistake_is_one_sentence(old: str, new: str, sentence: str, place: Path) -> None:
    with pytest.raises(UserError, match=sentence):
        judge(written(place, HONEST.replace(old, new)), TEXTS, Limits(20))


def test_memory_of_the_text_as_encoded_is_not_there_when_it_is_scored(place: Path) -> None:
    """The process that has seen all of the text scores nothing."""
    spying = HONEST.replace(
        "return [MARK, *text]", "ids = [MARK, *text]\n        self.learn(ids, 1)\n        return ids"
    )
    assert judge(written(place, spying), TEXTS, Limits(60)).bpb == pytest.approx(expected_bpb(), rel=1e-6)


def test_files_are_counted(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no scorer.py"):
        entry_files(tmp_path)
    written(tmp_path, HONEST)
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "one").write_bytes(b"123")
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "scorer.pyc").write_bytes(b"not copied")
    assert entry_files(tmp_path) == {"scorer.py": len(HONEST) + 9, "weights/one": 3 + 11}  # names count
    (tmp_path / "more").symlink_to("/etc/passwd")
    with pytest.raises(UserError, match="an entry has no links"):
        entry_files(tmp_path)


def test_what_the_scorer_may_import() -> None:
    names = {Path(path).name for path in library_paths()}
    assert {"numpy", "torch", "typing_extensions.py"} <= names
    assert not names & {"nanochat", "tasks", "transformers", "tokenizers", "pytest"}
