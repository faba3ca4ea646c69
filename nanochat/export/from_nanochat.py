"""Checkpoints of the public nanochat, `model_*.pt` and `meta_*.json`, as ours: of October 2025, and since March 2026.

Between the two its layout, and what the same names meant, changed from week to week: those are refused.
"""

import json
import re
import zipfile
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nanochat.export.forms import swap_halves
from nanochat.gpt import CONFIGURATIONS, GPT, GPTConfig

SHAPE = {  # its name -> ours
    "sequence_len": "max_seq_len",
    "vocab_size": "vocab_size",
    "n_layer": "depth",
    "n_head": "heads",
    "n_kv_head": "kv_heads",
    "n_embd": "width",
}
NAMES = {  # pattern of its parameters -> ours
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
# What fine-tuning takes from the model it starts from, where the file does not say: the defaults of October 2025.
SETTINGS = {"total_batch_size": 524_288, "embedding_lr": 0.2, "unembedding_lr": 0.004, "matrix_lr": 0.02}
SETTINGS |= {"scalar_lr": 0.5, "grad_clip": 1.0}


def find(place: Path, step: int | None = None) -> tuple[Path, int]:
    """The file of the model, and its step, from the name of the file or of its folder; step None: the newest."""
    files = [place] if place.is_file() else sorted(place.glob("model_*.pt"))
    steps = {int(named[1]): file for file in files if (named := re.fullmatch(r"model_(\d+)\.pt", file.name))}
    if not steps or (step is not None and step not in steps):
        what = f"no model_{step:06d}.pt" if steps else "no model_*.pt"
        raise ValueError(f"{place} is, or holds, {what}: name the folder or the file of a checkpoint")
    step = max(steps) if step is None else step
    return steps[step], step


def read(path: Path) -> tuple[GPTConfig, dict[str, Tensor], dict[str, Any]]:
    """Config and weights as ours, in fp32, and the settings of its training that fine-tuning goes on with."""
    meta = _meta(path.with_name(path.name.replace("model_", "meta_").replace(".pt", ".json")))
    stored = _weights(path)
    stored = {name.removeprefix("_orig_mod."): one.float() for name, one in stored.items()}
    config = _config(meta["model_config"], stored, path)
    found = _renamed(stored, path)
    with torch.device("meta"):
        expected = GPT(config).state_dict()
    if faults := _faults(found, expected, config):
        raise ValueError(f"{path} is of neither layout that is known, October 2025 or since March 2026: {faults}")
    for name, tensor in found.items():
        if len(tensor) < len(expected[name]):  # the vocabulary was not padded then
            found[name] = F.pad(tensor, (0, 0, 0, len(expected[name]) - len(tensor)))
        elif name.endswith((".q.weight", ".k.weight")):
            found[name] = swap_halves(tensor, config.head_dim)  # it turns by minus the position
    used = meta.get("user_config", {}) | {name: meta[name] for name in SETTINGS if name in meta}
    trained = {name: used[name] for name in SETTINGS if isinstance(used.get(name), int | float) and used[name] >= 0}
    return config, found, {"data": "", "max_seq_len": config.max_seq_len, **SETTINGS, **trained}


def _weights(path: Path) -> dict[str, Tensor]:
    """Nothing but tensors is loaded: a pickle could run any program."""
    damage = (RuntimeError, LookupError, ValueError, TypeError, AttributeError, EOFError, OSError)
    try:
        if zipfile.is_zipfile(path):  # as torch.save has written for long
            stored = torch.load(path, map_location="cpu", weights_only=True)
            if stored and all(isinstance(one, Tensor) for one in stored.values()):
                return stored
    except (*damage, torch.serialization.pickle.UnpicklingError):  # the last: how weights_only refuses
        pass
    raise ValueError(f"{path} is damaged, or holds more than weights, which is not loaded")


def _meta(path: Path) -> dict[str, Any]:
    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
        shape = meta["model_config"]
        if {type(shape[name]) for name in SHAPE} == {int}:
            return meta
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}): it has to lie beside the model") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise ValueError(f"{path} has no model_config with {', '.join(SHAPE)}")


def _config(shape: dict[str, Any], stored: dict[str, Tensor], path: Path) -> GPTConfig:
    newer = "resid_lambdas" in stored
    known = {**SHAPE, "window_pattern": "window_pattern"} if newer else SHAPE
    if unknown := shape.keys() - known.keys():
        raise ValueError(f"{path}: the setting {', '.join(sorted(unknown))} of its model is not known")
    fields = CONFIGURATIONS["reference" if newer else "october-2025"]
    # There, a token that starts a document takes of the one before it as all others do.
    return GPTConfig(**{**fields, **{known[name]: value for name, value in shape.items()}, "bos_id": -1})


def _renamed(stored: dict[str, Tensor], path: Path) -> dict[str, Tensor]:
    found = {}
    for name, tensor in stored.items():
        ours = next((re.sub(pattern, new, name) for pattern, new in NAMES.items() if re.fullmatch(pattern, name)), None)
        if ours is None:
            raise ValueError(f"{path} has a parameter {name}, which has no place in our model")
        found[ours] = tensor
    return found


def _faults(found: dict[str, Tensor], expected: dict[str, Tensor], config: GPTConfig) -> str:
    """What is missing, too much, or of another shape, apart from rows that pad the vocabulary."""
    faults = [f"{name} is missing" for name in expected.keys() - found.keys()]
    faults += [f"{name} is too much" for name in found.keys() - expected.keys()]
    for name in found.keys() & expected.keys():
        shape, due = list(found[name].shape), list(expected[name].shape)
        if shape != due and not (due[0] == config.padded_vocab and shape == [config.vocab_size, *due[1:]]):
            faults.append(f"{name} is {shape} and not {due}")
    return ", ".join(sorted(faults)[:5])
