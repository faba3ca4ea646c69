"""What a series has asked so far, from its ledger: `scripts.trial --list`, and how long a question takes."""

import re
import statistics
from collections import defaultdict
from collections.abc import Sequence

from nanochat.errors import UserError
from nanochat.log import Record, table_of, terminal_table
from nanochat.paths import base_dir
from nanochat.trial.answers import ANSWERS, metric_lines, tell
from nanochat.trial.decision import Plan, share
from nanochat.trial.ledger import GENESIS, read, verify
from nanochat.trial.series import series_folder
from nanochat.trial.settings import SCALES

NOT_ANSWERED = "not answered: ask again to go on"


def listed(name: str, ledger: Sequence[Record]) -> Record:
    """Return what a series has asked, in order, and what it has taken; a UserError if it has not begun."""
    kinds: dict[str, list[Record]] = defaultdict(list)
    for record in ledger:
        kinds[record["kind"]].append(record)
    if not kinds["series"]:
        raise UserError(f"the series {name} has asked nothing yet")
    begun, runs = kinds["series"][0], [*kinds["run"], *kinds["repeated"]]
    answers = {record["name"]: record for record in kinds["trial"] if record["name"]}
    trials = [row_of(number, asked, answers) for number, asked in enumerate(kinds["asked"], 1)]
    refused = [row_of(0, record, {"": record}) for record in kinds["trial"] if not record["name"]]
    return {
        "series": name,
        **{key: begun[key] for key in ("commit", "scale", "budget")},
        "trials": [*trials, *refused],
        "kept": sum(trial["answer"] == "keep" for trial in trials),
        "next_level": share(len(trials) + 1),  # of p
        "runs": len(runs),
        "failed_runs": len(kinds["crash"]),
        "seconds": sum(run["seconds"] + run.get("scoring", 0.0) for run in runs),
        "holdout": bool(kinds["holdout-opened"]),
    }


def row_of(number: int, asked: Record, answers: dict[str, Record]) -> Record:
    """Return a question with its answer. number: 0 for one that was refused before it had a number."""
    answer = answers.get(asked["name"], {})
    return {
        "number": number,
        "candidate": candidate_words(asked),
        "incumbent": asked["incumbent"]["name"] if number else "",
        "answer": answer.get("answer", ""),
        **{key: answer.get(key) for key in ("gain", "interval", "p", "level")},
        "reason": answer.get("reason", NOT_ANSWERED),
    }


def candidate_words(asked: Record) -> str:
    """Return a candidate in a few words: its commit or flags, or the files that the working tree has changed."""
    candidate = asked["candidate"]
    if isinstance(candidate, str):  # refused before it was a side
        return candidate or "the working tree"
    files = re.findall(r"^diff --git a/\S+ b/(\S+)$", asked.get("diff", ""), re.MULTILINE)
    return f"{candidate['name']}: {', '.join(files)}" if files else candidate["name"]


def list_lines(told: Record) -> list[str]:
    """Return the list for people."""
    rows = [
        [
            trial["number"] or "-",
            trial["candidate"],
            ANSWERS.get(trial["answer"], "-"),
            "-" if trial["gain"] is None else f"{trial['gain']:+.4f} ± {trial['interval']:.4f}",
            "-" if trial["p"] is None else f"{trial['p']:.2g}",
            trial["reason"],
        ]
        for trial in told["trials"]
    ]
    lines = [
        f"series {told['series']}: commit {told['commit'][:8]}, scale {told['scale']}, budget {told['budget']}",
        terminal_table(table_of("", "Trial | Candidate | Answer | Gain in bits per byte | p | Reason", rows)),
        "",
        f"{told['runs']} runs, {told['seconds'] / 60:.0f} minutes of training and scoring",
        f"failed runs: {told['failed_runs']}",
        f"the next trial keeps at p = {told['next_level']:.2g}",
    ]
    return [*lines, "the holdout was opened"] if told["holdout"] else lines


def length_words(plan: Plan, scale: str, budget: str, floor: Sequence[Record]) -> str:
    """Return how long a question may take, by the runs of the noise floor."""
    settings = SCALES[scale]
    minutes = statistics.median(run["seconds"] + run["scoring"] for run in floor) / 60
    deeper = settings.depths[1] / settings.depths[0]
    factor = deeper**2 if budget == "flops" else deeper  # of a run at the second depth
    there = 0 if budget == "seconds" else min(len(floor), plan.pairs)  # the noise floor has the incumbent's runs
    first = 2 * plan.pairs - there
    repeated = 0 if budget == "seconds" else 1  # of a keep, for the same weights
    most = plan.runs - there + repeated
    longest = most + 2 * plan.deeper * (factor - 1)
    words = f"runs take {60 * minutes:.0f} s: the first part {first} of them, {first * minutes:.0f} minutes"
    return words if most == first else f"{words}; a keep {most}, {longest * minutes:.0f} minutes"


def verify_series(name: str, head: str, as_json: bool) -> None:
    """Check the ledger of a series, and print what it has; a UserError if it was changed.

    head: the hash that an answer has named, which has to be in it; empty: none.
    """
    path = series_folder(name) / "trial.jsonl"
    if not path.exists():
        raise UserError(f"there is no series {name} below {base_dir() / 'trial'}")
    count = verify(path, head)
    last = list(read(path))[-1]["hash"] if count else GENESIS
    told = {"series": name, "lines": count, "hash": last, "answer": "unchanged"}
    words = f"{path}: {count} lines, each with the hash of the one before; the last is {last}"
    metrics = {"lines": count, "ledger": last, "answer": "unchanged"}
    tell(told, [words, *metric_lines(metrics)], as_json)


def list_series(name: str, as_json: bool) -> None:
    """Print what a series has asked, and what it has taken."""
    path = series_folder(name) / "trial.jsonl"
    told = listed(name, list(read(path)) if path.exists() else [])
    counts = {key: told[key] for key in ("kept", "runs")}
    metrics = {"trials": len(told["trials"]), **counts, "seconds": f"{told['seconds']:.0f}", "answer": "listed"}
    tell(told, [*list_lines(told), *metric_lines(metrics)], as_json)
