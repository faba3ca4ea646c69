"""Compare recursion with its compute: five arms on the same batches, a table, and with several seeds a verdict.

python -m tracks.recursion.run                                one seed, 25 minutes on two cores
python -m tracks.recursion.run --seeds=3                      with the verdict, 75 minutes
python -m tracks.recursion.run --preset=moderate --steps=600 --depth=4 --width=256 --tag=larger --data=FOLDER

R: recursion. P: the same parameters without a loop. F: as many FLOPs per token in more layers. W: as P, for the same
seconds. L: as many applications on one state, with the loss at the end alone. No network is needed. Flags of the group
recursion (--loops=3) go to R alone, other flags to all arms. Run the same command again to resume.
"""

import json
from collections.abc import Iterator

from nanochat.config import Count, option, options, run_script
from nanochat.jobs.runner import Step
from nanochat.jobs.series import (
    SeriesSettings,
    check_flags,
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
from nanochat.log import Record, print0
from nanochat.paths import newest_manifest, stage_dir
from tracks.recursion.settings import PresetName

# Flags that differ between arms → the flag of the series to use.
OWN = {
    "--seed": "--seeds",
    "--recursion": "--preset",
    "--num-iterations": "--steps",
    "--target-seconds": "--steps",
    "--model": "--preset, --depth and --width",
}
# Flags of the arm R alone.
OF_RECURSION = ("--supervision", "--loops", "--passes", "--detached", "--supervision-base", "--improvement-reward")
USUAL = (
    "--head-dim=32 --max-seq-len=256 --window-pattern=L --total-batch-size=2048 --warmup-steps=20 --eval-every=50"
    " --eval-bytes=100000 --sample-every=-1 --save-every=50"
)
MODULES = {"R": "tracks.recursion.train"}  # arm → module that trains it, if that is not base training


@options("recursion")
class Config(SeriesSettings):
    """Train recursion, and four models with the same compute in other ways, and compare them."""

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
    given = [word for word in words_of(config) if word.partition("=")[0] not in OF_RECURSION]
    return [f"--width={config.width}", *USUAL.split(), *given]


def recursion_flags(config: Config) -> list[str]:
    """Return the flags of the arm R alone."""
    given = [word for word in words_of(config) if word.partition("=")[0] in OF_RECURSION]
    return [f"--recursion={config.preset}", *given]


def planned(config: Config, data: str, module: str, flags: list[str]) -> Record:
    """Return the plan of a run."""
    words = [f"--data={data}", f"--tokenizer-tag={config.tag}", *common_flags(config), *flags]
    return json.loads(check_flags(module, ["--json", *words]))["plan"]


def arm_flags(config: Config, data: str) -> dict[str, list[str]]:
    """Return the flags of the arms R, P, F and L; W follows from the time that R takes."""
    depth = [f"--depth={config.depth}"]
    recursive = planned(config, data, MODULES["R"], [*depth, *recursion_flags(config)])
    plain = planned(config, data, "scripts.base_train", depth)["flops_per_token"]
    deeper = planned(config, data, "scripts.base_train", [f"--depth={config.depth + 2}"])["flops_per_token"]
    # Each layer of a plain model costs the same: as many more as come next to the FLOPs of R.
    two_layers = deeper - plain
    more = (2 * (recursive["flops_per_token"] - plain) + two_layers // 2) // two_layers
    model = recursive["model"]
    sweeps = model["supervision"] * model["passes"] * (model["loops"] + 1)
    steps = [f"--num-iterations={config.steps}"]
    return {
        "R": [*depth, *steps, *recursion_flags(config)],
        "P": [*depth, *steps],
        "F": [f"--depth={config.depth + more}", *steps],
        "L": [*depth, *steps, f"--model=reference,sweeps={sweeps}"],
    }


def steps(config: Config, data: str) -> Iterator[Step]:
    """Yield the steps of the series."""
    yield tokenizer_step(config, data)
    launch = launch_on_all_gpus()

    def arm(name: str, seed: int, flags: list[str]) -> Step:
        module = MODULES.get(name, "scripts.base_train")
        words = [*common_flags(config), *flags, f"--seed={seed}"]
        tag = f"{config.tag}-{name}-{seed}"
        return training_step(f"{name}-{seed}", module, words, tag, tokenizer_tag=config.tag, data=data, launch=launch)

    arms = arm_flags(config, data)
    for seed in range(1, config.seeds + 1):
        for name, flags in arms.items():
            yield arm(name, seed, flags)
        seconds = training_seconds("base_train", f"{config.tag}-R-{seed}")
        # A run that ends by the clock would read the default number of shards.
        shards = newest_manifest(stage_dir("base_train", f"{config.tag}-R-{seed}"))["num_shards"]
        yield arm("W", seed, [f"--depth={config.depth}", f"--target-seconds={seconds}", f"--num-shards={shards}"])
    yield Step("comparison", ["tracks.recursion.eval", f"--tag={config.tag}", f"--seeds={config.seeds}"])
    yield report_step(config.tag, config.out)


def main(config: Config) -> None:
    data = source_of(config, "world")
    refuse_own(words_of(config), OWN)
    flags = [f"--data={data}", f"--tokenizer-tag={config.tag}", f"--depth={config.depth}", *common_flags(config)]
    plans = [check_flags(MODULES["R"], [*flags, *recursion_flags(config)]), check_flags("scripts.base_train", flags)]
    if "--dry-run" in flags:
        print0(*plans, sep="\n\n")
        return
    run_series("recursion", config.tag, steps(config, data))


if __name__ == "__main__":
    run_script(main)
