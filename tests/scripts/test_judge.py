"""scripts.judge with judges that prefer an answer, a place or a length; and models that answer for it."""

import json
import shutil
import statistics

import pytest
from chat_files import chat, write_lines
from served import write_model
from teachers import completion, teaching

PROMPT = [{"role": "user", "content": "Why?"}]
ROWS = [{"prompt": PROMPT, "answer_a": f"a{'!' * (i % 5)}", "answer_b": f"b{i}"} for i in range(30)]


@pytest.fixture
def judged(here, base, tmp_path):
    """Run the script with a judge; returns metrics and pairs."""

    def run(judge, *flags: str) -> tuple[dict, list[dict]]:
        shutil.rmtree(base / "teacher", ignore_errors=True)  # answers of another judge
        (tmp_path / "judge.txt").write_text("{first}|{second}")
        rows = write_lines(tmp_path / "rows.jsonl", *ROWS).removeprefix("json:")
        flags = (*(flags or [f"--rows={rows}"]), f"--teacher-prompts={tmp_path}", f"--pairs={tmp_path}/pairs.jsonl")
        with teaching(lambda text: completion(f"Verdict: {judge(*text.split('|'))}")) as served:
            done = here("scripts.judge", *flags, *served.flags)
        assert done.returncode == 0, done.stderr
        lines = (tmp_path / "pairs.jsonl").read_text().splitlines()
        return json.loads((base / "judge/d12/outcome.json").read_text())["metrics"], [
            json.loads(line) for line in lines
        ]

    return run


def by_number(first: str, second: str) -> int | str:
    """Each fifth row is a tie; of the others A wins each third."""
    [number] = [int(text[1:]) for text in (first, second) if text[0] == "b"]
    return "tie" if number % 5 == 0 else 1 + ((first[0] == "a") == bool(number % 3))


def test_win_rate_and_pairs(judged):
    metrics, pairs = judged(by_number)
    scores = [0.5 if i % 5 == 0 else float(i % 3 == 0) for i in range(30)]
    assert metrics["Win rate of A"]["value"] == pytest.approx(statistics.fmean(scores))
    assert metrics["Win rate of A"]["stderr"] == pytest.approx(statistics.stdev(scores) / 30**0.5)
    assert metrics["Wins, ties, losses"] == "8, 6, 16"
    assert (metrics["Wins of the first place"]["value"], metrics["Verdicts that depend on the order"]) == (0.5, 0)
    sides = [("b", "a") if i % 3 else ("a", "b") for i in range(30) if i % 5]
    assert [(pair["chosen"][0], pair["rejected"][0]) for pair in pairs] == sides
    assert pairs[0] == {"prompt": PROMPT, "chosen": "b1", "rejected": "a!"}


def test_a_judge_with_a_bias(judged):
    metrics, pairs = judged(lambda first, second: 1)
    assert (metrics["Win rate of A"]["value"], metrics["Wins of the first place"]["value"]) == (0.5, 1.0)
    assert (metrics["Verdicts that depend on the order"], pairs) == (30, [])
    assert metrics["Correlation of score and length"] == "n/a"
    metrics, _ = judged(lambda first, second: 1 + (len(second) > len(first)))
    assert metrics["Correlation of score and length"]["value"] > 0.8


def test_two_checkpoints_answer(judged, base, tmp_path):
    for tag, depth in (("mine", 2), ("other", 3)):
        write_model(base, tag, depth=depth)
    prompts = write_lines(tmp_path / "chats.jsonl", *map(chat, range(80)))  # 4 are held out
    flags = ("--a=sft:mine", f"--prompts={prompts}", "--device-type=cpu", "--dtype=fp32", "--max-new-tokens=20")
    found = judged(lambda first, second: 1 + (second > first), *flags, "--b=sft:other")
    assert all(pair["chosen"] > pair["rejected"] for pair in found[1])
    rows = [json.loads(line) for line in (base / "judge/d12/judged.jsonl").read_text().splitlines()]
    assert len(rows) == len({row["prompt"][0]["content"] for row in rows}) == 4
