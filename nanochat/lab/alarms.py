"""Alarms: signs that a run of the lab is broken, rather than worse.

`alarms` returns all alarms of a run: from its metric log (records of `nanochat.log.read_metrics`), and from shares
beside those of its parent: right answers in the `stable` benchmarks, and answers that stop (`stop_share`). An alarm has
a kind, a sentence, and `breaks`: True if the run is broken and leaves the recommendation.

- loss, gradient norm (both as logarithms): a step far above the steps before it, or an end above the
  first step. A spike of one or two steps breaks nothing.
- share: one of the shares is at least 10 points and more than 5 errors below the parent's.
- staircase: the training loss steps down where epochs end. It shows that rows are remembered, and breaks nothing.

No files are read here.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from nanochat.log import Record
from nanochat.outcome import Estimate, mean_estimate

WINDOW = 32  # steps before a spike
SPIKE = 6.0  # deviations of the window
LASTING = 3  # steps of a spike that breaks a run
LEAST_FALL = 0.10
FALL_ERRORS = 5.0
STAIR = 5.0  # errors
MOST_STEPS = 25  # in a part of the steps around the end of an epoch
LEAST_STEPS = 3
# Of the four parts, two before and two after: their step, less the trend within each pair.
STEP = [0.5, -1.5, 1.5, -0.5]
# Name of a curve → its figure in the metric log, and the smallest factor that counts.
CURVES = {"loss": ("train/loss", 1.0), "gradient norm": ("train/grad_norm", 10.0)}


class Alarm(NamedTuple):
    """A sign of a broken run."""

    kind: str  # loss, gradient norm, share or staircase
    sentence: str
    breaks: bool = True  # the run leaves the recommendation


def alarms(
    records: Sequence[Record], shares: Mapping[str, Estimate], parent_shares: Mapping[str, Estimate]
) -> list[Alarm]:
    """Return the alarms of a run.

    records: of the metric log. shares: by a name for the sentence, from 0 to 1; those that the parent lacks are not
    compared.
    """
    found = [alarm for name in CURVES for alarm in _rises(records, name)]
    for name, after in shares.items():
        before = parent_shares.get(name, after)
        fall = before.value - after.value
        if fall >= LEAST_FALL and fall > FALL_ERRORS * math.hypot(before.stderr, after.stderr):
            found.append(Alarm("share", f"{name}: {after.value:.1%}, and {before.value:.1%} before training"))
    stair = staircase(records)
    if stair and stair.value < -STAIR * stair.stderr:
        z = stair.value / stair.stderr
        step = f"the training loss changes by {stair.value:.3f} where epochs end (z = {z:.1f})"
        found.append(Alarm("staircase", f"{step}: rows are repeated", breaks=False))
    return found


def stop_share(answers: Sequence[Record]) -> Estimate | None:
    """Return the share of answers that stop by themselves, in a task's records of chat_eval; None for letters."""
    stopped = [one["reason"] != "length" for answer in answers for one in answer["completions"] if "reason" in one]
    return mean_estimate(stopped) if stopped else None


def _rises(records: Sequence[Record], name: str) -> Iterable[Alarm]:
    """Yield an alarm about the largest spike of a curve, and one about an end above the first step."""
    figure, least = CURVES[name]
    # An idle step has neither loss nor gradient.
    points = [(record["step"], math.log(record[figure])) for record in records if record.get(figure, 0) > 0]
    if len(points) <= WINDOW:
        return
    steps, values = np.array(points).T
    windows = np.lib.stride_tricks.sliding_window_view(values[:-1], WINDOW)
    rises = values[WINDOW:] - windows.mean(1)
    deviations = rises / windows.std(1, ddof=1).clip(1e-9) * (rises > math.log(least))
    worst = int(deviations.argmax())
    if deviations[worst] > SPIKE:
        # One step may be its data. Later windows contain the spike, so the level of this one counts.
        level = values[WINDOW + worst : WINDOW + worst + LASTING].min() - windows[worst].mean()
        lasts = bool(level > SPIKE * windows[worst].std(ddof=1))
        factor = f"{math.exp(rises[worst]):.2f} times that of the {WINDOW} steps before"
        sentence = (
            f"the {name} of step {steps[WINDOW + worst]:.0f} is {factor}, {deviations[worst]:.1f} deviations above"
        )
        yield Alarm(name, sentence, breaks=lasts)
    # The first step shows the parent: a rate that is far too high breaks the model within a few.
    end = values[-len(values) // 10 :]
    rise = end.mean() - values[0]
    if rise > max(math.log(least), SPIKE * end.std(ddof=1)):
        yield Alarm(name, f"the {name} ends {math.exp(rise):.2f} times as high as in the first step")


def staircase(records: Sequence[Record]) -> Estimate | None:
    """Return the step in the mean training loss at the ends of epochs; None without enough steps around an end."""
    points = [(record["train/epoch"], record["train/loss"]) for record in records if "train/epoch" in record]
    epochs, losses = np.array(points).reshape(-1, 2).T
    # The steps with rows of both epochs, which are left out.
    ends = np.flatnonzero(np.diff(np.floor(epochs))) + 1
    size = int(min([MOST_STEPS, *np.diff(ends) // 4]))
    inside = [end for end in ends if 2 * size <= end < len(losses) - 2 * size]
    if size < LEAST_STEPS or not inside:
        return None
    around = np.array([[*losses[end - 2 * size : end], *losses[end + 1 : end + 1 + 2 * size]] for end in inside])
    weights = np.repeat(STEP, size) / size
    noise = np.diff(around).var() / 2  # of a step's loss: neighbours share the trend
    return Estimate(float((around @ weights).mean()), math.sqrt(noise * (weights**2).sum() / len(inside)))
