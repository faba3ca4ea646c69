"""Answers in words and in figures, for people and for programs, which read the lines `METRIC name=value`."""

import json
from collections.abc import Sequence

from nanochat.log import Record, print0
from nanochat.trial.arena import TIMES

# An answer as the ledger has it → as people read it.
ANSWERS = {"keep": "keep", "discard": "discard", "undecided": "not distinguishable yet"}
STATUS = {"keep": 0, "discard": 10, "undecided": 11}  # of the command
HELD = {"held": "it held", "lost": "it is a loss there", "undecided": "neither a gain nor a loss is shown there"}


def tell(told: Record, lines: Sequence[str], as_json: bool) -> None:
    """Print an answer as JSON or for people."""
    if as_json:
        print0(json.dumps(told, indent=2))
    else:
        print0(*lines, sep="\n")


def answer_lines(record: Record) -> list[str]:
    """Return the answer for people; the last lines are `METRIC name=value`, for programs."""
    lines = ["", f"{ANSWERS[record['answer']]}: {record['reason']}"]
    metrics: dict[str, object] = {}
    if "gain" in record:
        then = "goes on" if record["part"] == "filter" else "is kept"
        lines.append(
            f"gain: {record['gain']:+.4f} ± {record['interval']:.4f} bits per byte over {record['pairs']} pairs, "
            f"p = {record['p']:.2g}; it {then} at {record['level']:.2g}"
        )
        if record["note"]:
            lines.append(f"note: {record['note']}")
        if not record["contained"]:
            lines.append("note: both sides ran without the sandbox, and could reach what judges them")
        if record["holds"]:
            lines.append(f"holds: {record['holds']}")
        if record["second"] and "gain" in record["second"]:
            second = record["second"]
            lines.append(f"second depth: {second['gain']:+.4f} ± {second['interval']:.4f} over {second['pairs']} pairs")
        noise = record["noise"]
        lines.append(
            f"noise: {noise['sd']:.4f} over {noise['freedom'] + 1} seeds; this question shows {record['smallest']:.4f}"
        )
        for name, found in record["metrics"].items():
            change = "; the incumbent ran earlier" if name in TIMES and not record["in_turns"] else ""
            if "change" in found:
                change = f", {found['change']:+.1f} ± {found['interval']:.1f} %"
            lines.append(f"{name}: {found['incumbent']:,.4g} incumbent, {found['candidate']:,.4g} candidate{change}")
            metrics |= {f"{name}_{kind}": f"{value:.6g}" for kind, value in found.items()}
        metrics |= {
            "confirmed": "yes" if record["confirmed"] else "no",
            "contained": "yes" if record["contained"] else "no",
            "note": "yes" if record["note"] else "no",
            "second_depth": record["second"]["answer"] if record["second"] else "none",
        }
        metrics |= {"gain_bpb": f"{record['gain']:.6f}", "interval_bpb": f"{record['interval']:.6f}"}
        metrics |= {"p": f"{record['p']:.6g}", "level": f"{record['level']:.6g}", "part": record["part"]}
        metrics |= {"pairs": record["pairs"], "smallest_bpb": f"{record['smallest']:.6f}"}
    metrics |= {"number": record["number"], "ledger": record["hash"], "answer": record["answer"]}
    return [*lines, *metric_lines(metrics)]


def metric_lines(metrics: Record) -> list[str]:
    """Return figures for programs; the last one is the answer."""
    return [f"METRIC {name}={value}" for name, value in metrics.items()]


def holdout_lines(told: Record) -> list[str]:
    """Return what the holdout has shown, in the form of `answer_lines`."""
    lines = []
    metrics: dict[str, object] = {}
    for one in told["trials"]:
        about: Record = {}
        said = f"trial {one['number']}: {one['candidate']}: {one['validation']:+.4f} on validation text, "
        if one["answer"] == "failed":
            lines.append(f"{said}and it cannot be scored on the holdout: {one['reason']}")
        else:
            lines.append(
                f"{said}{one['gain']:+.4f} ± {one['interval']:.4f} on the holdout over {one['pairs']} pairs, "
                f"p = {one['p']:.2g}: {HELD[one['answer']]}" + (f"; {one['again']}" if one["again"] else "")
            )
            about = {
                "gain_bpb": f"{one['gain']:.6f}",
                "interval_bpb": f"{one['interval']:.6f}",
                "p": f"{one['p']:.6g}",
                "pairs": one["pairs"],
            }
        about["answer"] = one["answer"]
        metrics |= {f"trial_{one['number']}_{name}": value for name, value in about.items()}
    if told["later"]:
        lines.append(f"{told['later']} later keeps have no holdout: it is opened once, at the end of a series")
    metrics |= {"trials": len(told["trials"]), "later": told["later"], "ledger": told["hash"]}
    return [*lines, *metric_lines({**metrics, "answer": told["answer"]})]
