"""Checkpoints as the public nanochat writes them, and its model of October 2025 in a few plain lines."""

import json
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

SHAPE = {"sequence_len": 192, "vocab_size": 701, "n_layer": 3, "n_head": 4, "n_kv_head": 2, "n_embd": 64}


def october(shape: dict = SHAPE, padded: int = 0) -> dict[str, Tensor]:
    """Random weights of the model of October 2025; padded: rows of the vocabulary, padded from December on."""
    width = shape["n_embd"]
    rows = padded or shape["vocab_size"]
    narrow = width * shape["n_kv_head"] // shape["n_head"]
    sizes = {"transformer.wte.weight": (rows, width), "lm_head.weight": (rows, width)}
    inner = {"attn.c_q": (width, width), "attn.c_k": (narrow, width), "attn.c_v": (narrow, width)}
    inner |= {"attn.c_proj": (width, width), "mlp.c_fc": (4 * width, width), "mlp.c_proj": (width, 4 * width)}
    for number in range(shape["n_layer"]):
        sizes |= {f"transformer.h.{number}.{name}.weight": size for name, size in inner.items()}
    return _random(sizes)


def since_march(shape: dict = SHAPE) -> dict[str, Tensor]:
    """Random weights of the model since March 2026, with a padded vocabulary and all its tricks."""
    depth, width = shape["n_layer"], shape["n_embd"]
    rows = math.ceil(shape["vocab_size"] / 64) * 64
    narrow = width * shape["n_kv_head"] // shape["n_head"]
    sizes = {"resid_lambdas": (depth,), "x0_lambdas": (depth,), "smear_lambda": (1,), "backout_lambda": (1,)}
    sizes["smear_gate.weight"] = (1, 24)
    for number in range(depth - 1, -1, -2):
        sizes[f"value_embeds.{number}.weight"] = (rows, narrow)
        sizes[f"transformer.h.{number}.attn.ve_gate.weight"] = (shape["n_kv_head"], 12)
    return october(shape, rows) | _random(sizes)


def _random(sizes: dict[str, tuple]) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(len(sizes))
    return {name: 0.2 * torch.randn(size, generator=generator) for name, size in sizes.items()}


def leave(folder: Path, weights: dict, shape: dict = SHAPE, step: int = 650, **meta) -> Path:
    """Save a checkpoint as the public training does: embedding in bf16, names of a compiled model."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {f"_orig_mod.{name}": weight for name, weight in weights.items()}
    weights["_orig_mod.transformer.wte.weight"] = weights["_orig_mod.transformer.wte.weight"].bfloat16()
    torch.save(weights, folder / f"model_{step:06d}.pt")
    about = {"step": step, "val_bpb": 1.0, "model_config": shape, "user_config": {"matrix_lr": 0.03}, **meta}
    (folder / f"meta_{step:06d}.json").write_text(json.dumps(about))
    return folder / f"model_{step:06d}.pt"


def forward_of_october(weights: dict[str, Tensor], ids: Tensor, shape: dict = SHAPE) -> Tensor:
    """Logits, with rotation tables in fp32 (the original rounds them to bf16)."""
    heads, narrow = shape["n_head"], shape["n_kv_head"]
    size = shape["n_embd"] // heads
    norm = lambda x: F.rms_norm(x, (x.shape[-1],))  # noqa: E731
    rates = 1.0 / 10000 ** (torch.arange(0, size, 2, dtype=torch.float32) / size)
    angles = torch.outer(torch.arange(ids.shape[1], dtype=torch.float32), rates)
    cos, sin = angles.cos(), angles.sin()

    def rotated(x: Tensor) -> Tensor:
        """(rows, heads, length, size), by minus the position."""
        a, b = x.chunk(2, dim=-1)
        return norm(torch.cat([a * cos + b * sin, b * cos - a * sin], dim=-1))

    x = norm(weights["transformer.wte.weight"].bfloat16().float()[ids])
    for number in range(shape["n_layer"]):
        w = {name: weights[f"transformer.h.{number}.{name}.weight"] for name in PARTS}
        h = norm(x)
        q, k, v = (
            (h @ w[f"attn.c_{one}"].T).unflatten(-1, (count, size)).transpose(1, 2)
            for one, count in (("q", heads), ("k", narrow), ("v", narrow))
        )
        k, v = (one.repeat_interleave(heads // narrow, dim=1) for one in (rotated(k), v))
        scores = (rotated(q) @ k.transpose(-1, -2)) / size**0.5
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        y = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v
        x = x + y.transpose(1, 2).flatten(-2) @ w["attn.c_proj"].T
        x = x + F.relu(norm(x) @ w["mlp.c_fc"].T).square() @ w["mlp.c_proj"].T
    logits = (norm(x) @ weights["lm_head.weight"].T)[..., : shape["vocab_size"]]
    return 15 * torch.tanh(logits / 15)


PARTS = ("attn.c_q", "attn.c_k", "attn.c_v", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
