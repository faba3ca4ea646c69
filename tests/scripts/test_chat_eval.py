"""scripts.chat_eval on an untrained model: its record, the choice of tasks, its errors. tests/evals has the figures."""

from collections import Counter
from pathlib import Path
from textwrap import shorten

import pytest
from conftest import ROOT, plant_world
from models import leave_model

from nanochat.config import parse
from nanochat.paths import read_json, read_jsonl, write_bytes
from nanochat.report.card import read_card
from nanochat.stages import CHAT_CORE
from nanochat.tokenizer import Tokenizer
from scripts.chat_eval import Config, main
from tasks import TASKS, open_tasks

HERE = list(CHAT_CORE[:-1])  # without HumanEval


@pytest.fixture
def hub(fake_hub, tmp_path, monkeypatch):
    """A mirror with the test splits of ChatCORE, for tests that change files."""
    for name in HERE:
        [path] = map(str, TASKS[name].files("test"))
        write_bytes(tmp_path / "hub" / path, (fake_hub / path).read_bytes())
    monkeypatch.setenv("NANOCHAT_HUB", str(tmp_path / "hub"))
    return tmp_path / "hub"


@pytest.fixture
def base(base):
    """A base folder with an untrained model, whose tokenizer has a tag of its own."""
    tokenizer = Tokenizer.train(["Reply with nothing but the letter of the right choice. 12 + 34 = 46"], 280)
    leave_model(base, "base_train", "mine", tokenizer, tokenizer_tag="own", max_seq_len=512)
    return base


def evaluate(*flags: str) -> None:
    main(parse(Config, ["--source=base", "--tag=mine", "--device-type=cpu", "--dtype=fp32", *flags]))


def answers_of(base: Path, name: str):
    return list(read_jsonl(base / f"chat_eval_base/mine/{name}.jsonl", dict))


def read_record(base: Path):
    return read_json(base / "chat_eval_base/mine/outcome.json")


def test_all_tasks_of_the_hub_are_evaluated(base, hub, capsys) -> None:
    sampling = ["--temperature=1", "--num-samples=2", "--max-new-tokens=4", "--max-problems=6", "--slots=3"]
    evaluate(*sampling)
    output = capsys.readouterr().out
    assert "tasks: HumanEval is left out: 1 of 1 files are not available: datasets/openai/openai_humaneval/" in output
    record = read_record(base)
    metrics, core = record["metrics"], "ChatCORE (5 of 6 tasks)"
    assert list(metrics) == [*HERE, core, "model_tag", "Step"]
    [_, answers] = record["tables"]
    assert [row[0] for row in answers["rows"]] == ["GSM8K"] * 3  # the others are answered by letters
    assert answers["rows"][0][1] == shorten(TASKS["GSM8K"]()[0]["messages"][0]["content"], 300)
    assert metrics["Step"] == 7
    for name in ("ARC-Easy", "GSM8K"):
        assert f"{name}.jsonl" in record["artifacts"]
        verdicts = [[one["right"] for one in answer["completions"]] for answer in answers_of(base, name)]
        assert [len(row) for row in verdicts] == [1 if name == "ARC-Easy" else 2] * 6
        assert metrics[name]["value"] == pytest.approx(sum(map(sum, verdicts)) / sum(map(len, verdicts)))
        assert f"{name}: {metrics[name]['value']:.4f} ± " in output

    judged = {one["task"]: one for one in read_card(base)["decisions"]}
    for name in HERE:
        assert judged[name]["samples"] == (2 if name == "GSM8K" else 1)
        assert len(judged[name]["right"].split()) == 6
    assert len({one["questions"] for one in judged.values()}) == 5


def test_repeats_and_the_sampling_in_one_word(base, hub, capsys) -> None:
    evaluate("--tasks=GSM8K|MMLU", "--sampling=1,0.9,32768", "--repeats=2", "--max-problems=3")
    output = capsys.readouterr().out
    assert "GSM8K: answers end with the context of 512 tokens, before 32768 new ones" in output
    record = read_record(base)
    config = {name: record["config"][name] for name in ("temperature", "top_p", "max_new_tokens", "top_k")}
    assert config == {"temperature": 1, "top_p": 0.9, "max_new_tokens": 32768, "top_k": 0}
    table = next(one for one in record["tables"] if one["title"] == "Mean over k repeats")
    assert [row[:2] for row in table["rows"]] == [["GSM8K", 2]]  # letters need no repeats
    assert "Error over repeats" in output
    [judged] = [one for one in read_card(base)["decisions"] if one["task"] == "GSM8K"]
    assert judged["samples"] == 2  # as for two samples: --compare pairs the questions


def test_world_talk_is_told_by_category(base, tiny_world) -> None:
    plant_world(base, tiny_world)
    evaluate("--tasks=World-Talk", "--max-new-tokens=3")
    record = read_record(base)
    _, table = record["tables"]
    assert table["title"] == "By category"
    categories = Counter(answer["category"] for answer in answers_of(base, "World-Talk"))
    assert {row[1]: row[2] for row in table["rows"]} == categories
    assert record["metrics"]["World-Talk"]["value"] == 0.0
    assert {row[3] for row in table["rows"]} == {0.0}


def test_tasks_without_files_are_left_out_unless_named(base, hub, capsys) -> None:
    assert list(open_tasks("")) == HERE
    assert f"({', '.join(CHAT_CORE)})" in (ROOT / "docs/evaluation.md").read_text(encoding="utf-8")
    files = {name: hub / str(TASKS[name].files("test")[0]) for name in HERE}
    for name in {*HERE} - {"AQUA"}:
        files[name].unlink()
    assert list(open_tasks("")) == ["AQUA"]
    assert "tasks: GSM8K is left out: 1 of 1 files are not available: datasets/openai/gsm8k/" in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"gsm8k/main/test-\S+ \(not in the mirror"):
        open_tasks("GSM8K")
    files["AQUA"].write_bytes(b"damaged")
    with pytest.raises(ValueError, match="Parquet"):
        open_tasks("")
    files["AQUA"].unlink()
    with pytest.raises(ValueError, match="no task has its files here"):
        evaluate()
