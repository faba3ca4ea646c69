"""Exports of small trained models, loaded by `transformers`: equal logits, tokens and ids, or no export at all."""

import contextlib
import dataclasses
import io
import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
import transformers
from models import CONFIGS, SMALL, lively
from safetensors.torch import load_file, save_file

from nanochat import chat
from nanochat.checkpoint import learned_from
from nanochat.errors import UserError
from nanochat.gpt import GPT, GPTConfig
from nanochat.models import IDLE, config_fields, config_with
from nanochat.tokenizer import Tokenizer
from tracks.export import gguf, hf
from tracks.export.export import Config
from tracks.export.hf import ARCHITECTURES, Exported, architecture_of, unsupported
from tracks.export.tests.exports import through_folder, tokenizer_of, trained
from tracks.export.tokenizers import sample_texts

NANOCHAT, QWEN3, OWN = ARCHITECTURES
FIELDS_OF_OTHER_KINDS = [name for name in IDLE if name not in ("loops", "passes", "detached")]  # they need supervision
MODELS = {"nanochat": "october-2025", "qwen3": "portable", "own": "reference"}
MANIFEST = {"stage": "base_train", "parent": None, "config": None, "step": 4, "versions": {"torch": "2.11"}}
MANIFEST["data"] = [{"source": "world-2", "split": "train"}, {"source": "world-2", "split": "val"}, {"source": "notes"}]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return tokenizer_of()


def exported(write, name: str, tokenizer: Tokenizer, out: Path, dtype: str = "fp32") -> tuple[GPT, Path, str]:
    """The model, the folder with the export, and the output."""
    model = trained(MODELS[name], tokenizer)
    manifest = MANIFEST | {"tokenizer": {"tag": "default", "hash": tokenizer.content_hash}}
    with contextlib.redirect_stdout(io.StringIO()) as output:
        hf.export(write, Exported(out.name, model, tokenizer, manifest, dtype), out)
    return model, out, output.getvalue()


@pytest.fixture(scope="module", params=MODELS)
def folder(request, tokenizer, tmp_path_factory) -> tuple[GPT, Path, str]:
    return exported(hf.write_folder, request.param, tokenizer, tmp_path_factory.mktemp("hf") / "a model")


def changed(preset: str, name: str) -> GPTConfig | None:
    """A small config of a preset with one field changed; None if no other value is valid for this field alone."""
    usual = {**IDLE, **asdict(config_with(CONFIGS[preset]))}
    value = usual[name]
    sizes = {"depth": 3, "width": 128, "heads": 8, "kv_heads": 1, "max_seq_len": 256}
    others = sizes | {"mlp": {"relu2": "swiglu", "swiglu": "relu2"}[usual["mlp"]], "window_pattern": "S"}
    others |= {name: not value} if isinstance(value, bool) else {}
    value = others[name] if name in others else value + 1
    with contextlib.suppress(ValueError):  # induction needs smear, say
        return config_with({**usual, name: value})
    return None


@pytest.mark.parametrize("preset", ["october-2025", "portable", "reference"])
@pytest.mark.parametrize("name", [*(field.name for field in dataclasses.fields(GPTConfig)), *FIELDS_OF_OTHER_KINDS])
def test_every_setting_is_exported_or_refused_by_name(preset, name, tokenizer, tmp_path) -> None:
    """A new field of any kind of model is tried without a change here: it must not be dropped."""
    config = changed(preset, name)
    if config is None:
        pytest.skip("no other value is valid")
    architecture = next(one for one in ARCHITECTURES if one.preset == preset)
    refused = unsupported(config, architecture)
    if refused:
        assert name in {setting.partition("=")[0] for setting in refused}
        return
    model = lively(asdict(config)).requires_grad_(False)
    theirs = through_folder(model, tmp_path, architecture, tokenizer)
    ids = torch.randint(config.vocab_size, (1, 200), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(theirs(ids).logits, model(ids), atol=2e-5, rtol=1e-5)


def test_settings_that_cannot_be_exported_are_refused() -> None:
    made = dataclasses.make_dataclass("Novel", [("novelty", int, 3)], bases=(GPTConfig,), frozen=True)
    assert unsupported(made(**asdict(config_with(CONFIGS["portable"]))), QWEN3) == ["novelty=3"]
    fields = {"window_pattern": "S", "max_seq_len": 128}  # no short window is left
    assert unsupported(config_with(CONFIGS["october-2025"] | fields), NANOCHAT) == []
    assert architecture_of(config_with(CONFIGS["reference"])) == OWN
    refused = r"NanochatForCausalLM does not support rope_dims=8, query_gain=1.75, qk_eps=1e-06, exclusive_last=2. It"
    with pytest.raises(ValueError, match=refused + r" supports those of --model=reference$"):
        architecture_of(config_with(SMALL | config_fields("golf-seed") | {"rope_dims": 8}))


def test_transformers_computes_the_same(folder) -> None:
    model, out, output = folder
    assert "over 384 tokens\n" in output
    options = {"output_loading_info": True, "trust_remote_code": model.config.smear}
    theirs, info = transformers.AutoModelForCausalLM.from_pretrained(out, **options)
    assert not any(info.values()), info
    assert type(theirs).__name__ == architecture_of(model.config).name
    assert getattr(theirs.config, "rms_norm_eps", 2**-23) == 2**-23
    assert theirs.dtype == torch.float32
    ids = torch.randint(701, (3, 192), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        torch.testing.assert_close(theirs(ids).logits, model(ids), atol=1e-5, rtol=0)


def test_the_card_has_shape_and_origin_of_the_model(folder) -> None:
    model, out, output = folder
    card = (out / "README.md").read_text(encoding="utf-8")
    assert card.startswith("---\nlibrary_name: transformers\n")
    parameters = sum(parameter.numel() for parameter in model.parameters())
    for part in (f"{parameters:,} parameters", "vocabulary\n701", "1 for keys and values", "'torch': '2.11'", "step 4"):
        assert part in card
    assert card.endswith(f"- {output.splitlines()[-1]}\n")


def test_weights_are_rounded_on_request(folder, tokenizer, tmp_path) -> None:
    model, plain, _ = folder
    name = list(MODELS)[ARCHITECTURES.index(architecture_of(model.config))]
    _, out, output = exported(hf.write_folder, name, tokenizer, tmp_path / "out", "bf16")
    expected, rounded = (load_file(path / "model.safetensors") for path in (plain, out))
    assert rounded.keys() == expected.keys()
    assert all(torch.equal(rounded[name], weight.bfloat16()) for name, weight in expected.items())
    theirs = transformers.AutoModelForCausalLM.from_pretrained(out, trust_remote_code=name == "own")
    assert theirs.dtype == torch.bfloat16
    assert theirs.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=4, do_sample=False).shape == (1, 7)
    # The comparison before is in fp32; the card has both, and no other file is there.
    lines = output.splitlines()
    assert "the largest difference in fp32" in lines[-2]
    assert lines[-1].startswith("weights: then rounded to bf16, which changes logits (their range is ")
    card = (out / "README.md").read_text(encoding="utf-8")
    assert card.endswith(f"- {lines[-2]}\n- {lines[-1]}\n")
    assert "Weights are in bf16." in card
    assert {path.name for path in out.iterdir()} == {path.name for path in plain.iterdir()}


def test_weights_that_were_not_read_are_not_kept(tokenizer, tmp_path, monkeypatch) -> None:
    name = "model.layers.0.mlp.fc1.weight"

    def save(weights: dict[str, torch.Tensor], path: Path, metadata: dict[str, str]) -> None:
        one_more = {name: weights[name] + 1} if weights[name].dtype == torch.bfloat16 else {}
        save_file(weights | one_more, path, metadata)

    monkeypatch.setattr(hf, "save_file", save)
    with pytest.raises(UserError, match=f"transformers reads other weights than were rounded, {name} for one"):
        exported(hf.write_folder, "nanochat", tokenizer, tmp_path / "out", "bf16")
    assert list(tmp_path.iterdir()) == []


def test_rounding_is_for_folders_of_transformers() -> None:
    for form in ("gguf", "tokenizer"):
        with pytest.raises(UserError, match=r"^--dtype=bf16 is for --format=hf \(llama.cpp's own"):
            Config(source="sft", tag="d1", format=form, dtype="bf16")
    with pytest.raises(UserError, match=r"^--quant=int8-row has rounded the weights already: leave --dtype=bf16 out"):
        Config(source="sft", tag="d1", quant="int8-row", dtype="bf16")


QUESTION = {"role": "user", "content": "What is 12 * 34?"}
PARTS = json.loads("""[{"type": "text", "text": "Let me see. "}, {"type": "python", "text": "12*34"},
    {"type": "python_output", "text": "408"}, {"type": "text", "text": "\\n\\n408."}]""")
TURNS = json.loads("""[
    {"role": "system", "content": " Be brief. \\n"}, {"role": "user", "content": "\\n hi  "},
    {"role": "assistant", "content": ""},
    {"role": "user", "content": [{"type": "text", "text": "안녕 {{ x }} {% if %} </s>"}]}
]""")
CHATS = [[QUESTION], TURNS, [QUESTION, {"role": "assistant", "content": PARTS}]]


def test_tokens_and_chat_template_are_the_same(folder, tokenizer) -> None:
    words = transformers.AutoTokenizer.from_pretrained(folder[1], trust_remote_code=True)
    assert (words.bos_token, words.eos_token, words.pad_token) == ("<|bos|>", "<|assistant_end|>", "<|output_end|>")
    plain = [text for text in sample_texts() if "<|" not in text]  # there a name is the token
    roles = ("system", "user", "assistant", "user", "assistant")
    many = [[{"role": role, "content": plain[i - 7 * j]} for j, role in enumerate(roles[i % 2 :])] for i in range(250)]
    for messages in CHATS + many:
        ours, _ = chat.render_conversation({"messages": messages}, tokenizer)
        assert words.apply_chat_template(messages)["input_ids"] == ours
    for messages in CHATS[:2]:
        ours = chat.render_prompt({"messages": messages}, tokenizer)
        assert words.apply_chat_template(messages, add_generation_prompt=True)["input_ids"] == ours
    for wrong in ([QUESTION] * 2, [CHATS[1][2]], [QUESTION, QUESTION | {"role": "tool"}]):
        with pytest.raises(Exception, match="take turns"):
            words.apply_chat_template(wrong)


def test_gguf_is_compared_too(tokenizer, tmp_path) -> None:
    _, out, output = exported(gguf.write_gguf, "qwen3", tokenizer, tmp_path / "out")
    assert [path.name for path in out.iterdir()] == ["model.gguf"]
    assert "logits: the largest difference in fp32 is " in output
    assert "splits numbers of three or more digits in another way" in output
    with pytest.raises(ValueError, match=r"llama.cpp's Qwen3 does not support mlp=relu2, softcap=15.0"):
        exported(gguf.write_gguf, "nanochat", tokenizer, tmp_path / "other")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_another_model_is_noticed_and_not_kept(tokenizer, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(hf, "swap_halves", lambda weight, head_dim: weight)
    with pytest.raises(ValueError, match=r"^the export computes something else: logits differ by \d"):
        exported(hf.write_folder, "nanochat", tokenizer, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_another_tokenizer_is_noticed_and_not_kept(tokenizer, tmp_path, monkeypatch) -> None:
    merges = hf.tokenizer_files.written_merges
    monkeypatch.setattr(hf.tokenizer_files, "written_merges", lambda tokenizer: merges(tokenizer)[:-40])
    with pytest.raises(ValueError, match=r"^transformers gives other ids for"):
        exported(hf.write_tokenizer, "qwen3", tokenizer, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_the_card_has_the_licenses_of_all_data() -> None:
    base_rows = [["base_train", "world-2"], ["base_train", "notes"]]
    assert learned_from(MANIFEST) == base_rows
    chat_model = {"stage": "chat_sft", "data": {"seed": 1, "tasks": {"GSM8K~styles:2": {}, "CLIcK": {}}}}
    assert hf.licenses(chat_model | {"learned": base_rows}) == [
        ["chat_sft", "GSM8K~styles:2", "MIT"],
        ["chat_sft", "CLIcK", "not known"],
        ["base_train", "world-2", "MIT"],
        ["base_train", "notes", "not known"],
    ]
    assert hf.licenses(chat_model | {"data": None}) == [["chat_sft", "not recorded", "not known"]]


def test_an_existing_folder_is_not_touched(tokenizer, tmp_path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/precious").write_text("x")
    with pytest.raises(ValueError, match="exists already: remove it, or name another --out"):
        exported(hf.write_tokenizer, "qwen3", tokenizer, tmp_path / "out")
    assert (tmp_path / "out/precious").read_text() == "x"
    exported(hf.write_tokenizer, "qwen3", tokenizer, tmp_path / "new")
    assert (tmp_path / "new/tokenizer.json").exists()
