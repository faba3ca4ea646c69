"""Replies: what comes piece by piece is what the whole says, and never half a character."""

from itertools import groupby

import pytest
from engines import ID, TOKENIZER
from hypothesis import given
from hypothesis import strategies as st

from nanochat.chat import render
from nanochat.replies import Piece, Reply, parts
from nanochat.tokenizer import Tokenizer

BEGINS = {
    "<|python_start|>": "python",
    "<|python_end|>": "text",
    "<|output_start|>": "python_output",
    "<|output_end|>": "text",
}
KINDS = {ID[name]: kind for name, kind in BEGINS.items()}
CALCULATION = [
    {"type": "text", "text": "그것은 "},
    {"type": "python", "text": "12+34"},
    {"type": "python_output", "text": "46"},
    {"type": "text", "text": " 개다 🙂"},
]


def pieces_of(tokens: list[int], tokenizer: Tokenizer = TOKENIZER) -> list[Piece]:
    reply = Reply(tokenizer)
    return [piece for token in tokens for piece in reply.add(token)] + reply.close()


@given(st.lists(st.integers(0, 255) | st.sampled_from(list(KINDS)) | st.sampled_from(list("é한🙂".encode()))))
def test_the_pieces_joined_are_each_part_decoded_at_once(tokens: list[int]):
    plain, kind = [], "text"
    for opens, run in groupby(tokens, lambda token: token in KINDS):
        run = list(run)
        if opens:
            plain += [Piece(KINDS[token], "") for token in run]
            kind = KINDS[run[-1]]
        else:
            plain.append(Piece(kind, TOKENIZER.decode(run)))
    assert parts(pieces_of(tokens)) == parts(plain)


@given(st.text())
def test_half_a_character_is_never_shown(text: str):
    reply, shown = Reply(TOKENIZER), ""
    for token in text.encode():
        shown += "".join(piece.text for piece in reply.add(token))
        assert text.startswith(shown)
    assert shown == text
    assert reply.close() == []


def test_a_rendered_answer_comes_back_as_it_was():
    tokenizer = Tokenizer.train(["그것은 12+34 개다, 46 개다 🙂"] * 3, 300)
    question = {"role": "user", "content": "?"}
    for content in (CALCULATION, CALCULATION[1:3], CALCULATION[1:2] * 2, CALCULATION[:1], []):
        answer = {"role": "assistant", "content": content or ""}
        ids, _ = render({"messages": [question, answer]}, tokenizer)
        start = ids.index(tokenizer.special_tokens["<|assistant_start|>"])
        assert parts(pieces_of(ids[start + 1 :], tokenizer)) == content


@pytest.mark.parametrize("name", ["bos", "assistant_start", "assistant_end", "user_start", "user_end"])
def test_what_means_nothing_within_an_answer_is_not_shown(name: str):
    assert pieces_of([97, ID[f"<|{name}|>"], 98]) == [Piece("text", "a"), Piece("text", "b")]
