"""Models at several depths for each FLOP budget: small ones see more tokens, large ones fewer.

python -m scripts.scaling_laws                                                          four budgets, about 7e19 FLOPs
python -m scripts.scaling_laws --sweeps="1e17:4,6,8 3e17:6,8,10" --tag=small            your own budgets and depths
python -m scripts.scaling_laws --data=FOLDER --out=FILE --vocab-size=N

The best size for a budget has the lowest loss; the growth law for the best size gives the tokens per parameter. Other
flags go to scripts.base_train. Run the same command again to resume: finished models are not trained again.
"""

import re
from collections.abc import Iterator

from nanochat.config import option, options, run_script
from nanochat.errors import UserError
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
    training_step,
    words_of,
)
from nanochat.log import print0

# Around the sizes that 12 tokens a parameter would give, two on each side.
SWEEPS = "1e18:8,10,12,14 2.15e18:10,12,14,16 4.64e18:12,14,16,18 1e19:14,16,18,20"


@options("laws")
class Config(SeriesSettings):
    """Train sweeps of depths at fixed FLOPs, and fit the best size of each budget."""

    tag = option("scaling", "name of the series, and the beginning of its runs' tags")
    sweeps: str = option(SWEEPS, "FLOPS:DEPTHS for each budget, separated by spaces")


def parse_sweeps(text: str) -> dict[str, list[str]]:
    """Return FLOPs → depths."""
    found = {}
    for word in text.split():
        flops, _, depths = word.partition(":")
        if not (re.fullmatch(r"\d+(\.\d+)?e\d+", flops) and re.fullmatch(r"[1-9]\d*(,[1-9]\d*)*", depths)):
            raise UserError(f"--sweeps: {word} has to be FLOPs and depths, like 1e18:8,10,12")
        if float(flops) in map(float, found):
            raise UserError(f"--sweeps names {flops} twice: write all its depths behind one colon")
        found[flops] = depths.split(",")
    if not found:
        raise UserError("--sweeps is empty: write FLOPs and depths, like 1e18:8,10,12")
    return found


def steps(config: Config, data: str) -> Iterator[Step]:
    """Yield the steps of the series."""
    yield tokenizer_step(config, data)
    launch = launch_on_all_gpus()
    tags = []
    for flops, depths in parse_sweeps(config.sweeps).items():
        for depth in depths:
            name = f"{flops}-d{depth}"
            tags.append(f"{config.tag}-{name}")
            flags = [f"--depth={depth}", f"--target-flops={flops}", *words_of(config)]
            yield training_step(
                name, "scripts.base_train", flags, tags[-1], tokenizer_tag=config.tag, data=data, launch=launch
            )
    runs = f"--runs={','.join(tags)}"
    yield Step("comparison", ["bench.scaling", "--kind=laws", f"--tag={config.tag}", runs])
    yield report_step(config.tag, config.out)


def main(config: Config) -> None:
    data = source_of(config, "auto")
    words = words_of(config)
    refuse_own(words, {"--sweep": "--sweeps", "--depth": "--sweeps", "--target-flops": "--sweeps"})
    if "--eval-every=-1" in words:
        raise UserError("--eval-every=-1 measures no bits per byte, by which the best size of a budget is found")
    tokenizer = f"--tokenizer-tag={config.tag}"
    plans = []
    for flops, depths in parse_sweeps(config.sweeps).items():
        for depth in depths:
            flags = [f"--data={data}", tokenizer, f"--depth={depth}", f"--target-flops={flops}", *words]
            plans.append(check_flags("scripts.base_train", flags))
            if "--dry-run" not in words:  # one plan shows a mistake in a flag
                break
    if "--dry-run" in words:
        print0(*plans, sep="\n\n")
        return
    run_series("scaling_laws", config.tag, steps(config, data))


if __name__ == "__main__":
    run_script(main)
