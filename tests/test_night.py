"""The edits of bench/night.py: those without effect have none, and the others are for today's code."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from copies import BEING_COMPILED, ROOT

from bench import night
from bench.night import AUTHOR, HARMS, NO_OPS, Asked, Edit, describe, is_right, questions
from nanochat.errors import UserError

# Some steps of a small model with all tricks, on fixed tokens; prints the losses.
STEPS = """
import torch
from nanochat import schedules
from nanochat.induction import InductionConfig
from nanochat.models import build_model
from nanochat.optim import Optimizer
from nanochat.param_groups import build_groups, group_rates
from nanochat.runtime import Runtime
from nanochat.settings import OptimizerSettings

torch.manual_seed(0)
config = InductionConfig(vocab_size=64, depth=2, width=64, heads=2, kv_heads=2, max_seq_len=32, induction=True)
model = build_model(config, Runtime(torch.device("cpu"), torch.float32, "chunks"), 1)
rates = OptimizerSettings(embedding_lr=0.2, unembedding_lr=0.008, matrix_lr=0.02, scalar_lr=0.1)
groups = build_groups(model, group_rates(rates, 64, 1.0, 0.1))
optimizer = Optimizer(groups)
table = schedules.pretraining(rates, 20)
ids = torch.randint(64, (4, 33))
for step in range(12):
    loss = model(ids[:, :-1], ids[:, 1:]) / 128
    loss.backward()
    schedules.apply(groups, table, step / 12, step)
    optimizer.step()
    optimizer.zero_grad()
    print(loss.item())
"""
EXACT, ROUNDED, DRAWN = NO_OPS[:6], NO_OPS[6:17], NO_OPS[17:]


def losses(folder: Path, edits: Sequence[Edit]) -> list[float]:
    """Return the losses of a copy of the code with some edits."""
    shutil.copytree(ROOT / "nanochat", folder / "nanochat", ignore=BEING_COMPILED)
    for edit in edits:
        night.replace(folder, edit)
    done = subprocess.run(
        [sys.executable, "-c", STEPS],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
    )
    assert not done.returncode, done.stderr
    return [float(line) for line in done.stdout.splitlines()[-12:]]


def test_a_night_has_twenty_edits_without_effect() -> None:
    assert len({edit.name for edit in NO_OPS}) == 20
    assert [edit.name for edit in DRAWN] == ["other first weights", "other order of documents", "both drawn anew"]


def test_edits_without_effect_have_none(tmp_path: Path) -> None:
    plain = losses(tmp_path / "plain", [])
    assert plain[-1] < plain[0]
    assert losses(tmp_path / "exact", EXACT) == plain
    rounded = losses(tmp_path / "rounded", ROUNDED)
    assert rounded != plain
    assert rounded == pytest.approx(plain, rel=1e-4)


@pytest.mark.parametrize("edit", [*DRAWN, *HARMS], ids=lambda edit: edit.name)
def test_the_other_edits_are_for_the_code_of_today(edit: Edit, tmp_path: Path) -> None:
    path = tmp_path / edit.file
    path.parent.mkdir(parents=True)
    before = (ROOT / edit.file).read_text(encoding="utf-8")
    path.write_text(before, encoding="utf-8")
    night.replace(tmp_path, edit)
    compile(path.read_text(encoding="utf-8"), edit.file, "exec")
    with pytest.raises(UserError, match="is for other code"):
        night.replace(tmp_path, Edit(edit.name, edit.file, "no such text", ""))
    night.replace(tmp_path, Edit(edit.name, edit.file, edit.new, edit.old))
    assert path.read_text(encoding="utf-8") == before


def test_planted_gains_are_asked_about_over_a_commit_that_has_all_harms(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    for name in {edit.file for edit in HARMS}:
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, clone / name)
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "one"], ["tag", "as-it-is"]):
        night.git(clone, *words, variables=AUTHOR)
    asked = questions(clone, "planted")
    assert [one.expected for one in asked] == ["harm"] * 5 + ["gain"] * 5
    for harm, gain in zip(asked[:5], asked[5:], strict=True):
        night.make(clone, harm)
        assert harm.edit.new in (clone / harm.edit.file).read_text(encoding="utf-8")
        night.make(clone, gain)
        changed = night.git(clone, "diff", "as-it-is", "--stat")
        assert harm.edit.new not in (clone / harm.edit.file).read_text(encoding="utf-8")
        assert changed  # the other four harms are there
    assert questions(clone, "planted") == asked  # the same command goes on


@pytest.mark.parametrize(
    ("expected", "given", "gain", "right"),
    [
        ("nothing", "keep", 0.2, False),
        ("nothing", "discard", 0.0, True),
        ("nothing", "discard", None, True),
        ("nothing", "undecided", 0.2, True),
        ("harm", "keep", 0.2, False),
        ("harm", "discard", -0.2, True),
        ("harm", "discard", None, False),  # its run failed, or it was refused
        ("harm", "undecided", -0.2, False),
        ("harm", "undecided", -0.05, True),
        ("gain", "keep", 0.2, True),
        ("gain", "discard", 0.05, False),
        ("gain", "discard", None, False),
        ("gain", "undecided", 0.2, False),
        ("gain", "undecided", 0.05, True),
    ],
)
def test_which_answers_are_right(expected: str, given: str, gain: float | None, right: bool) -> None:
    row = describe(Asked("a", expected, "", NO_OPS[0]), {"answer": given, "gain": gain, "smallest": 0.1})
    assert is_right(row) == right


def test_an_answer_without_figures_is_a_row_with_its_reason() -> None:
    row = describe(Asked("a", "nothing", "", NO_OPS[0]), {"answer": "discard", "reason": "its run failed"})
    assert (row["gain"], row["reason"]) == (None, "its run failed")


def test_a_night_needs_a_folder() -> None:
    with pytest.raises(UserError, match="--folder=FOLDER"):
        night.main(night.Config())
