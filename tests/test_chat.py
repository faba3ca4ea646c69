"""Conversations rendered by hand, token by token, and everything that a conversation can have wrong."""

import copy

import pytest

from nanochat.chat import check, render, render_prompt
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
