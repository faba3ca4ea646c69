"""Results of labs with known truth, read from folders of runs."""

import math
import shutil
from pathlib import Path

import numpy as np
import pytest
from made_labs import QUESTIONS, make_lab, read_lab, train

from nanochat.lab.rates import next_rates
from nanochat.lab.results import cells, differences, losses, noise, read_results, recommended, synergies, verdicts_on
from nanochat.lab.sweep import Arm
from nanochat.paths import read_jsonl, write_jsonl

COMBINED = {'idle = "Chats,Spelling"': 'idle = "Chats,Spelling"\n"good+idle" = "Chats,Facts,Spelling"'}


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(tmp_path))
    return tmp_path


def verdicts(spec) -> dict[tuple[str, str], str]:
    return {(one.base, one.mix): one.verdict for one in verdicts_on(spec, read_results(spec))}


def test_the_truth_is_found_on_both_bases(base):
    spec = read_lab(base)
    make_lab(base, spec)
    expected = {"good": "keep", "idle": "scale up", "bad": "drop"}
    assert verdicts(spec) == {(name, mix): verdict for name in spec.bases for mix, verdict in expected.items()}
    assert set(recommended(spec)) == {Arm(name, mix, 1.0) for name in spec.bases for mix in ("plain", "good")}
    table = differences(cells(read_results(spec), spec.dev), "plain")
    gain = table["one", "good", "World-Facts"]
    assert gain.low < 0.3 < gain.high
    assert gain.error < 0.035  # without pairs it would be more


def test_scores_are_those_of_the_files(base):
    spec = read_lab(base)
    make_lab(base, spec)
    found = cells(read_results(spec), [*spec.dev, *spec.stable])
    scores = found["two", "good", "World-Facts"]
    assert (len(found), scores.shape) == (2 * 4 * 2, (2, QUESTIONS))
    runs = [run for run in spec.runs if run.arm == Arm("two", "good", 1.0)]
    for run, row in zip(runs, scores, strict=True):
        records = read_jsonl(base / "chat_eval_sft" / spec.tag_of(run) / "World-Facts.jsonl", dict)
        assert row.tolist() == [np.mean([one["right"] for one in record["completions"]]) for record in records]


def test_failed_and_broken_runs_are_left_out(base):
    spec = read_lab(base)
    make_lab(base, spec)
    spiked, failed, other, new = (spec.tag_of(run) for run in spec.runs[:4])
    shutil.rmtree(base / "chat_sft" / spiked)
    train(base, spiked, scale=5.0)
    shutil.rmtree(base / "chat_sft" / failed)
    log = base / "lab" / "lab" / f"{failed}-train.log"
    log.parent.mkdir(parents=True)
    log.write_text("== python\nerror: the loss is nan\n")
    path = base / "chat_eval_sft" / other / "World-Facts.jsonl"
    write_jsonl(path, [record | {"prompt": "another question"} for record in read_jsonl(path, dict)])
    shutil.rmtree(base / "chat_eval_sft" / new)
    results = read_results(spec)
    assert [result.failure for result in results[:5]] == ["", "error: the loss is nan", "", "not run", ""]
    assert [alarm.kind for alarm in results[0].alarms] == ["loss", "loss"]
    found = cells(results, spec.dev)
    assert [len(found["one", mix, "World-Facts"]) for mix in spec.mixes] == [1, 1, 1, 1]
    assert [len(found["two", mix, "World-Facts"]) for mix in spec.mixes] == [2, 2, 2, 2]


def test_a_stable_benchmark_that_falls_is_an_alarm(base):
    spec = read_lab(base)
    make_lab(base, spec)
    tag = spec.tag_of(spec.runs[0])
    path = base / "chat_eval_sft" / tag / "World-Choices.jsonl"
    wrong = [{"right": False, "reason": "length"}]
    write_jsonl(path, [record | {"completions": wrong * 2} for record in read_jsonl(path, dict)])
    first, *others = read_results(spec)
    assert [alarm.sentence.split(":")[0] for alarm in first.alarms] == [
        "World-Choices",
        "answers in World-Choices that stop",
    ]
    assert not any(result.alarms for result in others)


def test_synergies_are_interactions(base):
    spec = read_lab(base, COMBINED)
    make_lab(base, spec)
    table = synergies(cells(read_results(spec), spec.dev), "plain")
    assert set(table) == {(name, "good+idle", "World-Facts") for name in spec.bases}
    assert [one.mean for one in table.values()] == [pytest.approx(0.95 - 0.8 - 0.5 + 0.5, abs=0.05)] * 2


def test_rates_are_compared_one_by_one_and_searched(base):
    spec = read_lab(base, {"budget": "rates = [0.5, 1.0]\nbudget", '"one", "two"': '"one"'})
    make_lab(base, spec)
    assert {key[:2] for key in verdicts(spec)} == {("one*0.5", "good"), ("one*1", "idle")} | {
        (name, mix) for name in ("one*0.5", "one*1") for mix in ("good", "idle", "bad")
    }
    shutil.rmtree(base / "chat_sft" / spec.tag_of(spec.runs[1]))
    points = losses(read_results(spec))["one", "plain"]
    assert (points[0.5], math.isnan(points[1.0][0])) == ([pytest.approx(1.537, abs=1e-3)] * 2, False)
    assert next_rates(points).number == 1


def test_noise_is_that_of_the_repeats(base):
    spec = read_lab(base, {"repeats = 2": "repeats = 4", "seeds = [1, 2]": "seeds = [1, 2, 3]"})
    make_lab(base, spec)
    results = read_results(spec)
    found = noise(results, 4)["World-Facts"]
    # Pooled by hand: variances over the repeats of each run.
    means = np.array([result.answers["World-Facts"].mean(1) for result in results])
    assert found.freedom == 24 * 3
    assert found.deviation == pytest.approx(means.var(axis=1, ddof=1).mean() ** 0.5)
    assert noise(results, 1) == {}
