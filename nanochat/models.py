"""The registry of models: from a manifest or a --model value to a config, and from a config to a model."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, fields

import torch

from nanochat import registry
from nanochat.config import check_names
from nanochat.gpt import GPT, GPTConfig
from nanochat.induction import InductionGPT
from nanochat.log import Record

Value = bool | int | float | str  # of a config's field
Fields = Mapping[str, Value]

KINDS: dict[str, type[GPT]] = {"gpt": GPT, "induction": InductionGPT}  # registry.MODELS has more
# The fields of each kind's config that GPTConfig does not have, with the value that changes nothing. Those of tracks
# have the field of `induction` too.
OWN_FIELDS: dict[str, Fields] = {"induction": {"induction": False}, **registry.MODEL_FIELDS}
IDLE: Fields = {name: value for own in OWN_FIELDS.values() for name, value in own.items()}
# Other flags set these fields, so --model does not change them.
FLAG_FIELDS = (
    *("vocab_size", "depth", "width", "heads", "kv_heads", "max_seq_len", "bos_id"),
    *registry.MODEL_FIELDS["recursive"],
)
# Tricks that other programs do not know: a model is exported only if it has these values (tracks/export/hf.py).
PLAIN: Fields = {
    "window_pattern": "L",
    "residual_lambdas": False,
    "x0_lambdas": False,
    "value_embeds": False,
    "smear": False,
    "induction": False,
    "backout": False,
}
# --model: name, and the fields that differ from the defaults; registry.CONFIGURATIONS has more.
CONFIGURATIONS: dict[str, Fields] = {
    "reference": {},
    "october-2025": {**PLAIN, "mlp": "relu2", "qk_scale": 1.0, "rope_base": 10_000.0},
    # The reference, changed so that the model learns within few steps to search the context.
    "induction": {"induction": True, "tie_embeddings": True},
    # The architecture that other programs know as Qwen3, with the tricks that fit into its weights. Its MLP has three
    # matrices in place of two, with as many weights together.
    "portable": {**PLAIN, "residual_lambdas": True, "mlp": "swiglu", "mlp_ratio": 8 / 3, "softcap": 0.0},
}


# ---- kinds of model ----


def kind_class(kind: str) -> type[GPT]:
    """Return the class of models of a kind."""
    if kind in KINDS:
        return KINDS[kind]
    check_names("the kind of model", [kind], [*KINDS, *registry.MODELS.modules])
    return registry.load(registry.MODELS, kind)


def model_class(config: GPTConfig) -> type[GPT]:
    """Return the class of models with this config."""
    return kind_class(config.kind)


def kind_with(names: Collection[str]) -> str:
    """Return the first kind of model whose config has all these fields; ValueError if none has them together."""
    own = set(names) - {field.name for field in fields(GPTConfig)}
    if not own:
        return "gpt"
    for kind, more in OWN_FIELDS.items():
        if own <= {"induction", *more}:
            return kind
    raise ValueError(f"no kind of model has these fields together: {', '.join(sorted(own))}")


def config_with(values: Fields) -> GPTConfig:
    """Return the config with these values, of the first kind that has all fields which change something."""
    active = _active(values)
    return kind_class(kind_with(active)).config_class(**active)


def _active(values: Fields) -> dict[str, Value]:
    """Return the values without those of a kind's own fields that change nothing."""
    return {name: value for name, value in values.items() if name not in IDLE or value != IDLE[name]}


# ---- manifests ----


def record_of(config: GPTConfig) -> Record:
    """Return the entry "model" of a manifest: the fields, and the kind unless it is a plain GPT."""
    return asdict(config) | ({} if config.kind == GPTConfig.kind else {"kind": config.kind})


def config_of(manifest: Record) -> GPTConfig:
    """Return the model config described by a checkpoint's manifest."""
    record = dict(manifest["model"])
    if "kind" not in record:
        record = _with_kind(record)
    try:
        return kind_class(record.pop("kind")).config_class(**record)
    except TypeError:
        raise ValueError("another version of this code has written the checkpoint: train the model again") from None


def _with_kind(record: Record) -> Record:
    """Return the entry of a manifest without a kind as it is written today.

    Until kinds had configs of their own, GPTConfig had the fields of all kinds, and most of them changed nothing.
    """
    if not record.get("supervision"):  # no recursion: its other fields have no effect
        record = {name: value for name, value in record.items() if name not in OWN_FIELDS["recursive"]}
    record = _active(record)
    known = {*IDLE, *(field.name for field in fields(GPTConfig))}
    return record | {"kind": kind_with(record.keys() & known)}  # a field that nobody knows is refused later


# ---- new models ----


def new_model(config: GPTConfig, attention: str = "sdpa", checkpointing: bool = False) -> GPT:
    """Return a model for the config that has shapes alone: its `to_empty` takes memory on a device."""
    with torch.device("meta"):
        return model_class(config)(config, attention, checkpointing)


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


# ---- --model ----


def configuration(name: str) -> Fields:
    """Return the fields that a name for --model stands for."""
    if name in CONFIGURATIONS:
        return CONFIGURATIONS[name]
    check_names("--model:", [name], [*CONFIGURATIONS, *registry.CONFIGURATIONS.modules])
    return registry.load(registry.CONFIGURATIONS, name)


def config_fields(text: str) -> dict[str, Value]:
    """Return the config fields for a --model value: a name in CONFIGURATIONS, then changes to single fields.

    "reference,backout=false,softcap=0" is the reference with two fields changed. Sizes have separate flags.
    """
    name, *changes = text.split(",")
    changed = dict(configuration(name))
    usual = {name: value for name, value in {**asdict(GPTConfig()), **IDLE}.items() if name not in FLAG_FIELDS}
    for change in changes:
        field, _, value = change.partition("=")
        if field in FLAG_FIELDS:
            raise ValueError(f"--model={text}: {field} is set by its own flag, see --help")
        check_names(f"--model={text}: the field", [field], usual)
        kind = type(usual[field])
        try:
            changed[field] = {"true": True, "false": False}[value] if kind is bool else kind(value)
        except (KeyError, ValueError):
            raise ValueError(f"--model={text}: {field} cannot be {value}, write a {kind.__name__}") from None
    return changed
