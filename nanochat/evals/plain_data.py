"""Plain data as JSON, between a program that nobody trusts and one that judges it.

What JSON lacks is an object with one key, the kind: {"tuple": […]}. Reading makes values of built-in types and never
looks a name up, so nothing from the other side can bring code along, or change a class that both have. Both sides of
the sandbox run this file's text (sandbox.py): it uses the standard library only.
"""

import json
from collections import deque
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

LARGE = 2**64  # integers from here on go in base 16: in base 10 Python reads a few thousand digits at most


class NotPlain(TypeError):
    """A value has a part that is not plain data."""


# Kind → its type, what it is written as (plain data again), and how that is read.
KINDS: dict[str, tuple[type, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "tuple": (tuple, list, tuple),
    "set": (set, list, set),
    "frozenset": (frozenset, list, frozenset),
    "dict": (dict, lambda value: [list(pair) for pair in value.items()], dict),
    "deque": (deque, list, deque),
    "bytes": (bytes, lambda value: value.decode("latin-1"), lambda text: text.encode("latin-1")),
    "bytearray": (bytearray, lambda value: value.decode("latin-1"), lambda text: bytearray(text, "latin-1")),
    "range": (range, lambda value: [value.start, value.stop, value.step], lambda bounds: range(*bounds)),
    "complex": (complex, lambda value: [value.real, value.imag], lambda parts: complex(*parts)),
    "Decimal": (Decimal, str, Decimal),
    "Fraction": (Fraction, lambda value: [value.numerator, value.denominator], lambda parts: Fraction(*parts)),
}


def dumps(value: Any) -> str:
    """Return a value as one line; NotPlain if a part of it cannot be written. A subclass goes as its plain type."""
    return json.dumps(_written(value))


def loads(line: str | bytes) -> Any:
    """Return the value of a line, of built-in types alone; an error of some type for anything but such a line."""
    return _read(json.loads(line))


def _written(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if abs(value) < LARGE else {"int": hex(value)}
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, list):
        return [_written(part) for part in value]
    for kind, (plain, write, _) in KINDS.items():
        if isinstance(value, plain):
            return {kind: _written(write(value))}
    if hasattr(value, "__next__"):  # a generator, say: the other side gets an iterator over the same values
        return {"iterator": _written(list(value))}
    raise NotPlain(f"{type(value).__name__} is not plain data")


def _read(found: Any) -> Any:
    if isinstance(found, list):
        return [_read(part) for part in found]
    if not isinstance(found, dict):
        return found
    [(kind, content)] = found.items()
    if kind == "int":
        return int(content, 16)
    if kind == "iterator":
        return iter(_read(content))
    _, _, read = KINDS[kind]
    return read(_read(content))
