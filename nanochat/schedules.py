"""Schedules for learning rate, momentum and weight decay: pure functions of progress (0 to 1) and step (from 0)."""

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from nanochat.optim import KINDS, Group
from nanochat.settings import OptimizerSettings

Schedule = Callable[[float, int], float]  # of progress and step
Schedules = Mapping[str, Schedule]  # field of Group → its schedule


def warmup_warmdown(
    progress: float, step: int, *, warmup_steps: float, warmdown: float, final: float, most: float = math.inf
) -> float:
    """Rise to 1 within warmup_steps, stay, then fall to `final` over the last share `warmdown` of progress.

    most: the share of progress that the rise takes at most, for runs whose steps are not known.
    """
    rising = (step + 1) / warmup_steps if warmup_steps else 1.0  # the first step is not 0
    rising = max(rising, progress / most)
    falling = _interpolate(_remaining(progress, warmdown), final, 1.0)
    return min(1.0, rising, falling)


def momentum(progress: float, step: int, *, warmdown: float, warmup_steps: int = 400, peak: float = 0.97) -> float:
    """Return Muon's momentum: it rises from 0.85 to `peak`, then falls to 0.9 in the warmdown."""
    falling = _interpolate(_remaining(progress, warmdown), 0.9, peak)
    return min(_interpolate(min(1.0, step / warmup_steps), 0.85, peak), falling)


def cosine(progress: float, step: int) -> float:
    """Fall from 1 to 0 over the run."""
    return 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))


def _remaining(progress: float, warmdown: float) -> float:
    """Return the warmdown's remaining share."""
    left = max(0.0, 1.0 - progress)  # a clock may end a run past progress 1
    return min(1.0, left / warmdown) if warmdown else 1.0


def _interpolate(share: float, low: float, high: float) -> float:
    return share * high + (1 - share) * low


def pretraining(config: OptimizerSettings, steps: int | None = None, most: float = math.inf) -> Schedules:
    """Return base training's schedules.

    steps: of the run, if known, because warmup takes at most a tenth of them. most: the share of progress that it takes
    at most, for runs whose steps are not known.
    """
    warmdown = config.warmdown_ratio
    lr = partial(
        warmup_warmdown,
        warmup_steps=min(config.warmup_steps, (steps or 1e9) / 10),
        warmdown=warmdown,
        final=config.final_lr_frac,
        most=most,
    )
    return {"lr": lr, "momentum": partial(momentum, warmdown=warmdown), "weight_decay": cosine}


def finetuning(config: OptimizerSettings, steps: int | None = None, most: float = math.inf) -> Schedules:
    """Return fine-tuning's schedules: momentum only rises, and weight decay stays as given. steps, most: as above."""
    lr = pretraining(config, steps, most)["lr"]
    return {"lr": lr, "momentum": partial(momentum, warmdown=0.0, warmup_steps=300, peak=0.95)}


def apply(groups: Iterable[Group], table: Schedules, progress: float, step: int) -> None:
    """Set the fields that each group's kind schedules.

    lr and weight_decay become a multiple of their initial value, momentum the value of the schedule.
    """
    for group in groups:
        for field in KINDS[group.kind].scheduled:
            if field in table:
                initial = getattr(group, f"initial_{field}", 1.0)  # there is none for momentum
                setattr(group, field, table[field](progress, step) * initial)
