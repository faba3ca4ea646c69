"""Dealing, packing and the rows of one lane."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanochat.data.lanes import MIX_CYCLE, Deal, Lane, Mix, Window, pack, shuffled

BOS = 0


def group_of(lengths: list[int], first: int) -> tuple[np.ndarray, np.ndarray]:
    """A row group of which document i is the id first + i, lengths[i] times."""
    documents = [[BOS] + [first + i] * length for i, length in enumerate(lengths)]
    ids = np.array([id for document in documents for id in document], np.uint16)
    return ids, np.cumsum([0] + [len(document) for document in documents])


def deal_of(groups: list[list[int]], lanes: int, seed: int = 0) -> Deal:
    firsts = np.cumsum([1] + [len(lengths) for lengths in groups])
    made = [group_of(lengths, int(first)) for lengths, first in zip(groups, firsts, strict=False)]
    return Deal(made.__getitem__, len(groups), sum(map(len, groups)), lanes, (seed, 0))


# ---- packing ----


def naive_pack(lengths: list[int], opening: int, size: int, carry: bool) -> tuple[list, list, int]:
    """The definition of `pack`, by linear search: rows of (piece, begin, end), what is left, and what is dropped."""
    waiting = [(i, 0, length - 1) for i, length in enumerate(lengths)]
    rows, dropped = [], 0
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
            if cut < end and carry:
                waiting.append((i, cut, end))
            else:
                dropped += end - cut
        rows.append(row + [(0, 0, 0)] * room)
    return rows, waiting, dropped


@given(
    st.integers(2, 40).flatmap(lambda size: st.tuples(st.just(size), st.lists(st.integers(2, size), max_size=60))),
    st.integers(0, 5),
    st.booleans(),
)
def test_packing_is_best_fit_found_by_linear_search(size_and_lengths, opening, carry):
    size, lengths = size_and_lengths
    while sum(lengths[:opening]) >= size or opening > len(lengths):
        opening -= 1
    rows, left, dropped = naive_pack(lengths, opening, size, carry)
    packing = pack(lengths, opening, size, carry)
    stretches = list(zip(packing.which, packing.begin, packing.end, strict=True))
    assert stretches == [stretch for row in rows for stretch in row]
    assert sorted(packing.left) == sorted(left)
    assert packing.dropped == dropped
    assert all(sum(end - begin + 1 for _, begin, end in row) == size for row in rows)
    used = Counter()
    for i, begin, end in [*stretches, *packing.left]:
        used[i] += end - begin
    assert sum(used.values()) + dropped == sum(lengths) - len(lengths)
    if carry:
        assert dropped == 0


# ---- dealing ----


@pytest.mark.parametrize(
    ("groups", "lanes"),
    [([3], 64), ([1, 1, 1], 2), ([100, 7, 0, 55], 8), ([30] * 14, 64), ([4] * 700, 8)],
)
def test_every_document_is_in_one_unit_of_every_epoch(groups, lanes):
    deal = deal_of([[1] * count for count in groups], lanes)
    for epoch in range(3):
        seen = Counter()
        for number in range(epoch * deal.units, (epoch + 1) * deal.units):
            unit, lane = divmod(number, lanes)
            assert deal.epoch(lane, unit) == epoch
            ids, starts, stops = deal.unit(lane, unit)
            seen.update(id for a, b in zip(starts, stops, strict=True) for id in ids[a + 1 : b].tolist())
        assert seen == Counter(range(1, sum(groups) + 1))


def test_lanes_have_row_groups_of_their_own_where_there_are_enough():
    assert deal_of([[1] * 4] * 700, 8).stripes == 1
    assert deal_of([[1] * 50] * 14, 64).stripes == 37  # 8 units for each of 64 lanes


def test_epochs_and_seeds_have_orders_of_their_own():
    groups = [[1] * 40 for _ in range(4)]
    orders = set()
    for seed in (0, 1):
        deal = deal_of(groups, 2, seed)
        for epoch in (0, 1):
            numbers = range(epoch * deal.units, (epoch + 1) * deal.units)
            units = [deal.unit(number % 2, number // 2) for number in numbers]
            orders.add(tuple(int(ids[a + 1]) for ids, starts, _ in units for a in starts))
    assert len(orders) == 4
    assert all(sorted(order) == list(range(1, 161)) for order in orders)
    deal = deal_of([[1]] * 40, 1)
    groups = [[deal.place(0, epoch * deal.units + unit)[1] for unit in range(deal.units)] for epoch in (0, 1)]
    assert groups[0] != groups[1]


def test_an_order_is_the_same_on_every_machine():
    assert shuffled(10, 1, 2, 3).tolist() == [8, 1, 9, 3, 7, 5, 2, 0, 4, 6]


# ---- the rows of a lane ----


def rows_of(deal: Deal, lane: int, count: int, size: int = 17, carry: bool = True) -> tuple[np.ndarray, Lane]:
    made = Lane(deal, lane, size, BOS, carry, Window(), 0)
    return np.stack([made.take() for _ in range(count)]), made


def test_every_document_is_given_once_an_epoch(random_lengths):
    """Lane by lane until each is at the same epoch: what it has given and what waits is all of the epochs before."""
    groups = [random_lengths(100, 60) for _ in range(5)]
    lengths = [length for group in groups for length in group]
    deal = deal_of(groups, 4)
    given = Counter()
    for lane in range(4):
        made = Lane(deal, lane, 17, BOS, True, Window(), 0)
        while deal.epoch(lane, made.window.unit + made.window.units) < 3:
            given.update(made.take().tolist())
        for _ in range(made.window.row + made.window.rows - made.row):
            given.update(made.take().tolist())
        for ids in made._left:
            given.update(ids[1:].tolist())
    del given[BOS]
    assert given == Counter({i + 1: 3 * length for i, length in enumerate(lengths) if length})


@pytest.fixture
def random_lengths():
    seed = int(np.random.SeedSequence().entropy % 1_000_000)
    print(f"seed {seed}")
    chance = np.random.default_rng(seed)
    return lambda count, most: chance.integers(0, most, count).tolist()


@pytest.mark.parametrize("carry", [True, False])
def test_a_lane_goes_on_from_any_row(random_lengths, carry):
    deal = deal_of([random_lengths(30, 60) for _ in range(6)], 2)
    rows, _ = rows_of(deal, 1, 300, carry=carry)
    made = Lane(deal, 1, 17, BOS, carry, Window(), 0)
    for row in range(299):
        again = Lane(deal, 1, 17, BOS, carry, made.window, made.row)
        assert np.array_equal(again.take(), rows[row])
        assert np.array_equal(again.take(), rows[row + 1])
        made.take()


def test_a_lane_notices_that_the_data_is_another(random_lengths):
    groups = [random_lengths(30, 60) for _ in range(6)]
    _, made = rows_of(deal_of(groups, 2), 1, 100)
    other = deal_of([[length + 9 for length in lengths] for lengths in groups], 2)
    with pytest.raises(ValueError, match="lane 1 reads other text"):
        Lane(other, 1, 17, BOS, True, made.window, made.row).take()


def test_a_document_longer_than_all_else_is_cut_into_rows():
    rows, _ = rows_of(deal_of([[5, 100_000, 3]], 1), 0, 6000)
    assert (rows[:, 0] == BOS).all()
    assert ((rows == 2).sum(axis=1) == 16).sum() > 5000  # whole rows of it, a bos before each


def test_a_row_of_one_token_and_its_target():
    rows, _ = rows_of(deal_of([[3, 1]], 1), 0, 8, size=2)
    assert rows[:, 0].tolist() == [BOS] * 8
    assert Counter(rows[:, 1].tolist()) == {1: 6, 2: 2}


def test_documents_without_a_word():
    rows, _ = rows_of(deal_of([[0, 0, 0, 7, 0, 0], [0, 0]], 3), 1, 5)
    assert ((rows == BOS) | (rows == 4)).all()
    with pytest.raises(ValueError, match="no document with text"):
        rows_of(deal_of([[0, 0, 0]], 2), 0, 1)


# ---- mixes ----


@pytest.mark.parametrize("weights", [[1], [0.7, 0.3], [5, 3, 2], [0.997, 0.002, 0.001], [1] * 7])
def test_the_parts_of_a_mix_have_their_shares(weights):
    lanes = 64
    mix = Mix(weights, lanes)
    counts = {lane: [0] * len(weights) for lane in range(lanes)}
    given = np.zeros(len(weights))
    shares = np.array(weights) / sum(weights)
    for row in range(20 * lanes):
        turn, lane = divmod(row, lanes)
        assert mix.rows_before(lane, turn) == counts[lane]
        part = mix.part(lane, turn)
        counts[lane][part] += 1
        given[part] += 1
    assert np.abs(given / given.sum() - shares).max() < 0.01
    whole_cycles = np.sum([mix.rows_before(lane, MIX_CYCLE) for lane in range(lanes)], axis=0)
    assert np.abs(whole_cycles / whole_cycles.sum() - shares).max() <= 1 / MIX_CYCLE


def test_weights_that_mean_nothing_are_refused():
    for weights in ([1, 0], [1, -1], []):
        with pytest.raises(ValueError, match="more than 0"):
            Mix(weights, 64)
    with pytest.raises(ValueError, match="less than 1/1000"):
        Mix([1, 0.0001], 64)
