"""The holdout of a series: text that decided nothing, on which what was kept is scored once, at the end."""

from collections.abc import Sequence
from pathlib import Path

from nanochat.errors import UserError
from nanochat.evals import sandbox
from nanochat.log import Record
from nanochat.paths import hold_folder
from nanochat.trial import arena, decision
from nanochat.trial.answers import holdout_lines, tell
from nanochat.trial.arena import Failure, Stopped
from nanochat.trial.scorer import Refused
from nanochat.trial.scoring import again_words, patience_of, scored
from nanochat.trial.series import Series, faults_decide_nothing, open_series, series_folder
from nanochat.trial.sides import Side, check_unchanged


def open_holdout(name: str, as_json: bool) -> None:
    """Score what a series has kept on text that decided nothing, once, and print it."""
    folder = series_folder(name)
    with hold_folder(folder, "--series"), faults_decide_nothing(folder):
        series = open_series(folder)
        kept = [
            record for record in series.ledger.of_kind("trial") if record["answer"] == "keep" and record["confirmed"]
        ]
        if not kept:
            raise UserError(f"the series {name} has kept nothing on confirming seeds: the holdout stays sealed")
        sandbox.require(series.fixed["unsafe"])
        opened = series.ledger.of_kind("holdout")
        if not opened:
            if not series.ledger.of_kind("holdout-opened"):
                series.ledger.add("holdout-opened", trials=[record["number"] for record in kept])
            numbers = series.ledger.of_kind("holdout-opened")[0]["trials"]  # what was kept when it was first opened
            found = _all_scored(series, [record for record in kept if record["number"] in numbers])
            opened = [series.ledger.add("holdout", trials=found)]
        told = {
            "series": name,
            "trials": opened[0]["trials"],
            "later": len(kept) - len(opened[0]["trials"]),
            "hash": opened[0]["hash"],
            "answer": _all_held([one["answer"] for one in opened[0]["trials"]]),
        }
        tell(told, holdout_lines(told), as_json)


def _all_held(answers: Sequence[str]) -> str:
    """Return the worst of the answers, "held" if all gains were seen on the holdout."""
    return next(answer for answer in ("lost", "failed", "undecided", "held") if answer in answers)


def _all_scored(series: Series, kept: Sequence[Record]) -> list[Record]:
    """Return what the holdout says of each keep, a line of the ledger for each; those that are there stay.

    A fault of the machine decides nothing, and stops no other: a UserError once the others have their lines.
    """
    there = {line["trial"]["number"]: line["trial"] for line in series.ledger.of_kind("holdout-trial")}
    faults = []
    for record in kept:
        number = record["number"]
        if number in there:
            continue
        try:
            found = _held(series, record)
        except UserError as fault:
            faults.append(f"trial {number} could not be scored on the holdout, and nothing is decided by that: {fault}")
        else:
            there[number] = series.ledger.add("holdout-trial", trial=found)["trial"]
    if faults:
        raise UserError(f"{'; '.join(faults)}; mend it and ask again: what has its score keeps it")
    return [there[record["number"]] for record in kept]


def _held(series: Series, record: Record) -> Record:
    """Return whether a gain held; a candidate whose model cannot be scored has failed."""
    about = {
        "number": record["number"],
        "candidate": record["candidate"]["name"],
        "validation": record["gain"],
    }
    try:
        return about | _on_holdout(series, record)
    except (Failure, Refused) as error:
        return about | {"answer": "failed", "reason": str(error)}


def _on_holdout(series: Series, record: Record) -> Record:
    """Return how large a gain is on the holdout; Failure or Refused by fault of the candidate, else a UserError."""
    sides = [
        Side(one["name"], one["commit"], series.code / one["code"], one["flags"])
        for one in (record["incumbent"], record["candidate"])
    ]
    weights = {run["key"]: run["weights"] for run in series.ledger.of_kind("run")}
    for side in sides:
        check_unchanged(side.code)
    pairs = []
    seconds = []  # of the incumbent, which is scored first
    for number, keys in enumerate(record["confirmed"]):
        about = {"question": record["name"], "part": "holdout", "number": number}
        for key in keys:
            _check_weights(series.folder / "runs" / key, weights[key])
        try:
            one = scored(series, sides[0], keys[0], "holdout", lambda _: arena.SCORING, **about)
        except (Failure, Refused) as error:
            raise UserError(f"the incumbent's model {keys[0]} was not scored: {error}") from None
        try:
            seconds.append(one["scoring"])
            other = scored(series, sides[1], keys[1], "holdout", lambda _: patience_of(seconds), **about)
        except Stopped as error:  # as by other work on the machine
            raise UserError(f"the candidate's model {keys[1]} was not scored: {error}") from None
        pairs.append((one["bpb"], other["bpb"]))
    gain = decision.gain_of(pairs)
    answer = "undecided"
    if gain.p_better() <= decision.WORSE:
        answer = "held"
    elif gain.p_worse() <= decision.WORSE:
        answer = "lost"
    return {
        "gain": gain.mean,
        "interval": gain.half() if gain.stderr else 0.0,
        "pairs": gain.pairs,
        "p": gain.p_better(),
        "again": again_words(series, record["name"], "holdout"),
        "answer": answer,
    }


def _check_weights(place: Path, content: str) -> None:
    """Raise a UserError if a run's folder has not the weights that the run has left."""
    try:
        found = arena.weights_hash(place)
    except Failure:
        raise UserError(f"{place} has no weights any more, which its run has left") from None
    if found != content:
        raise UserError(f"{place} has other weights than its run left: nothing can be scored")
