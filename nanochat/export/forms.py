"""Our model as an architecture that other programs know: what of it has no home there, its config, its weights."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from nanochat.gpt import GPT, GPTConfig
from nanochat.layers import norm


@dataclass(frozen=True)
class Form:
    """An architecture of `transformers`.

    kind: its model_type. preset: how base_train calls it. only: settings of which it knows one value. carries: those
    that it has besides, or that the weights can stand for. linears: of a block, our name -> its name. turns_back: it
    rotates by minus the position. has_norms: its norms have weights.
    """

    kind: str
    preset: str
    only: dict[str, Any]
    carries: set[str]
    linears: dict[str, str]
    turns_back: bool = False
    has_norms: bool = False


_CARRIED = set("vocab_size depth width heads kv_heads max_seq_len mlp_ratio rope_base norm_eps tie_embeddings".split())
_ONLY = {"qk_norm": True, "qk_gain": False, "rope_dims": 0, "window_pattern": "L", "bos_id": -1, "backout": False}
_ONLY |= {"residual_lambdas": False, "x0_lambdas": False, "value_embeds": False, "smear": False, "induction": False}
_ATTENTION = {f"attn.{part}": f"self_attn.{part}_proj" for part in "qkvo"}
FORMS = {
    "NanoChatForCausalLM": Form(
        kind="nanochat",
        preset="october-2025",
        turns_back=True,
        only={**_ONLY, "mlp": "relu2", "embed_norm": True, "qk_scale": 1.0},
        carries=_CARRIED | {"softcap"},
        linears={**_ATTENTION, "mlp.up": "mlp.fc1", "mlp.down": "mlp.fc2"},
    ),
    "Qwen3ForCausalLM": Form(
        kind="qwen3",
        preset="portable",
        has_norms=True,
        only={**_ONLY, "mlp": "swiglu", "softcap": 0.0},
        carries=_CARRIED | {"embed_norm", "qk_scale"},
        linears={**_ATTENTION, **{f"mlp.{part}": f"mlp.{part}_proj" for part in ("gate", "up", "down")}},
    ),
}


def form_of(config: GPTConfig, names: Sequence[str] = tuple(FORMS)) -> str:
    """The architecture that a model is, of these; ValueError lists what each of them has no place for."""
    lost = {name: homeless(config, FORMS[name]) for name in names}
    if fitting := [name for name in names if not lost[name]]:
        return fitting[0]
    reasons = "; ".join(f"{name} has no place for {', '.join(settings)}" for name, settings in lost.items())
    models = " or ".join(f"--model={FORMS[name].preset}" for name in names)
    raise ValueError(f"this model cannot be exported: {reasons}. Train one with scripts.base_train {models}")


def homeless(config: GPTConfig, form: Form) -> list[str]:
    """The settings for which an architecture has no place, as name=value."""
    found = asdict(config)
    # What has no effect needs no place.
    found["rope_dims"] = config.rope_dims % config.head_dim
    found["window_pattern"] = config.window_pattern if any(config.windows) else "L"
    found["bos_id"] = config.bos_id if config.smear else -1
    known = {name: found[name] for name in form.carries} | form.only
    return [f"{name}={value}" for name, value in found.items() if name not in known or known[name] != value]


def settings(model: GPT, form: Form, special_tokens: dict[str, int]) -> dict[str, Any]:
    """What the architecture's config is made of."""
    config = model.config
    found = {
        "vocab_size": config.vocab_size,
        "hidden_size": config.width,
        "intermediate_size": model.blocks[0].mlp.up.weight.shape[0],
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_seq_len,
        "rms_norm_eps": config.norm_eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_base},
        "tie_word_embeddings": is_tied(config, form),
        "bos_token_id": special_tokens["<|bos|>"],
        "eos_token_id": special_tokens["<|assistant_end|>"],
        "pad_token_id": None,  # an id here would keep its embedding from being trained
    }
    return found | ({"final_logit_softcapping": config.softcap or None} if "softcap" in form.carries else {})


def is_tied(config: GPTConfig, form: Form) -> bool:
    """Where the norm behind the embedding goes into its rows, the head must not have them."""
    return config.tie_embeddings and not (config.embed_norm and "embed_norm" in form.carries)


def weights(model: GPT, form: Form) -> Iterator[tuple[str, Tensor]]:
    """Names and tensors as the architecture has them; the rows that pad our vocabulary stay behind."""
    config, words = model.config, model.config.vocab_size
    rows = model.embed.weight.detach()[:words]
    folds = config.embed_norm and "embed_norm" in form.carries
    yield "model.embed_tokens.weight", norm(rows, config.norm_eps) if folds else rows
    yield "lm_head.weight", model.head_weight.detach()[:words]
    norms = {"input_layernorm": (config.width, 1.0), "post_attention_layernorm": (config.width, 1.0)}
    norms |= {f"self_attn.{part}_norm": (config.head_dim, config.qk_scale) for part in "qk"}
    for number, block in enumerate(model.blocks):
        place = f"model.layers.{number}."
        for ours, theirs in form.linears.items():
            weight = block.get_submodule(ours).weight.detach()
            swaps = form.turns_back and ours in ("attn.q", "attn.k")
            yield f"{place}{theirs}.weight", swap_halves(weight, config.head_dim) if swaps else weight
        for name, (size, value) in norms.items() if form.has_norms else ():
            yield f"{place}{name}.weight", rows.new_full((size,), value)
    if form.has_norms:
        yield "model.norm.weight", rows.new_ones(config.width)


def swap_halves(weight: Tensor, head_dim: int) -> Tensor:
    """Rows of queries or keys, the halves of each head exchanged: what turned one way turns the other."""
    return weight.unflatten(0, (-1, 2, head_dim // 2)).flip(1).flatten(0, 2)
