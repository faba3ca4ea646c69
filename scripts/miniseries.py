"""Models at several depths, each trained with tokens in proportion to its size: a table, and a plot against FLOPs.

python -m scripts.miniseries                                  depths 8 to 20
python -m scripts.miniseries --depths=8,10,12 --tag=changed   other depths, beside the first
python -m scripts.miniseries --matrix-lr=0.03                 a flag of scripts.base_train, for all depths

Does a change help at every size? Run the same command again to resume: finished models are not trained again.
"""

from collections.abc import Iterator

from nanochat.config import option, options, run_script
from nanochat.errors import UserError
from nanochat.jobs.runner import Step
from nanochat.jobs.series import (
    SeriesSettings,
    launch_on_all_gpus,
    parse_numbers,
    plan_depths,
    refuse_equal_flops,
    refuse_own,
    report_step,
    run_series,
    source_of,
    tokenizer_step,
    training_step,
    words_of,
)
from nanochat.log import print0


@options("miniseries")
class Config(SeriesSettings):
    """Train models at several depths, and compare them."""

    tag = option("miniseries", "name of the series, and the beginning of its runs' tags")
    depths: str = option("8,10,12,14,16,18,20", "depths, separated by commas")


def steps(config: Config, data: str) -> Iterator[Step]:
    """Yield the steps of the series."""
    yield tokenizer_step(config, data)
    launch = launch_on_all_gpus()
    tags = []
    for depth in config.depths.split(","):
        tag = f"{config.tag}-d{depth}"
        tags.append(tag)
        flags = [f"--depth={depth}", *words_of(config)]
        yield training_step(
            f"d{depth}", "scripts.base_train", flags, tag, tokenizer_tag=config.tag, data=data, launch=launch
        )
    runs = f"--runs={','.join(tags)}"
    yield Step("comparison", ["bench.scaling", "--kind=miniseries", f"--tag={config.tag}", runs])
    yield report_step(config.tag, config.out)


def main(config: Config) -> None:
    data = source_of(config, "auto")
    words = words_of(config)
    refuse_own(words, {"--depth": "--depths"})
    if "--eval-every=-1" in words:
        raise UserError("--eval-every=-1 measures no bits per byte, by which a miniseries compares its models")
    refuse_equal_flops(words)
    depths = parse_numbers("--depths", config.depths, "depths like 8,10,12")
    plans = plan_depths(config, data, depths)
    if "--dry-run" in words:
        print0(*plans, sep="\n\n")
        return
    run_series("miniseries", config.tag, steps(config, data))


if __name__ == "__main__":
    run_script(main)
