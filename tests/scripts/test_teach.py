"""scripts.teach on a file of conversations; tests/curate/test_teacher.py kills it, and lets our own server answer."""

import json

from chat_files import write_lines
from teachers import completion, teaching

ROW = {"source": "mine", "messages": [{"role": "system", "content": "Be short."}]}
ROW["messages"] += [{"role": role, "content": text} for role, text in (("user", "Why?"), ("assistant", "So."))]
ROW["messages"] += [{"role": role, "content": text} for role, text in (("user", "How?"), ("assistant", "Thus."))]


def test_prompts_are_translated_and_then_answered(tmp_path, here):
    source = write_lines(tmp_path / "chats.jsonl", ROW).removeprefix("json:")
    with teaching(lambda text: completion(f"<{text.splitlines()[-1]}>")) as served:
        flags = ("--task=translate", f"--chats={source}", f"--out={tmp_path}/ko.jsonl")
        assert here("scripts.teach", *flags, *served.flags).returncode == 0
        here(
            "scripts.teach",
            "--task=answer",
            f"--chats={tmp_path}/ko.jsonl",
            f"--out={tmp_path}/out.jsonl",
            *served.flags,
        )
    [row] = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    texts = [message["content"] for message in row.pop("messages")]
    assert texts == ["<Be short.>", "<Why?>", "<<Why?>>", "<How?>", "<<How?>>"]
    assert row == {"source": "mine", "original": "Be short.\n\nWhy?\n\nHow?", "teacher": "wise"}


def test_wrong_rows_are_refused(tmp_path, here):
    cases = {
        "{}": "chats.jsonl:1 is no JSON with messages",
        "{": "chats.jsonl:1 is no JSON",
        '{"messages": []}': "one message",
    }
    for row, sentence in cases.items():
        source = write_lines(tmp_path / "chats.jsonl", row).removeprefix("json:")
        done = here("scripts.teach", f"--chats={source}", f"--out={tmp_path}/out.jsonl")
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert sentence in done.stderr
    assert not (tmp_path / "out.jsonl").exists()
