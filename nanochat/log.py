"""Output: printed lines, progress, text tables, and the metric log with its mirror in a tracker.

Rank 0 speaks for all ranks, apart from `print_line`. Progress is a line now and then.
"""

import errno
import json
import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Protocol, TextIO

from nanochat.cores import OtherWork
from nanochat.extras import not_installed
from nanochat.paths import naming

Record = dict[str, Any]  # JSON
Figures = Mapping[str, float | None]

WANDB_SECONDS = 30.0  # to wait for W&B's server as a run begins, and as it ends; W&B adds its own
RESUMED = "resumed"  # kind of marker records, written where a run resumes

PADDED = 32  # characters; a longer cell stands out of its column
MARKUP = re.compile(r"[\\`*<\[&~]|(?<!\w)_|_(?!\w)")  # signs that begin something in Markdown
LINE_SECONDS = 5.0  # between lines about a long job, or about training steps
# Control characters, all but tab and newline. A terminal would obey them, and data and models may write them.
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

# ---- printing ----


def is_main_rank() -> bool:
    return os.environ.get("RANK", "0") == "0"  # torchrun sets RANK; else there is one process


def harmless(text: str) -> str:
    """Return text for a terminal: \ufffd replaces control characters."""
    return CONTROL.sub("\ufffd", text)


def print_line(*values: Any, sep: str = " ", file: TextIO | None = None) -> None:
    """Print whole lines at once, from any rank: the last lines of a run that dies are in its log."""
    print_raw(harmless(sep.join(map(str, values))) + "\n", file or sys.stdout)


def print_raw(text: str, file: TextIO) -> None:
    """Print text as it is.

    A terminal that has closed fails every write, and so does a pipe that nobody reads any more, as with `| tee` in such
    a terminal. A run goes on, and its text goes nowhere from then on.
    """
    try:
        print(end=text, file=file, flush=True)  # in one piece: lines from threads and ranks must not mix
    except OSError as error:
        if error.errno not in (errno.EIO, errno.EPIPE):
            raise
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), file.fileno())


def print0(*values: Any, sep: str = " ", file: TextIO | None = None) -> None:
    """Print on rank 0 only."""
    if is_main_rank():
        print_line(*values, sep=sep, file=file)


# ---- numbers, durations and tables as text ----


def duration(seconds: float) -> str:
    """Return 4.2s, 12m05s or 3h25m."""
    minutes, rest = divmod(round(seconds), 60)  # rounded first: 59.9 seconds are 1m00s
    if minutes >= 60:
        return f"{minutes // 60}h{minutes % 60:02d}m"
    return f"{minutes}m{rest:02d}s" if minutes else f"{seconds:.1f}s"


def format_value(value: Any) -> str:
    """Return a metric as text: 0.1234, 2048, 65,536, 0.0155 ± 0.0021, 21.07%."""
    if isinstance(value, dict):  # {"value", "stderr", "format", "unit"}
        spec = value.get("format", "")
        text = format_cell(value["value"], spec)
        error = value.get("stderr")
        if error is not None and not math.isnan(error):  # a single item has NaN
            text += f" ± {format_cell(error, spec)}"
        return text + value.get("unit", "")
    if isinstance(value, float):
        return f"{value:.4f}"
    if isinstance(value, int) and abs(value) >= 10_000:
        return f"{value:,}"
    return str(value).replace("\n", " ")


def format_cell(value: float | str | None, spec: str) -> str:
    """Return a table's cell; texts and NaN ignore the column's format, and None is a dash."""
    if value is None:
        return "-"
    if isinstance(value, str) or value != value:  # only NaN differs from itself
        return str(value)
    return format(value, spec) if spec else format_value(value)


def table_of(title: str, columns: str, rows: Sequence[Sequence[Any]], note: str = "") -> Record:
    """Return a table as an outcome holds it.

    columns: names, some with a number format: Task | Score:.4f. note: a sentence below the table.
    """
    # A colon within a name has a space after it.
    names = [re.findall(r"\A\s*(.*?)(?::(\S*))?\s*\Z", column)[0] for column in columns.split("|")]
    return {"title": title, "columns": names, "rows": rows} | ({"note": note} if note else {})


def escape_markup(text: str) -> str:
    """Return a text without markup in Markdown: what a model has written becomes no picture, and keeps its signs."""
    return MARKUP.sub(r"\\\g<0>", text)


def markdown_table(table: Record, is_escaped: bool = True) -> str:
    """Return an outcome's table in Markdown. Short cells are padded, so that the source reads as a table too."""
    names, specs = zip(*table["columns"], strict=True)
    rows = [list(map(format_cell, row, specs)) for row in table["rows"]]
    if is_escaped:
        rows = [list(map(escape_markup, row)) for row in rows]
    rows.insert(0, list(names))
    # On one line, with escaped bars.
    cells = [[" ".join(text.split()).replace("|", "\\|") for text in row] for row in rows]
    widths = [min(PADDED, max(map(len, column))) for column in zip(*cells, strict=True)]
    cells.insert(1, ["-" * width for width in widths])
    return "\n".join(f"| {' | '.join(map(str.ljust, row, widths))} |" for row in cells)


def terminal_table(table: Record) -> str:
    """Return an outcome's table for the terminal: the title, the table in Markdown, and its note."""
    lines = [table["title"], markdown_table(table, is_escaped=False)]
    if "note" in table:
        lines.append(table["note"])
    return "\n".join(lines)


# ---- metrics ----


def read_metrics(path: Path) -> list[Record]:
    """Return a metric log's valid records: the last one for each (kind, step), in training order.

    A marker that a run resumed at step N drops earlier records with a later step. A line that a killed process left
    half written is skipped.
    """
    if not path.exists():
        return []
    kept: dict[tuple[str, int], Record] = {}  # (kind, step) -> record
    for line in path.read_bytes().splitlines():
        try:
            record = json.loads(line)
        except ValueError:  # half a line, or an empty one
            continue
        if record["kind"] == RESUMED:
            # The resumed run trains these steps again.
            kept = {key: earlier for key, earlier in kept.items() if earlier["step"] <= record["step"]}
        else:
            kept[record["kind"], record["step"]] = record
    return list(kept.values())


def metric_curve(records: Sequence[Record], name: str, most: int = 300, over: str = "step") -> list[list[float]]:
    """Return the x and y values for a metric, averaged over groups so that at most `most` points remain.

    over: the figure on the x axis. A record without it (a validation, which counts no tokens) has the x of the record
    before: the training step after which it came.
    """
    x = 0  # of a validation before the first step
    points = []
    for record in records:
        x = record.get(over, x)
        if record.get(name) is not None:
            points.append((x, record[name]))
    size = max(1, -(-len(points) // most))  # records per point, rounded up
    groups = [points[start : start + size] for start in range(0, len(points), size)]
    xs = [group[-1][0] for group in groups]  # the newest x, not a mean
    ys = [sum(y for _, y in group) / len(group) for group in groups]
    return [xs, ys]


TrackerName = Literal["wandb", "trackio"]


class Tracker(Protocol):
    """A run in a tracker, which has the curves of metrics.jsonl too."""

    def log(self, figures: Record, /) -> None:
        """Add a record, with its step among the figures."""

    def finish(self) -> None:
        """Wait until all records are there."""


def start_wandb(run: str, stage: str, config: Record | None) -> Tracker:
    """Begin a run in Weights & Biases, a service with accounts. Each call makes one, so stages may share a name."""
    import wandb  # slow, and not needed by a run without a name

    settings = wandb.Settings(init_timeout=WANDB_SECONDS, finish_timeout=WANDB_SECONDS)
    return wandb.init(project="nanochat", name=run, config=config, settings=settings)


class TrackioRun:
    """A run in trackio, a database on this machine; `trackio show` draws it in a browser.

    The name is the run there, so the stage is a part of it: all stages of a job have the same --run.
    """

    def __init__(self, run: str, stage: str, config: Record | None) -> None:
        import trackio  # ty: ignore[import-not-found]  # an extra of this project, which is not locked

        # A run that is resumed goes on under its name. Only figures of the log are recorded, none of the machine.
        own = {"embed": False, "resume": "allow", "auto_log_gpu": False, "auto_log_cpu": False}
        self._run = trackio.init(project="nanochat", name=f"{run}-{stage}", config=config, **own)

    def log(self, figures: Record, /) -> None:
        # Figures that are not known, as the MFU of a CPU, would be text in its tables.
        known = {name: value for name, value in figures.items() if name != "step" and value is not None}
        self._run.log(known, step=figures["step"])

    def finish(self) -> None:
        self._run.finish()


# Name -> how it is called in messages, and what begins a run.
TRACKERS: dict[TrackerName, tuple[str, Callable[[str, str, Record | None], Tracker]]] = {
    "wandb": ("W&B", start_wandb),
    "trackio": ("trackio", TrackioRun),
}


class MetricLog:
    """Appends JSON records to `metrics.jsonl` (or `name`.jsonl) on rank 0, mirrored to a tracker if `run` names a run.

    The file is the record. If the tracker fails, one line says so, and the run continues. Readers use `read_metrics`.
    """

    def __init__(
        self,
        folder: Path,
        run: str = "",
        config: Record | None = None,
        name: str = "metrics",
        tracker: TrackerName = "wandb",
    ) -> None:
        self.path = folder / f"{name}.jsonl"
        self._before = ""  # a marker that goes before the next record
        self._tracker: Tracker | None = None  # no mirror
        self._title, start = TRACKERS[tracker]
        if is_main_rank():
            folder.mkdir(parents=True, exist_ok=True)
            if run not in ("", "dummy"):  # the default flag means no mirror
                with self._mirroring():
                    # The folder is STAGE/TAG.
                    self._tracker = start(run, folder.absolute().parent.name, config)

    def write(self, kind: str, step: int, **figures: Any) -> None:
        """Append a record; it replaces an earlier one with the same kind and step.

        The operating system has the record when this returns; it is not fsynced.
        """
        if not is_main_rank():
            return
        record = json.dumps({"kind": kind, "step": step, **figures}, ensure_ascii=False)
        lines = f"{self._before}{record}\n".encode()
        self._before = ""
        with naming(self.path, len(lines)), open(self.path, "ab") as file:
            file.write(lines)
        if self._tracker:
            with self._mirroring():
                self._tracker.log({"step": step, **figures})

    def resume(self, step: int) -> None:
        """Continue from a step: earlier records with later steps are dropped once the next one is written.

        Step -1 starts again in a folder that may hold another run's log.
        """
        if self.path.exists():
            # A new line first: a killed process may have left half of one.
            self._before = f'\n{{"kind": "{RESUMED}", "step": {step}}}\n'

    def __enter__(self) -> "MetricLog":
        return self

    def __exit__(self, *exception: object) -> None:
        if self._tracker:
            with self._mirroring():
                self._tracker.finish()

    @contextmanager
    def _mirroring(self) -> Iterator[None]:
        try:
            yield
        except (Exception, SystemExit) as error:  # training goes on, whatever a service does
            missing = not_installed(error.name or "") if isinstance(error, ModuleNotFoundError) else None
            reason = " ".join(str(missing or f"{type(error).__name__}: {error}").split())
            print0(f"{self._title} is off for the rest of this run ({reason}); see {self.path}")
            self._tracker = None


# ---- progress ----


class Progress:
    """Prints a line about a long job, or about training steps, now and then on rank 0.

    The time left follows the wall clock, so that evaluations and checkpoints count; all before the first update, as
    compiling, does not. A line more says when other processes begin to take the cores.
    """

    def __init__(self, file: TextIO | None = None) -> None:
        self._file = file  # None: stdout
        self._shown = time.monotonic()
        self._first: tuple[float, float] | None = None  # clock and `done` at the first update
        self._line = ""  # the newest, not printed yet
        self._others = OtherWork() if is_main_rank() else None

    def update(self, text: str, done: float) -> None:
        """Print the text and the time left if the last line is old enough. done: the part of the job so far, 0 to 1."""
        now = time.monotonic()
        self._first = self._first or (now, done)
        start, before = self._first
        # The rest takes as long for its size as what is done since the first update.
        left = duration((now - start) * (1 - done) / (done - before)) if done > before else "?"
        self._line = f"{text} | eta: {left}"
        if now - self._shown >= LINE_SECONDS:
            self._shown = now
            self.close()
            if self._others and (note := self._others.note()):
                print0(note, file=self._file)

    def close(self) -> None:
        """Print the newest line, unless it is printed already."""
        if self._line:
            print0(self._line, file=self._file)
        self._line = ""


# Filled in with the figures of a step's record, and with words that are added to them.
STEP_LINE = (
    "step {step:05d}{of_all} ({progress:.2%}) | loss: {loss:.4f}{details} | lrm: {train/lrm:.2f} | dt: {ms:.0f}ms"
    " | tok/sec: {train/tok_per_sec:,.0f} | mfu: {mfu} | wait: {train/wait:.1%} | total time: {total_time}"
)


def step_line(figures: Figures, loss: float, steps: int | None, details: str = "") -> str:
    """Return a training step's line. figures: its record in the metric log. loss: smoothed.

    steps: in the whole run; None where a clock or the data ends training. details: what the objective adds.
    """
    mfu = figures["train/mfu"]
    dt = figures["train/dt"]
    total_time = figures["total_training_time"]
    assert dt is not None  # both are measured in every step
    assert total_time is not None
    words = {
        "of_all": "" if steps is None else f"/{steps:05d}",
        "loss": loss,
        "details": f" | {details}" if details else "",
        "ms": 1000 * dt,
        "mfu": "n/a" if mfu is None else f"{100 * mfu:.1f}",
        "total_time": duration(total_time),
    }
    return STEP_LINE.format_map({**figures, **words})
