"""scripts.teach on a file of conversations; tests/curate/test_teacher.py kills it, and lets our own server answer."""

import json

from teachers import completion, teaching

TEXTS = ("system", "Be short."), ("user", "Why?"), ("assistant", "So."), ("user", "How?"), ("assistant", "Thus.")


def test_prompts_are_translated_and_then_answered(tmp_path, here):
    chats, prompts, out = (tmp_path / name for name in ("chats.jsonl", "prompts.jsonl", "out.jsonl"))
    messages = [{"role": role, "content": text} for role, text in TEXTS]
    chats.write_text(json.dumps({"source": "mine", "messages": messages}))
    with teaching(lambda text: completion(f"<{text.splitlines()[-1]}>")) as served:
        here("scripts.teach", "--language=Korean", f"--sources=b=json:{chats}", f"--out={prompts}", *served.flags)
        here("scripts.teach", f"--sources=b=json:{prompts}", f"--out={out}", *served.flags)
    row = json.loads(out.read_text())
    texts = [message["content"] for message in row.pop("messages")]
    assert texts == ["<Be short.>", "<Why?>", "<<Why?>>", "<How?>", "<<How?>>"]
    own = {"source": "mine", "license": "unknown", "bucket": "b"}
    assert row == own | {"original": "Why?", "teacher": "wise"}
    cases = {
        "{}": "chats.jsonl:1: no JSON object with `messages`",
        "{": "chats.jsonl:1: Expecting",
        '{"messages": []}': "row 1, from chats.jsonl: a conversation has a list",
    }
    for line, sentence in cases.items():
        chats.write_text(line)
        done = here("scripts.teach", f"--sources=b=json:{chats}", f"--out={tmp_path}/never.jsonl")
        assert (done.returncode, done.stderr.count("\n"), sentence in done.stderr) == (2, 1, True)
