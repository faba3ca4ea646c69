"""Tokenizers of public models: ids and texts beside `transformers`, and what our code asks of a tokenizer."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models

from nanochat.chat import Reply, fitted_prompt, render_conversation, render_prompt, reply_parts
from nanochat.errors import UserError
from nanochat.tokenizer import Tokenizer
from tracks.bases.tests.public_models import (
    CHATML,
    SPECIAL,
    TEXT,
    public,
    save_tokenizer,
    texts,
    tokenizer_for,
)
from tracks.bases.tokenizer import FORMAT, PublicCore, PublicTokenizer

KINDS = ("llama", "llama-pieces", "gemma3")  # vocabularies of bytes, of pieces behind a blank, and of pieces


@pytest.mark.parametrize("case", KINDS)
def test_ids_and_texts(case: str, tmp_path: Path) -> None:
    theirs = save_tokenizer(case, tmp_path)
    ours = public(case)
    for text in texts():
        ids = ours.encode(text)
        assert ids == theirs(text, add_special_tokens=False)["input_ids"]
        decoded = theirs.decode(ids, clean_up_tokenization_spaces=False)
        if case == "llama-pieces" and text:  # the blank before a text stays: an answer may need it
            decoded = f" {decoded}"
        assert ours.decode(ids) == decoded
        # Token by token, as a server streams a reply.
        parts = reply_parts(ids, ours)
        assert "".join(part["text"] for part in parts) == decoded
        assert ours.token_lengths()[ids].sum() == len(decoded.encode())


@pytest.mark.parametrize("case", KINDS)
def test_batches_are_the_same(case: str) -> None:
    ours = public(case)
    some = texts(50)
    for ids, offsets in (ours.core.encode_batch(some, 7), ours.core.encode_arrow(pa.array(some), 7)):
        assert ids.dtype == np.uint32
        rows = [row.tolist() for row in np.split(ids, offsets[1:-1].astype(int))]
        assert rows == [[7, *ours.encode(text)] for text in some]
    ids, offsets = ours.core.encode_batch([])
    assert (len(ids), offsets.tolist()) == (0, [0])


@pytest.mark.parametrize("case", KINDS)
def test_text_is_never_a_special_token(case: str) -> None:
    ours = public(case)
    special = set(ours.special_tokens.values())
    assert set(ours.special_tokens) == set(SPECIAL)
    for name in SPECIAL:
        ids = ours.encode(f"a {name} b")
        assert not special & set(ids)
        assert ours.decode(ids) == f"{' ' * (case == 'llama-pieces')}a {name} b"
    assert ours.decode([ours.special_tokens["<|im_end|>"]]) == "<|im_end|>"  # its name, as with ours


def test_half_a_character() -> None:
    ours = public("llama")
    assert ours.decode(ours.encode("a\ud83d b")) == "a\ufffd b"
    assert ours.core.token_bytes(10**6) == b""  # an embedding may have more rows than there are tokens


def test_a_piece_that_only_looks_like_a_byte() -> None:
    """It is text, as the library reads it."""
    state = json.loads(tokenizer_for("gemma3").to_str())
    pieces = ["<0xZZ>", "<0x  >", "<0xé>", "<0x4🦊>", "<0x4a>"]
    state["model"]["vocab"] |= {piece: 680 + number for number, piece in enumerate(pieces)}
    ours = PublicCore(json.dumps(state))
    for number, piece in enumerate(pieces):
        expected = "J" if piece == "<0x4a>" else piece
        assert ours.decode([680 + number]) == ours.backend.decode([680 + number]) == expected


def test_where_a_text_begins() -> None:
    plain, gemma = public("llama"), public("gemma3")
    assert plain.begin("fox") == plain.encode("fox")
    assert gemma.begin("fox") == [0, *gemma.encode("fox")]
    assert plain.begin("") == gemma.begin("") == [0]  # something has to stand before the first token


@pytest.mark.parametrize("case", KINDS)
def test_its_file(case: str, tmp_path: Path) -> None:
    ours = public(case, day="2026-02-03")
    assert ours.save(tmp_path / "tokenizer.json") == ours.content_hash
    again = Tokenizer.load(tmp_path / "tokenizer.json")
    assert isinstance(again, PublicTokenizer)
    assert again.content_hash == ours.content_hash
    assert again.encode(TEXT[0]) == ours.encode(TEXT[0])
    assert (again.turn_ends, again.prefix, again.bos) == (ours.turn_ends, ours.prefix, ours.bos)
    assert f'"format": "{FORMAT}"' in (tmp_path / "tokenizer.json").read_text(encoding="utf-8")
    for change in ({"template": ""}, {"ends": (1,)}, {"prefix": (5,)}, {"day": "2026-02-04"}):
        assert public(case, **change).content_hash != ours.content_hash


def test_a_long_question_is_cut_at_its_beginning() -> None:
    """A template may write anything around it."""
    ours = public("llama")
    conversation = {"messages": [{"role": "user", "content": " ".join(map(str, range(200)))}]}
    ids, cut = fitted_prompt(conversation, ours, 100, 20)
    assert cut
    assert 70 < len(ids) <= 80
    text = ours.decode(ids)
    assert text.startswith("<|im_start|>user\n")
    assert text.endswith(" 198 199<|im_end|>\n<|im_start|>assistant\n")
    # As evaluations pass it, with the right answer.
    conversation["messages"].append({"role": "assistant", "content": "B"})
    assert fitted_prompt(conversation, ours, 100, 20) == (ids, cut)


def test_a_long_result_of_a_tool_stays_one() -> None:
    body = "(message.content + (message.tool_calls[0].function.name if message.tool_calls else ''))"
    ours = public("llama", template=CHATML.replace("message.content", body).replace("message['content']", body))
    call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f"}}]}
    result = {"role": "tool", "content": " ".join(map(str, range(200)))}
    old = [
        {"role": "user", "content": "old"},
        call,
        {"role": "tool", "content": "1"},
        {"role": "assistant", "content": "2"},
    ]
    messages = [*old, {"role": "user", "content": "Who?"}, call, result]
    ids, cut = fitted_prompt({"messages": messages}, ours, 130, 20)
    assert cut
    text = ours.decode(ids)
    assert text.startswith("<|im_start|>user\nWho?<|im_end|>")  # the first question went with all that followed it
    assert "<|im_start|>tool\n" in text
    assert text.endswith(" 198 199<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize("case", KINDS)
def test_the_token_of_a_letter_is_that_of_an_answer(case: str) -> None:
    """A vocabulary may have two for one letter, with a blank before it and without."""
    ours = public(case)
    letters = ("A", "B", "D")
    expected = []
    for letter in letters:
        answer = {"role": "assistant", "content": letter}
        ids, mask = render_conversation({"messages": [{"role": "user", "content": "Which?"}, answer]}, ours)
        expected.append(ids[mask.index(1)])
    assert ours.letter_tokens(letters) == ours.letter_tokens(letters) == expected
    assert [ours.decode([token]) for token in expected] == list(letters)
    assert public("llama-pieces", template="").letter_tokens(["A"]) == public("llama-pieces").encode("A")[:1]


@pytest.mark.parametrize("case", ["llama", "gemma3"])
@pytest.mark.parametrize(
    ("asks", "answers", "behind"),
    [
        ("", "<think>\n\n</think>\n\n", "<|im_start|>assistant\n<think>\n\n</think>\n\n"),  # as Qwen3
        ("<think>\n", "", "<|im_start|>assistant\n"),  # as DeepSeek-R1's distilled models
        ("", "", "<|im_start|>assistant\n"),
    ],
)
def test_a_letter_is_asked_for_where_an_answer_has_it(asks: str, answers: str, behind: str, case: str) -> None:
    """Behind an empty thought, if the template writes one: fine-tuning learns the letter there."""
    template = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}{{ '"
        + answers
        + "' }}"
        "{% endif %}{{ m.content + '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n" + asks + "' }}{% endif %}"
    )
    ours = public(case, template=template)
    question = {"role": "user", "content": "Which fox, A or B?"}
    asked = ours.letter_prompt(render_prompt({"messages": [question]}, ours))
    assert ours.decode(asked).endswith(f"Which fox, A or B?<|im_end|>\n{behind}")
    ids, _ = render_conversation({"messages": [question, {"role": "assistant", "content": "B"}]}, ours)
    assert ids[: len(asked)] == asked
    assert ids[len(asked)] == ours.letter_tokens(["A", "B"])[1]
    plain = public(case, template="")
    assert plain.letter_prompt([5, 6]) == [5, 6]
    # A last question that is written in another way than an answered one is left as it is.
    last = template.replace("{{ m.content", "{{ 'Q: ' if loop.last else '' }}{{ m.content")
    ours = public(case, template=last)
    prompt = render_prompt({"messages": [question]}, ours)
    assert ours.letter_prompt(prompt) == prompt


def test_no_calculator_is_called() -> None:
    reply = Reply(public("llama"))
    assert [piece.kind for token in range(300) for piece in reply.feed(token)].count("python") == 0


def test_what_cannot_be_read() -> None:
    with pytest.raises(UserError, match=r"its tokenizer\.json cannot be read"):
        PublicCore("{}")
    with pytest.raises(UserError, match="a decoder that is not known: none"):
        PublicCore(Backend(models.WordLevel({"a": 0}, "a")).to_str())
    with pytest.raises(UserError, match="has not the merges"):
        _ = public("llama").bpe
