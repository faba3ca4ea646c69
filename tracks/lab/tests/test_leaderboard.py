"""The leaderboard: order and errors, who is left out, and benchmarks that do not tell models apart."""

import json
import time
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

from nanochat.errors import UserError
from nanochat.outcome import Outcome
from nanochat.paths import read_json, write_json, write_jsonl
from nanochat.statistics import sign_test
from tracks.lab.leaderboard import Config, Row, behind, benchmark_rows, equality, main, rows_of

NAMES = {("chat_eval_sft", name): f"sft:{name}" for name in ("plain", "better", "half", "few")}


def answered(run: str, task: str, right: np.ndarray, questions: str = "same") -> dict:
    stage, tag = run.split("/")
    words = " ".join(str(int(one)) for one in right)
    return {"stage": stage, "tag": tag, "task": task, "questions": questions, "samples": 1, "right": words}


def drawn(seed: int, chance: float, count: int = 400) -> np.ndarray:
    return np.random.default_rng(seed).random(count) < chance


def test_models_are_ordered_by_their_mean_and_compared_by_question() -> None:
    hard = drawn(1, 0.5)  # the same questions are hard for all
    better = hard | drawn(2, 0.2)
    found = [
        answered("chat_eval_sft/plain", "GSM8K", hard),
        answered("chat_eval_sft/plain", "MMLU", drawn(3, 0.25)),
        answered("chat_eval_sft/better", "GSM8K", better),
        answered("chat_eval_sft/better", "MMLU", drawn(4, 0.25)),
        answered("chat_eval_sft/half", "GSM8K", hard),
        answered("chat_eval_sft/few", "GSM8K", hard[:50], questions="fewer"),
        answered("chat_eval_sft/few", "MMLU", drawn(3, 0.25)),
    ]
    rows, left_out = rows_of(found, NAMES, ["GSM8K", "MMLU"])
    assert [row.model for row in rows] == ["sft:better", "sft:plain"]
    assert left_out == {
        "sft:few": "its prompts of GSM8K are others: other questions, or another chat template",
        "sft:half": "it has not answered MMLU",
    }
    best, plain = rows
    assert best.scores()["GSM8K"].value == pytest.approx(better.mean())
    assert best.mean().stderr == pytest.approx(
        np.hypot(better.std(ddof=1), drawn(4, 0.25).std(ddof=1)) / np.sqrt(400) / 2
    )
    gap, p = behind(best, plain, 2)
    assert gap.value == pytest.approx(best.mean().value - plain.mean().value)
    assert p < 0.05
    table = {row[0]: row for row in benchmark_rows(rows, ["GSM8K", "MMLU"])}
    assert table["GSM8K"][-1] == "tells them apart"
    assert table["MMLU"][-1] == "does not"
    with pytest.raises(UserError, match="no evaluation has answered AQUA"):
        rows_of(found, NAMES, ["AQUA"])


def test_equal_models_are_told_apart_in_one_test_of_twenty() -> None:
    shared = [drawn(seed, 0.6) for seed in range(300)]
    chances = []
    for seed, hard in enumerate(shared):
        models = [
            np.where(drawn(1000 + 5 * seed + model, 0.3), drawn(9000 + 5 * seed + model, 0.5), hard)
            for model in range(4)
        ]
        chances.append(equality([model.astype(float) for model in models]))
    assert 0.02 < np.mean(np.array(chances) <= 0.05) < 0.09
    # Two models that answer nearly alike, beside one that does not.
    chances = []
    for seed, hard in enumerate(shared):
        like = np.where(drawn(20000 + seed, 0.05), drawn(30000 + seed, 0.6), hard)
        models = [hard, like, drawn(40000 + seed, 0.6)]
        chances.append(equality([model.astype(float) for model in models]))
    assert np.mean(np.array(chances) <= 0.05) < 0.09
    thirds = np.array([1 / 3, 2 / 3, 1.0, 0.0])
    assert equality([thirds, thirds + 1e-17]) == 1
    assert equality([np.ones(5), np.ones(5)]) == 1


@pytest.mark.parametrize("count", range(1, 9))
def test_a_few_questions_that_all_favour_one_model_show_no_more_than_a_sign_test(count: int) -> None:
    coin = sign_test(count, 0)
    right, wrong = np.ones(count), np.zeros(count)
    assert equality([right, wrong]) == pytest.approx(coin)
    assert equality([right, wrong, wrong]) == pytest.approx(3.0 ** (1 - count))  # each may be the one that differs
    one, other = Row("one", {"Task": right}), Row("other", {"Task": wrong})
    gap, p = behind(one, other, 2)
    assert gap == (1, pytest.approx(count**-0.5))
    assert coin - 1e-9 <= p <= 1
    assert behind(one, other, 5)[1] >= p
    assert behind(one, one, 2) == ((0, 0), 1)
    verdict = benchmark_rows([one, other], ["Task"])[0][-1]
    unclear = "does not" if count > 1 else "does not: one question has no error"
    assert verdict == ("tells them apart" if coin <= 0.05 else unclear)


def test_three_questions_do_not_decide_a_suite() -> None:
    """Beside a long benchmark, those that all favour one model have an error too, though they do not differ."""
    long = drawn(1, 0.5).astype(float)
    other = np.where(drawn(2, 0.1), 1 - long, long)
    one = Row("one", {"Few": np.ones(3), "Many": long})
    assert behind(one, Row("other", {"Few": np.zeros(3), "Many": other}), 2)[1] > 0.2
    # But one question among many that agrees takes nothing from what the others show.
    worse = long * drawn(3, 0.8)
    assert behind(one, Row("worse", {"Few": np.ones(3), "Many": worse}), 2)[1] < 1e-6
    single = {"One": np.ones(1), "Many": long}
    assert behind(Row("one", single), Row("worse", single | {"Many": worse}), 2)[1] < 1e-6
    # One answer that differs beside many alike is no more than that.
    assert equality([long, np.abs(long - np.eye(len(long))[0])]) == 1


def test_the_first_of_ten_equal_models_is_not_better() -> None:
    """It was chosen by the answers that it is compared by: p is that of any two of ten."""
    found = 0
    for seed in range(100):
        rows = [Row(f"{number}", {"Task": drawn(100 * seed + number, 0.5).astype(float)}) for number in range(10)]
        best, *others = sorted(rows, key=lambda row: row.mean().value, reverse=True)
        found += min(behind(best, row, 10)[1] for row in others) <= 0.05
    assert found <= 12  # of 100, 5 expected; without the correction it is more than 70


def test_from_what_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(tmp_path))
    for tag, chance in (("one", 0.3), ("two", 0.7), ("other-three", 0.5)):
        folder = tmp_path / "chat_eval_sft" / tag
        folder.mkdir(parents=True)
        lines = [
            {"prompt": f"Question {number}?", "answer": "yes", "completions": [{"right": bool(right), "text": "a"}]}
            for number, right in enumerate(drawn(7, chance))
        ]
        (folder / "GSM8K.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        outcome = Outcome.begin("chat_eval_sft", tag, Config(suite="GSM8K", tag=tag))
        outcome.add_artifact(folder / "GSM8K.jsonl")
        outcome.write()
    main(Config(suite="GSM8K"))
    record = read_json(tmp_path / "leaderboard/leaderboard/outcome.json")
    assert [row[0] for row in record["tables"][0]["rows"]] == [f"sft:{tag}" for tag in ("two", "other-three", "one")]
    # Another script has asked one of the models something else: it is one row, and the others are left out.
    folder = tmp_path / "base_eval_sft/one"
    folder.mkdir(parents=True)
    (folder / "copa.jsonl").write_text('{"question": "a", "correct": true}\n{"question": "b", "correct": false}\n')
    outcome = Outcome.begin("base_eval_sft", "one", Config(suite="copa", tag="one"))
    outcome.add_artifact(folder / "copa.jsonl")
    outcome.write()
    with pytest.raises(UserError, match="1 models have answered the same questions of GSM8K,copa"):
        main(Config(suite="GSM8K,copa"))
    main(Config(suite="GSM8K", runs="chat_eval_sft/o*", tag="some"))
    assert read_json(tmp_path / "leaderboard/some/outcome.json")["metrics"]["Models"] == 2
    with pytest.raises(UserError, match="1 models have answered the same questions of GSM8K: two are needed"):
        main(Config(suite="GSM8K", runs="*/one"))
    with pytest.raises(UserError, match="--suite is missing"):
        main(Config())


def test_a_benchmark_of_one_question_has_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """Neither do the means with it, nor what models are behind: each cell says so."""
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(tmp_path))
    for tag, chance in (("plain", 0.3), ("better", 0.6)):
        leave_answers(tmp_path, tag, chance)
        path = tmp_path / "chat_eval_sft" / tag / "One.jsonl"
        write_jsonl(path, [{"prompt": "?", "answer": "yes", "completions": [{"right": True, "text": "a"}]}])
        outcome = Outcome.load(path.with_name("outcome.json"))
        outcome.add_artifact(path)
        outcome.write()
    main(Config(suite="GSM8K,One"))
    [first, second], about = [
        table["rows"] for table in read_json(tmp_path / "leaderboard/leaderboard/outcome.json")["tables"]
    ]
    unit = " (no error: one question of One)"
    assert first[2] == {"value": 1, "format": ".4f", "unit": unit}
    assert [one.get("unit", "") for one in second[1:5]] == ["", unit, unit, unit]
    assert [one.get("stderr", 0) > 0 for one in second[1:5]] == [True, False, False, False]
    assert about[1] == ["One", 1, 1, 1, None, 1, "does not: one question has no error"]
    text = capsys.readouterr().out
    assert f"1.0000{unit}" in text
    assert "nan" not in text
    assert "± 0.0000" not in text


def test_runs_that_a_lab_has_left_out_have_no_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One has failed, so it has no evaluation; one has an alarm, and answered better than all."""
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(tmp_path))
    for tag, chance in (("mix-a", 0.3), ("mix-b", 0.5), ("mix-alarm", 0.9)):
        leave_answers(tmp_path, tag, chance)
    reasons = {"chat_eval_sft/mix-alarm": "the loss of step 40 is 3.00 times", "chat_eval_sft/mix-lost": "error: no"}
    reasons |= {name.replace("chat", "base"): reason for name, reason in reasons.items()}  # on tasks of CORE, too
    now = datetime.now().astimezone().isoformat()
    left_out = {name: {"reason": reason, "since": now} for name, reason in reasons.items()}
    write_json(tmp_path / "lab/mix/left_out.json", left_out)
    # Of an earlier version.
    write_json(tmp_path / "lab/other/left_out.json", {"chat_eval_sft/other-lost": "not run", "base_loss/x": "not run"})
    main(Config(suite="GSM8K", runs="chat_eval_sft/mix-*"))
    record = read_json(tmp_path / "leaderboard/leaderboard/outcome.json")
    tables = {table["title"]: table["rows"] for table in record["tables"]}
    assert [row[0] for row in tables["Leaderboard"]] == ["sft:mix-b", "sft:mix-a"]
    assert tables["Left out"] == [
        ["sft:mix-alarm", "the loss of step 40 is 3.00 times"],
        ["sft:mix-lost", "error: no"],
    ]
    assert record["metrics"]["Left out"] == 2
    # Evaluated again after the lab has left it out.
    outcome = Outcome.begin("chat_eval_sft", "mix-alarm", Config(suite="GSM8K", tag="mix-alarm"))
    outcome.add_artifact(tmp_path / "chat_eval_sft/mix-alarm/GSM8K.jsonl")
    time.sleep(0.01)  # the record has milliseconds
    outcome.write()
    # The lab has written its file again since then, for other bases.
    time.sleep(0.01)
    write_json(tmp_path / "lab/mix/left_out.json", left_out)
    main(Config(suite="GSM8K", runs="chat_eval_sft/mix-*"))
    record = read_json(tmp_path / "leaderboard/leaderboard/outcome.json")
    tables = {table["title"]: table["rows"] for table in record["tables"]}
    assert [row[0] for row in tables["Leaderboard"]] == ["sft:mix-alarm", "sft:mix-b", "sft:mix-a"]
    assert tables["Left out"] == [["sft:mix-lost", "error: no"]]


def leave_answers(base: Path, tag: str, chance: float, step: int = 80, model: str = "", **settings: float) -> None:
    """Leave a chat evaluation. tag: of its folder. model: its tag, if that is another one."""
    folder = base / "chat_eval_sft" / tag
    lines = [
        {"prompt": f"Question {number}?", "answer": "yes", "completions": [{"right": bool(right), "text": "a"}]}
        for number, right in enumerate(drawn(7, chance))
    ]
    write_jsonl(folder / "GSM8K.jsonl", lines)
    outcome = Outcome.begin("chat_eval_sft", tag, Config(suite="GSM8K", tag=tag))
    usual = {"temperature": 0.0, "top_p": 1.0, "top_k": 50, "max_new_tokens": 256, "num_samples": 1, "repeats": 1}
    outcome.config |= {"tag": model or tag} | usual | settings
    outcome.metrics["Step"] = step
    outcome.add_artifact(folder / "GSM8K.jsonl")
    outcome.write()


def test_other_settings_are_left_out_and_steps_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(tmp_path))
    leave_answers(tmp_path, "greedy", 0.3)
    leave_answers(tmp_path, "no-top-k", 0.4, top_k=0)  # which greedy answers do not depend on
    leave_answers(tmp_path, "long", 0.5, step=40)
    leave_answers(tmp_path, "long-later", 0.6, step=80, model="long")
    leave_answers(tmp_path, "hot", 0.9, temperature=1.0)
    leave_answers(tmp_path, "hot-and-greedy", 0.35)
    leave_answers(tmp_path, "greedy-exits-2", 0.1, model="greedy", exits=2)
    leave_answers(tmp_path, "hot-and-greedy-hot", 0.95, model="hot-and-greedy", temperature=1.0)
    main(Config(suite="GSM8K"))
    record = read_json(tmp_path / "leaderboard/leaderboard/outcome.json")
    tables = {table["title"]: table["rows"] for table in record["tables"]}
    assert [row[0] for row in tables["Leaderboard"]] == [
        "sft:long step 80",
        "sft:long step 40",
        "sft:no-top-k",
        "sft:hot-and-greedy",
        "sft:greedy",
        "sft:greedy exits 2",
    ]
    [[model, reason]] = tables["Left out"]
    assert model == "sft:hot"
    assert reason.startswith("evaluated with other settings: temperature 1.0, top_p 1.0, top_k 50, max_new_tokens 256")
    assert reason.endswith("; most have temperature 0.0, max_new_tokens 256, num_samples 1, repeats 1")
