"""Entries for the judge: an honest one, and changes to it that break a rule."""

from pathlib import Path

import numpy as np
import pytest

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


# The same entry with its counts in a file beside it, which it reads as it would in its own folder.
WITH_A_FILE = HONEST.replace("np.ones((257, 257))", 'np.load("weights/counts.npz")["counts"]')


def with_a_file(folder: Path) -> Path:
    written(folder, WITH_A_FILE)
    (folder / "weights").mkdir(mode=0o755)
    np.savez(folder / "weights" / "counts.npz", counts=np.ones((257, 257)))
    (folder / "weights" / "counts.npz").chmod(0o644)
    return folder


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
