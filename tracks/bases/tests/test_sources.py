"""Folders and files of models: read whole, or refused in one sentence that names what is wrong."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from nanochat.errors import UserError
from tracks.bases.sources import open_source
from tracks.bases.tests.public_models import (
    CHATML,
    VOCABULARY,
    change,
    change_model,
    save_gguf,
)
from tracks.bases.weights import weights_of

Damage = Callable[[Path], object]


def replace_tensor(folder: Path, name: str, value: torch.Tensor | None, new: str = "") -> None:
    """Store another tensor in place of one, or none."""
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    file = folder / index["weight_map"][name]
    tensors = load_file(file)
    del tensors[name]
    save_file(tensors | ({new or name: value} if value is not None else {}), file)


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
    "whole numbers": (
        lambda folder: replace_tensor(folder, "model.norm.weight", torch.ones(48, dtype=torch.int8)),
        r"has model\.norm\.weight as I8, and only F64, F32, F16, BF16 can be read: save the model without quantization",
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
    "a shape": ("llama", {"llama.feed_forward_length": 80}, r"has the shape \(.*\), and its metadata says \(80, 48\)$"),
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
    "name of a license": (
        "llama",
        {"general.license": "other", "general.license.name": 5},
        r"has general\.license\.name=5, which is no text",
    ),
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


def test_a_place_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is neither a folder nor a file"):
        open_source(str(tmp_path / "nothing"))
