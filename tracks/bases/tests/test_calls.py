"""Calls of tools: how templates take and write them, in training and by the server."""

import json
from typing import Any

import pytest

from nanochat.chat import render_conversation, render_prompt
from nanochat.errors import TemplateError, UserError
from nanochat.protocols import CallForm
from tracks.bases.templates import joined_template
from tracks.bases.tests.chat_templates import CALLING, LISTED, MARKED, TOOL, TOOLS, theirs_with
from tracks.bases.tests.public_models import CHATML, public

# As Qwen3 writes: thoughts before the last message alone, arguments as they are if they are a text.
CALLING_LAST = (
    "{%- for message in messages %}"
    "{%- if message.role == 'tool' %}{{ '<|im_start|>user\n<tool_response>' + message.content + '</tool_response>' }}"
    "{%- else %}{{ '<|im_start|>' + message.role + '\n' }}"
    "{%- if message.role == 'assistant' and loop.last %}{{ '<think>\n\n</think>\n\n' }}{% endif %}"
    "{{ message.content or '' }}{%- for call in message.tool_calls or [] %}"
    "{{ '<tool_call>' + call.function.name + (call.function.arguments if call.function.arguments is string"
    " else call.function.arguments | tojson) + '</tool_call>' }}{% endfor %}"
    "{%- endif %}{{ '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def with_calls(number: int) -> list[dict[str, Any]]:
    arguments = {"a": number, "<|im_end|>": "<|im_end|>더"}
    call = {"type": "function", "function": {"name": "add", "arguments": arguments}}
    calling: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [call] * (1 + number % 2)}
    if number % 3 == 0:
        calling["content"] = "Let me see."
    if number % 3 == 1:
        del calling["content"]
    results = [{"role": "tool", "name": "add", "content": f"{number}<|im_end|>"}] * (1 + number % 2)
    rows = [{"role": "user", "content": "How much?"}, calling, *results, {"role": "assistant", "content": "46."}]
    return rows * (1 + number % 2)


@pytest.mark.parametrize("case", ["llama", "gemma3"])
@pytest.mark.parametrize("template", [CALLING, CALLING_LAST], ids=["plain", "last"])
def test_turns_of_tools(template: str, case: str) -> None:
    """Ids are those of `transformers`; calls are learned, and results are not; neither ends a turn."""
    ours, theirs = public(case, template=template, ends=(2, 6, 0)), theirs_with(template, case)
    for number in range(12):
        messages = with_calls(number)
        conversation: Any = {"messages": messages, "tools": [TOOL]}
        ids, mask = render_conversation(conversation, ours)
        clean = json.loads(json.dumps(messages).replace("<|im_end|>", "<end>"))
        plain, _ = render_conversation({"messages": clean, "tools": [TOOL]}, ours)
        assert plain == theirs.apply_chat_template(clean, [TOOL])["input_ids"]
        asked = render_prompt({"messages": clean[:-1], "tools": [TOOL]}, ours)
        assert asked == theirs.apply_chat_template(clean[:-1], [TOOL], add_generation_prompt=True)["input_ids"]
        special = set(ours.special_tokens.values())
        assert [id for id in ids if id in special] == [id for id in plain if id in special]
        learned = ours.decode([id for id, one in zip(ids, mask, strict=True) if one])
        calls = f'<tool_call>add{{"a": {number}, "<|im_end|>": "<|im_end|>더"}}</tool_call>' * (1 + number % 2)
        said = "Let me see." if number % 3 == 0 else ""
        expected = f"{said}{calls}<|im_end|>46.<|im_end|>" * (1 + number % 2)
        if template == CALLING_LAST:
            expected = expected.removesuffix("46.<|im_end|>") + "<think>\n\n</think>\n\n46.<|im_end|>"
        assert learned == expected
        # Programming interfaces give arguments as a text.
        for message in messages:
            for call in message.get("tool_calls", []):
                call["function"]["arguments"] = json.dumps(
                    {"a": number, "<|im_end|>": "<|im_end|>더"}, ensure_ascii=False
                )
        assert render_conversation(conversation, ours) == (ids, mask)


# As Qwen3 writes agents: calls with thoughts, which a later question drops.
DROPPING = (
    "{%- set ns = namespace(last=0) %}{%- for m in messages %}{%- if m.role == 'user' %}{% set ns.last = loop.index0 %}"
    "{%- endif %}{%- endfor %}{%- for message in messages %}"
    "{%- if message.role == 'tool' %}{{ '<|im_start|>user\n<tool_response>' + message.content + '</tool_response>' }}"
    "{%- else %}{{ '<|im_start|>' + message.role + '\n' }}"
    "{%- set content = message.content or '' %}"
    "{%- if loop.index0 < ns.last %}{% set content = content.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "{{ content }}{%- for call in message.tool_calls or [] %}"
    "{{ '<tool_call>' + call.function.name + (call.function.arguments | tojson) + '</tool_call>' }}{% endfor %}"
    "{%- endif %}{{ '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@pytest.mark.parametrize("case", ["llama", "gemma3"])
def test_calls_with_thoughts_in_an_earlier_turn(case: str) -> None:
    """What asks for the second call has the first one's thought, and the whole conversation has not."""
    ours = public(case, template=DROPPING, ends=(2, 6, 0))

    def calling(name: str) -> dict[str, Any]:
        call = {"type": "function", "function": {"name": name, "arguments": {"a": 1}}}
        return {"role": "assistant", "content": f"<think>\nI {name}.\n</think>\n\n", "tool_calls": [call]}

    result = {"role": "tool", "content": "7"}
    question = {"role": "user", "content": "How much?"}
    first = [question, calling("add"), result, calling("mul"), result, {"role": "assistant", "content": "46."}]
    ids, mask = render_conversation({"messages": [*first, question, {"role": "assistant", "content": "Yes."}]}, ours)
    calls = "".join(f'<tool_call>{name}{{"a": 1}}</tool_call><|im_end|>' for name in ("add", "mul"))
    learned = ours.decode([id for id, one in zip(ids, mask, strict=True) if one])
    assert learned == f"{calls}46.<|im_end|>Yes.<|im_end|>"


def test_a_call_whose_prompt_is_refused_is_not_guessed() -> None:
    """The template writes the conversation, and only refuses what would ask for this call."""
    refusing = "{% if add_generation_prompt and messages | length == 1 %}{{ raise_exception('no') }}{% endif %}"
    ours = public("llama", template=refusing + DROPPING, ends=(2, 6, 0))
    call = {"type": "function", "function": {"name": "add", "arguments": {}}}
    question = {"role": "user", "content": "How much?"}
    answer = {"role": "assistant", "content": "<think>\nhm</think>\n\n", "tool_calls": [call]}
    messages = [question, answer, {"role": "tool", "content": "7"}, question]
    render_prompt({"messages": messages}, ours)
    with pytest.raises(TemplateError, match="it cannot be found in the chat template which tokens"):
        render_conversation({"messages": messages}, ours)


def test_a_call_whose_prompt_opens_a_thought_that_it_has_not_is_not_guessed() -> None:
    """As Qwen3's thinking models ask: what opens the turn stands before an earlier call alone."""
    template = DROPPING.replace("assistant\n' }}{% endif %}", "assistant\n<think>\n' }}{% endif %}")
    ours = public("llama", template=template, ends=(2, 6, 0))
    calls = [{"type": "function", "function": {"name": name, "arguments": {}}} for name in ("add", "mul")]
    result = {"role": "tool", "content": "7"}
    thought = "<think>\nhm</think>\n\n"
    messages = [
        {"role": "user", "content": "How much?"},
        {"role": "assistant", "content": thought, "tool_calls": calls[:1]},
        result,
        {"role": "assistant", "content": "", "tool_calls": calls[1:]},
        result,
        {"role": "assistant", "content": f"{thought}46."},
    ]
    with pytest.raises(TemplateError, match="which tokens the assistant writes"):
        render_conversation({"messages": messages}, ours)


def test_templates_of_tools_and_of_none_may_take_calls_in_two_forms() -> None:
    as_text = CALLING.replace("(call.function.arguments | tojson)", "call.function.arguments")
    as_python = CALLING.replace("+ (call.function.arguments | tojson) +", "~ call.function.arguments ~")
    arguments = {"a": [1]}
    call = {"type": "function", "function": {"name": "add", "arguments": arguments}}
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    for with_tools in (as_text, as_python):
        ours = public("llama", template=joined_template({"default": CALLING, "tool_use": with_tools}), ends=(2, 6, 0))
        for tools in ([TOOL], None):
            conversation: Any = {"messages": messages, "tools": tools} if tools else {"messages": messages}
            ids, mask = render_conversation(conversation, ours)
            learned = ours.decode([id for id, one in zip(ids, mask, strict=True) if one])
            assert learned == '<tool_call>add{"a": [1]}</tool_call><|im_end|>'
    call["function"] = {"name": "add", "arguments": ""}
    ids, _ = render_conversation({"messages": messages, "tools": [TOOL]}, ours)
    assert "<tool_call>add{}</tool_call>" in ours.decode(ids)


@pytest.mark.parametrize("written", ["message.content is none", "message.tool_calls"])
def test_a_template_may_take_arguments_as_a_text_alone(written: str) -> None:
    """As DeepSeek-R1's distilled models do; some write calls only where there is no content."""
    template = CALLING.replace("(call.function.arguments | tojson)", "call.function.arguments")
    template = template.replace("in message.tool_calls or []", f"in (message.tool_calls or []) if {written}")
    ours, theirs = public("llama", template=template, ends=(2, 6, 0)), theirs_with(template)
    call: dict[str, Any] = {"type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
    ids, mask = render_conversation({"messages": messages}, ours)
    if written == "message.tool_calls":  # a content that is none is not there in `transformers` 5
        assert ids == theirs.apply_chat_template(messages)["input_ids"]
    call["function"]["arguments"] = {"a": 1}
    assert render_conversation({"messages": messages}, ours) == (ids, mask)
    assert ours.decode([id for id, one in zip(ids, mask, strict=True) if one]).startswith('<tool_call>add{"a": 1}')


def test_a_template_that_writes_no_calls_refuses_them() -> None:
    """They would be missing, and the end of the turn alone learned."""
    for template in (CHATML, MARKED):
        ours = public("llama", template=template, ends=(2, 6, 0))
        with pytest.raises(TemplateError, match="the chat template does not write the call of add"):
            render_conversation({"messages": with_calls(0)}, ours)
    calls = [{"function": {"name": "add", "arguments": "a"}}, {"function": {"name": "add", "arguments": "[1]"}}]
    for call in calls:
        messages = [*with_calls(2)[:1], {"role": "assistant", "content": "", "tool_calls": [call]}, *with_calls(2)[2:]]
        with pytest.raises(TemplateError, match="the arguments of a call are no JSON object"):
            render_conversation({"messages": messages}, public("llama", template=CALLING, ends=(2, 6, 0)))


def test_calls_that_a_template_writes_in_another_way_when_it_asks_are_not_guessed() -> None:
    ours = public(
        "llama", template=CALLING.replace("assistant\n' }}{% endif %}", "other\n' }}{% endif %}"), ends=(2, 6, 0)
    )
    with pytest.raises(TemplateError, match="which tokens the assistant writes"):
        render_conversation({"messages": with_calls(0)}, ours)


BARE = LISTED.replace("'[CALLS] ['", "''").replace("'arguments'", "'parameters'").replace("']'", "''")
NESTED = LISTED.replace("{{ tools | tojson }}", "{{ '{\"a\":' * 100000 }}")
# Templates that offer no tools, leave calls out, write no JSON around the name, or refuse calls.
WITHOUT = [CHATML, TOOLS, CALLING, LISTED.replace("'[CALLS] ['", "raise_exception('no')")]


def form_of(template: str) -> CallForm | None:
    return public("qwen3", template=template).template.call_form


def test_how_calls_are_written_is_found_by_rendering_one() -> None:
    tags = LISTED.replace("[CALLS] [", "\n<tool_call>\n").replace("{{ ']' }}", "{{ '\n</tool_call>' }}")
    in_tags = CallForm("<tool_call>", "</tool_call>", "name", "arguments")
    assert form_of(tags) == in_tags
    assert form_of(LISTED) == CallForm("[CALLS]", "", "name", "arguments")
    assert form_of(BARE) == CallForm("", "", "name", "parameters")
    # An example among the instructions is none, a thought before a call is no part of its mark, nor is a special token.
    example = tags.replace("{{ tools | tojson }}", "{{ tools | tojson }}" + '<use>{"name": "x", "arguments": {}}</use>')
    assert form_of(example) == in_tags
    assert form_of(tags.replace("'\n<tool_call>", "'<think>\n\n</think>\n\n<tool_call>")) == in_tags
    assert form_of(tags.replace("<tool_call>", "<|im_start|>")) == in_tags._replace(before="")
    refusing = "{% if m.tool_calls | length > 1 %}{{ raise_exception('one') }}{% endif %}"
    one = tags.replace("{% for c in", refusing + "{% for c in")
    assert form_of(one) == in_tags._replace(several=False)
    assert form_of(NESTED) == form_of(LISTED)


def test_calls_are_a_list_of_objects_whoever_makes_them() -> None:
    for calls in (5, "abc", [1]):
        for role in ("user", "assistant"):
            with pytest.raises(UserError, match="message 1: its tool_calls are no list of objects"):
                render_prompt({"messages": [{"role": role, "content": "Hi", "tool_calls": calls}]}, public("qwen3"))


@pytest.mark.parametrize("template", WITHOUT)
def test_templates_without_calls_in_json_have_no_form(template: str) -> None:
    assert public("qwen3", template=template).template.call_form is None
