"""Alarms: signs that a run of the lab is broken, rather than worse.

`alarms` returns all alarms of a run: from its metric log (records of `nanochat.log.read_metrics`), from the scores of
the `stable` benchmarks beside those of the parent, and from the answers that were cut at the limit. An alarm has a
kind, a sentence, and `breaks`: True if the run is broken and leaves the recommendation.

- loss, gradient norm (on a log scale): a step far above the steps before it, or an end above the beginning.
- benchmark: a stable benchmark at least 10 points and more than 5 errors below the parent.
- stop: answers that no longer stop by themselves.
- staircase: the training loss steps down where epochs end. It shows that rows are remembered, and breaks nothing.

No files are read here.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from nanochat.log import Record
from nanochat.outcome import Estimate

WINDOW = 32  # steps before a spike
SPIKE = 6.0  # deviations of the window
ENDS = 10  # first and last part of a run: a tenth, at least 5 steps
LEAST_FALL, FALL_ERRORS = 0.10, 5.0  # of a share of right answers, or of answers that stop
STAIR = 5.0  # errors
LEAST_SIDE, MOST_SIDE = 6, 50  # steps before and after the end of an epoch
# Name of a curve → its figure in the metric log, the smallest rise that counts, and whether it is one of the logarithm.
CURVES = {"loss": ("train/loss", 0.0, False), "gradient norm": ("train/grad_norm", math.log(10), True)}


class Alarm(NamedTuple):
    """A sign of a broken run."""

    kind: str  # loss, gradient norm, benchmark, stop or staircase
    sentence: str
    breaks: bool = True  # the run leaves the recommendation


def alarms(
    records: Sequence[Record],
    scores: Mapping[str, Estimate],
    parent_scores: Mapping[str, Estimate],
    stops: Mapping[str, Estimate],
    parent_stops: Mapping[str, Estimate],
) -> list[Alarm]:
    """Return the alarms of a run; what is not known may be empty.

    records: of the metric log. scores: accuracy (0 to 1) in stable benchmarks. stops: `stop_share` in tasks with
    written answers.
    """
    found = [Alarm(name, sentence) for name in CURVES for sentence in _rises(records, name)]
    for kind, own, parents in (("benchmark", scores, parent_scores), ("stop", stops, parent_stops)):
        what = "answers that stop by themselves in " if kind == "stop" else ""
        for task in own.keys() & parents.keys():
            fall = parents[task].value - own[task].value
            error = math.hypot(own[task].stderr, parents[task].stderr)
            if fall >= LEAST_FALL and fall > FALL_ERRORS * error:
                shares = f"{parents[task].value:.1%} before, {own[task].value:.1%} now"
                found.append(Alarm(kind, f"{what}{task}: {shares}"))
    stair = staircase(records)
    if stair and stair.value < -STAIR * stair.stderr:
        z = stair.value / stair.stderr
        sentence = f"the training loss changes by {stair.value:.3f} nats where epochs end (z = {z:.1f}): repeated rows"
        found.append(Alarm("staircase", sentence, breaks=False))
    return found


def stop_share(answers: Sequence[Record]) -> Estimate | None:
    """Return the share of written answers that stop by themselves, in a task's records of chat_eval."""
    stopped = [one["reason"] != "length" for answer in answers for one in answer["completions"] if "reason" in one]
    if not stopped:  # letters are chosen
        return None
    share = float(np.mean(stopped))
    return Estimate(share, math.sqrt(share * (1 - share) / len(stopped)))


def _rises(records: Sequence[Record], name: str) -> Iterable[str]:
    """Yield a sentence about the largest spike of a curve, and one about an end above the beginning."""
    figure, least, is_log = CURVES[name]
    # An idle step has neither loss nor gradient.
    points = [(record["step"], record[figure]) for record in records if record.get(figure)]
    if len(points) <= WINDOW:
        return
    steps, values = np.array(points).T
    values = np.log(values) if is_log else values
    before = np.lib.stride_tricks.sliding_window_view(values[:-1], WINDOW)
    rises = values[WINDOW:] - before.mean(1)
    deviations = np.where(rises > least, rises / before.std(1, ddof=1).clip(1e-9), 0)
    worst = int(deviations.argmax())
    if deviations[worst] > SPIKE:
        step = int(steps[WINDOW + worst])
        yield f"{name} of step {step:,}: {deviations[worst]:.1f} deviations above the {WINDOW} steps before"
    size = max(5, len(values) // ENDS)
    first, last = values[:size], values[-size:]
    rise = last.mean() - first.mean()
    error = math.sqrt((first.var(ddof=1) + last.var(ddof=1)) / size)
    if rise > max(least, SPIKE * error):
        levels = [math.exp(part.mean()) if is_log else part.mean() for part in (first, last)]
        yield f"{name}: {levels[0]:.3g} in the first {size} steps, {levels[1]:.3g} in the last"


def staircase(records: Sequence[Record]) -> Estimate | None:
    """Return the step in the mean training loss at the ends of epochs; None if there is no such end.

    At each end a line with a step is fitted to the steps around it: a trend, and its curvature, count as no step.
    """
    points = [(record["train/epoch"], record["train/loss"]) for record in records if "train/epoch" in record]
    if not points:
        return None
    epochs, losses = np.array(points).T
    # The first step whose batch lies wholly in the next epoch.
    ends = np.flatnonzero(np.diff(np.floor(epochs))) + 2
    side = int(min(MOST_SIDE, np.diff(ends).min() // 2 if len(ends) > 1 else MOST_SIDE))
    found = []  # size and variance
    for end in ends:
        # The step in between has rows of both epochs.
        offsets = np.r_[-side - 1 : -1, 0:side]
        if side < LEAST_SIDE or end + offsets[0] < 0 or end + side > len(losses):
            continue
        design = np.c_[np.ones(2 * side), offsets, offsets >= 0]
        fit, squares, *_ = np.linalg.lstsq(design, losses[end + offsets])
        variance = float(squares[0]) / (2 * side - 3) * np.linalg.inv(design.T @ design)[2, 2]
        found.append((float(fit[2]), variance))
    if not found:
        return None
    steps, variances = zip(*found, strict=True)
    return Estimate(sum(steps) / len(found), math.sqrt(sum(variances)) / len(found))
