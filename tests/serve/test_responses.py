"""Responses from events: stops anywhere in the text, streams that join to the whole, and log-probabilities."""

import asyncio
import json
from collections import deque
from copy import copy
from dataclasses import replace
from itertools import chain

import pytest
import torch
from engines import ID, TOKENIZER, model_of, tokens_of
from hypothesis import given
from hypothesis import strategies as st
from test_engine import ids_of, script_model

from nanochat.engine import Engine, Event
from nanochat.serve.requests import ServedModel, parse_chat, parse_completion
from nanochat.serve.responses import ApiResponse, StopFinder

SERVED = ServedModel("mine", TOKENIZER, 192)
MODEL = model_of()
HI = [{"role": "user", "content": "hi"}]
SCRIPT = "[assistant_start]Y[python_start]12*3[python_end]B[output_end]Z[assistant_end]"
LETTERS = st.text("ab", max_size=12)


@given(st.lists(LETTERS, max_size=6), st.lists(st.text("ab", min_size=1, max_size=4), max_size=4))
def test_stops_are_found_however_the_text_is_cut(pieces, words) -> None:
    finder, text = StopFinder(words), "".join(pieces)
    shown = ""
    for piece in pieces:
        if not finder.found:
            shown += finder.feed(piece)
            assert text.startswith(shown)
            assert not any(word in shown for word in words)
    # The plain twin: the first character at which a stop ends, and the longest stop that ends there.
    ends = [end for end in range(len(text) + 1) if any(text[:end].endswith(word) for word in words)]
    assert finder.found == bool(ends)
    if ends:
        longest = max(len(word) for word in words if text[: ends[0]].endswith(word))
        assert shown == text[: ends[0] - longest]
    else:
        assert shown + finder.close() == text


class Steps:
    """A worker whose engine runs in this thread, a step for each time that a response waits for events."""

    def __init__(self, engine) -> None:
        self.engine = engine
        self.events = deque()
        self.cancelled = []

    def submit(self, samples):
        self.samples = samples
        self.engine.submit(samples, self.events)
        return self

    async def get(self):
        while not self.events:
            self.engine.step()
        return self.events.popleft()

    def empty(self):
        return True

    async def score(self, row, top):
        return self.engine.score(row, top)

    def cancel(self, samples) -> None:
        self.cancelled += samples


def parse(body, served=SERVED):
    return (parse_chat if "messages" in body else parse_completion)(json.dumps(body).encode(), served)


def whole_of(engine, body, served=SERVED):
    request = parse(body, served)
    return json.loads(asyncio.run(ApiResponse(request, served, Steps(engine)).whole()))


def chunks_of(engine, body, served=SERVED):
    async def collect():
        request = parse({**body, "stream": True}, served)
        return [part async for part in ApiResponse(request, served, Steps(engine)).stream()]

    *events, last = b"".join(asyncio.run(collect())).decode("ascii").removesuffix("\n\n").split("\n\n")
    assert last == "data: [DONE]"
    return [json.loads(event.removeprefix("data: ")) for event in events]


def joined(chunks, index):
    """Return (text, reason, choices) that a client reads for one choice of a stream."""
    choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    text = "".join(choice["text"] if "text" in choice else choice["delta"].get("content", "") for choice in choices)
    assert [choice["finish_reason"] for choice in choices[:-1]] == [None] * (len(choices) - 1)
    return text, choices[-1]["finish_reason"], choices


def test_a_stop_cuts_text_and_ends_its_sample() -> None:
    engine, body = Engine(MODEL, TOKENIZER), {"prompt": "hi", "max_tokens": 40, "seed": 11}
    [choice] = whole_of(engine, {**body, "logprobs": 0})["choices"]
    text = choice["text"]
    for start in range(0, len(text) - 3, 15):
        stop = text[start : start + 3]
        [part] = whole_of(engine, {**body, "logprobs": 0, "stop": stop})["choices"]
        assert part["text"] == text[: text.index(stop)]
        assert part["finish_reason"] == "stop"
        shown = part["logprobs"]["tokens"]
        assert shown == choice["logprobs"]["tokens"][: len(shown)]
        streamed = joined(chunks_of(engine, {**body, "stop": stop}), 0)
        assert streamed[:2] == (part["text"], "stop")
    engine = Engine(script_model(*ids_of("ABCDE")), TOKENIZER)
    request = parse({"messages": HI, "temperature": 0, "stop": "B"})
    worker = Steps(engine)
    asyncio.run(ApiResponse(request, SERVED, worker).whole())
    assert worker.cancelled == worker.samples
    assert len(worker.samples) == 1


def test_the_calculators_turns_are_parts() -> None:
    engine, body = Engine(script_model(*ids_of(SCRIPT)), TOKENIZER), {"messages": HI, "temperature": 0}
    whole, chunks = whole_of(engine, body), chunks_of(engine, body)
    assert (whole["object"], chunks[0]["object"]) == ("chat.completion", "chat.completion.chunk")
    [choice] = whole["choices"]
    kinds = [("text", "Y"), ("python", "12*3"), ("python_output", "36"), ("text", "Z")]
    content = [{"type": kind, "text": text} for kind, text in kinds]
    assert choice["message"] == {"role": "assistant", "content": "YZ", "refusal": None, "parts": content}
    assert choice["finish_reason"] == "stop"
    deltas = [choice["delta"] for choice in joined(chunks, 0)[2]]
    assert (deltas[0], deltas[-1]) == ({"role": "assistant", "content": ""}, {})
    streamed = list(chain.from_iterable(delta.get("parts", ()) for delta in deltas))
    assert "".join(part["text"] for part in streamed if part["type"] == "python") == "12*3"
    assert "".join(part["text"] for part in streamed if part["type"] == "python_output") == "36"
    assert "".join(delta.get("content", "") for delta in deltas) == "YZ"


def test_log_probabilities_around_a_call_leave_the_calculators_answer_out() -> None:
    engine = Engine(script_model(*ids_of(SCRIPT)), TOKENIZER)
    [choice] = whole_of(engine, {"prompt": ids_of("[assistant_start]"), "temperature": 0, "logprobs": 0})["choices"]
    tokens = "".join(choice["logprobs"]["tokens"])
    assert tokens == "Y<|python_start|>12*3<|python_end|>Z<|assistant_end|>"


def test_calls_that_follow_at_once_stay_apart() -> None:
    """A call that the calculator refuses has no answer before the next call."""
    request = parse({"messages": HI, "stream": True})
    response, deltas = ApiResponse(request, SERVED, Steps(Engine(MODEL, TOKENIZER))), []
    [(sample, choice)] = response.choices.items()
    for token in ids_of("[python_start]1+[python_end][python_start]2[python_end]"):
        response.dispatch([Event(sample, token)])
        deltas += [news["delta"] for news in choice.new_deltas()]
    kinds = [("python", ""), ("python", "1"), ("python", "+"), ("text", "")]
    kinds += [("python", ""), ("python", "2"), ("text", "")]
    streamed = chain.from_iterable(delta.get("parts", ()) for delta in deltas)
    assert list(streamed) == [{"type": kind, "text": text} for kind, text in kinds]


@pytest.mark.parametrize("prompts", [["hi", "The dog"], [[72, 105], [ID["<|bos|>"], 0xF0, 0x9F, 66]]])
def test_an_echo_scores_the_prompt_as_a_plain_forward_does(prompts) -> None:
    body = {"prompt": prompts, "max_tokens": 3, "echo": True, "logprobs": 2, "n": 2, "seed": 4}
    request, engine = parse(body), Engine(MODEL, TOKENIZER)
    samples = chain.from_iterable(tokens_of(engine.generate(request.prompts)))
    for choice, tokens in zip(whole_of(engine, body)["choices"], samples, strict=True):
        number = choice["index"] // 2
        prompt, found, added = list(request.prompts[number].tokens), choice["logprobs"], request.added_tokens[number]
        assert choice["text"].startswith(TOKENIZER.decode(prompt[added:]))
        row = [*prompt, *tokens][: added + len(found["tokens"])]
        logprobs = MODEL(torch.tensor([row]))[0].log_softmax(-1)
        expected = [None, *(float(logprobs[i, token]) for i, token in enumerate(row[1:]))][added:]
        assert found["token_logprobs"] == [one if one is None else pytest.approx(one, abs=1e-5) for one in expected]
        for logprob, top in zip(found["token_logprobs"], found["top_logprobs"], strict=True):
            assert logprob is None or (logprob in top.values() and len(top) in (2, 3))
    for choice in whole_of(engine, {**body, "temperature": 0, "n": 1})["choices"]:
        found = choice["logprobs"]
        for logprob, top in list(zip(found["token_logprobs"], found["top_logprobs"], strict=True))[-3:]:
            assert logprob == max(top.values())


def test_an_echo_of_an_empty_prompt_is_empty() -> None:
    """Also where texts begin with nothing: the token that the model continues was added here, and is counted."""
    tokenizer = copy(TOKENIZER)
    tokenizer.prefix = ()
    served, body = replace(SERVED, tokenizer=tokenizer), {"temperature": 0, "echo": True, "max_tokens": 9}
    engine = Engine(script_model(*ids_of("[bos]ABC[assistant_end]")), tokenizer)
    for prompt, text, read in (
        ([""], ["ABC"], 1),
        (["", "A"], ["ABC", "ABC"], 2),
        ([[ID["<|bos|>"]]], ["<|bos|>ABC"], 1),
    ):
        whole = whole_of(engine, {**body, "prompt": prompt}, served)
        assert [choice["text"] for choice in whole["choices"]] == text
        assert whole["usage"]["prompt_tokens"] == read
        chunks = chunks_of(engine, {**body, "prompt": prompt}, served)
        assert [joined(chunks, number)[0] for number in range(len(text))] == text
    first, second = whole_of(engine, {**body, "prompt": ["", "A"], "logprobs": 0}, served)["choices"]
    shown = ["A", "B", "C", "<|assistant_end|>"]
    assert first["logprobs"]["tokens"] == second["logprobs"]["tokens"] == shown
    assert [choice["logprobs"]["token_logprobs"][0] is None for choice in (first, second)] == [False, True]


def test_the_token_that_ends_a_completion_has_a_log_probability() -> None:
    """Clients that score prompts leave out the one token that they let be generated: it has to be there."""
    engine = Engine(script_model(*ids_of("ABC[assistant_end]D")), TOKENIZER)
    body = {"prompt": "A", "temperature": 0, "echo": True, "max_tokens": 9, "logprobs": 0}
    whole = whole_of(engine, body)
    [choice] = whole["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("ABC", "stop")
    assert choice["logprobs"]["tokens"] == ["A", "B", "C", "<|assistant_end|>"]
    assert whole["usage"]["completion_tokens"] == 2
    chunks = chunks_of(engine, {"prompt": "A", "temperature": 0, "echo": True})
    assert joined(chunks, 0)[:2] == ("ABC", "stop")


def test_log_probabilities_of_a_chat_are_a_plain_forwards() -> None:
    """As OpenAI's clients read them, whole and in a stream: each token of the text, and the likeliest beside it."""
    body = {"messages": HI, "n": 2, "seed": 4, "max_tokens": 30, "logprobs": True, "top_logprobs": 3}
    engine = Engine(MODEL, TOKENIZER)
    [prompt] = parse(body).prompts
    [samples] = tokens_of(engine.generate([prompt]))
    whole, chunks = whole_of(engine, body), chunks_of(engine, body)
    for choice, tokens in zip(whole["choices"], samples, strict=True):
        found = choice["logprobs"]["content"]
        plain = MODEL(torch.tensor([[*prompt.tokens, *tokens]]))[0].log_softmax(-1)[len(prompt.tokens) - 1 :]
        shown = [number for number, token in enumerate(tokens) if token < 256]  # others have no text
        assert len(found) == len(shown) > 8
        for number, entry in zip(shown, found, strict=True):
            assert entry["bytes"] == [tokens[number]]  # the tokenizer of this test: a byte each
            assert entry["token"] == bytes(entry["bytes"]).decode(errors="backslashreplace")
            assert entry["logprob"] == pytest.approx(float(plain[number, tokens[number]]), abs=1e-5)
            likeliest = plain[number].topk(3)
            assert [one["logprob"] for one in entry["top_logprobs"]] == pytest.approx(
                likeliest.values.tolist(), abs=1e-5
            )
            for one, token in zip(entry["top_logprobs"], likeliest.indices.tolist(), strict=True):
                assert one["bytes"] == ([token] if token < 256 else None)
        raw = bytes(byte for entry in found for byte in entry["bytes"])
        assert raw.decode(errors="replace") == choice["message"]["content"]
        text, _, deltas = joined(chunks, choice["index"])
        assert text == choice["message"]["content"]
        parts = [delta["logprobs"] for delta in deltas if delta["logprobs"]]
        assert list(chain.from_iterable(part["content"] for part in parts)) == found
        assert len(parts) > 5  # they come with their text
    [without] = whole_of(engine, {"messages": HI, "seed": 4, "max_tokens": 30})["choices"]
    assert without["logprobs"] is None
    assert without["message"] == whole["choices"][0]["message"]
    [alone] = whole_of(engine, {**body, "n": 1, "top_logprobs": 0})["choices"]
    assert {len(entry["top_logprobs"]) for entry in alone["logprobs"]["content"]} == {0}
    expected = [entry["logprob"] for entry in whole["choices"][0]["logprobs"]["content"]]
    assert [entry["logprob"] for entry in alone["logprobs"]["content"]] == pytest.approx(expected, abs=1e-5)


def test_log_probabilities_of_a_chat_leave_the_calculator_out() -> None:
    engine = Engine(script_model(*ids_of(SCRIPT)), TOKENIZER)
    body = {"messages": HI, "temperature": 0, "logprobs": True}
    [choice] = whole_of(engine, body)["choices"]
    assert [entry["token"] for entry in choice["logprobs"]["content"]] == ["Y", "Z"]
    assert choice["message"]["content"] == "YZ"
    # Those of a stop are there, though its text is not.
    [choice] = whole_of(engine, {**body, "stop": "Y"})["choices"]
    assert ([entry["token"] for entry in choice["logprobs"]["content"]], choice["message"]["content"]) == (["Y"], "")
    choices = joined(chunks_of(engine, {**body, "stop": "Y"}), 0)[2]
    assert [entry["token"] for one in choices if one["logprobs"] for entry in one["logprobs"]["content"]] == ["Y"]
