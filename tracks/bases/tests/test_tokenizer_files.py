"""The tokenizer of a folder, beside `transformers`: roles of tokens, and chat templates in their forms."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import transformers

from nanochat.chat import render_conversation
from nanochat.errors import UserError
from nanochat.protocols import Message
from tracks.bases.definition import Wanted
from tracks.bases.sources import open_source
from tracks.bases.tests.public_models import (
    CHATML,
    VOCABULARY,
    change,
    save_folder,
)
from tracks.bases.tokenizer import PublicTokenizer


@pytest.mark.parametrize(
    ("options", "special", "listed"),
    [
        ({}, ["<|im_end|>"], []),  # the eos_token
        ({"eos_token": {"__type": "AddedToken", "content": "<|im_end|>", "special": False}}, ["<|im_end|>"], []),
        ({"image_token": "<think>"}, ["<|im_end|>", "<think>"], []),
        ({"extra_special_tokens": {"one": "<think>"}}, ["<|im_end|>", "<think>"], []),
        ({"model_specific_special_tokens": {"one": "<think>"}}, ["<|im_end|>", "<think>"], []),
        ({"extra_special_tokens": ["<think>", "<|im_end|>"]}, ["<|im_end|>"], ["<think>"]),
        ({"additional_special_tokens": [{"__type": "AddedToken", "content": "<think>"}]}, ["<|im_end|>"], ["<think>"]),
        ({"additional_special_tokens": None, "extra_special_tokens": None}, ["<|im_end|>"], []),
    ],
)
def test_a_token_with_a_role_is_special(
    options: dict[str, Any], special: list[str], listed: list[str], tmp_path: Path
) -> None:
    """Whatever tokenizer.json says; one in a list is so in messages, and a plain text may have it: `transformers`."""
    save_folder("llama", tmp_path)
    file = tmp_path / "tokenizer.json"
    state = json.loads(file.read_text(encoding="utf-8"))
    for token in state["added_tokens"]:
        token["special"] &= not token["content"].startswith("<|im_")
    file.write_text(json.dumps(state), encoding="utf-8")
    change(tmp_path / "tokenizer_config.json", **options)
    definition = open_source(str(tmp_path)).definition
    ours, theirs = PublicTokenizer(definition), transformers.AutoTokenizer.from_pretrained(tmp_path)
    names = ["<|im_start|>", "<|im_end|>", "<think>"]
    assert [name for name in names if name in ours.core.special_tokens] == special
    assert list(definition.listed) == listed
    assert [name for name in names if name in ours.special_tokens] == sorted(
        {"<|im_start|>", *special, *listed}, key=names.index
    )
    for text in ("".join(f"a {name}b\n" for name in names), "x"):
        expected = theirs(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        assert ours.encode(text) == expected
    said: list[Message] = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "I."}]
    assert render_conversation({"messages": said}, ours)[0] == theirs.apply_chat_template(said)["input_ids"]
    assert ours.turn_end == 2


# One that has blanks, line breaks and blocks where joining could lose them.
DEFAULT_TEXT = "  {% if true %}\n{% endif %}" + CHATML + "\n   \n"


WITH_TOOLS_TEXT = "\n  {%- for tool in tools -%}\n  {{ tool.name }}\n  {%- endfor %}\n" + CHATML + "{# end #} \n"


@pytest.mark.parametrize("form", ["files", "list", "object", "hub"])
def test_a_model_may_have_templates_by_name(
    form: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `transformers` chooses: `tool_use` where a conversation has tools."""
    mirror = tmp_path_factory.mktemp("mirror")
    monkeypatch.setenv("NANOCHAT_HUB", str(mirror))
    tmp_path = mirror / "models" / "someone" / "llama"
    save_folder("llama", tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    theirs.chat_template = named = {"default": DEFAULT_TEXT, "tool_use": WITH_TOOLS_TEXT, "rag": "{{ 1 }}" + CHATML}
    theirs.save_pretrained(tmp_path)
    assert (tmp_path / "additional_chat_templates" / "tool_use.jinja").is_file()
    if form in ("list", "object"):
        (tmp_path / "chat_template.jinja").unlink()
        shutil.rmtree(tmp_path / "additional_chat_templates")
        rows = [{"name": name, "template": text} for name, text in named.items()]
        change(tmp_path / "tokenizer_config.json", chat_template=rows if form == "list" else named)
    source = open_source("hub:someone/llama" if form == "hub" else str(tmp_path))
    assert sorted(source.templates) == ["default", "rag", "tool_use"]
    assert ("additional_chat_templates/rag.jinja" in source.hashes()) == (form in ("files", "hub"))
    ours = PublicTokenizer(source.definition)
    messages: list[Message] = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "I."}]
    for tools in (None, [{"name": "add"}, {"name": "mul"}], []):
        conversation: Any = {"messages": messages, "tools": tools} if tools is not None else {"messages": messages}
        ids, mask = render_conversation(conversation, ours)
        assert ids == theirs.apply_chat_template(messages, tools)["input_ids"]
        assert ours.decode([id for id, one in zip(ids, mask, strict=True) if one]) == "I.<|im_end|>"
    assert open_source(str(tmp_path), wanted=Wanted("rag")).definition.template == "{{ 1 }}" + CHATML


def test_a_template_in_a_file_replaces_those_of_the_config(tmp_path: Path) -> None:
    """As in `transformers`; an empty file is none."""
    save_folder("llama", tmp_path)
    change(tmp_path / "tokenizer_config.json", chat_template=[{"name": "tool_use", "template": "{{ 2 }}" + CHATML}])
    assert open_source(str(tmp_path)).templates == ["default"]
    (tmp_path / "chat_template.jinja").write_text("")
    assert open_source(str(tmp_path), wanted=Wanted("tool_use")).templates == ["tool_use"]
    change(tmp_path / "tokenizer_config.json", chat_template=None)
    assert open_source(str(tmp_path)).templates == []


def test_templates_of_which_none_is_the_default(tmp_path: Path) -> None:
    save_folder("llama", tmp_path, template=None)
    rows = [{"name": "tool_use", "template": CHATML}, {"name": "rag", "template": CHATML}]
    change(tmp_path / "tokenizer_config.json", chat_template=rows)
    with pytest.raises(UserError, match="its chat templates are tool_use, rag, and none is the default: choose one"):
        open_source(str(tmp_path))
    assert open_source(str(tmp_path), wanted=Wanted("tool_use")).definition.template == CHATML


def test_added_tokens_beyond_the_embedding_are_left_out(tmp_path: Path) -> None:
    """As in Gemma 3's vocabulary, whose last token is for images."""
    save_folder("gemma3", tmp_path)
    file = tmp_path / "tokenizer.json"
    state = json.loads(file.read_text(encoding="utf-8"))
    token = {**state["added_tokens"][0], "id": VOCABULARY, "content": "<image>"}
    file.write_text(json.dumps({**state, "added_tokens": [*state["added_tokens"], token]}), encoding="utf-8")
    tokenizer = PublicTokenizer(open_source(str(tmp_path)).definition)
    assert "<image>" not in tokenizer.special_tokens
    assert len(tokenizer.token_lengths()) <= VOCABULARY
