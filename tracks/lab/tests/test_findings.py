"""Results of labs with known truth, read from folders of runs, and their section in the report card."""

import re
import shutil
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import numpy as np
import pytest
from outcomes import leave, sections

from nanochat.config import parse
from nanochat.jobs.runner import Chain
from nanochat.outcome import Outcome, moment
from nanochat.paths import read_json, read_jsonl, read_sha256, write_json, write_jsonl, write_text
from nanochat.report.__main__ import read_record, write_card
from nanochat.report.compare import compare
from tracks.lab import findings, prune
from tracks.lab.kinds import refused_flags, search_plan, search_rates
from tracks.lab.run import Config
from tracks.lab.sweep import HELD_OUT, STAGES, Run, Spec, base_step, expectations, run_steps
from tracks.lab.tests.made_labs import QUESTIONS, TRUTH, answer, make_lab, read_lab, train

MERGES = """[merges]
both = { good = 1, idle = 2 }
worse = { bad = 1, idle = 1 }
[benchmarks]"""


@pytest.fixture
def spec(base) -> Spec:
    """A lab, all of whose runs have ended."""
    spec = read_lab(base)
    make_lab(base, spec)
    return spec


def results_of(spec) -> list[findings.RunResult]:
    return findings.read_results(spec, spec.runs)


def begin(spec) -> Outcome:
    return Outcome.begin("lab", spec.name, Config(spec="lab.toml"))


def verdicts(spec) -> dict[tuple[str, str], str]:
    return {(one.base, one.mix): one.verdict for one in findings.verdicts_on(spec, results_of(spec))}


def test_the_truth_is_found_on_both_bases(base, spec) -> None:
    expected = {"good": "keep", "idle": "scale up", "bad": "drop"}
    assert verdicts(spec) == {(name, mix): verdict for name in spec.bases for mix, verdict in expected.items()}
    results = results_of(spec)
    kept = [result.run for result in findings.recommended(spec, results)]
    assert set(kept) == {run for run in spec.runs if run.mix in ("plain", "good")}
    table = findings.differences(findings.trainings(results, spec.dev), "plain")
    gain = table["one", "good", "World-Facts"]
    assert gain.low < 30 < gain.high
    assert gain.error < 3.5  # without pairs it would be more


def test_bits_per_byte_of_a_text_decide_between_chats(base: Path) -> None:
    """A mix that teaches a language which no benchmark asks in: its answers are those of the others."""
    text = base / "text"
    write_text(text / "a.txt", "안녕하세요.")
    changes = {
        'dev = ["World-Facts"]': 'dev = ["World-Facts", "bpb"]',
        "repeats = 2": f'repeats = 2\ntext = "{text}"',
        "seeds = [1, 2]": "seeds = [1, 2, 3]",
    }
    spec = read_lab(base, changes)
    make_lab(base, spec)
    for name in spec.bases:
        leave(base, "base_loss_mid", f"lab-{name}", metrics={"all bpb": {"value": 1.9, "stderr": 0.1}})
    noise = np.random.default_rng(5)
    for run in spec.runs:
        tag = spec.tag_of(run)
        answer(base, "chat_eval_sft", tag, {"World-Facts": 0.5, "World-Choices": 0.6}, spec.repeats, run.seed)
        bits = 1.5 + 0.3 * run.seed - (run.mix == "good") * 0.1 + noise.normal(0, 0.0002)
        leave(base, "base_loss_sft", tag, metrics={"all bpb": {"value": bits, "stderr": 0.1}}, seconds=10.0)
    found = findings.gains_of(spec, results_of(spec))
    shown = {mix: {found[name, mix, "bpb"].shown for name in spec.bases} for mix in ("good", "idle")}
    assert shown == {"good": {"gain"}, "idle": {findings.significance.UNCLEAR}}
    assert found["one", "good", "bpb"].mean == pytest.approx(-0.1, abs=0.001)
    assert verdicts(spec)["two", "good"] == "keep"
    outcome = begin(spec)
    findings.write_report(spec, outcome, results_of(spec), [])
    tables = {table["title"]: table["rows"] for table in outcome.tables}
    assert [row[2] for row in tables["Differences from the reference, bits per byte"]] == 6 * ["bpb"]
    assert outcome.metrics["Bits per byte of two, before"] == "1.9000"
    # A merge keeps a half.
    spec = spec.model_copy(update={"merges": {"both": {"good": 1, "idle": 1}}, "methods": ["linear"]})
    for run in spec.merged_runs:
        tag = spec.tag_of(run)
        leave(base, "merge", tag)
        answer(base, "chat_eval_sft", tag, {"World-Facts": 0.5, "World-Choices": 0.6}, spec.repeats, run.seed)
        figure = {"value": 1.45 + 0.3 * run.seed + noise.normal(0, 0.0002), "stderr": 0.1}
        leave(base, "base_loss_sft", tag, metrics={"all bpb": figure}, seconds=10.0)
    points, bits = findings.merge_tables(spec, results_of(spec), findings.read_results(spec, spec.merged_runs))
    assert (points["rows"], bits["columns"][5]) == ([], ("Its gain", "+.4f"))
    assert [row[-1] for row in bits["rows"]] == pytest.approx([0.5, 0.5], abs=0.02)
    # Runs that are not evaluated in bits have no result, though they have answered.
    (base / "base_loss_sft" / spec.tag_of(spec.runs[0]) / "outcome.json").unlink()
    assert results_of(spec)[0].broken


def test_more_seeds_are_for_what_is_not_distinguishable_and_for_its_reference(base) -> None:
    spec = read_lab(base, {"seeds = [1, 2]": "seeds = [1, 2]\nmore_seeds = [3]"})
    make_lab(base, spec)
    first = results_of(spec)
    more = findings.undecided_runs(spec, first)
    assert [(run.base, run.mix, run.seed) for run in more] == [
        (name, mix, 3) for name in spec.bases for mix in ("plain", "idle")
    ]
    assert findings.undecided_runs(read_lab(base), first) == []
    # p counts both tables.
    once = findings.differences(findings.trainings(first, spec.dev), "plain")
    for key, one in findings.gains_of(spec, first).items():
        assert one.adjusted == pytest.approx(min(1, 2 * once[key].adjusted))
    # Arms of two and of three seeds stand in one table.
    for number, run in enumerate(more):
        train(base, spec.tag_of(run))
        answer(base, "chat_eval_sft", spec.tag_of(run), {"World-Facts": 0.5, "World-Choices": 0.6}, 2, 90 + number)
    results = findings.read_results(spec, [*spec.runs, *more])
    [group] = findings.trainings(results, spec.dev)["one", "World-Facts"]
    sizes = {mix: len(scores) for mix, scores in group.items()}
    assert sizes == {"plain": 3, "good": 2, "idle": 3, "bad": 2}
    gains = findings.gains_of(spec, results)
    early = findings.gains_of(spec, first)
    for name in spec.bases:
        # The reference has another mean now; what was shown stays.
        assert gains[name, "good", "World-Facts"] == early[name, "good", "World-Facts"]
        assert gains[name, "idle", "World-Facts"] != early[name, "idle", "World-Facts"]
    assert gains["one", "good", "World-Facts"].shown == "gain"


def test_several_trainings_of_a_base_are_one_base_in_the_tables(base) -> None:
    more = 'seeds = [1, 2]\nreplicas = { one = ["one-b", "one-c"] }'
    spec = read_lab(base, {"seeds = [1, 2]": more, 'bases = ["one", "two"]': 'bases = ["one"]'})
    assert [run.base for run in spec.runs[::8]] == ["one", "one-b", "one-c"]
    make_lab(base, spec)
    results = results_of(spec)
    assert {result.base for result in results} == {"one"}
    groups = findings.trainings(results, spec.dev)["one", "World-Facts"]
    assert [group["good"].shape for group in groups] == 3 * [(2, QUESTIONS)]
    gains = findings.gains_of(spec, results)
    assert gains["one", "good", "World-Facts"].freedom == 2  # three trainings
    assert verdicts(spec) == {("one", "good"): "keep", ("one", "idle"): "scale up", ("one", "bad"): "drop"}
    findings.write_report(spec, begin(spec), results, [])
    tables = {table["title"]: table for table in read_json(base / "lab/lab/outcome.json")["tables"]}
    assert [row[:2] for row in tables["Scores, one"]["rows"]] == [[mix, "6 of 6"] for mix in spec.mixes]
    assert not any("one training" in row[3] for row in tables["Recommendation"]["rows"])
    curves = {curve["title"]: curve["series"] for curve in read_json(base / "lab/lab/outcome.json")["curves"]}
    assert len(curves["one, good: loss"]) == 6
    # The runs of two of them are lost: what one training shows is not a difference.
    for run in spec.runs:
        if run.base != "one":
            shutil.rmtree(base / "chat_eval_sft" / spec.tag_of(run)) if run.mix == "good" else None
    gain = findings.gains_of(spec, results_of(spec))["one", "good", "World-Facts"]
    assert (gain.shown, gain.p, gain.freedom) == ("not distinguishable", 1.0, 0)
    # Nor if none of their runs is there.
    for run in spec.runs:
        if run.base != "one":
            shutil.rmtree(base / "chat_eval_sft" / spec.tag_of(run), ignore_errors=True)
    gain = findings.gains_of(spec, results_of(spec))["one", "good", "World-Facts"]
    assert (gain.shown, gain.p, gain.freedom) == ("not distinguishable", 1.0, 0)


@pytest.mark.parametrize("again", ["good", "plain"])
def test_a_keep_is_confirmed_on_seeds_of_its_own(again: str, base) -> None:
    """The mix is run again with the reference alone; its gain is there or not."""
    spec = read_lab(base, {"seeds = [1, 2]": "seeds = [1, 2]\nconfirm_seeds = [7, 8]", '["one", "two"]': '["one"]'})
    make_lab(base, spec)
    first = results_of(spec)
    runs = findings.runs_to_confirm(spec, first)
    assert [(run.mix, run.seed) for run in runs] == [("plain", 7), ("plain", 8), ("good", 7), ("good", 8)]
    for number, run in enumerate(runs):
        train(base, spec.tag_of(run))
        share = TRUTH[again if run.mix == "good" else "plain"][0]
        shares = {"World-Facts": share, "World-Choices": 0.6}
        answer(base, "chat_eval_sft", spec.tag_of(run), shares, spec.repeats, 50 + number)
    results = [*first, *findings.read_results(spec, runs)]
    assert findings.gains_of(spec, results) == findings.gains_of(spec, first)
    [verdict] = [one for one in findings.verdicts_on(spec, results) if one.mix == "good"]
    assert verdict.verdict == ("keep" if again == "good" else "not confirmed")
    assert ("; confirmed on other seeds of this training: " in verdict.reason) == (again == "good")
    [before] = [one for one in findings.verdicts_on(spec, first) if one.mix == "good"]
    assert (before.verdict, before.reason.rpartition("; ")[2]) == ("keep", "not confirmed on other seeds")
    kept = {result.run.mix for result in findings.recommended(spec, results)}
    assert kept == ({"plain", "good"} if again == "good" else {"plain"})


def test_a_mix_that_loses_many_runs_is_not_kept(base) -> None:
    """It gains as before in the runs that are left."""
    spec = read_lab(base, {"seeds = [1, 2]": "seeds = [1, 2, 3, 4]", '["one", "two"]': '["one"]'})
    make_lab(base, spec)
    for seed, verdict in ((1, "keep"), (2, "trade-off")):
        shutil.rmtree(base / f"chat_sft/lab-one-good-1-{seed}")
        [found] = [one for one in findings.verdicts_on(spec, results_of(spec)) if one.mix == "good"]
        assert found.verdict == verdict
        assert f"; {seed} of 4 runs broke" in found.reason
    assert {result.run.mix for result in findings.recommended(spec, results_of(spec))} == {"plain"}


@pytest.mark.parametrize(("seeds", "lost", "verdict"), [([1, 2, 3], 1, "keep"), ([1, 2, 3, 4], 2, "trade-off")])
def test_a_mix_that_lost_a_run_is_confirmed(seeds: list[int], lost: int, verdict: str, base) -> None:
    """One of three runs is too many to keep a mix, and one of five is not; two of six are."""
    more = f"seeds = {seeds}\nconfirm_seeds = [7, 8]"
    spec = read_lab(base, {"seeds = [1, 2]": more, '["one", "two"]': '["one"]'})
    make_lab(base, spec)
    for seed in range(1, lost + 1):
        shutil.rmtree(base / f"chat_sft/lab-one-good-1-{seed}")
    first = results_of(spec)
    [before] = [one for one in findings.verdicts_on(spec, first) if one.mix == "good"]
    assert before.verdict == "trade-off"
    runs = findings.runs_to_confirm(spec, first)
    assert [(run.mix, run.seed) for run in runs] == (
        [("plain", 7), ("plain", 8), ("good", 7), ("good", 8)] if lost == 1 else []
    )
    for number, run in enumerate(runs):
        train(base, spec.tag_of(run))
        shares = {"World-Facts": TRUTH[run.mix][0], "World-Choices": 0.6}
        answer(base, "chat_eval_sft", spec.tag_of(run), shares, spec.repeats, 50 + number)
    results = [*first, *findings.read_results(spec, runs)]
    [found] = [one for one in findings.verdicts_on(spec, results) if one.mix == "good"]
    assert found.verdict == verdict


def test_scores_are_those_of_the_files(base, spec) -> None:
    found = findings.trainings(results_of(spec), [*spec.dev, *spec.stable, "not asked yet"])
    [group] = found["two", "World-Facts"]
    scores = group["good"]
    assert (len(found), scores.shape) == (2 * 2, (2, QUESTIONS))
    runs = [run for run in spec.runs if (run.base, run.mix) == ("two", "good")]
    for run, row in zip(runs, scores, strict=True):
        records = read_jsonl(base / "chat_eval_sft" / spec.tag_of(run) / "World-Facts.jsonl", dict)
        assert row.tolist() == [100 * np.mean([one["right"] for one in record["completions"]]) for record in records]


def test_failed_and_broken_runs_are_left_out(base, spec) -> None:
    spiked, failed, other, new = (spec.tag_of(run) for run in spec.runs[:8:2])
    shutil.rmtree(base / "chat_sft" / spiked)
    train(base, spiked, scale=5.0)
    shutil.rmtree(base / "chat_sft" / failed)
    log = base / "lab" / "lab" / f"{failed}-train.log"
    log.parent.mkdir(parents=True)
    log.write_text("== python\nerror: the loss is nan\n")
    path = base / "chat_eval_sft" / other / "World-Facts.jsonl"
    write_jsonl(path, [record | {"prompt": "another question"} for record in read_jsonl(path, dict)])
    shutil.rmtree(base / "chat_eval_sft" / new)
    results = results_of(spec)
    assert [result.broken for result in results[2:10:2]] == ["error: the loss is nan", "", "not run", ""]
    assert [alarm.kind for alarm in results[0].alarms] == ["loss", "loss"]
    found = findings.trainings(results, spec.dev)
    for name, count in (("one", 1), ("two", 2)):
        [group] = found[name, "World-Facts"]
        assert [len(group[mix]) for mix in spec.mixes] == 4 * [count]


def test_a_stable_benchmark_that_falls_is_an_alarm(base, spec) -> None:
    tag = spec.tag_of(spec.runs[0])
    path = base / "chat_eval_sft" / tag / "World-Choices.jsonl"
    wrong = [{"right": False, "reason": "length"}]
    write_jsonl(path, [record | {"completions": wrong * 2} for record in read_jsonl(path, dict)])
    first, *others = results_of(spec)
    assert [alarm.sentence.split(":")[0] for alarm in first.alarms] == [
        "World-Choices",
        "answers in World-Choices that stop",
    ]
    assert first.alarms[1].sentence.endswith(": 0.0%, and 100.0% before training")
    # Letters do not stop.
    write_jsonl(path, [record | {"completions": [{"right": False}] * 2} for record in read_jsonl(path, dict)])
    assert len(results_of(spec)[0].alarms) == 1
    assert not any(result.alarms for result in others)
    # Made runs have the same answer to all questions: an alarm, unless the base has too.
    path = base / "chat_eval_mid/lab-one/World-Choices.jsonl"
    path.write_text(path.read_text().replace('"text": ""', '"text": "A"', 100))
    assert "collapse" in str([result.alarms for result in results_of(spec)])


def test_synergy_is_the_gain_beyond_the_sum_of_both() -> None:
    """Made cells: each part gains 10 points, both together 40."""
    random, shares = np.random.default_rng(0), {"plain": 0.3, "a": 0.4, "b": 0.4, "a+b": 0.7}
    found = {mix: 100.0 * (random.random((3, 4000)) < share) for mix, share in shares.items()}
    [(key, one)] = findings.differences({("one", "Task"): [found]}, "plain", are_synergies=True).items()
    assert key == ("one", "a+b", "Task")
    assert one.low < 20 < one.high
    assert one.adjusted < 0.001
    means = {mix: scores.mean() for mix, scores in found.items()}
    assert one.mean == pytest.approx(means["a+b"] + means["plain"] - means["a"] - means["b"])
    del found["plain"]  # the reference
    assert not findings.differences({("one", "Task"): [found]}, "plain", are_synergies=True)


def test_merges_keep_a_share_of_gains(base) -> None:
    """Merges of a mix that gains and one that does not, and of none that gains."""
    spec = read_lab(base, {"repeats = 2": 'repeats = 2\nmethods = ["linear", "task"]', "[benchmarks]": MERGES})
    make_lab(base, spec)
    for number, run in enumerate(spec.merged_runs):
        leave(base, "merge", spec.tag_of(run))
        share = {"both:linear": 0.65, "both:task": 0.8}.get(run.mix, 0.2)
        answer(base, "chat_eval_sft", spec.tag_of(run), {"World-Facts": share}, spec.repeats, 50 + number)
    merged = findings.read_results(spec, spec.merged_runs)
    table, _ = findings.merge_tables(spec, results_of(spec), merged)
    assert [row[:5] for row in table["rows"]] == [
        [name, "both", method, "World-Facts", "good"] for name in spec.bases for method in ("linear", "task")
    ]
    kept = {(row[0], row[2]): row[9] for row in table["rows"]}
    assert kept == pytest.approx({key: 0.5 if key[1] == "linear" else 1 for key in kept}, abs=0.12)
    # A merge decides nothing.
    assert {one.mix for one in findings.verdicts_on(spec, results_of(spec))} == {"good", "idle", "bad"}
    [merging, evaluation] = run_steps(spec, spec.merged_runs[0])
    assert merging.command[1:] == [
        "--tag=lab-one-both-linear-1-1",
        "--source=sft",
        "--models=lab-one-good-1-1:1,lab-one-idle-1-1:2",
        "--method=linear",
    ]
    assert evaluation.parent == merging.output == "merge/lab-one-both-linear-1-1"


def test_answers_of_an_earlier_model_are_not_those_of_this_one(base: Path) -> None:
    """Of a run that was trained again after a look at held-out questions, and of a merge whose run has failed since."""
    spec = read_lab(base, {"[benchmarks]": MERGES})
    make_lab(base, spec)
    [run, *_] = spec.runs
    tag = spec.tag_of(run)
    answer(base, "chat_eval_sft", f"{tag}{HELD_OUT}", {"World-Talk": 0.5}, spec.repeats)
    train_outcome = base / "chat_sft" / tag / "outcome.json"
    step = run_steps(spec, run, is_held_out=True)[1]
    weights = {f"chat_sft/{tag}/model.safetensors": "first"}
    write_json(train_outcome, read_json(train_outcome) | {"artifacts": {"model.safetensors": "first"}})
    record = {"command": step.command, "inputs": weights, "finished": True}
    write_json(base / f"lab/lab/{step.name}.json", record)
    [found] = findings.read_results(spec, [run], is_held_out=True)
    assert found.answers
    write_json(train_outcome, read_json(train_outcome) | {"artifacts": {"model.safetensors": "second"}})
    [found] = findings.read_results(spec, [run], is_held_out=True)
    assert not found.answers
    assert found.broken == f"what {step.output} was made from has changed since, and it has not run again"
    merge = spec.merged_runs[0]
    leave(base, "merge", spec.tag_of(merge))
    answer(base, "chat_eval_sft", spec.tag_of(merge), {"World-Facts": 0.5}, spec.repeats)
    [found] = findings.read_results(spec, [merge])
    assert found.answers
    Path(run_steps(spec, merge)[0].local[0]).unlink()
    [found] = findings.read_results(spec, [merge])
    assert not found.answers


def test_mixes_without_a_result_have_no_verdict(base, spec) -> None:
    for seed in spec.seeds:
        shutil.rmtree(base / f"chat_sft/lab-one-good-1-{seed}")
    assert ("one", "good") not in verdicts(spec)
    assert verdicts(spec)["two", "good"] == "keep"


# ---- the report ----


def tables_of(base: Path, spec, look: int = 0) -> dict[str, list]:
    """Write the report of a lab; returns the tables of the outcome by title."""
    findings.write_report(spec, begin(spec), results_of(spec), [], look)
    return {table["title"]: table["rows"] for table in read_json(base / "lab/lab/outcome.json")["tables"]}


def report(base: Path, look: int = 0, changes: Mapping[str, str] = MappingProxyType({})) -> dict[str, list]:
    """Make a lab and its report."""
    spec = read_lab(base, changes)
    make_lab(base, spec, ("plain", "good"))
    tables = tables_of(base, spec, look)
    write_card(base, base / "card.md", "lab")
    return tables


def test_the_section_has_the_matrix_and_the_recommendation(base) -> None:
    tables = report(base)
    matrix = {row[0]: row for row in tables["Scores, one"]}
    assert [cell.get("unit") for cell in matrix["good"][2:]] == [" ▲", None]
    assert [cell.get("unit") for cell in matrix["bad"][2:]] == [" ▼", None]
    assert matrix["plain"][2]["value"] == pytest.approx(50, abs=5)
    verdicts = {(model, mix): verdict for model, mix, verdict, _ in tables["Recommendation"]}
    assert verdicts["one", "good"] == verdicts["two", "good"] == "keep"
    assert "not distinguishable from the reference" in str(tables["Recommendation"])
    for _, _, _, seeds, mean, best, luck in tables["Best seeds"]:
        assert (seeds, best >= mean, luck >= mean) == (2, True, True)
    written = read_json(base / "lab/lab/recommendation.json")
    assert len(written["runs"]) == 16
    found = read_json(base / "lab/lab/outcome.json")["artifacts"]
    assert found == {"recommendation.json": read_sha256(base / "lab/lab/recommendation.json")}
    text = sections((base / "card.md").read_text())["Lab"]
    assert "- Question: Which bucket helps?" in text
    assert "held out" not in text
    for picture in ("loss", "gradient norm", "validation"):
        assert f"![two, idle: {picture}]" in text
    assert re.search(r"\| good +\| 2 of 2 \| [\d.]+ ± [\d.]+ ▲", text)


def test_costs_are_apart(base) -> None:
    rows = report(base, look=1)["Cost"]
    # Runs of 240 and evaluations of 60 seconds, on eight GPUs for 24 dollars an hour: 8 of 16 runs are final. The two
    # bases are evaluated too.
    assert [row[:4] for row in rows] == [["Recipe", 8, 3000.0, 8e15], ["Final", 8, 2400.0, 8e15]]
    assert [row[5] for row in rows] == pytest.approx([0.36, 0.2])
    assert read_json(base / "lab/lab/outcome.json")["metrics"]["Recipe to final, seconds"] == "1.2"


def test_holes_and_alarms_are_named(base, spec) -> None:
    assert "Alarms" not in tables_of(base, spec)
    for stage, tag in product(("chat_sft", "chat_eval_sft"), ("lab-one-idle-1-1", "lab-one-idle-1-2")):
        shutil.rmtree(base / stage / tag)
    (base / "lab/lab/lab-one-idle-1-1-train.log").write_text("error: out of memory\n")
    shutil.rmtree(base / "chat_sft/lab-two-bad-1-1")
    train(base, "lab-two-bad-1-1", scale=5.0)
    tables = tables_of(base, spec)
    [hole] = [row for row in tables["Scores, one"] if row[0] == "idle"]
    assert hole == ["idle", "0 of 2", "error: out of memory; not run", "error: out of memory; not run"]
    alarms = [row[:3] for row in tables["Alarms"]]
    assert alarms[:2] == [["lab-one-idle-1-1", "failed", "yes"], ["lab-one-idle-1-2", "failed", "yes"]]
    assert alarms[2:] == [["lab-two-bad-1-1", "loss", "yes"]] * 2  # the spike, and the end


def test_the_noise_of_repeats(base) -> None:
    spec = read_lab(base, {"repeats = 2": "repeats = 4\nslots = [2]"})
    for number, name in enumerate(spec.bases):
        shares = {"World-Facts": 0.5, "World-Choices": 0.6}
        answer(base, "chat_eval_mid", f"lab-{name}", shares, repeats=4, seed=number)
        answer(base, "chat_eval_mid", f"lab-{name}-slots-2", shares, repeats=4, seed=9)
    findings.write_noise(spec, begin(spec))
    [noise] = read_json(base / "lab/lab/outcome.json")["tables"]
    places = product(("chosen", 2), ("World-Facts", "World-Choices"))
    assert [(row[1], row[0]) for row in noise["rows"]] == list(places)
    # By hand: each answer to the questions of an evaluation, then the pooled deviation of its repeats.
    variances, means = [], []
    for name in spec.bases:
        path = base_step(spec, name).outcome.with_name("World-Facts.jsonl")
        verdicts = [[one["right"] for one in record["completions"]] for record in read_jsonl(path, dict)]
        variances.append(np.mean(verdicts, axis=0).var(ddof=1))
        means.append(np.mean(verdicts))
    assert noise["rows"][0][2:4] == pytest.approx([100 * np.mean(means), 100 * np.mean(variances) ** 0.5])
    shutil.rmtree(base / "chat_eval_mid")
    with pytest.raises(ValueError, match="the evaluation of one has failed, see the logs in "):
        findings.write_noise(spec, begin(spec))


def test_rates_are_searched_by_the_validation_loss(base, monkeypatch) -> None:
    """The runs are made here: their loss is lowest at twice the stage's rate, and high rates diverge."""
    spec = read_lab(base, {'bases = ["one", "two"]': 'bases = ["one"]'})
    for name in spec.bases:
        leave(base, "chat_mid", name)

    def train_all(part, chains, config) -> None:
        assert len(chains) == len(part.runs)
        for run in part.runs:
            if run.rate >= 8:
                write_jsonl(part.outcome_of(run).with_name("metrics.jsonl"), [{"kind": "diverged", "step": 5}])
            elif not part.outcome_of(run).exists():
                train(base, part.tag_of(run), scale=1 + (np.log10(run.rate / 2)) ** 2)

    monkeypatch.setattr("tracks.lab.kinds.start", train_all)
    monkeypatch.setattr("tracks.lab.kinds.check_disk", lambda spec, runs: None)
    search_rates(spec, begin(spec), Config())
    [rates] = read_json(base / "lab/lab/outcome.json")["tables"]
    best = [row for row in rates["rows"] if row[-1]]
    assert [row[:2] for row in best] == [["one", mix] for mix in spec.mixes]
    assert all(1.8 < rate < 2.2 for _, _, rate, *_ in best)
    assert {mix: sum(row[3] for row in rates["rows"] if row[1] == mix) for mix in spec.mixes} == dict.fromkeys(
        spec.mixes, 17
    )
    assert {row[2] for row in rates["rows"] if np.isnan(row[4])} == {10.0}
    # A run that failed for another reason is not taken for one that diverged.
    (base / "chat_sft/lab-one-plain-10-1/metrics.jsonl").unlink()
    with pytest.raises(ValueError, match="lab-one-plain-10-1 has no result, and did not diverge: not run"):
        findings.last_figure(spec, Run("one", "plain", 10.0, 1))


def test_a_rate_that_diverges_with_one_seed_has_no_error(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = read_lab(base, {'bases = ["one", "two"]': 'bases = ["one"]'})
    spec = spec.model_copy(update={"mixes": {"plain": "Chats"}, "seeds": [1, 2, 3]})

    def train_all(part: Spec, chains: Sequence[Chain], config: Config) -> None:
        for run in part.runs:
            if run.seed == 2 and run.rate == part.rates[-1]:
                write_jsonl(part.outcome_of(run).with_name("metrics.jsonl"), [{"kind": "diverged", "step": 5}])
            elif not part.outcome_of(run).exists():
                train(base, part.tag_of(run), scale=1 + run.seed / 10 + (np.log10(run.rate / 2)) ** 2)

    monkeypatch.setattr("tracks.lab.kinds.start", train_all)
    monkeypatch.setattr("tracks.lab.kinds.check_disk", lambda spec, runs: None)
    search_rates(spec, begin(spec), Config())
    [rates] = read_json(base / "lab/lab/outcome.json")["tables"]
    errors = {row[2]: row[5] for row in rates["rows"] if row[3] == 3}
    assert len(errors) == 2
    [error] = filter(None, errors.values())  # the other one has none
    assert error == pytest.approx(0.1 / 3**0.5, rel=0.3)  # of the last losses
    assert {row[5] for row in rates["rows"] if row[3] == 1} == {None}


@pytest.mark.parametrize("keep", ["all", "best", "none"])
def test_a_search_keeps_the_checkpoints_that_are_asked_for(
    keep: Literal["all", "best", "none"], base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = read_lab(base, {'bases = ["one", "two"]': 'bases = ["one"]'})
    spec = spec.model_copy(update={"mixes": {"plain": "Chats"}})
    needed = []

    def train_all(part: Spec, chains: Sequence[Chain], config: Config) -> None:
        for run, (_, *ends) in zip(part.runs, chains, strict=True):
            train(base, part.tag_of(run), scale=1 + (np.log10(run.rate / 2)) ** 2)
            (part.outcome_of(run).parent / "step_000003").mkdir(exist_ok=True)
            for end in ends:  # the lab does it at once, and not when a round has ended
                assert keep == "none"
                module, *flags = end.command
                assert module == "tracks.lab.prune"
                prune.main(parse(prune.Config, flags))

    monkeypatch.setattr("tracks.lab.kinds.start", train_all)
    monkeypatch.setattr("tracks.lab.kinds.check_disk", lambda part, runs: needed.append(len(runs)))
    search_rates(spec, begin(spec), Config(keep=keep, jobs=3))
    [rates] = read_json(base / "lab/lab/outcome.json")["tables"]
    [best] = [row[2] for row in rates["rows"] if row[-1]]
    kept = {path.parent.name for path in base.glob("chat_sft/*/step_*")}
    everything = {path.name for path in base.glob("chat_sft/*")}
    at_best = {f"lab-one-plain-{best:g}-{seed}" for seed in spec.seeds}
    assert kept == {"all": everything, "best": at_best, "none": set()}[keep]
    assert needed[0] == (3 if keep == "none" else 10)


def test_the_plan_of_a_search_names_its_runs_and_hours(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = read_lab(base)
    monkeypatch.setattr("tracks.lab.sweep.disk_of", lambda spec, run: 10**9 if run.base == "one" else 2 * 10**9)
    lines = search_plan(spec, Config(kind="rates"), lambda runs: 60.0 * len(runs))
    assert lines[:3] == [
        # 8 bases and mixes; two rates of each with a second seed.
        "8 searches, of a base and a mix each: about 136 runs, and at most 232, where the best rate is far from the"
        " stage's own",
        "about 2h16m of training, one run after the other, as --dry-run estimates; at most 3h52m",
        "at most 348.0 GB of checkpoints at a time, with --keep=all",
    ]
    assert "at most 78.0 GB" in search_plan(spec, Config(keep="best"), len)[2]
    assert "at most 4.0 GB" in search_plan(spec, Config(keep="none", jobs=2), len)[2]
    assert search_plan(spec, Config(), lambda runs: None)[1] == "the time of training is not known"
    assert refused_flags(Config(spec="lab.toml", kind="rates", plan=True), spec) == []
    assert refused_flags(Config(spec="lab.toml", kind="variance", plan=True, final=True), spec) == [
        "--plan belongs to --kind=mixes and rates, which train",
        "--final belongs to --kind=mixes",
    ]


@pytest.mark.parametrize(("stage", "figure"), [("chat_rl", "eval/pass@1"), ("chat_dpo", "eval/Pair accuracy")])
def test_other_stages_are_searched_by_what_they_are_for(stage: str, figure: str, base, monkeypatch) -> None:
    """The highest score, at half of the stage's rate."""
    spec = read_lab(base, {'bases = ["one", "two"]': 'bases = ["one"]'}).model_copy(
        update={"stage": stage, "mixes": {"only": "GSM8K"}}
    )

    def train_all(part, chains, config) -> None:
        for run in part.runs:
            score = 0.6 - 0.2 * (np.log10(run.rate / 0.5)) ** 2
            leave(base, stage, part.tag_of(run))
            records = [{"kind": "eval", "step": step, figure: score * share} for step, share in ((0, 0.5), (9, 1))]
            write_jsonl(part.outcome_of(run).with_name("metrics.jsonl"), records)

    monkeypatch.setattr("tracks.lab.kinds.start", train_all)
    monkeypatch.setattr("tracks.lab.kinds.check_disk", lambda spec, runs: None)
    search_rates(spec, begin(spec), Config())
    [rates] = read_json(base / "lab/lab/outcome.json")["tables"]
    assert rates["title"].endswith(f"by the last {STAGES[stage].measure}")
    assert ("ask the runs a benchmark, too" in rates["note"]) == (stage == "chat_dpo")
    [best] = [row for row in rates["rows"] if row[-1]]
    assert 0.45 < best[2] < 0.55
    assert best[4] == pytest.approx(0.6, abs=0.01)
    assert max(row[4] for row in rates["rows"]) <= 0.6


def test_two_labs_are_compared(base, tmp_path, monkeypatch) -> None:
    report(base)
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(tmp_path / "b"))
    report(tmp_path / "b", changes={"seeds = [1, 2]": "seeds = [1, 2, 3]"})
    text = compare([read_record(base), read_record(tmp_path / "b")], ["a", "b"])
    number = r" *\| ([^ |]+)"
    score = rf"{number} ± (\S+) ▲"
    [row] = re.findall(rf"Scores, one: good, World-Facts{score}{score}{number}{number}", text)
    before, error, after, other, difference, both = map(float, row)
    assert difference == pytest.approx(after - before, abs=0.11)
    assert both == pytest.approx((error**2 + other**2) ** 0.5, abs=0.11)


TORCHRUN = """W1128 01:10:02 torch/distributed/run.py:766] Setting OMP_NUM_THREADS
error: step 7: the loss is inf, the gradient's norm is nan
Traceback (most recent call last):
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
  traceback : To enable traceback see: the documentation
============================================================
"""
KILLED_RANK = TORCHRUN.replace("error: step 7: the loss is inf, the gradient's norm is nan\n", "").replace(
    "To enable traceback see: the documentation", "Signal 9 (SIGKILL) received by PID 17"
)
PROGRESS = "step 00012/00100 (12.00%) | loss: 2.1 | eta: 4m\n"


@pytest.mark.parametrize(
    ("log", "record", "reason"),
    [
        (PROGRESS, {"status": 137}, f"ended by SIGKILL, after: {PROGRESS}"),
        (PROGRESS, {"status": 143}, f"ended by SIGTERM, after: {PROGRESS}"),
        (f"{PROGRESS}error: out of memory\n", {"status": 1}, "error: out of memory"),
        (TORCHRUN, {"status": 1}, "error: step 7: the loss is inf, the gradient's norm is nan"),
        (KILLED_RANK, {"status": 1}, "traceback : Signal 9 (SIGKILL) received by PID 17"),
        (PROGRESS, {}, f"stopped with the lab, after: {PROGRESS}"),
        ("", {"status": 1}, "its log is empty"),
        (f"error: of old\n== 2026-11-28 02:00:00 python -m x\n{PROGRESS}", {"status": 1}, PROGRESS),
    ],
)
def test_the_reason_of_a_run_that_has_not_ended(log: str, record: dict, reason: str, base, spec) -> None:
    """It is named in the card, and left out with its alarm."""
    tag = spec.tag_of(spec.runs[0])
    shutil.rmtree(base / "chat_sft" / tag)
    place = base / "lab/lab" / f"{tag}-train.log"
    write_text(place, f"== 2026-11-28 01:00:00 python -m scripts.chat_sft\n{log}")
    write_json(place.with_suffix(".json"), {"finished": False, "inputs": {}, "seconds": 1.0} | record)
    tables = tables_of(base, spec)
    # 15 runs of 240 seconds and as many evaluations of 60, two of the bases, and the second of the run that failed.
    assert tables["Cost"][0][:3] == ["Recipe", 15, 15 * 300.0 + 60.0 + 2 * 60.0 + 1.0]
    assert tables["Alarms"] == [[tag, "failed", "yes", reason.strip()]]
    [row] = [row for row in tables["Scores, one"] if row[0] == "plain"]
    assert row[1] == "1 of 2"
    left_out = read_json(base / "lab/lab/left_out.json")
    assert {name: one["reason"] for name, one in left_out.items()} == {f"chat_eval_sft/{tag}": reason.strip()}
    assert "failed" in (base / "lab/lab/outcome.json").read_text()


def test_a_lab_on_some_bases_keeps_what_it_has_left_out_of_others(base, spec) -> None:
    tag = spec.tag_of(spec.runs[0])
    path = base / "lab/lab/left_out.json"
    other = {"reason": "error: no", "since": "2026-11-01T00:00:00.000+00:00"}
    write_json(path, {"chat_eval_sft/lab-three-plain-1-1": other, f"chat_eval_sft/{tag}": other})
    tables_of(base, spec)
    assert read_json(path) == {"chat_eval_sft/lab-three-plain-1-1": other}
    # A run that is out for another reason is out from now on; a file of an earlier version has reasons alone.
    shutil.rmtree(base / "chat_sft" / tag)
    write_json(path, {"chat_eval_sft/lab-three-plain-1-1": "error: no", f"chat_eval_sft/{tag}": other})
    tables_of(base, spec)
    found = read_json(path)
    assert found["chat_eval_sft/lab-three-plain-1-1"]["reason"] == "error: no"
    assert moment(found[f"chat_eval_sft/{tag}"]["since"]) > moment(other["since"])


def test_the_luck_of_seeds_is_that_of_arms_that_are_alike() -> None:
    """Arms that are always at the floor have none, and take none from the others."""
    random = np.random.default_rng(1)
    noisy = {name: 100.0 * (random.random((3, 100)) < random.uniform(0.3, 0.7, (3, 1))) for name in ("plain", "good")}
    alone = findings.luck_table({("one", "Task"): [noisy]})["rows"]
    beside = noisy | {name: np.zeros((3, 100)) for name in ("bad", "worse")}
    rows = findings.luck_table({("one", "Task"): [beside]})["rows"]
    assert rows[:2] == alone
    assert [row[1:] for row in rows[2:]] == [[name, "Task", 3, 0, 0, 0] for name in ("bad", "worse")]


def test_a_cell_of_one_question_says_that_it_has_no_error(base: Path) -> None:
    spec = read_lab(base, {'["one", "two"]': '["one"]'})
    make_lab(base, spec)
    for path in base.glob("chat_eval_*/*/World-Facts.jsonl"):
        write_text(path, path.read_text().splitlines(keepends=True)[0])
    findings.write_report(spec, begin(spec), results_of(spec), [])
    tables = {table["title"]: table for table in read_json(base / "lab/lab/outcome.json")["tables"]}
    facts = [row[2] for row in tables["Scores, one"]["rows"]]
    assert {one["unit"] for one in facts} == {" (one question: no error)"}
    rows = tables["Differences from the reference"]["rows"]
    assert [(row[4:7], row[8:10]) for row in rows] == 3 * [(3 * [None], [1.0, 1.0])]
    assert {row[2] for row in tables["Recommendation"]["rows"]} == {"scale up"}
    least = "World-Facts: 1 questions; smallest difference that can be shown: none, it needs two questions"
    assert expectations(spec, {"World-Facts": 1}, len)[-2] == least
