"""Chat templates: the text and ids of `transformers`."""

import json
from pathlib import Path
from typing import Any

import pytest

from nanochat.chat import fitted_prompt, render_conversation, render_prompt
from nanochat.errors import TemplateError, UserError
from nanochat.paths import tokenizer_file
from nanochat.serve.requests import ApiError, ServedModel, parse_chat
from tasks.chats import json_lines
from tracks.bases.tests.chat_templates import CALLING, MARKED, TEMPLATES, TOOL, conversations, theirs_with
from tracks.bases.tests.public_models import CHATML, public


@pytest.mark.parametrize("case", ["llama", "gemma3"])
@pytest.mark.parametrize("name", TEMPLATES)
def test_ids(name: str, case: str) -> None:
    """Those of 500 conversations of up to three turns, some with a system message or tools, and of their prompts."""
    ours, theirs = public(case, template=TEMPLATES[name], ends=(2, 6, 0)), theirs_with(TEMPLATES[name], case)
    for number, messages in enumerate(conversations(500)):
        tools: list[Any] | None = [TOOL] if number % 3 == 0 else None
        conversation: Any = {"messages": messages} | ({"tools": tools} if tools else {})
        ids, mask = render_conversation(conversation, ours)
        assert ids == theirs.apply_chat_template(messages, tools)["input_ids"]
        assert len(mask) == len(ids)
        prompt = render_prompt(conversation, ours)
        assert prompt == theirs.apply_chat_template(messages[:-1], tools, add_generation_prompt=True)["input_ids"]


@pytest.mark.parametrize("calls", [None, []])
def test_a_key_without_a_value_is_as_if_it_were_not_there(calls: list[Any] | None) -> None:
    """Programs that write a table as JSON give every row the keys of any row."""
    asking = CHATML.replace("+ message['content'] +", "+ ('C' if 'tool_calls' in message else message['content']) +")
    asking = asking.replace("'<|im_end|>", "('N' if 'name' in message else '') + '<|im_end|>")
    ours = public("llama", template=asking)
    plain = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "I."}]
    filled: Any = [{**message, "tool_calls": calls, "name": None} for message in plain]
    found = render_conversation({"messages": filled}, ours)
    assert found[0] == theirs_with(asking).apply_chat_template(plain)["input_ids"]
    assert ours.decode([id for id, learned in zip(*found, strict=True) if learned]) == "I.<|im_end|>"


def test_a_content_that_is_null_is_not_written() -> None:
    template = CALLING.replace("{{ message.content or '' }}", "{{ message.content }}")
    ours, theirs = public("llama", template=template, ends=(2, 6, 0)), theirs_with(template)
    call = {"type": "function", "function": {"name": "add", "arguments": {}}}
    messages: Any = [{"role": "user", "content": "?"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
    ids = render_conversation({"messages": messages}, ours)[0]
    assert ids == theirs.apply_chat_template(messages)["input_ids"]
    assert "None" not in ours.decode(ids)


def test_the_template_decides_who_may_follow_whom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where ours has one order alone; a template that has one too refuses, and files are read all the same."""
    ours, theirs = public("llama", template=CHATML, ends=(2, 6, 0)), theirs_with(CHATML)
    orders = [
        "assistant user assistant",
        "user user assistant",
        "user system user assistant",
        "developer user assistant",
    ]
    rows = [[{"role": role, "content": f"The {role}."} for role in order.split()] for order in orders]
    strict = "{% if messages[0].role != 'user' %}{{ raise_exception('No.') }}{% endif %}" + CHATML
    refusing = public("llama", template=strict, ends=(2, 6, 0))
    for messages in rows:
        ids, mask = render_conversation({"messages": messages}, ours)
        assert ids == theirs.apply_chat_template(messages)["input_ids"]
        learned = ours.decode([id for id, one in zip(ids, mask, strict=True) if one])
        assert learned == "The assistant.<|im_end|>" * sum(message["role"] == "assistant" for message in messages)
        _, is_short = fitted_prompt({"messages": messages}, ours, 8, 4)
        assert is_short
    for messages in (rows[0], rows[3]):
        with pytest.raises(TemplateError, match=r"the chat template refuses the conversation: No\."):
            render_conversation({"messages": messages}, refusing)
    with pytest.raises(UserError, match="message 1: its role is 'usr', and none of system, developer, user"):
        render_conversation({"messages": [{"role": "usr", "content": "a"}]}, ours)
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(messages) + "\n" for messages in rows))
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(tmp_path))
    refusing.save(tokenizer_file("public"))
    task = json_lines(str(tmp_path / "chats.jsonl"))("train", "public")
    assert sorted(len(row["messages"]) for row in task) == [3, 3, 3, 4]
    with pytest.raises(UserError, match=r"chats\.jsonl:1: message 1: its role is 'assistant'"):
        json_lines(str(tmp_path / "chats.jsonl"))("train")


# As Qwen3 and Phi 3 write: messages of the roles that they know alone. INSTRUCTED begins as Qwen2.5 without a system.
CHOOSY = "{% for message in messages if message.role in ROLES %}" + CHATML.partition("%}")[2]
KNOWN = CHOOSY.replace("ROLES", "['system', 'user', 'assistant']")
INSTRUCTED = "{% if messages[0].role != 'system' %}{{ '<|im_start|>system\nYou are.<|im_end|>\n' }}{% endif %}" + KNOWN
REFUSING = (
    "{% for message in messages if message.role == 'developer' %}{{ raise_exception('No.') }}{% endfor %}" + CHATML
)
WITH_DEVELOPER = CHOOSY.replace("ROLES", "['system', 'developer', 'user', 'assistant']")


@pytest.mark.parametrize("template", [CHATML, KNOWN, INSTRUCTED, REFUSING, MARKED, WITH_DEVELOPER])
@pytest.mark.parametrize("place", [0, 2])
def test_what_a_developer_says_is_written_alike_in_training_and_by_the_server(template: str, place: int) -> None:
    """As what the system says, where the template would leave it out."""
    ours, theirs = public("llama", template=template, ends=(2, 6, 0)), theirs_with(template)
    role = "system" if template in (KNOWN, INSTRUCTED, REFUSING) else "developer"
    plain = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Moi."}]
    turns = [*plain, *plain]
    turns.insert(place, {"role": "developer", "content": "Answer in French."})
    same = [{**message, "role": role if number == place else message["role"]} for number, message in enumerate(turns)]
    ids, mask = render_conversation({"messages": turns}, ours)
    assert ids == theirs.apply_chat_template(same)["input_ids"]
    assert f"<|im_start|>{role}\nAnswer in French.<|im_end|>" in ours.decode(ids)
    assert ours.decode([id for id, one in zip(ids, mask, strict=True) if one]) == "Moi.<|im_end|>" * 2
    asked = turns[:-1]
    prompt = render_prompt({"messages": asked}, ours)
    request = parse_chat(json.dumps({"messages": asked}).encode(), ServedModel("mine", ours, 512))
    assert list(request.prompts[0].tokens) == prompt
    assert prompt == theirs.apply_chat_template(same[:-1], add_generation_prompt=True)["input_ids"]


FIRST_ALONE = "['user', 'assistant'] or (message.role == 'developer' and message == messages[0])"


@pytest.mark.parametrize("known", ["['user', 'assistant']", FIRST_ALONE])
def test_what_a_developer_says_is_not_dropped(known: str) -> None:
    """A template that writes no system message, or the role in one place alone, refuses the conversation."""
    ours = public("llama", template=CHOOSY.replace("ROLES", known), ends=(2, 6, 0))
    turns = [{"role": "user", "content": "Who?"}, {"role": "developer", "content": "Answer in French."}]
    answered = [*turns, {"role": "assistant", "content": "Moi."}]
    with pytest.raises(TemplateError, match="does not write the message of the role developer"):
        render_conversation({"messages": answered}, ours)
    with pytest.raises(TemplateError, match="does not write the message of the role developer"):
        render_prompt({"messages": answered}, ours)
    with pytest.raises(ApiError, match="does not write the message of the role developer") as caught:
        parse_chat(json.dumps({"messages": turns}).encode(), ServedModel("mine", ours, 512))
    assert caught.value.status_code == 400
    turns[1]["content"] = ""
    assert ours.decode(render_prompt({"messages": turns}, ours)).endswith("Who?<|im_end|>\n<|im_start|>assistant\n")


def test_the_prompt_is_what_a_reply_follows() -> None:
    ours = public("llama")
    messages = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "I."}]
    ids, mask = render_conversation({"messages": messages}, ours)
    prompt = render_prompt({"messages": messages}, ours)
    assert ids[: len(prompt)] == prompt
    assert mask == [0] * len(prompt) + [1] * (len(ids) - len(prompt) - 1) + [0]  # the line's end is not learned


@pytest.mark.parametrize("tools", ["[]", {"name": "a"}, [1]])
def test_tools_are_a_list_of_objects(tools: Any) -> None:
    with pytest.raises(UserError, match="the tools of a conversation are a list of objects"):
        render_prompt({"messages": [{"role": "user", "content": "Hi"}], "tools": tools}, public("llama"))


def test_calls_of_our_calculator_are_left_out() -> None:
    content = [
        {"type": "text", "text": "12 + 34 = "},
        {"type": "python", "text": "12+34"},
        {"type": "python_output", "text": "46"},
        {"type": "text", "text": "46."},
    ]
    conversation = {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": content}]}
    ours = public("llama")
    assert "\n12 + 34 = 46.<|im_end|>" in ours.decode(render_conversation(conversation, ours)[0])
