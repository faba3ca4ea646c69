"""Lanes: the order in which documents fill training rows, the same on any number of ranks.

A row is `size` token ids. A lane is an endless, independent sequence of rows, and row i in the training stream is the
next row from lane i % lanes. So the order depends on data, seed, number of lanes and row size, and not on ranks,
threads or time. A lane gets rows in three steps:

1. Deal. An epoch has all row groups from a source in random order. Each row group is cut into stripes, to have at least
   8 units for every lane; a unit is one stripe. The units from all epochs form one endless list, and lane l reads the
   units l, l + lanes, l + 2 * lanes, …
2. Pack. A lane reads units until their documents fill some 128 rows, called a chunk. Each row takes the longest
   document that still fits, again and again. If none fits, the shortest one is cut, and the rest goes into another row.
   Documents left over at the end begin the next chunk.
3. Mix. With several sources, a fixed cycle with 1,000 places gives the source for the next row in a lane.

Example: rows with 8 slots, documents with 6, 5, 4 and 2 tokens, bos included. The first row takes 6 and 2. The second
row takes 5, then nothing fits into 3 slots, and 4 is cut after 3. The last token waits, with a new bos, for the next
chunk.
"""

import math
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from nanochat.cores import usable_cores
from nanochat.data.corpus import Shard
from nanochat.errors import UserError
from nanochat.tokenizer import Tokenizer

UNITS_PER_LANE = 8  # in an epoch, at least, if there are that many documents
CACHED_GROUPS = 32  # row groups kept in memory if several lanes share them
CHUNK_ROWS = 128  # a chunk has at least so many rows,
CHUNK_DOCUMENTS = 1024  # or so many documents, which is enough to pack well
MIX_CYCLE = 1000  # rows after which the order of the sources repeats
MOST_THREADS = 4  # for tokenizing; other ranks may need the other cores


def shuffled(count: int, *key: int) -> np.ndarray:
    """Return 0 … count - 1 in an order decided by the key alone, with any numpy version.

    Use one key length for one purpose: numpy treats (1,) and (1, 0) alike.
    """
    # numpy never changes the stream from a bit generator, but may change `Generator.permutation`.
    return np.argsort(np.random.PCG64(key).random_raw(count), kind="stable")


# ---- deal ----


class Deal:
    """The endless list of units for one source: every epoch all documents, in another order.

    A unit is a stripe from a row group: every `stripes`-th document, in random order. Row groups are cut into stripes
    only if an epoch has too few row groups. Every document is in exactly one unit per epoch, and all lanes finish an
    epoch at about the same time.
    """

    def __init__(self, shards: Sequence[Shard], tokenizer: Tokenizer, lanes: int, key: tuple[int, int]) -> None:
        """key: (seed, source number)."""
        self.lanes = lanes
        self.key = key
        self.bos = tokenizer.bos
        threads = min(MOST_THREADS, usable_cores())
        # (shard, row group in the shard)
        self._groups = [(shard, group) for shard in shards for group in range(shard.row_groups)]
        groups = len(self._groups)
        documents = sum(shard.rows for shard in shards)
        # Stripes per row group for 8 units per lane; a stripe needs at least one document.
        wanted = math.ceil(UNITS_PER_LANE * lanes / groups)
        self.stripes = min(wanted, max(1, documents // groups))
        self.units = groups * self.stripes  # in an epoch
        # Several lanes read stripes from one row group at about the same time: tokenize once, keep for all.
        cached = CACHED_GROUPS if self.stripes > 1 else 0
        # (ids, offsets) of a row group: document i is ids[offsets[i]:offsets[i + 1]], bos first
        self._read = lru_cache(cached)(
            lambda shard, group: tokenizer.core.encode_arrow(shard.read_row_group(group), self.bos, threads)
        )
        self._order = lru_cache(8)(lambda epoch: shuffled(groups, *key, 0, epoch))

    def epoch(self, lane: int, unit: int) -> int:
        # Unit u in lane l has the number u * lanes + l in the endless list.
        return (unit * self.lanes + lane) // self.units

    def documents(self, lane: int, unit: int) -> tuple[np.ndarray, list[int], list[int]]:
        """Return (ids, starts, stops) for a unit in a lane: document i is ids[starts[i]:stops[i]]."""
        epoch, position = divmod(unit * self.lanes + lane, self.units)
        place, stripe = divmod(position, self.stripes)
        group = int(self._order(epoch)[place])
        ids, offsets = self._read(*self._groups[group])
        order = shuffled(len(offsets) - 1, *self.key, 1, epoch, group)
        chosen = order[stripe :: self.stripes]
        return ids, offsets[chosen].tolist(), offsets[chosen + 1].tolist()


# ---- mix ----


class Mix:
    """The source for each row in a lane. All rows have the same size, so row shares are token shares.

    All lanes repeat one cycle, each from another start, so that the shares hold within a batch too.
    """

    def __init__(self, shares: Sequence[float], lanes: int) -> None:
        fractions = np.array(shares) / sum(shares)
        self._order = np.zeros(MIX_CYCLE, np.int64)  # source at each place in the cycle
        self._counts = np.zeros(len(shares), np.int64)  # rows from each source in a cycle
        for place in range(MIX_CYCLE):
            # The source furthest behind its share is next.
            source = np.argmax(fractions * (place + 1) - self._counts)
            self._order[place] = source
            self._counts[source] += 1
        if not self._counts.all():
            raise UserError(f"the mix has shares {list(shares)}: raise the share below 1/{MIX_CYCLE}")
        # Evenly spread over the cycle.
        self._starts = np.arange(lanes) * MIX_CYCLE // lanes

    def source(self, lane: int, turn: int) -> int:
        """Return the source for row number `turn` in a lane."""
        return int(self._order[(self._starts[lane] + turn) % MIX_CYCLE])

    def rows_before(self, lane: int, turn: int) -> list[int]:
        """Return row counts per source for the first `turn` rows in a lane."""
        cycles, rest = divmod(turn, MIX_CYCLE)
        places = (self._starts[lane] + np.arange(rest)) % MIX_CYCLE
        in_cycle = np.bincount(self._order[places], minlength=len(self._counts))
        return (cycles * self._counts + in_cycle).tolist()


# ---- pack ----

Stretch = tuple[int, int, int]  # piece, begin, end: the tokens begin … end - 1 in a piece


def pack(lengths: Sequence[int], opening: int, size: int) -> tuple[list[Stretch], list[Stretch]]:
    """Fill rows with `size` slots, each with the longest piece that fits; if none fits, the shortest one is cut.

    lengths: slots per piece, 2 to `size`, bos included, enough for a row; among equal pieces the last comes first.
    opening: number of first pieces, together shorter than a row, to begin the first row. Returns the stretches that
    fill the rows in order, and those left over. The rest of a cut piece waits with a new bos. A single free slot gets a
    bare bos. A row is started only if it can be filled.
    """
    unplaced = sum(lengths)  # slots not yet in a finished row
    placed = []
    waiting = []  # (slots, piece), sorted
    used = [0 for _ in lengths]  # tokens already in a row, for each piece
    room = size
    for piece, length in enumerate(lengths):
        if piece < opening:
            placed.append((piece, 0, length - 1))
            room -= length
        else:
            waiting.append((length, piece))
    waiting.sort()
    while unplaced >= size:
        while room > 1:
            # The longest piece that fits, else the shortest of all.
            index = bisect_left(waiting, (room + 1, 0)) - 1
            length, piece = waiting.pop(max(index, 0))
            taken = min(length, room)
            # A piece that was cut before begins where the cut was.
            begin = used[piece]
            end = begin + taken - 1
            placed.append((piece, begin, end))
            used[piece] = end
            if taken < length:
                insort(waiting, (length - taken + 1, piece))
                unplaced += 1  # the new bos
            room -= taken
        if room == 1:
            placed.append((0, 0, 0))  # an empty stretch is a bare bos
            unplaced += 1
        unplaced -= size
        room = size
    left = [(piece, used[piece], used[piece] + length - 1) for length, piece in waiting]
    return placed, left


class Piece(NamedTuple):
    """A document, or a part of one longer than a row.

    ids: a slot for the bos, then the tokens. unit, document: origin. begin: tokens in the document before the piece.
    """

    ids: np.ndarray
    unit: int
    document: int
    begin: int


@dataclass(frozen=True)
class Chunk:
    """The rows a lane packs together, as a few numbers, enough to pack the same rows again.

    unit, units: first unit, and how many. row, rows: rows in the lane before the chunk, and in the chunk. left: pieces
    left over by the chunk before, as (unit, document, begin, end) without bos; they begin the first row. Checkpoints
    hold these names.
    """

    unit: int = 0
    units: int = 0
    row: int = 0
    rows: int = 0
    left: Sequence[tuple[int, int, int, int]] = ()


@dataclass(frozen=True)
class Lane:
    """One lane for one source; size: slots in a row."""

    deal: Deal
    number: int
    size: int

    def rows(self, chunk: Chunk, row: int) -> Iterator[tuple[np.ndarray, Chunk]]:
        """Yield (row, its chunk) from row number `row` on, a row in `chunk` or right after."""
        leftover = []
        for unit, document, begin, end in chunk.left:
            ids, starts, _ = self.deal.documents(self.number, unit)
            head = starts[document] + begin
            part = ids[head : head + end - begin + 1]
            leftover.append(Piece(part, unit, document, begin))
        while True:
            # A saved chunk is packed again.
            pieces, units = self._read_units(chunk, leftover)
            rows, leftover = self._pack(chunk, pieces, len(leftover))
            chunk = replace(chunk, units=units, rows=len(rows))
            for ids in rows[row - chunk.row :]:
                yield ids, chunk
            row = chunk.row + chunk.rows
            left = [(unit, document, begin, begin + len(ids) - 1) for ids, unit, document, begin in leftover]
            chunk = Chunk(chunk.unit + units, row=row, left=left)

    def _pack(self, chunk: Chunk, pieces: list[Piece], opening: int) -> tuple[np.ndarray, list[Piece]]:
        """Return rows (rows, size) in random order, and the pieces left over."""
        placed, left = pack([len(piece.ids) for piece in pieces], opening, self.size)
        # With the slot before the first token: the bos, or a token that becomes the bos.
        parts = [pieces[number].ids[begin : end + 1] for number, begin, end in placed]
        ids = np.concatenate(parts)
        sizes = np.array(list(map(len, parts)))
        ids[np.cumsum(sizes) - sizes] = self.deal.bos
        # Packing goes from long documents to short ones, so shuffle the rows.
        rows = ids.reshape(-1, self.size)
        rows = rows[shuffled(len(rows), *self.deal.key, 2, self.number, chunk.unit)]
        leftover = []
        for number, begin, end in left:
            piece = pieces[number]
            # Copied, to free the whole row group.
            rest = piece.ids[begin : end + 1].copy()
            leftover.append(piece._replace(ids=rest, begin=piece.begin + begin))
        return rows, leftover

    def _read_units(self, chunk: Chunk, leftover: list[Piece]) -> tuple[list[Piece], int]:
        """Return (pieces, number of units read), enough for at least one row; the leftover pieces come first.

        A chunk ends with the epoch: a lane finishes one epoch before it begins the next one.
        """
        pieces = list(leftover)
        slots = sum(len(piece.ids) for piece in pieces)
        documents = 0
        unit = chunk.unit
        epoch = self.deal.epoch(self.number, unit)
        while True:
            ids, starts, stops = self.deal.documents(self.number, unit)
            for document, (start, stop) in enumerate(zip(starts, stops, strict=True)):
                # A document without text makes no piece, one longer than a row makes several.
                for head in range(start, stop - 1, self.size - 1):
                    part = ids[head : min(stop, head + self.size)]
                    pieces.append(Piece(part, unit, document, begin=head - start))
                    slots += len(part)
                documents += stop - start > 1
            unit += 1
            is_large = slots >= CHUNK_ROWS * self.size
            has_many = documents >= CHUNK_DOCUMENTS
            epoch_ends = self.deal.epoch(self.number, unit) != epoch
            # An epoch may end before a row is full: then the next one adds to the chunk.
            if slots >= self.size and (is_large or has_many or epoch_ends):
                return pieces, unit - chunk.unit
