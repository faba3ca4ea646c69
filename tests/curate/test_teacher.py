"""The teacher against real servers: one that a test scripts, with every failure, and our own."""

import json
import os
import subprocess
import sys
import threading
from functools import partial

import openai._base_client
import pytest
from chat_files import chat, write_lines
from conftest import ROOT
from served import serving, write_model
from teachers import completion, teaching

from nanochat.chat import Reply, render_prompt
from nanochat.curate import teacher as module
from nanochat.curate.teacher import NoAnswer, Teacher, TeacherSettings, answer, judge, translate
from nanochat.engine import Request


@pytest.fixture(autouse=True)
def here(base, monkeypatch):
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(base))
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setattr(openai._base_client, "INITIAL_RETRY_DELAY", 0.001)


def ask(teacher: Teacher, text: str) -> str:
    return teacher.ask([{"role": "user", "content": text}])


def ask_all(teacher: Teacher, texts: list[str]) -> list[tuple[str, str]]:
    return teacher.map(partial(ask, teacher), texts)


def test_failures_that_pass_are_tried_again(monkeypatch):
    waits = []
    monkeypatch.setattr("openai._base_client.time.sleep", waits.append)
    script = iter([(429, {"Retry-After": "7"}, "{}"), (500, {}, "broken"), (503, {}, "{}"), completion("yes")])
    with teaching(lambda text: next(script)) as served:
        teacher = Teacher(served.settings())
        assert ask(teacher, "hello") == "yes"
        assert ask(teacher, "hello") == "yes"  # from the cache
    assert served.asked == ["hello"] * 4
    assert teacher.counts == {"requests": 1, "cached answers": 1, "tokens": 30}
    assert waits[0] == 7
    assert 0 < waits[1] < waits[2]


BROKEN = {
    "cut": (completion("half an", reason="length"), "the answer is cut off (length)"),
    "empty": (completion(" "), "the answer is empty (stop)"),
    "wrong": ((200, {}, '{"choices": ['), "the response is no chat completion (JSONDecodeError)"),
    "list": ((200, {}, "[]"), "the response is no chat completion (AttributeError)"),
    "page": ((200, {"Content-Type": "text/html"}, "<p>"), "the response is no chat completion (AttributeError)"),
    "long": ((400, {}, '{"error": {"message": "sk-secret is too long"}}'), "[key] is too long"),
}


def test_a_row_without_an_answer_is_counted_and_left_out(capsys, base):
    with teaching(lambda text: BROKEN[text][0] if text in BROKEN else completion(f"{text}, sk-secret")) as served:
        for _ in range(2):
            teacher = Teacher(served.settings(parallel=2))
            rows = ask_all(teacher, ["one", *BROKEN, "two"])
            assert rows == [("one", "one, [key]"), ("two", "two, [key]")]
            shown = capsys.readouterr()
            for _, reason in BROKEN.values():
                assert f"{reason}\n" in shown.out or f"{reason}'" in shown.out
            assert "teacher: 2 of 8 rows, " in shown.out
            assert "sk-secret" not in shown.out + shown.err
        with pytest.raises(ValueError, match="no answer to any row, so nothing"):
            ask_all(teacher, ["cut"])
    # An answer that was cut off is paid for as well: it is not asked for again.
    assert {text: served.asked.count(text) for text in ("one", "cut", "wrong")} == {"one": 1, "cut": 1, "wrong": 2}
    assert not [path for path in base.rglob("*.json") if "sk-secret" in path.read_text()]


@pytest.mark.parametrize(
    ("response", "sentence"),
    [
        (completion("yes", model="cheap"), "cheap answers instead of wise: correct --teacher-model"),
        (completion("yes", model="wise-mini"), "wise-mini answers instead of wise"),
        ((401, {}, '{"error": {"message": "the key sk-secret is wrong"}}'), "status 401: .* key \\[key\\] is wrong"),
        ((404, {}, "{}"), "the teacher refuses, status 404"),
        ((500, {}, "{}"), "the teacher refuses, status 500"),
    ],
)
def test_a_refusal_ends_the_run_with_a_sentence(response, sentence):
    with teaching(lambda text: response) as served:
        teacher = Teacher(served.settings())
        with pytest.raises(ValueError, match=sentence) as refused:
            ask_all(teacher, ["one", "two"])
    assert not isinstance(refused.value, NoAnswer)
    with teaching(lambda text: completion("yes", model="wise-2026-01-31")) as served:
        assert ask(Teacher(served.settings()), "hello") == "yes"


def test_a_server_that_hangs_or_is_gone(monkeypatch):
    monkeypatch.setattr(module, "RETRIES", 1)
    over = threading.Event()
    with teaching(lambda text: over.wait(60) and completion("late")) as served:
        teacher = Teacher(served.settings(timeout=0.1))
        with pytest.raises(NoAnswer, match="no answer within"):
            ask(teacher, "hello")
        over.set()
    assert served.asked == ["hello"] * 2
    assert teacher.counts["tokens"] > 1024  # it may be charged
    with pytest.raises(ValueError, match=r"127\.0\.0\.1:\d+/v1 cannot be reached"):
        ask(teacher, "again")


def test_wrong_settings_are_refused(monkeypatch):
    for url in ("", "localhost:8000", "http://user:key@host/v1", "http://host/v1?key=1"):
        with pytest.raises(ValueError, match="add --teacher=http://host:port/v1 and --teacher-model=NAME"):
            Teacher(TeacherSettings(teacher=url, teacher_model="wise"))
    monkeypatch.setenv("OPENAI_API_KEY", "한국")
    with pytest.raises(ValueError, match="characters that no HTTP header may have"):
        Teacher(TeacherSettings(teacher="http://host/v1", teacher_model="wise"))


@pytest.mark.parametrize("parallel", [1, 4])
def test_the_budget_is_not_passed_and_cached_answers_are_free(parallel):
    with teaching(lambda text: completion(text, tokens=100)) as served:
        # A request may take 100 tokens and the bytes of its message.
        settings = {"parallel": parallel, "teacher_tokens": 100}
        texts = [f"{number}" for number in range(20)]
        for budget, count in ((1000, 9), (700, 15), (0, 20)):
            teacher = Teacher(served.settings(budget=budget, **settings))
            rows = ask_all(teacher, texts)
            assert len(rows) == len(served.asked) == len(set(served.asked)) == count
            assert teacher.counts["tokens"] <= (budget or 500)


def test_equal_requests_at_once_are_paid_once():
    with teaching(completion) as served:
        teacher = Teacher(served.settings(parallel=8))
        assert ask_all(teacher, ["same"] * 40) == [("same", "same")] * 40
    assert served.asked == ["same"]


def test_prompts_and_verdicts(tmp_path):
    with teaching(lambda text: completion(f"Verdict: 1\n**Verdict:** {text[-1]}")) as served:
        teacher = Teacher(served.settings())
        translate(teacher, "braces {language} stay", "Korean")
        assert "into Korean" in served.asked[0]
        assert served.asked[0].endswith("\nbraces {language} stay")
        answer(teacher, [{"role": "user", "content": [{"type": "text", "text": "Why?"}]}])
        assert served.asked[1] == "Why?"
        (tmp_path / "judge.txt").write_text("{prompt} {first} {second}")
        teacher = Teacher(served.settings(teacher_prompts=str(tmp_path)))
        question = [{"role": "user", "content": "Why?"}]
        assert [judge(teacher, question, "{second}", second) for second in "12"] == [1.0, 0.0]
        assert served.asked[2] == "user: Why? {second} 1"
        with pytest.raises(FileNotFoundError):
            translate(teacher, "no such prompt", "Korean")
    with teaching(lambda text: completion("Verdict: TIE" if "equal" in text else "both are fine")) as served:
        assert judge(Teacher(served.settings()), question, "a", "equal") == 0.5
        with pytest.raises(NoAnswer, match="no verdict"):
            judge(Teacher(served.settings()), question, "a", "b")


def test_a_killed_run_pays_for_nothing_twice(tmp_path, base, python):
    chats = tmp_path / "chats.jsonl"
    write_lines(chats, *(chat(number) for number in range(12)))
    flags = ["-m", "scripts.teach", f"--chats={chats}", f"--out={tmp_path / 'out.jsonl'}", "--parallel=1"]
    stopped, over = threading.Event(), threading.Event()

    def reply(text):
        if text == "7?" and not over.is_set():
            stopped.set()
            over.wait(60)
        return completion(f"It is {text}")

    with teaching(reply) as served:
        env = os.environ | {"PYTHONPATH": str(ROOT)}
        process = subprocess.Popen([sys.executable, *flags, *served.flags], env=env)
        assert stopped.wait(60)
        process.kill()
        process.wait()
        assert not (tmp_path / "out.jsonl").exists()
        over.set()
        done = python(*flags, *served.flags)
        assert "12 of 12 rows, 5 requests, 7 cached answers, 150 tokens" in done.stdout, done.stderr
    assert sorted(served.asked) == sorted([*(f"{number}?" for number in range(12)), "7?"])
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["messages"][1]["content"] for row in rows] == [f"It is {number}?" for number in range(12)]


def test_our_own_server_as_teacher(tmp_path, base, python, monkeypatch):
    engine = write_model(base)
    monkeypatch.setenv("OPENAI_API_KEY", "")
    (tmp_path / "answer.txt").write_text("")  # the context of this model has no room for ours
    rows = [chat(number) | {"bucket": "sums"} for number in range(30)]
    name = write_lines(tmp_path / "chats.jsonl", *rows).removeprefix("json:")
    flags = [f"--chats={name}", f"--teacher-prompts={tmp_path}", "--teacher-tokens=100", "--teacher-temperature=0"]
    with serving(base) as server:
        flags += [f"--teacher={server.url}/v1", "--teacher-model=nanochat-mine-sft", f"--out={tmp_path / 'out.jsonl'}"]
        done = python("-m", "scripts.teach", *flags)
    assert done.returncode == 0, done.stderr
    prompts = [render_prompt(row, engine.tokenizer) for row in rows]
    expected = {}
    for row, [sample] in zip(rows, engine.generate([Request(prompt, 100) for prompt in prompts]), strict=True):
        reply = Reply(engine.tokenizer)
        pieces = [piece for token in sample.tokens for piece in reply.add(token)] + reply.close()
        text = "".join(piece.text for piece in pieces if piece.kind == "text").strip()
        if sample.reason == "stop" and text:
            expected[row["messages"][0]["content"]] = text
    written = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert {row["messages"][0]["content"]: row["messages"][1]["content"] for row in written} == expected
    assert {(row["bucket"], row["teacher"]) for row in written} == {("sums", "nanochat-mine-sft")}
    assert 0 < len(expected) < 30
    assert f"teacher: {len(expected)} of 30 rows, 30 requests, " in done.stdout
