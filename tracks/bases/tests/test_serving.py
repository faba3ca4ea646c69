"""Conversations with tools of public models, as a server reads and answers them."""

import json
from dataclasses import replace
from typing import Any

import pytest

from nanochat.engine import Event, samples_of
from nanochat.serve.requests import ApiError, ServedModel, parse_chat
from nanochat.serve.responses import Choice
from tracks.bases.tests.chat_templates import LISTED, TOOL
from tracks.bases.tests.public_models import public

# Whatever a client sends with a conversation of tools is answered, or refused in a sentence.
ODD_MESSAGES: list[dict[str, Any]] = [
    {"role": "assistant", "content": "Hi", "tool_calls": "abc"},
    {"role": "assistant", "tool_calls": [1]},
    {"role": "assistant", "tool_calls": [{}]},
    {"role": "assistant", "tool_calls": [{"function": []}]},
    {"role": "assistant", "tool_calls": [{"function": {"name": {"a": 1}, "arguments": {}}}]},
    *(
        {"role": "assistant", "tool_calls": [{"function": {"name": "add", "arguments": arguments}}]}
        for arguments in ("[", '{"a": "\\ud800"}', '{"a":' + 600 * "[" + 600 * "]" + "}", 5000 * '{"a":')
    ),
    {"role": ["tool"], "content": "1"},
]


@pytest.mark.parametrize("message", ODD_MESSAGES)
def test_odd_messages_are_refused_by_the_server(message: dict[str, Any]) -> None:
    served = ServedModel("mine", public("qwen3", template=LISTED), 512)
    question = {"role": "user", "content": "Hi"}
    with pytest.raises(ApiError) as caught:
        parse_chat(json.dumps({"messages": [question, message, question], "tools": [TOOL]}).encode(), served)
    assert caught.value.status_code == 400


def test_turns_of_tools_reach_the_template_of_a_server() -> None:
    served = ServedModel("mine", public("qwen3", template=LISTED), 512)
    called = {"role": "assistant", "tool_calls": [{"function": {"name": "add", "arguments": ""}}]}
    result = {"role": "tool", "tool_call_id": "123456789", "name": "add", "content": "2"}
    body = {"messages": [{"role": "user", "content": "Hi"}, called, result], "tools": [TOOL]}
    request = parse_chat(json.dumps(body).encode(), served)
    text = served.tokenizer.decode(request.prompts[0].tokens)
    assert '[CALLS] [{"name": "add", "arguments": {}}]' in text
    assert text.endswith("tool:2<|im_end|>assistant:")
    assert (request.tools, request.parallel_calls) == ({"add"}, True)
    with pytest.raises(ApiError, match="no chat template that writes calls"):
        parse_chat(json.dumps(body).encode(), replace(served, is_base=True))


def ended(written: str, reason: str, stream: bool) -> tuple[str, list[Any], str]:
    """Return (text, calls, finish reason) that a client reads of an answer which the engine has ended like that."""
    ours = public("qwen3", template=LISTED.replace("[CALLS] [", "<tool_call>").replace("{{ ']' }}", "</tool_call>"))
    served = ServedModel("mine", ours, 512)
    body = {"messages": [{"role": "user", "content": "Hi"}], "tools": [TOOL], "stream": stream}
    request = parse_chat(json.dumps(body).encode(), served)
    [sample] = samples_of(request.prompts)
    choice = Choice(0, sample, request, ours)
    events = [*(Event(sample, id) for id in ours.encode(written)), Event(sample, None, reason=reason)]
    if not stream:
        for event in events:
            choice.append(event)
        whole = choice.whole()
        return whole["message"]["content"] or "", whole["message"].get("tool_calls", []), whole["finish_reason"]
    deltas = []
    for event in events:
        choice.append(event)
        deltas += choice.new_deltas()
    reasons = [delta["finish_reason"] for delta in deltas]
    assert reasons[:-1] == [None] * (len(deltas) - 1)
    calls = [call for delta in deltas for call in delta["delta"].get("tool_calls", [])]
    return "".join(delta["delta"].get("content", "") for delta in deltas), calls, reasons[-1]


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_with_calls_that_was_cut_or_failed_says_so(stream: bool) -> None:
    """Calls that are whole are told all the same; a client that runs them knows that there may be others."""
    call = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
    cut = '<tool_call>{"name": "add", "argu'
    for written, text in ((call, ""), (call + cut, cut)):
        for reason, expected in (("stop", "tool_calls"), ("length", "length"), ("error", "error")):
            said, [made], found = ended(written, reason, stream)
            assert (said, made["function"]) == (text, {"name": "add", "arguments": '{"a": 1}'})
            assert found == expected
