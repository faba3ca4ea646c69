import json
from pathlib import Path

from nanochat import lint as module
from nanochat.lint import CHARS_PER_TOKEN, lint


def jsonl(path: Path, *rows) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def test_a_clean_text_has_no_problems(tmp_path):
    files = [jsonl(tmp_path / f"{name}.jsonl", {"text": "some words"}, {"text": "다른 말"}) for name in "ab"]
    found = lint("text", files, "text")
    assert (found.documents, found.characters, found.problems, found.shown) == (4, 28, 0, [])
    assert abs(found.tokens - 28 / CHARS_PER_TOKEN) < 0.01


def test_every_problem_is_counted_and_has_its_place(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "OVER_LONG", 100)
    path = jsonl(tmp_path / "a.jsonl", {"text": "good"}, "{", {"text": " "}, {"text": "x" * 101}, {"id": 1})
    found = lint("text", [path], "text")
    assert (found.documents, found.blank, found.over_long, found.bad, found.problems) == (3, 1, 1, 2, 4)
    assert [what.split(" ")[0] for what in found.shown] == [f"{path}:2:", f"{path}:5:", f"{path}:", f"{path}:"]
    assert found.shown[2:] == [f"{path}: document 2 is blank", f"{path}: document 3 has 101 characters"]


def test_tokens_are_counted_by_what_it_is_given(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "BATCH_CHARS", 25)
    batches = []
    files = [jsonl(tmp_path / "a.jsonl", *({"text": "ten chars."} for _ in range(7)))]
    found = lint("text", files, "text", lambda texts: batches.append(len(texts)) or len(texts))
    assert batches == [3, 3, 1]
    assert found.tokens == 7


def test_a_long_list_of_problems_is_cut_but_counted(tmp_path):
    found = lint("text", [jsonl(tmp_path / "a.jsonl", *["{"] * 1000, *({"text": ""} for _ in range(1000)))], "text")
    assert (found.bad, found.blank) == (1000, 1000)
    assert len(found.shown) == 40
