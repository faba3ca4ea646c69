"""Import of checkpoints of the public nanochat, `model_*.pt` and `meta_*.json`: of October 2025, and since March 2026.

Between the two the layout and the meaning of names changed from week to week: such checkpoints are refused.
"""

import zipfile
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nanochat.errors import UserError
from nanochat.gpt import GPTConfig
from nanochat.models import config_fields, config_with, new_model
from nanochat.paths import read_json
from tracks.export.hf import swap_halves

# Public config name -> GPTConfig field.
SHAPE = {
    "sequence_len": "max_seq_len",
    "vocab_size": "vocab_size",
    "n_layer": "depth",
    "n_head": "heads",
    "n_kv_head": "kv_heads",
    "n_embd": "width",
    "window_pattern": "window_pattern",  # since March
}
# Part of a public parameter name -> ours, in this order; other parts are the same.
NAMES = {
    "transformer.wte.": "embed.",
    "transformer.h.": "blocks.",
    "lm_head.": "head.",
    "attn.c_proj.": "attn.o.",
    "attn.c_": "attn.",
    "mlp.c_fc.": "mlp.up.",
    "mlp.c_proj.": "mlp.down.",
    "resid_lambdas": "residual_lambdas",
}
MAX_SIZE = 2**20  # of anything in a model


def read_checkpoint(path: Path) -> tuple[GPTConfig, dict[str, Tensor], dict[str, Any]]:
    """Return our config, our weights in fp32, and the training settings for fine-tuning to inherit."""
    meta = read_json(path.with_name(path.name.replace("model_", "meta_")).with_suffix(".json"))
    weights = {}
    storages = {}  # place in memory -> bytes
    try:
        if zipfile.is_zipfile(path):  # else it is of torch before 1.6
            with zipfile.ZipFile(path) as archive:
                entries = archive.infolist()
                if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
                    raise ValueError("its parts are compressed, as torch never does")
                if sum(entry.file_size for entry in entries) > path.stat().st_size:
                    raise ValueError("its parts lie over each other")
        for name, tensor in torch.load(path, map_location="cpu", weights_only=True).items():
            for theirs, ours in NAMES.items():
                name = name.replace(theirs, ours)
            weights[name.removeprefix("_orig_mod.")] = tensor.detach()  # an error for anything but a tensor
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        # A view may name one number a million times, and so may many names: as weights they would take a million times
        # the file.
        if sum(tensor.nbytes for tensor in weights.values()) > sum(storages.values()):
            raise ValueError("its tensors name the same numbers again and again")
    except Exception as error:  # a damaged archive, or one of other values, raises errors of many types
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise UserError(f"{path} holds no weights that can be read: {reason}") from None
    shape = meta.get("model_config") if isinstance(meta, dict) else None
    if not isinstance(shape, dict):
        raise UserError(f"{path}: its meta file has no model_config")
    # Before a model is made, which would need as much time and memory as these numbers say.
    sizes = [shape.get(name) for name in SHAPE if name != "window_pattern"]
    if not all(type(size) is int and 0 < size <= MAX_SIZE for size in sizes) or shape["n_layer"] > len(weights):
        raise UserError(f"{path} has other sizes than its meta file says: {shape}")
    # The file has sizes only; the tricks follow from the layout.
    fields = config_fields("reference" if "residual_lambdas" in weights else "october-2025")
    try:
        # No bos_id: the public smear reaches across the start of a document.
        config = config_with(fields | {SHAPE[name]: value for name, value in shape.items()})
        for name in ("embed.weight", "head.weight"):
            # October's vocabulary was not padded.
            if weights[name].shape == (config.vocab_size, config.width):
                weights[name] = F.pad(weights[name], (0, 0, 0, config.padded_vocab - config.vocab_size))
        model = new_model(config)
        model.load_state_dict(weights, assign=True)  # compares names and shapes, and copies nothing
    except (KeyError, RuntimeError):
        raise UserError(f"{path} has neither known layout, October 2025 or since March 2026") from None
    for name, tensor in weights.items():
        weights[name] = tensor.float()
        if name.endswith((".q.weight", ".k.weight")):
            # The public model rotates by minus the position.
            weights[name] = swap_halves(weights[name], config.head_dim)
    # Fine-tuning inherits these from its parent: the defaults of October 2025.
    settings = {
        "data": "",
        "max_seq_len": config.max_seq_len,
        "total_batch_size": 524_288,
        "embedding_lr": 0.2,
        "unembedding_lr": 0.004,
        "matrix_lr": 0.02,
        "scalar_lr": 0.5,
        "grad_clip": 1.0,
    }
    return config, weights, settings
