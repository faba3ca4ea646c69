"""GGUF files: the model, config and vocabulary that were written into them."""

import json
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from nanochat.errors import UserError
from tracks.bases.families import names_of, read_config
from tracks.bases.gguf_file import LLAMA3_SPLITS, QWEN2_SPLITS, SPLITS, TYPES, GGUFFile
from tracks.bases.sources import open_source
from tracks.bases.template import JinjaTemplate
from tracks.bases.templates import DEFAULT
from tracks.bases.tests.public_models import (
    CASES,
    CHATML,
    CONTEXT,
    LLAMA3,
    has_pieces,
    model_of,
    save_gguf,
    texts,
    tokenizer_for,
)
from tracks.bases.tokenizer import PublicTokenizer

# Gemma 3 as a file can say it, which has no factor for queries, and no layers chosen one by one.
IN_GGUF = {"query_pre_attn_scalar": 16, "layer_types": None, "num_hidden_layers": 7}
WRITTEN = [case for case in CASES if case != "qwen2-windows"]  # the format has no windows for Qwen


@pytest.mark.parametrize("case", WRITTEN)
@torch.no_grad()
def test_logits(case: str, tmp_path: Path) -> None:
    theirs = save_gguf(case, tmp_path / "model.gguf", **(IN_GGUF if case == "gemma3" else {}))
    source = open_source(str(tmp_path / "model.gguf"))
    ours = model_of(source)
    ids = torch.arange(200)[None] * 3 % 650
    expected = theirs(ids).logits
    assert (ours(ids) - expected).abs().max() <= 1e-4 * (expected.max() - expected.min())


@pytest.mark.parametrize("case", WRITTEN)
def test_weights(case: str, tmp_path: Path) -> None:
    theirs = save_gguf(case, tmp_path / "model.gguf").state_dict()
    file = GGUFFile(tmp_path / "model.gguf")
    config = read_config(file.config())
    for names in names_of(config):
        found = file.read_as(names, {"attn_q": config.heads, "attn_k": config.kv_heads})
        torch.testing.assert_close(found, theirs[names.theirs], rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", [kind for kind in TYPES if not kind.endswith("K")])
def test_types(kind: str, tmp_path: Path) -> None:
    """A matrix of more rows than are read at once is what the library makes of it, and close to what was written."""
    matrix = torch.randn(9000, 64, generator=torch.Generator().manual_seed(1)).numpy()
    type_ = gguf.GGMLQuantizationType[kind]
    stored = gguf.quantize(matrix, type_)
    file = written(tmp_path / "model.gguf", stored, type_)
    found = file.read("token_embd.weight")
    assert torch.equal(found, torch.from_numpy(gguf.dequantize(stored, type_)))
    bits = {"F32": 24, "F16": 11, "BF16": 8}.get(kind) or int(kind[1])
    assert (found - torch.from_numpy(matrix)).abs().max() < 16 * 2.0**-bits


@pytest.mark.parametrize("kind", [kind for kind in TYPES if kind.endswith("K")])
def test_types_that_the_library_only_reads(kind: str, tmp_path: Path) -> None:
    type_ = gguf.GGMLQuantizationType[kind]
    values, size = gguf.GGML_QUANT_SIZES[type_]
    assert values == 256
    stored = np.random.default_rng(1).integers(0, 60, (5000, size), dtype=np.uint8)  # small enough to be finite
    file = written(tmp_path / "model.gguf", stored, type_)
    found = file.read("token_embd.weight")
    assert found.shape == (5000, 256)
    assert found.isfinite().all()
    assert torch.equal(found, torch.from_numpy(gguf.dequantize(stored, type_)))


def written(path: Path, stored: np.ndarray, type_: gguf.GGMLQuantizationType) -> GGUFFile:
    """A file with one tensor."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("token_embd.weight", stored, raw_dtype=type_)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GGUFFile(path)


@pytest.mark.parametrize("case", ["llama", "llama-pieces", "gemma3"])
def test_vocabulary(case: str, tmp_path: Path) -> None:
    save_gguf(case, tmp_path / "model.gguf")
    ours = Tokenizer.from_str(GGUFFile(tmp_path / "model.gguf").tokenizer())
    theirs = tokenizer_for(case)
    for text in texts(1000):
        assert ours.encode(text, add_special_tokens=False).ids == theirs.encode(text, add_special_tokens=False).ids
    source = open_source(str(tmp_path / "model.gguf"))
    assert source.templates == [DEFAULT]
    assert source.licence == "mit"
    assert (source.definition.bos, source.definition.ends[0]) == (0, 2)
    assert list(source.definition.prefix) == ([0] if has_pieces(case) else [])


@pytest.mark.parametrize("pattern", [3, [True, True, False, True, True, False, True]])
@torch.no_grad()
def test_a_file_may_say_which_layers_see_a_window(pattern: Any, tmp_path: Path) -> None:
    """In numbers or one by one; they differ from what is usual, which is every sixth."""
    kinds = ["full_attention" if number % 3 == 2 else "sliding_attention" for number in range(7)]
    entries = {"gemma3.attention.sliding_window_pattern": pattern}
    theirs = save_gguf("gemma3", tmp_path / "model.gguf", entries=entries, **(IN_GGUF | {"layer_types": kinds}))
    source = open_source(str(tmp_path / "model.gguf"))
    assert source.config.window_pattern == "SSLSSLS"
    ids = torch.arange(100)[None] * 7 % 600
    assert (model_of(source)(ids) - theirs(ids).logits).abs().max() < 1e-4


def test_a_factor_without_a_kind_of_scaling_is_linear(tmp_path: Path) -> None:
    save_gguf("llama-biased", tmp_path / "model.gguf", entries={"llama.rope.scaling.type": None})
    config = open_source(str(tmp_path / "model.gguf")).config
    assert (config.rope_kind, config.rope_factor) == ("linear", 4.0)


def test_all_ends_and_templates_of_a_file(tmp_path: Path) -> None:
    """A file has the end of a turn apart from that of a text, and templates by name."""
    entries = {
        "tokenizer.ggml.eot_token_id": 6,
        "tokenizer.ggml.eom_token_id": 5,
        "tokenizer.chat_template.tool_use": "{{ 'tools' }}" + CHATML,
        "tokenizer.chat_templates": ["tool_use"],
    }
    save_gguf("llama", tmp_path / "model.gguf", entries=entries)
    source = open_source(str(tmp_path / "model.gguf"))
    assert list(source.definition.ends) == [2, 6, 5, 0]
    assert source.templates == [DEFAULT, "tool_use"]
    template = PublicTokenizer(source.definition).template
    assert isinstance(template, JinjaTemplate)
    asked = [template.renderer.text([{"role": "user", "content": "?"}], tools) for tools in (None, [{}])]
    assert [text.startswith("tools") for text in asked] == [False, True]


def test_a_table_of_frequencies_of_another_size(tmp_path: Path) -> None:
    save_gguf("llama", tmp_path / "model.gguf", table=np.ones(5, np.float32))
    with pytest.raises(UserError, match=r"rope_freqs\.weight has the shape \(5,\), not \(8,\)"):
        open_source(str(tmp_path / "model.gguf"))


@pytest.mark.parametrize("name", SPLITS)
def test_splits(name: str) -> None:
    """The words of each vocabulary: of digits it takes one, three or all."""
    state = {"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "vocab": {}, "merges": []}}
    backend = Tokenizer.from_str(json.dumps(state | {"pre_tokenizer": SPLITS[name].pre_tokenizer()}))
    assert backend.pre_tokenizer is not None
    words = [word for word, _ in backend.pre_tokenizer.pre_tokenize_str("He's 12345\n\n  x")]
    digits = ["Ġ", "123", "45"] if name in LLAMA3_SPLITS else ["Ġ", *"12345"]
    digits = ["Ġ12345"] if name == "gpt-2" else digits
    blanks = ["ĊĊ", "Ġ", "Ġx"] if name in (*LLAMA3_SPLITS, *QWEN2_SPLITS) else ["ĊĊĠ", "Ġx"]
    assert words == ["He", "'s", *digits, *blanks]


def test_the_scaling_of_llama_3_is_found_in_its_table(tmp_path: Path) -> None:
    save_gguf("llama-scaled", tmp_path / "model.gguf")
    found = GGUFFile(tmp_path / "model.gguf").config()["rope_scaling"]
    assert found == {name: value for name, value in LLAMA3.items() if name != "rope_theta"}
    save_gguf("llama", tmp_path / "other.gguf", table=np.linspace(1, 8, 8, dtype=np.float32))
    with pytest.raises(UserError, match="a table that is not Llama 3's"):
        GGUFFile(tmp_path / "other.gguf").config()


@pytest.mark.parametrize(
    ("case", "name", "refused", "known"),
    [
        ("llama", "llama.rope.dimension_count", 8, 16),
        ("llama", "llama.attention.value_length", 32, 16),
        ("llama", "llama.rope.scaling.attn_factor", 0.5, 1.0),
        ("llama", "llama.rope.scale_linear", 4.0, 1.0),
        ("llama", "llama.expert_count", 8, 0),
        ("llama", "llama.attention.sliding_window", 64, CONTEXT),
        ("gemma3", "gemma3.final_logit_softcapping", 30.0, 0.0),
        ("gemma3", "gemma3.attn_logit_softcapping", 50.0, 0.0),
        ("gemma3", "gemma3.attention.sliding_window", None, 64),
    ],
)
def test_a_setting_that_would_change_values(case: str, name: str, refused: Any, known: Any, tmp_path: Path) -> None:
    save_gguf(case, tmp_path / "model.gguf", entries={name: known})
    GGUFFile(tmp_path / "model.gguf").config()
    if refused is not None:
        save_gguf(case, tmp_path / "other.gguf", entries={name: refused})
        with pytest.raises(UserError, match=rf"other\.gguf has {name}={refused}, which is not known here"):
            GGUFFile(tmp_path / "other.gguf").config()


@pytest.mark.parametrize("place", [3, 200, 20_000, -100])
def test_a_file_cut_off(place: int, tmp_path: Path) -> None:
    save_gguf("llama", tmp_path / "model.gguf")
    data = (tmp_path / "model.gguf").read_bytes()
    (tmp_path / "cut.gguf").write_bytes(data[:place])
    with pytest.raises(UserError, match=r"cut\.gguf cannot be read as GGUF"):
        GGUFFile(tmp_path / "cut.gguf")


def test_a_length_that_the_file_cannot_have(tmp_path: Path) -> None:
    """A head of 60 bytes that names an array of a billion numbers."""
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"a" + struct.pack("<IIQ", 9, 5, 10**9)
    (tmp_path / "long.gguf").write_bytes(head + bytes(8))
    with pytest.raises(UserError, match=r"long\.gguf cannot be read as GGUF: it names more than it has"):
        GGUFFile(tmp_path / "long.gguf")


def test_what_is_not_known(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "other.gguf", "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UserError, match="its architecture is mamba"):
        GGUFFile(tmp_path / "other.gguf")
    writer = gguf.GGUFWriter(tmp_path / "part.gguf", "llama")
    writer.add_uint16("split.count", 3)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UserError, match="is one of 3 parts: join them first"):
        GGUFFile(tmp_path / "part.gguf")
    type_ = gguf.GGMLQuantizationType.IQ4_NL
    with pytest.raises(UserError, match="has tensors of the type IQ4_NL"):
        written(tmp_path / "types.gguf", np.zeros((4, 18), dtype=np.uint8), type_)
