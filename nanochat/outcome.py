"""The record of a stage, `outcome.json`: what the report card shows, and how numbers are shown.

A training stage's metrics are put together here too. Reports read these records; training imports no report.
"""

import contextlib
import importlib.util
import math
import os
import platform
import runpy
import shlex
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nanochat.hardware import given_price
from nanochat.log import (
    MetricLog,
    Record,
    duration,
    format_value,
    metric_curve,
    parse_rows,
    print0,
    read_metrics,
    terminal_table,
)
from nanochat.paths import base_dir, read_json, read_sha256, stage_dir, write_json

if TYPE_CHECKING:
    from nanochat.config import Config
    from nanochat.data.corpus import Corpus
    from nanochat.runtime import Runtime
    from nanochat.train import State

ROOT = Path(__file__).parent.parent
LOCK = "requirements.lock"  # locks the dependencies; the card counts lines
# Files that count as source in the report card's "Bloat".
SOURCES = ("*.py", "*.md", "*.rs", "*.html", "*.toml", "*.sh")
VERSIONED = ("nanochat", "rustbpe", "torch", "numpy", "pyarrow", "tiktoken")
NOT_KNOWN = "n/a"
JOULES_PER_KWH = 3.6e6

# Figure in the metric log -> title in the report card.
CORE_ESTIMATES = {"core_metric": "CORE metric estimate", "world_core_metric": "World CORE metric estimate"}

Metrics = dict[str, Any]  # name -> a number, a text, or {"value", "stderr", "format", "unit"}
Texts = dict[str, str]  # name -> text


@dataclass(kw_only=True)
class Outcome:
    """The record that a stage writes, `outcome.json` in the stage's folder."""

    stage: str
    tag: str
    started: str
    timestamp: str = ""  # end of the stage
    command: str
    config: dict[str, Any]  # every field
    card: list[str]  # config fields for the report card
    metrics: Metrics = field(default_factory=dict)  # stderr, format, unit may be absent
    # {"title", "columns", "rows"}: a column is [name, format spec], rows hold raw values, None for an empty cell
    tables: list[Record] = field(default_factory=list)
    seconds: float = 0.0  # wall clock, from start to end
    artifacts: dict[str, str] = field(default_factory=dict)  # file name -> SHA-256
    versions: Texts
    environment: dict[str, Any]
    curves: list[Record] = field(default_factory=list)  # {"title", "x", "y", "series"}: name -> [xs, ys]

    @classmethod
    def begin(cls, stage: str, tag: str, config: "Config") -> "Outcome":
        """Return the record for a stage that starts now."""
        return cls(
            stage=stage,
            tag=tag,
            started=_now(),
            command=shlex.join(["python", *sys.orig_argv[1:]]),  # orig_argv still has -m and the module
            config=asdict(config),
            card=[one.name for one in fields(config) if one.metadata["in_card"]],
            versions=versions(),
            environment=environment() | {"Bloat": bloat()},
        )

    @property
    def folder(self) -> Path:
        """The stage's folder, which gets the record."""
        return stage_dir(self.stage, self.tag)

    def figure(self, name: str) -> Any:
        """Return a metric without its format; ValueError if the record has none of this name."""
        if name not in self.metrics:
            raise ValueError(f"{self.tag} has no {name}, its record is of an earlier version: run its stage again")
        metric = self.metrics[name]
        return metric["value"] if isinstance(metric, dict) else metric

    def add_artifact(self, path: Path) -> None:
        self.artifacts[path.name] = read_sha256(path)

    def write(self) -> None:
        """Stop the clock and write the record to the stage's folder: the last act of a stage."""
        self.timestamp = _now()
        # Wall clock, pauses included.
        passed = datetime.fromisoformat(self.timestamp) - datetime.fromisoformat(self.started)
        self.seconds = passed.total_seconds()
        write_json(self.folder / "outcome.json", asdict(self))

    def show(self) -> None:
        """Print the tables and the metrics."""
        print0(*map(terminal_table, self.tables), sep="\n\n")
        for name, value in self.metrics.items():
            print0(f"{name}: {format_value(value)}")

    def finish(self) -> None:
        """Print the tables and the metrics, and write the record."""
        self.show()
        self.write()

    def write_evaluation(self, kind: str, step: int) -> None:
        """Print and write the record of an evaluation, and log its estimates, for a model's step."""
        self.show()
        figures = {name: metric["value"] for name, metric in self.metrics.items() if isinstance(metric, dict)}
        with MetricLog(self.folder, self.config["run"], self.config) as log:
            log.write(kind, step, **figures)
        self.write()

    @classmethod
    def load(cls, path: Path) -> "Outcome":
        """Return the record in `path`; ValueError if it is damaged or was written by another version."""
        try:
            return cls(**read_json(path))
        except (TypeError, ValueError):
            raise ValueError(f"{path} is no record of this version: move it away, or run the stage again") from None


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="milliseconds")  # with the UTC offset


def versions() -> Texts:
    """Return installed versions for VERSIONED, from their metadata: importing torch takes seconds."""
    found = {}
    for name in VERSIONED:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def output_of(*command: str) -> str:
    """Return the text that a program prints; nothing if the program is absent or fails."""
    try:
        # Half a minute: a driver that hangs must not stop a run.
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def git(*words: str) -> str:
    return output_of("git", "-C", str(ROOT), *words)


def environment() -> dict[str, Texts]:
    """Return checkout, hardware and software, as the report card's header shows them."""
    software = {"Python": platform.python_version(), "PyTorch": torch_build()["__version__"]}
    commit = git("rev-parse", "--short", "HEAD")
    # Every run rewrites the report card: a new card alone does not make the tree dirty.
    card = [":!report.md", ":!report"]
    changes = git("status", "--porcelain", "--untracked-files=no", "--", ".", *card)
    checkout = {
        "Branch": git("rev-parse", "--abbrev-ref", "HEAD"),
        "Commit": f"{commit} ({'dirty' if changes else 'clean'})" if commit else "unknown (not a git checkout)",
        "Message": git("log", "-1", "--format=%s"),
    }
    price, machine = given_price(), hardware()
    if price is not None:
        machine["Hourly Rate"] = price
    if node_count() > 1:
        machine["Nodes"] = node_count()
    return {"Git Information": checkout, "Hardware": machine, "Software": software}


def node_count() -> int:
    """Return the machines of this run: by torchrun's variables, or those that tracks/scale/nodes.sh found."""
    if "LOCAL_WORLD_SIZE" in os.environ:
        return int(os.environ["WORLD_SIZE"]) // int(os.environ["LOCAL_WORLD_SIZE"])
    return int(os.environ.get("NANOCHAT_NODES_FOUND", 1))


def torch_build() -> Record:
    """Return the names in PyTorch's version file: __version__ with a build tag, 2.15.0+cu130, and cuda, or None."""
    # Importing torch takes seconds.
    return runpy.run_path(str(Path(importlib.util.find_spec("torch").origin).with_name("version.py")))


def bloat() -> dict[str, int]:
    """Return the size of the source files that git tracks."""
    # -z: file names with spaces stay whole.
    names = git("ls-files", "-z", *SOURCES).split("\0")
    files = [(ROOT / name).read_text(encoding="utf-8") for name in names if (ROOT / name).is_file()]
    text = "".join(files)
    lock = ROOT / LOCK  # an installed wheel has none
    return {
        "Characters": len(text),
        "Lines": text.count("\n"),
        "Files": len(files),
        "Tokens (approx)": len(text) // 4,  # four characters a token, roughly
        f"Dependencies ({LOCK} lines)": lock.read_text(encoding="utf-8").count("\n") if lock.exists() else 0,
    }


def hardware() -> Texts:
    """Return this machine's processors, memory and GPUs."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    gpus = Counter(output_of("nvidia-smi", "--query-gpu=name", "--format=csv,noheader").splitlines())
    facts = {
        "Platform": platform.system(),
        "CPUs": f"{os.cpu_count()} logical",
        "Memory": f"{memory / 2**30:.1f} GB",  # binary gigabytes
        "GPUs": ", ".join(f"{count}x {name}" for name, count in gpus.items()) or "none",
    }
    if gpus:
        facts["CUDA Version"] = torch_build()["cuda"] or NOT_KNOWN
    return facts


def read_outcomes(base: Path, tag: str = "") -> list[Outcome]:
    """Return the record for each stage below `base`, of all tags or one."""
    return [Outcome.load(path) for path in sorted(base.glob(f"*/{tag or '*'}/outcome.json"))]


# ---- estimates ----


class Estimate(NamedTuple):
    """A mean with the standard error."""

    value: float
    stderr: float

    def __str__(self) -> str:
        return f"{self.value:.4f} ± {self.stderr:.4f}"

    def centered(self, baseline: float) -> "Estimate":
        """Return the estimate on a scale where `baseline`, the score of guessing, is 0 and a perfect score is 1."""
        span = 1 - baseline
        return Estimate((self.value - baseline) / span, self.stderr / span)  # a shift leaves errors alone

    def metric(self, chance: float = math.nan) -> Record | str:
        """Return the estimate as an outcome's metric. chance: the score of guessing, nan if not known."""
        near = abs(self.value - chance) <= 2 * self.stderr  # False for nan
        return measured(self.value, self.stderr, unit=" (near chance)" if near else "")


def mean_estimate(values: Sequence[float]) -> Estimate:
    """Return the mean of a sample; the standard error of a single value is nan."""
    spread = statistics.stdev(values) if len(values) > 1 else math.nan
    return Estimate(statistics.fmean(values), spread / math.sqrt(len(values)))


def average(estimates: Collection[Estimate]) -> Estimate:
    """Return the mean over independent estimates."""
    count = len(estimates)
    value = sum(one.value for one in estimates) / count
    return Estimate(value, math.hypot(*(one.stderr for one in estimates)) / count)  # errors add as squares


# ---- figures of evaluations during training ----


def keep_figures(log: MetricLog, state: "State", kind: str, found: Mapping[str, Estimate], **others: float) -> None:
    """Print and log the figures of an evaluation, and keep the first, lowest and last of each in the state.

    The first is from before the first step. The state is saved with a checkpoint, so they outlive a resume. others:
    figures for the log alone.
    """
    kept, logged = state.figures, {}
    if state.step == 0:
        kept["first"] |= found
    for name, estimate in found.items():
        lowest, _ = kept["lowest"].get(name, estimate)
        if estimate.value <= lowest:
            kept["lowest"][name] = estimate
        print0(f"step {state.step:05d} | {name}: {estimate}")
        logged |= {name: estimate.value, f"{name}_stderr": estimate.stderr}
    kept["last"] |= found
    log.write(kind, state.step, **logged, **others)


def kept_figures(state: "State", which: str, kind: str = "") -> Metrics:
    """Return kept figures as metrics. which: first, lowest or last. kind: start of their names, left out."""
    kept = state.figures[which].items()
    return {name.removeprefix(kind): measured(*estimate) for name, estimate in kept if name.startswith(kind)}


# ---- metrics for a training stage; n/a for a figure that is not known ----


def measured(value: float | None, stderr: float | None = None, spec: str = ".4f", unit: str = "") -> Metrics | str:
    """Return a metric for an outcome."""
    if value is None:
        return NOT_KNOWN
    metric = {"value": value, "format": spec}
    if stderr is not None:
        metric["stderr"] = stderr
    if unit:
        metric["unit"] = unit
    return metric


def run_metrics(state: "State", runtime: "Runtime") -> Metrics:
    """Return the metrics that any training run has."""
    speed = mfu = None  # unknown before the first steady step, or without a known peak
    if state.steady_seconds:
        # Without the first steps, which compile; all tokens cost the same FLOPs.
        flops_per_second = state.steady_flops / state.steady_seconds
        speed = flops_per_second / state.flops * state.tokens
        if runtime.peak_flops:
            mfu = 100 * flops_per_second / (runtime.peak_flops * runtime.world_size)
    # Share in training time; evaluations are left out.
    waited = 100 * state.waited / state.seconds  # percent
    return {
        "Device batch size": state.device_batch,
        "DDP world size": runtime.world_size,
        "Precision": runtime.dtype_name,
        "Tokens per second": measured(speed, spec=",.0f"),
        "MFU %": measured(mfu, spec=".2f", unit="%"),
        "Total training flops": measured(state.flops, spec=".4e"),
        "Total training time": duration(state.seconds),
        "Peak memory usage": measured(runtime.peak_memory() / 2**20, spec=".2f", unit="MiB"),  # bytes -> MiB
        "Tokens seen": state.tokens,
        "Waited for data": measured(waited, spec=".2f", unit="%"),
    }


def scale_metrics(state: "State", runtime: "Runtime") -> Metrics:
    """Return the metrics for training on many GPUs: their network, as preflight found it, and their energy.

    All ranks call it.
    """
    found = read_preflight(base_dir())
    if found.get("places") != runtime.all_gather(f"rank {runtime.rank} on {platform.node()}"):  # of another job
        found = {}
    waiting = energy = busy = None
    if runtime.world_size > 1:
        waiting = 100 * state.communicating / state.seconds
    if state.gpu_use and state.gpu_use[-1]:  # at least a second
        joules, computing, seconds = state.gpu_use
        energy, busy = joules / JOULES_PER_KWH, 100 * computing / seconds
    return {
        "Nodes": node_count(),
        "Interconnect": found.get("interconnect", NOT_KNOWN),
        "All-reduce GB/s": measured(found.get("all_reduce_gb_s"), spec=",.2f"),
        "Communication not hidden": measured(waiting, spec=".2f", unit="%"),
        "Energy": measured(energy, spec=",.3f", unit=" kWh"),
        "GPUs computing": measured(busy, spec=".1f", unit="%"),
    }


def read_preflight(base: Path) -> Record:
    """Return the record that tracks.scale.preflight left in a base folder; empty without one."""
    path = base / "preflight.json"
    return read_json(path) if path.exists() else {}


def pretraining_metrics(state: "State", corpus: "Corpus") -> Metrics:
    """Return the metrics for a base model: validation, and the text that was read."""
    data = corpus.describe()
    last = kept_figures(state, "last")
    estimates = {title: last[name] for name, title in CORE_ESTIMATES.items() if name in last}
    return {
        **validation_metrics(state, "bpb", "Final validation bpb"),
        **estimates,
        "Data": text_label(data),
        "Validation text": data["validation"][:12],
    }


def text_label(data: Record) -> str:
    """Return the text in words, from `Corpus.describe`; invented text is called so."""
    name = data["name"]
    if data["world seed"] is not None:
        name = f"embedded world, seed {data['world seed']}, synthetic"
    return f"{name} ({data['files']:,} files, {data['bytes']:,} bytes, {data['fingerprint'][:12]})"


def validation_metrics(state: "State", figure: str, name: str) -> Metrics:
    """Return a validation figure's lowest and last value; `name` is the last one's title."""
    lowest, last = kept_figures(state, "lowest", "val/"), kept_figures(state, "last", "val/")
    return {f"Minimum validation {figure}": lowest.get(figure, NOT_KNOWN), name: last.get(figure, NOT_KNOWN)}


AXES = {"tokens": "total_training_tokens", "step": "step"}  # title of an x axis -> its figure in the metric log
# Title, x axis, y axis, name of a series in the picture, its figure in the metric log.
CURVES = """
Loss                            tokens  nats per token               train         train/loss
Loss                            tokens  nats per token               validation    val/loss
Validation                      tokens  bits per byte                validation    val/bpb
Validation at each exit         tokens  bits per byte                exit 0        val/bpb at exit 0
Validation at each exit         tokens  bits per byte                exit 1        val/bpb at exit 1
Validation at each exit         tokens  bits per byte                exit 2        val/bpb at exit 2
Validation at each exit         tokens  bits per byte                exit 3        val/bpb at exit 3
Validation at each exit         tokens  bits per byte                exit 4        val/bpb at exit 4
Validation at each exit         tokens  bits per byte                exit 5        val/bpb at exit 5
Validation at each exit         tokens  bits per byte                exit 6        val/bpb at exit 6
Validation at each exit         tokens  bits per byte                exit 7        val/bpb at exit 7
CORE metric, an estimate        tokens  0: guessing, 1: perfect      CORE          core_metric
World CORE metric, an estimate  tokens  0: guessing, 1: perfect      World CORE    world_core_metric
Reward                          step    per answer                   train         rl/reward
Reward                          step    per answer                   test, pass@1  eval/pass@1
Pair accuracy                   step    share of pairs               train         dpo/accuracy
Pair accuracy                   step    share of pairs               held out      eval/Pair accuracy
Margin                          step    nats                         train         dpo/margin
Margin                          step    nats                         held out      eval/Margin
KL to the parent                step    nats per token               train         dpo/kl
KL to the parent                step    nats per token               held out      eval/KL to the parent
Gradient norm                   tokens  of a step                    train         train/grad_norm
Learning rate                   tokens  fraction of the initial one  rate          train/lrm
Throughput                      tokens  tokens per second            rate          train/tok_per_sec
"""


def training_curves(path: Path) -> list[Record]:
    """Return an outcome's curves from a metric log; only figures that were measured."""
    records = read_metrics(path)  # the last record for each kind and step
    curves = {}
    for title, x, y, name, figure in parse_rows(CURVES):
        points = metric_curve(records, figure, over=AXES[x])
        if points[0]:
            curve = curves.setdefault(title, {"title": title, "x": x, "y": y, "series": {}})
            curve["series"][name] = points
    return list(curves.values())
