"""The golf artifact: what is written comes back, and what is damaged is refused."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from nanochat.quantized import Quantized
from tracks.golf import artifact
from tracks.golf.artifact import MAGIC, read_artifact, write_artifact

VOCABULARY = {"merges": [[97, 98], [256, 99]], "special_tokens": ["<|bos|>"], "pattern": "."}


def matrix(rows, columns, bits, seed=0):
    generator = torch.Generator().manual_seed(seed)
    top = 2 ** (bits - 1) - 1
    codes = torch.randint(-top, top + 1, (rows, columns), generator=generator).to(torch.int8)
    return Quantized(codes, torch.rand(rows, generator=generator).half(), bits)


STORED = {
    "embed.weight": matrix(70, 12, 8, 1),
    "blocks.0.attn.q.weight": matrix(9, 33, 6, 2),
    "blocks.0.attn.k.weight": matrix(1, 5, 6, 3),
    "blocks.0.mlp.up.weight": matrix(40, 31, 5, 4),
    "blocks.0.mlp.down.weight": matrix(31, 40, 8, 5),  # two widths in a group
    "residual_lambdas": torch.tensor([1.5, -0.25]),
}


def written():
    return write_artifact({"depth": 1}, STORED, VOCABULARY, {"embed.weight": "int8-row"})


def test_everything_comes_back_in_fewer_bytes_where_few_values_are_frequent() -> None:
    found = read_artifact(written())
    assert (found.config, found.vocabulary, found.recipes) == ({"depth": 1}, VOCABULARY, {"embed.weight": "int8-row"})
    for name, value in STORED.items():
        expected = value.dequantize() if isinstance(value, Quantized) else value
        assert_close(found.weights[name], expected)
    assert found.weights.keys() == STORED.keys()
    assert sum(found.bytes.values()) == len(written())
    assert {"header", "embeddings", "attention", "MLP", "scales", "tokenizer"} == found.bytes.keys()
    assert written() == written()
    torch.manual_seed(1)
    rare = matrix(64, 64, 6)._replace(codes=torch.randn(64, 64).mul(2).round().clamp(-31, 31).to(torch.int8))
    assert np.array_equal(rare.unsigned(), (rare.codes.int() + 32).numpy().ravel())
    name, packed = artifact.compress(rare.unsigned().tobytes())
    assert name == "lzma"
    assert len(packed) < 0.6 * 64 * 64 * 6 / 8


def test_every_compressor_gives_back_its_bytes() -> None:
    for press, expand in artifact.COMPRESSORS.values():
        for raw in (bytes(range(256)) * 3, b""):
            assert expand(press(raw)) == raw


def test_a_flipped_bit_is_found_and_another_file_refused() -> None:
    for place in (len(MAGIC) + 3, len(MAGIC) + 40, -1):
        data = bytearray(written())
        data[place] ^= 1
        with pytest.raises(ValueError, match="the artifact is damaged: its content does not have the SHA-256"):
            read_artifact(bytes(data))
    for data in (b"", b"nanogolf1\n" + bytes(100), written()[1:]):
        with pytest.raises(ValueError, match="this is not a golf artifact of this version"):
            read_artifact(data)
