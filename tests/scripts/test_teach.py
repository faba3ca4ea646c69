"""scripts.teach on a file of conversations; tests/curate/test_teacher.py kills it, and lets our own server answer."""

import json

from teachers import completion, teaching

PARTS = [{"type": "text", "text": "How?"}]
TEXTS = ("system", "Be short."), ("user", "{text}?"), ("assistant", "So."), ("user", PARTS), ("assistant", "Thus.")


def test_prompts_are_translated_and_then_answered(tmp_path, here):
    chats, prompts, out = (tmp_path / name for name in ("chats.jsonl", "prompts.jsonl", "out.jsonl"))
    messages = [{"role": role, "content": text} for role, text in TEXTS]
    chats.write_text(json.dumps({"source": "mine", "messages": messages}))
    with teaching(lambda text: completion(f"<{text.splitlines()[-1]}>")) as served:
        here("scripts.teach", "--language=Korean", f"--sources=b=json:{chats}", f"--out={prompts}", *served.flags)
        here("scripts.teach", f"--sources=b=json:{prompts}", f"--out={out}", *served.flags)
    assert "into Korean" in served.asked[0]
    row = json.loads(out.read_text())
    texts = [message["content"] for message in row.pop("messages")]
    assert texts == ["<Be short.>", "<{text}?>", "<<{text}?>>", "<How?>", "<<How?>>"]
    own = {"source": "mine", "license": "unknown", "bucket": "b"}
    assert row == own | {"original": "{text}?", "teacher": "wise"}
