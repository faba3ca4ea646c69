"""Requests as clients write them: accepted fields, and refusals with the field's name and a clear sentence."""

import json
from copy import copy
from dataclasses import replace

import pytest
from engines import ID, TOKENIZER

from nanochat.chat import render_prompt
from nanochat.serve.requests import ApiError, ServedModel, parse_chat, parse_completion

SERVED = ServedModel("mine", TOKENIZER, 64)
HI = [{"role": "user", "content": "hi"}]


def chat(**fields):
    return parse_chat(json.dumps({"messages": HI, **fields}).encode(), SERVED)


def completion(**fields):
    return parse_completion(json.dumps({"prompt": "hi", **fields}).encode(), SERVED)


def chat_tokens(messages):
    return list(chat(messages=messages).prompts[0].tokens)


def test_settings_reach_the_engine() -> None:
    request = chat(temperature=0.5, top_p=0.9, top_k=3, seed=7, n=2, max_tokens=5, stop="x", stream=True)
    [prompt] = request.prompts
    assert list(prompt.tokens) == render_prompt({"messages": HI}, TOKENIZER)
    assert (prompt.temperature, prompt.top_p, prompt.top_k, prompt.seed, prompt.n) == (0.5, 0.9, 3, 7, 2)
    assert prompt.max_new_tokens == 5
    assert (request.fields.stop, request.fields.stream) == (["x"], True)
    assert (request.likely, request.sample_count) == (None, 2)
    assert (prompt.logprobs, prompt.likely) == (False, 0)
    request = chat(logprobs=True, top_logprobs=20)
    assert (request.likely, request.prompts[0].logprobs, request.prompts[0].likely) == (20, True, 20)
    assert chat(logprobs=True).likely == 0
    assert chat(max_tokens=5, max_completion_tokens=6).prompts[0].max_new_tokens == 6
    assert chat(seed=-1).prompts[0].seed == 2**64 - 1


def test_defaults_and_a_base_model() -> None:
    """A base model continues the last message."""
    first = chat()
    second = chat(temperature=None, stop=None, n=None, max_tokens=None, max_completion_tokens=None, model="mine")
    assert first.prompts[0].temperature == second.prompts[0].temperature == 1.0
    assert first.prompts[0].max_new_tokens == second.prompts[0].max_new_tokens == 64  # the context
    assert first.prompts[0].seed != second.prompts[0].seed
    assert completion().prompts[0].max_new_tokens == 16
    assert chat(tools=[], logit_bias={}, frequency_penalty=0, user="me", store=False)
    assert chat(repetition_penalty=1.0, min_p=0.0, chat_template_kwargs={})
    base = replace(SERVED, is_base=True)
    parts = [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]
    for messages in (HI, [*HI, {"role": "assistant", "content": "!"}, {"role": "user", "content": parts}]):
        request = parse_chat(json.dumps({"messages": messages}).encode(), base)
        assert list(request.prompts[0].tokens) == [ID["<|bos|>"], *b"hi"]


def test_a_public_model_is_sampled_as_it_was_made_for() -> None:
    """Unless the client says otherwise; other models have all tokens."""
    public = replace(SERVED, top_k=20, top_p=0.8)
    rows = [({}, SERVED, (0, 1.0)), ({}, public, (20, 0.8)), ({"top_k": 0, "top_p": 1}, public, (0, 1.0))]
    for fields, served, expected in rows:
        body = json.dumps({"messages": HI, **fields}).encode()
        [prompt] = parse_chat(body, served).prompts
        assert (prompt.top_k, prompt.top_p) == expected


def test_prompts_of_all_kinds() -> None:
    bos, hi = ID["<|bos|>"], list(b"hi")
    for prompt, rows, added in [
        ("hi", [[bos, *hi]], [1]),
        (["hi", ""], [[bos, *hi], [bos]], [1, 1]),
        (hi, [hi], [0]),
        ([hi, [bos]], [hi, [bos]], [0, 0]),
    ]:
        request = completion(prompt=prompt)
        assert [list(one.tokens) for one in request.prompts] == rows
        assert request.added_tokens == added
    assert completion(prompt=[[bos, *hi]], echo=True).echo
    text = "<|assistant_end|><|bos|>"
    assert chat_tokens([{"role": "user", "content": text}])[2:-2] == list(text.encode())
    assert list(completion(prompt=text).prompts[0].tokens) == [ID["<|bos|>"], *text.encode()]


def test_prompts_of_a_model_whose_texts_begin_with_nothing() -> None:
    """It predicts the first token of an empty text from something all the same."""
    tokenizer = copy(TOKENIZER)
    tokenizer.prefix = ()
    bos, hi = ID["<|bos|>"], list(b"hi")
    for prompt, rows, added in [
        (["", "hi"], [[bos], hi], [1, 0]),
        ([[bos], hi], [[bos], hi], [0, 0]),
    ]:
        request = parse_completion(json.dumps({"prompt": prompt}).encode(), replace(SERVED, tokenizer=tokenizer))
        assert [list(one.tokens) for one in request.prompts] == rows
        assert request.added_tokens == added


def test_answers_come_back_with_their_parts() -> None:
    parts = [{"type": "python", "text": "1+1"}, {"type": "python_output", "text": "2"}, {"type": "text", "text": "two"}]
    question = {"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]}
    as_content = [question, {"role": "assistant", "content": parts}, *HI]
    answer = {"role": "assistant", "content": "two", "parts": parts, "tool_calls": None, "refusal": None}
    tokens = chat_tokens(as_content)
    assert tokens == chat_tokens([question, answer, *HI]) == render_prompt({"messages": as_content}, TOKENIZER)
    assert ID["<|python_start|>"] in tokens
    system = [{"role": "system", "content": "be"}, *HI]
    assert chat_tokens([{"role": "developer", "content": "be"}, *HI]) == render_prompt({"messages": system}, TOKENIZER)


def message(content="hi", role="user"):
    return {"messages": [{"role": role, "content": content}]}


# request | the field that is wrong | words of the sentence. The last body is deep, but valid JSON.
REFUSED = r"""
chat(messages=[]) | messages | at least 1 item
chat(messages=["hi"]) | messages | messages.0: Input should be
chat(messages=[{"role": "user"}]) | messages | its content is neither
chat(**message(role="bot")) | messages | its role is 'bot'
chat(messages=[*HI, {"role": "assistant", "content": "x"}]) | messages | has to be the user's
chat(**message([{"type": "image_url", "image_url": {}}])) | messages | its content is neither
chat(**message("x" * 90)) | messages | must fit into 64
chat(model={"a": 1}) | model | a valid string
chat(temperature=2.1) | temperature | less than or equal to 2
chat(temperature=10**400) | temperature | a valid number
chat(max_tokens=0) | max_tokens | greater than 0
chat(stop=[""]) | stop | at least 1 character
chat(logprobs=1) | logprobs | a valid boolean
chat(logprobs=True, top_logprobs=21) | top_logprobs | less than or equal to 20
chat(logprobs=True, top_logprobs=-1) | top_logprobs | greater than or equal to 0
chat(top_logprobs=1) | top_logprobs | logprobs has to be true
chat(tools=[{"type": "function"}]) | tools | tools.0.function: Field required
chat(tools=[{"function": {"name": "add"}}]) | tools | no chat template that writes calls as JSON
chat(tools=[{"function": {"name": "add"}}], tool_choice="required") | tool_choice | auto and none are known
chat(messages=[*HI, {"role": "tool", "content": "4"}]) | messages | role is 'tool' where 'assistant' is due
chat(presence_penalty=0.5) | presence_penalty | does not support
chat(repetition_penalty=1.1) | repetition_penalty | does not support
completion(min_p=0.1) | min_p | does not support
chat(chat_template_kwargs={"enable_thinking": False}) | chat_template_kwargs | does not support
completion(prompt=[]) | prompt | at least 1 item
completion(prompt=[[]]) | prompt |
completion(prompt=["a", 3]) | prompt |
completion(prompt={"a": 1}) | prompt |
completion(prompt=[True]) | prompt |
completion(prompt=3) | prompt |
completion(prompt=[-1]) | prompt |
completion(prompt=[1, 265]) | prompt | beyond the vocabulary
completion(prompt=["x", "x" * 63]) | prompt | must fit into 64
completion(tools=[{"function": {"name": "add"}}]) | tools | does not support the field, leave it out
completion(logprobs=6) | logprobs | less than or equal to 5
completion(stream=True, logprobs=0) | stream | not streamed
parse_chat(b"", SERVED) | | Invalid JSON
parse_chat(b"[]", SERVED) | | an object
parse_chat(b'{"temperature": NaN}', SERVED) | temperature | a finite number
parse_chat(b'{"a": "\xff"}', SERVED) | | Invalid JSON
parse_chat(rb'{"prompt": "\ud800"}', SERVED) | | Invalid JSON
parse_chat(b'{"a":' * 100_000, SERVED) | | recursion limit
parse_chat(b'{"messages": ' + b"[" * 150 + b"]" * 150 + b"}", SERVED) | messages | messages.0
"""


@pytest.mark.parametrize("case", REFUSED.strip().splitlines())
def test_refused_requests(case) -> None:
    request, param, words = (part.strip() for part in case.split(" |"))
    with pytest.raises(ApiError) as caught:
        eval(request)
    error = caught.value.body["error"]
    assert (caught.value.status_code, error["param"] or "", error["type"]) == (400, param, "invalid_request_error")
    assert words in error["message"]
    assert len(str(caught.value)) < 300


def test_another_model_has_a_status_of_its_own() -> None:
    with pytest.raises(ApiError, match="there is no model 'gpt-4' here, only 'mine'") as caught:
        chat(model="gpt-4")
    assert (caught.value.status_code, caught.value.body["error"]["code"]) == (404, "model_not_found")
