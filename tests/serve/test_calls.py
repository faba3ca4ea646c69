"""Calls of tools in texts: what is one and what is not, and pieces that join to the whole."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanochat.log import Record
from nanochat.protocols import CallForm
from nanochat.serve.calls import CallFinder

TAGS = CallForm("<tool_call>", "</tool_call>", "name", "arguments")  # Qwen, Hermes
BARE = CallForm("", "", "name", "parameters")  # Llama 3
FORMS = {"tags": TAGS, "bare": BARE}


def found(form: CallForm, pieces: list[str]) -> tuple[str, list[Record]]:
    """Return the text that is shown and the calls."""
    finder = CallFinder(form, {"add", "날씨"})
    shown = "".join(map(finder.feed, pieces))
    rest, calls = finder.close()
    return shown + rest, calls


def test_a_call_without_arguments_and_one_that_is_nested_too_deep() -> None:
    for written in ('{"name": "add"}', '{"name": "add", "arguments": null}', '{"name": "add", "arguments": {}}'):
        assert functions(found(TAGS, [f"<tool_call>{written}</tool_call>"])[1]) == [("add", {})]
    deep = f'<tool_call>{{"name": "add", "arguments": {{"a": {"[" * 100_000}'
    assert found(TAGS, [deep]) == (deep, [])


def test_one_call_where_no_more_are_wanted() -> None:
    """A client says so, or a template that refuses a message with two."""
    text = '{"name": "add", "parameters": {}}; {"name": "날씨", "parameters": {}}'
    for form, several in ((BARE, False), (BARE._replace(several=False), True)):
        finder = CallFinder(form, {"add", "날씨"}, several)
        assert finder.feed(text) == ""
        shown, calls = finder.close()
        assert (shown, functions(calls)) == ("", [("add", {})])
        assert re.fullmatch("[A-Za-z0-9]{9}", calls[0]["id"])


def functions(calls: list[Record]) -> list[tuple[str, Any]]:
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]


# form | what the model writes | text that is shown | calls. ADD 1; stands for the JSON of a call of `add` with a = 1.
CALLS = r"""
tags | <tool_call>\nADD 1;\n</tool_call> | | add 1
tags | Let me see.\n<tool_call>ADD 2;</tool_call> | Let me see. | add 2
tags | <tool_call>ADD 1; | | add 1
tags | <tool_call>ADD 1;</tool_call>\n<tool_call>ADD "}</tool_call>";</tool_call> | | add 1 add "}</tool_call>"
tags | <tool_call>[ADD 1;, ADD 2;]</tool_call> | | add 1 add 2
tags | <tool_call>{"name": "날씨", "arguments": {"a": "부산"}}</tool_call> | | 날씨 "부산"
bare | ADD 1; | | add 1
tags | <tool_call>ADD 1;</tool_call>\n\nDone. | Done. | add 1
tags | <tool_call>ADD 1;</tool_call><tool_call>{"name" | <tool_call>{"name" | add 1
tags | <think>A <tool_call> now.</think>\n<tool_call>ADD 1;</tool_call> | <think>A <tool_call> now.</think> | add 1
tags | <tool_call>{"name": "add", "arguments": {"a": 1}}{"name": 3}</tool_call> | {"name": 3}</tool_call> | add 1
tags | <tool_call>ADD 1;</tool_call>\nNext:\n<tool_call>ADD 2;</tool_call> | Next: | add 1 add 2
bare | ADD 1; Done. | Done. | add 1
bare | \nADD 1;; ADD 2; | | add 1 add 2
"""
# What is none is shown as it is.
TEXTS = r"""
tags |
tags | Two and two is ADD 2;.
tags | <tool_cal
tags | <tool_call>add(1)</tool_call>
tags | <tool_call>{"name": "add", "arguments": {"a": 1}
tags | <tool_call>{"name": "other", "arguments": {"a": 1}}</tool_call>
tags | <tool_call>{"name": "add", "arguments": "1"}</tool_call>
tags | <tool_call>{"name": ["add"], "arguments": {}}</tool_call>
tags | <tool_call>[]</tool_call>
tags | <tool_call>1</tool_call>
tags | <tool_call>[ADD 1;, {"name": "other", "arguments": {}}]</tool_call>
tags | <tool_call>{"name": "add", "arguments": {"a": NaN}}</tool_call>
tags | <tool_call>{"name": "add", "arguments": {"a": 1e999}}</tool_call>
tags | <tool_call>{"name": "add", "arguments": {"a": "\ud800"}}</tool_call>
tags | <tool_call> and <tool_call> again
bare | It is ADD 1;
bare | {"a": 1}
bare | [1, 2]
bare | { and so on
"""


def rows(table: str) -> list[list[str]]:
    found = []
    for line in table.strip().splitlines():
        form, text, *others = (cell.strip().replace("\\n", "\n") for cell in line.split(" |"))
        call = rf'{{"name": "add", "{FORMS[form].arguments}": {{"a": \1}}}}'
        found.append([form, re.sub("ADD (.*?);", call, text), *others])
    return found


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_calls_are_found_however_the_text_is_cut(size: int) -> None:
    for form, text, shown, calls in rows(CALLS):
        said, made = found(FORMS[form], [text[place : place + size] for place in range(0, len(text), size)])
        assert said.strip() == shown
        assert (
            " ".join(f"{name} {json.dumps(given['a'], ensure_ascii=False)}" for name, given in functions(made)) == calls
        )
        assert len({call["id"] for call in made}) == len(made)
        assert {call["type"] for call in made} == {"function"}


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_what_is_no_call_is_text(size: int) -> None:
    for form, text in rows(TEXTS):
        assert found(FORMS[form], [text[place : place + size] for place in range(0, len(text), size)]) == (text, [])


@given(st.lists(st.sampled_from(["<tool_call>", "</tool_call>", "<tool", '{"name": "add"', "}", "a", "\n", "[", "]"])))
def test_pieces_join_to_what_the_whole_text_gives(pieces: list[str]) -> None:
    for form in FORMS.values():
        shown, calls = found(form, pieces)
        assert (shown, functions(calls)) == (lambda pair: (pair[0], functions(pair[1])))(found(form, ["".join(pieces)]))
        if not calls:
            assert shown == "".join(pieces)
