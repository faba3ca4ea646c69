"""What a training stage tells the report card of what came of it."""

from typing import Any

from nanochat.log import MetricLog, duration, metric_curve, read_metrics


def training_facts(state: Any, source: Any, corpus: Any, runtime: Any) -> dict[str, Any]:
    """Figures of pretraining that has ended, named as the card shows them; n/a for what is not known."""
    data, epochs, notes = corpus.describe(), source.epochs, state.notes
    core = {"value": notes.get("CORE metric"), "stderr": notes.get("CORE metric stderr"), "format": ".4f"}
    return {
        **validation_facts(notes, "bpb", "Final validation bpb"),
        "CORE metric estimate": core if core["value"] is not None else "n/a",
        **run_facts(state, runtime),
        "Data": f"{data['name']} ({data['files']:,} files, {data['bytes']:,} bytes, {data['fingerprint'][:12]})",
        "Validation text": data["validation"][:12],
        "Epochs": ", ".join(f"{name} {epoch:.2f}" for name, epoch in epochs.items()),
        "Share of tokens dropped": {"value": 100 * source.dropped_share, "format": ".2f", "unit": "%"},
    }


def run_facts(state: Any, runtime: Any) -> dict[str, Any]:
    """Those of any run of the loop."""
    peak = runtime.peak_flops
    known = peak and state.steady_seconds
    mfu = 100 * state.steady_flops / state.steady_seconds / (peak * runtime.world_size) if known else None
    # Without the first steps, as the MFU; all tokens cost as much.
    speed = state.steady_seconds and state.steady_flops / state.flops * state.tokens / state.steady_seconds
    return {
        "Device batch size": state.device_batch,
        "DDP world size": runtime.world_size,
        "Precision": runtime.dtype_name,
        "Tokens per second": {"value": speed, "format": ",.0f"} if speed else "n/a",
        "MFU %": {"value": mfu, "format": ".2f", "unit": "%"} if known else "n/a",
        "Total training flops": {"value": state.flops, "format": ".4e"},
        "Total training time": duration(state.seconds),
        "Peak memory usage": {"value": runtime.peak_memory() / 2**20, "format": ".2f", "unit": "MiB"},
        "Tokens seen": state.tokens,
        "Waited for data": {"value": 100 * state.waited / max(state.seconds, 1e-9), "format": ".2f", "unit": "%"},
    }


def validation_facts(notes: dict[str, Any], figure: str, name: str) -> dict[str, Any]:
    """What the hook `validation` has found, the last one under `name`."""
    shown = {}
    for label, note in ((f"Minimum validation {figure}", f"lowest val {figure}"), (name, f"val {figure}")):
        found = {"value": notes.get(note), "stderr": notes.get(f"{note} stderr"), "format": ".4f"}
        shown[label] = found if found["value"] is not None else "n/a"
    return shown


TOKENS, STEPS = ("tokens", "total_training_tokens"), ("step", "step")
# Title, what it is drawn over, unit, and the series: name in the picture -> metric.
CURVES = (
    ("Loss", TOKENS, "nats a token", {"train": "train/loss", "validation": "val/loss"}),
    ("Validation", TOKENS, "bits a byte", {"validation": "val/bpb"}),
    ("CORE metric, an estimate", TOKENS, "0: guessing, 1: all right", {"CORE": "core_metric"}),
    ("Reward", STEPS, "of an answer", {"train": "rl/reward", "test, pass@1": "eval/pass@1"}),
    ("Learning rate", TOKENS, "of the initial one", {"rate": "train/lrm"}),
    ("Throughput", TOKENS, "tokens a second", {"rate": "train/tok_per_sec"}),
)


def curves(log: MetricLog) -> list[dict]:
    """What came of training as it went on; those that have points."""
    found, records = [], read_metrics(log.path)
    for title, (x, over), unit, metrics in CURVES:
        series = {name: metric_curve(records, metric, over=over) for name, metric in metrics.items()}
        series = {name: points for name, points in series.items() if points[0]}
        found += [{"title": title, "x": x, "y": unit, "series": series}] if series else []
    return found
