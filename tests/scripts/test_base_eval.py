"""scripts.base_eval as a user meets it: its record, what it does not do twice, its refusals."""

import json

import pytest
from base_runs import Base, _stage
from bundles import HARD, world_tasks, write_bundle
from forks import Forked

from nanochat.log import format_value, read_metrics
from nanochat.report.__main__ import render
from nanochat.report.card import read_card
from nanochat.report.compare import decisions


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Base:
    """With a trained run, and a bundle in a mirror."""
    base = Base(tmp_path_factory.mktemp("base"))
    base.run("small", "--max-seq-len=128", "--num-iterations=4", "--save-every=2")
    write_bundle(base.folder / "mirror", [*world_tasks(7), *HARD])
    return base


@pytest.fixture
def evaluated(base, tmp_path):
    def start(*flags: str, ranks: int = 1, mirror: str = "mirror") -> Forked:
        variables = {"NANOCHAT_BASE_DIR": str(base.folder), "NANOCHAT_HUB": str(base.folder / mirror)}
        words = ("scripts.base_eval", "--tag=small", "--dtype=fp32", *flags)
        return Forked(tmp_path / "-".join([mirror, *flags]), _stage, None, *words, ranks=ranks, **variables)

    return start


def folders(base: Base) -> list[str]:
    return sorted(path.name for path in (base.folder / "base_eval/small").iterdir() if path.is_dir())


def test_a_run_leaves_its_record_and_is_not_done_twice(base, evaluated):
    said = evaluated().done()
    record = json.loads((base.folder / "base_eval/small/outcome.json").read_text())
    labels = [task.label for task in [*world_tasks(7), *HARD]]
    assert list(record["metrics"]) == ["Model", "CORE metric", *labels]
    assert record["metrics"]["Model"] == "base_train small (step 4)"
    assert record["card"] == ["max_per_task"]
    centered = [record["metrics"][label]["value"] for label in labels]
    assert record["metrics"]["CORE metric"]["value"] == pytest.approx(sum(centered) / len(labels))
    assert f"base_eval: CORE metric {format_value(record['metrics']['CORE metric'])}, over 11 tasks\n" in said
    (home,) = folders(base)
    written = {path.stem: path.stat().st_mtime_ns for path in (base.folder / "base_eval/small" / home).iterdir()}
    assert written.keys() == set(labels)
    assert record["artifacts"].keys() == {f"{label}.jsonl" for label in labels}

    evaluated("--batch-tokens=64", ranks=2).done()
    assert folders(base) == [home]
    again = {path.stem: path.stat().st_mtime_ns for path in (base.folder / "base_eval/small" / home).iterdir()}
    assert again == written
    assert json.loads((base.folder / "base_eval/small/outcome.json").read_text())["metrics"] == record["metrics"]
    judged = {one["task"]: one for one in decisions(base.folder, read_card(base.folder).outcomes)}
    assert list(judged) == labels
    assert all(one["questions"] and one["samples"] == 1 for one in judged.values())
    card = render(base.folder)
    shown = format_value(record["metrics"]["CORE metric"])
    lines = f"- max_per_task: -1\n- Model: base_train small (step 4)\n- CORE metric: {shown}\n- world_people: "
    assert lines in card.partition("## Base model evaluation\n")[2]
    assert f"| CORE metric     | {shown} |" in card
    [found] = read_metrics(base.folder / "base_eval/small/metrics.jsonl")  # the second evaluation replaced the first
    assert found["core_metric"] == record["metrics"]["CORE metric"]["value"]

    for flags in (["--max-per-task=6"], ["--step=2"], ["--dtype=bf16"]):
        before = folders(base)
        evaluated(*flags).done()
        assert len(folders(base)) == len(before) + 1, flags
    assert sum(name.startswith("step_000002-") for name in folders(base)) == 1


def test_what_cannot_be_is_one_sentence(base, evaluated):
    (base.folder / "empty").mkdir()
    for job, sentence in {
        evaluated(mirror="empty"): "error: 2 of 2 files are not available:\n  eval_bundle/core.yaml: not in the mirror",
        evaluated(
            "--tag=none"
        ): f"error: there is no model in {base.folder}/base_train/none: python -m scripts.base_train",
        evaluated("--max-per-task=3"): "error: world_people shows 5 examples before a question and has 3 items: take",
        evaluated("--max-per-task=-2"): "error: --max-per-task has to be -1 or more, not -2",
        evaluated(mirror="nowhere"): f"error: NANOCHAT_HUB={base.folder}/nowhere is no directory",
    }.items():
        assert job.codes() == [2], job.err()
        assert job.err().startswith(sentence)
