"""A miniseries of tiny models: a table, a plot, a second run, and mistakes."""

import re

import pytest
from small_runs import ROW, SMALL


def test_a_miniseries_is_a_table_and_a_plot_and_resumes(series, base, tmp_path) -> None:
    flags = ["--data=letters", "--tag=mini", "--out=mini.md", *SMALL, "--target-param-data-ratio=0.01"]
    series("scripts.miniseries", "--depths=2", "--vocab-size=300", *flags)
    ended = {path: path.stat().st_mtime_ns for path in base.glob("*_train/*/outcome.json")}
    assert len(ended) == 2
    # Again with one depth more: what has ended stays as it is.
    two = series("scripts.miniseries", "--depths=2,1", "--vocab-size=300", *flags)
    assert re.findall("== (.*): already finished", two.stdout) == ["tok_train", "d2"]
    assert ended == {path: path.stat().st_mtime_ns for path in ended}
    text = (tmp_path / "mini.md").read_text(encoding="utf-8")
    rows = ROW.findall(text)
    assert [(tag, depth) for tag, depth, *_ in rows] == [("mini-d1", "1"), ("mini-d2", "2")]
    assert re.search(r"^\| Bits per byte +\| -?\d\.\d{4} ", text, re.MULTILINE)
    assert "![Bits per byte against compute](mini/scaling-mini-1.svg)" in text
    assert (tmp_path / "mini/scaling-mini-1.svg").exists()
    plans = series("scripts.miniseries", "--depths=3,4", *flags, "--dry-run").stdout
    assert "depth 3" in plans
    assert "depth 4" in plans
    assert "no tokenizer is trained" not in plans  # that of the series is
    assert not (base / "base_train/mini-d3").exists()
    other = series("scripts.miniseries", "--depths=2", *flags, "--vocab-size=310", code=2)
    assert other.stderr == "error: the vocabulary of --tag=mini has --vocab-size=300, not 310: use another --tag\n"


@pytest.mark.parametrize(
    ("flag", "sentence"),
    [
        ("--depths=2,x", "--depths=2,x has to be a list of depths like 8,10,12"),
        ("--depth=2", "--depth differs between runs: use --depths"),
        ("--warmup-step=2", "unknown argument --warmup-step, did you mean --warmup-steps?"),
        ("--eval-every=-1", "--eval-every=-1 measures no bits per byte, by which a miniseries compares its models"),
        ("--flags=--eval_every -1", "--eval-every=-1 measures no bits per byte, by which a miniseries compares"),
        ("--flags=--target_flops 1e9", "--target-flops gives all depths the same FLOPs, and this is a curve over them"),
        ("--window-pattern=X", "window_pattern=X must be made of the letters S and L"),
    ],
)
def test_a_mistake_is_found_before_anything_is_trained(series, base, flag, sentence) -> None:
    refused = series("scripts.miniseries", "--data=letters", *SMALL, flag, code=2)
    assert refused.stderr.startswith(f"error: {sentence}")
    assert not (base / "tok_train").exists()
