"""tracks.chatdata.teach on a file of conversations; test_teacher.py kills it, and lets our own server answer."""

import json

import pytest
from made_chats import chat as made_chat

from nanochat.errors import UserError
from nanochat.paths import read_json, read_jsonl
from tracks.chatdata import sources, teach
from tracks.chatdata.tests.teachers import completion, teaching

PARTS = [{"type": "text", "text": "How?"}]
TEXTS = ("system", "Be short."), ("user", "{text}?"), ("assistant", "So."), ("user", PARTS), ("assistant", "Thus.")


def test_prompts_are_translated_and_then_answered(tmp_path, here) -> None:
    chats, prompts, out = (tmp_path / name for name in ("chats.jsonl", "prompts.jsonl", "out.jsonl"))
    messages = [{"role": role, "content": text} for role, text in TEXTS]
    chats.write_text(json.dumps({"source": "mine", "messages": messages}))
    with teaching(lambda text: completion(f"<{text.splitlines()[-1]}>")) as served:
        here(
            "tracks.chatdata.teach", "--language=Korean", f"--sources=b=json:{chats}", f"--out={prompts}", *served.flags
        )
        here("tracks.chatdata.teach", f"--sources=b=json:{prompts}", f"--out={out}", *served.flags)
    assert "into Korean" in served.asked[0]
    row = read_json(out)
    texts = [message["content"] for message in row.pop("messages")]
    assert texts == ["<Be short.>", "<{text}?>", "<<{text}?>>", "<How?>", "<<How?>>"]
    own = {"source": "mine", "license": "unknown", "bucket": "b"}
    assert row == own | {"original": "{text}?", "teacher": "wise"}


def test_tasks_are_opened_for_the_tokenizer(monkeypatch) -> None:
    tags = []
    monkeypatch.setattr(sources, "open_sources", lambda *words: tags.append(words[-1]) or [])
    with pytest.raises(UserError, match="add --teacher"):
        teach.main(teach.Config(sources="b=Passages", tokenizer_tag="mine"))
    assert tags == ["mine"]


def test_questions_with_a_second_right_choice_are_left_out(tmp_path, here) -> None:
    def reply(text: str):
        # The scripted judge finds two right choices where the question is about fish.
        return completion("I am not sure." if "bird" in text else f"Verdict: {'no' if 'fish' in text else 'yes'}")

    questions, out = tmp_path / "questions.jsonl", tmp_path / "out.jsonl"
    rows = []
    for word in ("mammal", "fish", "bird"):
        prompt = f"Which is a {word}?\n\n- cat=A\n- cod=B\n- hake=C"
        rows.append({"messages": [{"role": "user", "content": prompt}, {"role": "assistant", "content": "A"}]})
    questions.write_text("\n".join(map(json.dumps, rows)))
    command = ("tracks.chatdata.teach", "--check-choices", f"--sources=b=json:{questions}", f"--out={out}")
    with teaching(reply) as served:
        printed = here(*command, *served.flags).stdout
        assert all("hake=C\n\nThe answer:\nA\n" in text for text in served.asked)
    assert [row["messages"] for row in read_jsonl(out, dict)] == [rows[0]["messages"]]
    assert "teacher: 1 of 3 rows" in printed
    assert "its answer is not the only right choice" in printed or "no verdict" in printed
    questions.write_text(json.dumps(rows[1]))
    with teaching(reply) as served:
        refused = here(*command, *served.flags, code=2)
    assert "nothing is written" in refused.stderr


def test_a_teacher_names_topics_and_its_word_counts(tmp_path, here, base) -> None:
    rows = [made_chat("How are you?", "Well."), made_chat("What is a star?", "A sun.")]
    chats, out = tmp_path / "chats.jsonl", tmp_path / "tagged.jsonl"
    chats.write_text("\n".join(map(json.dumps, rows)))
    with teaching(lambda text: completion(f"Verdict: {'science' if 'star' in text else 'daily'}")) as served:
        here("tracks.chatdata.teach", "--topics", f"--sources=b=json:{chats}", f"--out={out}", *served.flags)
        assert "user: How are you?\n\nassistant: Well." in served.asked[0] + served.asked[1]
    tagged = list(read_jsonl(out, dict))
    assert [row["topic"] for row in tagged] == ["daily", "science"]
    assert [row["messages"] for row in tagged] == [row["messages"] for row in rows]


def test_a_row_that_the_teacher_cannot_name_is_kept_for_the_rules(tmp_path, here, base) -> None:
    rows = [made_chat("How are you?", "Well.", topic="code"), made_chat("What is a star?", "A sun.", number=7)]
    chats, out = tmp_path / "chats.jsonl", tmp_path / "tagged.jsonl"
    chats.write_text("\n".join(map(json.dumps, rows)))
    command = ("tracks.chatdata.teach", "--topics", f"--sources=b=json:{chats}", f"--out={out}")
    with teaching(lambda text: completion("Verdict: science" if "star" in text else "I am not sure.")) as served:
        printed = here(*command, *served.flags).stdout
    first, second = read_jsonl(out, dict)
    assert "topic" not in first
    assert (second["topic"], second["number"]) == ("science", 7)
    assert [row["messages"] for row in (first, second)] == [row["messages"] for row in rows]
    assert "rows without a topic, which tracks.chatdata.chats tags by rules: 1" in printed
