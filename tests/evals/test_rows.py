"""Rows that overlap, against a loop over the text."""

import pytest
import torch

from nanochat.cross_entropy import IGNORED
from nanochat.evals.rows import overlapping_rows


@pytest.mark.parametrize("size", [2, 5, 8, 9, 20, 21])
@pytest.mark.parametrize(("length", "stride"), [(8, 8), (8, 3), (8, 1), (4, 2)])
def test_a_row_starts_every_stride(size, length, stride) -> None:
    text = list(range(100, 100 + size))
    inputs, targets = overlapping_rows(torch.tensor(text), length, stride)
    start = 0
    expected = []
    while not expected or start + length - stride < size - 1:  # until the last target is in a row
        row = [*text[start : start + length + 1], *[IGNORED] * length][: length + 1]
        expected.append(row)
        start += stride
    assert inputs.tolist() == [row[:-1] for row in expected]
    assert targets.tolist() == [row[1:] for row in expected]


@pytest.mark.parametrize("stride", [0, -1, 9])
def test_a_stride_that_leaves_text_out_is_refused(stride) -> None:
    with pytest.raises(ValueError, match=f"--stride={stride} would leave out text, use 1 to 8, the context's length"):
        overlapping_rows(torch.arange(20), 8, stride)
