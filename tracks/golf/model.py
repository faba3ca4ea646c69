"""The golf track's kind of model: InductionGPT with the tricks of the track's seed.

The scoring process imports this module, and its bytes count.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from nanochat.attention import Rotation
from nanochat.errors import UserError
from nanochat.gpt import NORM_EPS, Attention, GPTConfig, ParameterRow, constant, norm, uniform, with_rows
from nanochat.induction import InductionAttention, InductionConfig, InductionGPT


@dataclass(frozen=True)
class GolfConfig(InductionConfig):
    kind: ClassVar[str] = "golf"

    rope_dims: int = 0  # channels of a head that rotate; 0: all
    query_gain: float = 0.0  # initial value of a learned factor for each head's queries; 0: none
    qk_eps: float = NORM_EPS  # added to the mean square in the norm of queries and keys
    exclusive_last: int = 0  # last layers in which attention leaves out the token's own value (exclude_own)
    orthogonal: bool = False  # matrices start orthogonal; those that write the residual stream smaller, by depth

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rope_dims % 2 or not 0 <= self.rope_dims <= self.head_dim:
            raise UserError(f"rope_dims={self.rope_dims} has to be even, and at most {self.head_dim}, the head's size")

    @property
    def rotated_channels(self) -> int:
        return self.rope_dims or self.head_dim

    @property
    def scores_are_bounded(self) -> bool:
        return not self.query_gain and super().scores_are_bounded


def require_golf(config: GPTConfig) -> None:
    """Raise a UserError for a config with fields that GolfConfig does not have, which no artifact can hold."""
    others = {field.name for field in fields(config)} - {field.name for field in fields(GolfConfig)}
    if others:
        raise UserError(f"golf artifacts hold plain models: train without {', '.join(sorted(others))}")


# --model: name, and the fields that differ from the defaults. golf: a small budget in bytes (README.md). golf-seed: the
# seed of the track, for one GPU and 16 MB.
CONFIGURATIONS: dict[str, Mapping[str, bool | int | float | str]] = {
    "golf": {
        "induction": True,
        "tie_embeddings": True,
        "residual_lambdas": False,
        "x0_lambdas": False,
        "value_embeds": False,
        "mlp": "leaky2",
        "mlp_ratio": 3.0,
    },
    "golf-seed": {
        "window_pattern": "L",
        "residual_lambdas": False,
        "x0_lambdas": False,
        "value_embeds": False,
        "smear": False,
        "backout": False,
        "tie_embeddings": True,
        "mlp_ratio": 3.0,
        "rope_base": 10_000.0,
        "rope_dims": 32,
        "exclusive_last": 2,
        "qk_scale": 1.0,
        "query_gain": 1.75,
        "qk_eps": 1e-6,
        "orthogonal": True,
        "softcap": 30.0,
    },
}


def exclude_own(y: Tensor, v: Tensor) -> Tensor:
    """Return attention's output y (B, T, H, D) without its part along the token's own value v (B, T, Hkv, D)."""
    direction = F.normalize(v.float(), dim=-1).unsqueeze(3)  # (B, T, Hkv, 1, D)
    grouped = y.float().unflatten(2, (v.shape[2], -1))
    return (grouped - (grouped * direction).sum(-1, keepdim=True) * direction).flatten(2, 3).to(y.dtype)


class GolfAttention(Attention):
    """Attention with learned gains, another epsilon, and layers without the token's own value."""

    config: GolfConfig

    def __init__(self, config: GolfConfig, number: int) -> None:
        super().__init__(config, number)
        self.exclusive = number >= config.depth - config.exclusive_last
        self.gain = nn.Parameter(torch.empty(config.heads)) if config.query_gain else None

    def queries_and_keys(self, parts: list[Tensor], rotation: Rotation) -> tuple[Tensor, Tensor]:
        parts = [norm(self.rotate(part, rotation), self.config.qk_eps) for part in parts]
        q, k = self.split(parts)
        if self.gain is not None:
            q = q * self.gain[:, None]
        return q, k

    def mixed(self, y: Tensor, v: Tensor) -> Tensor:
        return exclude_own(y, v) if self.exclusive else y


class GolfInductionAttention(GolfAttention, InductionAttention):
    """The same, in which half the heads search the context."""


Initial = Callable[[Tensor, GolfConfig, Generator], Tensor]  # as in ParameterRow


def _gains(t: Tensor, config: GolfConfig, generator: Generator) -> Tensor:
    return t.fill_(config.query_gain)


def _orthogonal_or(usual: Initial, writes: bool = False) -> Initial:
    """Orthogonal matrices if the config asks for them. writes: to the residual stream, less where many layers write."""

    def initial(t: Tensor, config: GolfConfig, generator: Generator) -> Tensor:
        if not config.orthogonal:
            return usual(t, config, generator)
        return nn.init.orthogonal_(t, (2 * config.depth) ** -0.5 if writes else 1.0, generator)

    return initial


class GolfGPT(InductionGPT):
    """A GPT with the tricks of golf that its config switches on."""

    config: GolfConfig  # ty: ignore[incompatible-mutable-override]  # nobody replaces it
    config_class: ClassVar[type[GPTConfig]] = GolfConfig
    parameter_rows: ClassVar[tuple[ParameterRow, ...]] = with_rows(
        InductionGPT.parameter_rows,
        ParameterRow(r"blocks\.\d+\.attn\.gain", "gains", _gains),
        ParameterRow(r"blocks\.\d+\.attn\.[qkv]\.weight", "matrices", _orthogonal_or(uniform(1))),
        ParameterRow(r"blocks\.\d+\.mlp\.(up|gate)\.weight", "matrices", _orthogonal_or(uniform(0.4))),
        ParameterRow(r"blocks\.\d+\.(attn\.o|mlp\.down)\.weight", "matrices", _orthogonal_or(constant(0), writes=True)),
    )

    @property
    def attention_class(self) -> type[Attention]:
        return GolfInductionAttention if self.config.induction else GolfAttention


MODELS = {"golf": GolfGPT}
