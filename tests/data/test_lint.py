import json
from pathlib import Path

from nanochat.data import lint as module
from nanochat.data.lint import CHARS_PER_TOKEN, lint
from nanochat.tokenizer import Tokenizer


def jsonl(path: Path, *rows) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def test_a_clean_text_has_no_problems(tmp_path):
    files = [jsonl(tmp_path / f"{name}.jsonl", {"text": "some words"}, {"text": "다른 말"}) for name in "ab"]
    counts, shown = lint("text", files, "text")
    assert list(counts.values()) == [4, 28, round(28 / CHARS_PER_TOKEN), 0, 0, 0]
    assert shown == []


def test_every_problem_is_counted_and_has_its_place(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "OVER_LONG", 100)
    path = jsonl(tmp_path / "a.jsonl", {"text": "good"}, "{", {"text": " "}, {"text": "x" * 101}, {"id": 1})
    counts, shown = lint("text", [path], "text")
    assert [counts[name] for name in ("Documents", *module.PROBLEMS)] == [3, 1, 1, 2]
    assert [what.split(" ")[0] for what in shown] == [f"{path}:2:", f"{path}:5:", f"{path}:", f"{path}:"]
    assert shown[2:] == [f"{path}: document 2 is blank", f"{path}: document 3 has 101 characters"]


def test_tokens_are_counted_by_the_tokenizer_it_is_given(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "BATCH_CHARS", 25)
    texts = [f"text number {number}" for number in range(7)]
    tokenizer = Tokenizer.train(texts, 270)
    counts, _ = lint("text", [jsonl(tmp_path / "a.jsonl", *({"text": text} for text in texts))], "text", tokenizer)
    assert counts["Tokens"] == sum(len(tokenizer.encode(text)) for text in texts)


def test_a_long_list_of_problems_is_cut_but_counted(tmp_path):
    path = jsonl(tmp_path / "a.jsonl", *["{"] * 1000, *({"text": ""} for _ in range(1000)))
    counts, shown = lint("text", [path], "text")
    assert (counts["Bad"], counts["Blank"]) == (1000, 1000)
    assert len(shown) == 40
