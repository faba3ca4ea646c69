"""The table that ends runs/puzzles.sh: solved boards, steps and seconds of each arm.

python -m bench.puzzles --tag=puzzles --seeds=3
"""

from nanochat.config import Count, option, options, run
from nanochat.lab.intervals import interval
from nanochat.log import print0, table_of, terminal_table
from nanochat.outcome import Outcome
from nanochat.paths import base_dir, read_json

ARMS = "RPW"
COLUMNS = "Arm | Exact:.3f | ± 95 %:.3f | Steps:,.0f | Seconds:,.0f | Each seed"


@options("table")
class Config:
    """Print the table of a finished series."""

    tag: str = option("puzzles", "tag of the series")
    seeds: Count = option(3, "seeds of each arm", least=1)


def main(config: Config) -> None:
    rows = []
    for arm in ARMS:
        tags = [f"{config.tag}-{arm}-{seed}" for seed in range(1, config.seeds + 1)]
        outcomes = [Outcome.load(base_dir() / "chat_eval_sft" / tag / "outcome.json") for tag in tags]
        exact = [outcome.metrics["Sudoku-4"]["value"] for outcome in outcomes]
        # A stage may have several checkpoints; the last one is the model that was scored.
        checkpoints = [max((base_dir() / "chat_sft" / tag).glob("step_*/manifest.json")) for tag in tags]
        loops = [read_json(path)["loop"] for path in checkpoints]
        steps, seconds = (sum(loop[key] for loop in loops) / len(loops) for key in ("step", "seconds"))
        rows.append([arm, *interval(exact), steps, seconds, " ".join(map(str, exact))])
    print0(terminal_table(table_of("Sudoku-4: 200 held-out problems", COLUMNS, rows)))


if __name__ == "__main__":
    run(main, Config)
