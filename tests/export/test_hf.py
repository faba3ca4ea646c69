"""Exports of small trained models, loaded by `transformers`: the same logits, tokens and ids, or none at all."""

import contextlib
import io
import json
from pathlib import Path

import pytest
import torch
import transformers
from exports import TEXTS, tokenizer_of, trained
from outcomes import leave

from nanochat import chat
from nanochat.checkpoint import RECORD, Saver
from nanochat.export import forms
from nanochat.export import hf as export
from nanochat.export.hf import FORMATS, Exported, corpus_lines
from nanochat.export.model_card import results
from nanochat.export.polyglot import lines
from nanochat.tokenizer import SPECIAL_TOKENS, Tokenizer
from scripts.export import FORMATS as NAMED
from scripts.export import Config, main

MODELS = {
    "nanochat": ("october-2025", {}),
    "nanochat, one table": ("october-2025", {"tie_embeddings": True, "softcap": 0.0, "kv_heads": 2}),
    "qwen3": ("portable", {}),
    "qwen3, one table": ("portable", {"tie_embeddings": True, "qk_scale": 1.2}),
}
MANIFEST = {"stage": "base_train", "parent": None, "config": None, "step": 4, "versions": {}}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return tokenizer_of()


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return list(lines(SPECIAL_TOKENS, 900))


def exported(format: str, name: str, tokenizer: Tokenizer, texts: list[str], out: Path) -> tuple:
    """The model, where it lies exported, and what was said."""
    preset, fields = MODELS[name]
    model = trained(preset, tokenizer, **fields)
    manifest = MANIFEST | {"tokenizer": {"tag": "default", "hash": tokenizer.content_hash}}
    with contextlib.redirect_stdout(io.StringIO()) as said:
        export.export(format, Exported(out.name, "d4", model, tokenizer, manifest, texts, out.parent), out)
    return model, out, said.getvalue()


@pytest.fixture(scope="module", params=MODELS)
def folder(request, tokenizer, texts, tmp_path_factory) -> tuple:
    out = tmp_path_factory.mktemp("hf") / "a model"
    leave(out.parent, "base_train", "d4", metrics={"Final validation bpb": 1.5})
    return exported("hf", request.param, tokenizer, texts, out)


def difference_said(said: str) -> float:
    return float(said.partition("the largest difference in fp32 is ")[2].split(",")[0])


def test_transformers_computes_the_same(folder):
    model, out, said = folder
    assert difference_said(said) <= 1e-5
    assert "over 384 tokens\ngreedy: the same 64 tokens\n" in said
    theirs, info = transformers.AutoModelForCausalLM.from_pretrained(out, output_loading_info=True)
    assert not any(info.values()), info
    expected = "NanoChatForCausalLM" if model.config.mlp == "relu2" else "Qwen3ForCausalLM"
    assert type(theirs).__name__ == expected
    assert theirs.config.rms_norm_eps == 2**-23
    assert theirs.dtype == torch.float32
    ids = torch.randint(701, (3, 192), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        torch.testing.assert_close(theirs(ids).logits, model(ids), atol=1e-5, rtol=0)
    assert theirs.get_input_embeddings().weight.shape == (701, 64)
    card = (out / "README.md").read_text(encoding="utf-8")
    assert f"- Architecture: {expected}\n" in card
    assert "- Final validation bpb: 1.5000\n" in card
    assert said.splitlines()[-1] in card


def test_a_card_tells_of_its_own_step_alone(tmp_path):
    leave(tmp_path, "base_train", "d4", metrics={"Final validation bpb": 1.5})
    leave(tmp_path, "base_loss", "d4", metrics={"val bpb": 1.6, "Step": 5})
    assert list(results(tmp_path, "base_train", "d4", 5)) == ["Base model training", "Base model loss"]
    assert list(results(tmp_path, "base_train", "d4", 6)) == ["Base model training"]


def test_padding_in_a_batch_changes_nothing(folder, tokenizer):
    """As people generate: a batch of prompts, the shorter one filled up on the left."""
    model, out, _ = folder
    theirs = transformers.AutoModelForCausalLM.from_pretrained(out)
    words = transformers.AutoTokenizer.from_pretrained(out, padding_side="left")
    asked = words(["The", "All human beings are born"], padding=True, return_tensors="pt")
    written = theirs.generate(**asked, max_new_tokens=8, min_new_tokens=8, do_sample=False)[
        :, asked.input_ids.shape[1] :
    ]
    stops = theirs.generation_config.eos_token_id
    assert stops == [tokenizer.special_tokens[name] for name in ("<|assistant_end|>", "<|bos|>")]
    for text, tokens in zip(["The", "All human beings are born"], written.tolist(), strict=True):
        ids = torch.tensor([[tokenizer.special_tokens["<|bos|>"], *tokenizer.encode(text)]])
        for token in tokens:
            logits = model(ids)[0, -1].index_fill(0, torch.tensor(stops), -torch.inf)
            assert token == logits.argmax()
            ids = torch.cat([ids, logits.argmax().view(1, 1)], dim=1)


CHATS = [
    [{"role": "user", "content": "What is 12 * 34?"}],
    [
        {"role": "system", "content": " Be brief. \n"},
        {"role": "user", "content": "\n hi  "},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": [{"type": "text", "text": "안녕 {{ x }} {% if %} </s>"}]},
    ],
    [
        {"role": "user", "content": "12 * 34?"},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "Let me see. "},
                {"type": "python", "text": "12*34"},
                {"type": "python_output", "text": "408"},
                {"type": "text", "text": "\n\n408."},
            ],
        },
    ],
]


def test_the_chat_template_renders_what_we_render(folder, tokenizer):
    words = transformers.AutoTokenizer.from_pretrained(folder[1])
    for messages in CHATS:
        ours, _ = chat.render_conversation({"messages": messages}, tokenizer)
        assert words.apply_chat_template(messages)["input_ids"] == ours
    for messages in CHATS[:2]:
        ours = chat.render_prompt({"messages": messages}, tokenizer)
        assert words.apply_chat_template(messages, add_generation_prompt=True)["input_ids"] == ours
    for wrong in ([CHATS[0][0]] * 2, [CHATS[1][2]], [CHATS[2][0], CHATS[2][0] | {"role": "tool"}]):
        with pytest.raises(Exception, match="take turns"):
            words.apply_chat_template(wrong)
        with pytest.raises(ValueError):
            chat.check_conversation({"messages": wrong})


def test_text_is_encoded_as_ours_is(folder, tokenizer, texts):
    words = transformers.AutoTokenizer.from_pretrained(folder[1])
    special = tokenizer.special_tokens
    assert words("Hello").input_ids == [special["<|bos|>"], *tokenizer.encode("Hello")]
    assert words("<|bos|>", add_special_tokens=False).input_ids == [special["<|bos|>"]]
    plain = {"add_special_tokens": False, "split_special_tokens": True}
    for text in texts[:300]:
        ids = words(text, **plain).input_ids
        assert ids == tokenizer.encode(text)
        assert words.decode(ids) == text
    assert (words.bos_token, words.eos_token, words.pad_token) == ("<|bos|>", "<|assistant_end|>", "<|output_end|>")


# ---- other formats, and the script ----


def test_gguf_is_compared_too(tokenizer, texts, tmp_path):
    _, out, said = exported("gguf-ready", "qwen3", tokenizer, texts, tmp_path / "out")
    assert [path.name for path in out.iterdir()] == ["model.gguf"]
    assert difference_said(said) <= 1e-5
    assert "greedy: the same 64 tokens\n" in said
    assert "with llama-bpe, the nearest, " in said
    with pytest.raises(ValueError, match=r"Qwen3ForCausalLM has no place for mlp=relu2, softcap=15.0"):
        exported("gguf", "nanochat", tokenizer, texts, tmp_path / "other")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_the_script_exports_a_checkpoint(tokenizer, tmp_path, monkeypatch, capsys):
    """With the lines of the text that it was validated on, which two stages before it tell of."""
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(tmp_path))
    (tmp_path / "text").mkdir()
    for number, text in enumerate(TEXTS * 3):
        (tmp_path / f"text/{number}.txt").write_text(text, encoding="utf-8")
    tokenizer.save(tmp_path / "tok_train/default/tokenizer.json")
    model, record = trained("portable", tokenizer), dict.fromkeys(RECORD) | {"dtype": "fp32"}
    record |= {"model": vars(model.config), "tokenizer": {"tag": "default", "hash": tokenizer.content_hash}}
    base = {"stage": "base_train", "config": {"data": str(tmp_path / "text")}}
    sft = {"stage": "chat_sft", "config": {}, "parent": {"stage": "base_train", "tag": "mine", "step": 4}}
    for about in (base, sft):
        with Saver(tmp_path / about["stage"] / "mine") as saver:
            saver.save(4, model.state_dict(), [], record | about)
    monkeypatch.setattr(export, "SHARD", 400_000)
    main(Config(tag="mine"))
    said = capsys.readouterr().out
    assert said.endswith(f"export: {tmp_path / 'export/mine-sft-hf'}\n")
    assert "the same ids for 12,0" in said  # and a few of the corpus
    assert "for 12,000 texts" not in said
    names = {path.name for path in (tmp_path / "export/mine-sft-hf").iterdir()}
    assert "model.safetensors.index.json" in names
    assert len({name for name in names if name.endswith(".safetensors")}) > 1
    assert corpus_lines(record | sft)[0] in "".join(TEXTS)
    (tmp_path / "text").rename(tmp_path / "gone")
    assert corpus_lines(record | sft) == []
    assert "compared without the text that the model was trained on: --data=" in capsys.readouterr().out
    main(Config(format="tiktoken", tag="mine", out=str(tmp_path / "words")))
    assert {path.name for path in (tmp_path / "words").iterdir()} == {"tokenizer.json", "tokenizer.tiktoken"}


def test_names_of_formats_are_known_without_what_writes_them():
    assert set(NAMED) == set(FORMATS)
    with pytest.raises(ValueError, match="--format=onnx is not one of hf, tokenizer, tiktoken, gguf, gguf-ready"):
        Config(format="onnx")


# ---- what goes wrong leaves nothing ----


def test_another_model_is_noticed_and_not_kept(tokenizer, texts, tmp_path, monkeypatch):
    monkeypatch.setattr(forms, "swap_halves", lambda weight, head_dim: weight)
    with pytest.raises(ValueError, match=r"^the export is another model: its logits differ by \d"):
        exported("hf", "nanochat", tokenizer, texts, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_another_tokenizer_is_noticed_and_not_kept(tokenizer, texts, tmp_path, monkeypatch):
    merges = export.tokenizer_files.merges
    monkeypatch.setattr(export.tokenizer_files, "merges", lambda *given: merges(*given)[:-40])
    with pytest.raises(ValueError, match=r"^transformers gives other ids than ours for"):
        exported("hf", "qwen3", tokenizer, texts, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_is_not_touched(tokenizer, texts, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/precious").write_text("x")
    with pytest.raises(ValueError, match="is there already: remove it, or name another --out"):
        exported("hf", "qwen3", tokenizer, texts, tmp_path / "out")
    assert (tmp_path / "out/precious").read_text() == "x"
    (tmp_path / "out/precious").unlink()  # an empty folder is as good as none
    exported("tiktoken", "qwen3", tokenizer, texts, tmp_path / "out")
    assert json.loads((tmp_path / "out/tokenizer.json").read_text())["explicit_n_vocab"] == 701
