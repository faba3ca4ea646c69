"""Constants written as text tables, where aligned columns are easier to read than calls."""

import re
from typing import TypeVar

Parsed = TypeVar("Parsed")


def parse_rows(text: str, gap: str = " {2,}") -> list[list[str]]:
    """Return the cells of each line. gap: the pattern between two cells."""
    return [re.split(gap, line.strip()) for line in text.strip().splitlines()]


def parse_table(kind: type[Parsed], text: str) -> list[Parsed]:
    """Return the lines as objects. The first line names the fields; a dash leaves a field its default."""
    names, *lines = parse_rows(text)
    table = []
    for cells in lines:
        values = {name: _number(cell) for name, cell in zip(names, cells, strict=True) if cell != "-"}
        table.append(kind(**values))
    return table


def _number(cell: str) -> float | str:
    """Return the number in a cell, or the cell if it is none."""
    try:
        return float(cell)
    except ValueError:
        return cell
