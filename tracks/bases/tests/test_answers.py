"""Masks found by rendering, compared with what is marked."""

from typing import Any

import pytest

from nanochat.chat import render_conversation
from nanochat.errors import TemplateError, UserError
from tracks.bases.templates import joined_template
from tracks.bases.tests.chat_templates import MARKED, TEMPLATES, THINKING, conversations, theirs_with
from tracks.bases.tests.public_models import CHATML, public


@pytest.mark.parametrize("name", ["chatml", "stripped", "thinking", "marked"])
def test_an_answer_that_is_marked_is_not_learned(name: str) -> None:
    """The others are learned as before; where a template writes two answers as one, that is said."""
    ours = public("llama", template=TEMPLATES[name], ends=(2, 6, 0))
    said = [("user", "The fox?"), ("assistant", "Yes."), ("user", "The dog?"), ("assistant", "No."), ("user", "!")]
    messages: list[Any] = [{"role": role, "content": text} for role, text in [*said, ("assistant", "Good.")]]
    ids, mask = render_conversation({"messages": messages}, ours)
    for number, text in ((1, "Yes."), (3, "No."), (5, "Good.")):
        marked = [*messages]
        marked[number] = {**messages[number], "weight": 0}
        same, less = render_conversation({"messages": marked}, ours)
        assert same == ids
        dropped = ours.decode([id for id, one, other in zip(ids, mask, less, strict=True) if one != other])
        assert text in dropped
        assert len(dropped) < len(text) + 40
        assert sum(less) < sum(mask)
    joined = "{% for message in messages %}{% generation %}{{ message.content }}{% endgeneration %}{% endfor %}"
    ours = public("llama", template=joined)
    render_conversation({"messages": messages}, ours)
    with pytest.raises(TemplateError, match="which answers are those that are not to be learned"):
        render_conversation({"messages": marked}, ours)


@pytest.mark.parametrize("case", ["llama", "gemma3"])
def test_a_template_that_marks_is_taken_at_its_word(case: str) -> None:
    ours, theirs = public(case, template=MARKED), theirs_with(MARKED, case)
    for messages in conversations(200):
        found = theirs.apply_chat_template(messages, return_assistant_tokens_mask=True, return_dict=True)
        assert render_conversation({"messages": messages}, ours)[1] == found["assistant_masks"]


@pytest.mark.parametrize("case", ["llama", "gemma3"])
@pytest.mark.parametrize("name", ["chatml", "stripped", "thinking"])
def test_masks(name: str, case: str) -> None:
    """What is learned is each answer as the template writes it, and the end of its turn."""
    ours = public(case, template=TEMPLATES[name], ends=(2, 6, 0))
    end = "<end_of_turn>" if name == "stripped" else "<|im_end|>"
    for messages in conversations(200):
        ids, mask = render_conversation({"messages": messages}, ours)
        answers = [message["content"] for message in messages if message["role"] == "assistant"]
        if name == "stripped":
            answers = [answer.strip() for answer in answers]
        if name == "thinking":
            answers = [
                answer.split("</think>")[-1].lstrip("\n") if "</think>" in answer else answer for answer in answers
            ]
        learned = ours.decode([id for id, one in zip(ids, mask, strict=True) if one])
        expected = "".join(answer + end for answer in answers)
        # A line that begins with blanks may share a token with what stands before it.
        assert learned.replace("\n", "").replace(" ", "") == expected.replace("\n", "").replace(" ", "")
        ends = {id for id, one in zip(ids, mask, strict=True) if one and id in (2, 6)}
        assert sum(one for id, one in zip(ids, mask, strict=True) if id in ends) == len(answers)


THOUGHTLESS = "<think>\n\n</think>\n\nJ.<|im_end|>"  # how KEEPING writes a last answer without a thought


@pytest.mark.parametrize("case", ["llama", "gemma3"])
@pytest.mark.parametrize(
    ("name", "answers", "learned"),
    [
        ("keeping", ["<think>\nhm\n</think>\n\nI."], "<think>\nhm\n</think>\n\nI.<|im_end|>"),
        ("keeping", ["I."], "<think>\n\n</think>\n\nI.<|im_end|>"),
        # An old answer has lost its thoughts.
        ("keeping", ["<think>\nhm\n</think>\n\nI.\n", "J."], "I.\n<|im_end|><think>\n\n</think>\n\nJ.<|im_end|>"),
        # Also with tags behind the thought, or in it.
        ("keeping", ["<think>\nhm\n</think>\n\nUse <b>it</b>", "J."], "Use <b>it</b><|im_end|>" + THOUGHTLESS),
        (
            "keeping",
            ["<think></b></think>\n\n<ul><li>I</li></ul>.", "J."],
            "<ul><li>I</li></ul>.<|im_end|>" + THOUGHTLESS,
        ),
        ("spaced", ["I.", "\nJ.\n"], " I. <|im_end|> J. <|im_end|>"),
        ("stripped", ["\n\nI.\n"], "I.<end_of_turn>"),
        ("chatml", ["", "\n"], "<|im_end|>\n\n<|im_end|>"),  # its line break is one token with that of the prompt
    ],
)
def test_an_answer_is_what_follows_its_prompt(name: str, answers: list[str], learned: str, case: str) -> None:
    ours = public(case, template=TEMPLATES[name], ends=(2, 6, 0))
    messages = [
        message
        for answer in answers
        for message in ({"role": "user", "content": "Who?"}, {"role": "assistant", "content": answer})
    ]
    ids, mask = render_conversation({"messages": messages}, ours)
    assert ours.decode([id for id, one in zip(ids, mask, strict=True) if one]) == learned


@pytest.mark.parametrize("case", ["llama", "gemma3"])
def test_a_thought_of_the_last_answer_may_be_dropped_too(case: str) -> None:
    """As DeepSeek-R1's distilled models write: the prompt opens a thought that no answer in a text has."""
    template = THINKING.replace("\n<think>\n\n</think>\n\n' }}", "\n<think>\n' }}")
    ours = public(case, template=template, ends=(2, 6, 0))
    answer = "<think>\nhm </p>\n</think>\n\nWrite <p>a</p>"
    messages = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": answer}]
    ids, mask = render_conversation({"messages": messages}, ours)
    assert ours.decode([id for id, one in zip(ids, mask, strict=True) if one]) == "Write <p>a</p><|im_end|>"


@pytest.mark.parametrize(
    "template",
    [
        "{# answers stand between {% generation %} #}" + CHATML,
        "{% if false %}{% generation %}{% endgeneration %}{% endif %}" + CHATML,
        joined_template({"default": CHATML, "tool_use": MARKED}),
    ],
    ids=["a comment", "never taken", "of tools alone"],
)
def test_a_template_that_marks_nothing_learns_as_one_without_marks(template: str) -> None:
    messages = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "I."}]
    ids, mask = render_conversation({"messages": messages}, ours := public("llama", template=template))
    assert ours.decode([id for id, one in zip(ids, mask, strict=True) if one]) == "I.<|im_end|>"


def test_a_template_in_which_nothing_can_be_found() -> None:
    """It shows the length of what the assistant says: with marks the text is another one."""
    ours = public(
        "llama", template="{% for m in messages | reverse %}{{ m.content | length }}{{ m.content }}{% endfor %}"
    )
    with pytest.raises(UserError, match="which tokens the assistant writes"):
        render_conversation(
            {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]}, ours
        )
