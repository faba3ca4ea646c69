"""Small models in every configuration of the trunk, and token ids for them. Tests of a track have its own."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from nanochat.attention import attend, make_mask
from nanochat.checkpoint import RECORD, Saver
from nanochat.gpt import GPT
from nanochat.models import CONFIGURATIONS, config_fields, config_with, new_model, record_of
from nanochat.tokenizer import Tokenizer

BOS = 3
SMALL = {"vocab_size": 100, "depth": 4, "width": 64, "heads": 4, "kv_heads": 2, "max_seq_len": 512, "bos_id": BOS}
ODD_SHAPES = {"tie_embeddings": True, "mlp": "swiglu", "window_pattern": "S"}
CONFIGS = {name: SMALL | config_fields(name) for name in CONFIGURATIONS}
CONFIGS["odd shapes"] = {**SMALL, **ODD_SHAPES, "depth": 3, "kv_heads": 1, "mlp_ratio": 1.7}


# "model" in a manifest of November 2026, when GPTConfig had the fields of all kinds of model, for the reference.
OLD_RECORD = {
    "vocab_size": 512,
    "depth": 2,
    "width": 64,
    "heads": 2,
    "kv_heads": 2,
    "max_seq_len": 256,
    "mlp": "relu2",
    "mlp_ratio": 4.0,
    "window_pattern": "SSSL",
    "rope_base": 100000.0,
    "rope_dims": 0,
    "qk_scale": 1.2,
    "query_gain": 0.0,
    "qk_eps": 1.1920928955078125e-07,
    "exclusive_last": 0,
    "orthogonal": False,
    "softcap": 15.0,
    "tie_embeddings": False,
    "residual_lambdas": True,
    "x0_lambdas": True,
    "value_embeds": True,
    "smear": True,
    "induction": False,
    "backout": True,
    "supervision": 0,
    "loops": 2,
    "passes": 1,
    "detached": 0,
    "sweeps": 1,
    "bos_id": 500,
}


def lively(fields: Mapping[str, Any], seed: int = 5, **options: Any) -> GPT:
    """A model in which nothing is zero, as if it had been trained, of the kind that has these fields."""
    model = new_model(config_with(fields), **options).to_empty(device="cpu")
    model.init_weights(seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
        if model.smear_lambda is not None:
            model.smear_lambda += 1
    return model


def model_for(tokenizer: Tokenizer, config: str | Mapping[str, Any] = "reference", **fields: Any) -> GPT:
    """Return a lively model for the ids of a tokenizer. config: fields, or a name in CONFIGS."""
    shape = {"vocab_size": tokenizer.vocab_size, "bos_id": tokenizer.bos}
    usual = CONFIGS[config] if isinstance(config, str) else config
    return lively({**usual, **shape, **fields})


def learn(model: GPT, ids: torch.Tensor, steps: int, rate: float):
    """Train a model on the same rows a few times; return it for inference."""
    optimizer = torch.optim.AdamW(model.parameters(), rate)
    for _ in range(steps):
        optimizer.zero_grad()
        model(ids[:, :-1], ids[:, 1:]).div(ids.numel()).backward()
        optimizer.step()
    return model.eval().requires_grad_(False)


def fake_flash(monkeypatch, ignores_windows=False) -> None:
    """Let FlashAttention 3 compute by the plain formula, on any device."""

    def flash(q, k, v, softmax_scale, causal, window_size):
        assert causal
        window = 0 if ignores_windows else window_size[0] + 1
        return attend(q, k, v, make_mask("twin", q.shape[1], k.shape[1], q.device, window=window), softmax_scale)

    monkeypatch.setattr("nanochat.attention._flash3_kernel", lambda: flash)


def limit_memory(monkeypatch, model: GPT, rows: int) -> None:
    """Let a forward with more rows run out of memory."""
    hidden = model.hidden

    def scarce(ids, *others, **options):
        if len(ids) > rows:
            raise torch.OutOfMemoryError("planted")
        return hidden(ids, *others, **options)

    monkeypatch.setattr(model, "hidden", scarce)


def tokens(rows=2, length=200, seed=6):
    """Token ids of several documents; windows are 129 at these lengths, so they bite."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(BOS + 1, 100, (rows, length), generator=generator)
    ids[:, 0] = BOS
    ids[0, length // 3], ids[-1, length // 2] = BOS, BOS
    return ids


def leave_model(
    base: Path,
    stage: str,
    tag: str,
    tokenizer: Tokenizer,
    step: int = 7,
    tokenizer_tag: str = "default",
    preset: str | Mapping[str, Any] = "october-2025",
    endless: bool = False,
    more=(),
    **fields,
):
    """Write an untrained model and its tokenizer below a base folder, as a run leaves them.

    endless: the likeliest token is never one that ends an answer. more: for the manifest.
    """
    tokenizer.save(base / f"tok_train/{tokenizer_tag}/tokenizer.json")
    model = model_for(tokenizer, preset, **{"depth": 1} | fields)
    if endless:
        model.head.weight.data[list(tokenizer.special_tokens.values())] = 0
    about = {"tokenizer": {"tag": tokenizer_tag, "hash": tokenizer.content_hash}, "dtype": "fp32"}
    record = dict.fromkeys(RECORD) | about | {"model": record_of(model.config)} | dict(more)
    with Saver(base / stage / tag) as saver:
        saver.save(step, model.state_dict(), [], record)
    return model
