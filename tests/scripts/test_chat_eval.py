"""scripts.chat_eval as a user runs it, on a model that has learned nothing; the figures have tests of their own."""

import dataclasses
import json
import re
from pathlib import Path

import pytest
from conftest import ROOT
from models import CONFIGS, lively

from nanochat.checkpoint import RECORD, Saver
from nanochat.config import parse
from nanochat.report.__main__ import render
from nanochat.report.card import read_card
from nanochat.report.compare import decisions
from nanochat.tokenizer import Tokenizer
from scripts.chat_eval import SOURCES, Config, main
from tasks import CHAT_CORE, TASKS, open_tasks
from tasks.common import TaskError


@pytest.fixture
def hub(tiny_world, tmp_path, monkeypatch) -> Path:
    """A mirror that has all that tasks ask for, to be changed."""
    for name in CHAT_CORE:
        [path] = map(str, TASKS[name].files("test"))
        (tmp_path / "hub" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "hub" / path).write_bytes((tiny_world / path).read_bytes())
    monkeypatch.setenv("NANOCHAT_HUB", str(tmp_path / "hub"))
    return tmp_path / "hub"


@pytest.fixture(params=["default"])
def model(base, request) -> Path:
    """The folder of a base model, and its tokenizer."""
    tokenizer = Tokenizer.train(["Reply with nothing but the letter of the right choice. 12 + 34 = 46"], 280)
    tokenizer.save(base / f"tok_train/{request.param}/tokenizer.json")
    model = lively(CONFIGS["october-2025"] | {"vocab_size": 280, "depth": 1})
    about = {"tokenizer": {"tag": request.param, "hash": tokenizer.content_hash}, "dtype": "fp32"}
    record = dict.fromkeys(RECORD) | about | {"model": dataclasses.asdict(model.config)}
    with Saver(base / "base_train/mine") as saver:
        saver.save(7, model.state_dict(), [], record)
    return base / "base_train/mine"


WORDS = ["-m", "scripts.chat_eval", "--source=base", "--tag=mine", "--device-type=cpu", "--dtype=fp32"]


def test_a_model_is_asked_all_that_the_hub_has(model, base, hub, python):
    (hub / str(TASKS["MMLU"].files("test")[0])).unlink()
    samples = [
        "--temperature=1",
        "--num-samples=2",
        "--max-new-tokens=4",
        "--max-problems=6",
        "--unsafe-exec",
        "--slots=3",
    ]
    done = python(*WORDS, *samples, NANOCHAT_HUB=str(hub), OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    assert "tasks: MMLU is left out: 1 of 1 files are not available: datasets/cais/mmlu/all/test-0" in done.stdout
    record = json.loads((base / "chat_eval_base/mine/outcome.json").read_text(encoding="utf-8"))
    metrics, core = record["metrics"], "ChatCORE (5 of 6 tasks)"
    assert list(metrics) == ["ARC-Easy", "ARC-Challenge", "AQUA", "GSM8K", "HumanEval", core, "Step"]
    assert metrics["Step"] == 7
    for name in ("ARC-Easy", "GSM8K", "HumanEval"):
        assert f"{name}.jsonl" in record["artifacts"]
        lines = (base / f"chat_eval_base/mine/{name}.jsonl").read_text(encoding="utf-8").splitlines()
        verdicts = [[one["right"] for one in json.loads(line)["completions"]] for line in lines]
        assert [len(row) for row in verdicts] == [1 if name == "ARC-Easy" else 2] * 6
        assert metrics[name]["value"] == pytest.approx(sum(map(sum, verdicts)) / sum(map(len, verdicts)))
        assert f"{name}: {metrics[name]['value']:.4f} ± " in done.stdout
    centred = [(metrics[name]["value"] - base) / (1 - base) for name, base in [("ARC-Easy", 0.25), ("AQUA", 0.2)]]
    centred += [(metrics["ARC-Challenge"]["value"] - 0.25) / 0.75, metrics["GSM8K"]["value"]]
    centred.append(metrics["HumanEval"]["value"])
    assert metrics[core]["value"] == pytest.approx(sum(centred) / 5)

    judged = {one["task"]: one for one in decisions(base, read_card(base).outcomes)}
    assert {name: (one["samples"], len(one["right"].split())) for name, one in judged.items()} == {
        name: (1 + (name in ("GSM8K", "HumanEval")), 6) for name in list(metrics)[:5]
    }
    counts = sum(map(int, judged["GSM8K"]["right"].split()))
    assert counts / 12 == pytest.approx(metrics["GSM8K"]["value"])
    assert len({one["questions"] for one in judged.values()}) == 5

    card = render(base)
    section, score = (
        card.partition("## Chat evaluation base\n")[2],
        rf"{metrics['ARC-Easy']['value']:.4f} ± \d\.\d{{4}}",
    )
    assert re.search(rf"^- temperature: 1.0000\n(- .*\n)*- ARC-Easy: {score}$", section, re.MULTILINE), section
    assert re.search(r"^\| ChatCORE \(5 of 6 tasks\) \| -?\d\.\d{4} ± \d\.\d{4} \| - +\| - +\|", section, re.MULTILINE)
    for name in ("GSM8K", "HumanEval"):
        assert re.search(rf"^\| {name} +\| 2 \| \d\.\d{{4}} \| \d\.\d{{4}} \|$", section, re.MULTILINE), section
    assert re.search(r"^\| Metric +\| BASE +\| MID +\| SFT +\| RL +\|$", section, re.MULTILINE), section
    assert re.search(rf"^\| ARC-Easy +\| {score} +\| - +\| - +\| - +\|$", section, re.MULTILINE), section


def test_a_choice_of_tasks_has_no_chat_core_that_compares(model, base, hub, python):
    done = python(*WORDS, "--tasks=arc-easy|AQUA", "--max-problems=9", NANOCHAT_HUB=str(hub), OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    record = json.loads((base / "chat_eval_base/mine/outcome.json").read_text(encoding="utf-8"))
    assert list(record["metrics"]) == ["ARC-Easy", "AQUA", "ChatCORE (2 of 6 tasks)", "Step"]
    assert record["tables"] == []
    assert "ChatCORE:" not in done.stdout


@pytest.mark.parametrize("model", ["own"], indirect=True)
def test_words_to_spell_are_those_of_the_models_tokenizer(model, base, hub, text_folder, python):
    config = {"config": {"data": str(text_folder), "skip_bad": False}}
    (base / "tok_train/own/outcome.json").write_text(json.dumps(config), encoding="utf-8")
    done = python(*WORDS, "--tasks=SimpleSpelling", "--max-new-tokens=2", NANOCHAT_HUB=str(hub), OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    answers = re.findall('"answer": "(.*?)"', (base / "chat_eval_base/mine/SimpleSpelling.jsonl").read_text("utf-8"))
    text = " ".join(file.read_text(encoding="utf-8") for file in text_folder.iterdir()).lower()
    assert answers
    assert all(answer.replace("-", "") in text for answer in answers)


def test_mistakes_end_with_one_sentence(hub, python):
    for words, sentence in [
        (["--tasks=GSM8K|ARC-Hard"], "--tasks=GSM8K|ARC-Hard: ARC-Hard is no task, did you mean ARC-Easy?"),
        (["--source=mid", "--tag=none"], "there is no model in "),
        (
            ["--tasks=SmolTalk"],
            "--tasks=SmolTalk: SmolTalk is no task, choose from ARC-Easy, ",
        ),  # it has no right answers
    ]:
        done = python("-m", "scripts.chat_eval", *words, NANOCHAT_HUB=str(hub))
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1, done.stderr
        assert sentence in done.stderr
    with pytest.raises(ValueError, match="--source=sfp is not one of base, mid, sft, rl"):
        Config(source="sfp")
    with pytest.raises(ValueError, match="--num-samples=4 would all be the same, add --temperature=1"):
        Config(num_samples=4)


def test_short_flags():
    assert parse(Config, ["-i", "mid", "-a", "GSM8K|AQUA"]) == Config(source="mid", tasks="GSM8K|AQUA")
    with pytest.raises(ValueError, match="GSM7K is no task, did you mean GSM8K"):
        parse(Config, ["-a", "GSM7K"])


def test_all_that_the_hub_has(model, base, hub, capsys, monkeypatch):
    assert list(open_tasks("")) == list(CHAT_CORE)
    (hub / "questions.jsonl").write_text('{"question": "Who?", "answer": "Me"}')
    assert list(open_tasks("")) == [*CHAT_CORE, "ARC-Easy-Named", "ARC-Challenge-Named", "Questions"]
    (hub / "questions.jsonl").unlink()
    assert f"({', '.join(CHAT_CORE)})" in (ROOT / "docs/evaluation.md").read_text(encoding="utf-8")
    assert list(open_tasks("gsm8k|MMLU")) == ["GSM8K", "MMLU"]
    files = {name: hub / str(TASKS[name].files("test")[0]) for name in CHAT_CORE}
    for name in {*CHAT_CORE} - {"AQUA"}:
        files[name].unlink()
    assert list(open_tasks("")) == ["AQUA"]
    assert "tasks: GSM8K is left out: 1 of 1 files are not available: datasets/openai/gsm8k/" in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"gsm8k/main/test-\S+: not in the mirror"):
        open_tasks("GSM8K")
    files["AQUA"].write_bytes(files["AQUA"].read_bytes()[:-9])
    with pytest.raises(TaskError, match="is damaged"):  # which is not the same as absent
        open_tasks("")
    files["AQUA"].unlink()
    assert open_tasks("") == {}
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(base))
    with pytest.raises(ValueError, match="no task has its files here"):
        main(Config("base", tag="mine", device_type="cpu", dtype="fp32"))


def test_a_source_for_each_column_of_the_card():
    assert [stage.column for stage in SOURCES.values()] == ["BASE", "MID", "SFT", "RL"]
    assert [stage.section for stage in SOURCES.values()] == [f"Chat evaluation {source}" for source in SOURCES]
