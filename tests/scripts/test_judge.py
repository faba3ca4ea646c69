"""scripts.judge with judges that prefer an answer, a place or a length; and models that answer for it."""

import json
import statistics

import pytest
from chat_files import chat, write_lines
from served import write_model
from teachers import completion, teaching

PROMPT = "{first}|{second}"


def rows_of(count: int) -> list[dict]:
    prompt = [{"role": "user", "content": "Why?"}]
    return [{"prompt": prompt, "answer_a": f"a{'!' * (i % 5)}", "answer_b": f"b{i}"} for i in range(count)]


@pytest.fixture
def judged(here, base, tmp_path):
    """Run the script with a judge; returns metrics and pairs."""

    def run(judge, *flags: str) -> tuple[dict, list[dict]]:
        (tmp_path / "judge.txt").write_text(PROMPT)
        with teaching(lambda text: completion(f"Verdict: {judge(*text.split('|'))}")) as served:
            flags = (*flags, f"--teacher-prompts={tmp_path}", f"--pairs={tmp_path}/pairs.jsonl", *served.flags)
            done = here("scripts.judge", *flags)
        assert done.returncode == 0, done.stderr
        lines = (tmp_path / "pairs.jsonl").read_text().splitlines()
        return json.loads((base / "judge/d12/outcome.json").read_text())["metrics"], [
            json.loads(line) for line in lines
        ]

    return run


def better_b(first: str, second: str) -> int | str:
    """B is better by 2 of 3."""
    [number] = [int(text[1:]) for text in (first, second) if text[0] == "b"]
    return "tie" if number % 5 == 0 else 1 + (first[0] == "a") if number % 3 else 1 + (first[0] == "b")


def test_win_rate_biases_and_pairs(judged, tmp_path):
    rows = rows_of(30)
    source = write_lines(tmp_path / "rows.jsonl", *rows).removeprefix("json:")
    metrics, pairs = judged(better_b, f"--rows={source}")
    scores = [0.5 if i % 5 == 0 else float(i % 3 == 0) for i in range(30)]
    assert metrics["Win rate of A"]["value"] == pytest.approx(statistics.fmean(scores))
    assert metrics["Win rate of A"]["stderr"] == pytest.approx(statistics.stdev(scores) / 30**0.5)
    assert metrics["Wins, ties, losses"] == "8, 6, 16"
    assert metrics["Wins of the first place"]["value"] == 0.5
    assert metrics["Verdicts that depend on the order"] == 0
    sides = [("b", "a") if i % 3 else ("a", "b") for i in range(30) if i % 5]
    assert [(pair["chosen"][0], pair["rejected"][0]) for pair in pairs] == sides
    assert pairs[0] == {"prompt": rows[1]["prompt"], "chosen": "b1", "rejected": "a!"}


def test_a_judge_with_a_preference_for_the_first_place_decides_nothing(judged, tmp_path):
    source = write_lines(tmp_path / "rows.jsonl", *rows_of(10)).removeprefix("json:")
    metrics, pairs = judged(lambda first, second: 1, f"--rows={source}")
    assert (metrics["Win rate of A"]["value"], metrics["Wins of the first place"]["value"]) == (0.5, 1.0)
    assert (metrics["Verdicts that depend on the order"], pairs) == (10, [])
    assert metrics["Correlation of score and length"] == "n/a"


def test_a_judge_with_a_preference_for_length_shows(judged, tmp_path):
    source = write_lines(tmp_path / "rows.jsonl", *rows_of(10)).removeprefix("json:")
    metrics, _ = judged(lambda first, second: 1 + (len(second) > len(first)), f"--rows={source}")
    assert metrics["Correlation of score and length"]["value"] > 0.8


def test_two_checkpoints_answer(judged, base, tmp_path):
    for tag, fields in (("mine", {}), ("other", {"depth": 3})):
        write_model(base, tag, **fields)
    source = write_lines(tmp_path / "chats.jsonl", *map(chat, range(4))).removeprefix("json:")
    flags = ("--a=sft:mine", f"--prompts={source}", "--device-type=cpu", "--dtype=fp32", "--max-new-tokens=20")
    metrics, pairs = judged(lambda first, second: 1 + (second > first), *flags, "--b=sft:other")
    assert metrics["Verdicts that depend on the order"] == 0
    assert all(pair["chosen"] > pair["rejected"] for pair in pairs)
    rows = [json.loads(line) for line in (base / "judge/d12/judged.jsonl").read_text().splitlines()]
    answered = [
        {"messages": [*chat(i)["messages"][:1], {"role": "assistant", "content": row["answer_b"]}]}
        for i, row in enumerate(rows)
    ]
    answers = write_lines(tmp_path / "answers.jsonl", *answered).removeprefix("json:")
    assert judged(lambda first, second: 1 + (second > first), *flags, f"--b={answers}") == (metrics, pairs)
