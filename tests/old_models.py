"""Checkpoints as the public nanochat writes them, and its model of October 2025 as `transformers` has it."""

import json
import math
from pathlib import Path

import torch
from torch import Tensor
from transformers import NanoChatConfig, NanoChatForCausalLM

SHAPE = {"sequence_len": 192, "vocab_size": 701, "n_layer": 3, "n_head": 4, "n_kv_head": 2, "n_embd": 64}


def october(shape: dict = SHAPE, padded: int = 0):
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


def since_march(shape: dict = SHAPE):
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


def _random(sizes: dict[str, tuple]):
    generator = torch.Generator().manual_seed(len(sizes))
    return {name: 0.2 * torch.randn(size, generator=generator) for name, size in sizes.items()}


def leave(folder: Path, weights: dict, shape: dict = SHAPE, step: int = 650, **meta):
    """Save a checkpoint as the public training does: embedding in bf16, names of a compiled model."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {f"_orig_mod.{name}": weight for name, weight in weights.items()}
    weights["_orig_mod.transformer.wte.weight"] = weights["_orig_mod.transformer.wte.weight"].bfloat16()
    torch.save(weights, folder / f"model_{step:06d}.pt")
    about = {"step": step, "val_bpb": 1.0, "model_config": shape, "user_config": {"matrix_lr": 0.03}, **meta}
    (folder / f"meta_{step:06d}.json").write_text(json.dumps(about))
    return folder / f"model_{step:06d}.pt"


# Part of a name -> the part in `transformers`, in this order.
NAMES = {
    "transformer.wte": "model.embed_tokens",
    "transformer.h": "model.layers",
    "attn.c_proj.": "self_attn.o_proj.",
    "attn.c_q": "self_attn.q_proj",
    "attn.c_k": "self_attn.k_proj",
    "attn.c_v": "self_attn.v_proj",
    "mlp.c_fc": "mlp.fc1",
    "mlp.c_proj": "mlp.fc2",
}


def forward_of_october(weights: dict[str, Tensor], ids: Tensor):
    """Logits of the model of October in `transformers`, with rotation tables in fp32 (the original has bf16)."""
    config = NanoChatConfig(
        vocab_size=len(weights["lm_head.weight"]),
        hidden_size=SHAPE["n_embd"],
        intermediate_size=4 * SHAPE["n_embd"],
        num_hidden_layers=SHAPE["n_layer"],
        num_attention_heads=SHAPE["n_head"],
        num_key_value_heads=SHAPE["n_kv_head"],
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        rms_norm_eps=2**-23,  # that of the original's norm
    )
    theirs = {}
    for name, weight in weights.items():
        for part, other in NAMES.items():
            name = name.replace(part, other)
        theirs[name] = weight
    theirs["model.embed_tokens.weight"] = theirs["model.embed_tokens.weight"].bfloat16().float()  # as in the file
    model = NanoChatForCausalLM(config).eval().requires_grad_(False)
    model.load_state_dict(theirs)
    return model(ids).logits[..., : SHAPE["vocab_size"]]
