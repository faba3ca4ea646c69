"""Plain data as JSON: what is written is read, of the same types; nothing else can be written, no name is looked up."""

import math
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction
from typing import Any

import pytest

from nanochat.evals.plain_data import NotPlain, dumps, loads

Point = namedtuple("Point", "x y")


class Level(IntEnum):
    HIGH = 3


VALUES = [
    None,
    True,
    -(2**63),
    10**5000,  # more digits than Python reads
    0.1,
    -math.inf,
    "a\n\udc80π",
    b"\x00\xff",
    bytearray(b"ab"),
    1 - 2j,
    range(3, -5, -2),
    Decimal("1.10"),
    Fraction(-2, 3),
    [1, (2, [3])],
    {"tuple": [1], (1, 2): {None: {1}}, 1.5: frozenset({(1,)})},
    set(),
    deque([1, [2]]),
]


@pytest.mark.parametrize("value", VALUES, ids=[type(value).__name__ for value in VALUES])
def test_what_is_written_is_read(value: Any) -> None:
    line = dumps(value)
    assert "\n" not in line
    assert loads(line) == value
    assert type(loads(line)) is type(value)


def test_subclasses_go_as_plain_types_and_iterators_as_iterators() -> None:
    for value, plain in (
        (Counter("aab"), {"a": 2, "b": 1}),
        (OrderedDict(a=1), {"a": 1}),
        (defaultdict(list, a=[1]), {"a": [1]}),
        (Point(1, 2), (1, 2)),
        (Level.HIGH, 3),
    ):
        assert loads(dumps(value)) == plain
        assert type(loads(dumps(value))) is type(plain)
    assert math.isnan(loads(dumps(math.nan)))
    found = loads(dumps(value for value in (1, 2)))
    assert iter(found) is found
    assert list(found) == [1, 2]


@pytest.mark.parametrize("value", [object(), int, print, [lambda: 0], {1: object()}, Ellipsis])
def test_nothing_else_is_written(value: Any) -> None:
    with pytest.raises(NotPlain, match="is not plain data"):
        dumps(value)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "{}",
        '{"eval": "1"}',
        '{"tuple": [], "list": []}',
        '{"Fraction": [1, 0]}',
        '{"Decimal": [1]}',
        '{"set": [[]]}',
        '{"int": "__import__"}',
        '{"bytes": "π"}',
        "[" * 10**5,
    ],
)
def test_other_lines_are_errors(line: str) -> None:
    with pytest.raises((ValueError, TypeError, KeyError, ArithmeticError, RecursionError)):
        loads(line)
