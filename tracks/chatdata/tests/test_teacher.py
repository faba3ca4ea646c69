"""The teacher against real servers: one that a test scripts, with every failure, and our own."""

import shutil
import subprocess
import sys
import threading

import pytest
from chat_files import chat, write_lines
from conftest import ROOT

from bench.served import serving, write_model
from nanochat.paths import read_jsonl
from tracks.chatdata import teacher as module
from tracks.chatdata.teacher import NoAnswer, Teacher, TeacherSettings
from tracks.chatdata.tests.teachers import completion, teaching


@pytest.fixture(autouse=True)
def waits(base, monkeypatch, tmp_path):
    """Seconds that the client would have waited. The prompt `as it is` is the text alone."""
    waits = []
    monkeypatch.setattr(module, "PROMPTS", shutil.copytree(module.PROMPTS, tmp_path / "prompts"))
    (tmp_path / "prompts/as it is.txt").write_text("{text}")
    monkeypatch.setattr("openai._base_client.time.sleep", waits.append)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    return waits


def ask(teacher: Teacher, text: str):
    return teacher.ask("as it is", text=text)


def test_failures_that_pass_are_tried_again(waits) -> None:
    script = iter([(429, {"Retry-After": "7"}, "{}"), (500, {}, "broken"), (503, {}, "{}"), completion("yes")])
    with teaching(lambda text: next(script)) as served:
        teacher = Teacher(served.settings())
        assert [ask(teacher, "hello"), ask(teacher, "hello")] == ["yes", "yes"]
    assert served.asked == ["hello"] * 4
    assert teacher.tokens == 30
    assert waits[0] == 7
    assert 0 < waits[1] < waits[2]


BROKEN = {
    "cut": completion("half an", reason="length"),
    "empty": completion(" "),
    "wrong": (200, {}, '{"choices": ['),
    "page": (200, {"Content-Type": "text/html"}, "<p>"),
    "long": (400, {}, '{"error": {"message": "sk-secret is too long"}}'),
    "odd": completion("sk-secret", reason="sk-secret"),
}


def test_a_row_without_an_answer_is_counted_and_left_out(capsys, base) -> None:
    with teaching(lambda text: BROKEN.get(text) or completion(f"{text}!")) as served:
        for first in ("long", "odd"):
            teacher = Teacher(served.settings(parallel=2))
            assert teacher.map(ask, [first, "one", *BROKEN, "two"]) == ["one!", "two!"]
            shown = capsys.readouterr().out
            assert "teacher: 2 of 9 rows, " in shown
            sentence = {"long": "400 - [key] is too long", "odd": "an answer is cut off or empty"}[first]
            assert f"; the first that is left out: {sentence}" in shown.replace("Error code: ", "")
            assert "sk-secret" not in shown
        with pytest.raises(ValueError, match="no answer to any row, so nothing"):
            teacher.map(ask, ["cut"])
    # An answer that was cut off is paid for as well: it is not asked for again.
    assert {text: served.asked.count(text) for text in ("one", "cut", "wrong")} == {"one": 1, "cut": 1, "wrong": 2}
    assert not [path for path in base.rglob("*.json") if "sk-secret" in path.read_text()]


def test_a_key_in_an_answer_is_masked_and_short_keys_are_words(monkeypatch) -> None:
    with teaching(lambda text: completion(f"the key is {text}")) as served:
        assert ask(Teacher(served.settings()), "sk-secret") == "the key is [key]"
        monkeypatch.setenv("OPENAI_API_KEY", "EMPTY\n")
        assert ask(Teacher(served.settings()), "EMPTY") == "the key is EMPTY"
        for key in ("sk-sécret", "sk-sec\nret"):
            monkeypatch.setenv("OPENAI_API_KEY", key)
            with pytest.raises(ValueError) as refused:
                ask(Teacher(served.settings()), "a key that cannot be sent")
            assert "sk" not in str(refused.value)


@pytest.mark.parametrize(
    ("response", "sentence"),
    [
        (completion("yes", model="wise-mini"), "wise-mini answers instead of wise: correct --teacher-model"),
        (completion("yes", model="sk-secret"), r"^\[key\] answers instead of wise"),
        ((401, {}, '{"error": {"message": "the key sk-secret is wrong"}}'), r"/v1: .* 401 - the key \[key\] is wrong"),
        ((500, {}, "{}"), "/v1: Error code: 500"),
    ],
)
def test_a_refusal_ends_the_run_with_a_sentence(response, sentence) -> None:
    with teaching(lambda text: response) as served, pytest.raises(ValueError, match=sentence) as refused:
        Teacher(served.settings()).map(ask, ["one", "two"])
    assert not isinstance(refused.value, NoAnswer)
    with teaching(lambda text: completion("yes", model="wise-2026-01-31")) as served:
        assert ask(Teacher(served.settings()), "hello") == "yes"


def test_a_server_that_hangs_or_is_gone_and_wrong_settings(monkeypatch) -> None:
    monkeypatch.setattr(module, "RETRIES", 1)
    over = threading.Event()
    with teaching(lambda text: over.wait(60) and completion("late")) as served:
        teacher = Teacher(served.settings(timeout=0.1))
        with pytest.raises(NoAnswer, match="Request timed out"):
            ask(teacher, "hello")
        over.set()
    assert served.asked == ["hello"] * 2
    assert teacher.tokens > 1024  # it may be charged
    with pytest.raises(ValueError, match="/v1: Connection error"):
        ask(teacher, "again")
    for url in ("", "localhost:8000", "http://user:key@host/v1", "http://host/v1?key=1"):
        with pytest.raises(ValueError, match="add --teacher=http://host:port/v1 and --teacher-model=NAME"):
            Teacher(TeacherSettings(teacher=url, teacher_model="wise"))


def test_a_request_that_is_refused_uses_up_no_budget() -> None:
    refusals = {"long": (400, {}, "{}"), "odd": (422, {}, "{}")}
    with teaching(lambda text: refusals.get(text) or completion(text)) as served:
        # Room for one request that runs, of about 200 tokens.
        teacher = Teacher(served.settings(budget=300, parallel=1, teacher_tokens=100))
        assert teacher.map(ask, ["long", "odd", "long", "odd", "fine"]) == ["fine"]
    assert teacher.tokens == 30


@pytest.mark.parametrize("parallel", [1, 4])
def test_the_budget_is_not_passed_and_cached_answers_are_free(parallel, monkeypatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "")
    with teaching(lambda text: completion(text, tokens=100)) as served:
        # A request may take 100 tokens and its bytes, in JSON: 220 in all. Running requests reserve as much each.
        for budget, most in ((1000, 8), (700, 13), (0, 20)):
            before = len(served.asked)
            teacher = Teacher(served.settings(budget=budget, parallel=parallel, teacher_tokens=100))
            rows = teacher.map(ask, [f"none {number}" for number in range(20)])
            assert len(rows) == len(served.asked) == len(set(served.asked))
            assert before + 2 < len(rows) <= most
            assert teacher.tokens == 100 * (len(rows) - before) <= (budget or 2000)
        assert teacher.map(ask, ["same"] * 40) == ["same"] * 40
        assert served.asked.count("same") == 1


def test_a_killed_run_pays_for_nothing_twice(tmp_path, base, here, monkeypatch) -> None:
    name = write_lines(tmp_path / "chats.jsonl", *map(chat, range(12)))
    flags = [f"--sources=mine={name}", f"--out={tmp_path / 'out.jsonl'}", "--parallel=1"]
    reached, over = threading.Event(), threading.Event()

    def reply(text):
        if text.endswith("\n7?") and not reached.is_set():
            reached.set()
            over.wait(60)
        return completion(f"It is {text.splitlines()[-1]}")

    monkeypatch.undo()  # both processes read our prompts
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(base))
    with teaching(reply) as served:
        process = subprocess.Popen([sys.executable, "-m", "tracks.chatdata.teach", *flags, *served.flags], cwd=ROOT)
        assert reached.wait(60)
        process.kill()
        process.wait()
        assert not (tmp_path / "out.jsonl").exists()
        done = here("tracks.chatdata.teach", *flags, *served.flags)
        over.set()
    assert "12 of 12 rows, 150 tokens" in done.stdout, done.stderr  # five answers
    assert len(served.asked) == 13  # the one that was cut off twice
    rows = list(read_jsonl(tmp_path / "out.jsonl", dict))
    assert [row["messages"][1]["content"] for row in rows] == [f"It is {number}?" for number in range(12)]


def test_our_own_server_as_teacher(tmp_path, base, here) -> None:
    write_model(base)
    name = write_lines(tmp_path / "chats.jsonl", *map(chat, range(30)))
    flags = [f"--sources=sums={name}", "--teacher-tokens=100", "--teacher-model=nanochat-mine-sft"]
    with serving(base) as server:
        done = here("tracks.chatdata.teach", *flags, f"--teacher={server.url}/v1", f"--out={tmp_path / 'out.jsonl'}")
    rows = list(read_jsonl(tmp_path / "out.jsonl", dict))
    assert {(row["bucket"], row["teacher"]) for row in rows} == {("sums", "nanochat-mine-sft")}
    # Most answers from random weights have no end.
    assert all(row["messages"][1]["content"] for row in rows)
    assert 0 < len(rows) < 30
    assert f"teacher: {len(rows)} of 30 rows, " in done.stdout
