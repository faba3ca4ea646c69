"""Pictures: what is in them and where it stands, and that they are the same each time."""

import itertools
import math
import re
from xml.etree import ElementTree

import numpy as np
import pytest

from nanochat.report.plots import STYLE, TOP, WIDTH, Bar, draw_bars, draw_plot, label, picture_file, ticks

CURVE = {
    "title": "Loss <of> a run",
    "x": "tokens",
    "y": "nats",
    "series": {"train": [list(range(100)), [5 / (i + 1) for i in range(100)]], "val": [[0, 50, 99], [5.0, 1.0, 0.5]]},
}


def parsed(plot: dict):
    return ElementTree.fromstring(draw_plot(plot))


def of_class(root: ElementTree.Element, name: str):
    return [element for element in root.iter() if name in element.get("class", "").split()]


def test_a_curve_has_its_words_and_round_ticks() -> None:
    words = [text.text for text in parsed(CURVE).iter() if text.tag in ("text", "tspan")]
    assert {"Loss <of> a run", "tokens", "nats", "train", "val", "0", "5"} <= set(words)
    alone = draw_plot(CURVE | {"series": {"train": CURVE["series"]["train"]}})
    assert ">train<" not in alone  # one series needs no legend
    assert ticks(0, 10) == [0, 2, 4, 6, 8, 10]
    assert ticks(0.31, 0.42) == pytest.approx([0.3, 0.35, 0.4, 0.45])
    assert list(map(label, [*ticks(0, 1_700_000)[:2], -0.5, 0.25])) == ["0", "500k", "-0.5", "0.25"]


def test_points_stand_where_their_numbers_are() -> None:
    root = parsed(CURVE)
    [val] = [line for line in of_class(root, "line") if "s1" in line.get("class").split()]
    dots = [tuple(map(float, pair.split(","))) for pair in val.get("points").split()]
    marks = [(float(mark.get("cx")), float(mark.get("cy"))) for mark in root.iter("circle")]
    assert dots == marks  # the other series is dense, and has none
    (left, high), (middle, _), (right, low) = dots
    assert middle == pytest.approx(left + (right - left) * 50 / 99, abs=0.1)
    assert TOP == high < low  # 5.0 is the highest tick
    rows = {text.text: float(text.get("y")) for text in root.iter("text") if text.get("class") == "end"}
    assert high == pytest.approx(rows["5"] - 4, abs=0.1)
    assert low == pytest.approx(rows["0"] - 4 - 0.1 * (rows["0"] - rows["5"]), abs=0.2)


@pytest.mark.parametrize("ys", [[1e-6, 3e-6, math.nan], [-1e9, 0.0, 1e12, math.inf], [1000.5, 1000.6, 999.0, 1001.0]])
def test_all_of_it_is_inside_and_finite(ys) -> None:
    root = parsed(CURVE | {"series": {"a": [list(range(len(ys))), ys]}})
    [line] = of_class(root, "line")
    places = [tuple(map(float, pair.split(","))) for pair in line.get("points").split()]
    assert len(places) == sum(map(math.isfinite, ys))
    assert all(0 <= x <= WIDTH and TOP - 0.1 <= y <= 214.1 for x, y in places)


def test_a_file_of_its_own_is_whole_and_always_the_same() -> None:
    root = ElementTree.fromstring(picture_file(CURVE))
    svg = "{http://www.w3.org/2000/svg}"
    assert (root.tag, root.find(f"{svg}style").text) == (f"{svg}svg", STYLE)
    assert picture_file(CURVE) == picture_file(CURVE)
    for little in ({}, {"a": [[], []]}, {"a": [[5], [0.0]]}, {"a": [[1, 2], [3.0, 3.0]]}):
        assert "nan" not in draw_plot(CURVE | {"series": little})


# Linear RGB → the same as seen without red, or green, cones (Viénot, Brettel and Mollon 1999).
SEEN = {
    "protanopia": [[0.11238, 0.88762, 0], [0.11238, 0.88762, 0], [0.00401, -0.00401, 1]],
    "deuteranopia": [[0.29275, 0.70725, 0], [0.29275, 0.70725, 0], [-0.02234, 0.02234, 1]],
}


@pytest.mark.parametrize("eyes", SEEN)
@pytest.mark.parametrize("mode", [0, 1])
def test_lines_differ_for_colour_blind_eyes(eyes, mode) -> None:
    found = re.findall(r"\.s(\d) \{ --color: #(..)(..)(..); \}", STYLE)[6 * mode : 6 * mode + 6]
    linear = [np.array(SEEN[eyes]) @ [(int(part, 16) / 255) ** 2.2 for part in parts] for _, *parts in found]
    seen = [color.clip(0) ** (1 / 2.2) for color in linear]
    dashes = [0, 0, 1, 2, 1, 2]  # the same for two lines each
    for one, other in itertools.combinations(range(6), 2):
        if dashes[one] == dashes[other]:
            assert np.abs(seen[one] - seen[other]).max() > 0.3, (one, other)


def test_bars_are_as_long_as_their_scores() -> None:
    bars = [Bar("all <right>", 1.0, 0.0), Bar("half", 0.5, 0.1), Bar("below guessing", -0.2, math.nan)]
    root = ElementTree.fromstring(draw_bars("Scores", bars))
    full = float(of_class(root, "rest")[0].get("width"))
    assert [float(bar.get("width")) / full for bar in of_class(root, "s0")] == pytest.approx([1, 0.5, 0], abs=1e-3)
    errors = [re.findall(r"[\d.]+", line.get("d")) for line in of_class(root, "error")]
    lengths = [(float(end) - float(start)) / full for start, _, end in errors]
    assert lengths == pytest.approx([0, 0.2], abs=1e-3)  # a single item has no error
    words = [text.text for text in root.iter() if text.tag == "text"]
    assert words == ["Scores", "all <right>", "100.0%", "half", "50.0%", "below guessing", "-20.0%"]
