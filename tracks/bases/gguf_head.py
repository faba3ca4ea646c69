"""The head of a GGUF file: its entries as Python values, and where each tensor lies.

The package `gguf` makes arrays for each text of a vocabulary, which take seconds and more memory than the weights of a
small model. It is used for what is behind the head, the values of the tensors.

A head is b"GGUF", the version, the numbers of tensors and entries; entries of a name, a type and a value; tensors of a
name, sizes, a type and a place. Texts and arrays begin with a length. Numbers have their lowest byte first.
"""

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np

MAGIC = b"GGUF"
VERSIONS = (2, 3)
# Letter of `struct` by type.
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
TEXT, ARRAY = 8, 9
ALIGNMENT = "general.alignment"  # entry: tensors begin at multiples of it
MOST_SIZES = 4  # of a tensor


@dataclass(frozen=True)
class Place:
    """Where a tensor lies. shape: the last size is that of a row, as in PyTorch; start: in bytes, from the file's."""

    shape: tuple[int, ...]
    type: gguf.GGMLQuantizationType
    start: int

    @property
    def row_bytes(self) -> int:
        block, size = gguf.GGML_QUANT_SIZES[self.type]
        return self.shape[-1] // block * size

    @property
    def rows(self) -> int:
        return math.prod(self.shape[:-1])


class Head:
    """The entries of an open file, and its tensors; a ValueError says what is wrong with the file."""

    def __init__(self, path: Path) -> None:
        with open(path, "rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise ValueError("it begins with other bytes")
            self._mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._at = len(MAGIC)
        version = self._number("I")
        if version not in VERSIONS:
            reason = ", of a machine with the highest byte first" if version >= 2**16 else ""
            raise ValueError(f"its version is {version}{reason}: only {', '.join(map(str, VERSIONS))} are known")
        tensors, entries = self._number("Q"), self._number("Q")
        self.entries: dict[str, Any] = {}
        for _ in range(entries):
            name = self._text()
            if name in self.entries:
                raise ValueError(f"it has two entries {name}")
            self.entries[name] = self._value(self._number("I"))
        found = [self._tensor() for _ in range(tensors)]
        alignment = self.entries.get(ALIGNMENT, gguf.GGUF_DEFAULT_ALIGNMENT)
        if type(alignment) is not int or alignment < 1:
            raise ValueError(f"its {ALIGNMENT} is {alignment!r}")
        first = -(-self._at // alignment) * alignment
        self.tensors: dict[str, Place] = {}
        for name, shape, kind, start in found:
            if name in self.tensors:
                raise ValueError(f"it has two tensors {name}")
            place = Place(shape, kind, first + start)
            if shape[-1] % gguf.GGML_QUANT_SIZES[kind][0]:
                raise ValueError(f"a row of {name} has {shape[-1]} values, which are no whole blocks of {kind.name}")
            if place.start + place.rows * place.row_bytes > len(self._mapped):
                raise ValueError("it ends too early")
            self.tensors[name] = place
        end = first
        for name, place in sorted(self.tensors.items(), key=lambda one: one[1].start):
            # A small file could name large weights without end.
            if place.start < end:
                raise ValueError(f"its tensor {name} has bytes of another one")
            end = place.start + place.rows * place.row_bytes

    def rows(self, name: str, first: int, count: int) -> np.ndarray:
        """Return the bytes of some rows of a tensor, shape (rows, bytes of a row)."""
        place = self.tensors[name]
        count = min(count, place.rows - first)
        start = place.start + first * place.row_bytes
        return np.frombuffer(self._mapped, np.uint8, count * place.row_bytes, start).reshape(count, -1)

    def release(self) -> None:
        """Let pages that were read go from memory; they are read again when they are needed."""
        self._mapped.madvise(mmap.MADV_DONTNEED)

    def _take(self, count: int) -> int:
        """Return where the next bytes are, and go on behind them."""
        start = self._at
        if count > len(self._mapped) - start:
            raise ValueError("it names more than it has")
        self._at = start + count
        return start

    def _number(self, letter: str) -> Any:
        start = self._take(struct.calcsize(f"<{letter}"))
        return struct.unpack_from(f"<{letter}", self._mapped, start)[0]

    def _text(self) -> str:
        length = self._number("Q")
        start = self._take(length)
        return self._mapped[start : start + length].decode("utf-8")

    def _value(self, kind: int) -> Any:
        if kind == TEXT:
            return self._text()
        if kind in NUMBERS:
            return self._number(NUMBERS[kind])
        if kind != ARRAY:
            raise ValueError(f"it has a value of the type {kind}")
        kind, count = self._number("I"), self._number("Q")
        if kind == TEXT:
            return [self._text() for _ in range(count)]
        if kind not in NUMBERS:
            raise ValueError(f"it has an array of the type {kind}")
        size = struct.calcsize(f"<{NUMBERS[kind]}")
        start = self._take(count * size)
        return np.frombuffer(self._mapped, np.dtype(NUMBERS[kind]).newbyteorder("<"), count, start).tolist()

    def _tensor(self) -> tuple[str, tuple[int, ...], gguf.GGMLQuantizationType, int]:
        name = self._text()
        sizes = self._number("I")
        if not 1 <= sizes <= MOST_SIZES:
            raise ValueError(f"its tensor {name} has {sizes} dimensions")
        shape = tuple(reversed([self._number("Q") for _ in range(sizes)]))
        if 0 in shape:
            raise ValueError(f"its tensor {name} has no values")
        kind = self._number("I")
        if kind not in gguf.GGML_QUANT_SIZES:
            raise ValueError(f"its tensor {name} is of the type {kind}")
        return name, shape, gguf.GGMLQuantizationType(kind), self._number("Q")
