"""The model as generation runs it: its weights cast once, stacked and packed, so that a token takes few kernels."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nanochat import attention as attn
from nanochat.gpt import GPT, MLP_KINDS, VALUE_GATE_INPUTS, Block
from nanochat.layers import norm

PACKED_ROWS = 32  # for which oneDNN chooses the order of a weight; it is good for one row too
# How many rows a packed weight meets at once. oneDNN keeps what it made, half a MB to three, for each number of them
# and each shape of weight, up to a thousand: by requests of any length a server would grow by hundreds of MB.
SIZES = (*range(1, 17), *range(20, 65, 4), 96, 128, 192, 256, 384, 512, 768, 1024)


class Stacked(nn.Module):
    """Weights with the same inputs as one linear layer; on an x86 CPU packed as oneDNN reads them.

    order: of the outputs, where it differs from that of the sources.
    """

    def __init__(self, *sources: Tensor, dtype: torch.dtype, order: Tensor | None = None):
        super().__init__()
        self.sources, self.dtype, self.order, self.weight = sources, dtype, order, None
        packs = sources[0].device.type == "cpu" and torch.backends.mkldnn.is_available() and dtype != torch.float16
        self.packed = packs and sources[0].ndim == 2 and min(sources[0].shape) >= PACKED_ROWS

    def refresh(self) -> None:
        weight = torch.cat([source.to(self.dtype) for source in self.sources])
        weight = weight if self.order is None else weight[self.order]
        if self.packed:
            self.weight = torch.ops.mkldnn._reorder_linear_weight(weight, PACKED_ROWS)
        elif self.weight is None:
            self.weight = weight
        else:
            self.weight.copy_(weight)  # where a CUDA graph looks for it

    def forward(self, x: Tensor) -> Tensor:
        if not self.packed:
            return F.linear(x, self.weight)
        if x.shape[:-1].numel() in SIZES:
            return self._product(x)
        parts = [self._padded(rows) for rows in x.flatten(0, -2).split(SIZES[-1])]
        return (torch.cat(parts) if len(parts) > 1 else parts[0]).unflatten(0, x.shape[:-1])

    def _product(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, None, "none", [], "")

    def _padded(self, rows: Tensor) -> Tensor:
        size = next(size for size in SIZES if size >= len(rows))
        return self._product(F.pad(rows, (0, 0, 0, size - len(rows))))[: len(rows)]


class FusedBlock(nn.Module):
    """A `gpt.Block` with a cache: queries and keys together, channels that turn together as one complex number.

    Those lie side by side here; no score depends on the order of channels.
    """

    def __init__(self, block: Block, dtype: torch.dtype):
        super().__init__()
        own, mlp = block.attn, block.mlp
        self.config, self.activation = own.config, mlp.activation
        qkv = own.q.weight, own.k.weight, own.v.weight
        channels = torch.arange(sum(map(len, qkv)), device=own.q.weight.device).view(-1, own.config.head_dim)
        turned = own.config.rope_dims or own.config.head_dim
        heads = own.config.heads + own.config.kv_heads
        channels[:heads, :turned] = channels[:heads, :turned].unflatten(1, (2, -1)).mT.flatten(1)
        self.qkv = Stacked(*qkv, dtype=dtype, order=channels.flatten())
        self.o, self.down = Stacked(own.o.weight, dtype=dtype), Stacked(mlp.down.weight, dtype=dtype)
        self.ups = Stacked(*(layer.weight for layer in (mlp.up, mlp.gate) if layer), dtype=dtype)
        self.ve_gate = Stacked(own.ve_gate.weight, dtype=dtype) if own.ve_gate else None
        self.qk_gain = Stacked(own.qk_gain, dtype=torch.float32) if own.qk_gain is not None else None

    def forward(self, x, x0, residual_lambda, x0_lambda, values, rope, plan, place, cache) -> Tensor:
        config = self.config
        if residual_lambda is not None:
            x = residual_lambda * x
        if x0_lambda is not None:
            x = torch.addcmul(x, x0_lambda, x0)
        normed = norm(x, config.norm_eps)
        heads = self.qkv(normed).unflatten(-1, (-1, config.head_dim))
        qk, v = heads.split([config.heads + config.kv_heads, config.kv_heads], dim=-2)
        if self.ve_gate is not None:
            gate = 3 * torch.sigmoid(self.ve_gate(normed[..., :VALUE_GATE_INPUTS]))
            v = torch.addcmul(v, gate[..., None], values.view(v.shape))
        qk = torch.view_as_real(torch.view_as_complex(qk.float().unflatten(-1, (-1, 2))) * rope).flatten(-2)
        if config.qk_norm:
            qk = norm(qk, config.norm_eps)
        q, k = qk.split([config.heads, config.kv_heads], dim=-2)
        if self.qk_gain is not None:
            q = q * self.qk_gain.weight[:, None]
        k, v = cache.update(k.to(x.dtype), v)
        x = x + self.o(attn.attend(q.to(x.dtype), k, v, plan, config.attention_scale).flatten(-2))
        ups = self.ups(norm(x, config.norm_eps)).chunk(1 + MLP_KINDS[config.mlp][0], dim=-1)
        return x + self.down(self.activation(ups[0], ups[-1]))


class Fused(GPT):
    """For inference with a cache: a copy in the model's compute_dtype, of its weights at the last `refresh`."""

    def __init__(self, model: GPT):
        device, dtype = model.embed.weight.device, model.compute_dtype
        with torch.device("meta"):
            super().__init__(model.config, "decode" if device.type == "cpu" else "sdpa")
        self.compute_dtype, self.sources = dtype, dict(model.named_parameters())
        self.blocks = nn.ModuleList(FusedBlock(block, dtype) for block in model.blocks)
        if not model.config.tie_embeddings:
            self.head = Stacked(model.head.weight, dtype=dtype)
        if model.config.smear:
            self.smear_gate = Stacked(model.smear_gate.weight, dtype=dtype)
        self.to_empty(device=device).requires_grad_(False).init_buffers()
        self.embed.to(dtype), self.value_embeds.to(dtype)
        rest = model.config.head_dim // 2 - self.rope_cos.shape[1]
        self.turns = F.pad(torch.complex(self.rope_cos, self.rope_sin), (0, rest), value=1)
        kinds = (self.config.heads, self.config.heads // self.config.kv_heads), (self.config.kv_heads, 1)
        still = [torch.arange(heads, device=device) < self.config.shifted_heads * group for heads, group in kinds]
        self.still = torch.cat(still)[:, None]
        self.refresh()

    def _rope(self, positions: Tensor) -> Tensor:
        turns = self.turns[positions].unsqueeze(-2)
        return torch.where(self.still, 1, turns) if self.config.shifted_heads else turns

    @torch.inference_mode()
    def refresh(self) -> None:
        """Take the weights that the model has now."""
        for name, mine in self.named_parameters():
            mine.copy_(self.sources[name])
        for module in self.modules():
            if isinstance(module, Stacked):
                module.refresh()
