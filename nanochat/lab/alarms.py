"""Alarms: signs that a run of the lab is broken, rather than worse.

`alarms` returns all alarms of a run: from its metric log (records of `nanochat.log.read_metrics`), and from shares
beside those of its parent: right answers in the `stable` benchmarks, and answers that stop.

- loss, gradient norm (both as logarithms): a step far above the steps before it, or an end above the first step. A
  spike of one or two steps breaks nothing.
- share: one of the shares is at least 10 points and more than 5 errors below the parent's.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from nanochat.log import Record
from nanochat.outcome import Estimate

WINDOW = 32  # steps before a spike
SPIKE = 6.0  # deviations of the window
LASTING = 3  # steps of a spike that breaks a run
LEAST_FALL = 0.10
FALL_ERRORS = 5.0
# Name of a curve → its figure in the metric log, and the smallest factor that counts.
CURVES = {"loss": ("train/loss", 1.0), "gradient norm": ("train/grad_norm", 10.0)}


class Alarm(NamedTuple):
    """A sign of a broken run."""

    kind: str  # loss, gradient norm or share
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
    return found


def _rises(records: Sequence[Record], name: str) -> Iterable[Alarm]:
    """Yield an alarm about the largest spike of a curve, and one about an end above the first step."""
    figure, least = CURVES[name]
    # An idle step has neither loss nor gradient.
    points = [(record["step"], math.log(record[figure])) for record in records if record.get(figure, 0) > 0]
    if len(points) < WINDOW + LASTING:
        return
    steps, values = np.array(points).T
    windows = np.lib.stride_tricks.sliding_window_view(values[:-1], WINDOW)
    rises = values[WINDOW:] - windows.mean(1)
    deviations = rises / windows.std(1, ddof=1).clip(1e-9) * (rises > math.log(least))
    worst = int(deviations[: 1 - LASTING].argmax())  # of the last steps nobody knows if a spike lasts
    if deviations[worst] > SPIKE:
        # One step may be its data. Later windows contain the spike, so the level of this one counts.
        level = values[WINDOW + worst : WINDOW + worst + LASTING].min() - windows[worst].mean()
        factor = f"{math.exp(rises[worst]):.2f} times that of the {WINDOW} steps before"
        place = f"the {name} of step {steps[WINDOW + worst]:.0f} is {factor}"
        lasts = bool(level > SPIKE * windows[worst].std(ddof=1))
        yield Alarm(name, f"{place}, {deviations[worst]:.1f} deviations above", breaks=lasts)
    # The first step shows the parent: a rate that is far too high breaks the model within a few.
    end = values[-len(values) // 10 :]
    rise = end.mean() - values[0]
    if rise > max(math.log(least), SPIKE * end.std(ddof=1)):
        yield Alarm(name, f"the {name} ends {math.exp(rise):.2f} times as high as in the first step")
