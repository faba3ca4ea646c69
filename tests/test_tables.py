"""Constants written as text tables."""

from typing import NamedTuple

import pytest

from nanochat.tables import parse_rows, parse_table


class Pause(NamedTuple):
    label: str
    before: float = 0.0
    after: float = 0.0


def test_constants_are_read_from_text_tables() -> None:
    assert parse_rows("a b  => c\n  d =>\n", " *=> *") == [["a b", "c"], ["d", ""]]
    table = """
        label      after  before
        two words  -      1e-6
        last       0.5    -
    """
    assert parse_table(Pause, table) == [Pause("two words", before=1e-6), Pause("last", 0.0, 0.5)]
    for wrong, message in ((table.replace("after", "later"), "later"), (table + "short\n", "shorter")):
        with pytest.raises((TypeError, ValueError), match=message):
            parse_table(Pause, wrong)
