"""Judges that prefer an answer, a place or a length; and tracks.preferences.judge with two models that answer."""

import statistics

import pytest
from chat_files import chat, write_lines

from bench.served import write_model
from nanochat.paths import read_json, read_jsonl
from nanochat.statistics import Metrics
from tasks import TASKS
from tasks.mixing import find_set
from tracks.chatdata import teacher as module
from tracks.chatdata.teacher import Teacher, judge, judged_metrics
from tracks.chatdata.tests.teachers import completion, teaching
from tracks.preferences.judge import open_prompts
from tracks.preferences.pairs import read_pairs


@pytest.fixture(autouse=True)
def prompts(base, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(module, "PROMPTS", tmp_path)
    (tmp_path / "judge.txt").write_text("{first}|{second}")


def metrics_of(verdict) -> Metrics:
    """Metrics for 30 rows with answers a!, a!! … and b0, b1 …"""
    rows = [{"prompt": "", "samples": [{"text": f"a{'!' * (i % 5)}"}, {"text": f"b{i}"}]} for i in range(30)]
    with teaching(lambda text: completion(f"My verdict:\n**Verdict:** {verdict(*text.split('|'))}")) as served:
        return judged_metrics(Teacher(served.settings()).map(judge, rows))


def by_number(first: str, second: str) -> str | int:
    """Each fifth row is a tie; of the others A wins each third."""
    [number] = [int(text[1:]) for text in (first, second) if text[0] == "b"]
    return "TIE" if number % 5 == 0 else 1 + ((first[0] == "a") == bool(number % 3))


def test_win_rate() -> None:
    metrics = metrics_of(by_number)
    scores = [0.5 if i % 5 == 0 else float(i % 3 == 0) for i in range(30)]
    assert metrics["Win rate of A"]["value"] == pytest.approx(statistics.fmean(scores))
    assert metrics["Win rate of A"]["stderr"] == pytest.approx(statistics.stdev(scores) / 30**0.5)
    assert (metrics["Prompts"], metrics["Ties"], metrics["Wins of the first place"]["value"]) == (30, 6, 0.5)


def test_a_judge_who_prefers_the_first_place() -> None:
    metrics = metrics_of(lambda first, second: 1)
    assert (metrics["Ties"], metrics["Wins of the first place"]["value"]) == (30, 1.0)
    assert metrics["Win rate of A"]["value"] == metrics["Wins of the longer answer"]["value"] == 0.5


def test_a_judge_who_prefers_the_longer_answer() -> None:
    metrics = metrics_of(lambda first, second: "tie" if len(first) == len(second) else 1 + (len(second) > len(first)))
    equal = sum(len(f"a{'!' * (i % 5)}") == len(f"b{i}") for i in range(30))
    assert (metrics["Ties"], metrics["Wins of the longer answer"]["value"]) == (equal, 1 - equal / 60)


def test_two_checkpoints_answer(here, base, tmp_path) -> None:
    for tag, depth in (("mine", 2), ("other", 3)):
        write_model(base, tag, depth=depth)
    # The last message of some chats is the user's.
    rows = [{"messages": [*chat(number)["messages"], {"role": "user", "content": "And?"}]} for number in range(8)]
    name = write_lines(tmp_path / "chats.jsonl", *map(chat, range(8, 20)), *rows)
    flags = [f"--prompts={name}", f"--pairs={tmp_path}/pairs.jsonl", "--max-problems=16", "--max-new-tokens=150"]
    with teaching(lambda text: completion(f"Verdict: {1 + (text.split('|')[1] > text)}")) as served:
        flags += [*served.flags, "--device-type=cpu", "--dtype=fp32"]
        here("tracks.preferences.judge", "sft:mine", "sft:other", *flags)
    judged = list(read_jsonl(base / "judge/d12/judged.jsonl", dict))
    assert len(judged) == len({row["prompt"] for row in judged}) == 16
    assert all(row["prompt"].endswith("?<|user_end|><|assistant_start|>") for row in judged)
    assert "Win rate of A" in read_json(base / "judge/d12/outcome.json")["metrics"]
    # Words to spell are those of the tokenizer's text; other prompts are the same for any two models.
    write_model(base, "third", text=["another text, and yet another one " * 50])
    _, chats = find_set(name, TASKS)
    assert len(open_prompts(chats, ("sft:mine", "sft:third"))) == 20
    assert 0 < len(read_pairs(f"{tmp_path}/pairs.jsonl")) <= 16  # cut answers and ties make none
