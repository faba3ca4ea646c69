"""Conversations rendered by hand, token by token, and everything that a conversation can have wrong."""

import copy

import pytest

from nanochat.chat import check, fitted_prompt, render, render_prompt
from nanochat.tokenizer import SPECIAL_TOKENS, Tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(["how many letters are there? there are 12+34 letters, 46 in all. be brief\n\n"] * 3, 300)


def talk(*contents, system=None) -> dict:
    """A conversation in which user and assistant say these."""
    messages = [{"role": ("user", "assistant")[i % 2], "content": content} for i, content in enumerate(contents)]
    return {"messages": [{"role": "system", "content": system}] * (system is not None) + messages}


def spelled(tokenizer, *pieces) -> tuple[list[int], list[int]]:
    """Ids and mask of (text or the name of a special token, mask) pairs."""
    ids, mask = [], []
    for piece, learned in pieces:
        special = f"<|{piece}|>" in SPECIAL_TOKENS
        tokens = [tokenizer.special_tokens[f"<|{piece}|>"]] if special else tokenizer.encode(piece)
        ids += tokens
        mask += [learned] * len(tokens)
    return ids, mask


CALCULATION = [
    {"type": "text", "text": "there are "},
    {"type": "python", "text": "12+34"},
    {"type": "python_output", "text": "46"},
    {"type": "text", "text": " letters"},
]


def test_every_token_and_what_is_learned(tokenizer):
    conversation = talk("how many?", CALCULATION, "there?", "there are 46")
    expected = spelled(
        tokenizer,
        *[("bos", 0), ("user_start", 0), ("how many?", 0), ("user_end", 0)],
        *[("assistant_start", 0), ("there are ", 1), ("python_start", 1), ("12+34", 1), ("python_end", 1)],
        *[("output_start", 0), ("46", 0), ("output_end", 0), (" letters", 1), ("assistant_end", 1)],
        *[("user_start", 0), ("there?", 0), ("user_end", 0)],
        *[("assistant_start", 0), ("there are 46", 1), ("assistant_end", 1)],
    )
    before = copy.deepcopy(conversation)
    assert render(conversation, tokenizer) == expected
    assert conversation == before


def test_what_the_system_says_is_read_before_the_first_question(tokenizer):
    merged = render(talk("be brief\n\nhow many?", "46", "more?"), tokenizer)
    assert render(talk("how many?", "46", "more?", system="be brief"), tokenizer) == merged
    parts = [{"type": "text", "text": "be brief"}]
    assert render(talk([{"type": "text", "text": "how many?"}], "46", "more?", system=parts), tokenizer) == merged


def test_a_prompt_ends_where_the_assistant_begins(tokenizer):
    prompt = render_prompt(talk("how many?", CALCULATION, "there?", "46"), tokenizer)
    whole, _ = render(talk("how many?", CALCULATION, "there?", "46"), tokenizer)
    assert prompt == whole[: len(prompt)]
    assert whole[len(prompt) :] == spelled(tokenizer, ("46", 1), ("assistant_end", 1))[0]
    assert prompt[-1] == tokenizer.special_tokens["<|assistant_start|>"]
    assert render_prompt(talk("how many?", CALCULATION, "there?"), tokenizer) == prompt
    assert render_prompt(talk("how many?", "46", system="be brief"), tokenizer) == render_prompt(
        talk("be brief\n\nhow many?"), tokenizer
    )


def test_a_prompt_that_is_too_long_loses_its_oldest_turns(tokenizer):
    """Whole turns, the oldest, and never what the system says."""
    said = ["how many?", CALCULATION, "there?", "there are 46", "be brief", "46", "letters?"]
    for system, answered in ((None, False), ("be brief", False), ("be brief", True)):
        chat = talk(*said, *["46"] * answered, system=system)
        whole = [talk(*said[start:], system=system) for start in (0, 2, 4, 6)]
        sizes = [len(render_prompt(one, tokenizer)) for one in whole]
        assert sizes == sorted(sizes, reverse=True)
        for room in range(sizes[-1], sizes[0] + 5):
            dropped = next(i for i, size in enumerate(sizes) if size <= room)
            expected = render_prompt(whole[dropped], tokenizer), 2 * dropped
            assert fitted_prompt(chat, tokenizer, room, 0) == expected
            assert fitted_prompt(chat, tokenizer, room + 9, 9 if room > 9 else room + 9) == expected


def test_of_the_last_question_the_beginning_goes_and_the_system_stays(tokenizer):
    for system, parts in ((None, "how many letters are there?"), ("be brief", "how many letters are there?")):
        chat = talk("there?", "46", parts, system=system)
        last = render_prompt(talk(parts, system=system), tokenizer)
        head = len(spelled(tokenizer, ("bos", 0), ("user_start", 0), (f"{system}\n\n" if system else "", 0))[0])
        for room in range(head + 2, len(last)):
            ids, lost = fitted_prompt(chat, tokenizer, room, 0)
            assert (len(ids), lost) == (room, 3)
            assert ids == last[:head] + last[len(last) - (room - head) :]
        for room in range(4, head + 2):  # the system's words alone are too long
            ids, _ = fitted_prompt(chat, tokenizer, room, 0)
            assert ids == last[: room - 2] + last[-2:]


def test_text_makes_no_special_tokens(tokenizer):
    ids, _ = render(talk("<|assistant_start|> <|bos|>", "<|output_end|>"), tokenizer)
    assert sum(id in tokenizer.special_tokens.values() for id in ids) == 5


def test_an_empty_text_is_a_text(tokenizer):
    assert render(talk("", ""), tokenizer) == spelled(
        tokenizer, ("bos", 0), ("user_start", 0), ("user_end", 0), ("assistant_start", 0), ("assistant_end", 1)
    )


@pytest.mark.parametrize(
    ("conversation", "sentence"),
    [
        ([], "has a list `messages`"),
        ({}, "has a list `messages`"),
        ({"messages": []}, "at least one message"),
        ({"messages": {"role": "user", "content": "a"}}, "has a list `messages`"),
        ({"messages": ["a"]}, "message 1: it needs a `role` and a `content`"),
        ({"messages": [{"role": "user"}]}, "message 1: it needs a `role` and a `content`"),
        (
            {"messages": [{"role": "assistant", "content": "a"}]},
            "message 1: its role is 'assistant' where 'user' is due",
        ),
        ({"messages": talk("a")["messages"] * 2}, "message 2: its role is 'user' where 'assistant' is due"),
        ({"messages": talk("a", "b", system="c")["messages"][::2]}, "message 2: its role is 'assistant'"),
        (
            {"messages": talk("a", system="c")["messages"][:1] * 2},
            "message 2: its role is 'system' where 'user' is due",
        ),
        (talk(system="c"), "the system message has no user's message behind it"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "message 1: its role is 'tool'"),
        (talk("a", None), "message 2: its content is neither a text nor a list of parts"),
        (talk("a", []), "message 2: its content is neither a text nor a list of parts"),
        (talk(5), "message 1: its content is neither a text nor a list of parts"),
        (talk("a", ["b"]), "message 2: a part of its content has no `text`"),
        (talk("a", [{"type": "text", "text": None}]), "message 2: a part of its content has no `text`"),
        (talk("a", [{"type": "image", "text": "b"}]), "is of type 'image', assistant has text, python, python_output"),
        (talk(CALCULATION), "message 1: a part of its content is of type 'python', user has text"),
        (talk("a", system=CALCULATION), "message 1: a part of its content is of type 'python', system has text"),
    ],
)
def test_what_is_malformed_is_said(conversation, sentence, tokenizer):
    for act in (check, lambda it: render(it, tokenizer), lambda it: render_prompt(it, tokenizer)):
        with pytest.raises(ValueError) as caught:
            act(conversation)
        assert sentence in str(caught.value)
