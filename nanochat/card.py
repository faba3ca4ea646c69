"""What a training stage tells the report card of what came of it."""

from typing import Any

from nanochat.log import MetricLog, duration


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
    last = {"value": notes.get(f"val {figure}"), "stderr": notes.get(f"val {figure} stderr"), "format": ".4f"}
    known = last["value"] is not None
    return {f"Minimum validation {figure}": notes.get(f"lowest val {figure}", "n/a"), name: last if known else "n/a"}


# Title, unit, and the series: name in the picture -> metric.
CURVES = (
    ("Training loss", "nats a token", {"train": "train/loss", "validation": "val/loss"}),
    ("Validation", "bits a byte", {"val": "val/bpb"}),
    ("Reward", "of an answer", {"train": "rl/reward", "test, pass@1": "eval/pass@1"}),
)


def curves(log: MetricLog) -> list[dict]:
    """Of the loss and of validation, by step; those that have points."""
    found = [(title, unit, {name: log.curve(of) for name, of in series.items()}) for title, unit, series in CURVES]
    found = [(title, unit, {name: xy for name, xy in series.items() if xy[0]}) for title, unit, series in found]
    return [{"title": title, "x": "step", "y": unit, "series": series} for title, unit, series in found if series]
