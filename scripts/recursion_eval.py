"""Compare recursion with models that spend the same compute in another way, as runs/recursion.sh trains them.

python -m scripts.recursion_eval --tag=recursion --seeds=3
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nanochat.config import Count, changed, option, run
from nanochat.log import Record, format_value, metric_curve, print0, table_of, terminal_table
from nanochat.outcome import Metrics, Outcome, measured
from nanochat.settings import DeviceSettings, Preset, TagSettings

if TYPE_CHECKING:
    from nanochat.lab.recursion import SeedResult


@dataclass(frozen=True)
class Config(DeviceSettings, TagSettings):
    """Compare the runs TAG-R-1, TAG-P-1 and so on: exits, refinements, differences, and a verdict over seeds."""

    tag: str = changed(TagSettings, "tag", "recursion", text="prefix of the runs' tags")
    seeds: Count = option(1, "compare the seeds 1 to N", group="run", least=1)


def exits_table(results: Sequence["SeedResult"]) -> Record:
    """Return the table with the losses at each exit."""
    from nanochat.lab.intervals import interval

    rows = []
    for i, bits in enumerate(zip(*(result.arms["R"].exits for result in results), strict=True)):
        nats = interval([result.nats * some for result, some in zip(results, bits, strict=True)])
        rows.append([i, *interval(bits), *nats])
    columns = {"Exit": "", "Bits per byte": ".4f", "low": ".4f", "high": ".4f"}
    columns |= {"Nats per token": ".4f", "low ": ".4f", "high ": ".4f"}
    return table_of("Exits of R on validation text, with 95 % intervals over seeds", columns, rows)


def arms_table(results: Sequence["SeedResult"]) -> Record:
    """Return the table with the cost and the loss of each arm, and its difference to R."""
    from nanochat.lab.intervals import interval
    from nanochat.lab.recursion import ARMS, BPB, FLOPS

    columns = dict.fromkeys(("Arm", "Model", "Layers"), "")
    columns |= dict.fromkeys(("Parameters", "FLOPs per token", "Tokens"), ",.0f")
    columns |= {"FLOPs": ".2e", "Tokens/s": ",.0f", "Seconds": ",.0f", "Bits per byte": ".4f"}
    columns |= dict.fromkeys(("Minus R", "low", "high"), "+.4f")
    rows = []
    for arm, description in ARMS.items():
        runs = [result.arms[arm] for result in results]
        names = ("Number of parameters", FLOPS, "Tokens seen", "Total training flops", "Tokens per second")
        means = [statistics.fmean(run.figure(name) for run in runs) for name in names]
        seconds = statistics.fmean(run.seconds for run in runs)
        bits = statistics.fmean(run.figure(BPB) for run in runs)
        gain = interval([result.gain(arm) for result in results]) if arm != "R" else [None] * 3
        rows.append([arm, description, runs[0].outcome.config["depth"], *means, seconds, bits, *gain])
    return table_of("Arms, means over seeds; differences to R with 95 % intervals", columns, rows)


def curves(result: "SeedResult") -> list[Record]:
    """Return the plots for a seed: exits over tokens, and all arms over FLOPs."""
    exits = [curve for curve in result.arms["R"].outcome.curves if curve["title"] == "Validation at each exit"]
    arms = {arm: metric_curve(run.records, "val/bpb", over="total_training_flops") for arm, run in result.arms.items()}
    return [*exits, {"title": "Arms, first seed", "x": "FLOPs", "y": "bits per byte", "series": arms}]


def figures(results: Sequence["SeedResult"]) -> Metrics:
    """Return the metrics for the report card."""
    from nanochat.evals.refinement import in_order, validated_exits
    from nanochat.lab.intervals import interval
    from nanochat.lab.recursion import verdict

    own, refitted = zip(*(result.refinements for result in results), strict=True)
    gains = {arm: [result.gain(arm) for result in results] for arm in ("P", "F")}
    recursions = [result.arms["R"] for result in results]
    settings, model = recursions[0].outcome.config, recursions[0].checkpoint.manifest["model"]
    norms = [record["train/grad_norm"] for one in recursions for record in one.records if record["kind"] == "train"]
    validations = [in_order(exits) for one in recursions for exits in validated_exits(one.records)]
    return {
        "Verdict": verdict(own, refitted, gains),
        "Preset": settings["recursion"],
        **{name: settings[name] for name in Preset._fields},
        "Refinement": str(interval(own)),
        "Refinement, first exit refitted": str(interval(refitted)),
        "Exits in order": f"{sum(validations)} of {len(validations)} validations",
        "Gradient norm, median": measured(statistics.median(norms), spec=".2f"),
        "Gradient norm, largest": measured(max(norms), spec=".2f"),
        "Block applications per token": model["depth"] * model["supervision"] * model["passes"] * (model["loops"] + 1),
        "Batches, SHA-256": ", ".join(result.batches[:12] for result in results),
    }


def main(config: Config) -> None:
    # Slow imports stay out of --help.
    from nanochat.lab.recursion import measure_seed
    from nanochat.runtime import setup

    outcome = Outcome.begin("recursion_eval", config.tag, config)
    with setup(config.device_type, config.dtype) as runtime:
        results = [measure_seed(config.tag, seed, runtime) for seed in range(1, config.seeds + 1)]
    outcome.metrics = figures(results)
    outcome.tables = [exits_table(results), arms_table(results)]
    outcome.curves = curves(results[0])
    print0(*map(terminal_table, outcome.tables), sep="\n\n")
    print0(*(f"{name}: {format_value(value)}" for name, value in outcome.metrics.items()), sep="\n")
    outcome.write()


if __name__ == "__main__":
    run(main, Config)
