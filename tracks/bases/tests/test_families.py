"""Configs of the families, read: what decides values is taken over or refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from nanochat.errors import UserError
from nanochat.models import new_model
from tracks.bases.families import FAMILIES, names_of, read_config
from tracks.bases.sources import open_source
from tracks.bases.tests.public_models import CASES, COMMON, LLAMA3, model_of, save_folder


def settings_of(case: str, **changes: Any) -> dict[str, Any]:
    name, own = CASES[case]
    settings = getattr(transformers, name)(**{**COMMON, **own}).to_dict()
    settings.pop("architectures", None)
    return settings | changes


@pytest.mark.parametrize("case", CASES)
def test_names(case: str) -> None:
    """Every parameter of ours has a name there, and every one there has a name here."""
    config = read_config(settings_of(case))
    with torch.device("meta"):
        theirs = transformers.AutoModelForCausalLM.from_config(
            getattr(transformers, CASES[case][0])(**settings_of(case))
        )
    names = list(names_of(config))
    assert {one.ours for one in names} == {name for name, _ in new_model(config).named_parameters()}
    assert {one.theirs for one in names} == {name for name, _ in theirs.named_parameters()}
    assert len({one.gguf for one in names}) == len(names)


def test_old_files() -> None:
    """As `transformers` before version 5 wrote them, and with settings left out."""
    old = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    old |= {"num_attention_heads": 4, "vocab_size": 300, "max_position_embeddings": 1024, "num_key_value_heads": None}
    config = read_config(old)
    assert (config.kv_heads, config.channels, config.rope_base, config.tie_embeddings) == (4, 16, 10_000.0, False)
    scaled = read_config({**old, "rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}})
    assert (scaled.rope_kind, scaled.rope_factor, scaled.rope_base) == ("linear", 2.0, 5e5)
    gemma = old | {"model_type": "gemma3_text", "num_hidden_layers": 7, "sliding_window": 32, "head_dim": 32}
    config = read_config(gemma | {"hidden_activation": "gelu_pytorch_tanh", "rope_local_base_freq": 20_000.0})
    assert (config.window_pattern, config.rope_base, config.rope_base_short) == ("SSSSSLS", 1e6, 20_000.0)
    assert (config.tie_embeddings, config.score_scale, config.embedding_scale) == (True, 256**-0.5, 8.0)


def test_no_window() -> None:
    """As `transformers` reads a window without a value."""
    settings = settings_of("qwen2-windows", layer_types=None) | {"sliding_window": None}
    assert read_config(settings).windows == [0, 0, 0]


@pytest.mark.parametrize(
    ("case", "changes"),
    [
        ("llama", {"hidden_activation": "gelu_pytorch_tanh"}),
        ("gemma3", {"hidden_act": "silu"}),  # and no hidden_activation
        ("gemma3", {"layer_types": None, "_sliding_window_pattern": 2}),
        ("gemma3", {"layer_types": None, "sliding_window_pattern": 2}),
        ("gemma3", {"layer_types": None, "sliding_window_pattern": 3, "_sliding_window_pattern": 2}),
    ],
)
def test_settings_of_another_family_or_version(case: str, changes: dict[str, Any], tmp_path: Path) -> None:
    """What `transformers` does not read changes nothing here."""
    save_folder(case, tmp_path)
    file = tmp_path / "config.json"
    settings = json.loads(file.read_text()) | changes
    if case == "gemma3" and "hidden_act" in changes:
        del settings["hidden_activation"]
    file.write_text(json.dumps(settings))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    ids = torch.arange(100)[None]
    with torch.no_grad():
        torch.testing.assert_close(model_of(open_source(str(tmp_path)))(ids), theirs(ids).logits, rtol=1e-4, atol=1e-4)


def test_a_shorter_context() -> None:
    assert read_config(settings_of("llama"), context=100).max_seq_len == 100
    assert read_config(settings_of("llama"), context=10_000).max_seq_len == 512  # not more than it was made for


@pytest.mark.parametrize(
    ("case", "changes", "sentence"),
    [
        (
            "llama",
            {"model_type": "mamba", "architectures": ["MambaForCausalLM"]},
            "its architecture is MambaForCausalLM",
        ),
        ("llama", {"model_type": None}, "its architecture is without a name"),
        (
            "llama",
            {"model_type": None, "architectures": ["LlamaForCausalLM"]},
            'its config has no model_type: add "model_type": "llama"',
        ),
        (
            "llama",
            {"model_type": "mistral", "architectures": ["LlamaForCausalLM"], "sliding_window": 8},
            "its config has architectures=['LlamaForCausalLM'] and model_type=mistral: one of them is wrong",
        ),
        (
            "gemma3",
            {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3"},
            "only LlamaForCausalLM",
        ),
        ("llama", {"hidden_act": "relu"}, "its activation is relu"),
        ("llama", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "scaled by yarn"),
        ("llama", {"rope_parameters": {"rope_type": "llama3", "factor": 4.0}}, "without low_freq_factor"),
        (
            "llama",
            {"rope_parameters": {**LLAMA3, "low_freq_factor": 4.0}},
            "low_freq_factor=4.0 and high_freq_factor=4.0 for rotary positions: the first has to be smaller",
        ),
        ("llama", {"rope_parameters": {**LLAMA3, "low_freq_factor": 5}}, "low_freq_factor=5 and high_freq_factor=4.0"),
        (
            "llama",
            {"rope_parameters": {**LLAMA3, "original_max_position_embeddings": None}},
            "scaled by llama3, without original_max_position_embeddings",
        ),
        (
            "llama",
            {"rope_parameters": {**LLAMA3, "original_max_position_embeddings": -5}},
            "its config has original_max_position_embeddings=-5 for rotary positions",
        ),
        ("llama", {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "only a part of each head"),
        ("llama", {"quantization_config": {"quant_method": "gptq"}}, "its config has quantization_config"),
        ("gemma3", {"attn_logit_softcapping": 50.0}, "its config has attn_logit_softcapping=50.0"),
        ("qwen3", {"layer_types": ["full_attention"]}, "are not 3 times sliding_attention or full_attention"),
        ("qwen3", {"layer_types": ["linear_attention"] * 3}, "are not 3 times"),
        ("llama", {"hidden_size": None}, "its config has no hidden_size"),
        ("llama", {"hidden_size": "many"}, "its config has hidden_size=many, which cannot be"),
        ("llama", {"head_dim": 15}, "channels=15 of a head cannot rotate in pairs"),
        ("llama", {"head_dim": -4}, "its config has head_dim=-4"),
        ("llama", {"num_key_value_heads": 2.0}, "its config has num_key_value_heads=2.0"),
        ("llama", {"rms_norm_eps": "x"}, "its config has rms_norm_eps=x"),
        ("llama", {"rms_norm_eps": float("nan")}, "its config has rms_norm_eps=nan"),
        ("llama", {"tie_word_embeddings": "false"}, "its config has tie_word_embeddings=false"),
        ("llama", {"rope_parameters": [1]}, "its config has rope_parameters=[1]"),
        ("llama", {"rope_parameters": {"rope_theta": "x"}}, "its config has rope_theta=x for rotary positions"),
        ("llama", {"rope_parameters": {"rope_type": "linear", "factor": "4"}}, "its config has factor=4 for rotary"),
        ("llama", {"rope_parameters": {"rope_type": ["linear"]}}, "scaled by ['linear']"),
        ("llama", {"hidden_act": ["silu"]}, "its activation is ['silu']"),
        ("gemma3", {"query_pre_attn_scalar": 0}, "its config has query_pre_attn_scalar=0"),
        ("gemma3", {"layer_types": None, "sliding_window_pattern": 0}, "its config has sliding_window_pattern=0"),
        ("gemma3", {"rope_parameters": {"rope_theta": 1e5}}, "rope_parameters are not those of full_attention and of"),
        ("gemma3", {"layer_types": 5}, "its config cannot be read"),
        ("llama", {"num_key_value_heads": 3}, "kv_heads=3 does not divide heads=4"),
        ("llama", {"vocab_size": -5}, "its config has vocab_size=-5"),
        ("llama", {"num_hidden_layers": 10**9}, "its config has num_hidden_layers=1000000000"),
        # What `transformers` refuses could not be exported.
        ("llama", {"rms_norm_eps": 1}, "its config has rms_norm_eps=1, which cannot be"),
        ("llama", {"attention_bias": None}, "its config has attention_bias=null, which cannot be: leave it out"),
        ("qwen2", {"use_sliding_window": None}, "its config has use_sliding_window=null"),
        ("qwen3", {"head_dim": None}, "its config has head_dim=null"),
        ("gemma3", {"hidden_activation": None}, "its config has hidden_activation=null"),
        ("gemma3", {"query_pre_attn_scalar": 20.0}, "its config has query_pre_attn_scalar=20.0, which cannot be"),
    ],
)
def test_what_is_refused(case: str, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as error:
        read_config(settings_of(case, **changes))
    assert sentence in str(error.value)


def test_each_family_has_a_case() -> None:
    assert {read_config(settings_of(case)).family for case in CASES} == set(FAMILIES)
