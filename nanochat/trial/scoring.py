"""Scores of a series' models on its sealed texts: once more where the machine may have stopped one."""

from collections.abc import Callable, Sequence

from nanochat.log import Record
from nanochat.trial import arena
from nanochat.trial.arena import Late, Stopped
from nanochat.trial.series import Series
from nanochat.trial.sides import Side

LATE = (3.0, 120.0)  # a scoring may take so many times the incumbent's seconds, and so many more


def scored(
    series: Series, side: Side, key: str, text: str, patience: Callable[[bool], float], question: str, **about: object
) -> Record:
    """Return what a run's model scores on a sealed text.

    What the machine may have stopped is scored again, once for each side of a question: whoever stops by itself may do
    so by what it has read. Both tries count. patience: the seconds that it may take, asked before each try, whether it
    was late before. question: the trial's name. about: the run, for the ledger.
    """
    unsafe = series.fixed["unsafe"]
    given = side, series.folder / "home", series.folder / "runs" / key, series.documents(text), unsafe
    try:
        return arena.score(*given, patience(False))
    except Stopped as error:
        if any(line["side"] == side.key for line in scored_again(series, question, text)):
            raise type(error)(f"{error}, and another one was scored again before") from None
        cpu_seconds, late = error.cpu_seconds, isinstance(error, Late)
        which = {"question": question, "text": text, "key": key, "side": side.key, **about}
        series.ledger.add("again", **which, reason=str(error), cpu_seconds=cpu_seconds)
    try:
        found = arena.score(*given, patience(late))
    except Stopped as error:
        raise type(error)(f"{error}, twice") from None
    return found | {"scoring_cpu_seconds": found["scoring_cpu_seconds"] + cpu_seconds}


def patience_of(seconds: Sequence[float]) -> float:
    """Return the seconds that a candidate's scoring may take, after those of the incumbent.

    What a process sees of the text, it can tell the next one by how long it takes: such words should be few.
    """
    times, more = LATE
    return min(arena.SCORING, times * max(seconds) + more)


def scored_again(series: Series, question: str, text: str) -> list[Record]:
    """Return the lines of the scorings on a text that a question has tried again."""
    return [line for line in series.ledger.of_kind("again") if (line["question"], line["text"]) == (question, text)]


def again_words(series: Series, question: str, text: str) -> str:
    """Return how many scorings a question has tried again, for its answer; "" for none."""
    count = len(scored_again(series, question, text))
    return f"{count_of(count, 'scoring')} tried again" if count else ""


def count_of(count: int, name: str) -> str:
    return f"1 {name} was" if count == 1 else f"{count} {name}s were"
