"""Dealing, mixing, packing, and the rows of one lane."""

import itertools
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from corpora import CountedTokenizer
from hypothesis import assume, given
from hypothesis import strategies as st

from nanochat.data.lanes import MIX_CYCLE, Chunk, Deal, Lane, Mix, pack, shuffled

BOS = 0


class LetterShard:
    """A shard with a row group for each list of document lengths; over all of them document i has the id i + 1."""

    def __init__(self, groups: list[list[int]]) -> None:
        self.rows, self.row_groups = sum(map(len, groups)), len(groups)
        numbers = itertools.count(1)
        self._groups = [pa.array([f"{next(numbers)} {length}" for length in lengths]) for lengths in groups]

    def read_row_group(self, group: int):
        return self._groups[group]


def deal_of(groups: list[list[int]], lanes: int, seed: int = 0):
    return Deal([LetterShard(groups)], CountedTokenizer(), lanes, (seed, 0))


@pytest.fixture
def random_lengths(seed):
    chance = np.random.default_rng(seed)
    return lambda count, most: chance.integers(0, most, count).tolist()


def naive_pack(lengths: list[int], opening: int, size: int):
    """`pack` by its definition, with linear search: rows of (piece, begin, end), and the pieces left."""
    waiting = [(i, 0, length - 1) for i, length in enumerate(lengths)]
    rows = []
    while sum(end - begin + 1 for _, begin, end in waiting) >= size:
        row, room = [], size
        if not rows:
            row, waiting = waiting[:opening], waiting[opening:]
            room -= sum(end - begin + 1 for _, begin, end in row)
        while room > 1:
            slots = [(end - begin + 1, i) for i, begin, end in waiting]
            fitting = [key for key in slots if key[0] <= room]
            at = slots.index(max(fitting) if fitting else min(slots))
            i, begin, end = waiting.pop(at)
            cut = min(end, begin + room - 1)
            row.append((i, begin, cut))
            room -= cut - begin + 1
            if cut < end:
                waiting.append((i, cut, end))
        rows.append(row + [(0, 0, 0)] * room)
    return rows, waiting


@given(
    st.integers(2, 40).flatmap(lambda size: st.tuples(st.just(size), st.lists(st.integers(2, size), max_size=60))),
    st.integers(0, 5),
)
def test_packing_equals_best_fit_by_linear_search(size_and_lengths, opening) -> None:
    size, lengths = size_and_lengths
    assume(sum(lengths) >= size)
    while sum(lengths[:opening]) >= size:
        opening -= 1
    rows, left = naive_pack(lengths, opening, size)
    placed, rest = pack(lengths, opening, size)
    assert placed == [stretch for row in rows for stretch in row]
    assert sorted(rest) == sorted(left)
    assert all(sum(end - begin + 1 for _, begin, end in row) == size for row in rows)
    assert sum(end - begin for _, begin, end in placed + rest) == sum(lengths) - len(lengths)


def test_epochs_and_seeds_have_different_orders() -> None:
    orders = set()
    for seed in (0, 1):
        deal = deal_of([[1] * 40 for _ in range(4)], 2, seed)
        for epoch in (0, 1):
            numbers = range(epoch * deal.units, (epoch + 1) * deal.units)
            units = [deal.documents(number % 2, number // 2) for number in numbers]
            orders.add(tuple(int(ids[a + 1]) for ids, starts, _ in units for a in starts))
    assert len(orders) == 4
    assert all(sorted(order) == list(range(1, 161)) for order in orders)
    assert shuffled(10, 1, 2, 3).tolist() == [8, 1, 9, 3, 7, 5, 2, 0, 4, 6]  # on every machine


def rows_of(deal: Deal, lane: int, count: int, size: int = 17):
    """The first rows of a lane; test_dataloader.py resumes at any."""
    return np.stack([ids for ids, _ in itertools.islice(Lane(deal, lane, size).rows(Chunk(), 0), count)])


@pytest.mark.parametrize("lanes", [1, 4, 64])
def test_every_document_is_given_once_an_epoch(random_lengths, lanes) -> None:
    """Until each lane is at the same epoch: rows and leftover pieces are all documents of the epochs before."""
    groups = [random_lengths(100, 60) for _ in range(5)]
    lengths = [length for group in groups for length in group]
    deal = deal_of(groups, lanes)
    given = Counter()
    for lane in range(lanes):
        for ids, chunk in Lane(deal, lane, 17).rows(Chunk(), 0):
            if deal.epoch(lane, chunk.unit) == 3:
                for unit, document, begin, end in chunk.left:
                    source, starts, _ = deal.documents(lane, unit)
                    given.update(source[starts[document] + 1 + begin :][: end - begin].tolist())
                break
            given.update(ids.tolist())
    del given[BOS]
    assert given == Counter({i + 1: 3 * length for i, length in enumerate(lengths) if length})


def test_documents_that_are_very_long_short_or_empty() -> None:
    rows = rows_of(deal_of([[5, 100_000, 3]], 1), 0, 6000)
    assert (rows[:, 0] == BOS).all()
    assert ((rows == 2).sum(axis=1) == 16).sum() > 5000  # whole rows of it, a bos before each
    rows = rows_of(deal_of([[3, 1]], 1), 0, 8, size=2)
    assert rows[:, 0].tolist() == [BOS] * 8
    assert Counter(rows[:, 1].tolist()) == {1: 6, 2: 2}
    rows = rows_of(deal_of([[0, 0, 0, 7, 0, 0], [0, 0]], 3), 1, 5)
    assert ((rows == BOS) | (rows == 4)).all()


@pytest.mark.parametrize("shares", [[1], [0.7, 0.3], [5, 3, 2], [0.997, 0.002, 0.001], [1] * 7])
def test_the_sources_of_a_mix_have_their_shares(shares) -> None:
    lanes = 64
    mix = Mix(shares, lanes)
    counts = {lane: [0] * len(shares) for lane in range(lanes)}
    fractions = np.array(shares) / sum(shares)
    for row in range(20 * lanes):
        turn, lane = divmod(row, lanes)
        assert mix.rows_before(lane, turn) == counts[lane]
        source = mix.source(lane, turn)
        counts[lane][source] += 1
    given = np.sum([*counts.values()], axis=0)
    assert np.abs(given / given.sum() - fractions).max() < 0.01
    cycles = np.sum([mix.rows_before(lane, MIX_CYCLE) for lane in range(lanes)], axis=0)
    assert np.abs(cycles / cycles.sum() - fractions).max() <= 1 / MIX_CYCLE
    with pytest.raises(ValueError, match="below 1/1000"):
        Mix([1, 0.0001], 64)


# Documents in each row group, lanes.
DEALS = [([3], 64), ([1, 1, 1], 2), ([100, 7, 1, 55], 8), ([30] * 14, 64), ([4] * 700, 8)]


@pytest.mark.parametrize(("groups", "lanes"), DEALS)
def test_every_document_is_in_one_unit_of_every_epoch(groups, lanes) -> None:
    """Also with more lanes than documents, and with groups of very different sizes."""
    deal = deal_of([[1] * count for count in groups], lanes)
    for epoch in range(3):
        seen = Counter()
        for number in range(epoch * deal.units, (epoch + 1) * deal.units):
            unit, lane = divmod(number, lanes)
            assert deal.epoch(lane, unit) == epoch
            ids, starts, stops = deal.documents(lane, unit)
            seen.update(token for a, b in zip(starts, stops, strict=True) for token in ids[a + 1 : b].tolist())
        assert seen == Counter(range(1, sum(groups) + 1))
