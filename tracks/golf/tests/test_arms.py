"""The table of the seed's claims: each arm differs from the row in what it says, and fits the scale."""

import pytest
from conftest import ROOT

from nanochat.config import parse
from nanochat.errors import UserError
from nanochat.models import config_fields
from nanochat.scaling import RunPlan, plan_run
from tracks.golf.arms import ARMS, ROWS, STRIDE, arm_flags, arms_of, strides_of, trained
from tracks.golf.entries import ENTRIES, SCALES, code_bytes
from tracks.golf.train import Config

TRAINED = [arm.name for arm in trained(ARMS)]


def plan_of(scale: str, name: str = "") -> RunPlan:
    """Return the plan of a run of an arm, or of the row."""
    flags = arm_flags(scale, arms_of(name)[0] if name else None, {})
    del flags["--plan"]
    return plan_run(parse(Config, [f"{flag}={value}" for flag, value in flags.items()]), SCALES[scale].vocabulary)


@pytest.mark.parametrize("scale", ROWS)
def test_the_row_is_the_seed_at_a_smaller_size(scale: str) -> None:
    model, seed = plan_of(scale).model, config_fields("golf-seed")
    flags, large = arm_flags(scale, None, {}), ENTRIES["seed", "1gpu"]
    same = seed.keys() - {"rope_dims", "qk_eps"}
    assert {name: getattr(model, name) for name in same} == {name: seed[name] for name in same}
    assert (model.depth, model.heads // model.kv_heads) == (8, 2)
    assert model.rope_dims * 2 == model.head_dim
    assert flags["--plan"] == flags["--qat"] == large["--qat"]
    assert int(flags["--max-seq-len"]) > STRIDE


@pytest.mark.parametrize("scale", ROWS)
@pytest.mark.parametrize("name", TRAINED)
def test_an_arm_differs_from_the_row_in_one_thing(scale: str, name: str) -> None:
    row, [arm] = arm_flags(scale, None, {}), arms_of(name)
    own = arm_flags(scale, arm, {})
    changed = {flag for flag in row.keys() | own.keys() if row.get(flag) != own.get(flag)}
    assert changed in ({"--model"}, {"--depth"}, {"--qat-share"}, {"--qat", "--qat-share"})
    plan_of(scale, name)
    # Given flags win over the row's, and what the arm changes over both.
    given = arm_flags(scale, arm, {"--num-iterations": "5"})
    assert "--target-seconds" not in given
    assert given["--num-iterations"] == "5"


@pytest.mark.parametrize("scale", ROWS)
def test_nine_layers_fit_the_budget_too(scale: str) -> None:
    """Without clips int6 takes 0.73 bytes a value where rows have 112, and int8 0.95; scales and header 3 %."""
    counts = plan_of(scale, "layers-9").counts
    model = 1.03 * (0.75 * counts["matrices"] + 0.97 * (counts["total"] - counts["matrices"]))
    assert model + code_bytes() < SCALES[scale].bytes


def test_the_shares_of_qat_are_those_of_the_seeds_text_and_of_its_log() -> None:
    """They differ; the page says so, and the arm has the one that the row does not have."""
    shares = [arm_flags("cpu", arm, {})["--qat-share"] for arm in (None, *arms_of("qat-15"))]
    assert [*shares, ENTRIES["seed", "1gpu"]["--qat-share"]] == ["0.1", "0.15", "0.15"]
    page = (ROOT / "tracks/golf/README.md").read_text(encoding="utf-8")
    assert "The seed's text and the log of its run disagree about QAT" in page


def test_arms_are_chosen_by_name() -> None:
    assert arms_of("") == list(ARMS)
    assert [arm.name for arm in arms_of("no-qat,rope-all,no-qat")] == ["rope-all", "no-qat"]
    with pytest.raises(UserError, match="--arms: luck is not known, choose from rope-all, xsa-4"):
        arms_of("luck")
    assert len({arm.name for arm in ARMS}) == len(ARMS)
    assert strides_of(ARMS) == [128, 0, 96, 16]
    assert len(TRAINED) == 10
