"""Golf's tables, and the count of bytes."""

import subprocess
from collections.abc import Callable
from typing import get_args

import pytest
from conftest import ROOT, checked, each_row
from models import SMALL, lively

from nanochat.config import parse
from nanochat.models import config_fields, new_model
from nanochat.param_groups import build_groups
from nanochat.quant import assign, matrices
from nanochat.scaling import RunPlan, plan_run
from tracks.golf import entries as golf
from tracks.golf.entries import SCALES, ScaleName
from tracks.golf.train import Config


def flags_of(*words) -> dict[str, str]:
    return golf.expand(dict(word.partition("=")[::2] for word in words))


def test_flags_win_over_the_row_and_bytes_over_the_budget_are_refused() -> None:
    found = flags_of("--entry=golf", "--width=64", "--num-iterations=5")
    assert (found["--width"], found["--num-iterations"]) == ("64", "5")
    assert "--target-seconds" not in found
    groups = {"MLP": 500, "attention": 300, "code": 400, "scales": 10}
    assert golf.check_size(groups, 1210) == 1210
    with pytest.raises(ValueError, match="1,300 bytes are 90 over the budget of 1,210; the largest: MLP 500, code"):
        golf.check_size(groups | {"tokenizer": 90}, 1210)


@pytest.mark.parametrize("trick", ["", *golf.TRICKS])
@pytest.mark.parametrize(("entry", "scale"), golf.ENTRIES)
def test_each_row_has_a_clock_and_plans_that_fit_the_model_without_any_trick_too(entry, scale, trick) -> None:
    flags = flags_of(f"--scale={scale}", f"--entry={entry}", f"--without={trick}")
    assert 0.8 < float(flags["--target-seconds"]) / golf.SCALES[scale].seconds < 0.95  # the rest is for packing
    assert all((baseline, scale) in golf.ENTRIES for baseline in golf.BASELINES)
    model = lively({**SMALL, **config_fields(flags["--model"]), "rope_dims": 0})
    for plan in (flags["--plan"], flags.get("--qat", "int8-row")):
        assert assign(plan, matrices(model))


def test_an_entry_is_tried_without_the_tricks_that_it_has() -> None:
    of_the_seed = {"XSA", "partial RoPE", "QK gain", "attention eps", "orthogonal init"}
    assert set(golf.TRICKS) - set(golf.tricks_of({})) == {"backout", "residual factors", *of_the_seed}
    assert set(golf.TRICKS) - set(golf.tricks_of({"--scale": "cpu"})) == {"late QAT", "residual factors", *of_the_seed}
    assert of_the_seed < set(golf.tricks_of({"--scale": "1gpu", "--entry": "seed"}))
    # A given flag does not undo the change, and what it changes itself is no trick any more.
    given = {"--model": "golf,smear=false,induction=false"}
    assert set(golf.TRICKS) - set(golf.tricks_of(given)) == {"induction", "residual factors", "smear", *of_the_seed}
    assert flags_of("--model=golf", "--without=backout")["--model"] == "golf,backout=false"
    assert "--qat" not in flags_of("--without=late QAT")
    assert flags_of("--no-compile")["--no-compile"] == ""


def run_of(entry, scale) -> tuple[Config, RunPlan]:
    """Return the config of a row, and the plan of its run."""
    flags = flags_of(f"--scale={scale}", f"--entry={entry}")
    del flags["--plan"]
    config = parse(Config, [f"{flag}={value}" for flag, value in flags.items()])
    return config, plan_run(config, golf.VOCABULARIES.get(entry, golf.SCALES[scale].vocabulary))


def test_the_seed_has_the_rates_of_its_own_log() -> None:
    """They stand in the row so that our factors for width, batch and size give them back."""
    _, plan = run_of("seed", "1gpu")
    groups = build_groups(new_model(plan.model), plan.rates)
    rates = {group.name: group.lr for group in groups}
    assert rates == pytest.approx({"unembedding": 0.04, "matrices": 0.032, "gains": 0.032}, rel=0.01)
    assert groups[-1].weight_decay == pytest.approx(0.02, rel=0.02)
    assert plan.counts["total"] == 19_417_152 - 18_432  # without its skip weights and scales of channels


def test_rows_without_clips_fit_their_budget_with_room_to_spare() -> None:
    """Nothing scales them: int8-row takes 0.87 to 0.945 bytes a parameter, header and all, and most after few steps.

    Trainings differ by up to 430 bytes, and the code, which is the trunk's too, grows.
    """
    code = golf.code_bytes()
    plain = [row for row, flags in golf.ENTRIES.items() if flags["--plan"] == "int8-row"]
    assert len(plain) == 3 * len(golf.BASELINES) + 1
    for entry, scale in plain:
        model = run_of(entry, scale)[1].counts["total"] * 0.96
        assert 0.6 * golf.SCALES[scale].bytes < model + code < golf.SCALES[scale].bytes - 2000, (entry, scale)


PARTS = """
baselines | naive-narrow naive-middle naive-wide
vocabulary | 1024
--scale=1gpu vocabulary | 4096
--scale=1gpu --entry=seed vocabulary | 1024
data | world
--scale=1gpu data | auto
--scale=1gpu --data=mine data | mine
--scale=cpu plan | int8-row
--scale=cpu --plan=int6-row plan | int6-row
--save-every=7 --no-compile flags | --eval-every=400 --save-every=7
flags | --eval-every=400 --save-every=-1
tricks | tied embeddings induction
--without=compilation --eval-every=1 flags | --eval-every=1
--scale cpu flags | --eval-every=400
plan --depth=3 --scale=cpu | int8-row
"""
UNKNOWN = """
--scale=tiny | --scale: tiny is not known, choose from embedded, cpu, 1gpu
--entry=best | --entry: best is not known, choose from golf, naive-narrow
--without=luck | --without: luck is not known, choose from
luck | name what to print at the end: one of baselines, vocabulary, data, plan, flags, tricks, not 'luck'
--scale=cpu | name what to print at the end
--depth=4 | name what to print at the end
"""


@pytest.fixture
def run_entries(quick: str) -> Callable[..., subprocess.CompletedProcess[str]]:
    """A function that runs the command."""

    def run(*words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        command = [quick, "-m", "tracks.golf.entries", *words]
        return checked(subprocess.run(command, cwd=ROOT, capture_output=True, text=True), code)

    return run


@pytest.mark.parametrize("case", UNKNOWN.strip().splitlines())
def test_unknown_names_and_parts_are_refused(case, run_entries) -> None:
    word, sentence = case.split(" | ")
    words = [word, "plan"] if "not known" in sentence else [word]
    assert run_entries(*words, code=2).stderr.startswith(f"error: {sentence}")


@each_row("words lines", PARTS)
def test_a_part_is_printed(words, lines, run_entries) -> None:
    assert " ".join(run_entries(*words.split()).stdout.splitlines()).startswith(lines)


def test_help_names_the_parts(run_entries) -> None:
    assert "baselines, vocabulary, data, plan, flags" in run_entries("--help").stdout


def test_the_type_of_scales_names_the_keys() -> None:
    assert get_args(ScaleName) == tuple(SCALES)
