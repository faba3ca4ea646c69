"""Answers from events: stops wherever they lie, streams that join to the whole, log-probabilities in their places."""

import json
from itertools import chain

import pytest
import torch
from engines import ID, TOKENIZER, mixed, model_of
from hypothesis import given
from hypothesis import strategies as st
from test_engine import ids_of, script_model

from nanochat.chat import Piece, parts
from nanochat.engine import Engine, Event
from nanochat.serve.requests import Limits, Served, read_chat, read_completion
from nanochat.serve.responses import Answer, Stops
from nanochat.serve.worker import score

SERVED = Served("mine", TOKENIZER, 192, Limits())
HI = [{"role": "user", "content": "hi"}]
SCRIPT = "[assistant_start]Y[python_start]12*3[python_end]B[output_end]Z[assistant_end]"
LETTERS = st.text("ab", max_size=12)


@given(st.lists(LETTERS, max_size=6), st.lists(st.text("ab", min_size=1, max_size=4), max_size=4))
def test_stops_are_found_however_the_text_is_cut(pieces, words):
    stops, text = Stops(words), "".join(pieces)
    shown = []
    for piece in pieces:
        if not stops.hit:
            shown.append(stops.add(piece))
            seen = "".join(shown)
            assert text.startswith(seen)
            assert not any(word in seen for word in words)
    # By the book: the first character at which a stop ends, and the longest of those that end there.
    ends = [end for end in range(len(text) + 1) if any(text[:end].endswith(word) for word in words)]
    assert stops.hit == bool(ends)
    if ends:
        longest = max(len(word) for word in words if text[: ends[0]].endswith(word))
        assert "".join(shown) == text[: ends[0] - longest]
    else:
        assert "".join([*shown, stops.close()]) == text


def run(engine, read, body):
    """(whole answer, chunks of the stream) of a request."""
    asked = read(body, SERVED)
    whole, stream = Answer(asked, SERVED), Answer(asked, SERVED)
    chunks = stream.chunks()
    for event in engine.stream(asked.requests, asked.top >= 0):
        for answer in (whole, stream):
            answer.choices[event.request, event.sample].add(event)
        chunks += stream.chunks()
    scores = {}
    if asked.scored:
        scores = {where: score(MODEL, whole.row(where), asked.top) for where in whole.choices}
    return json.loads(json.dumps(whole.whole(scores))), json.loads(json.dumps(chunks))


def joined(chunks, index):
    """What a client makes of a stream's choice."""
    told = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    text = "".join(choice["text"] if "text" in choice else choice["delta"].get("content", "") for choice in told)
    assert [choice["finish_reason"] for choice in told[:-1]] == [None] * (len(told) - 1)
    return text, told[-1]["finish_reason"], told


MODEL = model_of()
SETTINGS = [
    {"temperature": 0},
    {"n": 3, "seed": 5},
    {"n": 2, "seed": 1, "top_k": 5, "temperature": 1.3, "logprobs": True},
    {"n": 2, "seed": 2, "stop": ["\x05", "e", "ab"], "logprobs": True},
]


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_chats_stream_joins_to_the_whole(settings):
    engine = Engine(MODEL, TOKENIZER, slots=2)
    whole, chunks = run(engine, read_chat, {"messages": HI, "max_tokens": 40, **settings})
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert whole["object"] == "chat.completion"
    assert len({chunk["id"] for chunk in chunks}) == 1
    asked = read_chat({"messages": HI, "max_tokens": 40, **settings}, SERVED)
    for choice, completion in zip(whole["choices"], engine.generate(asked.requests)[0], strict=True):
        content, reason, told = joined(chunks, choice["index"])
        assert told[0]["delta"] == {"role": "assistant", "content": ""}
        assert told[-1]["delta"] == {}
        assert (content, reason) == (choice["message"]["content"], choice["finish_reason"])
        if "stop" not in settings:
            assert reason == completion.reason
        if choice["logprobs"]:
            streamed = [one for part in told for one in (part["logprobs"] or {"content": []})["content"]]
            assert streamed == choice["logprobs"]["content"]
            assert len(streamed) <= len(completion.tokens)
    assert whole["usage"]["prompt_tokens"] == len(asked.requests[0].tokens)


def test_a_stop_cuts_text_and_its_log_probabilities():
    engine, body = Engine(MODEL, TOKENIZER), {"messages": HI, "max_tokens": 60, "seed": 11, "logprobs": True}
    full, _ = run(engine, read_chat, body)
    [choice] = full["choices"]
    text = choice["message"]["content"]
    for start in range(0, len(text) - 3, 15):
        stop = text[start : start + 3]
        [cut], chunks = (found := run(engine, read_chat, {**body, "stop": stop}))[0]["choices"], found[1]
        assert cut["message"]["content"] == text[: text.index(stop)]
        assert cut["finish_reason"] == "stop"
        shown = cut["logprobs"]["content"]
        assert shown == choice["logprobs"]["content"][: len(shown)]
        assert joined(chunks, 0)[:2] == (cut["message"]["content"], "stop")
        assert found[0]["usage"]["completion_tokens"] <= full["usage"]["completion_tokens"]


def test_the_calculators_turns_are_parts():
    user = ids_of("[user_start]hi[user_end][assistant_start]")
    engine = Engine(script_model(*ids_of(SCRIPT)), TOKENIZER)
    whole, chunks = run(engine, read_chat, {"messages": HI, "temperature": 0, "logprobs": True})
    [choice] = whole["choices"]
    parts = [
        {"type": "text", "text": "Y"},
        {"type": "python", "text": "12*3"},
        {"type": "python_output", "text": "36"},
        {"type": "text", "text": "Z"},
    ]
    assert choice["message"] == {"role": "assistant", "content": "YZ", "refusal": None, "parts": parts}
    assert choice["finish_reason"] == "stop"
    tokens = [one["token"] for one in choice["logprobs"]["content"]]
    assert (
        "".join(tokens) == "Y<|python_start|>12*3<|python_end|>Z"
    )  # what the calculator says, the model did not choose
    deltas = [delta for *_, told in [joined(chunks, 0)] for delta in (one["delta"] for one in told)]
    streamed = list(chain.from_iterable(delta.get("parts", ()) for delta in deltas))
    assert "".join(part["text"] for part in streamed if part["type"] == "python") == "12*3"
    assert "".join(part["text"] for part in streamed if part["type"] == "python_output") == "36"
    assert "".join(delta.get("content", "") for delta in deltas) == "YZ"
    again = [*HI, {**choice["message"]}, {"role": "user", "content": "more"}]
    assert list(read_chat({"messages": again}, SERVED).requests[0].tokens)[: len(user) + 1] == [ID["<|bos|>"], *user]


def test_log_probabilities_around_a_call_are_of_what_was_chosen():
    """Whether the engine gives them or a forward of the whole; also where a stop comes behind the call."""
    engine = Engine(script_model(*ids_of(SCRIPT)), TOKENIZER)
    body = {"messages": HI, "temperature": 0, "logprobs": True}
    for settings in ({}, {"top_logprobs": 1}, {"stop": "Z"}, {"stop": "Z", "top_logprobs": 1}):
        [choice] = run(engine, read_chat, body | settings)[0]["choices"]
        tokens = "".join(one["token"] for one in choice["logprobs"]["content"]).removesuffix("<|assistant_end|>")
        assert tokens == "Y<|python_start|>12*3<|python_end|>" + ("" if "stop" in settings else "Z"), settings


def test_calls_that_follow_at_once_stay_apart():
    """What the calculator refuses has no answer between it and the next."""
    answer, told = Answer(read_chat({"messages": HI, "stream": True}, SERVED), SERVED), []
    for token in ids_of("[python_start]1+[python_end][python_start]2[python_end]"):
        answer.choices[0, 0].add(Event(0, 0, token))
        told += [choice["delta"] for chunk in answer.chunks() for choice in chunk["choices"]]
    assert list(chain.from_iterable(delta.get("parts", ()) for delta in told)) == [
        {"type": kind, "text": text}
        for kind, text in [
            *(("python", ""), ("python", "1"), ("python", "+"), ("text", "")),
            *(("python", ""), ("python", "2"), ("text", "")),
        ]
    ]
    pieces = [Piece("python", "1+"), Piece("text", ""), Piece("python", "2"), Piece("text", "")]
    assert parts(pieces) == [{"type": "python", "text": "1+"}, {"type": "python", "text": "2"}]


@pytest.mark.parametrize("prompts", [["hi", "The dog"], [[72, 105], [ID["<|bos|>"], 0xF0, 0x9F, 66]]])
def test_an_echo_scores_the_prompt_as_a_plain_forward_does(prompts):
    body = {"prompt": prompts, "max_tokens": 3, "echo": True, "logprobs": 2, "n": 2, "seed": 4}
    whole, _ = run(Engine(MODEL, TOKENIZER), read_completion, body)
    asked = read_completion(body, SERVED)
    for choice in whole["choices"]:
        prompt = list(asked.requests[choice["index"] // 2].tokens)
        told = choice["logprobs"]
        row = [*prompt, *(token_of(name) for name in told["tokens"][len(prompt) - asked.unseen :])]
        logprobs = MODEL(torch.tensor([row]))[0].log_softmax(-1)
        expected = [None, *(float(logprobs[i, token]) for i, token in enumerate(row[1:]))][asked.unseen :]
        assert told["token_logprobs"] == [one if one is None else pytest.approx(one, abs=1e-5) for one in expected]
        for logprob, top in zip(told["token_logprobs"], told["top_logprobs"], strict=True):
            if logprob is not None:
                assert logprob in top.values()
                assert len(top) in (2, 3)
        for name, start in zip(told["tokens"], told["text_offset"], strict=True):
            whole_characters = not name.startswith("bytes:") and "\ufffd" not in choice["text"]
            assert choice["text"][start:].startswith(name) or name in ID or not whole_characters
    greedy, _ = run(Engine(MODEL, TOKENIZER), read_completion, {**body, "temperature": 0, "n": 1})
    for choice, prompt in zip(greedy["choices"], asked.requests, strict=True):
        told, first = choice["logprobs"], len(prompt.tokens) - asked.unseen
        assert all(told["token_logprobs"][i] == max(told["top_logprobs"][i].values()) for i in range(first, first + 3))


def token_of(name):
    if name in ID:
        return ID[name]
    return int(name.removeprefix("bytes:\\x"), 16) if name.startswith("bytes:") else ord(name)


@pytest.mark.parametrize("logprobs", [0, 1])
def test_the_end_that_a_model_chose_has_a_log_probability(logprobs):
    """Clients that score prompts leave the one token out that they let be written: it has to be there."""
    engine = Engine(script_model(*ids_of("ABC[assistant_end]D")), TOKENIZER)
    about = {"prompt": "A", "temperature": 0, "echo": True, "max_tokens": 9, "logprobs": logprobs}
    asked = read_completion(about, SERVED)
    answer = Answer(asked, SERVED)
    for event in engine.stream(asked.requests, True):
        answer.choices[0, 0].add(event)
    whole = answer.whole({(0, 0): score(MODEL, answer.row((0, 0)), asked.top)})
    [choice] = whole["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("ABC", "stop")
    assert choice["logprobs"]["tokens"] == ["A", "B", "C", "<|assistant_end|>"]
    assert choice["logprobs"]["text_offset"] == [0, 1, 2, 3]
    assert whole["usage"]["completion_tokens"] == 2


def test_only_scores_are_asked_for():
    body = {"prompt": "hi", "max_tokens": 0, "echo": True, "logprobs": 0}
    asked = read_completion(body, SERVED)
    answer = Answer(asked, SERVED)
    answer.choices[0, 0].reason = "length"
    scores = {(0, 0): score(MODEL, asked.requests[0].tokens, asked.top)}
    [choice] = answer.whole(scores)["choices"]
    assert choice["text"] == "hi"
    assert choice["logprobs"]["tokens"] == ["h", "i"]
    assert all(
        list(top.values()) == [one]
        for top, one in zip(choice["logprobs"]["top_logprobs"], choice["logprobs"]["token_logprobs"], strict=True)
    )


def test_scores_are_the_plain_forwards_in_any_batch():
    for request in mixed(6, seed=2):
        tokens = list(request.tokens)
        chosen, likeliest = score(MODEL, tokens, 3)
        assert len(chosen) == len(likeliest) == len(tokens) - 1
        if len(tokens) > 1:
            logprobs = MODEL(torch.tensor([tokens]))[0, :-1].log_softmax(-1)
            torch.testing.assert_close(
                torch.tensor(chosen), logprobs.gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]
            )
            assert [pairs[0][0] for pairs in likeliest] == logprobs.argmax(-1).tolist()
