"""Sweeps at fixed FLOPs, and mistakes in their flags. The fits are tested in tests/test_scaling_laws.py."""

import pytest
from small_runs import ROW, SMALL


@pytest.mark.slow
def test_scaling_laws_end_with_the_ratio_that_they_suggest(series, tmp_path) -> None:
    sweeps = "--sweeps=4e9:1,2,3 1e10:1,2,3"
    flags = ["--data=letters", "--vocab-size=300", sweeps, "--out=laws.md", *SMALL, "--warmup-steps=5"]
    series("scripts.scaling_laws", *flags)
    text = (tmp_path / "laws.md").read_text(encoding="utf-8")
    rows = ROW.findall(text)
    tags = [f"scaling-{budget}-d{depth}" for depth in (1, 2, 3) for budget in ("4e9", "1e10")]
    assert [row[0] for row in rows] == tags
    for tag, *_, flops, _ in rows:
        assert float(flops) == pytest.approx(float(tag.split("-")[1]), rel=0.05)
    assert "### The best size of each budget" in text
    assert "![Bits per byte at fixed compute](laws/scaling-scaling-1.svg)" in text
    assert "1e+10 FLOPs</tspan>" in (tmp_path / "laws/scaling-scaling-1.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("flag", "sentence"),
    [
        ("--sweeps=1e18", "--sweeps: 1e18 has to be FLOPs and depths, like 1e18:8,10,12"),
        ("--sweeps=1e18:8,10 1.0e18:12", "--sweeps names 1.0e18 twice: write all its depths behind one colon"),
        ("--sweeps=", "--sweeps is empty: write FLOPs and depths, like 1e18:8,10,12"),
        ("--sweep=1e17:4", "--sweep differs between runs: use --sweeps"),
        ("--target-flops=1e9", "--target-flops differs between runs: use --sweeps"),
        ("--eval-every=-1", "--eval-every=-1 measures no bits per byte, by which the best size of a budget is found"),
    ],
)
def test_a_mistake_is_found_before_anything_is_trained(series, base, flag, sentence) -> None:
    refused = series("scripts.scaling_laws", "--data=letters", *SMALL, flag, code=2)
    assert refused.stderr.startswith(f"error: {sentence}")
    assert not (base / "tok_train").exists()
