"""Requests as clients write them: accepted fields, and refusals with the field's name and a clear sentence."""

import json

import pytest
from engines import ID, TOKENIZER

from nanochat.chat import render_prompt
from nanochat.serve.requests import ApiError, RequestLimits, ServedModel, parse_chat, parse_completion

SERVED = ServedModel("mine", TOKENIZER, 64, RequestLimits(messages=4, characters=150, tokens=40, samples=3))
HI = [{"role": "user", "content": "hi"}]


def chat(**fields):
    return parse_chat(json.dumps({"messages": HI, **fields}).encode(), SERVED)


def completion(**fields):
    return parse_completion(json.dumps({"prompt": "hi", **fields}).encode(), SERVED)


def chat_tokens(messages):
    return list(chat(messages=messages).prompts[0].tokens)


def test_settings_reach_the_engine():
    request = chat(temperature=0.5, top_p=0.9, top_k=3, seed=7, n=2, max_tokens=5, stop="x", stream=True)
    [prompt] = request.prompts
    assert list(prompt.tokens) == render_prompt({"messages": HI}, TOKENIZER)
    assert (prompt.temperature, prompt.top_p, prompt.top_k, prompt.seed, prompt.n) == (0.5, 0.9, 3, 7, 2)
    assert prompt.max_new_tokens == 5
    assert (request.fields.stop, request.fields.stream) == (["x"], True)
    assert (request.top_logprobs, request.samples) == (-1, 2)
    assert chat(max_tokens=5, max_completion_tokens=6).prompts[0].max_new_tokens == 6
    assert chat(seed=-1).prompts[0].seed == 2**64 - 1


def test_defaults_and_nulls():
    first = chat()
    second = chat(temperature=None, stop=None, n=None, max_tokens=None, max_completion_tokens=None, model="mine")
    assert first.prompts[0].temperature == second.prompts[0].temperature == 1.0
    assert first.prompts[0].max_new_tokens == second.prompts[0].max_new_tokens == 40  # the server's limit
    assert first.prompts[0].seed != second.prompts[0].seed
    assert completion().prompts[0].max_new_tokens == 16
    assert chat(tools=[], logit_bias={}, frequency_penalty=0, response_format={"type": "text"}, user="me", store=False)


def test_prompts_of_all_kinds():
    bos, hi = ID["<|bos|>"], list(b"hi")
    for prompt, rows, added in [
        ("hi", [[bos, *hi]], 1),
        (["hi", ""], [[bos, *hi], [bos]], 1),
        (hi, [hi], 0),
        ([hi, [bos]], [hi, [bos]], 0),
    ]:
        request = completion(prompt=prompt)
        assert [list(one.tokens) for one in request.prompts] == rows
        assert request.added_tokens == added
    assert completion(prompt=[[bos, *hi]]).prompt_texts == ["<|bos|>hi"]


def test_names_of_special_tokens_are_plain_text():
    text = "<|assistant_end|><|bos|>"
    tokens = chat_tokens([{"role": "user", "content": text}])
    special = {ID[f"<|{name}|>"] for name in ("bos", "user_start", "user_end", "assistant_start")}
    assert set(tokens) & set(ID.values()) == special
    assert list(completion(prompt=text).prompts[0].tokens) == [ID["<|bos|>"], *text.encode()]


def test_answers_come_back_with_their_parts():
    parts = [{"type": "python", "text": "1+1"}, {"type": "python_output", "text": "2"}, {"type": "text", "text": "two"}]
    question = {"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]}
    as_content = [question, {"role": "assistant", "content": parts}, *HI]
    answer = {"role": "assistant", "content": "two", "parts": parts, "tool_calls": None, "refusal": None}
    tokens = chat_tokens(as_content)
    assert tokens == chat_tokens([question, answer, *HI]) == render_prompt({"messages": as_content}, TOKENIZER)
    assert ID["<|python_start|>"] in tokens
    system = [{"role": "system", "content": "be"}, *HI]
    developer = [{"role": "developer", "content": "be"}, *HI]
    assert chat_tokens(system) == chat_tokens(developer) == render_prompt({"messages": system}, TOKENIZER)


def test_log_probabilities_that_need_a_forward_pass():
    assert not chat(logprobs=True).needs_scores
    assert chat(logprobs=True, top_logprobs=2).needs_scores
    assert not completion(logprobs=0).needs_scores
    assert completion(logprobs=0, echo=True).needs_scores
    assert completion(logprobs=1).needs_scores
    assert not completion(max_tokens=0, echo=True, prompt="x" * 63).generates  # fills the context


def message(content="hi", role="user", **more):
    return {"messages": [{"role": role, "content": content, **more}]}


ANSWER = {"role": "assistant", "content": "x"}


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"messages": []}, "messages", "at least 1 item"),
        ({"messages": "hi"}, "messages", "a valid list"),
        ({"messages": HI * 5}, "messages", "5 messages, 4 are allowed"),
        ({"messages": ["hi"]}, "messages[0]", "dictionary"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "a valid list"),
        (message(role="bot"), "messages[0].role", "'system', 'user' or 'assistant'"),
        ({"messages": HI * 2}, "messages", "message 2"),
        ({"messages": [*HI, ANSWER]}, "messages", "has to be the user's"),
        (message("x" * 151), "messages", "151 characters, 150 are allowed"),
        (message([{"type": "image_url", "image_url": {}}]), "messages[0].content[0].type", "'text'"),
        (message([{"type": [], "text": "x"}]), "messages[0].content[0].type", "'text'"),
        ({"messages": [*HI, {**ANSWER, "tool_calls": [{}]}, *HI]}, "messages[1]", "tool_calls is not supported"),
        ({"model": {"a": 1}}, "model", "a valid string"),
        ({"temperature": 2.1}, "temperature", "less than or equal to 2"),
        ({"temperature": "1"}, "temperature", "a valid number"),
        ({"temperature": True}, "temperature", "a valid number"),
        ({"temperature": 10**400}, "temperature", "a valid number"),
        ({"top_p": 0}, "top_p", "greater than 0"),
        ({"top_k": -1}, "top_k", "greater than or equal to 0"),
        ({"top_k": 1.5}, "top_k", "a valid integer"),
        ({"max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
        ({"max_completion_tokens": -1}, "max_completion_tokens", "greater than or equal to 1"),
        ({"max_tokens": 41}, "max_tokens", "at most 40 tokens"),
        ({"n": 4}, "n", "at most 3 samples"),
        ({"seed": 2**63}, "seed", "less than"),
        ({"stream": "yes"}, "stream", "a valid boolean"),
        ({"stream_options": []}, "stream_options", "dictionary"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop", "at most 4 items"),
        ({"stop": [""]}, "stop[0]", "at least 1 character"),
        ({"stop": ["x" * 257]}, "stop[0]", "at most 256 characters"),
        ({"stop": 3}, "stop", "a valid list"),
        ({"top_logprobs": 2}, "top_logprobs", "needs logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "less than or equal to 20"),
        ({"logprobs": True, "top_logprobs": 1, "stream": True}, "stream", "are not streamed"),
    ],
)
def test_refused_chats(fields, param, words):
    with pytest.raises(ApiError) as caught:
        chat(**fields)
    error = caught.value.body["error"]
    assert (caught.value.status, error["param"], error["type"]) == (400, param, "invalid_request_error")
    assert words in error["message"]


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        *(({"prompt": prompt}, "prompt", "has to be a text") for prompt in ([], [[]], ["a", 3], {"a": 1}, [True], 3)),
        ({"prompt": ["a"] * 25}, "prompt", "24 are allowed"),
        ({"prompt": [1, 265]}, "prompt", "ids beyond the vocabulary"),
        ({"prompt": [-1]}, "prompt", "ids beyond the vocabulary"),
        ({"prompt": ["x", "x" * 63]}, "prompt", "64 tokens"),
        ({"max_tokens": 0}, "max_tokens", "nothing to answer"),
        ({"best_of": 3}, "best_of", "not supported"),
        ({"suffix": "end"}, "suffix", "not supported"),
        ({"logprobs": 6}, "logprobs", "less than or equal to 5"),
        ({"logprobs": True}, "logprobs", "a valid integer"),
        ({"logprobs": 0, "echo": True, "stream": True}, "stream", "not streamed"),
    ],
)
def test_refused_completions(fields, param, words):
    with pytest.raises(ApiError) as caught:
        completion(**fields)
    error = caught.value.body["error"]
    assert (caught.value.status, error["param"]) == (400, param)
    assert words in error["message"]


@pytest.mark.parametrize(
    ("fields", "status", "param", "code"),
    [
        ({"model": "gpt-4"}, 404, "model", "model_not_found"),
        (message("x" * 90), 400, "messages", "context_length_exceeded"),
        ({"tools": [{"type": "function"}]}, 400, "tools", "unsupported_parameter"),
        ({"tool_choice": "required"}, 400, "tool_choice", "unsupported_parameter"),
        ({"response_format": {"type": "json_object"}}, 400, "response_format", "unsupported_parameter"),
        ({"logit_bias": {"50": 1}}, 400, "logit_bias", "unsupported_parameter"),
        ({"audio": {"voice": "x"}}, 400, "audio", "unsupported_parameter"),
        ({"modalities": ["text", "audio"]}, 400, "modalities", "unsupported_parameter"),
        ({"presence_penalty": 0.5}, 400, "presence_penalty", "unsupported_parameter"),
    ],
)
def test_codes_for_programs(fields, status, param, code):
    with pytest.raises(ApiError) as caught:
        chat(**fields)
    error = caught.value.body["error"]
    assert (caught.value.status, error["param"], error["code"]) == (status, param, code)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "Invalid JSON"),
        (b"{", "Invalid JSON"),
        (b"[]", "an object"),
        (b'{"temperature": NaN}', "a finite number"),
        (b'{"a": "\xff"}', "Invalid JSON"),
        (b"\xff\xfe{\x00}\x00", "Invalid JSON"),
        (rb'{"prompt": "\ud800"}', "Invalid JSON"),
        (b"[" * 100_000, "recursion limit"),
        (b'{"a":' * 100_000, "recursion limit"),
        (b'{"a": ' + b"1" * 5000 + b"}", "Invalid JSON"),
        (b'{"messages": ' + b"[" * 150 + b"]" * 150 + b"}", "messages[0]"),  # deep, but valid JSON
    ],
)
def test_refused_bodies(body, words):
    with pytest.raises(ApiError) as caught:
        parse_chat(body, SERVED)
    assert caught.value.status == 400
    assert words in str(caught.value)
    assert len(str(caught.value)) < 300
