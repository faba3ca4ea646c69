"""The registry of models: from a manifest or a --model value to a config, and from a config to a model."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from nanochat.gpt import GPT, PLAIN, GPTConfig

SIZE_FIELDS = ("vocab_size", "depth", "width", "heads", "kv_heads", "max_seq_len", "bos_id")  # set by other flags
CONFIGURATIONS = {  # --model: name → fields that differ from the defaults
    "reference": {},
    "october-2025": {**PLAIN, "qk_scale": 1.0, "rope_base": 10_000.0},
    # The reference, made to search its context after few training steps.
    "induction": {"induction": True, "tie_embeddings": True},
    # The architecture that other programs know as Qwen3.
    "portable": {**PLAIN, "qk_scale": 1.0, "mlp": "swiglu", "mlp_ratio": 8 / 3, "softcap": 0.0},
}

# Kind of model → its config and its class. A manifest names the kind; one without a kind, of an older run, means "gpt".
MODEL_KINDS = {"gpt": (GPTConfig, GPT)}


def config_of(manifest: Mapping[str, Any]) -> GPTConfig:
    """Return the config of the model that a checkpoint's manifest describes."""
    fields = dict(manifest["model"])
    kind = fields.pop("kind", "gpt")
    if kind not in MODEL_KINDS:
        raise ValueError(f"this checkpoint holds a model of kind {kind}, take one of {', '.join(MODEL_KINDS)}")
    config_class, _ = MODEL_KINDS[kind]
    return config_class(**fields)


def describe_config(config: GPTConfig) -> dict[str, Any]:
    """Return the config as a manifest's "model" entry: the kind of model and all fields."""
    return {"kind": _kind(config), **asdict(config)}


def _kind(config: GPTConfig) -> str:
    return next(kind for kind, (config_class, _) in MODEL_KINDS.items() if config_class is type(config))


def new_model(config: GPTConfig, attention: str = "sdpa", checkpointing: bool = False) -> GPT:
    """Return a model of the config's kind, without values: call it under torch.device("meta") to take no memory."""
    _, model_class = MODEL_KINDS[_kind(config)]
    return model_class(config, attention, checkpointing)


def config_fields(text: str) -> dict[str, Any]:
    """Return the fields of GPTConfig for a --model value: a name in CONFIGURATIONS, and changes of single fields.

    "reference,qk_gain=true,softcap=0" is the reference with two fields changed. Sizes have flags of their own.
    """
    name, *changes = text.split(",")
    if name not in CONFIGURATIONS:
        raise ValueError(f"--model={name} is not known, take one of {', '.join(CONFIGURATIONS)}")
    fields = dict(CONFIGURATIONS[name])
    defaults = {name: value for name, value in asdict(GPTConfig()).items() if name not in SIZE_FIELDS}
    for change in changes:
        field, _, value = change.partition("=")
        if field not in defaults:
            raise ValueError(f"--model={text}: {field} is no field of GPTConfig, take one of {', '.join(defaults)}")
        fields[field] = _parsed(value, type(defaults[field]), f"--model={text}: {field}")
    return fields


def _parsed(value: str, kind: type, name: str) -> Any:
    if kind is bool:
        if value not in ("true", "false"):
            raise ValueError(f"{name} is {value}, write true or false")
        return value == "true"
    try:
        return kind(value)
    except ValueError:
        raise ValueError(f"{name} is {value}, write a value of type {kind.__name__}") from None
