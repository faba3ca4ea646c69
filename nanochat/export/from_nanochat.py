"""Import of checkpoints of the public nanochat, `model_*.pt` and `meta_*.json`: of October 2025, and since March 2026.

Between the two the layout and the meaning of names changed from week to week: such checkpoints are refused.
"""

import json
import re
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nanochat.export.hf import swap_halves
from nanochat.gpt import GPTConfig
from nanochat.models import CONFIGURATIONS, new_model

# Public config name -> GPTConfig field.
SHAPE = {
    "sequence_len": "max_seq_len",
    "vocab_size": "vocab_size",
    "n_layer": "depth",
    "n_head": "heads",
    "n_kv_head": "kv_heads",
    "n_embd": "width",
}
# Pattern for a public parameter name -> our name.
NAMES = {
    r"transformer\.wte\.weight": "embed.weight",
    r"lm_head\.weight": "head.weight",
    r"transformer\.h\.(\d+)\.attn\.c_([qkv])\.weight": r"blocks.\1.attn.\2.weight",
    r"transformer\.h\.(\d+)\.attn\.c_proj\.weight": r"blocks.\1.attn.o.weight",
    r"transformer\.h\.(\d+)\.attn\.ve_gate\.weight": r"blocks.\1.attn.ve_gate.weight",
    r"transformer\.h\.(\d+)\.mlp\.c_fc\.weight": r"blocks.\1.mlp.up.weight",
    r"transformer\.h\.(\d+)\.mlp\.c_proj\.weight": r"blocks.\1.mlp.down.weight",
    r"value_embeds\.(\d+)\.weight": r"value_embeds.\1.weight",
    r"resid_lambdas": "residual_lambdas",
    r"(x0_lambdas|smear_lambda|backout_lambda|smear_gate\.weight)": r"\1",
}
# Fine-tuning inherits these settings from its parent; defaults of October 2025 for values that the file lacks.
INHERITED = {
    "total_batch_size": 524_288,
    "embedding_lr": 0.2,
    "unembedding_lr": 0.004,
    "matrix_lr": 0.02,
    "scalar_lr": 0.5,
    "grad_clip": 1.0,
}


def find_checkpoint(place: Path, step: int | None = None) -> tuple[Path, int]:
    """Return the model file and the step. place: the file or the folder; step None: the newest."""
    files = [place] if place.is_file() else sorted(place.glob("model_*.pt"))
    steps = {}
    for file in files:
        match = re.fullmatch(r"model_(\d+)\.pt", file.name)
        if match:
            steps[int(match[1])] = file
    # The highest number is the newest.
    if step is None:
        step = max(steps, default=None)
    if step not in steps:
        missing = "model_*.pt" if step is None else f"model_{step:06d}.pt"
        raise ValueError(f"there is no {missing} at {place}: name the folder or the file of a checkpoint")
    return steps[step], step


def read_checkpoint(path: Path) -> tuple[GPTConfig, dict[str, Tensor], dict[str, Any]]:
    """Return our config, our weights in fp32, and the training settings for fine-tuning to inherit."""
    meta = _read_meta(path.with_name(path.name.replace("model_", "meta_").replace(".pt", ".json")))
    stored = {}
    for name, tensor in _read_weights(path).items():
        stored[name.removeprefix("_orig_mod.")] = tensor.float()  # prefix of compiled models
    config = _config(meta["model_config"], is_newer="resid_lambdas" in stored, path=path)
    # On the meta device a model has names and shapes, but no memory.
    with torch.device("meta"):
        expected = new_model(config).state_dict()
    weights = _renamed(stored, path)
    for name in ("embed.weight", "head.weight"):
        # October's vocabulary was not padded.
        if name in weights and len(weights[name]) == config.vocab_size:
            weights[name] = F.pad(weights[name], (0, 0, 0, config.padded_vocab - config.vocab_size))
    faults = _faults(weights, expected)
    if faults:
        raise ValueError(f"{path} has neither known layout, October 2025 or since March 2026: {', '.join(faults[:5])}")
    for name, tensor in weights.items():
        if name.endswith((".q.weight", ".k.weight")):
            weights[name] = swap_halves(tensor, config.head_dim)  # the public model rotates by minus the position
    settings = {"data": "", "max_seq_len": config.max_seq_len}
    # Versions differ in the place of a setting: at the top level, or among the flags of the user.
    used = meta.get("user_config", {}) | meta
    for name, default in INHERITED.items():
        # Negative values stand for "automatic".
        is_known = isinstance(used.get(name), int | float) and used[name] >= 0
        settings[name] = used[name] if is_known else default
    return config, weights, settings


def _read_weights(path: Path) -> dict[str, Tensor]:
    """Load tensors only: any other pickle could run a program."""
    try:
        stored = torch.load(path, map_location="cpu", weights_only=True)
        is_sound = bool(stored) and all(isinstance(one, Tensor) for one in stored.values())
    except Exception:  # torch and pickle raise many kinds for a damaged file
        is_sound = False
    if not is_sound:
        raise ValueError(f"{path} is damaged, or holds more than weights, which is not loaded")
    return stored


def _read_meta(path: Path) -> dict[str, Any]:
    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
        shape = meta["model_config"]
        is_sound = all(isinstance(shape[name], int) for name in SHAPE)
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}): put it beside the model") from None
    except (ValueError, KeyError, TypeError):
        is_sound = False
    if not is_sound:
        raise ValueError(f"{path} has no model_config with {', '.join(SHAPE)}")
    return meta


def _config(shape: dict[str, Any], is_newer: bool, path: Path) -> GPTConfig:
    # The file has sizes only; the tricks follow from the layout.
    fields = dict(CONFIGURATIONS["reference" if is_newer else "october-2025"])
    known = SHAPE | ({"window_pattern": "window_pattern"} if is_newer else {})
    for name, value in shape.items():
        if name not in known:
            raise ValueError(f"{path}: the model has an unknown setting {name}")
        fields[known[name]] = value
    # No bos_id: the public smear reaches across the start of a document.
    return GPTConfig(**fields)


def _renamed(stored: dict[str, Tensor], path: Path) -> dict[str, Tensor]:
    weights = {}
    for name, tensor in stored.items():
        # At most one pattern fits: they are full names.
        matching = [pattern for pattern in NAMES if re.fullmatch(pattern, name)]
        if not matching:
            raise ValueError(f"{path} has a parameter {name}, which our model does not have")
        weights[re.sub(matching[0], NAMES[matching[0]], name)] = tensor
    return weights


def _faults(weights: dict[str, Tensor], expected: dict[str, Tensor]) -> list[str]:
    """Return a sentence for each missing, unknown or misshapen weight."""
    found = {name: list(tensor.shape) for name, tensor in weights.items()}
    wanted = {name: list(tensor.shape) for name, tensor in expected.items()}
    faults = []
    for name in sorted(found.keys() | wanted.keys()):
        if found.get(name) != wanted.get(name):
            faults.append(f"{name} is {found.get(name, 'missing')} and should be {wanted.get(name, 'missing')}")
    return faults
