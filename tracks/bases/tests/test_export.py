"""Public models go out as they came in: the same weights, config and tokens, read by `transformers`."""

import json
from pathlib import Path

import pytest
import tokenizers
import torch
import transformers
from safetensors.torch import load_file

from nanochat.errors import UserError
from nanochat.tokenizer import Tokenizer
from tracks.bases.export import write_folder, write_tokenizer
from tracks.bases.sources import open_source
from tracks.bases.tests.chat_templates import conversations
from tracks.bases.tests.public_models import CASES, CHATML, CONTEXT, model_of, save_folder, save_gguf
from tracks.bases.tokenizer import PublicTokenizer
from tracks.bases.weights import weights_of
from tracks.export import hf


def record_of(place: Path) -> dict:
    source = open_source(str(place))
    public = {"architecture": "X", "from": "a place", "config": source.settings, "generation": source.generation}
    public |= {"sides": source.sides, "licence": "mit", "files": source.hashes()}
    public |= {"licence_link": source.licence_link, "licence_texts": source.licence_texts}
    return {"stage": "chat_sft", "step": 0, "data": None, "public": public}


# What the manifest of a model that was tuned here has beside that.
TUNED = {
    "data": {"tasks": {"GSM8K": {}, "my_chats": {}}},
    "learned": [["mid_train", "MMLU"], ["base_train", "not recorded"]],
}


@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_a_model_goes_out_as_it_came(case: str, tmp_path: Path) -> None:
    theirs = save_folder(case, tmp_path / "in")
    source = open_source(str(tmp_path / "in"))
    (tmp_path / "out").mkdir()
    checks = write_folder(
        model_of(source), PublicTokenizer(source.definition), record_of(tmp_path / "in"), tmp_path / "out"
    )
    assert [check.split(":")[0] for check in checks] == ["logits", "tokenizer"]
    # `transformers` has a class of its own for Qwen2, which splits digits in another way than this vocabulary.
    assert ("but by AutoTokenizer not for" in checks[1]) == case.startswith("qwen2")
    before, after = (load_file(tmp_path / folder / "model.safetensors") for folder in ("in", "out"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    assert type(again) is type(theirs)
    ids = torch.arange(100)[None] * 7 % 600
    assert torch.equal(again(ids).logits, theirs(ids).logits)
    first, second = (transformers.AutoTokenizer.from_pretrained(tmp_path / folder) for folder in ("in", "out"))
    for messages in conversations(20):
        assert first.apply_chat_template(messages) == second.apply_chat_template(messages)
    assert second.chat_template == CHATML
    # The class that `transformers` 4 can load.
    written = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert written["tokenizer_class"] == "PreTrainedTokenizerFast"
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "the model that came from a place, at stage chat_sft, step 0" in card
    assert card.startswith("---\nlibrary_name: transformers\n")
    # It can come in again.
    assert open_source(str(tmp_path / "out")).config == source.config


@pytest.mark.parametrize("case", ["llama", "gemma3"])
def test_a_gguf_file_goes_out_as_a_folder_and_comes_in_again(case: str, tmp_path: Path) -> None:
    """With what its texts begin with."""
    save_gguf(case, tmp_path / "model.gguf")
    source = open_source(str(tmp_path / "model.gguf"))
    (tmp_path / "out").mkdir()
    write_folder(
        model_of(source), PublicTokenizer(source.definition), record_of(tmp_path / "model.gguf"), tmp_path / "out"
    )
    again = open_source(str(tmp_path / "out"))
    assert again.config == source.config
    assert list(again.definition.prefix) == list(source.definition.prefix) == ([0] if case == "gemma3" else [])
    weights, expected = weights_of(again), weights_of(source)
    assert all(torch.equal(weights[name], expected[name]) for name in expected)


@pytest.mark.parametrize("adds", [True, False])
@pytest.mark.parametrize("case", ["llama", "gemma3"])
def test_what_a_text_begins_with_is_what_transformers_reads(case: str, adds: bool, tmp_path: Path) -> None:
    """A flag beside a tokenizer.json changes nothing there, nor here: in, out and in again."""
    save_folder(case, tmp_path / "in")
    settings = tmp_path / "in" / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"add_bos_token": adds}))
    source = open_source(str(tmp_path / "in"))
    tokenizer = PublicTokenizer(source.definition)
    (tmp_path / "out").mkdir()
    write_folder(model_of(source), tokenizer, record_of(tmp_path / "in"), tmp_path / "out")
    again = PublicTokenizer(open_source(str(tmp_path / "out")).definition)
    for text in ("", "A fox.", " 12\n"):
        first, second = (transformers.AutoTokenizer.from_pretrained(tmp_path / name)(text) for name in ("in", "out"))
        ids = [*tokenizer.prefix, *tokenizer.encode(text)]
        assert first["input_ids"] == second["input_ids"] == ids == [*again.prefix, *again.encode(text)]
    assert list(tokenizer.prefix) == ([0] if case == "gemma3" else [])


SIDES = {"padding_side": "left", "truncation_side": "left"}


@pytest.mark.parametrize(
    ("case", "settings", "padding"),
    [
        ("llama", SIDES, None),
        ("llama", {}, None),
        ("llama", {"tokenizer_class": "LlamaTokenizer"}, None),  # of bytes, which that class does not read
        ("llama", {"padding_side": None}, "left"),
        ("llama-pieces", {"tokenizer_class": "LlamaTokenizerFast"}, None),
        ("qwen2", {"tokenizer_class": "GemmaTokenizer"}, None),
        ("qwen2", SIDES, None),
        ("gemma3", {"tokenizer_class": None}, None),
        ("gemma3", {"tokenizer_class": "GemmaTokenizer"}, None),
        ("gemma3", {"tokenizer_class": "GemmaTokenizer", "padding_side": "right"}, None),
        ("gemma3", {"tokenizer_class": "GemmaTokenizer"}, "right"),
        ("gemma3", {}, None),
    ],
)
def test_texts_are_padded_on_the_side_of_the_source(
    case: str, settings: dict, padding: str | None, tmp_path: Path
) -> None:
    """As its class in `transformers` does where no file says it: answers in a batch begin behind their questions."""
    save_folder(case, tmp_path / "in")
    file = tmp_path / "in" / "tokenizer_config.json"
    values = json.loads(file.read_text()) | settings
    file.write_text(json.dumps({name: value for name, value in values.items() if value is not None}))
    if padding:  # in the tokenizer.json
        backend = tokenizers.Tokenizer.from_file(str(tmp_path / "in" / "tokenizer.json"))
        backend.enable_padding(direction=padding, pad_id=3, pad_token="<pad>")
        backend.save(str(tmp_path / "in" / "tokenizer.json"))
    source = open_source(str(tmp_path / "in"))
    (tmp_path / "out").mkdir()
    write_tokenizer(model_of(source), PublicTokenizer(source.definition), record_of(tmp_path / "in"), tmp_path / "out")
    first = transformers.AutoTokenizer.from_pretrained(tmp_path / "in")
    second = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path / "out")
    assert (first.padding_side, first.truncation_side) == (second.padding_side, second.truncation_side)
    mask = second(["A", "The quick brown fox"], padding=True)["attention_mask"][0]
    assert (mask[0], mask[-1]) == ((0, 1) if second.padding_side == "left" else (1, 0))


def test_a_gguf_file_of_gemma_is_padded_on_the_left(tmp_path: Path) -> None:
    """It names no class: `transformers` takes that of the architecture."""
    for case, side in (("gemma3", {"padding_side": "left"}), ("llama", {})):
        save_gguf(case, tmp_path / f"{case}.gguf")
        assert open_source(str(tmp_path / f"{case}.gguf")).sides == side


def test_special_tokens_that_are_listed_come_in_again(tmp_path: Path) -> None:
    save_folder("llama", tmp_path / "in")
    settings = tmp_path / "in" / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"extra_special_tokens": ["<think>"]}))
    source = open_source(str(tmp_path / "in"))
    tokenizer = PublicTokenizer(source.definition)
    (tmp_path / "out").mkdir()
    write_folder(model_of(source), tokenizer, record_of(tmp_path / "in"), tmp_path / "out")
    again = PublicTokenizer(open_source(str(tmp_path / "out")).definition)
    assert again.definition.listed == ["<think>"]
    assert again.content_hash == tokenizer.content_hash
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert (loaded.content_hash, loaded.special_tokens) == (tokenizer.content_hash, tokenizer.special_tokens)


def test_rounded_weights_come_in_again(tmp_path: Path) -> None:
    save_folder("llama", tmp_path / "in")
    source = open_source(str(tmp_path / "in"))
    record = record_of(tmp_path / "in")
    exported = hf.Exported("llama", model_of(source), PublicTokenizer(source.definition), record, "bf16")
    hf.export(hf.write_folder, exported, tmp_path / "out")
    again, expected = weights_of(open_source(str(tmp_path / "out"))), weights_of(source)
    assert again.keys() == expected.keys()
    assert all(torch.equal(again[name], weight.bfloat16().float()) for name, weight in expected.items())
    assert "- weights: then rounded to bf16" in (tmp_path / "out" / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("case", ["llama", "llama-scaled"])
def test_a_shorter_context_is_that_of_the_source_again(case: str, tmp_path: Path) -> None:
    """It saves memory here, and is nothing that the model has learned."""
    save_folder(case, tmp_path / "in")
    source = open_source(str(tmp_path / "in"), context=128)
    (tmp_path / "out").mkdir()
    write_folder(model_of(source), PublicTokenizer(source.definition), record_of(tmp_path / "in"), tmp_path / "out")
    assert transformers.AutoConfig.from_pretrained(tmp_path / "out").max_position_embeddings == CONTEXT
    assert json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())["model_max_length"] == CONTEXT


@pytest.mark.parametrize("more", [{}, TUNED], ids=["as it came", "tuned"])
def test_a_tuned_model_ends_where_its_answers_ended_here(more: dict, tmp_path: Path) -> None:
    """RL takes each of these tokens for an end: `generate` does not go on behind one."""
    save_folder("llama", tmp_path / "in")
    source = open_source(str(tmp_path / "in"))
    tokenizer = PublicTokenizer(source.definition)
    (tmp_path / "out").mkdir()
    write_folder(model_of(source), tokenizer, record_of(tmp_path / "in") | more, tmp_path / "out")
    loaded = transformers.GenerationConfig.from_pretrained(tmp_path / "out")
    assert tokenizer.turn_ends == (2, 0)
    assert loaded.eos_token_id == ([2, 0] if more else [2])


@pytest.mark.parametrize("more", [{}, TUNED], ids=["as it came", "tuned"])
def test_the_card_names_what_it_learned_from_here(more: dict, tmp_path: Path) -> None:
    """With licenses: the last stage's data too, and not those of the model that was brought in."""
    save_folder("llama", tmp_path / "in")
    source = open_source(str(tmp_path / "in"))
    (tmp_path / "out").mkdir()
    tokenizer = PublicTokenizer(source.definition)
    write_folder(model_of(source), tokenizer, record_of(tmp_path / "in") | more, tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in card.splitlines() if line.startswith("| ")]
    assert ("Here it learned from nothing." in card) == (not more)
    assert "not recorded" not in card
    tuned = [
        ["Stage", "Data", "License"],
        ["chat_sft", "GSM8K", "MIT"],
        ["chat_sft", "my_chats", "not known"],
        ["mid_train", "MMLU", "MIT, its training split is made of other data sets with their own"],
    ]
    assert [row for row in rows if set(row[0]) != {"-"}] == (tuned if more else [])


def test_code_of_its_own_is_not_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By a model that was brought in before such were refused."""
    save_folder("llama", tmp_path / "in")
    source = open_source(str(tmp_path / "in"))
    record = record_of(tmp_path / "in")
    record["public"]["config"] = source.settings | {"auto_map": {"AutoModelForCausalLM": "code.Model"}}
    (tmp_path / "out").mkdir()
    write_folder(model_of(source), PublicTokenizer(source.definition), record, tmp_path / "out")
    assert "auto_map" not in json.loads((tmp_path / "out" / "config.json").read_text())
    assert "its auto_map, which names code of its own, is left out" in capsys.readouterr().out


def test_a_difference_is_not_kept(tmp_path: Path) -> None:
    save_folder("llama", tmp_path / "in")
    source = open_source(str(tmp_path / "in"))
    record = record_of(tmp_path / "in")
    record["public"]["config"] = source.settings | {"rms_norm_eps": 0.1}
    (tmp_path / "out").mkdir()
    with pytest.raises(UserError, match="the export computes something else"):
        write_folder(model_of(source), PublicTokenizer(source.definition), record, tmp_path / "out")


@pytest.mark.parametrize(
    ("origin", "licence", "head"),
    [
        ("hub:someone/fox@main", "apache-2.0", "base_model: someone/fox\nlicense: apache-2.0\n"),
        ("a place", "mit, apache-2.0", "license:\n- mit\n- apache-2.0\n"),
        ("a place", "our-own", "license: other\nlicense_name: our-own\n"),
        ("a place", "", ""),
    ],
)
def test_the_card_begins_with_what_the_hub_shows(origin: str, licence: str, head: str, tmp_path: Path) -> None:
    """The license comes in again with the folder."""
    save_folder("llama", tmp_path / "in")
    source = open_source(str(tmp_path / "in"))
    record = record_of(tmp_path / "in")
    record["public"] |= {"from": origin, "licence": licence}
    (tmp_path / "out").mkdir()
    write_folder(model_of(source), PublicTokenizer(source.definition), record, tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    fixed = "---\nlibrary_name: transformers\npipeline_tag: text-generation\ntags:\n- nanochat\n"
    assert card.startswith(f"{fixed}{head}---\n\n# ")
    assert open_source(str(tmp_path / "out")).licence == licence


def test_the_files_of_a_license_go_along(tmp_path: Path) -> None:
    """To the byte, and with the link to one of them; they come in again with the folder."""
    save_folder("llama", tmp_path / "in")
    (tmp_path / "in" / "README.md").write_text(
        "---\nlicense: other\nlicense_name: our-own\nlicense_link: LICENSE\n---\n# A fox\n"
    )
    files = {"LICENSE": b"Pass this on.\r\n", "NOTICE.txt": "Für alle".encode(), "USE_POLICY.md": b"# No hunting\n"}
    for name, content in files.items():
        (tmp_path / "in" / name).write_bytes(content)
    source = open_source(str(tmp_path / "in"))
    record = record_of(tmp_path / "in")
    record["public"]["licence"] = source.licence
    model, tokenizer = model_of(source), PublicTokenizer(source.definition)
    for write in (write_folder, write_tokenizer):
        out = tmp_path / write.__name__
        out.mkdir()
        write(model, tokenizer, record, out)
        assert {name: (out / name).read_bytes() for name in files} == files
    card = (tmp_path / "write_folder" / "README.md").read_text(encoding="utf-8")
    assert "\nlicense: other\nlicense_name: our-own\nlicense_link: LICENSE\n---\n" in card
    assert "Its files came along: LICENSE, NOTICE.txt, USE_POLICY.md.\n" in card
    again = open_source(str(tmp_path / "write_folder"))
    assert (again.licence, again.licence_link) == ("our-own", "LICENSE")
    assert again.licence_texts == source.licence_texts
    assert {name: again.hashes()[name] for name in files} == {name: record["public"]["files"][name] for name in files}
