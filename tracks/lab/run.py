"""Compare mixes of chat data over bases and seeds: a matrix with errors, a recommendation, held-out scores at the end.

python -m tracks.lab.run --spec=mix.toml --plan
python -m tracks.lab.run --spec=mix.toml --jobs=2
python -m tracks.lab.run --spec=mix.toml --bases=small
python -m tracks.lab.run --spec=mix.toml --engine=slurm --jobs=8 --gpus=1
python -m tracks.lab.run --spec=mix.toml --final
python -m tracks.lab.run --spec=mix.toml --kind=rates --plan
python -m tracks.lab.run --spec=mix.toml --kind=rates --keep=none
python -m tracks.lab.run --spec=mix.toml --kind=variance
"""

from typing import Literal

from nanochat.config import Count, option, options, run_script
from tracks.lab.engines import EngineName


@options("lab")
class Config:
    """Run a lab: the same stage on several bases with several mixes, rates and seeds, and what they show."""

    spec: str = option("", "TOML file that describes the lab; tracks/lab/README.md has its keys")
    kind: Literal["mixes", "rates", "variance"] = option(
        "mixes", "compare mixes, search for the best rate of each mix, or measure the noise of evaluations"
    )
    tag: str = option(
        "", "name of the lab, and of its folder (default: that of the file, with the kind)", in_card=False
    )
    bases: str = option("", "bases of the spec to compare mixes on, separated by commas (default: all)")
    plan: bool = option(
        False,
        "print the plan, and the smallest difference each benchmark can show, or the runs of a search, and stop",
        in_card=False,
    )
    jobs: Count = option(1, "runs at the same time", least=1, in_card=False)
    engine: EngineName = option("local", "where to run: this machine, a Ray cluster or Slurm", in_card=False)
    gpus: Count = option(-1, "GPUs of each run (-1: one, if this machine has any)", in_card=False)
    keep: Literal["all", "best", "none"] = option(
        "all", "checkpoints to keep of finished runs (best: the recommended, or those at the best rate)"
    )
    final: bool = option(False, "evaluate the recommended mixes on the held-out benchmarks")


def main(config: Config) -> None:
    from tracks.lab.kinds import run_lab  # pydantic, an extra, and numpy are slow

    run_lab(config)


if __name__ == "__main__":
    run_script(main)
