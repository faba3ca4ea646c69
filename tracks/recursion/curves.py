"""Curves of a model with several exits, for the report card."""

import re
from collections.abc import Collection

from nanochat.metrics import Curve

EXIT = re.compile(r"val/bpb at (exit \d+)")


def _exit_number(name: str) -> int:
    return int(name.removeprefix("exit "))


def exit_curves(figures: Collection[str]) -> list[Curve]:
    """Return a curve for each exit that was validated, in order. figures: the names in the metric log."""
    names = {match[1] for match in map(EXIT.fullmatch, figures) if match}
    return [
        Curve("Validation at each exit", "tokens", "bits per byte", name, f"val/bpb at {name}")
        for name in sorted(names, key=_exit_number)
    ]


CURVE_MAKERS = {"val/bpb at exit ": exit_curves}
