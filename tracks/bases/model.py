"""The kind of model that Llama, Qwen2, Qwen3 and Gemma 3 are: GPT with what these families have and ours has not.

Everything that reads a model through GPT works with it: training, checkpointing, fp8, sharding, packed inference, the
engine, evaluations. Each field of the config is a difference among the families; families.py says which has what.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from nanochat.attention import Rotation
from nanochat.errors import UserError
from nanochat.gpt import (
    GPT,
    MLP,
    PARAMETERS,
    Attention,
    Block,
    Context,
    GPTConfig,
    LayerContext,
    Linear,
    ParameterRow,
    constant,
    with_rows,
)
from tracks.bases.rotary import SCALINGS, ScaledRotary, Scaling

if TYPE_CHECKING:
    from nanochat.decoder import Cache

Activation = Literal["silu", "gelu_tanh"]
ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}


@dataclass(frozen=True)
class PublicConfig(GPTConfig):
    """The shape of a public model. It has none of GPTConfig's tricks."""

    kind: ClassVar[str] = "public"

    window_pattern: str = "L"  # a letter for each layer; S: `window` keys, L: all
    rope_base: float = 10_000.0
    qk_scale: float = 1.0
    softcap: float = 0.0
    residual_lambdas: bool = False
    x0_lambdas: bool = False
    value_embeds: bool = False
    smear: bool = False
    backout: bool = False

    family: str = "llama"  # a key in families.FAMILIES: decides names, not values
    channels: int = 128  # of a head; together the heads may have more or fewer than the width
    units: int = 3072  # of an MLP, each with a gate
    activation: Activation = "silu"  # of the gate
    norm_eps: float = 1e-6
    gain_offset: float = 0.0  # norms multiply by this + their gains
    qkv_biases: bool = False
    o_bias: bool = False
    mlp_biases: bool = False
    qk_norms: bool = False  # each head's queries and keys are normed, with gains, before they rotate
    norms_after: bool = False  # the outputs of attention and MLP are normed too
    embedding_scale: float = 1.0
    score_scale: float = 0.0  # factor for queries times keys; 0: channels ** -0.5
    window: int = 0  # keys that a token sees in a layer with the letter S
    rope_base_short: float = 0.0  # in layers with the letter S, which have no scaling; 0: like the others
    rope_kind: str = "default"  # these five make a rotary.Scaling
    rope_factor: float = 1.0
    rope_low_freq_factor: float = 0.0
    rope_high_freq_factor: float = 0.0
    rope_context: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.activation not in ACTIVATIONS:
            raise UserError(f"activation={self.activation} is not known, use one of {', '.join(ACTIVATIONS)}")
        if self.rope_kind not in SCALINGS:
            raise UserError(f"rope_kind={self.rope_kind} is not known, use one of {', '.join(SCALINGS)}")
        if self.channels % 2:
            raise UserError(f"channels={self.channels} of a head cannot rotate in pairs")
        if len(self.window_pattern) not in (1, self.depth):
            raise UserError(f"window_pattern={self.window_pattern} needs one letter, or depth={self.depth} of them")
        if "S" in self.window_pattern and not self.window:
            raise UserError(f"window_pattern={self.window_pattern} needs a window")

    @property
    def head_dim(self) -> int:
        return self.channels

    @property
    def rotated_channels(self) -> int:
        """Those that GPT's own table rotates: none, as layers may differ in their rates (PublicGPT.tables)."""
        return 0

    @property
    def attention_scale(self) -> float:
        return self.score_scale or self.channels**-0.5

    @property
    def scores_are_bounded(self) -> bool:
        return False  # gains have any size, and most families norm neither queries nor keys

    @property
    def letters(self) -> str:
        """The letter of each layer."""
        return self.window_pattern if len(self.window_pattern) == self.depth else self.window_pattern * self.depth

    @cached_property
    def windows(self) -> list[int]:
        return [self.window if letter == "S" and self.window < self.max_seq_len else 0 for letter in self.letters]

    @property
    def scaling(self) -> Scaling:
        """Of the rates in layers with the letter L."""
        return Scaling(
            self.rope_kind, self.rope_factor, self.rope_low_freq_factor, self.rope_high_freq_factor, self.rope_context
        )


class Norm(nn.Module):
    """A norm over the last axis, in fp32, with a gain for each channel."""

    def __init__(self, config: PublicConfig, channels: int) -> None:
        super().__init__()
        self.eps = config.norm_eps
        self.offset = config.gain_offset
        self.gain = nn.Parameter(torch.empty(channels))

    def forward(self, x: Tensor) -> Tensor:
        gain = self.gain + self.offset if self.offset else self.gain
        return F.rms_norm(x.float(), gain.shape, gain, self.eps).to(x.dtype)


class Bias(nn.Module):
    """The bias of a linear layer, beside it: inference replaces the layer by a packed one without bias."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.empty(channels))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.bias.to(x.dtype)


class PublicAttention(Attention):
    config: PublicConfig

    def __init__(self, config: PublicConfig, number: int) -> None:
        nn.Module.__init__(self)  # GPT's heads divide the width among them
        self.config = config
        width = config.heads * config.channels
        self.q = Linear(config.width, width)
        self.k = Linear(config.width, config.kv_width)
        self.v = Linear(config.width, config.kv_width)
        self.o = Linear(width, config.width)
        self.q_bias = Bias(width) if config.qkv_biases else None
        self.k_bias = Bias(config.kv_width) if config.qkv_biases else None
        self.v_bias = Bias(config.kv_width) if config.qkv_biases else None
        self.o_bias = Bias(config.width) if config.o_bias else None
        self.q_norm = Norm(config, config.channels) if config.qk_norms else None
        self.k_norm = Norm(config, config.channels) if config.qk_norms else None
        self.ve_gate = None
        self.qkv: nn.Module | None = None  # packed, for generation
        self.qkv_parts = [config.heads, config.kv_heads, config.kv_heads]

    def forward(self, x: Tensor, layer: LayerContext) -> Tensor:
        y = super().forward(x, layer)
        return y if self.o_bias is None else self.o_bias(y)

    def project(self, x: Tensor) -> list[Tensor]:
        parts = super().project(x)
        biases = (self.q_bias, self.k_bias, self.v_bias)
        return [
            part if bias is None else bias(part.flatten(-2)).view_as(part)
            for part, bias in zip(parts, biases, strict=True)
        ]

    def queries_and_keys(self, parts: list[Tensor], rotation: Rotation) -> tuple[Tensor, Tensor]:
        q, k = parts
        if self.q_norm is not None and self.k_norm is not None:
            q = self.q_norm(q)
            k = self.k_norm(k)
        return self.rotate(q, rotation), self.rotate(k, rotation)


class PublicMLP(MLP):
    def __init__(self, config: PublicConfig) -> None:
        nn.Module.__init__(self)  # GPT rounds the number of units
        self.activation = ACTIVATIONS[config.activation]
        self.up = Linear(config.width, config.units)
        self.gate = Linear(config.width, config.units)
        self.down = Linear(config.units, config.width)
        biases = config.mlp_biases
        self.up_bias = Bias(config.units) if biases else None
        self.gate_bias = Bias(config.units) if biases else None
        self.down_bias = Bias(config.width) if biases else None

    def forward(self, x: Tensor) -> Tensor:
        if self.up_bias is None or self.gate_bias is None or self.down_bias is None:
            return super().forward(x)
        assert self.gate is not None
        hidden = self.activation(self.gate_bias(self.gate(x))) * self.up_bias(self.up(x))
        return self.down_bias(self.down(hidden))


class PublicBlock(Block):
    """One layer: norms before attention and MLP, and in some families after them."""

    def __init__(self, config: PublicConfig, number: int) -> None:
        nn.Module.__init__(self)
        self.attn = PublicAttention(config, number)
        self.mlp = PublicMLP(config)
        self.before_attn = Norm(config, config.width)
        self.before_mlp = Norm(config, config.width)
        self.after_attn = Norm(config, config.width) if config.norms_after else None
        self.after_mlp = Norm(config, config.width) if config.norms_after else None

    def forward(self, x: Tensor, layer: LayerContext) -> Tensor:
        y = self.attn(self.before_attn(x), layer)
        x = x + (y if self.after_attn is None else self.after_attn(y))
        y = self.mlp(self.before_mlp(x))
        return x + (y if self.after_mlp is None else self.after_mlp(y))


def _no_change(t: Tensor, config: PublicConfig, generator: Generator) -> Tensor:
    """Gains with which a norm multiplies by one."""
    return t.fill_(1 - config.gain_offset)


class PublicGPT(GPT):
    """A model of one of the families."""

    config: PublicConfig
    config_class: ClassVar[type[GPTConfig]] = PublicConfig
    parameter_rows: ClassVar[tuple[ParameterRow, ...]] = with_rows(
        PARAMETERS,
        ParameterRow(r"norm\.gain|blocks\.\d+\.(attn\.[qk]_norm|(before|after)_(attn|mlp))\.gain", "gains", _no_change),
        ParameterRow(r"blocks\.\d+\.(attn|mlp)\.\w+_bias\.bias", "gains", constant(0)),
    )

    def __init__(self, config: PublicConfig, attention: str = "sdpa", checkpointing: bool = False) -> None:
        super().__init__(config, attention, checkpointing)
        self.blocks = nn.ModuleList(PublicBlock(config, number) for number in range(config.depth))
        self.norm = Norm(config, config.width)
        self.tables = nn.ModuleDict()  # by the letter of a layer
        for letter in sorted(set(config.letters)):
            base, scaling = config.rope_base, config.scaling
            if letter == "S" and config.rope_base_short:
                base, scaling = config.rope_base_short, Scaling()
            self.tables[letter] = ScaledRotary(config.max_seq_len, config.channels, base, scaling)

    def fill_tables(self) -> None:
        super().fill_tables()
        for table in self.tables.values():
            assert isinstance(table, ScaledRotary)
            table.fill()

    def first_state(self, ids: Tensor, cache: "Cache | None") -> Tensor:
        rows = self.gather_and_call(self.embed, self.embed, ids)
        return (self.config.embedding_scale * rows).to(self.compute_dtype)

    def layers(self, context: Context) -> Iterator[LayerContext]:
        cache = context.cache
        positions = slice(context.ids.shape[1]) if cache is None or cache.positions is None else cache.positions
        rotations = {letter: table(positions) for letter, table in self.tables.items()}
        for letter, layer in zip(self.config.letters, super().layers(context), strict=True):
            yield layer._replace(rotation=rotations[letter])

    def last_state(self, x: Tensor, middle: Tensor) -> Tensor:
        return self.norm(x)


MODELS = {"public": PublicGPT}
