"""Lanes: the order in which documents fill training rows, the same on any number of ranks.

A row is `size` token ids. A lane is an endless, independent sequence of rows, and row i in the training stream is the
next row from lane i % lanes. So the order depends on data, seed, number of lanes and row size, and not on ranks,
threads or time. A lane gets rows in three steps:

1. Deal. An epoch has all row groups from a source in random order. Each row group is cut into stripes, to have at least
   8 units for every lane; a unit is one stripe. The units from all epochs form one endless list, and lane l reads the
   units l, l + lanes, l + 2 * lanes, …
2. Pack. A lane reads units until their documents fill some 128 rows, called a chunk. Each row takes the longest
   document that still fits, again and again. If none fits, the shortest one is cut: the rest goes into another row
   (carry) or is dropped (crop). Documents left over at the end begin the next chunk.
3. Mix. With several sources, a fixed cycle with 1,000 places gives the source for the next row in a lane.

Example: rows with 8 slots, documents with 6, 5, 4 and 2 tokens, bos included. The first row takes 6 and 2. The second
row takes 5, then nothing fits into 3 slots, and 4 is cut after 3. The last token waits, with a new bos, for the next
chunk.

A row group is read as `(ids, offsets)`: document i is ids[offsets[i]:offsets[i + 1]], bos first.
"""

import os
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
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
    """Return 0 … count - 1 in an order decided by the key alone, with any numpy version.

    Use one key length for one purpose: numpy treats (1,) and (1, 0) alike.
    """
    # numpy never changes the stream from a bit generator, but may change `Generator.permutation`.
    return np.argsort(np.random.PCG64(key).random_raw(count), kind="stable")


class RowGroups:
    """Row groups from a list of shards, numbered from 0, read as token ids."""

    def __init__(
        self,
        shards: Sequence[Shard],
        tokenizer: Tokenizer,
        threads: int,
        problems: Problems,
    ):
        self.documents = sum(shard.rows for shard in shards)
        # (shard, row group in the shard) for each number
        self.places = [(shard, group) for shard in shards for group in range(shard.row_groups)]
        self._tokenizer = tokenizer
        self._threads = threads or min(MAX_THREADS, os.cpu_count() or 1)
        self._problems = problems

    def __len__(self) -> int:
        return len(self.places)

    def read(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (ids, offsets) for a row group; a damaged one has no documents if problems are skipped."""
        shard, group = self.places[number]
        with self._problems.caught():
            bos = self._tokenizer.special_tokens["<|bos|>"]
            return self._tokenizer.encode_arrow(shard.read(group), bos, self._threads)
        # Reached only after damage: an empty row group.
        return np.array([], np.uint16), np.array([0])


# ---- deal ----


class Deal:
    """The endless list of units for one source: every epoch all documents, in another order.

    A unit is a stripe from a row group: every `stripes`-th document, in random order. Row groups are cut into stripes
    only if an epoch has too few row groups. Every document is in exactly one unit per epoch, and all lanes finish an
    epoch at about the same time.
    """

    def __init__(self, groups: RowGroups, lanes: int, key: tuple[int, int]):
        """key: (seed, source number)."""
        self.groups = groups
        self.lanes = lanes
        self.key = key
        # Stripes per row group for 8 units per lane, rounded up; a stripe needs at least one document.
        wanted = -(-UNITS_PER_LANE * lanes // len(groups))
        self.stripes = min(wanted, max(1, groups.documents // len(groups)))
        self.units = len(groups) * self.stripes  # in an epoch
        # Several lanes read stripes from one row group at about the same time: tokenize once, keep for all.
        self._read = lru_cache(CACHED_GROUPS)(groups.read) if self.stripes > 1 else groups.read
        self._order = lru_cache(8)(self._shuffle_groups)

    def _shuffle_groups(self, epoch: int) -> np.ndarray:
        return shuffled(len(self.groups), *self.key, 0, epoch)

    def epoch(self, lane: int, unit: int) -> int:
        # Unit u in lane l has the number u * lanes + l in the endless list.
        return (unit * self.lanes + lane) // self.units

    def place(self, lane: int, unit: int) -> tuple[int, int, int]:
        """Return (epoch, row group, stripe) for a unit in a lane."""
        epoch, position = divmod(unit * self.lanes + lane, self.units)
        group = int(self._order(epoch)[position // self.stripes])
        return epoch, group, position % self.stripes

    def documents(self, lane: int, unit: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return (ids, starts, stops) for a unit in a lane: document i is ids[starts[i]:stops[i]]."""
        epoch, group, stripe = self.place(lane, unit)
        ids, offsets = self._read(group)
        order = shuffled(len(offsets) - 1, *self.key, 1, epoch, group)
        chosen = order[stripe :: self.stripes]
        # int64, because later sums could overflow the type of the offsets.
        return ids, offsets[chosen].astype(np.int64), offsets[chosen + 1].astype(np.int64)


# ---- mix ----


class Mix:
    """The source for each row in a lane. All rows have the same size, so row shares are token shares.

    All lanes repeat one cycle, each from another start, so that the shares hold within a batch too.
    """

    def __init__(self, shares: Sequence[float], lanes: int):
        cycle = MIX_CYCLE if len(shares) > 1 else 1
        fractions = np.array(shares) / sum(shares)
        self._order: list[int] = []  # source at each place in the cycle
        # (place, source): rows from the source before the place
        self._before = np.zeros((cycle + 1, len(shares)), np.int64)
        for place in range(cycle):
            # The source furthest behind its share is next.
            behind = fractions * (place + 1) - self._before[place]
            source = int(np.argmax(behind))
            self._order.append(source)
            self._before[place + 1] = self._before[place]
            self._before[place + 1, source] += 1
        if not self._before[-1].all():
            raise ValueError(f"the mix has shares {list(shares)}: raise the share below 1/{MIX_CYCLE}")
        # Evenly spread over the cycle.
        self._starts = [lane * cycle // lanes for lane in range(lanes)]

    def source(self, lane: int, turn: int) -> int:
        """Return the source for row number `turn` in a lane."""
        return self._order[(self._starts[lane] + turn) % len(self._order)]

    def rows_before(self, lane: int, turn: int) -> list[int]:
        """Return row counts per source for the first `turn` rows in a lane."""
        start = self._starts[lane]
        cycles, place = divmod(start + turn, len(self._order))
        return (cycles * self._before[-1] + self._before[place] - self._before[start]).tolist()


# ---- pack ----


class Packing(NamedTuple):
    """Stretches (piece, begin, end), tokens begin … end - 1 in a piece: `placed` fill the rows in order, `left` wait.

    dropped: tokens lost by cropping.
    """

    placed: list[tuple[int, int, int]]
    left: list[tuple[int, int, int]]
    dropped: int


def pack(lengths: Sequence[int], opening: int, size: int, carry: bool) -> Packing:
    """Fill rows with `size` slots, each with the longest piece that fits; if none fits, the shortest one is cut.

    lengths: slots per piece, 2 to `size`, bos included; among equal pieces the last comes first. opening: number of
    first pieces, together shorter than a row, to begin the first row. carry: the rest of a cut piece waits with a new
    bos, else the rest is dropped. A single free slot gets a bare bos. A row is started only if it can be filled.
    """
    unplaced = sum(lengths)  # slots not yet in a finished row
    if unplaced < size:
        opening = 0
    placed = [(piece, 0, lengths[piece] - 1) for piece in range(opening)]
    used = [0] * len(lengths)  # tokens already in a row, for each piece
    # Sorted integers with the length in the upper and the piece in the lower 32 bits: bisect finds the best fit.
    waiting = sorted((lengths[piece] << 32) + piece for piece in range(opening, len(lengths)))
    room = size - sum(lengths[:opening])
    dropped = 0
    while unplaced >= size:
        while room > 1:
            index = bisect_left(waiting, (room + 1) << 32) - 1
            fits = index >= 0
            # The longest piece that fits, else the shortest of all.
            length, piece = divmod(waiting.pop(index if fits else 0), 1 << 32)
            text = length - 1 if fits else room - 1
            # A piece that was cut before begins where the cut was.
            begin = used[piece]
            used[piece] = begin + text
            placed.append((piece, begin, begin + text))
            room -= text + 1
            if fits:
                continue
            # The piece was cut, and the row is full.
            rest = length - 1 - text
            if carry:
                insort(waiting, ((rest + 1) << 32) + piece)
                unplaced += 1  # the new bos
            else:
                unplaced -= rest
                dropped += rest
        if room == 1:
            placed.append((0, 0, 0))  # an empty stretch is a bare bos
            unplaced += 1
        unplaced -= size
        room = size
    left = []
    for key in waiting:
        length, piece = divmod(key, 1 << 32)
        left.append((piece, used[piece], used[piece] + length - 1))
    return Packing(placed, left, dropped)


class Pieces(NamedTuple):
    """Documents, or parts from documents longer than a row; each array has one element per piece.

    array: number in the list of id arrays; head: index for the bos there; slots: tokens with bos; unit, document:
    origin; begin: tokens in the document before the piece.
    """

    array: np.ndarray
    head: np.ndarray
    slots: np.ndarray
    unit: np.ndarray
    document: np.ndarray
    begin: np.ndarray


def cut_documents(
    starts: np.ndarray,
    stops: np.ndarray,
    limit: int,
) -> tuple[np.ndarray, ...]:
    """Cut documents into pieces with at most `limit` tokens and a bos; return (head, slots, document, begin) arrays.

    A document without text makes no piece.
    """
    lengths = stops - starts - 1  # without the bos
    counts = -(-lengths // limit)  # pieces per document, rounded up
    document = np.repeat(np.arange(len(lengths)), counts)
    first_piece = np.repeat(np.cumsum(counts) - counts, counts)
    # The number of a piece within its document, times the size of a full piece.
    begin = (np.arange(len(document)) - first_piece) * limit
    slots = np.minimum(lengths[document] - begin, limit) + 1
    return starts[document] + begin, slots, document, begin


@dataclass(frozen=True)
class Chunk:
    """The rows a lane packs together, as a few numbers, enough to pack the same rows again.

    unit, units: first unit, and how many. row, rows: rows in the lane before the chunk, and in the chunk. dropped:
    tokens dropped by earlier chunks; lost: by this one. left: pieces left over by the chunk before, as (unit, document,
    begin, end) without bos; they begin the first row. Checkpoints hold these names.
    """

    unit: int = 0
    units: int = 0
    row: int = 0
    rows: int = 0
    dropped: int = 0
    lost: int = 0
    left: tuple[tuple[int, int, int, int], ...] = ()


class PackedChunk(NamedTuple):
    """A chunk, its rows (rows, size), the next chunk before packing, and the ids left over for that one."""

    chunk: Chunk
    rows: np.ndarray
    following: Chunk
    leftover: list[np.ndarray]


@dataclass(frozen=True)
class Lane:
    """One lane for one source; size: slots in a row."""

    deal: Deal
    number: int
    size: int
    bos: int
    carry: bool

    def rows(self, chunk: Chunk, row: int) -> Iterator[tuple[np.ndarray, Chunk]]:
        """Yield (row, its chunk) from row number `row` on, a row in `chunk` or right after."""
        # A saved chunk is packed again, which also shows if the data is still the same.
        packed = self._pack(chunk, self._read_leftover(chunk))
        if chunk.rows and packed.chunk != chunk:
            raise ValueError(f"lane {self.number} reads other text than when the state was saved: restore the data")
        while True:
            for index in range(row - packed.chunk.row, packed.chunk.rows):
                yield packed.rows[index], packed.chunk
            row = packed.chunk.row + packed.chunk.rows
            packed = self._pack(packed.following, packed.leftover)

    def _read_leftover(self, chunk: Chunk) -> list[np.ndarray]:
        """Return ids for the pieces that begin a chunk, each after a slot for the bos."""
        leftover = []
        for unit, document, begin, end in chunk.left:
            ids, starts, _ = self.deal.documents(self.number, unit)
            head = starts[document] + begin
            # Copied, because the next call may reuse or free the row group.
            leftover.append(ids[head : head + end - begin + 1].copy())
        return leftover

    def _pack(self, chunk: Chunk, leftover: list[np.ndarray]) -> PackedChunk:
        """Read units and pack them; the leftover pieces come first."""
        arrays, pieces, units = self._read_units(chunk, leftover)
        packing = pack(pieces.slots.tolist(), len(leftover), self.size, self.carry)

        piece, begin, end = np.array(packing.placed, np.int64).T
        first = pieces.head[piece] + begin
        last = pieces.head[piece] + end + 1
        # A stretch is copied with the slot before: the bos, or a token that becomes the bos.
        spans = zip(  # plain integers: numpy scalars make slicing slow
            pieces.array[piece].tolist(),
            first.tolist(),
            last.tolist(),
            strict=True,
        )
        ids = np.concatenate([arrays[number][start:stop] for number, start, stop in spans])
        sizes = last - first
        ids[np.cumsum(sizes) - sizes] = self.bos
        # Packing goes from long documents to short ones, so shuffle the rows.
        rows = ids.reshape(-1, self.size)
        rows = rows[shuffled(len(rows), *self.deal.key, 2, self.number, chunk.unit)]

        remaining, left = [], []
        for number, begin, end in packing.left:
            array, head, _, unit, document, offset = (int(column[number]) for column in pieces)
            # Copied, to free the whole row group.
            remaining.append(arrays[array][head + begin : head + end + 1].copy())
            left.append((unit, document, offset + begin, offset + end))
        packed = replace(
            chunk,
            units=units,
            rows=len(rows),
            lost=packing.dropped,
        )
        following = Chunk(
            unit=chunk.unit + units,
            row=chunk.row + len(rows),
            dropped=chunk.dropped + packing.dropped,
            left=tuple(left),
        )
        return PackedChunk(packed, rows, following, remaining)

    def _read_units(self, chunk: Chunk, leftover: list[np.ndarray]) -> tuple[list[np.ndarray], Pieces, int]:
        """Return (id arrays, the pieces in them, number of units read), enough for at least one row.

        A chunk ends with the epoch: a lane finishes one epoch before it begins the next one.
        """
        arrays = list(leftover)
        unit, document, begin, end = np.array(chunk.left, np.int64).reshape(-1, 4).T
        heads = np.zeros_like(unit)  # a leftover array begins with the slot for the bos
        found = [
            Pieces(
                np.arange(len(unit)),
                heads,
                end - begin + 1,
                unit,
                document,
                begin,
            )
        ]
        slots = sum(map(len, arrays))
        documents = 0
        unit = chunk.unit
        while True:
            ids, starts, stops = self.deal.documents(self.number, unit)
            head, sizes, document, begin = cut_documents(starts, stops, self.size - 1)
            array_numbers = np.full_like(head, len(arrays))
            found.append(
                Pieces(
                    array_numbers,
                    head,
                    sizes,
                    np.full_like(head, unit),
                    document,
                    begin,
                )
            )
            arrays.append(ids)
            slots += int(sizes.sum())
            documents += np.count_nonzero(begin == 0)  # further pieces of a long document do not count
            unit += 1
            enough = slots >= CHUNK_ROWS * self.size or documents >= CHUNK_DOCUMENTS
            epoch_ends = self.deal.epoch(self.number, unit) != self.deal.epoch(self.number, chunk.unit)
            # An epoch may end before a row is full: then the next one adds to the chunk.
            if slots >= self.size and (enough or epoch_ends):
                columns = zip(*found, strict=True)
                return arrays, Pieces(*map(np.concatenate, columns)), unit - chunk.unit
            if not slots and unit - chunk.unit > EMPTY_EPOCHS * self.deal.units:
                raise ValueError("the corpus has no document with text: see `python -m scripts.prepare --check`")
