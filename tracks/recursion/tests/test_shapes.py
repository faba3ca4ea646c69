"""Shapes of equal cost, by the FLOPs of real plans."""

import pytest

from nanochat.scaling import plan_run
from scripts.base_train import Config
from tracks.recursion.settings import with_preset
from tracks.recursion.shapes import TOLERANCE, Costs, Shape, shapes_of_equal_cost
from tracks.recursion.train import Config as RecursiveConfig

USUAL = {"head_dim": 32, "max_seq_len": 256, "window_pattern": "L", "total_batch_size": 2048}
VOCABULARY = 1024


def flops(depth: int, width: int) -> float:
    return plan_run(Config(depth=depth, width=width, **USUAL), VOCABULARY).flops_per_token


def fitted(depth: int, width: int) -> Costs:
    return Costs.fitted(depth, width, flops(depth, width), flops(depth + 2, width), flops(depth, 2 * width))


def recursive(depth: int, width: int) -> float:
    config = with_preset(RecursiveConfig(depth=depth, width=width, **USUAL))
    return plan_run(config, VOCABULARY).flops_per_token


def test_the_usual_setting_has_three_shapes() -> None:
    found = shapes_of_equal_cost(recursive(2, 128), fitted(2, 128), 2, 128, 32)
    assert found == {"deep": Shape(25, 128), "medium": Shape(7, 256), "wide": Shape(2, 480)}
    assert found["wide"].flags == ["--depth=2", "--width=480"]


@pytest.mark.parametrize(("depth", "width"), [(2, 128), (4, 256), (1, 64), (6, 384)])
def test_each_shape_costs_what_recursion_costs(depth, width) -> None:
    target = recursive(depth, width)
    costs = fitted(depth, width)
    found = shapes_of_equal_cost(target, costs, depth, width, 32)
    assert list(found)[:1] == ["deep"]
    for name, shape in found.items():
        exact = flops(shape.depth, shape.width)
        assert costs.total(shape) == pytest.approx(exact, rel=1e-3)
        assert exact == pytest.approx(target, rel=TOLERANCE), name
        assert shape.depth >= depth
        assert shape.width % 32 == 0
    if len(found) == 3:
        widths = [found[name].width for name in ("deep", "medium", "wide")]
        depths = [found[name].depth for name in ("deep", "medium", "wide")]
        assert widths == sorted(set(widths))
        assert depths == sorted(set(depths), reverse=True)


def test_without_another_width_there_is_one_shape() -> None:
    """Heads of 32 channels are steps too large beside a width of 32."""
    costs = Costs(products=72.0, attention=768.0, head=1920.0)
    assert list(shapes_of_equal_cost(1.42e6, costs, 1, 32, 512)) == ["deep"]
