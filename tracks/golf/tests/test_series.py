"""Arms with several seeds are compared."""

from pathlib import Path
from typing import Any

import pytest
from outcomes import ENVIRONMENT, RECORD, leave

from nanochat.errors import UserError
from nanochat.outcome import Outcome
from tracks.golf.series import (
    Arm,
    checks_of,
    checks_table,
    comparison_table,
    own_checks_table,
    read_arm,
    require_equal,
)


def arm(name: str, bpb: list[float]) -> Arm:
    """An arm with a score for each seed."""
    runs = []
    for value in bpb:
        metrics = {"bpb": {"value": value, "format": ".4f"}, "Bytes": 5, "Text": f"hash of {value}"}
        metrics |= {"Training seconds": 50.0, "Packing seconds": 4.0, "Scale": "cpu"}
        record = {"stage": "golf_eval", "tag": f"series-{name}", "environment": ENVIRONMENT, "metrics": metrics}
        runs.append(Outcome(**RECORD | record))
    return Arm(name, runs)


def test_arms_are_compared_over_seeds() -> None:
    own, other = arm("a", [1.0, 1.1, 1.2]), arm("b", [1.5, 1.6, 1.4])
    table = comparison_table("Entries", [own, other, arm("a", [1.2])], other)
    name, mean, deviation, difference, p, adjusted, *rest = table["rows"][0]
    assert (name, rest) == ("a", ["no", 5, 50.0, 4.0, 3])
    assert [mean, deviation, difference] == pytest.approx([1.1, 0.1, -0.4])
    assert p == pytest.approx(0.00805, abs=1e-5)
    assert adjusted == pytest.approx(2 * p)  # the smaller one of two
    assert table["rows"][1][3:7] == [None, None, None, None]
    single = pytest.approx(0.122, abs=1e-3)
    assert table["rows"][2][2:7] == [None, pytest.approx(-0.3), single, single, "yes"]
    assert arm("a", [1.0]).against(arm("b", [2.0])) == (-1.0, None)


def test_many_tricks_are_corrected_for_their_number() -> None:
    """A difference that one trick alone would show is within the noise of fourteen."""
    own = arm("entry", [1.0, 1.01, 1.02])
    found = arm("without", [1.05, 1.06, 1.04])
    others = [arm(f"without-{number}", [1.0, 1.01, 1.02]) for number in range(13)]
    [_, alone] = comparison_table("One", [own, found], own)["rows"]
    [_, among, *rest] = comparison_table("Many", [own, found, *others], own)["rows"]
    assert alone[4] == alone[5] == among[4] < 0.05
    assert (alone[6], among[6]) == ("no", "yes")
    assert among[5] == pytest.approx(14 * among[4])
    assert {row[5] for row in rest} == {1.0}


def test_runs_become_means_if_they_can_be_compared() -> None:
    found = arm("a", [1.0, 1.5]).means()
    assert found["bpb"] == {"value": 1.25, "stderr": pytest.approx(0.5 / 2**0.5), "format": ".4f"}
    assert (found["Bytes"], found["Text"]) == (5, "hash of 1.0, hash of 1.5")
    with pytest.raises(
        ValueError, match=r"the runs differ in Text \(hash of 1\.0, hash of 1\.5\), and cannot be compared"
    ):
        require_equal([arm("a", [1.0]), arm("b", [1.5])])
    with pytest.raises(ValueError, match="series-a has no Stride, its record is of an earlier version: run its stage"):
        arm("a", [1.0]).values("Stride")
    with pytest.raises(ValueError, match=r"tracks\.golf\.eval has not finished for series-a-1: run it first"):
        read_arm("series", "a", 2)


def checks(seed: int) -> dict[str, Any]:
    """The table of what was checked of a run."""
    return own_checks_table({"places": 100 + seed, "sum": 1e-9 * seed, "causal": 0.0, "again": 0.5, "bytes": 10 - seed})


def leave_run(base: Path, run: str, bpb: float, plan: str = "int8-row", checked: bool = True, **flags: Any) -> None:
    """The records of a run: training with some flags, packing by a plan, and a score, with its checks."""
    leave(base, "base_train", run, config={"depth": 2, "seed": int(run[-1]), "compile": True, "resume": 0} | flags)
    leave(base, "golf_pack", run, config={"plan": plan})
    config = {"stride": -1, "count_tokenizer": False}
    metrics = {"bpb": bpb, "Stride": 32}
    leave(base, "golf_eval", run, config=config, metrics=metrics, tables=[checks(int(run[-1]))] if checked else [])


def test_runs_with_other_flags_are_not_averaged(base: Path) -> None:
    """A tag keeps the runs of an earlier series, of which a later one asks for fewer seeds."""
    for seed in (1, 2):
        leave_run(base, f"links-same-{seed}", 0.1 * seed, resume=seed)
        leave_run(base, f"links-deeper-{seed}", 0.1 * seed, depth=seed)
        leave_run(base, f"links-plan-{seed}", 0.1 * seed, plan=f"int{4 + seed}-row")
        leave_run(base, f"links-compiled-{seed}", 0.1 * seed, compile=seed == 1)
    assert read_arm("links", "same", 3).values() == [0.1, 0.2]
    for name, flag in {
        "deeper": "--depth of base_train",
        "plan": "--plan of golf_pack",
        "compiled": "--compile of base_train",
    }.items():
        assert read_arm("links", name, 1).values() == [0.1]
        with pytest.raises(
            UserError, match=rf"links-{name}-2 was made with other flags than links-{name}-1 \({flag}\)"
        ):
            read_arm("links", name, 2)
    # A flag that came with a later version, at its default.
    leave_run(base, "links-same-2", 0.3, later=False)
    assert read_arm("links", "same", 2).values() == [0.1, 0.3]


def test_runs_without_checks_are_refused_and_the_table_has_all_runs(base: Path) -> None:
    for seed in (1, 2):
        leave_run(base, f"links-one-{seed}", 0.1)
        leave_run(base, f"links-other-{seed}", 0.1, checked=seed == 1)
    arms = [read_arm("links", "one", 2), read_arm("links", "other", 1)]
    # The fewest places, and the largest of the rest, over all runs of an arm.
    rows = [["one", 2, 101, 2e-9, 0.0, 0.5, 9], ["other", 1, 101, 1e-9, 0.0, 0.5, 9]]
    assert checks_table(checks_of(arms))["rows"] == rows
    sentence = r"links-other-2 was scored by an earlier version, .* --tag=links-other-2 --stride=32$"
    with pytest.raises(UserError, match=sentence):
        read_arm("links", "other", 2)
