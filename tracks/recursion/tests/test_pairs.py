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
from tracks.recursion.pairs import FREE, Config, exits_table, figures, pairs_table, require_pairs, verdict
from tracks.recursion.settings import with_preset
from tracks.recursion.shapes import BPB
from tracks.recursion.study import SECONDS, ArmRun

MODULES = {"tracks.recursion.run": run, "tracks.recursion.sudoku": sudoku}
FIRST_EXITS = {"own": 0.6, "other": 0.8}  # bits per byte at the first of two


def made(name: str, seed: int, bits: float, seconds: float, rows: int = 2400, **flags: Any) -> ArmRun:
    """A finished run NAME-SEED, as far as the comparison reads it."""
    metrics = {BPB: bits, SECONDS: seconds}
    record = {"stage": "base_train", "tag": f"{name}-{seed}", "environment": ENVIRONMENT, "metrics": metrics}
    config = {"seed": seed, "num_iterations": 300, "curriculum": "", "carry": False, "matrix_lr": 0.02} | flags
    manifest = {"config": config, "source": {"setting": {"data": "hash"}, "rows": rows}, "model": {"supervision": 2}}
    manifest["loop"] = {"step": config["num_iterations"], "seconds": seconds}
    last = {"step": 9, "val/bpb at exit 0": FIRST_EXITS[name], "val/bpb at exit 1": bits}
    return ArmRun(Outcome(**RECORD | record), Checkpoint(Path(name), 9, manifest), [last])


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
    # The last exits of `own` are worse than their first one.
    own, other = exits_table(runs, others, ("own", "other"))["rows"]
    assert own == ["own", pytest.approx(0.6), pytest.approx(0.62), pytest.approx(1 - 0.62 / 0.6)]
    assert other == ["other", pytest.approx(0.8), pytest.approx(0.64), pytest.approx(0.2)]
    found = figures(runs, others)
    assert found["bpb of the best exit minus the other's"]["value"] == pytest.approx(0.6 - 0.64)
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
    runs, others = sides(weight_decay=0.5)
    with pytest.raises(UserError, match=r"own-1 has weight_decay = 0\.5, and other-1 .*: train one of them again"):
        require_pairs(runs, others)
    require_pairs(*sides(weight_decay=0.5, total_batch_size=512))
    runs, others = sides(carry=True, rows=600)
    with pytest.raises(UserError, match="own-1 has rows = 600, and other-1 2400: train one of them again"):
        require_pairs(runs, others)
    runs, others = sides(carry=True)
    runs[1] = made("own", 2, 0.6, 90.0, carry=False)
    with pytest.raises(UserError, match="own-2 has carry = False, and own-1 True: train one of them again"):
        require_pairs(runs, others)
    with pytest.raises(UserError, match="own-2 was not trained with --seed=1: train it again"):
        require_pairs(runs[1:2], others[1:2])
    runs, others = sides()
    for one in others:
        one.manifest["config"]["loops"] = 3  # whichever side has it
    with pytest.raises(UserError, match="other-1 has loops = 3, and own-1 None: train one of them again"):
        require_pairs(runs, others)
    runs, others = sides()
    others[2].manifest["model"].clear()
    with pytest.raises(UserError, match="other-3 is no recursive model, and has one exit"):
        require_pairs(runs, others)
    runs, others = sides()
    others[1].records.clear()
    with pytest.raises(
        UserError, match="other-2 has no validation of several exits: train it with --eval-every=0 and "
    ):
        require_pairs(runs, others)
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


def test_the_ways_to_train_on_the_card_differ_in_what_is_free() -> None:
    card = next(card for card in CARDS if card.name == "recursion-carry")
    words = [shlex.split(command)[2:] for command in card.commands]
    runs: dict[str, list[train.Config]] = {}
    for module, *flags in words:
        if module == "tracks.recursion.train":
            config = with_preset(parse(train.Config, flags))
            runs.setdefault(config.tag.rpartition("-")[0], []).append(config)
    compared = [parse(Config, flags) for module, *flags in words if module == "tracks.recursion.pairs"]
    assert {name for one in compared for name in (one.runs, one.against)} == {*runs}
    assert card.tag == ",".join(one.tag for one in compared)
    first, *others = (config for same in runs.values() for config in same)
    names = [one.name for one in fields(first) if not one.metadata["may_change"]]
    for other in others:
        different = {name for name in names if getattr(first, name) != getattr(other, name)}
        assert different <= FREE | {"weight_decay", "seed", "tag"}
        # The same text, as often as there are exits if it is carried.
        exits = {True: 4, False: 1}
        tokens = [one.num_iterations * one.total_batch_size // exits[one.carry] for one in (first, other)]
        assert tokens[0] == tokens[1]
    for same in runs.values():
        assert [config.seed for config in same] == [1, 2, 3]


SERIES = [one for one in [*CARDS, *PLANNED] if one.commands[0].split()[2] in MODULES]


@pytest.mark.parametrize("card", SERIES)
def test_the_tag_of_a_card_is_that_of_its_series(card: Card) -> None:
    words = shlex.split(card.commands[0])
    assert card.tag == parse(MODULES[words[2]].Config, words[3:]).tag
