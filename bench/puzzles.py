"""The table that ends runs/puzzles.sh: solved boards and steps of each arm, with all seeds that are there.

python -m bench.puzzles TAG
"""

import sys

from nanochat.log import print0, table_of, terminal_table
from nanochat.outcome import Outcome
from nanochat.paths import base_dir
from nanochat.statistics import interval


def figures(stage: str, tag: str, name: str):
    """Return a figure of a stage's runs, by seed."""
    places = sorted(base_dir().glob(f"{stage}/{tag}-*/outcome.json"))
    return [Outcome.load(place).figure(name) for place in places]


if __name__ == "__main__":
    rows = []
    for arm in "RPW":
        tag = f"{sys.argv[1]}-{arm}"
        exact = figures("chat_eval_sft", tag, "Sudoku-4")
        steps = figures("chat_sft", tag, "Number of iterations")
        rows.append([arm, *interval(exact), sum(steps) / len(steps), " ".join(map(str, exact))])
    columns = "Arm | Exact:.3f | ± 95 %:.3f | Steps:,.0f | Each seed"
    print0(terminal_table(table_of("Sudoku-4: 200 held-out problems", columns, rows)))
