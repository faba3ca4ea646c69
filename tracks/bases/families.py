"""What Llama, Qwen2, Qwen3 and Gemma 3 call things: fields of config.json to our config, names of tensors to ours.

FAMILIES has a row for each. A GGUF file's metadata becomes a config.json first (gguf_file.py), so there is one reading.
A setting that would change values and that our kind of model has not is refused by its name.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from nanochat.errors import UserError
from nanochat.log import Record
from tracks.bases.model import Activation, PublicConfig
from tracks.bases.rotary import SCALINGS

# Names that `transformers` has for one activation.
ACTIVATIONS: dict[str, Activation] = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
# Settings that change values, with the only value that is known here.
KNOWN_VALUES: Record = {
    "partial_rotary_factor": 1.0,
    "pretraining_tp": 1,
    "final_logit_softcapping": None,
    "attn_logit_softcapping": None,
    "use_bidirectional_attention": False,
    "quantization_config": None,
}

# What is read of a config has these types and limits; a file is checked before anything of its size is made.
COUNTS = {  # whole numbers above zero, at most so large
    "vocab_size": 2**24,
    "num_hidden_layers": 2**12,
    "hidden_size": 2**20,
    "intermediate_size": 2**20,
    "num_attention_heads": 2**12,
    "num_key_value_heads": 2**12,
    "head_dim": 2**12,
    "max_position_embeddings": 2**22,
    "sliding_window": 2**24,
    "sliding_window_pattern": 2**12,
    "query_pre_attn_scalar": 2**20,
}
NUMBERS = ("rms_norm_eps", "rope_theta", "rope_local_base_freq")  # above zero
SWITCHES = ("attention_bias", "mlp_bias", "tie_word_embeddings", "use_sliding_window")
OBJECTS = ("rope_scaling", "rope_parameters")


# ---- names ----


@dataclass(frozen=True)
class Names:
    """A tensor by its name here, in safetensors of `transformers` and in GGUF."""

    ours: str
    theirs: str
    gguf: str


OUTSIDE = (
    Names("embed.weight", "model.embed_tokens.weight", "token_embd.weight"),
    Names("head.weight", "lm_head.weight", "output.weight"),
    Names("norm.gain", "model.norm.weight", "output_norm.weight"),
)
# In a block; a bias stands beside its layer.
LAYERS = (
    Names("attn.q", "self_attn.q_proj", "attn_q"),
    Names("attn.k", "self_attn.k_proj", "attn_k"),
    Names("attn.v", "self_attn.v_proj", "attn_v"),
    Names("attn.o", "self_attn.o_proj", "attn_output"),
    Names("mlp.up", "mlp.up_proj", "ffn_up"),
    Names("mlp.gate", "mlp.gate_proj", "ffn_gate"),
    Names("mlp.down", "mlp.down_proj", "ffn_down"),
)
QK_NORMS = (
    Names("attn.q_norm", "self_attn.q_norm", "attn_q_norm"),
    Names("attn.k_norm", "self_attn.k_norm", "attn_k_norm"),
)
NORMS_BEFORE = (
    Names("before_attn", "input_layernorm", "attn_norm"),
    Names("before_mlp", "post_attention_layernorm", "ffn_norm"),
)
NORMS_AROUND = (
    Names("before_attn", "input_layernorm", "attn_norm"),
    Names("after_attn", "post_attention_layernorm", "post_attention_norm"),
    Names("before_mlp", "pre_feedforward_layernorm", "ffn_norm"),
    Names("after_mlp", "post_feedforward_layernorm", "post_ffw_norm"),
)
# In old files, and computed by every program.
COMPUTED = r"(model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq|rope_freqs\.weight)"


def names_of(config: PublicConfig) -> Iterator[Names]:
    """Yield the names of every parameter."""
    for names in OUTSIDE:
        if names.ours != "head.weight" or not config.tie_embeddings:
            yield names
    norms = (NORMS_AROUND if config.norms_after else NORMS_BEFORE) + (QK_NORMS if config.qk_norms else ())
    for number in range(config.depth):
        ours, theirs, gguf = f"blocks.{number}", f"model.layers.{number}", f"blk.{number}"
        for layer in LAYERS:
            yield Names(f"{ours}.{layer.ours}.weight", f"{theirs}.{layer.theirs}.weight", f"{gguf}.{layer.gguf}.weight")
            if _has_bias(config, layer.ours):
                yield Names(
                    f"{ours}.{layer.ours}_bias.bias", f"{theirs}.{layer.theirs}.bias", f"{gguf}.{layer.gguf}.bias"
                )
        for norm in norms:
            yield Names(f"{ours}.{norm.ours}.gain", f"{theirs}.{norm.theirs}.weight", f"{gguf}.{norm.gguf}.weight")


def _has_bias(config: PublicConfig, layer: str) -> bool:
    if layer == "attn.o":
        return config.o_bias
    return config.qkv_biases if layer.startswith("attn") else config.mlp_biases


# ---- configs ----


@dataclass(frozen=True)
class Family:
    """Models with one config."""

    architecture: str  # the class of `transformers`
    model_type: str
    gguf: str  # general.architecture
    fields: Callable[[Record], Record]  # from config.json to the fields of our config in which families differ
    defaults: Mapping[str, Any]  # of fields that a config.json may leave out
    activation: str = "hidden_act"  # what a config.json calls it


def _windows(config: Record, default: Callable[[int], bool]) -> Record:
    """Return the fields for layers that see a window. default: whether a layer does, if the config has no list."""
    depth = config["num_hidden_layers"]
    kinds = config.get("layer_types")
    if kinds is None:
        kinds = ["sliding_attention" if default(number) else "full_attention" for number in range(depth)]
    letters = {"full_attention": "L", "sliding_attention": "S"}
    if len(kinds) != depth or not set(kinds) <= set(letters):
        raise UserError(f"its layer_types {kinds} are not {depth} times sliding_attention or full_attention")
    pattern = "".join(letters[kind] for kind in kinds)
    if "S" not in pattern or not config.get("sliding_window"):
        return {"window_pattern": "L"}
    return {"window_pattern": pattern, "window": config["sliding_window"]}


def _llama(config: Record) -> Record:
    biases = config["attention_bias"]
    return {"qkv_biases": biases, "o_bias": biases, "mlp_biases": config["mlp_bias"]}


def _qwen2(config: Record) -> Record:
    first = config["max_window_layers"] if config["use_sliding_window"] else config["num_hidden_layers"]
    return {"qkv_biases": True, **_windows(config, lambda number: number >= first)}


def _qwen3(config: Record) -> Record:
    biases = config["attention_bias"]
    first = config["max_window_layers"] if config["use_sliding_window"] else config["num_hidden_layers"]
    return {
        "qkv_biases": biases,
        "o_bias": biases,
        "qk_norms": True,
        **_windows(config, lambda number: number >= first),
    }


def _gemma3(config: Record) -> Record:
    biases = config["attention_bias"]
    every = config["sliding_window_pattern"]
    short = config["rope_local_base_freq"]
    by_layer = config.get("rope_parameters") or {}
    if by_layer and not {"full_attention", "sliding_attention"} & by_layer.keys():  # `transformers` would not read them
        raise UserError("its rope_parameters are not those of full_attention and of sliding_attention")
    if "sliding_attention" in by_layer:
        short = _rope(by_layer["sliding_attention"], short)
        if short.pop("rope_kind") != "default":
            raise UserError("its layers with a window have scaled rotary positions, which is not known here")
        short = short["rope_base"]
    return {
        "gain_offset": 1.0,
        "qkv_biases": biases,
        "o_bias": biases,
        "qk_norms": True,
        "norms_after": True,
        "embedding_scale": config["hidden_size"] ** 0.5,
        "score_scale": config["query_pre_attn_scalar"] ** -0.5,
        "rope_base_short": short,
        **_windows(config, lambda number: (number + 1) % every != 0),
    }


_ANY = {"hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 10_000.0, "tie_word_embeddings": False}
_QWEN = {**_ANY, "use_sliding_window": False, "max_window_layers": 28, "sliding_window": 4096}
FAMILIES = {
    "llama": Family("LlamaForCausalLM", "llama", "llama", _llama, {**_ANY, "attention_bias": False, "mlp_bias": False}),
    "qwen2": Family("Qwen2ForCausalLM", "qwen2", "qwen2", _qwen2, _QWEN),
    "qwen3": Family("Qwen3ForCausalLM", "qwen3", "qwen3", _qwen3, {**_QWEN, "attention_bias": False, "head_dim": 128}),
    "gemma3": Family(
        "Gemma3ForCausalLM",
        "gemma3_text",
        "gemma3",
        _gemma3,
        {
            "hidden_activation": "gelu_pytorch_tanh",
            "rms_norm_eps": 1e-6,
            "rope_theta": 1_000_000.0,
            "rope_local_base_freq": 10_000.0,
            "attention_bias": False,
            "tie_word_embeddings": True,
            "head_dim": 256,
            "query_pre_attn_scalar": 256,
            "sliding_window": 4096,
            "sliding_window_pattern": 6,
        },
        activation="hidden_activation",
    ),
}


def family_of(config: Record) -> str:
    """Return the key in FAMILIES for a config.json; UserError for an architecture that is not known.

    Its model_type has to say the same: `transformers` reads that alone.
    """
    names = config.get("architectures") or config.get("model_type") or "without a name"
    names = names if isinstance(names, list) else [names]
    for key, family in FAMILIES.items():
        if family.architecture in names or family.model_type in names:
            kind = config.get("model_type")
            if kind is None:
                raise UserError(f'its config has no model_type: add "model_type": "{family.model_type}"')
            if kind != family.model_type:
                raise UserError(f"its config has architectures={names} and model_type={kind}: one of them is wrong")
            return key
    known = ", ".join(family.architecture for family in FAMILIES.values())
    raise UserError(f"its architecture is {', '.join(map(str, names))}: only {known} can be brought in")


def read_config(config: Record, context: int = 0) -> PublicConfig:
    """Return our config for a config.json. context: tokens, at most those of the model; 0: all of them."""
    key = family_of(config)
    family = FAMILIES[key]
    # Without a value it is as if it were left out, but for a window: no window.
    said = {name: value for name, value in config.items() if value is not None or name == "sliding_window"}
    known = {**family.defaults, **said}
    for name, value in KNOWN_VALUES.items():
        if config.get(name, value) not in (value, None):
            raise UserError(f"its config has {name}={config[name]}, which is not known here")
    empty = [name for name in family.defaults if name in config and name not in said]
    if empty:  # an error in `transformers` too
        raise UserError(f"its config has {empty[0]}=null, which cannot be: leave it out")
    activation = known[family.activation]
    if str(activation) not in ACTIVATIONS:
        raise UserError(f"its activation is {activation}: only {', '.join(ACTIVATIONS)} are known")
    _check_types(known)
    try:
        heads = known["num_attention_heads"]
        longest = known["max_position_embeddings"]
        rope = known.get("rope_scaling") or known.get("rope_parameters") or {}
        return PublicConfig(
            family=key,
            vocab_size=known["vocab_size"],
            depth=known["num_hidden_layers"],
            width=known["hidden_size"],
            heads=heads,
            kv_heads=known.get("num_key_value_heads", heads),
            channels=known.get("head_dim") or known["hidden_size"] // heads,
            units=known["intermediate_size"],
            max_seq_len=min(context or longest, longest),
            activation=ACTIVATIONS[activation],
            norm_eps=known["rms_norm_eps"],
            tie_embeddings=known["tie_word_embeddings"],
            **_rope(rope.get("full_attention", rope), known["rope_theta"]),
            **family.fields(known),
        )
    except KeyError as error:
        raise UserError(f"its config has no {error.args[0]}") from None
    except TypeError as error:  # a text where a number is due
        raise UserError(f"its config cannot be read: {error}") from None


def _check_types(known: Record) -> None:
    """Raise a UserError for a value of another type, or beyond its limit."""
    for name, value in known.items():
        if value is None:  # a window that is none
            continue
        if name in COUNTS:
            good = type(value) is int and 0 < value <= COUNTS[name]
        elif name in NUMBERS:  # `transformers` takes no whole number for the first
            good = _is_positive(value) and not (name == "rms_norm_eps" and type(value) is int)
        elif name in SWITCHES:
            good = type(value) is bool
        else:
            good = name not in OBJECTS or isinstance(value, dict)
        if not good:
            raise UserError(f"its config has {name}={value}, which cannot be")


def _is_positive(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value < 1e15  # nor is it NaN


def _rope(parameters: Record, base: float) -> Record:
    """Return the fields for rotary positions, from `rope_parameters` or the older `rope_scaling`."""
    if not isinstance(parameters, dict):
        raise UserError(f"its config has rotary parameters {parameters}, which cannot be")
    kind = str(parameters.get("rope_type") or parameters.get("type") or "default")
    if kind not in SCALINGS:
        raise UserError(f"its rotary positions are scaled by {kind}: only {', '.join(SCALINGS)} are known")
    if parameters.get("partial_rotary_factor", 1.0) != 1.0:
        raise UserError("only a part of each head's channels is rotated, which is not known here")
    values: Record = {"context": parameters.get("original_max_position_embeddings"), **parameters}
    theirs = {"context": "original_max_position_embeddings"}
    missing = [theirs.get(name, name) for name in SCALINGS[kind].fields if values.get(name) is None]
    if missing:
        raise UserError(f"its rotary positions are scaled by {kind}, without {', '.join(missing)}")
    wrong = [name for name in (*SCALINGS[kind].fields, "rope_theta") if not _is_positive(values.get(name, base))]
    if wrong:
        name = theirs.get(wrong[0], wrong[0])
        raise UserError(f"its config has {name}={values[wrong[0]]} for rotary positions, which cannot be")
    if kind == "llama3" and values["low_freq_factor"] >= values["high_freq_factor"]:
        factors = " and ".join(f"{name}={values[name]}" for name in ("low_freq_factor", "high_freq_factor"))
        raise UserError(f"its config has {factors} for rotary positions: the first has to be smaller")
    fields = {f"rope_{name}": values[name] for name in SCALINGS[kind].fields}
    return {"rope_kind": kind, "rope_base": float(parameters.get("rope_theta", base)), **fields}
