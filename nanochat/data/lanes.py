"""Lanes: which documents each of them reads, in what order, and how they are packed into rows of equal length.

A row group is read as `(ids, offsets)`: document i is ids[offsets[i]:offsets[i + 1]], its `<|bos|>` first. Everything
here is decided by the data, the seed, the number of lanes and the length of a row; never by threads, ranks or time.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

UNITS_PER_LANE = 8  # of an epoch, at least, where it has that many documents
GROUPS_KEPT = 32  # row groups that several lanes share, kept in memory
WINDOW_ROWS = 128  # packed at once, at least; with short documents, WINDOW_DOCUMENTS are enough
WINDOW_DOCUMENTS = 1024
MIX_CYCLE = 1000  # rows after which the parts of a mix come in the same order again
EMPTY_EPOCHS = 40  # without a word in them, and a lane gives up

Group = tuple[np.ndarray, np.ndarray]


def shuffled(count: int, *key: int) -> np.ndarray:
    """0 … count - 1 in an order that the key alone decides, with any version of numpy.

    Keys of one purpose have one length: numpy takes (1,) and (1, 0) for the same.
    """
    # The streams of a bit generator are kept for good; what `Generator.permutation` makes of them is not.
    return np.argsort(np.random.PCG64(key).random_raw(count), kind="stable")


class Deal:
    """The endless list of units of a corpus part: every epoch all its row groups, in an order of that epoch.

    A lane reads every `lanes`-th unit of the list. Where an epoch has fewer row groups than the lanes need, each is cut
    into `stripes`, that is every stripes-th of its documents in an order of that epoch, so that lanes share it. Every
    document is in one unit of every epoch, and lanes finish an epoch at about the same time.
    """

    def __init__(self, read: Callable[[int], Group], groups: int, documents: int, lanes: int, key: tuple[int, int]):
        """read: row group by its number; documents: in all row groups together; key: seed and number of the part."""
        self.lanes, self.key = lanes, key
        self.stripes = min(-(-UNITS_PER_LANE * lanes // groups), max(1, documents // groups))
        self.units = groups * self.stripes  # of an epoch
        self._read = lru_cache(GROUPS_KEPT)(read) if self.stripes > 1 else read
        self._order = lru_cache(8)(lambda epoch: shuffled(groups, *key, 0, epoch))

    def epoch(self, lane: int, unit: int) -> int:
        return (unit * self.lanes + lane) // self.units

    def place(self, lane: int, unit: int) -> tuple[int, int, int]:
        """Epoch, row group and stripe of a lane's unit."""
        epoch, place = divmod(unit * self.lanes + lane, self.units)
        return epoch, int(self._order(epoch)[place // self.stripes]), place % self.stripes

    def unit(self, lane: int, unit: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(ids, starts, stops) of the documents of a lane's unit: document i is ids[starts[i]:stops[i]]."""
        epoch, group, stripe = self.place(lane, unit)
        ids, offsets = self._read(group)
        mine = shuffled(len(offsets) - 1, *self.key, 1, epoch, group)[stripe :: self.stripes]
        return ids, offsets[mine].astype(np.int64), offsets[mine + 1].astype(np.int64)


class Mix:
    """Which part each row of a lane comes from. Rows being equally long, shares of rows are shares of tokens.

    Every lane goes through the same cycle of parts, from a place of its own, so that shares hold within a batch too.
    """

    def __init__(self, weights: Sequence[float], lanes: int):
        said = f"the weights of the parts are {list(weights)}: "
        if not weights or min(weights) <= 0:
            raise ValueError(said + "each has to be more than 0")
        shares, cycle = np.array(weights) / sum(weights), MIX_CYCLE if len(weights) > 1 else 1
        self._order: list[int] = []  # the part of each place of the cycle
        self._given = np.zeros((cycle + 1, len(weights)), np.int64)  # rows of each part, before each place
        for place in range(cycle):
            self._order.append(int(np.argmax(shares * (place + 1) - self._given[place])))
            self._given[place + 1] = self._given[place]
            self._given[place + 1, self._order[place]] += 1
        if not self._given[-1].all():
            raise ValueError(said + f"one has less than 1/{MIX_CYCLE} of the whole")
        self._starts = [lane * cycle // lanes for lane in range(lanes)]

    def part(self, lane: int, turn: int) -> int:
        """The part of a lane's row number `turn`."""
        return self._order[(self._starts[lane] + turn) % len(self._order)]

    def rows_before(self, lane: int, turn: int) -> list[int]:
        """How many of a lane's first `turn` rows come from each part."""
        start = self._starts[lane]
        rounds, place = divmod(start + turn, len(self._order))
        return (rounds * self._given[-1] + self._given[place] - self._given[start]).tolist()


class Packing(NamedTuple):
    """Stretches of pieces in the order in which they fill rows: which piece, and from where to where of its text.

    left: what found no row, in the same form. dropped: slots of text that were cropped away.
    """

    which: list[int]
    begin: list[int]
    end: list[int]
    left: list[tuple[int, int, int]]
    dropped: int


def pack(lengths: Sequence[int], opening: int, size: int, carry: bool) -> Packing:
    """Rows of `size` slots, filled with the longest piece that fits, over and over; if none fits, the shortest is cut.

    lengths: slots of each piece, one for its bos, 2 to `size`; of pieces of one length the last comes first. The first
    `opening` pieces, together shorter than a row, begin the first row. carry: the rest of a cut piece waits with a bos
    of its own; otherwise it is dropped. A last single slot gets a bare bos. What is too little for a row is left.
    """
    slots, dropped = sum(lengths), 0  # slots: of all that is not yet in a finished row
    if slots < size:
        opening = 0
    which, begin = list(range(opening)), [0] * opening
    end = [length - 1 for length in lengths[:opening]]
    taken = [0] * len(lengths)  # text of each piece that is in rows already
    waiting = sorted((length << 32) + i for i, length in enumerate(lengths) if i >= opening)
    room = size - sum(lengths[:opening])
    while slots >= size:
        while room > 1:
            at = bisect_left(waiting, (room + 1) << 32) - 1
            whole = at >= 0
            length, piece = divmod(waiting.pop(at if whole else 0), 1 << 32)
            text = length - 1 if whole else room - 1
            which.append(piece)
            begin.append(taken[piece])
            taken[piece] += text
            end.append(taken[piece])
            room -= text + 1
            if not whole and carry:
                insort(waiting, ((length - text) << 32) + piece)
                slots += 1  # its new bos
            elif not whole:
                slots -= length - 1 - text
                dropped += length - 1 - text
        if room:  # one slot: nothing but a bos
            for column in (which, begin, end):
                column.append(0)
            slots += 1
        slots, room = slots - size, size
    left = [(key % (1 << 32), key >> 32) for key in waiting]
    return Packing(which, begin, end, [(i, taken[i], taken[i] + length - 1) for i, length in left], dropped)


@dataclass(frozen=True)
class Window:
    """What a lane packs at once, in a few numbers that are enough to do it again.

    unit, units: first unit it reads, and how many. row, rows: rows of the lane before it, and in it. dropped: slots of
    text dropped by the windows before it; lost: by itself. left: what the window before it could not place, as (unit,
    document, begin, end) of ids, bos not counted; its first row begins with that.
    """

    unit: int = 0
    units: int = 0
    row: int = 0
    rows: int = 0
    dropped: int = 0
    lost: int = 0
    left: tuple[tuple[int, int, int, int], ...] = ()


def cut(starts: np.ndarray, stops: np.ndarray, most: int) -> tuple[np.ndarray, ...]:
    """Pieces of documents that lie so, bos first: of each its head, slots, document, and begin of its text in that.

    A document with a text of more than `most` ids is cut into several; there is none of a document without text.
    """
    text = stops - starts - 1
    counts = -(-text // most)
    document = np.repeat(np.arange(len(text)), counts)
    begin = (np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)) * most
    return starts[document] + begin, np.minimum(text[document] - begin, most) + 1, document, begin


class Lane:
    """The rows of one lane of one corpus part, packed a window at a time.

    size: slots of a row. window, row: where to go on: row `row` of the lane, which is in `window` or follows it.
    """

    def __init__(self, deal: Deal, lane: int, size: int, bos: int, carry: bool, window: Window, row: int):
        self.deal, self.lane, self.size, self.bos, self.carry = deal, lane, size, bos, carry
        self.window, self.row = window, row
        self._rows: np.ndarray | None = None  # (rows, size), the window's
        self._next = window  # to be packed then
        self._left: list[np.ndarray] = []  # ids of what it begins with, a slot for a bos before each

    def take(self) -> np.ndarray:
        """The next row, `size` ids."""
        if self._rows is None and self.window.rows:
            self._restore()
        if self.row == self.window.row + self.window.rows:
            self.window = self._pack(self._next)
        self.row += 1
        return self._rows[self.row - 1 - self.window.row]

    def _restore(self) -> None:
        """Pack the window of a saved state again; ValueError where the data gives another."""
        for unit, document, begin, end in self.window.left:
            ids, starts, _ = self.deal.unit(self.lane, unit)
            self._left.append(ids[starts[document] + begin :][: end - begin + 1].copy())
        if self._pack(self.window) != self.window:
            raise ValueError(f"lane {self.lane} reads other text than when the state was saved: restore the data")

    def _pack(self, window: Window) -> Window:
        """Read and pack a window that begins with `_left`, and return what is known of it then."""
        sources, pieces, units = self._read(window)
        source, head, slots, unit, document, begin = pieces
        packing = pack(slots.tolist(), len(self._left), self.size, self.carry)

        which = np.array(packing.which)
        first, last = head[which] + packing.begin, head[which] + packing.end + 1
        # A stretch is copied with the slot before its text: there stands its bos, or an id that becomes its bos.
        spans = zip(source[which].tolist(), first.tolist(), last.tolist(), strict=True)
        packed = np.concatenate([sources[s][a:b] for s, a, b in spans])
        packed[np.cumsum(last - first) - (last - first)] = self.bos
        rows = packed.reshape(-1, self.size)
        # Shuffled, because they were packed from long documents to short ones.
        self._rows = rows[shuffled(len(rows), *self.deal.key, 2, self.lane, window.unit)]

        self._left = [sources[source[i]][head[i] + a : head[i] + b + 1].copy() for i, a, b in packing.left]
        left = tuple((int(unit[i]), int(document[i]), int(begin[i]) + a, int(begin[i]) + b) for i, a, b in packing.left)
        dropped = window.dropped + packing.dropped
        self._next = Window(window.unit + units, row=window.row + len(rows), dropped=dropped, left=left)
        return replace(window, units=units, rows=len(rows), lost=packing.dropped)

    def _read(self, window: Window) -> tuple[list[np.ndarray], np.ndarray, int]:
        """Arrays of ids; the pieces in them, as columns; and of how many units, that give at least one row.

        Columns: which array, head, slots, unit, document, begin. A window ends with an epoch, so that a lane has given
        all of one before it begins the next.
        """
        left = [(i, 0, end - begin + 1, *of, begin) for i, (*of, begin, end) in enumerate(window.left)]
        sources, columns = [*self._left], [np.array(left, np.int64).reshape(-1, 6).T]
        slots, documents, unit = sum(map(len, sources)), 0, window.unit
        while True:
            ids, starts, stops = self.deal.unit(self.lane, unit)
            head, lengths, document, begin = cut(starts, stops, self.size - 1)
            which = np.full_like(head, len(sources))
            columns.append(np.stack([which, head, lengths, np.full_like(head, unit), document, begin]))
            sources.append(ids)
            slots, documents, unit = slots + int(lengths.sum()), documents + np.count_nonzero(begin == 0), unit + 1
            enough = slots >= WINDOW_ROWS * self.size or documents >= WINDOW_DOCUMENTS
            epoch_ends = self.deal.epoch(self.lane, window.unit) != self.deal.epoch(self.lane, unit)
            if slots >= self.size and (enough or epoch_ends):
                return sources, np.concatenate(columns, axis=1), unit - window.unit
            if not slots and unit - window.unit > EMPTY_EPOCHS * self.deal.units:
                raise ValueError("the corpus has no document with text in it: see `python -m scripts.prepare --check`")
