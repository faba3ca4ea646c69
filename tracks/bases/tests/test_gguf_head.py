"""The head of a GGUF file, compared with what the package `gguf` reads, and faults in it."""

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest

from tracks.bases.gguf_head import Head
from tracks.bases.tests.public_models import save_gguf


@pytest.mark.parametrize(("case", "kind"), [("llama", "Q4_0"), ("gemma3", "F16"), ("qwen2", "F32")])
def test_a_head_is_what_the_library_reads(case: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    save_gguf(case, path, kind, entries={"a.bool": True, "a.float": 1.5, "a.floats": [0.5, -1.0], "a.negative": [-1]})
    head = Head(path)
    theirs = gguf.GGUFReader(path)
    named = {name: field.contents() for name, field in theirs.fields.items() if not name.startswith("GGUF.")}
    assert head.entries == named
    assert len(head.entries["tokenizer.ggml.tokens"]) > 600
    assert list(head.tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        place = head.tensors[tensor.name]
        assert (place.shape, place.type) == (tuple(reversed(tensor.shape.tolist())), tensor.tensor_type)
        assert head.rows(tensor.name, 0, place.rows).tobytes() == tensor.data.tobytes()
    name, place = next((name, place) for name, place in head.tensors.items() if place.rows > 8)
    whole = head.rows(name, 0, place.rows)
    head.release()
    assert np.array_equal(head.rows(name, 3, 4), whole[3:7])
    assert np.array_equal(head.rows(name, place.rows - 2, 9), whole[-2:])  # fewer are left


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def entry(name: bytes, number: int = 1) -> bytes:
    return text(name) + struct.pack("<II", 4, number)


def tensor(name: bytes, *sizes: int, kind: int = 0, start: int = 0) -> bytes:
    return text(name) + struct.pack("<I", len(sizes)) + struct.pack(f"<{len(sizes)}QIQ", *sizes, kind, start)


FAULTS = [
    ("its version is 1: only 2, 3", 1, [], []),
    ("its version is 50331648, of a machine with the highest byte first", 3 << 24, [], []),
    ("it has two entries a", 3, [entry(b"a"), entry(b"a")], []),
    ("it has a value of the type 99", 3, [text(b"a") + struct.pack("<I", 99)], []),
    ("it has an array of the type 9", 3, [text(b"a") + struct.pack("<IIQ", 9, 9, 1)], []),
    ("can't decode byte 0xff", 3, [entry(b"\xff")], []),
    ("it names more than it has", 3, [struct.pack("<Q", 10**12)], []),
    ("its general.alignment is 0", 3, [entry(b"general.alignment", 0)], []),
    ("it has two tensors w", 3, [], [tensor(b"w", 4), tensor(b"w", 4)]),
    ("its tensor w has 0 dimensions", 3, [], [tensor(b"w")]),
    ("its tensor w has 5 dimensions", 3, [], [tensor(b"w", 1, 1, 1, 1, 1)]),
    ("its tensor w has no values", 3, [], [tensor(b"w", 0, 1 << 60)]),
    ("its tensor w is of the type 999", 3, [], [tensor(b"w", 4, kind=999)]),
    ("a row of w has 33 values, which are no whole blocks of Q4_0", 3, [], [tensor(b"w", 33, 2, kind=2)]),
    ("it ends too early", 3, [], [tensor(b"w", 4, 5)]),
    ("its tensor [vw] has bytes of another one", 3, [], [tensor(b"v", 4), tensor(b"w", 4)]),
    ("its tensor v has bytes of another one", 3, [], [tensor(b"v", 4, start=12), tensor(b"w", 4)]),
    ("it ends too early", 3, [], [tensor(b"w", 4, start=1 << 60)]),
]


@pytest.mark.parametrize(("fault", "version", "entries", "tensors"), FAULTS)
def test_a_fault(fault: str, version: int, entries: list[bytes], tensors: list[bytes], tmp_path: Path) -> None:
    def write(version: int, entries: list[bytes], tensors: list[bytes]) -> Path:
        counts = struct.pack("<IQQ", version, len(tensors), len(entries))
        head = b"GGUF" + counts + b"".join([*entries, *tensors])
        (tmp_path / "model.gguf").write_bytes(head + bytes(-len(head) % 32 + 64))
        return tmp_path / "model.gguf"

    with pytest.raises(ValueError, match=fault):
        Head(write(version, entries, tensors))
    assert Head(write(3, [entry(b"a", 7)], [tensor(b"w", 4, 2)])).entries == {"a": 7}


def test_an_alignment_of_the_file(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.add_custom_alignment(256)
    for name in "ab":
        writer.add_tensor(name, np.full((3, 5), ord(name), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    head = Head(tmp_path / "model.gguf")
    assert [place.start % 256 for place in head.tensors.values()] == [0, 0]
    assert [head.rows(name, 2, 1).view(np.float32)[0, 4] for name in "ab"] == [97.0, 98.0]
