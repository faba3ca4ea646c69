"""Two phases of a recursive model on 8 H100, as the guide to recursion has them.

python -m tracks.recursion.phases --phase=fast      1,000 steps with the preset aggressive
python -m tracks.recursion.phases --phase=extreme   5,000 steps of 256 rows with the preset extreme

The second one is worth its cost if the first one ended without an alarm. A report card ends the run. Other flags go to
tracks.recursion.train. Run the same command again to resume.
"""

from collections.abc import Iterator
from typing import Literal

from nanochat.config import option, options, run_script
from nanochat.jobs.runner import Step
from nanochat.jobs.series import (
    SeriesSettings,
    check_flags,
    launch_on_all_gpus,
    report_step,
    run_series,
    source_of,
    tokenizer_step,
    training_step,
    words_of,
)
from nanochat.log import print0

# Phase → flags. Nothing here was measured on a GPU yet.
PhaseName = Literal["fast", "extreme"]  # the keys
PHASES = {
    "fast": f"--recursion=aggressive --depth=12 --total-batch-size={512 * 2048} --num-iterations=1000 --eval-every=50",
    "extreme": f"--recursion=extreme --depth=12 --total-batch-size={256 * 2048} --num-iterations=5000 --eval-every=250",
}
MODULE = "tracks.recursion.train"


@options("phases")
class Config(SeriesSettings):
    """Train one of two phases of a recursive model."""

    tag = option("h100", "name of the tokenizer, and the beginning of the run's tag")
    phase: PhaseName = option("fast", "fast: does refinement work? extreme: worth its cost if it does")
    out = option("", "file for the report card (default: TAG-PHASE.md in the current folder)")


def steps(config: Config, data: str, flags: list[str]) -> Iterator[Step]:
    """Yield the steps of the series."""
    yield tokenizer_step(config, data)
    tag = f"{config.tag}-{config.phase}"
    launch = launch_on_all_gpus()
    yield training_step(config.phase, MODULE, flags, tag, tokenizer_tag=config.tag, data=data, launch=launch)
    yield report_step(tag, config.out)


def main(config: Config) -> None:
    data = source_of(config, "auto")
    flags = [*PHASES[config.phase].split(), *words_of(config)]
    print0(check_flags(MODULE, [f"--data={data}", f"--tokenizer-tag={config.tag}", *flags]))
    if "--dry-run" not in flags:
        run_series("phases", config.tag, steps(config, data, flags))


if __name__ == "__main__":
    run_script(main)
