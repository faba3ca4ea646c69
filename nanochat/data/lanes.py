"""Lanes: the order in which documents fill training rows, the same on any number of ranks.

A row is `size` token ids. A lane is an endless sequence of rows that needs no other lane, and row i of the training
stream is the next row of lane i % lanes. So the order depends on the data, the seed, the number of lanes and the size
of a row, and not on ranks, threads or time. A lane gets its rows in three steps:

1. Deal. An epoch has all row groups of a source in random order. Each row group is cut into stripes, so that there are
   at least 8 pieces of work, called units, for every lane. The units of all epochs form one endless list, and lane l
   reads the units l, l + lanes, l + 2 * lanes, …
2. Pack. A lane reads units until their documents fill some 128 rows, called a chunk. Each row takes the longest
   document that still fits, again and again. If none fits, the shortest one is cut: the rest goes into another row
   (carry) or is dropped (crop). Documents left over at the end begin the next chunk.
3. Mix. With several sources, a fixed cycle of 1,000 places says which source the next row of a lane comes from.

Example: rows of 8 slots, documents of 6, 5, 4 and 2 tokens, bos included. The first row takes 6 and 2. The second row
takes 5, then nothing fits into 3 slots, and 4 is cut after 3. Its last token waits, with a new bos, for the next chunk.

A row group is read as `(ids, offsets)`: document i is ids[offsets[i]:offsets[i + 1]], bos first.
"""

import os
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from nanochat.data.corpus import Shard
from nanochat.data.documents import Problems
from nanochat.tokenizer import Tokenizer

UNITS_PER_LANE = 8  # in an epoch, at least, if there are that many documents
CACHED_GROUPS = 32  # row groups kept in memory if several lanes share them
CHUNK_ROWS = 128  # a chunk has at least so many rows,
CHUNK_DOCUMENTS = 1024  # or so many documents, which is enough to pack well
MIX_CYCLE = 1000  # rows after which the order of the sources repeats
EMPTY_EPOCHS = 40  # a lane gives up after so many epochs without any text
MAX_THREADS = 4  # default for tokenizing; other ranks may need the other cores


def shuffled(count: int, *key: int) -> np.ndarray:
    """Return 0 … count - 1 in an order that depends on the key alone, with any version of numpy.

    Use keys of one length for one purpose: numpy treats (1,) and (1, 0) alike.
    """
    # numpy keeps the stream of a bit generator forever, but may change `Generator.permutation`.
    return np.argsort(np.random.PCG64(key).random_raw(count), kind="stable")


class RowGroups:
    """All row groups of some shards, numbered from 0, and read as token ids."""

    def __init__(self, shards: Sequence[Shard], tokenizer: Tokenizer, threads: int, problems: Problems):
        self.documents = sum(shard.rows for shard in shards)
        self.places = [(shard, group) for shard in shards for group in range(shard.row_groups)]
        self._tokenizer = tokenizer
        self._threads = threads or min(MAX_THREADS, os.cpu_count() or 1)
        self._problems = problems

    def __len__(self) -> int:
        return len(self.places)

    def read(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (ids, offsets) of a row group; a damaged one has no documents if problems are skipped."""
        shard, group = self.places[number]
        with self._problems.caught():
            bos = self._tokenizer.special_tokens["<|bos|>"]
            return self._tokenizer.encode_arrow(shard.read(group), bos, self._threads)
        return np.array([], np.uint16), np.array([0])


# ---- deal ----


class Deal:
    """The endless list of units of one source: every epoch all documents, in the order of that epoch.

    A unit is a stripe of a row group: every `stripes`-th of its documents, in random order. Row groups are cut into
    stripes only if an epoch has too few of them. Every document is in exactly one unit of every epoch, and all lanes
    finish an epoch at about the same time.
    """

    def __init__(self, groups: RowGroups, lanes: int, key: tuple[int, int]):
        """key: (seed, number of the source)."""
        self.groups = groups
        self.lanes = lanes
        self.key = key
        wanted = -(-UNITS_PER_LANE * lanes // len(groups))  # rounded up
        self.stripes = min(wanted, max(1, groups.documents // len(groups)))
        self.units = len(groups) * self.stripes  # in an epoch
        # Several lanes read the stripes of one row group at about the same time.
        self._read = lru_cache(CACHED_GROUPS)(groups.read) if self.stripes > 1 else groups.read
        self._order = lru_cache(8)(self._shuffle_groups)

    def _shuffle_groups(self, epoch: int) -> np.ndarray:
        return shuffled(len(self.groups), *self.key, 0, epoch)

    def epoch(self, lane: int, unit: int) -> int:
        return (unit * self.lanes + lane) // self.units

    def place(self, lane: int, unit: int) -> tuple[int, int, int]:
        """Return (epoch, row group, stripe) of a lane's unit."""
        epoch, position = divmod(unit * self.lanes + lane, self.units)
        group = int(self._order(epoch)[position // self.stripes])
        return epoch, group, position % self.stripes

    def documents(self, lane: int, unit: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return (ids, starts, stops) of a lane's unit: document i is ids[starts[i]:stops[i]]."""
        epoch, group, stripe = self.place(lane, unit)
        ids, offsets = self._read(group)
        order = shuffled(len(offsets) - 1, *self.key, 1, epoch, group)
        chosen = order[stripe :: self.stripes]
        return ids, offsets[chosen].astype(np.int64), offsets[chosen + 1].astype(np.int64)


# ---- mix ----


class Mix:
    """The source of each row of a lane. All rows have one size, so shares of rows are shares of tokens.

    All lanes repeat one cycle of sources, each from another start, so that the shares hold within a batch too.
    """

    def __init__(self, shares: Sequence[float], lanes: int):
        cycle = MIX_CYCLE if len(shares) > 1 else 1
        fractions = np.array(shares) / sum(shares)
        self._order: list[int] = []  # source at each place of the cycle
        self._before = np.zeros((cycle + 1, len(shares)), np.int64)  # rows of each source before each place
        for place in range(cycle):
            # The source that is furthest behind its share is next.
            behind = fractions * (place + 1) - self._before[place]
            source = int(np.argmax(behind))
            self._order.append(source)
            self._before[place + 1] = self._before[place]
            self._before[place + 1, source] += 1
        if not self._before[-1].all():
            raise ValueError(f"the shares of the mix are {list(shares)}: raise the one below 1/{MIX_CYCLE} of the sum")
        self._starts = [lane * cycle // lanes for lane in range(lanes)]

    def source(self, lane: int, turn: int) -> int:
        """Return the source of row number `turn` of a lane."""
        return self._order[(self._starts[lane] + turn) % len(self._order)]

    def rows_before(self, lane: int, turn: int) -> list[int]:
        """Return the number of rows of each source in the first `turn` rows of a lane."""
        start = self._starts[lane]
        cycles, place = divmod(start + turn, len(self._order))
        return (cycles * self._before[-1] + self._before[place] - self._before[start]).tolist()


# ---- pack ----


class Packing(NamedTuple):
    """Stretches (piece, begin, end) of the text of pieces: `placed` in the order of the rows, `left` without a row.

    dropped: tokens that were cropped away.
    """

    placed: list[tuple[int, int, int]]
    left: list[tuple[int, int, int]]
    dropped: int


def pack(lengths: Sequence[int], opening: int, size: int, carry: bool) -> Packing:
    """Fill rows of `size` slots, each with the longest piece that fits; if none fits, the shortest one is cut.

    lengths: slots of each piece, 2 to `size`, one of them for its bos; of equal pieces the last comes first. opening:
    the first pieces, together shorter than a row, that begin the first row. carry: the rest of a cut piece waits with a
    bos of its own, else it is dropped. A single free slot gets a bare bos. No row is started that cannot be filled.
    """
    unplaced = sum(lengths)  # slots of all pieces that are not in a finished row
    if unplaced < size:
        opening = 0
    placed = [(piece, 0, lengths[piece] - 1) for piece in range(opening)]
    used = [0] * len(lengths)  # tokens of each piece that are in a row already
    # One integer holds length and number of a piece, so that bisect finds the longest one that fits.
    waiting = sorted((lengths[piece] << 32) + piece for piece in range(opening, len(lengths)))
    room = size - sum(lengths[:opening])
    dropped = 0
    while unplaced >= size:
        while room > 1:
            index = bisect_left(waiting, (room + 1) << 32) - 1
            fits = index >= 0
            length, piece = divmod(waiting.pop(max(index, 0)), 1 << 32)
            text = length - 1 if fits else room - 1
            begin = used[piece]
            used[piece] = begin + text
            placed.append((piece, begin, begin + text))
            room -= text + 1
            if fits:
                continue
            rest = length - 1 - text
            if carry:
                insort(waiting, ((rest + 1) << 32) + piece)
                unplaced += 1  # the new bos
            else:
                unplaced -= rest
                dropped += rest
        if room == 1:
            placed.append((0, 0, 0))  # an empty stretch of any piece: its bos
            unplaced += 1
        unplaced -= size
        room = size
    left = []
    for key in waiting:
        length, piece = divmod(key, 1 << 32)
        left.append((piece, used[piece], used[piece] + length - 1))
    return Packing(placed, left, dropped)


class Pieces(NamedTuple):
    """Documents, and parts of documents longer than a row; one element of each array for each piece.

    array: number of the array of ids; head: index of the bos in it; slots: tokens with the bos; unit, document: origin
    of the piece; begin: tokens of the document before the piece.
    """

    array: np.ndarray
    head: np.ndarray
    slots: np.ndarray
    unit: np.ndarray
    document: np.ndarray
    begin: np.ndarray


def cut_documents(starts: np.ndarray, stops: np.ndarray, limit: int) -> tuple[np.ndarray, ...]:
    """Cut documents into pieces of at most `limit` tokens and a bos; return their (head, slots, document, begin).

    A document without text makes no piece.
    """
    lengths = stops - starts - 1  # without the bos
    counts = -(-lengths // limit)
    document = np.repeat(np.arange(len(lengths)), counts)
    first_piece = np.repeat(np.cumsum(counts) - counts, counts)
    begin = (np.arange(len(document)) - first_piece) * limit
    slots = np.minimum(lengths[document] - begin, limit) + 1
    return starts[document] + begin, slots, document, begin


@dataclass(frozen=True)
class Chunk:
    """The rows that a lane packs at once, as a few numbers that are enough to pack them again.

    unit, units: first unit read, and the number of units. row, rows: rows of the lane before the chunk, and in it.
    dropped: tokens that earlier chunks dropped; lost: tokens that this one dropped. left: pieces left over by the chunk
    before, as (unit, document, begin, end) without bos; they begin the first row.
    """

    unit: int = 0
    units: int = 0
    row: int = 0
    rows: int = 0
    dropped: int = 0
    lost: int = 0
    left: tuple[tuple[int, int, int, int], ...] = ()


class PackedChunk(NamedTuple):
    """A chunk, its rows (rows, size), the next chunk as far as it is known, and the ids of the pieces left for it."""

    chunk: Chunk
    rows: np.ndarray
    following: Chunk
    leftover: list[np.ndarray]


@dataclass(frozen=True)
class Lane:
    """One lane of one source; `size` is the number of slots in a row."""

    deal: Deal
    number: int
    size: int
    bos: int
    carry: bool

    def rows(self, chunk: Chunk, row: int) -> Iterator[tuple[np.ndarray, Chunk]]:
        """Yield the rows from number `row` on, each with its chunk; `row` is in `chunk` or follows it."""
        packed = self._pack(chunk, self._read_leftover(chunk))
        if chunk.rows and packed.chunk != chunk:
            raise ValueError(f"lane {self.number} reads other text than when the state was saved: restore the data")
        while True:
            for index in range(row - packed.chunk.row, packed.chunk.rows):
                yield packed.rows[index], packed.chunk
            row = packed.chunk.row + packed.chunk.rows
            packed = self._pack(packed.following, packed.leftover)

    def _read_leftover(self, chunk: Chunk) -> list[np.ndarray]:
        """Return the ids of the pieces that begin a chunk, each after a slot for its bos."""
        leftover = []
        for unit, document, begin, end in chunk.left:
            ids, starts, _ = self.deal.documents(self.number, unit)
            head = starts[document] + begin
            leftover.append(ids[head : head + end - begin + 1].copy())
        return leftover

    def _pack(self, chunk: Chunk, leftover: list[np.ndarray]) -> PackedChunk:
        """Read units and pack them; the leftover pieces come first."""
        arrays, pieces, units = self._read_units(chunk, leftover)
        packing = pack(pieces.slots.tolist(), len(leftover), self.size, self.carry)

        piece, begin, end = np.array(packing.placed, np.int64).T
        first = pieces.head[piece] + begin
        last = pieces.head[piece] + end + 1
        # A stretch is copied with the slot before its text: there is its bos, or a token that becomes its bos.
        spans = zip(pieces.array[piece].tolist(), first.tolist(), last.tolist(), strict=True)
        ids = np.concatenate([arrays[number][start:stop] for number, start, stop in spans])
        sizes = last - first
        ids[np.cumsum(sizes) - sizes] = self.bos
        # Packing goes from long documents to short ones, so the rows are shuffled.
        rows = ids.reshape(-1, self.size)
        rows = rows[shuffled(len(rows), *self.deal.key, 2, self.number, chunk.unit)]

        remaining, left = [], []
        for number, begin, end in packing.left:
            array, head, _, unit, document, offset = (int(column[number]) for column in pieces)
            # Copied, so that the whole row group need not stay in memory.
            remaining.append(arrays[array][head + begin : head + end + 1].copy())
            left.append((unit, document, offset + begin, offset + end))
        packed = Chunk(chunk.unit, units, chunk.row, len(rows), chunk.dropped, packing.dropped, chunk.left)
        following = Chunk(
            unit=chunk.unit + units,
            row=chunk.row + len(rows),
            dropped=chunk.dropped + packing.dropped,
            left=tuple(left),
        )
        return PackedChunk(packed, rows, following, remaining)

    def _read_units(self, chunk: Chunk, leftover: list[np.ndarray]) -> tuple[list[np.ndarray], Pieces, int]:
        """Return (arrays of ids, the pieces in them, number of units read) for at least one row.

        A chunk ends with the epoch, so that a lane has given all of an epoch before it begins the next one.
        """
        arrays = list(leftover)
        unit, document, begin, end = np.array(chunk.left, np.int64).reshape(-1, 4).T
        heads = np.zeros_like(unit)
        found = [Pieces(np.arange(len(unit)), heads, end - begin + 1, unit, document, begin)]
        slots = sum(map(len, arrays))
        documents = 0
        unit = chunk.unit
        while True:
            ids, starts, stops = self.deal.documents(self.number, unit)
            head, sizes, document, begin = cut_documents(starts, stops, self.size - 1)
            array_numbers = np.full_like(head, len(arrays))
            found.append(Pieces(array_numbers, head, sizes, np.full_like(head, unit), document, begin))
            arrays.append(ids)
            slots += int(sizes.sum())
            documents += np.count_nonzero(begin == 0)
            unit += 1
            enough = slots >= CHUNK_ROWS * self.size or documents >= CHUNK_DOCUMENTS
            epoch_ends = self.deal.epoch(self.number, unit) != self.deal.epoch(self.number, chunk.unit)
            if slots >= self.size and (enough or epoch_ends):
                columns = zip(*found, strict=True)
                return arrays, Pieces(*map(np.concatenate, columns)), unit - chunk.unit
            if not slots and unit - chunk.unit > EMPTY_EPOCHS * self.deal.units:
                raise ValueError("the corpus has no document with text in it: see `python -m scripts.prepare --check`")
