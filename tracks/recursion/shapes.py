"""Shapes of plain models that cost as many FLOPs per token as a recursive one: deep and narrow, medium, wide."""

import math
from dataclasses import dataclass
from typing import Literal

BPB = "Final validation bpb"  # the figure of base training that a shape is chosen by
TOLERANCE = 0.05  # FLOPs per token of a shape, relative to those asked for
FIT_MARGIN = 0.98  # of the tolerance: the costs below leave out gates, a thousandth of a layer
MLP_STEP = 16  # channels: hidden units, four for each, are a multiple of 64
SHAPE_SEED = 0  # of the runs that choose a shape: the runs that are compared have seeds from 1 on

ShapeName = Literal["deep", "medium", "wide"]  # the keys
SHAPES: dict[ShapeName, str] = {
    "deep": "as narrow as R",
    "medium": "between the two, on a scale of ratios",
    "wide": "as wide as the tolerance allows, with as many layers as R or more",
}


@dataclass(frozen=True)
class Shape:
    """Sizes of a plain model."""

    depth: int
    width: int

    @property
    def flags(self) -> list[str]:
        return [f"--depth={self.depth}", f"--width={self.width}"]


@dataclass(frozen=True)
class Costs:
    """FLOPs per token as a function of the shape: a layer has products (width²) and attention (width), then a head."""

    products: float  # of a layer, per width²
    attention: float  # of a layer, per width
    head: float  # per width

    @classmethod
    def fitted(cls, depth: int, width: int, flops: float, two_layers_more: float, twice_as_wide: float) -> "Costs":
        """Return the costs by the FLOPs of three plans: of a shape, with two layers more, and with twice the width."""
        layer = (two_layers_more - flops) / 2
        head = flops - depth * layer
        wide_layer = (twice_as_wide - 2 * head) / depth
        products = (wide_layer - 2 * layer) / 2
        return cls(products / width**2, (layer - products) / width, head / width)

    def layer(self, width: int) -> float:
        return self.products * width**2 + self.attention * width

    def total(self, shape: Shape) -> float:
        return shape.depth * self.layer(shape.width) + self.head * shape.width


def shapes_of_equal_cost(flops: float, costs: Costs, depth: int, width: int, head_dim: int) -> dict[ShapeName, Shape]:
    """Return the shapes with so many FLOPs per token, but for the tolerance; depth and width: those of R.

    The deep one is there in any case, others only if a width that heads and MLP can have comes close enough.
    """

    def at_width(width: int) -> Shape:
        layers = (flops - costs.head * width) / costs.layer(width)
        return Shape(max(1, round(layers)), width)

    def is_near(shape: Shape) -> bool:
        return abs(costs.total(shape) - flops) <= FIT_MARGIN * TOLERANCE * flops

    deep = at_width(width)
    found: dict[ShapeName, Shape] = {"deep": deep}
    wider = []
    step = math.lcm(head_dim, MLP_STEP)
    while True:
        width += step
        shape = at_width(width)
        if shape.depth < depth or costs.total(shape) >= 2 * flops:
            break
        if is_near(shape) and shape.depth < deep.depth:
            wider.append(shape)
    if wider:
        wide = wider.pop()
        found["wide"] = wide
        middle = (deep.width * wide.width) ** 0.5
        if wider:
            found["medium"] = min(wider, key=lambda shape: max(shape.width / middle, middle / shape.width))
    return {name: found[name] for name in SHAPES if name in found}
