"""Added tokens and their roles, from all files of a folder, beside `transformers`."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import transformers

from nanochat.chat import render_conversation
from nanochat.errors import UserError
from nanochat.protocols import Message
from tracks.bases.added import CLASSES, ROLES, roles
from tracks.bases.definition import Wanted
from tracks.bases.sources import open_source
from tracks.bases.tests.public_models import CHATML, VOCABULARY, save_folder
from tracks.bases.tokenizer import PublicTokenizer

FRAMED = "{{ bos_token }}" + CHATML
MESSAGES: list[Message] = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "I am."}]
CASES = ("llama", "qwen2", "qwen3", "gemma3")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for case in CASES:
        save_folder(case, folder / case, template=FRAMED)
    return folder


def write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


def copy(saved: Path, case: str, folder: Path, **options: Any) -> Path:
    """Copy a model with other options in its tokenizer_config.json, and no roles; None: without the option."""
    shutil.copytree(saved / case, folder)
    file = folder / "tokenizer_config.json"
    before = {name: value for name, value in json.loads(file.read_text()).items() if name not in ROLES}
    write(file, {name: value for name, value in (before | options).items() if value is not None})
    return folder


def assert_alike(folder: Path, text: str = "Hi <tool>a<|im_start|> b") -> PublicTokenizer:
    """Compare a plain text, a conversation, and the tokens with a role."""
    definition = open_source(str(folder)).definition
    ours, theirs = PublicTokenizer(definition), transformers.AutoTokenizer.from_pretrained(folder)
    named = theirs.special_tokens_map  # a class adds names that the vocabulary has not
    assert definition.variables == {role: name for role, name in named.items() if f'"{name}"' in definition.tokenizer}
    assert ours.encode(text) == theirs(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    assert render_conversation({"messages": MESSAGES}, ours)[0] == theirs.apply_chat_template(MESSAGES)["input_ids"]
    return ours


# ---- roles ----


@pytest.mark.parametrize("case", CASES)
def test_roles_in_a_special_tokens_map(case: str, saved: Path, tmp_path: Path) -> None:
    """It counts before the config, and only where the config lists no tokens."""
    folder = copy(saved, case, tmp_path / "model", bos_token="<pad>", pad_token="<pad>")
    end = {"content": "<|im_end|>", "lstrip": False}
    write(folder / "special_tokens_map.json", {"bos_token": "<bos>", "eos_token": end, "pad_token": None})
    assert assert_alike(folder).definition.variables["bos_token"] == "<bos>"
    assert "special_tokens_map.json" in open_source(str(folder)).hashes()
    options = json.loads((folder / "tokenizer_config.json").read_text())
    write(folder / "tokenizer_config.json", {**options, "added_tokens_decoder": {}})
    assert open_source(str(folder)).definition.variables["bos_token"] == "<pad>"
    assert transformers.AutoTokenizer.from_pretrained(folder).bos_token == "<pad>"


@pytest.mark.parametrize("case", CASES)
def test_roles_that_no_file_names(case: str, saved: Path, tmp_path: Path) -> None:
    """A class may have them; config.json's ids say what begins and ends a text."""
    folder = copy(saved, case, tmp_path / "model")
    (folder / "tokenizer_config.json").unlink()
    file = folder / "tokenizer.json"
    if case in ("qwen2", "qwen3"):  # a name that the class gives roles to
        file.write_text(file.read_text(encoding="utf-8").replace("<|im_end|>", "<|endoftext|>"), encoding="utf-8")
    text = file.read_text(encoding="utf-8")
    theirs = transformers.AutoTokenizer.from_pretrained(folder).special_tokens_map
    definition = open_source(str(folder)).definition
    assert definition.variables == {role: token for role, token in theirs.items() if f'"{token}"' in text}
    assert definition.variables or case == "llama"
    assert definition.bos == (2 if case in ("qwen2", "qwen3") else 0)
    assert 2 in definition.ends


def test_gemma_begins_with_bos_whatever_names_it(saved: Path, tmp_path: Path) -> None:
    """The class names it too."""
    bos = PublicTokenizer(open_source(str(saved / "gemma3")).definition).special_tokens["<bos>"]
    options: list[dict[str, Any]] = [{"tokenizer_class": None}, {"tokenizer_class": "GemmaTokenizerFast"}]
    for number, changes in enumerate(options):
        folder = copy(saved, "gemma3", tmp_path / str(number), **changes)
        ours = PublicTokenizer(open_source(str(folder)).definition)
        theirs = transformers.AutoTokenizer.from_pretrained(folder)
        ids, _ = render_conversation({"messages": MESSAGES}, ours)
        assert ids == theirs.apply_chat_template(MESSAGES)["input_ids"]
        assert ids[0] == bos


@pytest.mark.parametrize("name", CLASSES)
def test_roles_of_classes(name: str) -> None:
    """Each class gives the roles that it has in `transformers`."""
    theirs = getattr(transformers, name)().special_tokens_map
    assert CLASSES[name] == {role: token for role, token in theirs.items() if role in ROLES}
    known = frozenset(CLASSES[name].values())
    assert roles({"tokenizer_class": f"{name}Fast"}, None, None, "llama", known) == {
        role: CLASSES[name].get(role) for role in ROLES
    }
    assert set(roles({"tokenizer_class": name}, None, None, "llama", frozenset()).values()) == {None}


def test_a_role_that_is_no_text(saved: Path, tmp_path: Path) -> None:
    folder = copy(saved, "llama", tmp_path / "model")
    write(folder / "special_tokens_map.json", {"bos_token": 5})
    with pytest.raises(UserError, match=r"its special_tokens_map\.json has bos_token=5, which is no text"):
        open_source(str(folder))


# ---- tokens ----


def token(content: str, **changes: bool) -> dict[str, Any]:
    flags = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False, "special": True}
    return {"content": content, **flags, **changes}


@pytest.mark.parametrize("case", ["llama", "gemma3"])
@pytest.mark.parametrize(
    ("id", "listed", "template"),
    [
        (None, token("<tool>", special=False, normalized=True), FRAMED),
        (None, {"content": "<tool>"}, FRAMED),
        (None, token("<|extra|>"), FRAMED.replace("<|im_start|>", "<|extra|>")),
        (1, token("<|im_start|>", rstrip=True), FRAMED.replace("'<|im_start|>'", "'<|im_start|>\n'")),
        (1, token("<|im_start|>", special=False), FRAMED),  # what is special stays it
    ],
)
def test_tokens_that_only_a_config_lists(
    case: str, id: int | None, listed: dict[str, Any], template: str, saved: Path, tmp_path: Path
) -> None:
    size = PublicTokenizer(open_source(str(saved / case)).definition).vocab_size
    named = {"bos_token": "<bos>", "eos_token": "<|im_end|>"}
    folder = copy(saved, case, tmp_path / "model", added_tokens_decoder={str(id or size): listed}, **named)
    (folder / "chat_template.jinja").write_text(template)
    assert_alike(folder)


def test_the_same_tokens_in_both_files_change_nothing(saved: Path, tmp_path: Path) -> None:
    text = (saved / "llama" / "tokenizer.json").read_text(encoding="utf-8")
    listed = {str(one["id"]): one for one in json.loads(text)["added_tokens"]}
    for one in listed.values():
        del one["id"]
    folder = copy(saved, "llama", tmp_path / "model", added_tokens_decoder=listed, eos_token="<|im_end|>")
    assert open_source(str(folder)).definition.tokenizer == text


@pytest.mark.parametrize("listed", [5, {"x": token("<a>")}, {"5": "<a>"}, {"5": {"content": 1}}, {"5": {}}])
def test_lists_that_cannot_be(listed: Any, saved: Path, tmp_path: Path) -> None:
    folder = copy(saved, "llama", tmp_path / "model", added_tokens_decoder=listed)
    with pytest.raises(UserError, match=r"its tokenizer_config\.json (lists the token|has an added_tokens_decoder)"):
        open_source(str(folder))


# ---- tokens beyond the embedding ----


def beyond(saved: Path, folder: Path, listed: bool, **options: Any) -> Path:
    """Copy a model with 30 more tokens than its embedding has rows for, added in either file."""
    more = {VOCABULARY + number: token(f"<|new{number}|>") for number in range(30)}
    if listed:
        options = {"added_tokens_decoder": {str(id): one for id, one in more.items()}, **options}
    copy(saved, "llama", folder, **{"eos_token": "<|im_end|>", **options})
    if not listed:
        state = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
        state["added_tokens"] += [{"id": id, **one} for id, one in more.items()]
        write(folder / "tokenizer.json", state)
    return folder


@pytest.mark.parametrize("listed", [False, True])
def test_tokens_without_a_row_are_dropped_if_nothing_uses_them(listed: bool, saved: Path, tmp_path: Path) -> None:
    source = open_source(str(beyond(saved, tmp_path / "model", listed)))
    assert sorted(source.dropped) == sorted(f"<|new{number}|>" for number in range(30))
    assert not set(source.dropped) & PublicTokenizer(source.definition).special_tokens.keys()
    assert open_source(str(saved / "llama")).dropped == []


@pytest.mark.parametrize("listed", [False, True])
def test_tokens_without_a_row_that_are_used(listed: bool, saved: Path, tmp_path: Path) -> None:
    folder = beyond(saved, tmp_path / "a", listed)
    (folder / "chat_template.jinja").write_text(CHATML.replace("<|im_end|>", "<|new29|>"))
    with pytest.raises(UserError, match=r"its chat template needs the token <\|new29\|>, and its embedding has no row"):
        open_source(str(folder))
    assert open_source(str(folder), wanted=Wanted("chatml")).dropped
    for role in ("bos_token", "eos_token"):
        folder = beyond(saved, tmp_path / role, listed, **{role: "<|new29|>"})
        with pytest.raises(UserError, match=rf"its {role} needs the token <\|new29\|>, and its embedding has no row"):
            open_source(str(folder))
