"""Judge an entry from elsewhere: a folder with a scorer, which runs in the sandbox and is asked for probabilities.

python -m tracks.golf.judge my-entry                        200 kB, the text of the embedded scale
python -m tracks.golf.judge my-entry --scale=cpu --data=my-text

The judge keeps the text. It gives tokens in parts, each once, and takes the scores of a part before the entry may learn
from it. It adds up all probabilities itself, asks a twin of the process about parts whose end is replaced, and counts
all files of the folder. What breaks a rule is refused by the rule's name; tracks/golf/foreign.py has the interface.
"""

import math
import secrets
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import numpy as np

from nanochat.config import Count, Positional, option, options, run_script
from nanochat.errors import UserError
from nanochat.log import print0, table_of
from nanochat.outcome import Outcome
from nanochat.settings import TagSettings, TextSettings
from nanochat.statistics import measured
from tracks.golf.entries import SCALES, ScaleName, check_size
from tracks.golf.foreign import Refused, Scorer, copy_files, entry_files, scorer

SUM_ERROR = 1e-3  # of probabilities over the vocabulary: rows are fp32
SAME = 1e-3  # nats: two processes may round in other ways, and no cheat is worth so little
PROBES = 400  # questions whose end is replaced, at least if there are so many


@options("judge")
class Config(TextSettings, TagSettings):
    """Score a folder with a model and its own scorer, and check that it keeps the rules."""

    folder: Positional[str] = option("", "the entry: a folder with scorer.py and the files that it reads")
    tag = option("", "name of the judgement, and of its folder (default: the folder's name)")
    scale: ScaleName = option("embedded", "budget of bytes and of seconds, and the text")
    eval_bytes: Count = option(0, "bytes of validation text (0: the scale's)")
    unsafe_exec: bool = option(False, "run the scorer without the sandbox where it does not work")

    def __post_init__(self) -> None:
        if not self.folder:
            raise UserError("name the entry's folder: python -m tracks.golf.judge FOLDER")


@dataclass
class Checks:
    """What was checked so far."""

    places: int = 0  # whose probabilities were added up
    sum_error: float = 0.0  # the largest
    probes: int = 0  # questions whose end was replaced
    difference: float = 0.0  # the largest of a score, in nats, that should not differ
    parts: int = 0  # of the text, each given once


@dataclass
class Judgement:
    """The score of an entry, and the checks that it passed."""

    nats: float = 0.0
    bytes: int = 0
    tokens: int = 0
    seconds: float = 0.0  # of the entry's answers
    checks: Checks = field(default_factory=Checks)

    @property
    def bpb(self) -> float:
        return self.nats / math.log(2) / self.bytes


def encode(place: Path, documents: Sequence[str], seconds: float, unsafe: bool) -> list[list[int]]:
    """Return each document's tokens, by a process that scores nothing: what it learns from the text is lost."""
    found = []
    with scorer(place, seconds, unsafe) as encoder:
        vocabulary = encoder.about().vocabulary
        for text in documents:
            data = text.encode()
            ids = encoder.encode(data)
            if not all(0 <= token < len(vocabulary) for token in ids):
                raise Refused("bytes", "encode gives tokens that the vocabulary does not have")
            if b"".join(vocabulary[token] for token in ids) != data:
                raise Refused("bytes", "the tokens of a document do not have its bytes")
            found.append(ids)
    return found


def check_normalised(rows: np.ndarray, checks: Checks) -> None:
    """Raise Refused unless each row's probabilities sum to 1."""
    with np.errstate(over="ignore", invalid="ignore"):
        sums = np.exp(rows).sum(axis=1)
    wrong = ~(np.abs(sums - 1) <= SUM_ERROR)  # also for NaN
    if wrong.any():
        place = int(wrong.argmax())
        raise Refused("normalised", f"the probabilities of a place sum to {sums[place]:.4g} over the vocabulary, not 1")
    checks.places += len(rows)
    checks.sum_error = max(checks.sum_error, float(np.abs(sums - 1).max()))


def difference(one: np.ndarray, other: np.ndarray) -> float:
    """Return the largest difference of two tables of log-probabilities; impossible tokens are equal."""
    with np.errstate(invalid="ignore"):
        return float(np.nan_to_num(np.abs(one - other), nan=0.0, posinf=np.inf).max(initial=0.0))


def probe(twin: Scorer, ids: Sequence[int], first: int, rows: np.ndarray, dice: Random, checks: Checks) -> None:
    """Ask the twin about the same tokens with another end, then about them; raise Refused where a score differs.

    rows: as the entry's process gave them, which has been asked about the same tokens alone.
    """
    vocab_size = rows.shape[1]
    cut = dice.randrange(first, len(ids))  # the first token that differs
    others = [dice.randrange(vocab_size - 1) for _ in ids[cut:]] if vocab_size > 1 else [0 for _ in ids[cut:]]
    altered = [*ids[:cut], *(token + (token >= old) for token, old in zip(others, ids[cut:], strict=True))]
    early = twin.log_probs(altered, first, vocab_size)[: cut - first + 1]
    again = twin.log_probs(ids, first, vocab_size)
    checks.probes += 1
    # In this order: one that reads ahead gives the same scores again, one that remembers what it was asked does not.
    apart = difference(again, rows)
    if not apart <= SAME:
        reason = "the scores of a text change once other text was only asked about: it learns before it has scored"
        raise Refused("score first", f"{reason}, or it is left to chance")
    ahead = difference(early, rows[: len(early)])
    if not ahead <= SAME:
        raise Refused("causal", "the score of a token changes with tokens that follow it, or with itself")
    checks.difference = max(checks.difference, apart, ahead)


def judge(place: Path, documents: Sequence[str], seconds: float, unsafe: bool = False) -> Judgement:
    """Return the judgement of the files in a folder; Refused for an entry that breaks a rule."""
    texts = encode(place, documents, seconds, unsafe)
    found = Judgement(bytes=sum(len(text.encode()) for text in documents))
    checks = found.checks
    dice = Random(secrets.randbits(64))  # nobody knows what will be asked
    with scorer(place, seconds, unsafe) as own, scorer(place, 4 * seconds, unsafe) as twin:
        about = own.about()
        vocab_size = len(about.vocabulary)
        if twin.about() != about:
            raise Refused("score first", "two of its processes say different things about themselves")
        parts = sum(math.ceil(len(ids) / about.stride) for ids in texts)
        share = PROBES / max(parts, 1)
        for ids in texts:
            for begin in range(0, len(ids), about.stride):
                end = min(begin + about.stride, len(ids))
                start = max(0, end - about.context)
                window, first = ids[start:end], begin - start
                rows = own.log_probs(window, first, vocab_size)
                check_normalised(rows, checks)
                found.nats -= float(rows[np.arange(end - begin), ids[begin:end]].sum())
                found.tokens += end - begin
                checks.parts += 1
                if dice.random() < share:
                    probe(twin, window, first, rows, dice, checks)
                own.learn(window, first)
                twin.learn(window, first)
        found.seconds = own.seconds
    return found


def main(config: Config) -> None:
    from nanochat.data.corpus import open_corpus
    from nanochat.evals import sandbox
    from nanochat.evals.bpb import first_documents

    folder = Path(config.folder).expanduser().resolve()
    outcome = Outcome.begin("golf_judge", config.tag or folder.name, config)
    sandbox.require(config.unsafe_exec)
    scale = SCALES[config.scale]
    files = entry_files(folder)
    size = check_size(files, scale.bytes)
    data = scale.flags["--data"] if config.data == "auto" else config.data
    documents = first_documents(open_corpus(data).batches("val"), config.eval_bytes or scale.eval_bytes)
    with tempfile.TemporaryDirectory(prefix="golf-") as temporary:
        place = Path(temporary).resolve() / "entry"
        place.mkdir()
        place.parent.chmod(0o755)
        copy_files(folder, list(files), place)
        found = judge(place, documents, scale.scoring, config.unsafe_exec)
    checks = found.checks
    outcome.metrics = {
        "bpb": measured(found.bpb),
        "Bytes": size,
        "Budget": scale.bytes,
        "Bytes of text": found.bytes,
        "Tokens": found.tokens,
        "Scoring seconds": measured(found.seconds, spec=".1f"),
        "Sandbox": "no" if sandbox.missing() else "yes",
    }
    rows = [
        ["normalised", f"{checks.places:,} places, the largest error of a sum is {checks.sum_error:.1e}"],
        ["causal", f"{checks.probes:,} questions with another end, largest difference {checks.difference:.1e} nats"],
        ["score first", f"{checks.parts:,} parts of the text, each given once, and {checks.probes:,} asked again"],
        ["bytes", f"{len(files):,} files, copied and read again; the tokens have the bytes of the text"],
    ]
    outcome.tables = [table_of("Checks", "Rule | Passed by", rows)]
    outcome.tables.append(table_of("Bytes", "File | Bytes:,d", list(files.items())))
    print0(f"golf_judge: {size:,} of {scale.bytes:,} bytes, {found.bpb:.4f} bits per byte")
    outcome.finish()


if __name__ == "__main__":
    run_script(main)
