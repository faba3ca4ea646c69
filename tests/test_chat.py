"""Conversations rendered token by token, malformed conversations, and replies parsed back to text."""

import copy
import json
import re
from itertools import chain, groupby
from typing import Any

import pytest
from conftest import each_row
from engines import ID, TOKENIZER, ids_of
from hypothesis import given
from hypothesis import strategies as st
from made_chats import chat

from nanochat.chat import (
    Piece,
    Reply,
    chat_top_k,
    chat_top_p,
    check_conversation,
    fitted_prompt,
    parts,
    render_conversation,
    render_prompt,
)
from nanochat.errors import TemplateError
from nanochat.tokenizer import Tokenizer

CALCULATION = json.loads("""[{"type": "text", "text": "there are "}, {"type": "python", "text": "12+34"},
    {"type": "python_output", "text": "46"}, {"type": "text", "text": " 글자 🙂"}]""")


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train(["how many letters are there? there are 12+34 글자, 46 in all. be brief\n\n"] * 3, 300)


def talk(*contents, system=None):
    """A conversation of user and assistant in turn, after a system message if there is one."""
    before = [{"role": "system", "content": system}] if system is not None else []
    return {"messages": before + chat(*contents)["messages"]}


def spelled(tokenizer, *stretches):
    """Ids and mask of stretches of text, each second one of which is learned; [x] stands for <|x|>."""
    rows = [ids_of(stretch, tokenizer) for stretch in stretches]
    return [*chain(*rows)], [number % 2 for number, ids in enumerate(rows) for _ in ids]


def test_ids_and_mask_of_a_conversation(tokenizer) -> None:
    conversation = talk("how many?", CALCULATION, "there?", "there are 46")
    expected = spelled(
        tokenizer,
        "[bos][user_start]how many?[user_end][assistant_start]",
        "there are [python_start]12+34[python_end]",
        "[output_start]46[output_end]",
        " 글자 🙂[assistant_end]",
        "[user_start]there?[user_end][assistant_start]",
        "there are 46[assistant_end]",
    )
    before = copy.deepcopy(conversation)
    assert render_conversation(conversation, tokenizer) == expected
    assert conversation == before
    empty = spelled(tokenizer, "[bos][user_start][user_end][assistant_start]", "[assistant_end]")
    assert render_conversation(talk("", ""), tokenizer) == empty


def test_an_answer_that_is_marked_is_not_learned(tokenizer) -> None:
    conversation = talk("how many?", CALCULATION, "there?", "there are 46")
    ids, mask = render_conversation(conversation, tokenizer)
    second = ids.index(tokenizer.special_tokens["<|user_end|>"], mask.index(1))  # of the question between the answers
    first, last = conversation["messages"][1::2]
    for mark in ({"weight": 0}, {"train": False}, {"weight": 1, "train": False}):
        first.update(mark)
        assert render_conversation(conversation, tokenizer) == (ids, [0] * second + mask[second:])
    for message in conversation["messages"]:
        message.update(weight=None, train=None)  # files often have the keys in every message
    last.update(weight=0)
    first.update(weight=1, train=True)
    assert render_conversation(conversation, tokenizer) == (ids, mask[:second] + [0] * len(ids[second:]))


def test_the_system_message_stands_before_the_first_question_and_a_prompt_ends_with_assistant_start(tokenizer) -> None:
    merged = render_conversation(talk("be brief\n\nhow many?", "46", "more?"), tokenizer)
    assert render_conversation(talk("how many?", "46", "more?", system="be brief"), tokenizer) == merged
    system, question = ([{"type": "text", "text": text}] for text in ("be brief", "how many?"))
    assert render_conversation(talk(question, "46", "more?", system=system), tokenizer) == merged
    conversation = talk("how many?", CALCULATION, "there?", "46", system="be brief")
    prompt = render_prompt(conversation, tokenizer)
    whole, _ = render_conversation(conversation, tokenizer)
    assert prompt[-1] == tokenizer.special_tokens["<|assistant_start|>"]
    assert whole == prompt + spelled(tokenizer, "46[assistant_end]")[0]
    assert render_prompt(talk("how many?", CALCULATION, "there?", system="be brief"), tokenizer) == prompt


def test_a_prompt_that_is_too_long_loses_its_oldest_turns_and_then_the_beginning_of_a_question(tokenizer) -> None:
    contents = ["how many?", CALCULATION, "there?", "there are 46", "be brief", "46", "letters?"]
    for system, answers in ((None, []), ("be brief", []), ("be brief", ["46"])):
        conversation = talk(*contents, *answers, system=system)
        prompts = [render_prompt(talk(*contents[start:], system=system), tokenizer) for start in (0, 2, 4, 6)]
        sizes = [len(prompt) for prompt in prompts]
        assert sizes == sorted(sizes, reverse=True)
        for room in range(sizes[-1], sizes[0] + 5):
            cut = next(number for number, size in enumerate(sizes) if size <= room)
            expected = prompts[cut], cut > 0
            assert fitted_prompt(conversation, tokenizer, room, 0) == expected
            # An answer may take up to half of the context.
            assert fitted_prompt(conversation, tokenizer, room + min(9, room), min(9, room)) == expected
    conversation = talk("there?", "46", "how many letters are there?")
    last = render_prompt(talk("how many letters are there?"), tokenizer)
    for room in range(4, len(last)):
        ids, shortened = fitted_prompt(conversation, tokenizer, room, 0)
        assert (len(ids), shortened) == (room, True)
        assert ids == last[:2] + last[len(last) - (room - 2) :]


CONTENT = "its content is neither a string nor a list of parts with a `text` and a `type` in text"
QUESTION, ANSWER = talk("a", "b")["messages"]
CALLING = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]}
RESULT = {"role": "tool", "content": "46"}


def asked(*messages: dict[str, Any]) -> dict[str, Any]:
    """Return a question, and what follows it, as a conversation."""
    return {"messages": [QUESTION, *messages]}


# conversation | words of the sentence
MALFORMED = """
[] | has a list `messages`
{"messages": []} | at least one message
{"messages": ["a"]} | has a list `messages`
{"messages": [{"role": "user"}]} | message 1: CONTENT
{"messages": [{"role": "assistant", "content": "a"}]} | message 1: its role is 'assistant' where 'user' is due
{"messages": talk("a")["messages"] * 2} | message 2: its role is 'user' where 'assistant' is due
{"messages": talk("a", "b", system="c")["messages"][::2]} | message 2: its role is 'assistant'
talk(system="c") | the system message needs a user message after it
talk("a", None) | message 2: CONTENT, python, python_output
talk("a", []) | message 2: CONTENT
talk("a", ["b"]) | message 2: CONTENT
talk("a", [{"type": "text", "text": None}]) | message 2: CONTENT
talk("a", [{"type": "image", "text": "b"}]) | message 2: CONTENT
talk("a", [{"type": [], "text": "b"}]) | message 2: CONTENT
talk(CALCULATION) | message 1: CONTENT
talk("a", system=CALCULATION) | message 1: CONTENT
asked(ANSWER, RESULT) | message 3: its role is 'tool' where 'user' is due
asked(CALLING, QUESTION) | message 3: its role is 'user' where 'tool' is due
asked(CALLING, RESULT, QUESTION) | message 4: its role is 'user' where 'assistant' is due
asked({**CALLING, "tool_calls": "b"}) | message 2: its tool_calls are no list of objects
asked({**CALLING, "tool_calls": []}) | message 2: CONTENT
asked(CALLING, {**RESULT, "content": None}) | message 3: CONTENT
asked({**ANSWER, "weight": 0.5}) | message 2: its weight is 0.5; an answer is learned, 1 or true, or not, 0 or false
asked({**ANSWER, "train": "no"}) | message 2: its train is 'no'; an answer is learned
asked(ANSWER, {**QUESTION, "train": True}) | message 3: it has train: true, and only what the assistant says can be
"""


@each_row("expression words", MALFORMED)
def test_malformed_conversations(expression, words, tokenizer) -> None:
    conversation, sentence = eval(expression), words.replace("CONTENT", CONTENT)
    for check in (check_conversation, lambda conversation: render_conversation(conversation, tokenizer)):
        with pytest.raises(ValueError, match=re.escape(sentence)):
            check(conversation)


def test_our_own_tokenizers_have_no_turns_of_tools(tokenizer) -> None:
    conversation = asked(CALLING, RESULT, RESULT, ANSWER)
    check_conversation(conversation)
    for render in (render_conversation, render_prompt):
        with pytest.raises(TemplateError, match="only chat templates of public models write"):
            render(conversation, tokenizer)
    # Files often have the key in every message.
    plain = talk("how many?", "46")
    same = {"messages": [{**message, "tool_calls": None} for message in plain["messages"]]}
    assert render_conversation(same, tokenizer) == render_conversation(plain, tokenizer)


BEGINS = {
    ID["<|python_start|>"]: "python",
    ID["<|python_end|>"]: "text",
    ID["<|output_start|>"]: "python_output",
    ID["<|output_end|>"]: "text",
}


def pieces_of(tokens: list[int], tokenizer: Tokenizer = TOKENIZER):
    reply = Reply(tokenizer)
    return [piece for token in tokens for piece in reply.feed(token)] + reply.close()


@given(st.lists(st.integers(0, 255) | st.sampled_from(list(BEGINS)) | st.sampled_from(list("é한🙂".encode()))))
def test_joined_pieces_equal_each_part_decoded_at_once(tokens) -> None:
    plain, kind = [], "text"
    for special, run in groupby(tokens, lambda token: token in BEGINS):
        run = list(run)
        if special:
            plain += [Piece(BEGINS[token], "") for token in run]
            kind = BEGINS[run[-1]]
        else:
            plain.append(Piece(kind, TOKENIZER.decode(run)))
    assert parts(pieces_of(tokens)) == parts(plain)


@given(st.text())
def test_half_a_character_is_never_shown(text) -> None:
    reply, shown = Reply(TOKENIZER), ""
    for token in text.encode():
        shown += "".join(piece.text for piece in reply.feed(token))
        assert text.startswith(shown)
    assert shown == text
    assert reply.close() == []


GENERATIONS = [
    ({}, (None, None)),
    ({"top_k": 20, "top_p": 0.8}, (20, 0.8)),
    ({"top_k": 0, "top_p": 1}, (0, 1.0)),
    ({"top_k": "20", "top_p": 2}, (None, None)),
    ({"top_k": True, "top_p": None}, (None, None)),
]


@pytest.mark.parametrize(("generation", "expected"), GENERATIONS)
def test_how_a_public_model_is_sampled(generation: dict[str, Any], expected: tuple) -> None:
    manifest = {"config": {}, "public": {"generation": generation}}
    assert (chat_top_k(manifest), chat_top_p(manifest)) == expected
    assert chat_top_k({"config": None}) is None  # trained here


def test_a_rendered_answer_is_parsed_back(tokenizer) -> None:
    for content in (CALCULATION, CALCULATION[1:3], CALCULATION[1:2] * 2, CALCULATION[:1], []):
        ids, _ = render_conversation(talk("?", content or ""), tokenizer)
        start = ids.index(tokenizer.special_tokens["<|assistant_start|>"])
        assert parts(pieces_of(ids[start + 1 :], tokenizer)) == content
    for name in ("bos", "assistant_start", "assistant_end", "user_start", "user_end"):
        assert pieces_of([97, ID[f"<|{name}|>"], 98]) == [Piece("text", "a"), Piece("text", "b")]
