"""What texts begin and end with, chat templates, and vocabularies that are another model's."""

import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from nanochat.errors import UserError
from tracks.bases.definition import Wanted, has_too_few
from tracks.bases.sources import open_source
from tracks.bases.templates import CHATML as OURS
from tracks.bases.tests.public_models import CHATML, change, change_model, save_folder, tokenizer_for
from tracks.bases.tokenizer import PublicTokenizer


def test_what_a_text_begins_and_ends_with(saved: Path, tmp_path: Path) -> None:
    definition = open_source(str(saved)).definition
    assert (definition.bos, list(definition.prefix), list(definition.ends)) == (0, [], [2, 0])
    save_folder("gemma3", tmp_path)
    definition = open_source(str(tmp_path)).definition
    assert (definition.bos, list(definition.prefix)) == (0, [0])  # as its tokenizer.json says


def test_templates(saved: Path, tmp_path: Path) -> None:
    assert open_source(str(saved)).definition.template == CHATML
    assert open_source(str(saved), wanted=Wanted("chatml")).definition.template == OURS
    mine = "{% for message in messages %}{{ message.content }}{% endfor %}"
    (tmp_path / "mine.jinja").write_text(mine)
    assert open_source(str(saved), wanted=Wanted(str(tmp_path / "mine.jinja"))).definition.template == mine
    bare = tmp_path / "bare"
    save_folder("llama", bare, template=None)
    source = open_source(str(bare))
    assert (source.templates, source.definition.template) == ([], OURS)  # its vocabulary has <|im_end|>
    with pytest.raises(UserError, match="--template=mine is none of chatml, gemma, llama3, default, and no file"):
        open_source(str(saved), wanted=Wanted("mine"))


@pytest.mark.parametrize(
    ("template", "role"),
    [
        ("hello", "user"),
        ("{# nothing #}", "user"),
        ("# A page\n\nWho? I.\n", "user"),
        ("{{ messages[1].content }}<|im_end|>", "user"),
        ("{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}", "assistant"),
        ("{% for m in messages if m.role == 'assistant' %}{{ m.content }}{% endfor %}", "user"),
        ("{% for m in messages %}{{ m.role }}{% endfor %}", "user"),
    ],
)
def test_a_template_writes_what_is_said(template: str, role: str, saved: Path, tmp_path: Path) -> None:
    """Any text file is a template that Jinja can read, one that is asked for and the model's own."""
    own = tmp_path / "model"
    shutil.copytree(saved, own)
    (own / "chat_template.jinja").write_text(template)
    for folder, wanted in ((saved, Wanted(str(own / "chat_template.jinja"))), (own, Wanted())):
        with pytest.raises(UserError) as error:
            open_source(str(folder), wanted=wanted)
        sentence = f"its chat template does not write what the {role} says: choose another by --template"
        assert str(error.value) == f"{folder}: {sentence}"


def test_a_vocabulary_larger_than_the_embedding(tmp_path: Path) -> None:
    save_folder("llama", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        tensors[name] = tensors[name][:300].contiguous()
    save_file(tensors, tmp_path / "model.safetensors")
    change(tmp_path / "config.json", vocab_size=300)
    with pytest.raises(UserError, match=r"its vocabulary has \d+ tokens, and its embedding 300"):
        open_source(str(tmp_path))


def test_a_vocabulary_of_another_model(tmp_path: Path) -> None:
    """Of fewer tokens than an embedding may have rows to spare."""
    least = len(tokenizer_for("llama").get_vocab())
    for rows, named in ((least + 1024, ""), (least + 1025, f"{least + 1025:,}")):
        folder = tmp_path / str(rows)
        save_folder("llama", folder, vocab_size=rows)
        if not named:
            open_source(str(folder))
            continue
        with pytest.raises(UserError, match=f"its vocabulary has {least} tokens, and its embedding {named} rows: take"):
            open_source(str(folder))


@pytest.mark.parametrize(
    ("tokens", "rows", "too_few"),
    [
        (49_152, 49_152, False),  # SmolLM2
        (151_665, 151_936, False),  # Qwen2.5, small ones
        (151_665, 152_064, False),  # and large ones
        (262_144, 262_144, False),  # Gemma 3
        (128_256, 128_256, False),  # Llama 3
        (50_257, 51_200, False),
        (49_152, 128_256, True),  # SmolLM2's for Llama 3
        (128_256, 151_936, True),  # Llama 3's for Qwen2.5
        (32_000, 49_152, True),  # Llama 2's for SmolLM2
        (151_665, 262_144, True),  # Qwen2.5's for Gemma 3
    ],
)
def test_how_many_rows_may_be_without_a_token(tokens: int, rows: int, too_few: bool) -> None:
    assert has_too_few(tokens, rows) == too_few


def test_a_text_that_no_token_is_for(tmp_path: Path) -> None:
    """A vocabulary of digits alone: what its template writes behind an answer is not found, its eos_token ends one."""
    save_folder("llama", tmp_path)
    digits = {str(digit): digit + 20 for digit in range(10)}
    change_model(tmp_path, vocab=digits, merges=[])
    definition = open_source(str(tmp_path)).definition
    tokenizer = PublicTokenizer(definition)
    assert (tokenizer.encode("I."), tokenizer.encode("12")) == ([], [21, 22])
    assert definition.ends[0] == 2


def test_the_day_counts_only_where_a_template_asks_for_it(saved: Path, tmp_path: Path) -> None:
    assert open_source(str(saved)).definition.day == ""
    (tmp_path / "dated.jinja").write_text("{{ strftime_now('%Y') }}" + CHATML)
    assert open_source(str(saved), wanted=Wanted(str(tmp_path / "dated.jinja"))).definition.day
