"""The sandbox, the date, JSON, and templates that fail."""

import json

import pytest

from nanochat.chat import render_conversation, render_prompt
from nanochat.errors import UserError
from tracks.bases.template import JinjaTemplate
from tracks.bases.tests.chat_templates import CALLING, TOOL, TOOLS, theirs_with
from tracks.bases.tests.public_models import public, tokenizer_for


def test_marks_are_found_in_json_without_other_letters() -> None:
    template = CALLING.replace("tojson)", "tojson(ensure_ascii=true))")
    ours, theirs = public("llama", template=template, ends=(2, 6, 0)), theirs_with(template)
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": "더 \U0001f469", "b": "<|im_end|>"}}}
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    ids, _ = render_conversation({"messages": messages}, ours)
    plain = json.loads(json.dumps(messages).replace("<|im_end|>", "<end>"))
    same, _ = render_conversation({"messages": plain}, ours)
    assert same == theirs.apply_chat_template(plain)["input_ids"]
    assert ours.decode(ids).count("<|im_end|>") == 3
    assert ids.count(2) == 2


def test_the_date_is_that_of_the_file() -> None:
    """So that training can be repeated on another day."""
    ours = public("llama", template="{{ strftime_now('%d %b %Y') }}<|im_end|>", day="2026-02-03")
    assert ours.decode(render_prompt({"messages": [{"role": "user", "content": "?"}]}, ours)) == "03 Feb 2026<|im_end|>"


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("{% for x in %}", "its chat template cannot be read"),
        ("{% include '/etc/passwd' %}", "the chat template"),
        ("{{ raise_exception('no system') }}", "the chat template refuses the conversation: no system"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "the chat template refuses the conversation"),
        ("{{ cycler.__init__.__globals__.os.system('touch x') }}", "the chat template refuses the conversation"),
        ("{{ (messages | first).update({'a': 1}) }}", "the chat template refuses the conversation"),
        ("{{ messages[100].content }}", "the chat template refuses the conversation"),
        ("{{ messages | first + 1 }}", "the chat template fails for the conversation"),
        ("{{ 1 / 0 }}", "the chat template fails for the conversation"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "the chat template fails for the conversation"),
        ("{% for i in range(10**9) %}x{% endfor %}", "the chat template fails for the conversation"),
    ],
)
def test_templates_that_fail(source: str, sentence: str) -> None:
    backend = tokenizer_for("llama")
    with pytest.raises(UserError) as error:
        JinjaTemplate(source, {}, backend, [2], "2026-01-01").render_prompt(
            {"messages": [{"role": "user", "content": "?"}]}
        )
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_json_is_not_escaped_for_html() -> None:
    ours = public("llama", template=TOOLS)
    assert ours.template is not None
    text = ours.template.renderer.text([{"role": "user", "content": "?"}], [TOOL])  # ty: ignore[unresolved-attribute]  # a JinjaTemplate
    assert json.dumps(TOOL, ensure_ascii=False) in text
