"""The golf artifact: quantized weights and a vocabulary in one file, without pickle. Reader and writer.

A file is MAGIC, the SHA-256 of the rest, the length of the model's part, that part, and the vocabulary's part. The
model's part has a header (JSON) and a section for each group of tensors, compressed by itself, so that its bytes are
known. The scoring process imports this module, and its bytes count: quantization itself is in quant.py.
"""

import json
import lzma
import math
import struct
import zlib
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from io import BytesIO
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nanochat.errors import UserError
from nanochat.quantized import Quantized, Stored, Tensors, dequantize

MAGIC = b"nanogolf2\n"
# Groups of bytes beside those of GROUPS.
HEADER = "header"
SCALARS = "scales"
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


Recode = Callable[[bytes], bytes]
COMPRESSORS: dict[str, tuple[Recode, Recode]] = {  # name → (makes bytes fewer, gives them back)
    "zlib": (lambda raw: zlib.compress(raw, 9), zlib.decompress),
    "lzma": (
        lambda raw: lzma.compress(raw, lzma.FORMAT_RAW, filters=LZMA),
        lambda packed: lzma.decompress(packed, lzma.FORMAT_RAW, filters=LZMA),
    ),
}
Fields = Mapping[str, Any]  # JSON


@dataclass(frozen=True)
class Artifact:
    """The content of a file."""

    config: Fields  # of GPTConfig that are not the default
    stored: Stored
    vocabulary: Fields  # merges, special tokens, pattern: arguments of rustbpe.Tokenizer
    recipes: Fields  # for the record: tensor → recipe
    bytes: dict[str, int]  # group → bytes in the file; "tokenizer" is the vocabulary's part

    @property
    def weights(self) -> Tensors:
        return dequantize(self.stored)


def group_of(name: str) -> str:
    """Return the group of a tensor's codes."""
    return next((group for part, group in GROUPS.items() if part in f".{name}"), "other")


# ---- codes as bytes ----


def to_bytes(values: np.ndarray) -> bytes:
    """Return the bytes of values, uint8 or fp16: all low bytes, then all high ones; apart they compress better."""
    return values.view(np.uint8).reshape(len(values), -1).T.tobytes()


def from_bytes(stored: bytes, bits: int) -> np.ndarray:
    """Return the values that to_bytes was given: fp16, or codes with fewer bits as uint8."""
    kind = np.dtype(np.float16 if bits == FULL else np.uint8)
    apart = np.frombuffer(stored, np.uint8).reshape(kind.itemsize, -1)
    return np.frombuffer(apart.T.tobytes(), kind)


def compress(stored: bytes) -> tuple[str, bytes]:
    """Return the best compressor and its output."""
    found = {name: shorten(stored) for name, (shorten, _) in COMPRESSORS.items()}
    best = min(found, key=lambda name: len(found[name]))
    return best, found[best]


# ---- the file ----


def _json(value: Fields) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def write_artifact(config: Fields, stored: Stored, vocabulary: Fields, recipes: Fields) -> bytes:
    """Return the bytes of a file."""
    columns = defaultdict(list)  # (group, bits) → values in the tensors' order
    tensors = []
    for name, value in stored.items():
        if isinstance(value, Quantized):
            columns[group_of(name), value.bits].append(value.unsigned())
            tensors.append([name, value.codes.shape, value.bits])
            value = value.scales
        else:
            tensors.append([name, value.shape, FULL])
        columns[SCALARS, FULL].append(value.half().numpy().ravel())
    sections = []
    body = b""
    for (group, bits), parts in columns.items():
        compressor, packed = compress(to_bytes(np.concatenate(parts)))
        sections.append([group, bits, compressor, len(packed)])
        body += packed
    head = zlib.compress(_json({"config": config, "tensors": tensors, "sections": sections, "recipes": recipes}), 9)
    # The model's part is its header's length, the header and the sections.
    lengths = struct.pack("<II", 4 + len(head) + len(body), len(head))
    rest = lengths + head + body + COMPRESSORS["lzma"][0](_json(vocabulary))
    return MAGIC + sha256(rest).digest() + rest


def read_artifact(data: bytes) -> Artifact:
    """Return the content of a file; UserError for anything but a whole file of this version."""
    file = BytesIO(data)
    if file.read(len(MAGIC)) != MAGIC:
        raise UserError("this is not a golf artifact of this version")
    if file.read(32) != sha256(file.getbuffer()[len(MAGIC) + 32 :]).digest():
        raise UserError("the artifact is damaged: its content does not have the SHA-256 in its header")
    _, length = struct.unpack("<II", file.read(8))
    header = json.loads(zlib.decompress(file.read(length)))
    sizes = {HEADER: file.tell()}
    columns = {}
    for group, bits, compressor, size in header["sections"]:
        columns[group, bits] = from_bytes(COMPRESSORS[compressor][1](file.read(size)), bits)
        sizes[group] = sizes.get(group, 0) + size
    tokens = file.read()
    sizes["tokenizer"] = len(tokens)

    def take(group: str, bits: int, shape: list[int]) -> Tensor:
        values, columns[group, bits] = np.split(columns[group, bits], [math.prod(shape)])
        # By numpy: for fp16, torch reads a file that the sandbox does not have.
        return torch.from_numpy(values.astype(np.float32).reshape(shape))

    stored = {}
    for name, shape, bits in header["tensors"]:
        values = take(SCALARS, FULL, shape if bits == FULL else shape[:1])
        stored[name] = values
        if bits != FULL:
            codes = take(group_of(name), bits, shape) - 2 ** (bits - 1)
            stored[name] = Quantized(codes.to(torch.int8), values, bits)
    vocabulary = json.loads(COMPRESSORS["lzma"][1](tokens))
    return Artifact(header["config"], stored, vocabulary, header["recipes"], sizes)
