"""Alarms: signs that a run of the lab is broken, rather than worse.

`alarms` returns all alarms of a run: from its metric log (records of `nanochat.log.read_metrics`), and from shares
beside those of its parent: right answers in the `stable` benchmarks, and answers that stop.

- loss, gradient norm (both as logarithms): a step far above the steps before it, or an end above the first step. A
  spike of one or two steps breaks nothing.
- share: one of the shares is at least 10 points and more than 5 errors below the parent's.
- collapse: 95 % of the answers in a stable benchmark are the same, and other answers have become rarer by 10 points and
  by more than chance explains (a sign test).
- staircase: the training loss steps down where epochs end, since rows are repeated. It breaks nothing.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from nanochat.log import Record
from nanochat.paths import read_json
from nanochat.statistics import Estimate

LEFT_OUT = "left_out.json"  # in the folder of a lab: its broken runs, for leaderboards
WINDOW = 32  # steps before a spike
SPIKE = 6.0  # deviations of the window
LASTING = 3  # steps of a spike that breaks a run
COLLAPSED = 0.95  # share of equal answers
CHANCE = 1e-4  # that so few other answers are left by chance
LEAST_FALL = 0.10
FALL_ERRORS = 5.0
STAIR_ERRORS = 5.0
STAIR_STEPS = (6, 50)  # least and most steps of the curve on either side of the end of an epoch
# Name of a curve → its figure in the metric log, and the smallest factor that counts.
CURVES = {"loss": ("train/loss", 1.0), "gradient norm": ("train/grad_norm", 10.0)}


@dataclass(frozen=True)
class Alarm:
    """A sign of a broken run."""

    kind: str  # loss, gradient norm, share, staircase, collapse or failed
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
        if has_fallen(before, after):
            found.append(Alarm("share", f"{name}: {after.value:.1%}, and {before.value:.1%} before training"))
    stair = staircase(records)
    if stair and stair.value < -STAIR_ERRORS * stair.stderr:
        change = f"{stair.value:.3f} where epochs end (z = {stair.value / stair.stderr:.1f})"
        found.append(Alarm("staircase", f"the training loss changes by {change}: rows are repeated", breaks=False))
    return found


def read_left_out(path: Path) -> dict[str, dict[str, str]]:
    """Return the broken runs in a file LEFT_OUT: evaluation, STAGE/TAG -> its reason, and since when it is out."""
    if not path.exists():
        return {}
    # Earlier versions wrote the reason alone.
    written = datetime.fromtimestamp(path.stat().st_mtime).astimezone().isoformat()
    return {
        name: {"reason": one, "since": written} if isinstance(one, str) else one
        for name, one in read_json(path).items()
    }


def has_fallen(before: Estimate, after: Estimate) -> bool:
    """True if a share is so far below the parent's that chance is no reason."""
    fall = before.value - after.value
    return fall >= LEAST_FALL and fall > FALL_ERRORS * math.hypot(before.stderr, after.stderr)


def has_collapsed(before: float, after: float, questions: int) -> bool:
    """True if nearly all answers have become the same. before, after: shares of the commonest answer.

    A small base may give one letter nearly always, and a healthy run of it one answer more. questions: of each.
    """
    from scipy.stats import binom

    others = [round((1 - share) * questions) for share in (before, after)]
    is_rarer = others[0] - others[1] >= LEAST_FALL * questions
    return after >= COLLAPSED and is_rarer and bool(binom.cdf(others[1], sum(others), 0.5) <= CHANCE)


def _rises(records: Sequence[Record], name: str) -> Iterable[Alarm]:
    """Yield an alarm about a spike of a curve, lasting or the largest, and one about an end above the first step."""
    figure, least = CURVES[name]
    # An idle step has neither loss nor gradient.
    points = [(record["step"], math.log(record[figure])) for record in records if record.get(figure, 0) > 0]
    if len(points) < WINDOW + LASTING:
        return
    steps, values = np.array(points).T
    # The last steps do not show if a spike lasts.
    windows = sliding_window_view(values[:-LASTING], WINDOW)
    bounds = (SPIKE * windows.std(1, ddof=1)).clip(max(math.log(least), 1e-9))
    # Later windows contain the spike, so the level of the one before it counts.
    rises = sliding_window_view(values[WINDOW:], LASTING) - windows.mean(1, keepdims=True)
    # One step may be its data. A spike that lasts is worse than a higher one.
    for rise, breaks in ((rises.min(1), True), (rises[:, 0], False)):
        worst = np.argmax(rise / bounds)
        if rise[worst] > bounds[worst]:
            factor = f"{math.exp(rise[worst]):.2f} times that of the {WINDOW} steps before"
            yield Alarm(name, f"the {name} of step {steps[WINDOW + worst]:.0f} is {factor}", breaks)
            break
    # The first step shows the parent: a rate that is far too high breaks the model within a few.
    end = values[-math.ceil(len(values) / 10) :]
    rise = end.mean() - values[0]
    if rise > max(math.log(least), SPIKE * end.std(ddof=1)):
        yield Alarm(name, f"the {name} ends {math.exp(rise):.2f} times as high as in the first step")


def staircase(records: Sequence[Record]) -> Estimate | None:
    """Return the step in the mean training loss at the ends of epochs; None without enough steps around an end.

    A cubic curve with a step is fitted to the mean of the losses around all ends, so a trend or bend does not count.
    """
    from scipy.optimize import curve_fit

    points = [(record["train/epoch"], record["train/loss"]) for record in records if "train/epoch" in record]
    epochs, losses = np.array(points).reshape(-1, 2).T
    ends = np.flatnonzero(np.diff(np.floor(epochs))) + 1
    least, most = STAIR_STEPS
    size = min(most, int(np.diff(ends).min(initial=len(losses))) // 2)
    inside = [end for end in ends if size <= end < len(losses) - size]
    if size < least or not inside:
        return None
    # A step across an end has rows of both epochs, and is left out.
    around = np.delete(np.arange(-size, size + 1), size)
    mean = np.mean([losses[end + around] for end in inside], axis=0)

    def curve(x: np.ndarray, step: float, *cubic: float) -> np.ndarray:
        return step * np.sign(x) / 2 + np.polyval(cubic, x)

    fitted, covariance = curve_fit(curve, around / size, mean, p0=np.zeros(5))
    return Estimate(float(fitted[0]), math.sqrt(covariance[0, 0]))
