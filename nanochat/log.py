"""What a run tells: lines above a live one, a file of metrics with W&B as its mirror, progress with the time left."""

import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TextIO

PATIENCE = 30.0  # seconds to wait for W&B's server as a run begins, and as it finishes; W&B adds some of its own
CLEAR = "\r\x1b[K"  # back to the first column, and whatever stood in that line is gone
LIVE_SECONDS = 0.1  # between two states of a live line
_LIVE: list[tuple[str, TextIO]] = []  # the terminal's line that changes in place, and the stream it went to; or nothing
_SPEAKING = threading.RLock()


def is_main_rank() -> bool:
    return os.environ.get("RANK", "0") == "0"


def is_terminal(stream: TextIO) -> bool:
    """Whether a line that goes there can change in place."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def say(*values: Any, sep: str = " ", end: str = "\n", file: TextIO | None = None) -> None:
    """Print whole lines from any rank, at once: those of a run that dies are in its log. A live line stays last."""
    text, stream = sep.join(map(str, values)) + end, file or sys.stdout
    with _SPEAKING:
        if _LIVE:
            print(end=CLEAR, file=_LIVE[0][1], flush=True)
        elif not is_main_rank() and is_terminal(stream):  # the live line is that of another process
            text = CLEAR + text
        print(end=text, file=stream, flush=True)  # in one piece, for threads speak too
        if _LIVE and is_terminal(stream):  # through a pipe the text may come later: its next state draws the line again
            _draw()


def print0(*values: Any, **options: Any) -> None:
    """The same on rank 0 only."""
    if is_main_rank():
        say(*values, **options)


def show_live(head: str, share: float | None, rest: str, stream: TextIO) -> None:
    """Draw the line that changes in place: `head: [###....] rest`; the bar, of a share 0..1, has what room there is."""
    width, bar = shutil.get_terminal_size().columns - 1, ""
    if share is not None:
        size = min(20, max(5, width - len(f"{head}: [] {rest}")))
        bar = f"[{'#' * round(size * share):.<{size}}] "
    with _SPEAKING:
        _LIVE[:] = [(f"{head}: {bar}{rest}"[:width], stream)]
        _draw()


def end_live(text: str = "", stream: TextIO | None = None) -> None:
    """No line changes in place any more; a whole one takes its place, if there is a text."""
    with _SPEAKING:
        if text:
            print(f"\r{text}\x1b[K", file=stream, flush=True)
        elif _LIVE:
            print(end=CLEAR, file=_LIVE[0][1], flush=True)
        _LIVE.clear()


def _draw() -> None:
    line, stream = _LIVE[0]
    print(end=f"\r{line}\x1b[K", file=stream, flush=True)


def duration(seconds: float) -> str:
    """4.2s, 12m05s, 3h25m."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60}h{minutes % 60:02d}m"
    return f"{minutes}m{rest:02d}s" if minutes else f"{seconds:.1f}s"


class MetricLog:
    """Appends one JSON object a line to `metrics.jsonl` or as `name` says, mirrored to W&B when `run` names a run.

    The file is the record. W&B may be absent, offline or broken: that is printed once, and the run goes on. It has a
    thread of its own, on which it may wait for its server while nobody else does. Only the end of a run waits for it.
    """

    def __init__(self, folder: Path, run: str = "", config: dict | None = None, name: str = "metrics"):
        self.path, self.records = folder / f"{name}.jsonl", 0  # of this run, as rank 0 counts them
        self._wandb = self._thread = None
        if is_main_rank():
            folder.mkdir(parents=True, exist_ok=True)
            if run not in ("", "dummy"):
                self._thread = ThreadPoolExecutor(1)
                self._mirror(lambda: self._start_wandb(run, config))

    def write(self, **metrics: Any) -> None:
        """One record, handed to the operating system when this returns (not fsynced)."""
        if is_main_rank():
            self.records += 1
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(json.dumps(metrics, ensure_ascii=False) + "\n")
        self._mirror(lambda: self._wandb.log(metrics))

    def rewind(self, step: int, most: int | None = None) -> None:
        """Forget what was written after a step, and after the first `most` records: a run that goes on writes it again.

        What is known of a step may come in several records, and not all of them before the checkpoint.
        """
        if is_main_rank() and self.path.exists():
            part = self.path.with_suffix(".tmp")
            kept = [record for record in self.read() if record.get("step", 0) <= step][:most]
            with open(part, "w", encoding="utf-8") as file:
                file.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in kept)
            os.replace(part, self.path)
            self.records = len(kept)

    def read(self) -> Iterator[dict]:
        """The records; a last line that a killed process left half written is none."""
        with open(self.path, encoding="utf-8") as file:
            yield from (json.loads(line) for line in file if line.endswith("}\n"))

    def curve(self, name: str, most: int = 300, over: str = "step") -> list[list]:
        """What a metric is drawn over, and its values, averaged over as many records as leave `most` points of it.

        A record without `over` has that of the record before it: validation that of the step after which it came.
        """
        x, points = 0, []
        for record in self.read():
            x = record.get(over, x)
            if record.get(name) is not None:
                points.append((x, record[name]))
        size = -(-len(points) // most)
        groups = [points[i : i + size] for i in range(0, len(points), max(size, 1))]
        return [[group[-1][0] for group in groups], [sum(value for _, value in group) / len(group) for group in groups]]

    def __enter__(self) -> "MetricLog":
        return self

    def __exit__(self, *exception: Any) -> None:
        if (thread := self._thread) is not None:
            self._mirror(lambda: self._wandb.finish())
            thread.shutdown()

    def _mirror(self, act: Callable[[], Any]) -> None:
        if self._thread is not None:
            self._thread.submit(self._act, act)

    def _act(self, act: Callable[[], Any]) -> None:
        try:
            if self._thread is not None:
                act()
        except Exception as error:  # whatever a service does, training goes on
            print0(f"W&B is off for the rest of this run ({type(error).__name__}: {error}); see {self.path}")
            self._thread = None

    def _start_wandb(self, run: str, config: dict | None) -> None:
        import wandb  # slow, and not needed by a run without a name

        patience = wandb.Settings(init_timeout=PATIENCE, finish_timeout=PATIENCE)
        self._wandb = wandb.init(project="nanochat", name=run, config=config, settings=patience)


class Progress:
    """How far a task is: on a terminal one live line with a bar, elsewhere a plain line every few seconds.

    `unit` is what `done` and `total` count; an unknown `total` is 0. Rate and time left come from the whole task.
    """

    def __init__(self, label: str, unit: str, stream: TextIO | None = None, plain_every: float = 5.0):
        self.label, self.unit = label, unit
        self._stream = stream or sys.stderr
        self._live = is_terminal(self._stream)
        self._interval = LIVE_SECONDS if self._live else plain_every
        self._start = self._shown = time.monotonic()
        self._done = 0

    def update(self, done: int, total: int = 0, note: str = "") -> None:
        """Show the state if it is time to; cheap enough to call at every step."""
        self._done = done
        now = time.monotonic()
        if now - self._shown < self._interval or not is_main_rank():
            return
        self._shown = now
        total, rate = total and max(total, done), done / (now - self._start)
        parts = [f"{short(done)} {self.unit}", f"{short(rate)}/s"]
        if total:
            parts[0] = f"{done / total:4.0%} of {short(total)} {self.unit}"
            parts.append(f"{duration((total - done) / rate) if rate else '?'} left")
        text = " | ".join(parts + [note] * bool(note))
        if self._live:
            show_live(self.label, done / total if total else None, text, self._stream)
        else:
            say(f"{self.label}: {text}", file=self._stream)

    def close(self) -> None:
        """Leave one closing line with the totals."""
        seconds = time.monotonic() - self._start
        rate = short(self._done / max(seconds, 1e-6))
        self._end(f"{self.label}: {self._done:,} {self.unit} in {duration(seconds)} | {rate}/s")

    def clear(self) -> None:
        """Leave nothing: what it was for has a line of its own."""
        self._end("")

    def _end(self, text: str) -> None:
        if is_main_rank() and self._live:
            end_live(text, self._stream)
        elif is_main_rank() and text:
            say(text, file=self._stream)


class PhaseProgress:
    """A callback (phase, done, total), a Progress for each phase: name=(unit, total), 0 takes the total it gets."""

    def __init__(self, **phases: tuple[str, int]):
        self._phases = phases
        self._current: Progress | None = None

    def __call__(self, phase: str, done: int, total: int) -> None:
        unit, known_total = self._phases[phase]
        if self._current is None or self._current.label != phase:
            self.__exit__()
            self._current = Progress(phase, unit)
        self._current.update(done, known_total or total)

    def __enter__(self) -> "PhaseProgress":
        return self

    def __exit__(self, *exception: Any) -> None:
        if self._current is not None:
            self._current.close()


def short(number: float) -> str:
    """1234567 -> 1.2M"""
    for size, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.1f}{suffix}"
    return f"{number:.0f}"
