"""Folders and files of models: read whole, or refused in one sentence that names what is wrong."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from bad_hub import BadHub
from huggingface_hub import constants
from safetensors.torch import load_file, save_file

from nanochat.chat import render_conversation
from nanochat.errors import UserError
from nanochat.paths import read_sha256
from nanochat.protocols import Message
from tracks.bases.sources import Wanted, has_too_few, open_source, weights_of
from tracks.bases.templates import CHATML as OURS
from tracks.bases.tests.public_models import CHATML, VOCABULARY, model_of, save_folder, save_gguf, tokenizer_for
from tracks.bases.tokenizer import PublicTokenizer

Damage = Callable[[Path], object]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model in three files and an index."""
    folder = tmp_path_factory.mktemp("model") / "llama"
    save_folder("llama", folder, shard="100KB")
    return folder


def test_one_file_counts_before_an_index_that_another_save_has_left(saved: Path, tmp_path: Path) -> None:
    """As `transformers` reads such a folder."""
    save_folder("qwen3", tmp_path / "other")
    shutil.copy(saved / "model.safetensors.index.json", tmp_path / "other")
    source = open_source(str(tmp_path / "other"))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "other")
    assert torch.equal(source.read("norm.gain"), theirs.state_dict()["model.norm.weight"])


def test_a_model_in_several_files(saved: Path, tmp_path: Path) -> None:
    shards = sorted(saved.glob("*.safetensors"))
    assert len(shards) > 2
    source = open_source(str(saved))
    weights = weights_of(source)
    save_folder("llama", tmp_path / "one")
    for name, value in weights_of(open_source(str(tmp_path / "one"))).items():
        assert torch.equal(weights[name], value)
    assert weights["embed.weight"].shape == (704, 48)  # a multiple of 64
    assert not weights["head.weight"][VOCABULARY:].any()
    hashes = source.hashes()
    assert hashes["config.json"] == read_sha256(saved / "config.json")
    assert {*hashes} == {path.name for path in saved.iterdir()} - {"model.safetensors.index.json"}


@pytest.mark.parametrize(
    ("card", "licence"),
    [
        ("---\nlibrary_name: x\nlicense: apache-2.0\n---\n# A\n", "apache-2.0"),
        ("---\nlibrary_name: x\n---\nlicense: mit\n", ""),
        ("license: mit\n", ""),
        ("---\nlicense:\n- mit\n- apache-2.0\n---\n", "mit, apache-2.0"),
        ("---\nlicense: 'cc-by-4.0'\n---\n", "cc-by-4.0"),
        ("---\nlicense: other\nlicense_name: our-own\n---\n", "our-own"),
        ("---\nlicense: other\n---\n", "other"),
        ("---\nlicense_name: our-own\n---\n", "our-own"),
        ("---\nlicense: {a: b}\n---\n", ""),
        ("---\nlicense: [\n---\n", ""),
        ("---\na: 2026-99-99\nlicense: mit\n---\n", ""),
        ('---\nlicense: "\\ud800"\n---\n', ""),  # half a character
        ("---\nlicense: " + 2000 * "[" + "\n---\n", ""),
    ],
)
def test_the_license_is_that_of_the_card(card: str, licence: str, saved: Path, tmp_path: Path) -> None:
    shutil.copytree(saved, tmp_path / "model")
    assert open_source(str(tmp_path / "model")).licence == ""
    (tmp_path / "model" / "README.md").write_text(card)
    assert open_source(str(tmp_path / "model")).licence == licence


@pytest.mark.parametrize(
    ("head", "link"),
    [
        ("license: other\nlicense_name: our-own\nlicense_link: LICENSE", "LICENSE"),
        ("license: gemma\nlicense_link: https://example.org/terms", "https://example.org/terms"),
        ("license: mit\nlicense_link: [a]", ""),
        ('license: mit\nlicense_link: "\\ud800"', ""),
        ("license: mit", ""),
    ],
)
def test_the_link_of_a_license(head: str, link: str, saved: Path, tmp_path: Path) -> None:
    shutil.copytree(saved, tmp_path / "model")
    (tmp_path / "model" / "README.md").write_text(f"---\n{head}\n---\n")
    assert open_source(str(tmp_path / "model")).licence_link == link


LICENCE_FILES = {
    "LICENSE": b"Pass this on.\r\n",
    "License-2.txt": "\ufeffFür alle\n".encode(),
    "NOTICE": b"Made by a fox.",
    "USE_POLICY.md": b"# No hunting\n" + 999_900 * b"x",
}


def test_the_files_of_a_license(saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Texts of up to 1 MB, to the byte; others are named and left, and refuse nothing."""
    folder = tmp_path / "model"
    shutil.copytree(saved, folder)
    assert open_source(str(folder)).licence_texts == {}
    assert capsys.readouterr().err == ""
    others = {"LICENSE.pdf": b"%PDF \xff\xfe", "NOTICE.all": 1_000_001 * b"x", "UNLICENSE": b"x", "NOTES": b"x"}
    for name, content in {**LICENCE_FILES, **others}.items():
        (folder / name).write_bytes(content)
    (folder / "licenses").mkdir()
    (folder / "licenses" / "LICENSE").write_text("of a part")
    source = open_source(str(folder))
    assert {name: text.encode() for name, text in source.licence_texts.items()} == LICENCE_FILES
    hashes = source.hashes()
    assert all(hashes[name] == read_sha256(folder / name) for name in LICENCE_FILES)
    assert not hashes.keys() & others.keys()
    assert [line.split("'")[1] for line in capsys.readouterr().err.splitlines()] == ["LICENSE.pdf", "NOTICE.all"]


def test_a_gguf_file_names_its_license(tmp_path: Path) -> None:
    entries = {"general.license": "other", "general.license.name": "our-own", "general.license.link": "LICENSE"}
    save_gguf("llama", tmp_path / "model.gguf", entries=entries)
    source = open_source(str(tmp_path / "model.gguf"))
    assert (source.licence, source.licence_link, source.licence_texts) == ("our-own", "LICENSE", {})


def test_half_precision_is_read(tmp_path: Path) -> None:
    save_folder("qwen3", tmp_path)
    file = tmp_path / "model.safetensors"
    stored = {name: value.bfloat16() for name, value in load_file(file).items()}
    save_file(stored, file)
    weights = weights_of(open_source(str(tmp_path)))
    assert torch.equal(weights["norm.gain"], stored["model.norm.weight"].float())


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


def change(path: Path, **values: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def replace_tensor(folder: Path, name: str, value: torch.Tensor | None, new: str = "") -> None:
    """Store another tensor in place of one, or none."""
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    file = folder / index["weight_map"][name]
    tensors = load_file(file)
    del tensors[name]
    save_file(tensors | ({new or name: value} if value is not None else {}), file)


def change_model(folder: Path, **values: object) -> None:
    """Give the tokenizer of a folder another kind of model, or change values of its own."""
    file = folder / "tokenizer.json"
    own = json.loads(file.read_text(encoding="utf-8"))["model"]
    change(file, model=values if "type" in values else own | values)


def add_token(folder: Path, id: int) -> None:
    """Give a token that is never found the id."""
    vocabulary = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    change_model(folder, vocab=vocabulary | {"qqqq": id})


PIECES = {"max_input_chars_per_word": 100, "continuing_subword_prefix": "##"}
DAMAGES: dict[str, tuple[Damage, str]] = {
    "an adapter": (
        lambda folder: (folder / "config.json").rename(folder / "adapter_config.json"),
        "is an adapter: merge it into its model first, with peft's merge_and_unload",
    ),
    "no config": (
        lambda folder: (folder / "config.json").unlink(),
        r"has no config\.json: it is not a folder of a model",
    ),
    "no config beside a GGUF file": (
        lambda folder: [(folder / "config.json").unlink(), (folder / "m-Q8_0.gguf").write_bytes(b"")],
        r"not a folder of a model; for the model in a GGUF file name the file, --from=.*/model/m-Q8_0\.gguf$",
    ),
    "config damaged": (lambda folder: (folder / "config.json").write_text("{"), r"config\.json is damaged"),
    "config nested": (lambda folder: (folder / "config.json").write_text("[" * 100_000), r"config\.json is damaged"),
    "tokenizer nested": (
        lambda folder: (folder / "tokenizer.json").write_text("[" * 100_000),
        r"its tokenizer\.json cannot be read",
    ),
    "architecture": (
        lambda folder: change(folder / "config.json", architectures=["MambaForCausalLM"]),
        "its architecture is MambaForCausalLM: only LlamaForCausalLM",
    ),
    "model with code": (
        lambda folder: change(folder / "config.json", auto_map={"AutoModelForCausalLM": "code.Model"}),
        "has a model with code of its own, which is not run",
    ),
    "no weights": (
        lambda folder: [path.unlink() for path in folder.glob("model*")],
        "has no weights as safetensors$",
    ),
    "a pickle": (
        lambda folder: [
            *(path.unlink() for path in folder.glob("model*")),
            (folder / "pytorch_model.bin").write_bytes(b""),
        ],
        r"has no weights as safetensors, only pytorch_model\.bin, which may hold code",
    ),
    "a shard": (
        lambda folder: sorted(folder.glob("*.safetensors"))[1].unlink(),
        "has not all of its weights: model-00002-of-.* is missing",
    ),
    "a shard cut off": (
        lambda folder: sorted(folder.glob("*.safetensors"))[1].write_bytes(b"12345678"),
        "model-00002-of-.* cannot be read",
    ),
    "an index that leaves the folder": (
        lambda folder: change(folder / "model.safetensors.index.json", weight_map={"a": "../b.safetensors"}),
        "names no files of this folder",
    ),
    "a tensor": (
        lambda folder: replace_tensor(folder, "model.norm.weight", None),
        r"has not all of its weights: model\.norm\.weight is missing",
    ),
    "another tensor": (
        lambda folder: replace_tensor(folder, "model.norm.weight", torch.ones(48), "model.mixer.weight"),
        "is missing",
    ),
    "a shape": (
        lambda folder: replace_tensor(folder, "model.norm.weight", torch.ones(50)),
        r"model\.norm\.weight has the shape \(50,\), and config\.json says \(48,\)",
    ),
    "a value": (
        lambda folder: replace_tensor(folder, "model.norm.weight", torch.full((48,), torch.nan)),
        r"model\.norm\.weight has values that are not finite",
    ),
    "a size": (
        lambda folder: change(folder / "config.json", hidden_size=2**30),
        "hidden_size=1073741824, which cannot be",
    ),
    "a vocabulary": (
        lambda folder: change(folder / "config.json", vocab_size=100),
        r"embed_tokens\.weight has the shape \(700, 48\), and config\.json says \(100, 48\)",
    ),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), r"has no tokenizer\.json"),
    "tokenizer damaged": (
        lambda folder: (folder / "tokenizer.json").write_text("{}"),
        r"its tokenizer\.json cannot be read",
    ),
    "tokenizer with code": (
        lambda folder: change(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": "code.Tokenizer"}),
        "a tokenizer with code of its own, which is not run",
    ),
    "token unknown": (
        lambda folder: change(folder / "tokenizer_config.json", eos_token="</nothing>"),
        "its eos_token </nothing> is not in its vocabulary",
    ),
    "token no text": (
        lambda folder: change(folder / "tokenizer_config.json", bos_token=5),
        r"its tokenizer_config\.json has bos_token=5, which is no text",
    ),
    "end no id": (
        lambda folder: change(folder / "generation_config.json", eos_token_id="2"),
        "its eos_token_id has '2', which is no id",
    ),
    "end below": (
        lambda folder: change(folder / "generation_config.json", eos_token_id=-1),
        "its token -1 ends a text, and its vocabulary has 700",
    ),
    "index no map": (
        lambda folder: change(folder / "model.safetensors.index.json", weight_map=[]),
        "names no files of this folder",
    ),
    "no UTF-8": (lambda folder: (folder / "tokenizer.json").write_bytes(b"\xff"), "is damaged: it is no UTF-8"),
    "template": (
        lambda folder: (folder / "chat_template.jinja").write_text("{% for %}"),
        "its chat template cannot be read",
    ),
    "template with half a character": (
        lambda folder: (folder / "chat_template.jinja").write_text("{{ '\\ud800' }}" + CHATML),
        "the chat template writes half a character",
    ),
    "settings with half a character": (
        lambda folder: change(folder / "tokenizer_config.json", eos_token="\ud800"),
        r"tokenizer_config\.json is damaged: it has half a character",
    ),
    "words without one for others": (
        lambda folder: change_model(folder, type="WordLevel", vocab={"a": 0}, unk_token="<none>"),
        r"its tokenizer\.json cannot read a text: WordLevel error: Missing \[UNK\] token",
    ),
    "parts of words without one for others": (
        lambda folder: change_model(folder, type="WordPiece", vocab={"a": 0}, unk_token="<none>", **PIECES),
        r"its tokenizer\.json cannot read a text: WordPiece error: Missing \[UNK\] token",
    ),
    "pairs without one for others": (
        lambda folder: change_model(folder, vocab={"a": 0}, merges=[], unk_token="<none>"),
        r"its tokenizer\.json cannot read a text: Unk token `<none>` not found",
    ),
    "pieces without one for others": (
        lambda folder: change_model(folder, type="Unigram", vocab=[["a", 0.0]], unk_id=None),
        r"its tokenizer\.json cannot read a text: .*`unk_id` is missing",
    ),
    "an empty vocabulary": (
        lambda folder: change_model(folder, vocab={}, merges=[]),
        r"its tokenizer\.json makes no tokens of a text",
    ),
    "texts that are emptied": (
        lambda folder: change(
            folder / "tokenizer.json", normalizer={"type": "Replace", "pattern": {"Regex": "."}, "content": ""}
        ),
        r"its tokenizer\.json makes no tokens of a text",
    ),
    "an id that would fill memory": (
        lambda folder: add_token(folder, 200_000_000),
        "its token qqqq has the id 200,000,000, and its embedding 700 rows",
    ),
    "an id behind the embedding": (
        lambda folder: add_token(folder, VOCABULARY),
        "its token qqqq has the id 700, and its embedding 700 rows",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damages(name: str, saved: Path, tmp_path: Path) -> None:
    damage, sentence = DAMAGES[name]
    folder = tmp_path / "model"
    shutil.copytree(saved, folder)
    damage(folder)
    with pytest.raises(UserError) as error:
        weights_of(open_source(str(folder)))
    assert re.search(sentence, str(error.value)), error.value
    assert str(folder) in str(error.value)
    assert "\n" not in str(error.value)


METADATA: dict[str, tuple[str, dict[str, Any], str]] = {
    "heads of each layer": (
        "llama",
        {"llama.attention.head_count": [4, 4, 4], "llama.attention.key_length": None},
        "has metadata that cannot be read: unsupported operand",
    ),
    "a width as text": (
        "llama",
        {"llama.embedding_length": "48"},
        "its config has hidden_size=48, which cannot be",
    ),
    "parts as text": ("llama", {"split.count": "two"}, "is one of two parts"),
    "no merges": ("llama", {"tokenizer.ggml.merges": None}, r"has no tokenizer\.ggml\.merges"),
    "no vocabulary": ("llama", {"tokenizer.ggml.tokens": None}, "vocab_size=0, which cannot be"),
    "bos": (
        "gemma3",
        {"tokenizer.ggml.bos_token_id": VOCABULARY},
        r"has tokenizer\.ggml\.bos_token_id=700, and its vocabulary has 700 tokens",
    ),
    "unknown": ("gemma3", {"tokenizer.ggml.unknown_token_id": 10**6}, "unknown_token_id=1000000, and its vocabulary"),
    "end as text": ("llama", {"tokenizer.ggml.eos_token_id": "2"}, "has metadata that cannot be read: '<=' not"),
    "license": ("llama", {"general.license": 5}, "has general.license=5, which is no text"),
    "few types": ("llama", {"tokenizer.ggml.token_type": [1, 3]}, "has 700 tokens and types for 2"),
    "types as number": ("llama", {"tokenizer.ggml.token_type": 1}, "has metadata that cannot be read: object of type"),
}


@pytest.mark.parametrize("name", METADATA)
def test_damaged_metadata(name: str, tmp_path: Path) -> None:
    case, entries, sentence = METADATA[name]
    save_gguf(case, tmp_path / "model.gguf", entries=entries)
    with pytest.raises(UserError, match=sentence) as error:
        open_source(str(tmp_path / "model.gguf"))
    assert str(tmp_path / "model.gguf") in str(error.value)
    assert "\n" not in str(error.value)


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


def test_a_head_beside_the_embedding_counts(tmp_path: Path) -> None:
    """If a config says that they are one and the file has two, `transformers` takes the two."""
    save_folder("gemma3", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    assert open_source(str(tmp_path)).config.tie_embeddings
    save_file(tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"] + 1}, tmp_path / "model.safetensors")
    source = open_source(str(tmp_path))
    assert not source.config.tie_embeddings
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    ids = torch.arange(20)[None]
    with torch.no_grad():
        torch.testing.assert_close(model_of(source)(ids), theirs(ids).logits, rtol=1e-4, atol=1e-4)
    same = {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}
    save_file(tensors | same, tmp_path / "model.safetensors")
    assert open_source(str(tmp_path)).config.tie_embeddings


def test_tied_weights_under_the_name_of_the_head(tmp_path: Path) -> None:
    """Of two names of one tensor `save_model` of safetensors may leave either."""
    save_folder("qwen2", tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    before = weights_of(open_source(str(tmp_path)))
    tensors["lm_head.weight"] = tensors.pop("model.embed_tokens.weight")
    save_file(tensors, file, {"format": "pt"})
    source = open_source(str(tmp_path))
    assert source.config.tie_embeddings
    assert all(torch.equal(value, before[name]) for name, value in weights_of(source).items())
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(theirs.get_input_embeddings().weight, tensors["lm_head.weight"])
    change(tmp_path / "config.json", tie_word_embeddings=False)
    with pytest.raises(UserError, match=r"model\.embed_tokens\.weight is missing"):
        open_source(str(tmp_path))


def test_the_day_counts_only_where_a_template_asks_for_it(saved: Path, tmp_path: Path) -> None:
    assert open_source(str(saved)).definition.day == ""
    (tmp_path / "dated.jinja").write_text("{{ strftime_now('%Y') }}" + CHATML)
    assert open_source(str(saved), wanted=Wanted(str(tmp_path / "dated.jinja"))).definition.day


def test_a_place_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is neither a folder nor a file"):
        open_source(str(tmp_path / "nothing"))


def test_a_model_of_the_hub(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a mirror here; the hub's own client is tried in tests/data/test_hub.py."""
    shutil.copytree(saved, tmp_path / "models" / "someone" / "llama")
    monkeypatch.setenv("NANOCHAT_HUB", str(tmp_path))
    source = open_source("hub:someone/llama")
    assert torch.equal(source.read("norm.gain"), open_source(str(saved)).read("norm.gain"))
    with pytest.raises(
        UserError, match=r"someone/llama is a copy of hub:someone/llama without revisions: leave @abc out"
    ):
        open_source("hub:someone/llama@abc")
    (tmp_path / "models" / "someone" / "packed").mkdir()
    for name in ("m-Q4_K_M.gguf", "README.md"):
        (tmp_path / "models" / "someone" / "packed" / name).write_bytes(b"")
    told = r"has no config\.json: .* reads; it has m-Q4_K_M\.gguf: download that file, and name it by --from"
    with pytest.raises(UserError, match=told):
        open_source("hub:someone/packed")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UserError, match="the model someone/other"):
        open_source("hub:someone/other")


def use_hub(server: BadHub, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let downloads come from a local hub, without a mirror."""
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.address + "/{repo_id}/resolve/{revision}/{filename}"
    )
    monkeypatch.setattr(constants, "ENDPOINT", server.address)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.delenv("NANOCHAT_HUB", raising=False)


@pytest.mark.parametrize("has_notice", [True, False])
def test_the_files_of_a_license_come_from_the_hub(
    has_notice: bool,
    saved: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One that the hub lists and does not send is named: the model comes without it."""
    files = {path.name: path.read_bytes() for path in saved.iterdir()}
    texts = {"LICENSE": b"Pass this on.", "NOTICE": b"Made by a fox." if has_notice else b""}
    with BadHub({**files, **texts, "licenses/LICENSE": b"of a part", "weights.bin": b"x"}) as server:
        use_hub(server, tmp_path, monkeypatch)
        source = open_source("hub:some/set")
    assert {name: text.encode() for name, text in source.licence_texts.items()} == {
        name: content for name, content in texts.items() if content
    }
    assert ("import: without NOTICE: " in capsys.readouterr().err) != has_notice
    assert not [*tmp_path.glob("*/snapshots/*/weights.bin"), *tmp_path.glob("*/snapshots/*/licenses")]


@pytest.mark.parametrize("single", [False, True])
def test_weights_in_another_form_are_not_downloaded(
    single: bool, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those count that `transformers` reads: of one file, or else of an index."""
    save_folder("llama", tmp_path / "single")
    own = tmp_path / "single" if single else saved
    files = {path.name: path.read_bytes() for path in own.iterdir()}
    variants = {f"model.{name}.safetensors": b"w" * 1000 for name in ("fp16", "fp32-00001-of-00001")}
    variants |= {"consolidated.safetensors": b"w" * 1000}
    index = json.dumps({"weight_map": dict.fromkeys("ab", "model.fp32-00001-of-00001.safetensors")}).encode()
    name = "model.safetensors.index.json" if single else "model.safetensors.index.fp32.json"
    with BadHub({**files, **variants, name: index}) as server:
        use_hub(server, tmp_path / "cache", monkeypatch)
        source = open_source("hub:some/set")
    assert torch.equal(source.read("norm.gain"), open_source(str(own)).read("norm.gain"))
    found = {path.name for path in (tmp_path / "cache").glob("*/snapshots/*/*")}
    assert found == {*files, name}


def test_a_model_that_cannot_be_read_is_refused_before_its_weights_are_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = json.dumps({"architectures": ["GPT2LMHeadModel"]}).encode()
    with BadHub({"config.json": config, "model.safetensors": b"w" * 1000, "tokenizer.json": b"{}"}) as server:
        use_hub(server, tmp_path, monkeypatch)
        with pytest.raises(UserError, match="its architecture is GPT2LMHeadModel: only"):
            open_source("hub:some/set")
    assert [path.name for path in tmp_path.glob("*/snapshots/*/*")] == ["config.json"]
