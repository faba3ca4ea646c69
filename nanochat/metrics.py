"""Metrics and curves of a training stage, for its outcome."""

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nanochat import registry
from nanochat.environment import node_count
from nanochat.log import MetricLog, Record, duration, metric_curve, print0, read_metrics
from nanochat.paths import base_dir, read_json
from nanochat.statistics import NOT_KNOWN, Estimate, Metrics, measured

if TYPE_CHECKING:
    from nanochat.data.corpus import Corpus
    from nanochat.runtime import Runtime
    from nanochat.train import State

JOULES_PER_KWH = 3.6e6
# Figure in the metric log -> title in the report card.
CORE_ESTIMATES = {"core_metric": "CORE metric estimate", "world_core_metric": "World CORE metric estimate"}


def keep_figures(log: MetricLog, state: "State", kind: str, found: Mapping[str, Estimate], **others: float) -> None:
    """Print and log the figures of an evaluation, and keep the first, lowest and last of each in the state.

    The first is from before the first step. The state is saved with a checkpoint, so they outlive a resume. others:
    figures for the log alone.
    """
    kept = state.figures
    logged = {}
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


def run_metrics(state: "State", runtime: "Runtime") -> Metrics:
    """Return the metrics that any training run has."""
    speed = mfu = None  # unknown before the first steady step, or without a known peak
    if state.steady_seconds and state.flops:  # no step may have taught anything, as RL without a reward
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
        energy = joules / JOULES_PER_KWH
        busy = 100 * computing / seconds
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


def pretraining_metrics(state: "State", corpus: "Corpus", epochs: Mapping[str, float]) -> Metrics:
    """Return the metrics for a base model: validation, and the text that was read. epochs: passes over each source."""
    data = corpus.describe()
    last = kept_figures(state, "last")
    estimates = {title: last[name] for name, title in CORE_ESTIMATES.items() if name in last}
    return {
        **validation_metrics(state, "bpb", "Final validation bpb"),
        **estimates,
        "Data": text_label(data),
        "Validation text": data["validation"][:12],
        "Epochs": passes_label(epochs),
    }


def passes_label(epochs: Mapping[str, float]) -> str:
    """Return 0.25, or for a mix "books 0.25, code 1.50"."""
    if len(epochs) == 1:
        return f"{next(iter(epochs.values())):.2f}"
    return ", ".join(f"{name} {passes:.2f}" for name, passes in epochs.items())


def text_label(data: Record) -> str:
    """Return the text in words, from `Corpus.describe`; invented text is called so."""
    name = data["name"]
    if data["world seed"] is not None:
        name = f"embedded world, seed {data['world seed']}, synthetic"
    return f"{name} ({data['files']:,} files, {data['bytes']:,} bytes, {data['fingerprint'][:12]})"


def validation_metrics(state: "State", figure: str, name: str) -> Metrics:
    """Return a validation figure's lowest and last value; `name` is the last one's title."""
    lowest = kept_figures(state, "lowest", "val/")
    last = kept_figures(state, "last", "val/")
    return {f"Minimum validation {figure}": lowest.get(figure, NOT_KNOWN), name: last.get(figure, NOT_KNOWN)}


AXES = {"tokens": "total_training_tokens", "step": "step"}  # title of an x axis -> its figure in the metric log


@dataclass(frozen=True)
class Curve:
    """A series of points in a picture of the report card."""

    title: str  # of the picture; curves with one title share it
    x: str  # a key in AXES
    y: str  # unit
    name: str  # in the legend
    figure: str  # in the metric log


CURVES = [
    Curve("Loss", "tokens", "nats per token", "train", "train/loss"),
    Curve("Loss", "tokens", "nats per token", "validation", "val/loss"),
    Curve("Validation", "tokens", "bits per byte", "validation", "val/bpb"),
    Curve("CORE metric, an estimate", "tokens", "0: guessing, 1: perfect", "CORE", "core_metric"),
    Curve("World CORE metric, an estimate", "tokens", "0: guessing, 1: perfect", "World CORE", "world_core_metric"),
    Curve("Reward", "step", "per answer", "train", "rl/reward"),
    Curve("Reward", "step", "per answer", "test, pass@1", "eval/pass@1"),
    Curve("Gradient norm", "tokens", "of a step", "train", "train/grad_norm"),
    Curve("Learning rate", "tokens", "fraction of the initial one", "rate", "train/lrm"),
    Curve("Throughput", "tokens", "tokens per second", "rate", "train/tok_per_sec"),
]


def training_curves(path: Path) -> list[Record]:
    """Return an outcome's curves from a metric log; only figures that were measured."""
    records = read_metrics(path)  # the last record for each kind and step
    figures = {figure for record in records for figure in record}
    own = []  # of tracks
    for beginning in registry.CURVES.modules:
        if any(figure.startswith(beginning) for figure in figures) and registry.is_here(registry.CURVES, beginning):
            own += registry.load(registry.CURVES, beginning)(figures)
    place = [curve.title for curve in CURVES].index("Gradient norm")  # what a model learns comes before it
    pictures: dict[str, Record] = {}
    for curve in [*CURVES[:place], *own, *CURVES[place:]]:
        points = metric_curve(records, curve.figure, over=AXES[curve.x])
        if points[0]:
            picture = {"title": curve.title, "x": curve.x, "y": curve.y, "series": {}}
            pictures.setdefault(curve.title, picture)["series"][curve.name] = points
    return list(pictures.values())
