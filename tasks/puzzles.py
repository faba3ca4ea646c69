"""Puzzles that need several steps of thought: pointers to follow, a small Sudoku, a maze. No file is read.

Problems follow from a seed alone. A list, a filled board or a maze belongs to one split: no problem of the test shares
one with training. Verdicts check whether an answer solves the problem, so every solution counts.
"""

import re
from functools import cache
from itertools import permutations, product
from random import Random
from textwrap import fill
from zlib import crc32

from nanochat.paths import text_sha256
from tasks.common import DataSet, Task, exchange

HELD_OUT = 8  # one board in this many belongs to the test split
ROWS = {"train": 20_000, "test": 1_000}
NAMES = "ABCDEFGHI"  # of the places in a list of pointers
TRAINED_HOPS, NEW_HOPS = (1, 2, 3, 4, 6, 8), (5, 7)
LEAST_GIVEN, MOST_GIVEN = 6, 12  # cells of a Sudoku
# Cells with walls between and around them; a line has 12 characters, its end included.
MAZE = ("#" * 11 + "\n" + "#.#.#.#.#.#\n") * 5 + "#" * 11
CELLS = [place for place, mark in enumerate(MAZE) if mark == "."]
MOVES = {"U": -12, "D": 12, "L": -1, "R": 1}  # name -> distance in the text


class Puzzle(Task):
    """A kind of puzzle: `board` gives a random one. A row is a board and a seed for the other choices in a problem."""

    def open_rows(self) -> list[list]:
        random = Random(type(self).__name__)
        rows = []
        while len(rows) < ROWS[self.split]:
            board = self.board(random)
            if (crc32(board.encode()) % HELD_OUT == 0) == (self.split == "test"):
                rows.append([board, random.getrandbits(32)])
        return rows

    def hashes(self) -> dict[str, str]:
        return {"boards": text_sha256("\n".join(f"{board} {seed}" for board, seed in self.rows))}


# ---- pointers ----


class Hops(Puzzle):
    """Follow pointers: each name points to another one; the place after some hops, a ">" each, is asked for."""

    def board(self, random: Random) -> str:
        """Return the names that the names in order point to: one cycle, so that few hops never lead back."""
        cycle = random.sample(NAMES, len(NAMES))
        # The first name is -len(cycle) too, and follows the last.
        return "".join(cycle[cycle.index(name) + 1 - len(cycle)] for name in NAMES)

    def conversation(self, board: str, seed: int) -> dict:
        random = Random(seed)
        # The test asks for numbers of hops that training never has.
        hops = random.choice(TRAINED_HOPS if self.split == "train" else NEW_HOPS)
        place = start = random.choice(NAMES)
        for _ in range(hops):
            place = board[NAMES.index(place)]
        pointers = list(zip(NAMES, board, strict=True))
        random.shuffle(pointers)
        listed = " ".join(name + target for name, target in pointers)
        return {**exchange(f"{listed} {start}{'>' * hops}", place), "category": f"{hops} hops"}


# ---- Sudoku ----


class Sudoku(Puzzle):
    """Fill a board of 4 x 4 cells: each row, column and quarter has the digits 1 to 4."""

    def board(self, random: Random) -> str:
        """Return the 16 digits of a filled board."""
        return random.choice(filled_boards())

    def conversation(self, board: str, seed: int) -> dict:
        random = Random(seed)
        shown = "." * 16
        # A second solution could be a board of training.
        while len(solutions(shown)) > 1:
            given = set(random.sample(range(16), random.randint(LEAST_GIVEN, MOST_GIVEN)))
            shown = "".join(digit if place in given else "." for place, digit in enumerate(board))
        return exchange(*(fill(" ".join(cells), len("1 2 3 4")) for cells in (shown, board)))

    def evaluate(self, conversation: dict, completion: str) -> bool:
        """Return True if the completion fills the board by the rules; white space does not count."""
        shown = conversation["messages"][0]["content"]
        return "".join(completion.split()) in solutions("".join(shown.split()))


def solutions(shown: str) -> list[str]:
    """Return the filled boards that agree with a board; a dot in it stands for any digit."""
    return [board for board in filled_boards() if re.fullmatch(shown, board)]


@cache
def filled_boards() -> list[str]:
    """Return all 288 boards that keep the rules."""
    rows = ["".join(row) for row in permutations("1234")]
    # Two rows whose quarters have four digits each, and two such halves whose columns have them.
    halves = [a + b for a, b in product(rows, rows) if len({*a[:2], *b[:2]}) == 4]
    return [top + low for top, low in product(halves, halves) if all(len({*(top + low)[i::4]}) == 4 for i in range(4))]


# ---- mazes ----


class Maze(Puzzle):
    """Find a way through a maze: moves U, D, L and R from S to E."""

    def board(self, random: Random) -> str:
        """Return the lines of a maze in which one way leads from any cell to any other."""
        grid = list(MAZE)
        path = [random.choice(CELLS)]
        unseen = {*CELLS} - {*path}
        while path:
            place = path[-1]
            free = [step for step in MOVES.values() if place + 2 * step in unseen]
            if free:
                step = random.choice(free)
                grid[place + step] = "."
                path.append(place + 2 * step)
                unseen.remove(path[-1])
            else:
                path.pop()
        return "".join(grid)

    def conversation(self, board: str, seed: int) -> dict:
        start, end = Random(seed).sample(CELLS, 2)
        ways = {start: ""}  # cell -> the moves that lead to it
        for place in (waiting := [start]):
            for move, step in MOVES.items():
                if board[place + step] != "#" and place + step not in ways:
                    ways[place + step] = ways[place] + move
                    waiting.append(place + step)
        grid = list(board)
        grid[start], grid[end] = "S", "E"
        return exchange("".join(grid), " ".join(ways[end]))

    def evaluate(self, conversation: dict, completion: str) -> bool:
        """Return True if the moves lead from S to E without a wall."""
        grid = conversation["messages"][0]["content"]
        place = grid.index("S")
        for move in completion.split():
            place = place + MOVES[move] if move in MOVES else 0  # the first character is a wall
            if grid[place] == "#":
                return False
        return grid[place] == "E"


SETS = {
    "Hops": DataSet(task=Hops, splits="train test", baseline=1 / (len(NAMES) - 1)),
    "Sudoku-4": DataSet(task=Sudoku, splits="train test"),
    "Maze": DataSet(task=Maze, splits="train test"),
}
