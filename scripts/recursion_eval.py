"""Compare recursion with models that spend the same compute in another way, as runs/recursion.sh trains them.

python -m scripts.recursion_eval --tag=recursion --seeds=3
"""

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nanochat.config import Count, changed, option, options, run
from nanochat.lab.intervals import interval
from nanochat.log import MetricLog, Record, duration, metric_curve, table_of
from nanochat.outcome import Metrics, Outcome, measured
from nanochat.paths import stage_dir
from nanochat.settings import DeviceSettings, Preset, TagSettings

if TYPE_CHECKING:
    from nanochat.lab.recursion import SeedResult


@options("run")
class Config(DeviceSettings, TagSettings):
    """Compare the runs TAG-R-1, TAG-P-1 and so on: exits, refinements, differences, and a verdict over seeds."""

    tag = changed("recursion", text="prefix of the runs' tags")
    seeds: Count = option(1, "compare the seeds 1 to N", least=1)


def exits_table(results: Sequence["SeedResult"]) -> Record:
    """Return the table with the bits per byte at each exit."""
    exits = zip(*(result.arms["R"].exits for result in results), strict=True)
    rows = [[i, *interval(bits)] for i, bits in enumerate(exits)]
    return table_of("Exits of R on validation text, ± 95 % over seeds", "Exit | Bits per byte:.4f | ±:.4f", rows)


def arms_table(results: Sequence["SeedResult"]) -> Record:
    """Return the table with the cost and the loss of each arm, and its difference to R."""
    from nanochat.lab.recursion import ARMS, BPB, FLOPS, PARAMETERS, SECONDS

    columns = (
        "Arm | Bits per byte:.4f | Minus R:+.4f | ±:.4f | Seconds:,.0f | Layers | Parameters:,.0f"
        " | FLOPs per token:,.0f | Tokens:,.0f | Tokens/s:,.0f | FLOPs:.2e | Model"
    )
    names = (BPB, SECONDS, PARAMETERS, FLOPS, "Tokens seen", "Tokens per second", "Total training flops")
    rows = []
    for arm, description in ARMS.items():
        runs = [result.arms[arm] for result in results]
        gain = [None, None] if arm == "R" else interval([result.gain(arm) for result in results])
        bits, seconds, *means = (statistics.fmean(run.figure(name) for run in runs) for name in names)
        rows.append([arm, bits, *gain, seconds, runs[0].outcome.config["depth"], *means, description])
    return table_of("Arms, means over seeds; differences to R ± 95 %", columns, rows)


def curves(result: "SeedResult") -> list[Record]:
    """Return the plots for a seed: exits over tokens, and all arms over FLOPs, both from the first step on."""
    [exits] = [curve for curve in result.arms["R"].outcome.curves if curve["title"] == "Validation at each exit"]
    arms = {arm: metric_curve(run.records, "val/bpb", over="total_training_flops") for arm, run in result.arms.items()}
    curves = [exits, {"title": "Arms", "x": "FLOPs", "y": "bits per byte", "series": arms}]
    for curve in curves:
        curve["title"] += ", first seed"
        curve["series"] = {name: [axis[1:] for axis in axes] for name, axes in curve["series"].items()}
    return curves


def figures(results: Sequence["SeedResult"]) -> Metrics:
    """Return the metrics for the report card."""
    from nanochat.evals.refinement import in_order, validated_exits
    from nanochat.lab.recursion import REFIT_STEPS, SECONDS, verdict

    own, refitted, both = zip(*(result.refinements for result in results), strict=True)
    gains = {arm: [result.gain(arm) for result in results] for arm in ("P", "F")}
    recursions = [result.arms["R"] for result in results]
    runs = [run for result in results for run in result.arms.values()]
    settings = recursions[0].outcome.config
    norms = [record["train/grad_norm"] for one in recursions for record in one.records if record["kind"] == "train"]
    validations = [in_order(exits) for one in recursions for exits in validated_exits(one.records)]
    return {
        "Verdict": verdict(own, refitted, gains),
        "Preset": settings["recursion"],
        **{name: settings[name] for name in (*Preset._fields, "matrix_lr", "embedding_lr")},
        "Refinement": measured(*interval(own)),
        "Refinement, first exit refitted": measured(*interval(refitted)),
        "Refinement, first and last exit refitted": measured(*interval(both)),
        "Steps of a refit": ", ".join(f"{REFIT_STEPS * sum(result.first.rounds)}" for result in results),
        "Exits in order": f"{sum(validations)} of {len(validations)} validations",
        "Gradient norm, median": measured(statistics.median(norms), spec=".2f"),
        "Gradient norm, largest": measured(max(norms), spec=".2f"),
        "Batches, SHA-256": ", ".join(result.batches[:12] for result in results),
        "Training of all arms": duration(sum(run.figure(SECONDS) for run in runs)),
        "Precision": ", ".join(sorted({run.checkpoint.manifest["dtype"] for run in runs})),
    }


def main(config: Config) -> None:
    # Slow imports stay out of --help.
    from nanochat.lab.recursion import FREE_IN_SEED, SeedResult, common_hash, open_text, read_arms, refit_exits
    from nanochat.runtime import setup

    outcome = Outcome.begin("recursion_eval", config.tag, config)
    seeds = {seed: read_arms(config.tag, seed) for seed in range(1, config.seeds + 1)}
    for arms in seeds.values():
        for arm, one in arms.items():
            one.require_settings_of(seeds[1][arm], FREE_IN_SEED)
    results = []
    with setup(config.device_type, config.dtype) as runtime:
        for seed, arms in seeds.items():
            with MetricLog(stage_dir("recursion_eval", config.tag), name=f"refit-{seed}") as log:
                corpus = open_text(arms["R"])
                batches = common_hash(arms, corpus)
                results.append(SeedResult(arms, batches, *refit_exits(arms["R"], corpus, runtime, log)))
    outcome.metrics = figures(results)
    outcome.tables = [exits_table(results), arms_table(results)]
    outcome.curves = curves(results[0])
    outcome.show()
    outcome.write()


if __name__ == "__main__":
    run(main, Config)
