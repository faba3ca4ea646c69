"""The weights of a public model under our names, each read when its turn comes."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from nanochat.errors import UserError
from nanochat.quantized import Tensors
from tracks.bases.sources import FoundModel

ROWS = 4096  # of a matrix that are looked at together


@dataclass(frozen=True)
class Weights:
    """All weights under our names, in fp32, each read when its turn comes; rows that pad our vocabulary are zeros."""

    source: FoundModel

    def items(self) -> Iterator[tuple[str, Tensor]]:
        source = self.source
        padding = source.config.padded_vocab - source.config.vocab_size
        for name in source.names:
            weight = source.read(name)
            if padding and name in ("embed.weight", "head.weight"):
                weight = F.pad(weight, (0, 0, 0, padding))
            if not all(rows.isfinite().all() for rows in weight.split(ROWS)):
                raise UserError(f"{source.place}: {source.names[name]} has values that are not finite")
            yield name, weight


def weights_of(source: FoundModel) -> Tensors:
    """Return all weights at once."""
    return dict(Weights(source).items())
