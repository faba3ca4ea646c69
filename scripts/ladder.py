"""Models at several depths and seeds with one recipe, and how much cheaper another recipe is, with an interval.

python -m scripts.ladder --tag=before                                     depths 2, 4 and 6, each with three seeds
python -m scripts.ladder --tag=changed --matrix-lr=0.03                   a flag of scripts.base_train, for all runs
python -m scripts.ladder --compare before changed                         the compute multiplier at each depth
python -m scripts.ladder --compare ~/experiments/theirs/curve.log changed  a curve.log of the public nanochat

The first of two ladders is the baseline. Run the same command again to resume: finished models are not trained again.
"""

import json
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
from nanochat.ladder import compare_ladders, find_ladder, leave_ladder
from nanochat.log import print0, terminal_table
from nanochat.multiplier import LEVEL


@options("ladder")
class Config(SeriesSettings):
    """Train models at several depths and seeds, or compare two such ladders."""

    tag = option("ladder", "name of the ladder, and the beginning of its runs' tags")
    depths: str = option("2,4,6", "depths, separated by commas")
    seeds: str = option("1,2,3", "a run at each depth for each of these seeds, separated by commas")
    compare: tuple[str, ...] = option(
        (), "two ladders, the baseline first: tags, curve.log files or their folders", group="comparison", in_card=False
    )
    level: float = option(
        LEVEL, "share of intervals that have the true multiplier", group="comparison", below=1, in_card=False
    )
    json: bool = option(False, "print the comparison as JSON alone", group="comparison", in_card=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.compare) not in (0, 2):
            raise UserError(f"--compare needs two ladders, the baseline first, not {len(self.compare)}")
        if self.compare and self.flags:
            raise UserError(f"--compare trains nothing, so there is no use for {self.flags}")
        if not self.compare and (self.json or self.level != LEVEL):
            raise UserError("--json and --level are for a comparison: add --compare ONE OTHER")


def steps(config: Config, data: str, depths: list[int], seeds: list[int]) -> Iterator[Step]:
    """Yield the steps of the ladder: the whole curve with one seed, then with the next one."""
    from nanochat.scaling import scaled_size  # slow, and a comparison does without it

    yield tokenizer_step(config, data)
    launch = launch_on_all_gpus()
    finished = []
    for seed in seeds:
        for depth in depths:
            name = f"s{seed}-d{depth}"
            tag = f"{config.tag}-{name}"
            flags = [f"--depth={depth}", f"--seed={seed}", *words_of(config)]
            yield training_step(
                name, "scripts.base_train", flags, tag, tokenizer_tag=config.tag, data=data, launch=launch
            )
            finished.append(tag)
        leave_ladder(config, config.tag, finished, show=seed == seeds[-1], scaled_size=scaled_size)
    yield report_step(config.tag, config.out)


def main(config: Config) -> None:
    if config.compare:
        compare(config)
        return
    data = source_of(config, "auto")
    words = words_of(config)
    refuse_own(words, {"--depth": "--depths", "--seed": "--seeds"})
    if "--eval-every=-1" in words:
        raise UserError("--eval-every=-1 measures no bits per byte, and a ladder is a curve of them")
    refuse_equal_flops(words)
    depths = parse_numbers("--depths", config.depths, "depths like 2,4,6")
    seeds = parse_numbers("--seeds", config.seeds, "seeds like 1,2,3", least=0)
    for flag, numbers in (("--depths", depths), ("--seeds", seeds)):
        twice = [number for number in numbers if numbers.count(number) > 1]
        if twice:
            raise UserError(f"{flag} names {twice[0]} twice: each run counts once")
    if len(depths) == 1:
        raise UserError(f"--depths={config.depths} is one depth alone: a ladder has two or more, like --depths=2,4,6")
    plans = plan_depths(config, data, depths)
    if "--dry-run" in words:
        print0(*plans, f"Each depth is trained with {len(seeds)} seeds: {config.seeds}", sep="\n\n")
        return
    run_series("ladder", config.tag, steps(config, data, depths, seeds))


def compare(config: Config) -> None:
    """Print the compute multipliers of two ladders."""
    baseline, candidate = map(find_ladder, config.compare)
    found = compare_ladders(baseline, candidate, config.level)
    if config.json:
        print0(json.dumps(found.record(), indent=2, ensure_ascii=False))
    else:
        print0(terminal_table(found.table()))


if __name__ == "__main__":
    run_script(main)
