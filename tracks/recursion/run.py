"""Compare recursion with its compute: six arms, a table, and with several seeds a verdict.

python -m tracks.recursion.run                                one seed
python -m tracks.recursion.run --seeds=3                      with the verdict
python -m tracks.recursion.run --seeds=3 --dry-run            the time of each arm, and of all of them
python -m tracks.recursion.run --depth=4 --width=256 --steps=2000 --seeds=3 --tag=larger --data=FOLDER

R: recursion. D: as R, each update scaled by applications^-1/2. P: the same parameters without a loop. F: as many FLOPs
per token without a loop, in the best of three shapes, which runs with a seed of their own choose. W: as P, for the same
seconds. L: as many applications on one state, with the loss at the end alone. No network is needed. Flags of the group
recursion (--loops=3) go to R and D alone, other flags to all arms. Run the same command again to resume.
"""

import json
from collections.abc import Iterator

from nanochat.config import Count, option, options, parse, run_script
from nanochat.data.corpus import CORPORA, parse_data
from nanochat.errors import UserError
from nanochat.jobs.runner import Step
from nanochat.jobs.series import (
    SeriesSettings,
    check_flags,
    figure,
    flags_among,
    launch_on_all_gpus,
    refuse_own,
    report_step,
    run_series,
    source_of,
    tokenizer_step,
    training_seconds,
    training_step,
    words_of,
)
from nanochat.log import Record, print0, table_of, terminal_table
from nanochat.paths import newest_manifest, stage_dir
from tracks.recursion.refits import measured_seconds, refit_time
from tracks.recursion.settings import PresetName, given, with_preset
from tracks.recursion.shapes import BPB, SHAPE_SEED, Costs, Shape, ShapeName, shapes_of_equal_cost
from tracks.recursion.train import Config as TrainConfig

# Flags that differ between arms → the flag of the series to use.
OWN = {
    "--seed": "--seeds",
    "--recursion": "--preset",
    "--num-iterations": "--steps",
    "--target-seconds": "--steps",
    "--model": "--preset, --depth and --width",
    "--residual-power": "the arm D",
}
# Flags of the arms R and D alone.
OF_RECURSION = (
    "--supervision",
    "--loops",
    "--passes",
    "--detached",
    "--supervision-base",
    "--improvement-reward",
    "--curriculum",
)
DEEP_LOOP = 0.5  # power of the arm D: arXiv 2607.13491, for layers that share their weights
USUAL = (
    "--head-dim=32 --max-seq-len=256 --window-pattern=L --total-batch-size=2048 --warmup-steps=20 --eval-every=50"
    " --eval-bytes=100000 --sample-every=-1 --save-every=50 --grad-clip=1"  # base training clips nothing by itself
)
MODULES = dict.fromkeys("RD", "tracks.recursion.train")  # arm → module that trains it, if that is not base training


@options("recursion")
class Config(SeriesSettings):
    """Train recursion, and models with the same compute in other ways, and compare them."""

    tag = option("recursion", "name of the series, and the beginning of its runs' tags")
    data = option("world", "folder of text, name of a corpus, or a mix of them")
    vocab_size = 1024
    preset: PresetName = option("aggressive", "preset of recursion")
    seeds: Count = option(1, "seeds 1 to N", least=1)
    steps: Count = option(300, "steps of each arm", least=1)
    depth: Count = option(2, "layers of R, P, W and L", least=1)
    width: Count = option(128, "channels of every arm", least=1)


def common_flags(config: Config) -> list[str]:
    """Return the flags of all arms; those that were given win."""
    _, given = flags_among(words_of(config), OF_RECURSION)
    return [f"--width={config.width}", *USUAL.split(), *given]


def recursion_flags(config: Config) -> list[str]:
    """Return the flags of the arms R and D alone."""
    given, _ = flags_among(words_of(config), OF_RECURSION)
    return [f"--recursion={config.preset}", *given]


def recursion_settings(config: Config) -> TrainConfig:
    """Return the settings of R; a UserError for flags that it cannot have."""
    words = [f"--depth={config.depth}", f"--num-iterations={config.steps}", *common_flags(config)]
    return with_preset(parse(TrainConfig, [*words, *recursion_flags(config)]))


def check_comparison(config: Config) -> None:
    """Raise a UserError for settings of R that the other arms, or the comparison at the end, cannot go with."""
    if any(word.partition("=")[0] == "--carry" for word in words_of(config)):
        raise UserError(
            "--carry reads less text in as many steps, and the arms are compared on the same text: leave it out;"
            " python -m tracks.recursion.train --carry trains one model"
        )
    settings = recursion_settings(config)
    if given(settings.supervision) < 2:
        raise UserError("one exit has no refinement, which the comparison is about: use --supervision=2 or more")
    if settings.eval_every < 0:
        raise UserError(
            f"--eval-every={settings.eval_every} makes no validation, and the arms are compared by the last one: leave"
            " it out, or use --eval-every=0 for one before and one after training"
        )
    if settings.sweeps % 1:
        raise UserError(
            f"--curriculum={settings.curriculum} runs each layer {settings.sweeps:.4g} times for a token in the mean,"
            " and the arm L runs its layers as often, a whole number of times: choose parts with such a mean, like"
            " 2,3,4"
        )


def estimated(config: Config, data: str, module: str, flags: list[str]) -> Record:
    """Return the dry run of a run: its plan, and the estimate of its cost."""
    words = [f"--data={data}", f"--tokenizer-tag={config.tag}", *common_flags(config), *flags]
    return json.loads(check_flags(module, ["--json", *words]))


def planned(config: Config, data: str, module: str, flags: list[str]) -> Record:
    """Return the plan of a run."""
    return estimated(config, data, module, flags)["plan"]


def plain_shapes(config: Config, data: str, recursive: Record, *flags: str) -> dict[ShapeName, Shape]:
    """Return the shapes that F may have. recursive: the plan of R. flags: more of them for the plans."""

    def flops(depth: int, width: int) -> float:
        words = [*Shape(depth, width).flags, *flags]
        return planned(config, data, "scripts.base_train", words)["flops_per_token"]

    depth = config.depth
    width = config.width
    costs = Costs.fitted(depth, width, flops(depth, width), flops(depth + 2, width), flops(depth, 2 * width))
    head_dim = width // recursive["model"]["heads"]
    return shapes_of_equal_cost(recursive["flops_per_token"], costs, depth, width, head_dim)


def shape_flags(config: Config, shape: Shape) -> list[str]:
    """Return the flags of a plain model of a shape; all arms have the width of R anyway."""
    return [flag for flag in shape.flags if flag != f"--width={config.width}"]


def arm_flags(config: Config, plain: Shape) -> dict[str, list[str]]:
    """Return the flags of the arms; W follows from the time that R takes. plain: the shape of F."""
    depth = [f"--depth={config.depth}"]
    sweeps = int(recursion_settings(config).sweeps)  # a curriculum trains fewer than the model has
    steps = [f"--num-iterations={config.steps}"]
    return {
        "R": [*depth, *steps, *recursion_flags(config)],
        "D": [*depth, *steps, *recursion_flags(config), f"--residual-power={DEEP_LOOP}"],
        "P": [*depth, *steps],
        "F": [*shape_flags(config, plain), *steps],
        "L": [*depth, *steps, f"--model=reference,sweeps={sweeps}"],
    }


def time_table(config: Config, data: str) -> Record:
    """Return the table of the runs and their hours, as their dry runs estimate them, and of the refits."""
    vocabulary = f"--vocab-size={config.vocab_size}"  # no tokenizer has to be there

    def estimate(arm: str, flags: list[str]) -> Record:
        module = MODULES.get(arm, "scripts.base_train")
        return estimated(config, data, module, [vocabulary, *flags])["estimate"]

    recursive = planned(config, data, MODULES["R"], [vocabulary, f"--depth={config.depth}", *recursion_flags(config)])
    shapes = plain_shapes(config, data, recursive, vocabulary)
    runs = [
        (f"F, {name}", 1, estimate("F", [*shape_flags(config, shape), f"--num-iterations={config.steps}"])["seconds"])
        for name, shape in shapes.items()
    ]
    found = {arm: estimate(arm, flags) for arm, flags in arm_flags(config, shapes["deep"]).items()}
    runs += [(arm, config.seeds, one["seconds"]) for arm, one in found.items()]
    runs.append(("W", config.seeds, found["R"]["seconds"]))

    training = next((part["seconds"] for part in found["R"]["parts"] if part["name"] == "training"), None)
    if training is not None:
        training /= recursion_settings(config).share_of_flops  # a refit runs all exits, a curriculum fewer
    alike = {"depth": config.depth, "width": config.width, "num_iterations": config.steps}
    refits, basis = refit_time(measured_seconds(config.tag, config.seeds, alike), training, config.steps)

    rows = [[arm, count, one, hours_of(count, one)] for arm, count, one in runs]
    all_runs = total_of([hours_of(count, one) for _, count, one in runs])
    all_refits = hours_of(config.seeds, refits)
    rows.append(["all", sum(count for _, count, _ in runs), None, all_runs])
    rows.append(["refits of R", config.seeds, refits, all_refits])
    rows.append(["all and refits", None, None, total_of([all_runs, all_refits])])
    note = f"The refits of R's first and last exit, for each seed, come on top. {basis}"
    return table_of("Runs, by their dry runs", "Arm | Runs | Seconds of one:,.0f | Hours:.2f", rows, note)


def hours_of(count: int, seconds: float | None) -> float | None:
    """Return the hours of so many runs; None if their time is unknown."""
    return None if seconds is None else count * seconds / 3600


def total_of(hours: list[float | None]) -> float | None:
    """Return the sum; None if one is unknown."""
    known = [one for one in hours if one is not None]
    return sum(known) if len(known) == len(hours) else None


def steps(config: Config, data: str) -> Iterator[Step]:
    """Yield the steps of the series."""
    if len({source for source, _ in parse_data(data)} & set(CORPORA)) > 1:  # of each its own number of shards
        raise UserError(
            f"--data={data} names several data sets on the hub, and W is told one number of shards: use one"
        )
    yield tokenizer_step(config, data)
    launch = launch_on_all_gpus()

    def arm(name: str, seed: int, flags: list[str]) -> Step:
        module = MODULES.get(name, "scripts.base_train")
        words = [*common_flags(config), *flags, f"--seed={seed}"]
        tag = f"{config.tag}-{name}-{seed}"
        return training_step(f"{name}-{seed}", module, words, tag, tokenizer_tag=config.tag, data=data, launch=launch)

    recursive = planned(config, data, MODULES["R"], [f"--depth={config.depth}", *recursion_flags(config)])
    shapes = plain_shapes(config, data, recursive)
    best: ShapeName = "deep"
    if len(shapes) > 1:
        for name, shape in shapes.items():
            words = [*shape_flags(config, shape), f"--num-iterations={config.steps}"]
            yield arm(f"F-{name}", SHAPE_SEED, words)
        best = min(shapes, key=lambda name: figure("base_train", f"{config.tag}-F-{name}-{SHAPE_SEED}", BPB))
    arms = arm_flags(config, shapes[best])
    for seed in range(1, config.seeds + 1):
        for name, flags in arms.items():
            yield arm(name, seed, flags)
        seconds = training_seconds("base_train", f"{config.tag}-R-{seed}")
        # A run that ends by the clock would read the default number of shards.
        shards = newest_manifest(stage_dir("base_train", f"{config.tag}-R-{seed}"))["num_shards"]
        yield arm("W", seed, [f"--depth={config.depth}", f"--target-seconds={seconds}", f"--num-shards={shards}"])
    words = [f"--tag={config.tag}", f"--seeds={config.seeds}"]
    if len(shapes) > 1:
        words.append(f"--shapes={','.join(shapes)}")
    own = recursion_settings(config)
    words += [f"--dtype={own.dtype}", f"--device-type={own.device_type}"]  # it trains heads
    compared = [f"{name}-{seed}" for seed in range(1, config.seeds + 1) for name in (*arms, "W")]
    if len(shapes) > 1:
        compared += [f"F-{name}-{SHAPE_SEED}" for name in shapes]
    # A run that was trained again has another outcome, and is compared again; else finished refits stay.
    outcomes = [str(stage_dir("base_train", f"{config.tag}-{run}").absolute() / "outcome.json") for run in compared]
    output = f"recursion_eval/{config.tag}"
    yield Step("comparison", ["tracks.recursion.eval", *words], output=output, local=outcomes)
    yield report_step(config.tag, config.out)


def main(config: Config) -> None:
    data = source_of(config, "world")
    refuse_own(words_of(config), OWN)
    check_comparison(config)
    flags = [f"--data={data}", f"--tokenizer-tag={config.tag}", f"--vocab-size={config.vocab_size}"]
    flags += [f"--depth={config.depth}", *common_flags(config), f"--num-iterations={config.steps}"]
    plans = [check_flags(MODULES["R"], [*flags, *recursion_flags(config)]), check_flags("scripts.base_train", flags)]
    if "--dry-run" in flags:
        print0(*plans, terminal_table(time_table(config, data)), sep="\n\n")
        return
    run_series("recursion", config.tag, steps(config, data))


if __name__ == "__main__":
    run_script(main)
