"""The steps of training on the console: one live line on a terminal, in a file a plain line now and then."""

import math
import sys
import time
from typing import Any

from nanochat.log import LIVE_SECONDS, duration, end_live, is_main_rank, is_terminal, print0, short, show_live

LINE_SECONDS = 0.5, 10.0  # between the lines of a file: as training begins, and at most
LINE_SHARE = 0.02  # of the time since then


def print_step(step: int, figures: dict[str, float]) -> None:
    """More about a step than its live line has room for: for a file alone."""
    if not is_terminal(sys.stdout):
        print0(f"step {step:05d} | {' | '.join(f'{name} {value:.3g}' for name, value in figures.items())}")


class Steps:
    """Told of every step; shows what it is time for. steps: of the whole run, None where something else ends it.

    The time left is by the clock on the wall, which evaluations and checkpoints take too, but not the first step of
    this process, which compiles; what comes after the last step is not in it.
    """

    def __init__(self, steps: int | None):
        self._steps, self._live = steps, is_main_rank() and is_terminal(sys.stdout)
        self._begun, self._shown, self._untold = time.monotonic(), -math.inf, False
        self._first: tuple[float, ...] = ()  # the first step: when it ended, progress, tokens, seconds of training

    def tell(self, figures: dict[str, Any], loss: float, tokens: int, note: str = "") -> None:
        """figures: a step's record in metrics.jsonl. tokens: of all steps. note: for a live line, and not the loss."""
        now, done = time.monotonic(), (figures["progress"], tokens, figures["total_training_time"])
        self._first = self._first or (now, *done)
        since, progress, tokens, seconds = (
            value - first for value, first in zip((now, *done), self._first, strict=True)
        )
        self._figures, self._loss, self._note = figures, loss, note
        self._rate = tokens / seconds if seconds else figures["train/tok_per_sec"]
        self._left = duration(since * (1 - done[0]) / progress) if progress > 0 else "?"
        self._untold = True
        least, most = LINE_SECONDS
        pause = LIVE_SECONDS if self._live else min(most, max(least, LINE_SHARE * (now - self._begun)))
        if now - self._shown >= pause:
            self._shown = now
            self._show_live() if self._live else self._print()

    def close(self) -> None:
        """Leave the line of the last step; the live one is gone."""
        if self._live:
            end_live()
        if self._untold:
            self._print()

    def __enter__(self) -> "Steps":
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    def _show_live(self) -> None:
        progress = self._figures["progress"]
        parts = [f"{progress:4.0%}", self._note or f"loss {self._loss:.4f}", f"{short(self._rate)} tokens/s"]
        show_live(self._step(), progress, " | ".join([*parts, f"{self._left} left"]), sys.stdout)

    def _print(self) -> None:
        self._untold, figures = False, self._figures
        mfu = "n/a" if figures["train/mfu"] is None else f"{100 * figures['train/mfu']:.1f}"
        parts = [
            f"{self._step()} ({100 * figures['progress']:.2f}%)",
            f"loss: {self._loss:.4f}",
            f"lrm: {figures['train/lrm']:.2f}",
            f"dt: {1000 * figures['train/dt']:.0f}ms",
            f"tok/sec: {figures['train/tok_per_sec']:,.0f}",
            f"mfu: {mfu}",
            f"wait: {100 * figures['train/wait']:.1f}%",
            f"total time: {duration(figures['total_training_time'])}",
        ]
        print0(*parts, *[f"eta: {self._left}"] * (figures["progress"] < 1), sep=" | ")

    def _step(self) -> str:
        return f"step {self._figures['step']:05d}" + (f"/{self._steps:05d}" if self._steps is not None else "")
