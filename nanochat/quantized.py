"""Quantized matrices: whole numbers with a scale for each row. `quant.py` makes them; this module reads them alone."""

from typing import NamedTuple

import numpy as np
from torch import Tensor


class Quantized(NamedTuple):
    """A matrix as whole numbers, with a scale for each row."""

    codes: Tensor  # (rows, columns) int8, from -(2^(bits - 1) - 1) to 2^(bits - 1) - 1
    scales: Tensor  # (rows,) fp16, in fp32 once they are read
    bits: int

    def dequantize(self) -> Tensor:
        return self.codes.float() * self.scales.float()[:, None]

    def unsigned(self) -> np.ndarray:
        """Return the codes in one row as uint8, all above 0."""
        codes = self.codes.numpy().astype(np.uint8)  # modulo 256, and so is the sum
        return codes.ravel() + 2 ** (self.bits - 1)


Tensors = dict[str, Tensor]  # by name
Stored = dict[str, Quantized | Tensor]  # name → codes, or values that are kept in fp16


def dequantize(stored: Stored) -> Tensors:
    """Return the weights in fp32."""
    return {name: value.dequantize() if isinstance(value, Quantized) else value for name, value in stored.items()}
