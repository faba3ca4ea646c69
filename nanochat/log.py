"""Output: printed lines, progress, text tables, and the metric log with a mirror in W&B.

Rank 0 speaks for all ranks, apart from `print_line`. On a terminal, a status line changes in place below the other
lines; in a file, progress is a plain line now and then.
"""

import json
import math
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TextIO

Record = dict[str, Any]  # JSON
Figures = Mapping[str, float | None]

WANDB_SECONDS = 30.0  # to wait for W&B's server as a run begins, and as it ends; W&B adds some of its own
RESUMED = "resumed"  # kind of marker records, written where a run resumes

ERASE = "\r\x1b[K"  # go to the first column and clear the line
STATUS_SECONDS = 0.1  # between two states of the status line
PLAIN_SECONDS = 5.0  # between plain lines about a long job
STEP_SECONDS = 0.5, 10.0  # between plain lines about training steps: at first, and at most
STEP_SHARE = 0.02  # in between: this share of the time since training began

# ---- printing ----


def is_main_rank() -> bool:
    return os.environ.get("RANK", "0") == "0"  # torchrun sets RANK; else there is one process


def is_terminal(stream: TextIO) -> bool:
    """Return True if a line that goes there can change in place."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"  # dumb: no cursor control, as in some editors


class StatusLine:
    """The last line on a terminal, which changes in place; a process has one, STATUS."""

    def __init__(self) -> None:
        self.text = ""
        self.stream: TextIO | None = None  # None: there is no status line now
        self.lock = threading.RLock()  # threads print too

    def draw(self) -> None:
        # Clear behind the text: the state before may have been longer.
        print(end=f"\r{self.text}\x1b[K", file=self.stream, flush=True)

    def erase(self) -> None:
        print(end=ERASE, file=self.stream, flush=True)


STATUS = StatusLine()


def print_line(*values: Any, sep: str = " ", end: str = "\n", file: TextIO | None = None) -> None:
    """Print whole lines at once, from any rank: the last lines of a run that dies are in its log."""
    text = sep.join(map(str, values)) + end
    stream = file or sys.stdout
    with STATUS.lock:
        if STATUS.stream:
            STATUS.erase()
        elif not is_main_rank() and is_terminal(stream):  # rank 0 may have a status line there
            text = ERASE + text
        print(end=text, file=stream, flush=True)  # in one piece: lines from threads and ranks must not mix
        if STATUS.stream and is_terminal(stream):  # through a pipe, the text may arrive later: the next state draws
            STATUS.draw()


def print0(*values: Any, sep: str = " ", end: str = "\n", file: TextIO | None = None) -> None:
    """Print on rank 0 only."""
    if is_main_rank():
        print_line(*values, sep=sep, end=end, file=file)


def show_status(label: str, share: float | None, text: str, stream: TextIO) -> None:
    """Draw the status line: `label: [###....] text`. The bar shows a share 0..1 in the room there is; None: no bar."""
    width = shutil.get_terminal_size().columns - 1  # a full line would wrap
    bar = ""
    if share is not None:
        # 5 to 20 marks, as the label and text leave room.
        size = min(20, max(5, width - len(f"{label}: [] {text}")))
        bar = f"[{'#' * round(size * share):.<{size}}] "
    with STATUS.lock:
        STATUS.text = f"{label}: {bar}{text}"[:width]  # a wrapped line could not be erased
        STATUS.stream = stream
        STATUS.draw()


def clear_status() -> None:
    """Remove the status line, if there is one."""
    with STATUS.lock:
        if STATUS.stream:
            STATUS.erase()
        STATUS.stream = None


# ---- numbers, durations and tables as text ----


def duration(seconds: float) -> str:
    """Return 4.2s, 12m05s or 3h25m."""
    minutes, rest = divmod(round(seconds), 60)  # rounded first: 59.9 seconds are 1m00s
    if minutes >= 60:
        return f"{minutes // 60}h{minutes % 60:02d}m"
    return f"{minutes}m{rest:02d}s" if minutes else f"{seconds:.1f}s"


def short(number: float) -> str:
    """Return 1.2M for 1234567."""
    for size, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.1f}{suffix}"  # one decimal is enough beside a bar
    return f"{number:.0f}"


def format_value(value: Any) -> str:
    """Return a metric as text: 0.1234, 2048, 65,536, 0.0155 ± 0.0021, 21.07%."""
    if isinstance(value, dict):  # {"value", "stderr", "format", "unit"}
        spec = value.get("format", "")
        text = format_cell(value["value"], spec)
        if is_known(value.get("stderr")):
            text += f" ± {format_cell(value['stderr'], spec)}"
        return text + value.get("unit", "")
    if isinstance(value, float):
        return f"{value:.4f}"
    if isinstance(value, int) and abs(value) >= 10_000:
        return f"{value:,}"
    return " ".join(str(value).split("\n"))


def is_known(error: float | None) -> bool:
    """Return False for a missing standard error, and for NaN, which a single item has."""
    return error is not None and not math.isnan(error)


def format_cell(value: float | str | None, spec: str = "") -> str:
    """Return a table's cell; texts and NaN ignore the column's format, and None is a dash."""
    if value is None:
        return "-"
    if isinstance(value, str) or value != value:  # only NaN differs from itself
        return str(value)
    return format(value, spec) if spec else format_value(value)


def format_rows(table: Record) -> list[list[str]]:
    """Return the header and the rows of an outcome's table as text."""
    names = [name for name, _ in table["columns"]]
    specs = [spec for _, spec in table["columns"]]
    rows = [list(map(format_cell, row, specs)) for row in table["rows"]]
    return [names, *rows]


def terminal_table(table: Record) -> str:
    """Return an outcome's table as aligned columns: the first to the left, numbers to the right."""
    rows = format_rows(table)
    remarks = [row for row in rows if set(row[1:]) == {"-"}]  # longer than any column
    aligned = [row for row in rows if row not in remarks]
    widths = [max(map(len, column)) for column in zip(*aligned, strict=True)]  # characters per column
    lines = [table["title"]]
    for first, *numbers in aligned:
        lines.append("  ".join([first.ljust(widths[0]), *map(str.rjust, numbers, widths[1:])]))
    return "\n".join([*lines, *(row[0] for row in remarks)])


# ---- metrics ----


def read_metrics(path: Path) -> list[Record]:
    """Return a metric log's valid records: the last one for each (kind, step), in training order.

    A marker that a run resumed at step N drops earlier records with a later step. Records in an older format have no
    kind, and stay. A line that a killed process left half written is skipped.
    """
    if not path.exists():
        return []
    kept: dict[tuple[str | int, int], Record] = {}
    for number, line in enumerate(path.read_bytes().splitlines()):
        try:
            record = json.loads(line)
        except ValueError:  # half a line
            continue
        step = record.get("step", 0)
        kind = record.get("kind", number)  # an old record gets a key of its own
        if kind == RESUMED:
            # The resumed run trains these steps again.
            kept = {key: earlier for key, earlier in kept.items() if key[1] <= step}
        else:
            kept[kind, step] = record
    return list(kept.values())


def metric_curve(records: Sequence[Record], name: str, most: int = 300, over: str = "step") -> list[list[float]]:
    """Return the x and y values for a metric, averaged over groups so that at most `most` points remain.

    over: the figure on the x axis. A record without it (a validation, which counts no tokens) has the x of the record
    before: the training step after which it came.
    """
    x, points = 0, []  # validation before the first step stands at 0
    for record in records:
        x = record.get(over, x)
        if record.get(name) is not None:
            points.append((x, record[name]))
    size = max(1, -(-len(points) // most))  # records per point, rounded up
    groups = [points[start : start + size] for start in range(0, len(points), size)]
    xs = [group[-1][0] for group in groups]  # the newest x, not a mean
    ys = [sum(y for _, y in group) / len(group) for group in groups]
    return [xs, ys]


class MetricLog:
    """Appends JSON records to `metrics.jsonl` (or `name`.jsonl) on rank 0, mirrored to W&B when `run` names a run.

    The file is the record. W&B may be absent, offline or broken: one line says so, and the run continues. W&B has a
    thread, so that training never waits for the W&B server; only the end does. Readers use `read_metrics`.
    """

    def __init__(self, folder: Path, run: str = "", config: Record | None = None, name: str = "metrics"):
        self.path = folder / f"{name}.jsonl"
        self._marker: Record | None = None  # goes before the next record
        self._wandb: Any = None
        self._thread: ThreadPoolExecutor | None = None  # None: no mirror, or none any more
        if is_main_rank():
            folder.mkdir(parents=True, exist_ok=True)
            if run not in ("", "dummy"):  # the default flag means no mirror
                self._thread = ThreadPoolExecutor(1)  # a single worker keeps calls in order
                self._mirror(lambda: self._start_wandb(run, config))

    def write(self, kind: str, step: int, **figures: Any) -> None:
        """Append a record; it replaces an earlier one with the same kind and step.

        The operating system has the record when this returns; it is not fsynced.
        """
        self._append({"kind": kind, "step": step, **figures})
        self._mirror(lambda: self._wandb.log({"step": step, **figures}))

    def resume(self, step: int) -> None:
        """Continue from a step: earlier records with later steps are dropped once the next one is written.

        Step -1 starts again in a folder that may hold another run's log.
        """
        self._marker = {"kind": RESUMED, "step": step} if self.path.exists() else None

    def __enter__(self) -> "MetricLog":
        return self

    def __exit__(self, *exception: object) -> None:
        thread = self._thread
        if thread is not None:
            self._mirror(lambda: self._wandb.finish())
            thread.shutdown()  # waits for queued calls

    def _append(self, record: Record) -> None:
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

    def _mirror(self, act: Callable[[], None]) -> None:
        """Queue a call to the W&B library."""
        if self._thread is not None:
            self._thread.submit(self._call, act)

    def _call(self, act: Callable[[], None]) -> None:
        try:
            if self._thread is not None:
                act()
        except Exception as error:  # training goes on, whatever a service does
            print0(f"W&B is off for the rest of this run ({type(error).__name__}: {error}); see {self.path}")
            self._thread = None  # no further calls

    def _start_wandb(self, run: str, config: Record | None) -> None:
        import wandb  # slow, and not needed by a run without a name

        settings = wandb.Settings(init_timeout=WANDB_SECONDS, finish_timeout=WANDB_SECONDS)
        self._wandb = wandb.init(project="nanochat", name=run, config=config, settings=settings)


# ---- progress ----


class Progress:
    """Shows the progress in a long job: a status line with a bar on a terminal, else a plain line every few seconds.

    unit: counted by `done` and `total`. Rate and time left are averages since the start.
    """

    def __init__(self, label: str, unit: str, stream: TextIO | None = None):
        self.label, self.unit = label, unit
        self._stream = stream or sys.stderr
        self._live = is_terminal(self._stream)
        self._interval = STATUS_SECONDS if self._live else PLAIN_SECONDS
        self._start = self._shown = time.monotonic()
        self._done = 0

    def update(self, done: int, total: int = 0, note: str = "") -> None:
        """Show the state if it is time to; cheap enough to call at every step. total: 0 if it is not known."""
        self._done = done  # for the closing line
        now = time.monotonic()
        if now - self._shown < self._interval or not is_main_rank():
            return  # too soon, or not the rank that prints
        self._shown = now
        rate = done / (now - self._start)
        if total:
            total = max(total, done)  # some totals are estimates
            left = duration((total - done) / rate) if rate else "?"
            text = f"{done / total:4.0%} of {short(total)} {self.unit} | {short(rate)}/s | {left} left"
        else:
            text = f"{short(done)} {self.unit} | {short(rate)}/s"
        if note:
            text += f" | {note}"
        if self._live:
            show_status(self.label, done / total if total else None, text, self._stream)
        else:
            print_line(f"{self.label}: {text}", file=self._stream)

    def close(self) -> None:
        """Leave one closing line with the totals."""
        self.clear()
        seconds = time.monotonic() - self._start
        rate = short(self._done / max(seconds, 1e-6))  # never a division by zero
        print0(f"{self.label}: {self._done:,} {self.unit} in {duration(seconds)} | {rate}/s", file=self._stream)

    def clear(self) -> None:
        """Leave no line: the caller prints a result."""
        if self._live and is_main_rank():
            clear_status()


class PhaseProgress:
    """A callback (phase, done, total) that shows one Progress after the other: phase=(unit, total; 0: as called)."""

    def __init__(self, **phases: tuple[str, int]):
        self._phases = phases
        self._current: Progress | None = None

    def __call__(self, phase: str, done: int, total: int) -> None:
        unit, known_total = self._phases[phase]
        if self._current is None or self._current.label != phase:
            self.close()
            self._current = Progress(phase, unit)
        self._current.update(done, known_total or total)

    def close(self) -> None:
        if self._current is not None:
            self._current.close()

    def __enter__(self) -> "PhaseProgress":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class _Mark(NamedTuple):
    """Training after a step. wall: wall-clock time in seconds; seconds: spent in training alone."""

    wall: float
    progress: float
    tokens: int
    seconds: float


class StepProgress:
    """Shows training steps on stdout: a status line on a terminal, else a plain line now and then.

    steps: in the whole run; None where a clock or the data ends training. The time left follows the wall clock, so that
    evaluations and checkpoints count; the first step of this process, which compiles, and the work after the last one
    do not.
    """

    def __init__(self, steps: int | None):
        self._steps = steps
        self._live = is_main_rank() and is_terminal(sys.stdout)
        self._start = time.monotonic()
        self._shown = -math.inf
        self._first: _Mark | None = None
        self._pending = False  # the last step has no plain line yet

    def update(self, figures: Figures, loss: float, tokens: int, note: str = "") -> None:
        """Take a step's figures, and show them if the last line is old enough.

        figures: the step's record in the metric log. loss: smoothed. tokens: so far. note: replaces the loss in
        the status line.
        """
        now = time.monotonic()
        self._last = _Mark(now, figures["progress"], tokens, figures["total_training_time"])
        self._first = self._first or self._last  # the first step compiles: no rate includes it
        self._figures, self._loss = figures, loss
        self._pending = True
        first_pause, longest_pause = STEP_SECONDS
        # Half a second at first, 2 % after 25 seconds, 10 seconds from 500 on.
        pause = min(longest_pause, max(first_pause, STEP_SHARE * (now - self._start)))
        if now - self._shown < (STATUS_SECONDS if self._live else pause):
            return
        self._shown = now
        if self._live:
            text = note or f"loss {loss:.4f}"
            progress = self._last.progress
            parts = [f"{progress:4.0%}", text, f"{short(self._rate())} tokens/s", f"{self._left()} left"]
            show_status(self._label(), progress, " | ".join(parts), sys.stdout)
        else:
            self._print()

    def close(self) -> None:
        """Leave a plain line about the last step."""
        if self._live:
            clear_status()
        if self._pending:
            self._print()

    def __enter__(self) -> "StepProgress":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _rate(self) -> float:
        """Return training tokens per second since the first step."""
        seconds = self._last.seconds - self._first.seconds
        return (self._last.tokens - self._first.tokens) / seconds if seconds else self._figures["train/tok_per_sec"]

    def _left(self) -> str:
        """Return the time left, "?" after one step."""
        progress = self._last.progress - self._first.progress
        if progress <= 0:
            return "?"
        # Wall time per progress so far, times the remaining share.
        return duration((self._last.wall - self._first.wall) * (1 - self._last.progress) / progress)

    def _label(self) -> str:
        of_all = "" if self._steps is None else f"/{self._steps:05d}"
        return f"step {self._figures['step']:05d}{of_all}"

    def _print(self) -> None:
        self._pending = False
        figures = self._figures
        mfu = "n/a" if figures["train/mfu"] is None else f"{100 * figures['train/mfu']:.1f}"
        parts = [
            f"{self._label()} ({100 * figures['progress']:.2f}%)",
            f"loss: {self._loss:.4f}",
            f"lrm: {figures['train/lrm']:.2f}",
            f"dt: {1000 * figures['train/dt']:.0f}ms",
            f"tok/sec: {figures['train/tok_per_sec']:,.0f}",
            f"mfu: {mfu}",
            f"wait: {100 * figures['train/wait']:.1f}%",
            f"total time: {duration(figures['total_training_time'])}",
        ]
        if figures["progress"] < 1:
            parts.append(f"eta: {self._left()}")
        print0(*parts, sep=" | ")


def print_figures(step: int, figures: Mapping[str, float]) -> None:
    """Print further figures about a step, but not on a terminal, which has the status line."""
    if not is_terminal(sys.stdout):
        text = " | ".join(f"{name} {value:.3g}" for name, value in figures.items())
        print0(f"step {step:05d} | {text}")
