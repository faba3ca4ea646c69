"""Alarms of a recursive run, by metric logs that give cause for them or do not."""

import pytest

from tracks.recursion.alarms import find_alarms


def validation(*bpb: float) -> dict[str, float]:
    return {"step": 1, "val/bpb": bpb[-1]} | {f"val/bpb at exit {i}": one for i, one in enumerate(bpb)}


GOOD, INVERTED, FLAT = validation(3.0, 2.5, 2.0), validation(2.0, 2.5, 2.4), validation(2.0, 1.99, 1.98)
GROWING = INVERTED | {"train/exits": 1}  # of a curriculum: one exit alone is trained by then
NORM = {"step": 7, "train/grad_norm": 1.0}


# records, finished, alarms: differences by rounding and what comes before the first step are none
CASES = """
[NORM, GOOD, GOOD, GOOD], True, []
[INVERTED, GOOD, INVERTED, INVERTED], False, []
[GOOD, INVERTED, INVERTED, INVERTED], False, ["order"]
[validation(2.0, 2.00001)] * 3, False, []
[INVERTED | {"step": 0}, INVERTED, INVERTED], False, []
[{"step": 1, "train/exits": 1}, INVERTED, INVERTED, INVERTED], False, []
[{"step": 1, "train/exits": 2}, INVERTED, INVERTED, INVERTED], False, ["order"]
[GROWING, GROWING, INVERTED | {"train/exits": 3}, INVERTED, INVERTED], False, ["order"]
[INVERTED, INVERTED, GROWING, INVERTED | {"train/exits": 3}], False, ["order"]
[INVERTED, INVERTED, GROWING], False, []
[validation(3.0, 2.0), GROWING], True, []
[FLAT], False, []
[FLAT], True, ["refinement"]
[NORM, {"step": 8, "train/grad_norm": 20.1}], False, ["gradient"]
[], True, []
"""


def test_what_the_last_exit_needs_depends_on_how_it_is_trained() -> None:
    worse = [validation(2.0, 2.02)]
    sentence = "the last exit is 1.0% worse than the first: train longer, or lower --matrix-lr"
    assert find_alarms(worse, True, is_carried=True) == {"refinement": sentence}  # which refuses --supervision-base
    [flat] = find_alarms([FLAT], True).values()
    assert flat.startswith(
        "the last exit is only 1.0% better than the first: train longer, lower --matrix-lr, or raise"
    )


@pytest.mark.parametrize("case", CASES.strip().splitlines())
def test_alarms(case) -> None:
    records, finished, alarms = eval(case)
    assert list(find_alarms(records, finished)) == alarms
