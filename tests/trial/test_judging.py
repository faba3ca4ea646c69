"""Entries from elsewhere: an honest one has the score of its own arithmetic, and each cheat is refused by name."""

import math
import tracemalloc
from collections import Counter
from pathlib import Path
from random import Random

import numpy as np
import pytest
from contain import NEEDS_SANDBOX
from foreign_entries import CHEATS, HONEST, place, with_a_file, written

from nanochat.errors import UserError
from nanochat.trial import scorer
from nanochat.trial.judging import (
    FEWEST,
    PROBES,
    Judgement,
    Limits,
    check_normalised,
    check_rows,
    judge,
    most_probes,
    parts_of,
)
from nanochat.trial.scorer import MOST_CELLS, MOST_TOKENS, About, Broken

pytestmark = NEEDS_SANDBOX
__all__ = ["place"]

TEXTS = ["the fox and the hen and the fox", "", "여우 and 암탉", "the end of the end of the end of the text"]


def expected_bpb() -> float:
    """The same model, written out: a part of four tokens is counted once it has its scores."""
    counts = {before: Counter(dict.fromkeys(range(257), 1)) for before in range(257)}
    nats = 0.0
    for text in filter(None, TEXTS):
        ids = [256, *text.encode()]
        for begin in range(0, len(ids), 4):
            numbers = range(begin, min(begin + 4, len(ids)))
            for number in numbers:
                row = counts[ids[number - 1]] if number else None
                nats -= math.log(row[ids[number]] / row.total() if row else 1 / 257)
            for number in numbers:
                if number:
                    counts[ids[number - 1]][ids[number]] += 1
    return nats / math.log(2) / sum(len(text.encode()) for text in TEXTS)


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
    assert found.ended
    assert found.cpu_seconds > 0  # of all three processes, counted outside
    assert found.processes >= 3
    assert found.probe_nats == pytest.approx(found.alone_nats)
    bits = found.probe_nats / math.log(2) / found.probes
    assert check_rows(found)[1][1].endswith(f"a token there has {bits:.5f} bits with what follows, {bits:.5f} without")


def test_a_process_that_goes_on_is_seen(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has used is not known."""
    monkeypatch.setattr(scorer, "LEAVING", 0.5)
    staying = "import atexit, time\n\natexit.register(time.sleep, 600)\n"
    assert not judge(written(place, staying + HONEST), TEXTS, Limits(60)).ended


def test_a_process_that_was_killed_is_known(place: Path) -> None:
    killed = HONEST.replace("return [MARK, *text]", "import os; os.kill(os.getpid(), 9)")
    with pytest.raises(Broken) as raised:
        judge(written(place, killed), TEXTS, Limits(60))
    assert raised.value.killed
    with pytest.raises(Broken) as raised:
        judge(written(place, HONEST.replace("return [MARK, *text]", "import os; os._exit(3)")), TEXTS, Limits(60))
    assert not raised.value.killed


def test_an_entry_begins_in_its_own_folder(place: Path) -> None:
    assert judge(with_a_file(place), TEXTS, Limits(60)).bpb == pytest.approx(expected_bpb(), rel=1e-6)
    writing = HONEST.replace("return Entry()", "open('/tmp/scratch', 'w').close(); open('more', 'w')")
    with pytest.raises(UserError, match="Read-only file system: 'more'"):  # a copy is the same for all its processes
        judge(written(place, writing), TEXTS, Limits(60))


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


def test_the_arithmetic_makes_no_copy_in_fp64() -> None:
    """The entry's clock runs meanwhile: for 75,000 places of 50,257 tokens it took most of the minute."""
    rows = np.log(np.random.default_rng(1).dirichlet(np.ones(50_257), 20)).astype(np.float32) + np.float32(5e-4)
    found = Judgement()
    tracemalloc.start()
    sums = check_normalised(rows, found)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1.5 * rows.nbytes
    assert sums == pytest.approx(5e-4, rel=1e-3)
    assert (found.places, found.sum_error) == (20, pytest.approx(math.expm1(5e-4), rel=1e-3))


def test_the_seconds_of_the_arithmetic_are_on_the_card(place: Path) -> None:
    found = judge(written(place, HONEST), TEXTS, Limits(60))
    assert 0 < found.unasked < found.seconds  # of the same clock
    time = f"{found.seconds:.1f} s, with {found.unasked:.1f} s in which the judge added up and asked for nothing"
    assert check_rows(found)[-1] == ["time", time]


@pytest.mark.parametrize(
    ("length", "context", "stride", "probes"),
    [
        (400, 512, 16, PROBES),
        (400, 65_536, 16, PROBES),  # no document is as long as the entry says
        (400, 65_536, 8192, PROBES),  # questions are filled with other tokens
        (40_000, 65_536, 16, FEWEST),  # a question of many tokens costs an honest entry as much
    ],
)
def test_what_an_entry_declares_does_not_shrink_the_check(length: int, context: int, stride: int, probes: int) -> None:
    texts = [[1] * length] * (80_000 // length)
    parts = list(parts_of(texts, About([b"a"] * 2, context, stride), Random(1)))
    places = [(number, one) for number, part in enumerate(parts) for one in range(len(part.true) - 1)]
    assert most_probes(parts, places, 2, PROBES) == probes
    assert most_probes(parts, places, MOST_TOKENS, PROBES) == min(probes, MOST_CELLS // MOST_TOKENS)
    assert MOST_CELLS // MOST_TOKENS >= FEWEST
    assert most_probes(parts, places, 2, 100) == 100
    assert most_probes(parts, places[:7], 2, PROBES) == 7


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
        ("return Entry()", "import os, time; os.closerange(3, 2**16); time.sleep(5)", "its process has ended: "),
        ('[b""]', "['x']", "scorer.py: TypeError: "),
        ("return [MARK, *text]", "return [MARK] * 100 + list(text)", "an answer of .* bytes, where .* were asked for"),
        ("return np.log(np.array(rows))", "return np.zeros((1, 2))", r"log_probs gave 2 numbers, not 4 x 257"),
        ("return np.log(np.array(rows))", "import os; os._exit(3)", "its process has ended: it printed nothing"),
        ("context, stride = 8, 4", "context, stride = 4, 8", "1 <= stride <= context <= 65,536"),
        ('[b""]', '[b""] * 400_000', "a vocabulary of at most 327,680 tokens"),
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
