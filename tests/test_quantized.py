"""Quantized matrices are read as codes times the scale of their row."""

import torch

from nanochat.quantized import Quantized, dequantize


def test_codes_times_scales() -> None:
    codes = torch.tensor([[-3, 0, 3], [1, 2, -1]], dtype=torch.int8)
    matrix = Quantized(codes, torch.tensor([0.5, 2.0]).half(), bits=3)
    values = dequantize({"a": matrix, "b": torch.ones(2)})
    assert values["a"].tolist() == [[-1.5, 0.0, 1.5], [2.0, 4.0, -2.0]]
    assert values["b"].tolist() == [1.0, 1.0]


def test_unsigned_codes_are_above_zero_in_one_row() -> None:
    codes = torch.tensor([[-127, 127], [0, -1]], dtype=torch.int8)
    assert Quantized(codes, torch.ones(2).half(), bits=8).unsigned().tolist() == [1, 255, 128, 127]
