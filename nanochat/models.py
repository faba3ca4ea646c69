"""The model registry: from a manifest or a --model value to a config, and from a config to a model."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from importlib import import_module

import torch

from nanochat.config import check_names
from nanochat.gpt import GPT, NORM_EPS, GPTConfig
from nanochat.log import Record, parse_rows

# Other flags set these fields, so --model does not change them.
FLAG_FIELDS = """
    vocab_size depth width heads kv_heads max_seq_len bos_id supervision loops passes detached
""".split()
# Tricks that other programs do not know: a model is exported only if it has these values (export/hf.py).
PLAIN = (
    f"window_pattern=L,rope_dims=0,query_gain=0,qk_eps={NORM_EPS},exclusive_last=0,"
    "residual_lambdas=false,x0_lambdas=false,"
    "value_embeds=false,"
    "smear=false,induction=false,backout=false,sweeps=1"
)
# --model: name, and the fields that may differ from the defaults.
# induction: the reference, changed so that the model learns within few steps to search the context.
# golf: a small budget in bytes (tracks/golf/README.md). golf-seed: the seed of that track, for one GPU and 16 MB.
# portable: the architecture that other programs know as Qwen3, with the tricks that fit into its weights. Its MLP has
# three matrices in place of two, with as many weights together.
ROWS = f"""
    reference
    october-2025 {PLAIN},mlp=relu2,qk_scale=1,rope_base=10000
    induction induction=true,tie_embeddings=true
    golf induction=true,tie_embeddings=true,residual_lambdas=false,x0_lambdas=false,value_embeds=false,\
        mlp=leaky2,mlp_ratio=3
    golf-seed {PLAIN},tie_embeddings=true,mlp_ratio=3,rope_base=10000,rope_dims=32,exclusive_last=2,\
        qk_scale=1,query_gain=1.75,qk_eps=1e-6,orthogonal=true,softcap=30
    portable {PLAIN},residual_lambdas=true,mlp=swiglu,mlp_ratio={8 / 3},softcap=0
"""
CONFIGURATIONS = {name: changes for name, *changes in parse_rows(ROWS, "[ ,]+")}


def config_of(manifest: Record) -> GPTConfig:
    """Return the model config described by a checkpoint's manifest."""
    try:
        return GPTConfig(**manifest["model"])
    except TypeError:
        raise ValueError("another version of this code has written the checkpoint: train the model again") from None


def new_model(config: GPTConfig, attention: str = "sdpa", checkpointing: bool = False) -> GPT:
    """Return a model for the config that has shapes alone: its `to_empty` takes memory on a device."""
    with torch.device("meta"):
        return model_class(config)(config, attention, checkpointing)


def model_class(config: GPTConfig) -> type[GPT]:
    """Return the class of models with this config."""
    if config.sweeps < 1 or (config.supervision and config.sweeps > 1):
        raise ValueError(f"sweeps={config.sweeps} has to be at least 1, and 1 with supervision")
    if not config.supervision:
        return GPT
    return import_module("tracks.recursion.model").RecursiveGPT


@contextmanager
def as_written(model: GPT) -> Iterator[None]:
    """Run nothing compiled of a model in this context, for batches with ever new shapes."""
    before = model.attention
    # Flex would hold all scores in memory uncompiled, and FlashAttention has no positions.
    model.attention = "chunks" if model.device.type == "cpu" else "sdpa"
    try:
        with torch.compiler.set_stance("force_eager") if model.compiled else nullcontext():
            yield
    finally:
        model.attention = before


def config_fields(text: str) -> Record:
    """Return the GPTConfig fields for a --model value: a name in CONFIGURATIONS, then changes to single fields.

    "reference,backout=false,softcap=0" is the reference with two fields changed. Sizes have separate flags.
    """
    name, *changes = text.split(",")
    check_names("--model:", [name], CONFIGURATIONS)
    changed = {}
    defaults = {name: value for name, value in asdict(GPTConfig()).items() if name not in FLAG_FIELDS}
    for change in CONFIGURATIONS[name] + changes:
        field, _, value = change.partition("=")
        if field in FLAG_FIELDS:
            raise ValueError(f"--model={text}: {field} is set by its own flag, see --help")
        check_names(f"--model={text}: the field", [field], defaults)
        kind = type(defaults[field])
        try:
            changed[field] = {"true": True, "false": False}[value] if kind is bool else kind(value)
        except (KeyError, ValueError):
            raise ValueError(f"--model={text}: {field} cannot be {value}, write a {kind.__name__}") from None
    return changed
