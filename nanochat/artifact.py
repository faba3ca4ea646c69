"""The golf artifact: quantized weights and a vocabulary in one file, without pickle. Reader and writer.

A file is MAGIC, the SHA-256 of the rest, the length of the model's part, that part, and the vocabulary's part. The
model's part has a header (JSON) and a section for each group of tensors, compressed by itself, so that its bytes are
known. The scoring process imports this module, and its bytes count: quantization itself is in quant.py.
"""

import json
import lzma
import struct
import zlib
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

MAGIC = b"nanogolf1\n"
HEADER, SCALARS = "header", "scales"  # groups of bytes beside those of GROUPS
GROUPS = {
    "embed.": "embeddings",
    "value_embeds.": "embeddings",
    "head.": "embeddings",
    ".attn.": "attention",
    ".mlp.": "MLP",
}
FULL = 16  # bits: fp16 values, without codes
# A raw stream with one adaptive model for all literals: the best for bytes that do not depend on their neighbours.
LZMA = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 0, "lp": 0, "pb": 0}]


class Compressor(NamedTuple):
    """A way to make bytes fewer, and back."""

    compress: Callable[[bytes], bytes]
    expand: Callable[[bytes], bytes]


def _lzma(raw: bytes) -> bytes:
    return lzma.compress(raw, lzma.FORMAT_RAW, filters=LZMA)


def _expand_lzma(packed: bytes) -> bytes:
    return lzma.decompress(packed, lzma.FORMAT_RAW, filters=LZMA)


COMPRESSORS = {
    "store": Compressor(bytes, bytes),
    "zlib": Compressor(lambda raw: zlib.compress(raw, 9), zlib.decompress),
    "lzma": Compressor(_lzma, _expand_lzma),
}


class Quantized(NamedTuple):
    """A matrix as whole numbers, with a scale for each row."""

    codes: Tensor  # (rows, columns) int8, from -(2^(bits - 1) - 1) to 2^(bits - 1) - 1
    scales: Tensor  # (rows,) fp16
    bits: int

    def dequantize(self) -> Tensor:
        return self.codes.float() * self.scales.float()[:, None]


Stored = dict[str, "Quantized | Tensor"]  # name → codes, or values that are kept in fp16
CORRECTION = ("#left", "#right")  # endings of the names of two factors, whose product is added to a tensor


class Artifact(NamedTuple):
    """The content of a file."""

    config: dict[str, Any]  # fields of GPTConfig that are not the default
    weights: dict[str, Tensor]  # fp32
    vocabulary: dict[str, Any]  # merges, special tokens, pattern: arguments of rustbpe.Tokenizer
    recipes: dict[str, str]  # for the record: tensor → recipe
    bytes: dict[str, int]  # group → bytes in the file; "tokenizer" is the vocabulary's part


def group_of(name: str) -> str:
    """Return the group of a tensor's codes."""
    return next((group for part, group in GROUPS.items() if part in f".{name}"), "other")


# ---- codes as bytes ----


def pack_bits(values: np.ndarray, bits: int) -> bytes:
    """Return unsigned values below 2^bits, each in so many bits; only the last byte may have bits to spare."""
    spread = np.unpackbits(values.astype(np.uint8)[:, None], axis=1)
    kept = spread[:, 8 - bits :]
    return np.packbits(kept.ravel()).tobytes()


def unpack_bits(packed: bytes, bits: int, count: int) -> np.ndarray:
    """Return `count` values, uint8, that pack_bits has packed."""
    spread = np.unpackbits(np.frombuffer(packed, np.uint8), count=bits * count).reshape(count, bits)
    whole = np.pad(spread, ((0, 0), (8 - bits, 0)))
    return np.packbits(whole, axis=1).ravel()


def _forms(raw: np.ndarray, bits: int) -> dict[str, bytes]:
    """Return the bytes of a section in each layout: codes packed or one a byte, halves of fp16 apart or not."""
    if bits == FULL:
        halves = raw.view(np.uint8).reshape(-1, 2)
        return {"plain": raw.tobytes(), "shuffled": halves.T.tobytes()}
    return {"bits": pack_bits(raw, bits), "bytes": raw.tobytes()}


def _values(stored: bytes, layout: str, bits: int, count: int) -> np.ndarray:
    """Return the values of a section from its expanded bytes."""
    if layout == "bits":
        return unpack_bits(stored, bits, count)
    if layout == "shuffled":
        stored = np.frombuffer(stored, np.uint8).reshape(2, -1).T.tobytes()
    return np.frombuffer(stored, np.float16 if bits == FULL else np.uint8)


def compress(raw: np.ndarray, bits: int) -> tuple[str, str, bytes]:
    """Return the layout and the compressor that make values smallest, and the bytes."""
    smallest = None
    for layout, stored in _forms(raw, bits).items():
        for name, compressor in COMPRESSORS.items():
            packed = compressor.compress(stored)
            if smallest is None or len(packed) < len(smallest[2]):
                smallest = layout, name, packed
    return smallest


# ---- the file ----


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def write_artifact(
    config: dict[str, Any], stored: Stored, vocabulary: Mapping[str, Any], recipes: Mapping[str, str]
) -> bytes:
    """Return the bytes of a file."""
    columns: dict[tuple[str, int], list[np.ndarray]] = {}  # (group, bits) → values in the tensors' order
    tensors = []

    def put(group: str, bits: int, values: np.ndarray) -> None:
        columns.setdefault((group, bits), []).append(values.ravel())

    for name, value in stored.items():
        if isinstance(value, Quantized):
            unsigned = value.codes.numpy().astype(np.int16) + 2 ** (value.bits - 1)
            put(group_of(name), value.bits, unsigned.astype(np.uint8))
            put(SCALARS, FULL, value.scales.numpy())
            tensors.append([name, list(value.codes.shape), value.bits])
        else:
            put(SCALARS, FULL, value.half().numpy())
            tensors.append([name, list(value.shape), FULL])
    sections, body = [], b""
    for (group, bits), parts in columns.items():
        raw = np.concatenate(parts)
        layout, compressor, packed = compress(raw, bits)
        sections.append([group, bits, layout, compressor, len(raw), len(packed)])
        body += packed
    header = {
        "config": config,
        "tensors": tensors,
        "sections": sections,
        "recipes": dict(recipes),
    }
    head = zlib.compress(_json(header), 9)
    model = struct.pack("<I", len(head)) + head + body
    tokens = _lzma(_json(dict(vocabulary)))
    rest = struct.pack("<I", len(model)) + model + tokens
    return MAGIC + sha256(rest).digest() + rest


def read_artifact(data: bytes) -> Artifact:
    """Return the content of a file; ValueError for anything but a whole file of this version."""
    if not data.startswith(MAGIC):
        raise ValueError("this is no golf artifact of this version")
    start = len(MAGIC) + 32
    rest = data[start:]
    if sha256(rest).digest() != data[len(MAGIC) : start]:
        raise ValueError("the artifact is damaged: its content does not have the SHA-256 in its header")
    [length] = struct.unpack_from("<I", rest)
    model = rest[4 : 4 + length]
    tokens = rest[4 + length :]
    [head] = struct.unpack_from("<I", model)
    header = json.loads(zlib.decompress(model[4 : 4 + head]))
    sizes = {HEADER: start + 8 + head}
    columns = {}
    place = 4 + head
    for group, bits, layout, compressor, count, size in header["sections"]:
        packed = model[place : place + size]
        expanded = COMPRESSORS[compressor].expand(packed)
        columns[group, bits] = _values(expanded, layout, bits, count)
        sizes[group] = sizes.get(group, 0) + size
        place += size
    taken = dict.fromkeys(columns, 0)

    def take(key: tuple[str, int], count: int) -> np.ndarray:
        values = columns[key][taken[key] : taken[key] + count]
        taken[key] += count
        return values.astype(np.float32)  # by numpy: for fp16, torch reads a file that the sandbox does not have

    weights = {}
    for name, shape, bits in header["tensors"]:
        count = int(np.prod(shape))
        if bits == FULL:
            weights[name] = torch.from_numpy(take((SCALARS, FULL), count).reshape(shape))
            continue
        codes = take((group_of(name), bits), count) - 2 ** (bits - 1)
        scales = take((SCALARS, FULL), shape[0])
        weights[name] = torch.from_numpy(codes.reshape(shape) * scales[:, None])
    left, right = CORRECTION
    for name in [name for name in weights if name.endswith(left)]:
        base = name.removesuffix(left)
        weights[base] = weights[base] + weights.pop(name) @ weights.pop(base + right)
    vocabulary = json.loads(_expand_lzma(tokens))
    return Artifact(header["config"], weights, vocabulary, header["recipes"], sizes | {"tokenizer": len(tokens)})
