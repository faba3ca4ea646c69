"""Scores code that is not trusted: asks its processes for probabilities, adds them up, and looks for broken rules.

- judge(place, documents, limits) -> Judgement: of the files in a folder; Refused for an entry that breaks a rule.
- check_rows(judgement): the rules, and what was looked at for each, for the card.

An entry is a folder with a scorer, as scorer.py says: that of a stranger, or a model that a trial has trained.
"""

import math
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np

from nanochat.errors import UserError
from nanochat.evals import sandbox
from nanochat.trial.scorer import MOST_CELLS, About, Refused, scorer

SUM_ERROR = 1e-3  # of probabilities over the vocabulary: rows are fp32
SAME = 1e-3  # nats: two processes may round in other ways
PROBES = 2000  # places that are asked for again without what follows; fewer, if these questions have
MOST_AGAIN = 10  # times the tokens of the text
FEWEST = 200  # in any case; scorer.MOST_TOKENS leaves room for their rows
CONFIDENT = 3.0  # -ln 5 %: with this over the probes, a larger share of places would have been found with 95 %


@dataclass(frozen=True)
class Limits:
    """Of the entry's processes."""

    seconds: float
    unsafe: bool = False  # they may run without the sandbox, where it does not work
    probes: int = PROBES  # places that are asked for again, at most
    learns: bool = True  # the entry is told what had its scores, and may learn from it
    readable: Sequence[str] | None = None  # beside the entry's folder; None: numpy and torch
    until: float = math.inf  # of time.monotonic(): when all of them together have to be done

    def most(self, seconds: float) -> float:
        """Return so many seconds, or those that are left."""
        return min(seconds, max(0.0, self.until - time.monotonic()))


@dataclass(frozen=True)
class Part:
    """A question: tokens, of which those before `first` are context, and the places from `first` on are asked for."""

    ids: Sequence[int]  # the last place's own token is not among them: no row needs it
    first: int
    true: Sequence[int]  # the tokens at the places that are scored; a question may ask for more places

    @property
    def places(self) -> int:
        return len(self.ids) + 1 - self.first


@dataclass
class Judgement:
    """The score of an entry, and what was checked."""

    nats: float = 0.0
    bytes: int = 0
    tokens: int = 0
    seconds: float = 0.0  # that its process took, once loaded
    unasked: float = 0.0  # of them, in which it was asked for nothing: the arithmetic of the judge
    parts: int = 0
    places: int = 0  # whose probabilities were added up
    sum_error: float = 0.0  # the largest
    open_places: int = 0  # whose own token is in their question: the others cannot look at it
    probes: int = 0  # such places that were asked for without what follows
    probe_nats: float = 0.0  # of their tokens, with what follows
    alone_nats: float = 0.0  # and without
    difference: float = 0.0  # the largest of a score, in nats, that should not differ
    cpu_seconds: float = 0.0  # that its processes have used, counted outside of the sandbox; 0 without one
    processes: int = 0  # and threads
    ended: bool = True  # its processes have, without an error, once nothing more was asked

    @property
    def bpb(self) -> float:
        return self.nats / math.log(2) / self.bytes

    def add_process(self, ended: sandbox.Verdict) -> None:
        """Add what a process has used. ended: `Scorer.end()`."""
        self.ended &= ended.passed
        if ended.used:
            self.cpu_seconds += ended.used.cpu_seconds
            self.processes += ended.used.processes


def encode(place: Path, documents: Sequence[str], found: Judgement, limits: Limits) -> tuple[About, list[list[int]]]:
    """Return each document's tokens, by a process that scores nothing.

    What it learns from the text stays in it, but for how long it takes: the next process can read that from a clock.
    """
    texts = []
    with scorer(place, limits.most(limits.seconds), limits.unsafe, limits.readable) as encoder:
        about = encoder.about()
        for text in documents:
            data = text.encode()
            ids = encoder.encode(data)
            if not all(0 <= token < len(about.vocabulary) for token in ids):
                raise Refused("bytes", "encode gives tokens that the vocabulary does not have")
            if b"".join(about.vocabulary[token] for token in ids) != data:
                raise Refused("bytes", "the tokens of a document do not have its bytes")
            texts.append(ids)
        found.add_process(encoder.end())
    return about, texts


def parts_of(texts: Sequence[Sequence[int]], about: About, dice: Random) -> Iterator[Part]:
    """Yield the questions, in the order of the text.

    Each asks for as many places as the others, so that none tells where a document ends: the last one of a document
    goes on with tokens of documents before, which have their scores.
    """
    for number, ids in enumerate(texts):
        for begin in range(0, len(ids), about.stride):
            true = ids[begin : begin + about.stride]
            start = max(0, begin + about.stride - about.context)
            filler = filling(texts[:number], about, about.stride - len(true), dice)
            whole = [*ids[start : begin + len(true)], *filler]
            yield Part(whole[:-1], begin - start, true)


def filling(before: Sequence[Sequence[int]], about: About, count: int, dice: Random) -> list[int]:
    """Return so many tokens, as they follow each other in one of the documents before, if there are any."""
    found: list[int] = []
    while len(found) < count:
        if before:
            ids = dice.choice(before)
            begin = dice.randrange(len(ids))
            found += ids[begin : begin + count - len(found)]
        else:
            found.append(dice.randrange(len(about.vocabulary)))
    return found


def check_normalised(rows: np.ndarray, found: Judgement) -> np.ndarray:
    """Return the logarithms of what the probabilities of each row sum to; raise Refused unless that is nearly 1.

    Rows minus these are what is scored. A copy of all rows in fp64 would take four times as long, and the clock runs.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        sums = np.exp(rows).sum(axis=1, dtype=np.float64)
    wrong = ~(np.abs(sums - 1) <= SUM_ERROR)  # also for NaN
    if wrong.any():
        place = int(wrong.argmax())
        raise Refused("normalised", f"the probabilities of a place sum to {sums[place]:.4g} over the vocabulary, not 1")
    found.places += len(rows)
    found.sum_error = max(found.sum_error, float(np.abs(sums - 1).max()))
    return np.log(sums)


def difference(one: np.ndarray, other: np.ndarray) -> float:
    """Return the largest difference of two rows of log-probabilities; inf where one of them is no number."""
    with np.errstate(invalid="ignore"):
        apart = np.where(one == other, 0.0, np.abs(one - other))  # impossible tokens are equal
    return float(np.where(np.isnan(apart), np.inf, apart).max(initial=0.0))


def score_all(
    place: Path,
    parts: Sequence[Part],
    about: About,
    places: Mapping[int, Sequence[int]],
    found: Judgement,
    limits: Limits,
) -> dict[tuple[int, int], np.ndarray]:
    """Score all parts in one process of the entry; returns the rows of some places, by part and place.

    places: part -> its places whose rows are returned.
    """
    vocab_size = len(about.vocabulary)
    kept = {}
    with scorer(place, limits.most(limits.seconds), limits.unsafe, limits.readable) as own:
        if own.about() != about:
            raise Refused("score first", "two of its processes say different things about themselves")
        for number, part in enumerate(parts):
            rows = own.log_probs(part.ids, part.first, vocab_size)
            sums = check_normalised(rows, found)
            count = len(part.true)
            found.nats -= float((rows[np.arange(count), part.true] - sums[:count]).sum())
            found.tokens += count
            kept |= {(number, one): (rows[one] - sums[one]).astype(np.float32) for one in places.get(number, ())}
            if limits.learns:
                own.learn([*part.ids[: part.first], *part.true], part.first)
        found.seconds = own.seconds
        found.unasked = own.seconds - own.asked
        found.add_process(own.end())
    return kept


def ask_again(
    place: Path,
    parts: Sequence[Part],
    about: About,
    kept: Mapping[tuple[int, int], np.ndarray],
    found: Judgement,
    limits: Limits,
) -> None:
    """Ask another process for some places, first without what follows; raise Refused where a score differs.

    kept: rows of these places, as the first process gave them. It has given all rows before, so this one may know what
    it is asked for: without the tokens that follow, it cannot give what they have changed.
    """
    vocab_size = len(about.vocabulary)
    by_part: dict[int, list[int]] = {}
    for number, one in kept:
        by_part.setdefault(number, []).append(one)
    patience = limits.most((2 + MOST_AGAIN) * limits.seconds + FEWEST)
    with scorer(place, patience, limits.unsafe, limits.readable) as twin:
        for number, part in enumerate(parts):
            places = by_part.get(number, [])
            alone = {}
            for one in sorted(places):  # what follows a place is shown after it was asked for
                cut = part.first + one
                rows = twin.log_probs(part.ids[:cut], cut, vocab_size)
                alone[one] = rows[0] - check_normalised(rows, Judgement())[0]
            if places:
                once, again = (twin.log_probs(part.ids, part.first, vocab_size) for _ in range(2))
                sums, sums_again = (check_normalised(rows, Judgement()) for rows in (once, again))
                for one in places:
                    compare(kept[number, one], alone[one], once[one] - sums[one], again[one] - sums_again[one], found)
                    found.probe_nats -= float(kept[number, one][part.true[one]])
                    found.alone_nats -= float(alone[one][part.true[one]])
            if limits.learns:
                twin.learn([*part.ids[: part.first], *part.true], part.first)
        found.add_process(twin.end())


def compare(first: np.ndarray, alone: np.ndarray, once: np.ndarray, again: np.ndarray, found: Judgement) -> None:
    """Raise Refused if the row of a place differs once the entry was asked about it, or without what follows.

    first: of the process that has scored it. The others are of another one: without what follows, then twice with it.
    """
    apart = max(difference(once, again), difference(once, first))
    if not apart <= SAME:
        reason = "the scores of a text change once it was only asked about"
        raise Refused("score first", f"{reason}: the entry learns before it has scored, or leaves it to chance")
    ahead = difference(alone, first)
    if not ahead <= SAME:
        raise Refused("causal", "the score of a token changes with tokens that follow it, or with itself")
    found.probes += 1
    found.difference = max(found.difference, apart, ahead)


def most_probes(parts: Sequence[Part], open_places: Sequence[tuple[int, int]], vocab_size: int, most: int) -> int:
    """Return how many of the open places, of part and place, are asked for again: `most`, or what can be afforded.

    What counts is how long the questions without what follows will be. The context that an entry declares may be longer
    than any document, and the other questions are those of the first process.
    """
    tokens = sum(len(part.true) for part in parts)
    asked = sum(parts[number].first + one for number, one in open_places)  # if all were asked for
    affordable = MOST_AGAIN * tokens * len(open_places) // max(1, asked)
    return min(most, max(FEWEST, affordable), MOST_CELLS // vocab_size, len(open_places))  # their rows are kept


def judge(place: Path, documents: Sequence[str], limits: Limits) -> Judgement:
    """Return the judgement of the files in a folder; Refused for an entry that breaks a rule."""
    documents = list(filter(None, documents))
    found = Judgement(bytes=sum(len(text.encode()) for text in documents))
    if not found.bytes:
        raise UserError("there is no text to score")
    about, texts = encode(place, documents, found, limits)
    dice = Random(secrets.randbits(64))  # nobody knows what will be asked
    parts = list(parts_of(texts, about, dice))
    found.parts = len(parts)
    # Places whose own token is in the question; of the last one of each part it is not.
    open_places = [
        (number, one) for number, part in enumerate(parts) for one in range(min(len(part.true), part.places - 1))
    ]
    found.open_places = len(open_places)
    probed = dice.sample(open_places, most_probes(parts, open_places, len(about.vocabulary), limits.probes))
    by_part: dict[int, list[int]] = {}
    for number, one in probed:
        by_part.setdefault(number, []).append(one)
    kept = score_all(place, parts, about, by_part, found, limits)
    ask_again(place, parts, about, kept, found, limits)
    return found


def check_rows(found: Judgement) -> list[list[str]]:
    """Return the rules, and what was looked at for each."""
    causal = "no place's own token is in its question"
    if found.open_places:
        most = 0.0 if found.probes == found.open_places else CONFIDENT / found.probes
        bits = math.log(2) * found.probes
        causal = (
            f"{found.probes:,} of {found.open_places:,} places without what follows, largest difference"
            f" {found.difference:.1e} nats; with 95 % no more than {most:.2%} of the places look ahead; a token there"
            f" has {found.probe_nats / bits:.5f} bits with what follows, {found.alone_nats / bits:.5f} without"
        )
    return [
        ["normalised", f"{found.places:,} places, the largest error of a sum is {found.sum_error:.1e}"],
        ["causal", causal],
        ["score first", f"{found.parts:,} parts of the text, each given once; those of the same places again"],
        ["bytes", "copied, and counted there; the tokens have the bytes of the text"],
        [
            "time",
            f"{found.seconds:.1f} s, with {found.unasked:.1f} s in which the judge added up and asked for nothing",
        ],
    ]
