"""What a run tells: lines above a live one, a file of metrics with W&B as its mirror, progress with the time left."""

import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TextIO

PATIENCE = 30.0  # seconds to wait for W&B's server as a run begins, and as it finishes; W&B adds some of its own
CLEAR = "\r\x1b[K"  # back to the first column, and whatever stood in that line is gone
RESUMED = "resumed"  # the kind of the marker in a metric log that a run continues from a step
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


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the records of a metric log that count: the last one for each (kind, step), in the order of the run.

    A marker that a run resumed at step N drops the records before it with a later step. Records of an older format have
    no kind; all of them count. A line that a killed process left half written is skipped.
    """
    kept: dict[tuple, dict[str, Any]] = {}
    if not path.exists():
        return []
    for number, line in enumerate(path.read_bytes().splitlines()):
        try:
            record = json.loads(line)
        except ValueError:  # cut off, or glued to the next record
            continue
        step = record.get("step", 0)
        if record.get("kind") == RESUMED:
            kept = {key: earlier for key, earlier in kept.items() if earlier.get("step", 0) <= step}
        elif "kind" in record:
            kept[record["kind"], step] = record
        else:
            kept[number, step] = record
    return list(kept.values())


def metric_curve(records: list[dict[str, Any]], name: str, most: int = 300, over: str = "step") -> list[list[float]]:
    """Return the x and y values of a metric, averaged over groups of records so that at most `most` points remain.

    over: the figure on the x axis. A record without it (a validation, which counts no tokens) has the x of the record
    before: the training step after which it came.
    """
    x, points = 0, []
    for record in records:
        x = record.get(over, x)
        if record.get(name) is not None:
            points.append((x, record[name]))
    size = max(1, -(-len(points) // most))  # records per point, rounded up
    groups = [points[start : start + size] for start in range(0, len(points), size)]
    xs = [group[-1][0] for group in groups]
    ys = [sum(y for _, y in group) / len(group) for group in groups]
    return [xs, ys]


class MetricLog:
    """Appends JSON records to `metrics.jsonl` (or `name`.jsonl) on rank 0; mirrored to W&B when `run` names a run.

    The file is the record. W&B may be absent, offline or broken: one line says so, and the run continues. W&B has a
    thread of its own, so that only the end of a run waits for the W&B server. Readers use `read_metrics`.
    """

    def __init__(self, folder: Path, run: str = "", config: dict[str, Any] | None = None, name: str = "metrics"):
        self.path = folder / f"{name}.jsonl"
        self._marker: dict[str, Any] | None = None  # goes before the next record
        self._wandb: Any = None
        self._thread: ThreadPoolExecutor | None = None
        if is_main_rank():
            folder.mkdir(parents=True, exist_ok=True)
            if run not in ("", "dummy"):
                self._thread = ThreadPoolExecutor(1)
                self._mirror(lambda: self._start_wandb(run, config))

    def write(self, kind: str, step: int, **figures: Any) -> None:
        """Append the record of a kind at a step; it replaces an earlier one of the same kind and step.

        The operating system has the record when this returns; it is not fsynced.
        """
        self._append({"kind": kind, "step": step, **figures})
        self._mirror(lambda: self._wandb.log({"step": step, **figures}))

    def resume(self, step: int) -> None:
        """Continue from a step: records of later steps, written before, do not count once the next one is written.

        Step -1 is a run from its beginning in a folder that may hold the log of another one.
        """
        self._marker = {"kind": RESUMED, "step": step} if self.path.exists() else None

    def _append(self, record: dict[str, Any]) -> None:
        if not is_main_rank():
            return
        records = [self._marker, record] if self._marker else [record]
        self._marker = None
        with open(self.path, "a+b") as file:
            # A killed process may have left half a line, which must not swallow this record.
            if file.tell():
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    file.write(b"\n")
            for each in records:
                file.write(json.dumps(each, ensure_ascii=False).encode() + b"\n")

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
