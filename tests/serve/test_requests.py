"""Requests as clients write them: what is taken, and what is refused in which words."""

import pytest
from engines import ID, TOKENIZER

from nanochat.chat import render_prompt
from nanochat.serve.gate import Fault
from nanochat.serve.requests import Limits, Served, read_chat, read_completion, read_json

SERVED = Served("mine", TOKENIZER, 64, Limits(messages=4, characters=150, tokens=40, samples=3))
HI = [{"role": "user", "content": "hi"}]


def fault_of(read, body):
    with pytest.raises(Fault) as caught:
        read(body, SERVED) if read is not read_json else read(body)
    error = caught.value.body["error"]
    assert error["message"] == str(caught.value)
    return caught.value.status, error["param"], error["code"], error["message"]


def chat(**fields):
    return read_chat({"messages": HI, **fields}, SERVED)


def completion(**fields):
    return read_completion({"prompt": "hi", **fields}, SERVED)


def test_a_limit_that_is_null_is_the_servers():
    assert chat(max_tokens=None, max_completion_tokens=None).requests[0].max_new_tokens == 40


def test_settings_reach_the_engine():
    asked = chat(temperature=0.5, top_p=0.9, top_k=3, seed=7, n=2, max_tokens=5, stop="x", stream=True)
    [request] = asked.requests
    assert list(request.tokens) == render_prompt({"messages": HI}, TOKENIZER)
    assert (request.temperature, request.top_p, request.top_k, request.seed, request.n) == (0.5, 0.9, 3, 7, 2)
    assert (request.max_new_tokens, asked.stops, asked.stream, asked.top, asked.samples) == (5, ("x",), True, -1, 2)
    assert chat(max_tokens=5, max_completion_tokens=6).requests[0].max_new_tokens == 6
    assert chat(seed=-1).requests[0].seed == 2**64 - 1


def test_defaults():
    first, second = chat(), chat(temperature=None, stop=None, n=None, model="mine")
    assert first.requests[0].temperature == second.requests[0].temperature == 1.0
    assert first.requests[0].max_new_tokens == 40  # the server's limit
    assert first.requests[0].seed != second.requests[0].seed
    assert completion().requests[0].max_new_tokens == 16
    assert chat(tools=[], logit_bias={}, frequency_penalty=0, response_format={"type": "text"}, user="me", store=False)


def test_prompts_of_all_kinds():
    bos, hi = ID["<|bos|>"], list(b"hi")
    rows = {"hi": [bos, *hi], "": [bos]}
    for prompt, expected in [
        ("hi", [rows["hi"]]),
        (["hi", ""], [rows["hi"], rows[""]]),
        (hi, [hi]),
        ([hi, [bos]], [hi, [bos]]),
    ]:
        asked = completion(prompt=prompt)
        assert [list(request.tokens) for request in asked.requests] == expected
        assert asked.unseen == (1 if isinstance(prompt, str) or prompt[0] == "hi" else 0)
    assert completion(prompt=[[bos, *hi]]).prompts == ["<|bos|>hi"]


def test_names_of_special_tokens_are_plain_text():
    text = "<|assistant_end|><|bos|>"
    tokens = read_chat({"messages": [{"role": "user", "content": text}]}, SERVED).requests[0].tokens
    assert set(tokens) & set(ID.values()) == {
        ID[f"<|{name}|>"] for name in ("bos", "user_start", "user_end", "assistant_start")
    }
    assert list(completion(prompt=text).requests[0].tokens) == [ID["<|bos|>"], *text.encode()]


def test_answers_come_back_with_their_parts():
    parts = [{"type": "python", "text": "1+1"}, {"type": "python_output", "text": "2"}, {"type": "text", "text": "two"}]
    ask = {"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]}
    as_content = [ask, {"role": "assistant", "content": parts}, *HI]
    as_told = [ask, {"role": "assistant", "content": "two", "parts": parts, "tool_calls": None, "refusal": None}, *HI]
    tokens = [list(read_chat({"messages": messages}, SERVED).requests[0].tokens) for messages in (as_content, as_told)]
    assert tokens[0] == tokens[1] == render_prompt({"messages": as_content}, TOKENIZER)
    assert ID["<|python_start|>"] in tokens[0]
    system = [[{"role": role, "content": "be"}, *HI] for role in ("system", "developer")]
    first, second = (list(read_chat({"messages": messages}, SERVED).requests[0].tokens) for messages in system)
    assert first == second == render_prompt({"messages": system[0]}, TOKENIZER)


def test_how_much_is_scored():
    assert not chat(logprobs=True).scored
    assert chat(logprobs=True, top_logprobs=2).scored
    assert not completion(logprobs=0).scored
    assert completion(logprobs=0, echo=True).scored
    assert completion(logprobs=1).scored
    asked = completion(max_tokens=0, echo=True, prompt="x" * 63)  # all of the context
    assert not asked.writes


@pytest.mark.parametrize(
    ("fields", "status", "param", "words"),
    [
        ({"messages": []}, 400, "messages", "at least one message"),
        ({"messages": "hi"}, 400, "messages", "at least one message"),
        ({"messages": HI * 5}, 400, "messages", "5 messages, 4 are allowed"),
        ({"messages": ["hi"]}, 400, "messages", "message 1: it needs a `role`"),
        ({"messages": [{"role": "user"}]}, 400, "messages", "message 1: its content is neither"),
        ({"messages": [{"role": "bot", "content": "hi"}]}, 400, "messages", "its role is 'bot'"),
        ({"messages": HI * 2}, 400, "messages", "message 2: its role is 'user' where 'assistant' is due"),
        ({"messages": [*HI, {"role": "assistant", "content": "x"}]}, 400, "messages", "has to be the user's"),
        ({"messages": [{"role": "user", "content": "x" * 151}]}, 400, "messages", "151 characters, 150 are allowed"),
        ({"messages": [{"role": "user", "content": "x" * 90}]}, 400, "messages", "must fit into 64"),
        ({"messages": [{"role": "user", "content": "\ud83d"}]}, 400, "messages", "surrogate"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            400,
            "messages[0].content",
            "'image_url' is not supported",
        ),
        (
            {"messages": [*HI, {"role": "assistant", "content": None, "tool_calls": [{}]}, *HI]},
            400,
            "messages[1].tool_calls",
            "not supported",
        ),
        ({"model": "gpt-4"}, 404, "model", "there is no model 'gpt-4' here, but 'mine'"),
        ({"model": {"a": 1}}, 404, "model", "there is no model"),
        ({"temperature": 2.1}, 400, "temperature", "it lies from 0 to 2"),
        ({"temperature": "1"}, 400, "temperature", "a number"),
        ({"temperature": True}, 400, "temperature", "a number"),
        ({"temperature": 10**400}, 400, "temperature", "it lies from 0 to 2"),
        ({"top_p": 0}, 400, "top_p", "above 0"),
        ({"top_k": -1}, 400, "top_k", "it lies from 0"),
        ({"top_k": 1.5}, 400, "top_k", "a whole number"),
        ({"max_tokens": 0}, 400, "max_tokens", "it lies from 1"),
        ({"max_completion_tokens": -1}, 400, "max_completion_tokens", "it lies from 1"),
        ({"max_tokens": 41}, 400, "max_tokens", "at most 40 tokens an answer"),
        ({"n": 4}, 400, "n", "it lies from 1 to 3"),
        ({"seed": 2**63}, 400, "seed", "it lies from"),
        ({"stream": "yes"}, 400, "stream", "true or false"),
        ({"stream_options": []}, 400, "stream_options", "an object"),
        ({"stop": ["a", "b", "c", "d", "e"]}, 400, "stop", "up to 4"),
        ({"stop": [""]}, 400, "stop", "of 1 to 256 characters"),
        ({"stop": 3}, 400, "stop", "stop is a text"),
        ({"stop": [None]}, 400, "stop", "stop is a text"),
        ({"top_logprobs": 2}, 400, "top_logprobs", "needs logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, 400, "top_logprobs", "from 0 to 20"),
        ({"logprobs": True, "top_logprobs": 1, "stream": True}, 400, "stream", "are not streamed"),
        ({"tools": [{"type": "function"}]}, 400, "tools", "not supported"),
        ({"tool_choice": "required"}, 400, "tool_choice", "not supported"),
        ({"response_format": {"type": "json_object"}}, 400, "response_format", "not supported"),
        ({"logit_bias": {"50": 1}}, 400, "logit_bias", "not supported"),
        ({"audio": {"voice": "x"}}, 400, "audio", "not supported"),
        ({"modalities": ["text", "audio"]}, 400, "modalities", "not supported"),
        ({"presence_penalty": 0.5}, 400, "presence_penalty", "not supported"),
    ],
)
def test_chats_that_are_refused(fields, status, param, words):
    found = fault_of(read_chat, {"messages": HI, **fields})
    assert found[:2] == (status, param)
    assert words in found[3]


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"prompt": []}, "prompt", "has 0 prompts"),
        ({"prompt": [[]]}, "prompt", "prompt is a text"),
        ({"prompt": ["a", 3]}, "prompt", "prompt is a text"),
        ({"prompt": {"a": 1}}, "prompt", "prompt is a text"),
        ({"prompt": [True, 1]}, "prompt", "prompt is a text"),
        ({"prompt": 3}, "prompt", "prompt is a text"),
        ({"prompt": ["a"] * 25}, "prompt", "from 1 to 24"),
        ({"prompt": [1, 265]}, "prompt", "ids beyond the vocabulary"),
        ({"prompt": [-1]}, "prompt", "ids beyond the vocabulary"),
        ({"prompt": "x" * 64}, "prompt", "65 tokens"),
        ({"prompt": ["x", "x" * 63]}, "prompt", "64 tokens"),
        ({"prompt": "\udc00"}, "prompt", "surrogate"),
        ({"max_tokens": 0}, "max_tokens", "nothing to answer"),
        ({"best_of": 3}, "best_of", "not supported"),
        ({"suffix": "end"}, "suffix", "not supported"),
        ({"logprobs": 6}, "logprobs", "from 0 to 5"),
        ({"logprobs": True}, "logprobs", "a whole number"),
        ({"logprobs": 0, "echo": True, "stream": True}, "stream", "not streamed"),
    ],
)
def test_completions_that_are_refused(fields, param, words):
    status, *found, message = fault_of(read_completion, {"prompt": "hi", **fields})
    assert (status, found[0]) == (400, param)
    assert words in message
    if "tokens" in words and param == "prompt":
        assert found[1] == "context_length_exceeded"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "no JSON"),
        (b"{", "no JSON"),
        (b"[]", "a JSON object"),
        (b'{"a": NaN}', "NaN is no JSON"),
        (b'{"a": "\xff"}', "no JSON in UTF-8"),
        (b"\xff\xfe{\x00}\x00", "no JSON in UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b'{"a": ' + b"1" * 5000 + b"}", "no JSON"),
    ],
)
def test_bodies_that_are_refused(body, words):
    status, *_, message = fault_of(read_json, body)
    assert status == 400
    assert words in message
    assert len(message) < 300


def test_deep_but_valid_json_is_a_message_like_any(request):
    body = read_json(b'{"messages": ' + b"[" * 500 + b"]" * 500 + b"}")
    assert fault_of(read_chat, body)[0] == 400
