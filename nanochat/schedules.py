"""What moves during training: pure functions of (progress from 0 to 1, step from 0)."""

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

Schedule = Callable[[float, int], float]


def warmup_warmdown(progress: float, step: int, *, warmup_steps: int, warmdown: float, final: float) -> float:
    """Up to 1 within warmup_steps, flat, then over the last share `warmdown` of progress down to `final`."""
    up = (step + 1) / warmup_steps if warmup_steps else 1.0
    return min(1.0, up, _ramp(_left(progress, warmdown), final, 1.0))


def momentum(
    progress: float,
    step: int,
    *,
    warmdown: float,
    warmup_steps: int = 400,
    start: float = 0.85,
    peak: float = 0.97,
    end: float = 0.90,
) -> float:
    """Of Muon: from start up to its peak, and down to its end while the learning rate warms down."""
    up = _ramp(min(1.0, step / warmup_steps), start, peak)
    return min(up, _ramp(_left(progress, warmdown), end, peak))


def cosine(progress: float, step: int) -> float:
    """From 1 to 0."""
    return 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))


def _left(progress: float, warmdown: float) -> float:
    """The share of the warmdown that is still to come."""
    return min(1.0, max(0.0, 1.0 - progress) / warmdown) if warmdown else 1.0


def _ramp(share: float, low: float, high: float) -> float:
    return share * high + (1 - share) * low


def pretraining(warmup_steps: int, warmdown: float, final_lr: float) -> dict[str, dict[str, Schedule]]:
    """What moves, by kind of group; a group's name may stand in the table as well, and is looked up first."""
    lr = partial(warmup_warmdown, warmup_steps=warmup_steps, warmdown=warmdown, final=final_lr)
    muon = {"lr": lr, "momentum": partial(momentum, warmdown=warmdown), "weight_decay": cosine}
    return {"adamw": {"lr": lr}, "muon": muon}


def finetuning(warmup_steps: int, warmdown: float, final_lr: float) -> dict[str, dict[str, Schedule]]:
    """The same for a model that is trained: Muon's momentum only rises, and weights decay as they are told."""
    lr = partial(warmup_warmdown, warmup_steps=warmup_steps, warmdown=warmdown, final=final_lr)
    rising = partial(momentum, warmdown=0.0, warmup_steps=300, peak=0.95)
    return {"adamw": {"lr": lr}, "muon": {"lr": lr, "momentum": rising}}


def apply(groups: Iterable[Any], table: Mapping[str, Mapping[str, Schedule]], progress: float, step: int) -> None:
    """Set what the table moves: to a multiple of its `initial_…` where it has one, else (momentum) to the value."""
    for group in groups:
        for what, schedule in table.get(group.name, table[group.kind]).items():
            setattr(group, what, schedule(progress, step) * getattr(group, f"initial_{what}", 1.0))
