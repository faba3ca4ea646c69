"""The kind of model that the embedded run trains: GPT, in which half the heads may search the context.

An induction head finds the token that followed an earlier token like the present one. A plain model learns to do that
late; a model with such heads does it within some hundred steps, and copies names and facts from the context.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator, Tensor

from nanochat.attention import Rotation, previous
from nanochat.errors import UserError
from nanochat.gpt import GPT, PARAMETERS, Attention, GPTConfig, ParameterRow, Store, with_rows


@dataclass(frozen=True)
class InductionConfig(GPTConfig):
    kind: ClassVar[str] = "induction"

    induction: bool = False  # half the heads are InductionAttention's

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.induction and not (self.smear and self.kv_heads > 1):
            raise UserError("induction needs smear, and kv_heads above 1")


class InductionAttention(Attention):
    """Attention in which half the heads find the token that followed an earlier token like the present one.

    They see the previous token's keys, unrotated: distance does not count. Key weights start as the query weights.
    """

    def __init__(self, config: GPTConfig, number: int) -> None:
        super().__init__(config, number)
        self.shifted = config.kv_heads // 2
        self.qkv_parts = [config.heads, config.kv_heads, config.kv_heads]  # q and k differ in such heads: keep apart

    def rotate(self, part: Tensor, rotation: Rotation) -> Tensor:
        unrotated = part.shape[2] * self.shifted // self.config.kv_heads
        return torch.cat([part[:, :, :unrotated].float(), rotation.apply(part[:, :, unrotated:])], dim=2)

    def keys_and_values(self, k: Tensor, v: Tensor, store: Store | None) -> tuple[Tensor, Tensor]:
        k, v = super().keys_and_values(k, v, store)  # a cache stores unshifted keys
        return torch.cat([previous(k[:, :, : self.shifted]), k[:, :, self.shifted :]], dim=2), v


def match_queries(k: Tensor, q: Tensor, config: GPTConfig) -> None:
    """Set the shifted key heads of InductionAttention, in k, to the first query head that each serves."""
    shifted = config.kv_heads // 2
    group = config.heads // config.kv_heads
    k.unflatten(0, (-1, config.head_dim))[:shifted] = q.unflatten(0, (-1, config.head_dim))[::group][:shifted]


def _shown(t: Tensor, config: InductionConfig, generator: Generator) -> Tensor:
    """Induction heads find a token by the one before: smear shows the previous token from the first step on."""
    return t.fill_(1.0 if config.induction else 0.0)


class InductionGPT(GPT):
    """A GPT with InductionAttention in each block, if its config asks for it; a plain GPT otherwise."""

    config: InductionConfig
    config_class: ClassVar[type[GPTConfig]] = InductionConfig
    parameter_rows: ClassVar[tuple[ParameterRow, ...]] = with_rows(
        PARAMETERS, ParameterRow(r"smear_lambda", "smear", _shown)
    )

    @property
    def attention_class(self) -> type[Attention]:
        return InductionAttention if self.config.induction else Attention

    def initial(self, seed: int, name: str) -> Tensor:
        values = super().initial(seed, name)
        if self.config.induction and name.endswith("attn.k.weight"):
            match_queries(values, self.initial(seed, name.replace(".k.", ".q.")), self.config)
        return values
