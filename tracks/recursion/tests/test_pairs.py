"""Two ways to train the exits, compared seed by seed on made outcomes."""

import shlex
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from outcomes import ENVIRONMENT, RECORD

from bench.evidence import CARDS, PLANNED, Card
from nanochat.checkpoint import Checkpoint
from nanochat.config import parse
from nanochat.errors import UserError
from nanochat.outcome import Outcome
from nanochat.statistics import Interval, interval
from tracks.recursion import run, sudoku, train
from tracks.recursion.pairs import Config, figures, pairs_table, require_pairs, verdict
from tracks.recursion.settings import with_preset
from tracks.recursion.shapes import BPB
from tracks.recursion.study import SECONDS, ArmRun


def made(name: str, seed: int, bits: float, seconds: float, rows: int = 2400, **flags: Any) -> ArmRun:
    """A finished run NAME-SEED, as far as the comparison reads it."""
    metrics = {BPB: bits, SECONDS: seconds}
    record = {"stage": "base_train", "tag": f"{name}-{seed}", "environment": ENVIRONMENT, "metrics": metrics}
    config = {"seed": seed, "num_iterations": 300, "curriculum": "", "carry": False, "matrix_lr": 0.02} | flags
    manifest = {"config": config, "source": {"setting": {"data": "hash"}, "rows": rows}}
    manifest["loop"] = {"step": config["num_iterations"], "seconds": seconds}
    return ArmRun(Outcome(**RECORD | record), Checkpoint(Path(name), 9, manifest), [])


def sides(**flags: Any) -> tuple[list[ArmRun], list[ArmRun]]:
    """Three seeds with flags of their own, and the same without: 0.03, 0.02 and 0.01 bits per byte fewer."""
    runs = [made("own", seed, 0.6 + 0.01 * seed, 90.0 + seed, **flags) for seed in (1, 2, 3)]
    others = [made("other", seed, 0.64, 120.0) for seed in (1, 2, 3)]
    return runs, others


@pytest.mark.parametrize("flags", [{"curriculum": "2,3,4"}, {"carry": True, "num_iterations": 1200, "eval_every": 200}])
def test_the_difference_is_paired_by_seed(flags: dict[str, Any]) -> None:
    runs, others = sides(**flags)
    require_pairs(runs, others)
    own, other = pairs_table(runs, others, ("own", "other"))["rows"]
    assert own[3:5] == pytest.approx(interval([-0.03, -0.02, -0.01]))
    assert own[-1] == "0.6100 0.6200 0.6300"
    assert other[1:5] == [pytest.approx(0.64), pytest.approx(0), None, None]
    assert (own[5], other[5]) == (flags.get("num_iterations", 300), 300)
    found = figures(runs, others)
    assert found["Seconds minus the other"]["value"] == pytest.approx(-28)
    # 0.02 ± 0.0248, with three seeds.
    assert found["Verdict"] == "not distinguishable"
    assert figures(runs[:1], others[:1])["Verdict"] == "no verdict: one seed"


def test_verdicts() -> None:
    found = [verdict(Interval(mean, half)) for mean, half in ((-0.2, 0.1), (0.2, 0.1), (0.1, 0.1), (0.1, None))]
    assert found == ["better", "worse", "not distinguishable", "no verdict: one seed"]


def test_runs_that_differ_in_more_are_refused() -> None:
    runs, others = sides(curriculum="2,3,4", matrix_lr=0.03)
    with pytest.raises(UserError, match=r"own-1 has matrix_lr = 0\.03, and other-1 0\.02: train one of them again"):
        require_pairs(runs, others)
    runs, others = sides(carry=True, rows=600)
    with pytest.raises(UserError, match="own-1 has rows = 600, and other-1 2400: train one of them again"):
        require_pairs(runs, others)
    runs, others = sides(carry=True)
    runs[1] = made("own", 2, 0.6, 90.0, carry=False)
    with pytest.raises(UserError, match="own-2 has carry = False, and own-1 True: train one of them again"):
        require_pairs(runs, others)
    with pytest.raises(UserError, match="own-2 was not trained with --seed=1: train it again"):
        require_pairs(runs[1:2], others[1:2])
    with pytest.raises(UserError, match="name the runs to compare: --runs=carry --against=together for carry-1"):
        parse(Config, ["--runs=carry"])


def test_a_curriculum_is_compared_with_r_without_it() -> None:
    """On the planned card: everything else is as in the series."""
    card = next(card for card in PLANNED if card.name == "recursion-curriculum")
    series, *whole, pairs = (shlex.split(command)[3:] for command in card.commands)
    config = parse(run.Config, series)
    assert "--runs=curriculum-R" in pairs
    assert [f"--tag=all-exits-{seed}" in words for seed, words in enumerate(whole, 1)] == [True] * config.seeds
    own = replace(run.recursion_settings(config), data=config.data)
    assert own.curriculum == "2,3,4"
    for words in whole:
        other = with_preset(parse(train.Config, words))
        names = [one.name for one in fields(own) if not one.metadata["may_change"]]
        different = {name for name in names if getattr(own, name) != getattr(other, name)}
        assert different <= {"curriculum", "seed", "tokenizer_tag"}


@pytest.mark.parametrize("card", [one for one in [*CARDS, *PLANNED] if one.tracks == ["recursion"] and one.tag])
def test_the_tag_of_a_card_is_that_of_its_series(card: Card) -> None:
    words = shlex.split(card.commands[0])
    module = {"tracks.recursion.run": run, "tracks.recursion.sudoku": sudoku}[words[2]]
    assert card.tag == parse(module.Config, words[3:]).tag
