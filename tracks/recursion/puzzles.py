"""A puzzle that needs several steps of thought: a small Sudoku. No file is read.

Problems follow from a seed alone. A filled board belongs to one split: no problem of the test shares one with training.
"""

from functools import cache
from itertools import permutations, product
from random import Random
from textwrap import fill
from zlib import crc32

from nanochat.chat import text_of
from nanochat.protocols import Conversation
from tasks.common import TEST, TRAIN, DataSet, Task, exchange

HELD_OUT = 8  # one board in this many belongs to the test split
ROWS = {"train": 20_000, "test": 1_000}
LEAST_GIVEN = 6  # cells
MOST_GIVEN = 12


class Sudoku(Task):
    """Fill a board of 4 x 4 cells: each row, column and quarter has the digits 1 to 4.

    A row is the 16 digits of a filled board and a seed for the cells that are given.
    """

    def open_rows(self) -> list[list[str | int]]:
        random = Random("Sudoku")
        rows = []
        while len(rows) < ROWS[self.split]:
            board = random.choice(filled_boards())
            if (crc32(board.encode()) % HELD_OUT == 0) == (self.split == "test"):
                rows.append([board, random.getrandbits(32)])
        return rows

    def conversation(self, board: str, seed: int) -> Conversation:
        random = Random(seed)
        shown = "." * 16
        # A second solution could be a board of training.
        while len(solutions(shown)) > 1:
            given = set(random.sample(range(16), random.randint(LEAST_GIVEN, MOST_GIVEN)))
            shown = "".join(digit if place in given else "." for place, digit in enumerate(board))
        return exchange(*(fill(" ".join(cells), len("1 2 3 4")) for cells in (shown, board)))

    def evaluate(self, conversation: Conversation, completion: str) -> bool:
        """Return True if the completion fills the board by the rules; white space does not count."""
        shown = text_of(conversation["messages"][0])
        return "".join(completion.split()) in solutions("".join(shown.split()))


def solutions(shown: str) -> list[str]:
    """Return the filled boards that agree with a board of 16 cells; a dot in it stands for any digit."""
    boards = filled_boards()
    left = (1 << len(boards)) - 1  # a bit for each board
    for cell, digit in enumerate(shown):
        if digit != ".":
            left &= boards_with().get((cell, digit), 0)
    return [board for number, board in enumerate(boards) if left >> number & 1]


@cache
def boards_with() -> dict[tuple[int, str], int]:
    """Return the filled boards that have a digit in a cell, as bits: a test of all boards by one pattern is slow."""
    found: dict[tuple[int, str], int] = {}
    for number, board in enumerate(filled_boards()):
        for place in enumerate(board):
            found[place] = found.get(place, 0) | 1 << number
    return found


@cache
def filled_boards() -> list[str]:
    """Return all 288 boards that keep the rules."""
    rows = ["".join(row) for row in permutations("1234")]
    # Two rows whose quarters have four digits each, and two such halves whose columns have them.
    halves = [a + b for a, b in product(rows, rows) if len({*a[:2], *b[:2]}) == 4]
    return [top + low for top, low in product(halves, halves) if all(len({*(top + low)[i::4]}) == 4 for i in range(4))]


# nanochat/registry.py lists the name.
TASKS = {"Sudoku-4": DataSet(task=Sudoku, splits=(TRAIN, TEST))}
