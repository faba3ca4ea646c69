"""Compare recursion with models that spend the same compute in another way, as tracks.recursion.run trains them.

python -m tracks.recursion.eval --tag=recursion --seeds=3

Run the same command again to resume: the refits of a seed are kept until its R, or a setting of theirs, is another.
"""

from nanochat.config import Count, option, options, run_script
from nanochat.log import print0
from nanochat.outcome import Outcome
from nanochat.settings import DeviceSettings, TagSettings


@options("run")
class Config(DeviceSettings, TagSettings):
    """Compare the runs TAG-R-1, TAG-P-1 and so on: exits, refinements, differences, and a verdict over seeds."""

    tag = option("recursion", "prefix of the runs' tags")
    seeds: Count = option(1, "compare the seeds 1 to N", least=1)
    shapes: str = option("", "shapes of F that had a run, as the series names them, like deep,wide (default: only one)")


def main(config: Config) -> None:
    from nanochat.runtime import setup
    from tracks.recursion.study import (
        SeedResult,
        figures,
        pictures,
        read_seeds,
        read_shapes,
        refit_seed,
        tables,
    )

    outcome = Outcome.begin("recursion_eval", config.tag, config)
    seeds = read_seeds(config.tag, config.seeds)
    shapes = read_shapes(config.tag, seeds, config.shapes)
    results = []
    with setup(config.device_type, config.dtype) as runtime:
        for seed, arms in enumerate(seeds, 1):
            print0(f"seed {seed} of {config.seeds}")
            found = refit_seed(config.tag, seed, arms["R"], runtime)
            results.append(SeedResult(arms, found.first, found.last, found.steps, found.depth))
    outcome.metrics = figures(results)
    outcome.tables = tables(results, shapes)
    outcome.curves = pictures(results[0])
    outcome.finish()


if __name__ == "__main__":
    run_script(main)
