"""The templates for models without one."""

import json
from typing import Any

import pytest

from nanochat.chat import render_conversation, render_prompt
from nanochat.errors import UserError
from tracks.bases.templates import TEMPLATES, TURN_ENDS, named_template, usual_template, with_values
from tracks.bases.tests.chat_templates import conversations, theirs_with
from tracks.bases.tests.public_models import public

EXPECTED = {
    "chatml": "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\nA<|im_end|>\n",
    "gemma": "<bos><start_of_turn>user\nS\n\nQ<end_of_turn>\n<start_of_turn>model\nA<end_of_turn>\n",
    "llama3": "<bos><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nQ<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nA<|eot_id|>",
}
MESSAGES = [
    {"role": "system", "content": "S"},
    {"role": "user", "content": "Q"},
    {"role": "assistant", "content": "A"},
]


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates(name: str) -> None:
    ours = public("llama", template=TEMPLATES[name], ends=(2, 6))
    ids, _ = render_conversation({"messages": MESSAGES}, ours)
    assert ours.decode(ids) == EXPECTED[name]
    prompt = ours.decode(render_prompt({"messages": MESSAGES}, ours))
    assert EXPECTED[name].startswith(prompt)
    assert EXPECTED[name][len(prompt) :].startswith("A")
    theirs = theirs_with(TEMPLATES[name])
    for messages in conversations(50):
        assert render_conversation({"messages": messages}, ours)[0] == theirs.apply_chat_template(messages)["input_ids"]


def test_a_vocabulary_without_the_end_of_a_turn_ends_it_as_a_text() -> None:
    for name, turn_end in TURN_ENDS.items():
        assert named_template(name, {turn_end}) == TEMPLATES[name]
        special = {"bos_token": "<bos>", "eos_token": "<|im_end|>"}
        ours = public("llama", template=named_template(name, set()), ends=(2, 6), variables=special)
        ids, mask = render_conversation({"messages": MESSAGES}, ours)
        assert ours.decode(ids) == EXPECTED[name].replace(turn_end, "<|im_end|>")  # the eos_token there
        learned = [id for id, one in zip(ids, mask, strict=True) if one]
        assert learned == [*ours.encode("A"), ours.special_tokens["<|im_end|>"]]


def test_values_are_set_first() -> None:
    """As if they were arguments of `transformers`."""
    turns = "{% for message in messages %}{{ b }}{{ message.content }}{% endfor %}<|im_end|>"
    body = "  {% if a %}y{% endif %}\n\n{{ a | tojson }}{{ enable_thinking }}" + turns
    values: Any = {"a": {"k": [1, None, "<é\n\"'"], "é🦊": "🦊"}, "b": 'x"\\y', "enable_thinking": False, "c": None}
    ours = public("llama", template=with_values(body, json.dumps(values)), ends=(2, 6))
    ids, _ = render_conversation({"messages": MESSAGES}, ours)
    assert ours.decode(ids) == theirs_with(body).apply_chat_template(MESSAGES, tokenize=False, **values)
    for wrong in (
        "x",
        "[1]",
        '{"a b": 1}',
        '{"a": 1',
        '{"a": NaN}',
        "[" * 100_000,
        '{"a": ' + 900 * "[" + 900 * "]" + "}",
    ):
        with pytest.raises(UserError, match="is no JSON object whose keys are names"):
            with_values(body, wrong)
    for half in ('{"a": "\\ud800"}', '{"a": [{"\\udc00": 1}]}', '{"a": "\udc80"}'):
        with pytest.raises(UserError, match="half a character, which is no text: write the whole one"):
            with_values(body, half)
    with pytest.raises(UserError, match="messages is what the template is rendered with"):
        with_values(body, '{"a": 1, "messages": []}')
    for word in ("none", "True", "not"):
        with pytest.raises(UserError, match=f"--template-values: {word} is a word of Jinja, and cannot be set"):
            with_values(body, json.dumps({"a": 1, word: 1}))
    with pytest.raises(UserError, match="this model has none"):
        with_values("", "{}")


def test_the_usual_one_follows_from_the_vocabulary() -> None:
    for name, turn_end in TURN_ENDS.items():
        assert usual_template({"<s>", turn_end}) == TEMPLATES[name]
    assert usual_template({"<s>", "</s>"}) == ""
