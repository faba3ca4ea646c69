"""What a training stage tells the report card of what came of it."""

from typing import Any

from nanochat.log import MetricLog, duration


def training_facts(state: Any, source: Any, corpus: Any, runtime: Any) -> dict[str, Any]:
    """Figures of a run that has ended, named as the card shows them; n/a for what is not known."""
    notes, peak = state.notes, runtime.peak_flops
    bpb = {"value": notes.get("val bpb"), "stderr": notes.get("val bpb stderr"), "format": ".4f"}
    known = peak and state.steady_seconds
    mfu = 100 * state.steady_flops / state.steady_seconds / (peak * runtime.world_size) if known else None
    # Without the first steps, as the MFU; all tokens cost as much.
    speed = state.steady_seconds and state.steady_flops / state.flops * state.tokens / state.steady_seconds
    data, epochs = corpus.describe(), source.epochs
    return {
        "Device batch size": state.device_batch,
        "DDP world size": runtime.world_size,
        "Precision": runtime.dtype_name,
        "Minimum validation bpb": notes.get("lowest val bpb", "n/a"),
        "Final validation bpb": bpb if notes else "n/a",
        "CORE metric estimate": "n/a",  # it comes with the evaluations
        "Tokens per second": {"value": speed, "format": ",.0f"} if speed else "n/a",
        "MFU %": {"value": mfu, "format": ".2f", "unit": "%"} if known else "n/a",
        "Total training flops": {"value": state.flops, "format": ".4e"},
        "Total training time": duration(state.seconds),
        "Peak memory usage": {"value": runtime.peak_memory() / 2**20, "format": ".2f", "unit": "MiB"},
        "Data": f"{data['name']} ({data['files']:,} files, {data['bytes']:,} bytes, {data['fingerprint'][:12]})",
        "Validation text": data["validation"][:12],
        "Tokens seen": state.tokens,
        "Epochs": ", ".join(f"{name} {epoch:.2f}" for name, epoch in epochs.items()),
        "Share of tokens dropped": {"value": 100 * source.dropped_share, "format": ".2f", "unit": "%"},
        "Waited for data": {"value": 100 * state.waited / max(state.seconds, 1e-9), "format": ".2f", "unit": "%"},
    }


def curves(log: MetricLog) -> list[dict]:
    """Of the loss and of validation, by step; those that have points."""
    loss, bpb = log.curve("train/loss"), log.curve("val/bpb")
    found = [("Training loss", "nats a token", "train", loss), ("Validation", "bits a byte", "val", bpb)]
    return [{"title": t, "x": "step", "y": y, "series": {name: xy}} for t, y, name, xy in found if xy[0]]
