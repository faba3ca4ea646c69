"""The model of nanochat in one file for `transformers`, which loads it by `trust_remote_code=True`.

A plain twin of nanochat's nanochat/gpt.py, nanochat/attention.py and tracks/recursion/model.py, where each trick is
explained; the names of weights and of config fields are the same. The cache holds the rows' token ids too, because
smear needs the previous token. Padding is where attention_mask is 0; it may be on the left of a row, and no token sees
it.

Fields of config.json: vocab_size depth width heads kv_heads max_seq_len mlp rope_base softcap tie_embeddings
residual_lambdas x0_lambdas smear induction backout supervision loops passes bos_id; numbers that follow from others:
mlp_units head_dim kv_width padded_vocab windows value_layers attention_scale; and `manifest`, the weights' origin.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import DynamicCache, GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import DynamicLayer
from transformers.modeling_outputs import CausalLMOutputWithPast

VERSION = 1  # of this file and its config: changes when another file is needed for a new folder
# Channels read by the two gates.
VALUE_INPUTS = 12
SMEAR_INPUTS = 24


class NanochatConfig(PreTrainedConfig):
    model_type = "nanochat_gpt"
    keys_to_ignore_at_inference = ("past_key_values",)
    version: int = VERSION
    # The library's names for our fields.
    attribute_map = {  # noqa: RUF012 (the library asks for a dictionary)
        "hidden_size": "width",
        "num_hidden_layers": "depth",
        "max_position_embeddings": "max_seq_len",
        "tie_word_embeddings": "tie_embeddings",
        "final_logit_softcapping": "softcap",
    }

    def __post_init__(self, **fields: Any) -> None:
        super().__post_init__(**fields)
        if self.version != VERSION:
            raise ValueError(f"config.json has version {self.version}, modeling_nanochat.py {VERSION}: export it again")


class Rows(NamedTuple):
    """Everything that the blocks share in a forward. T: the tokens given; K: all tokens of the rows so far."""

    ids: Tensor  # (B, T)
    x0: Tensor  # (B, T, width): embedded tokens
    rotation: list[Tensor]  # cosines and sines, (T, pairs) each
    seen: Tensor  # (B, 1, T, 1): 0 for padding
    masks: dict[int, Tensor]  # window → (B, 1, T, K), True where a token sees a key
    cache: DynamicCache
    places: Iterator[int]  # in the cache: the next application of a block takes the next one


def norm(x: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], eps=2**-23)


class Attention(nn.Module):
    def __init__(self, config: NanochatConfig, number: int) -> None:
        super().__init__()
        self.config = config
        self.window = config.windows[number]
        self.shifted = config.kv_heads // 2 if config.induction else 0  # key heads that search for a token
        self.q = nn.Linear(config.width, config.width, bias=False)
        self.k = nn.Linear(config.width, config.kv_width, bias=False)
        self.v = nn.Linear(config.width, config.kv_width, bias=False)
        self.o = nn.Linear(config.width, config.width, bias=False)
        if number in config.value_layers:
            self.ve_gate = nn.Linear(VALUE_INPUTS, config.kv_heads, bias=False)

    def forward(self, x: Tensor, values: Tensor | None, rows: Rows) -> Tensor:
        q, k, v = (self.heads(layer(x)) for layer in (self.q, self.k, self.v))
        if values is not None:
            gate = torch.sigmoid(self.ve_gate(x[..., :VALUE_INPUTS]))  # (B, T, kv_heads)
            v = v + 3 * gate.mT[..., None] * self.heads(values)
        q, k = (norm(self.rotate(part, *rows.rotation)).to(v.dtype) for part in (q, k))
        # Padding has keys of zeros: the key before a row's first token.
        k, v = rows.cache.update(k * rows.seen, v, next(rows.places))
        if self.shifted:
            # These heads compare with the token before the one whose value they read.
            before = F.pad(k[:, : self.shifted], (0, 0, 1, -1))
            k = torch.cat([before, k[:, self.shifted :]], dim=1)
        mask = rows.masks[self.window]
        scale = self.config.attention_scale
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=True)
        return self.o(y.transpose(1, 2).flatten(2))

    def heads(self, x: Tensor) -> Tensor:
        """From (B, T, channels) to (B, heads, T, head_dim)."""
        return x.unflatten(-1, (-1, self.config.head_dim)).transpose(1, 2)

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return x (B, heads, T, head_dim) in fp32, rotated by position except for the heads that search."""
        unrotated = x.shape[1] * self.shifted // self.config.kv_heads
        a, b = x[:, unrotated:].chunk(2, dim=-1)
        parts = [a * cos - b * sin, b * cos + a * sin]
        rotated = torch.cat(parts, dim=-1)
        return torch.cat([x[:, :unrotated].float(), rotated], dim=1)


class MLP(nn.Module):
    def __init__(self, config: NanochatConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.width, config.mlp_units, bias=False)
        self.gate = nn.Linear(config.width, config.mlp_units, bias=False) if config.mlp == "swiglu" else None
        self.down = nn.Linear(config.mlp_units, config.width, bias=False)
        self.slope = 0.5 if config.mlp == "leaky2" else 0.0  # for units below 0

    def forward(self, x: Tensor) -> Tensor:
        up = self.up(x)
        if self.gate is not None:
            return self.down(F.silu(self.gate(x)) * up)
        return self.down(F.leaky_relu(up, self.slope).square())


@dataclass
class Output(CausalLMOutputWithPast):
    last_hidden_state: Tensor | None = None  # the head's input: trl has a head of its own


class NanochatForCausalLM(PreTrainedModel, GenerationMixin):
    config_class = NanochatConfig
    _input_embed_layer = "embed"
    _tied_weights_keys = {"head.weight": "embed.weight"}  # noqa: RUF012 (if the config ties them)
    # A step of bf16 near 1 is as large as what these learn.
    _keep_in_fp32_modules_strict = ["residual_lambdas", "x0_lambdas"]  # noqa: RUF012 (the library asks for a list)
    # None without the trick.
    smear_lambda: nn.Parameter | None
    backout_lambda: nn.Parameter | None
    residual_lambdas: nn.Parameter | None
    x0_lambdas: nn.Parameter | None

    def __init__(self, config: NanochatConfig) -> None:
        super().__init__(config)
        self.embed = nn.Embedding(config.padded_vocab, config.width)
        tables = {str(i): nn.Embedding(config.padded_vocab, config.kv_width) for i in config.value_layers}
        self.value_embeds = nn.ModuleDict(tables)
        layers = [{"attn": Attention(config, i), "mlp": MLP(config)} for i in range(config.depth)]
        self.blocks = nn.ModuleList(map(nn.ModuleDict, layers))
        self.head = nn.Linear(config.width, config.padded_vocab, bias=False)
        if config.smear:
            self.smear_gate = nn.Linear(SMEAR_INPUTS, 1, bias=False)
        # Name -> whether the model has this parameter, and its size.
        lambdas = {
            "smear_lambda": (config.smear, 1),
            "backout_lambda": (config.backout, 1),
            "residual_lambdas": (config.residual_lambdas, config.depth),
            "x0_lambdas": (config.x0_lambdas, config.depth),
        }
        for name, (is_used, size) in lambdas.items():
            if is_used:
                self.register_parameter(name, nn.Parameter(torch.empty(size)))
            else:
                self.register_parameter(name, None)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Refuse: the library calls this for weights that a folder lacks, and would go on with random ones."""
        raise ValueError(f"the folder lacks the weights of a {type(module).__name__}: export the model again")

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: DynamicCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool = False,
        logits_to_keep: int = 0,
        **options: Any,  # position_ids too, which are not needed
    ) -> Output:
        """Return logits (B, T, vocab_size) in fp32, and the mean loss if there are labels.

        input_ids (B, T) continue the rows in the cache, attention_mask is for the whole rows. labels (B, T): the ids
        themselves, or -100. logits_to_keep: of the last tokens, 0 for all.
        """
        config = self.config
        cache = DynamicCache() if past_key_values is None else past_key_values
        rows = self.rows(input_ids, attention_mask, cache)
        hidden = self.hidden(rows)
        if logits_to_keep:
            hidden = hidden[:, -logits_to_keep:]
        logits = self.head(hidden)[..., : config.vocab_size].float()
        if config.softcap:
            logits = config.softcap * (logits / config.softcap).tanh()
        loss = None if labels is None else self.loss_function(logits, labels, config.vocab_size, **options)
        kept = cache if use_cache else None
        return Output(loss=loss, logits=logits, past_key_values=kept, last_hidden_state=hidden)

    def get_output_embeddings(self) -> nn.Linear:
        return self.head

    def rows(self, given: Tensor, attention_mask: Tensor | None, cache: DynamicCache) -> Rows:
        config = self.config
        past = cache.get_seq_length()
        cache.layer_class_to_replicate = DynamicLayer  # the library counts a layer for each block: we need more
        column = given[:, None, :, None]
        ids = cache.update(column, column, 0)[0][:, 0, :, 0]  # (B, K)
        length = ids.shape[1]
        if length > config.max_seq_len:
            raise ValueError(f"a row has {length} tokens, and the model's context is {config.max_seq_len}")
        seen = torch.ones_like(ids) if attention_mask is None else attention_mask  # (B, K)
        # In fp64, which not every device has: exact at late positions too.
        positions = torch.arange(past, length, dtype=torch.float64)[:, None]  # padding too: only distances count
        pairs = config.head_dim // 2
        exponents = torch.arange(pairs, dtype=torch.float64) / pairs
        angles = positions * config.rope_base**-exponents
        rotation = [part.float().to(ids.device) for part in (angles.cos(), angles.sin())]
        place = torch.arange(length, device=ids.device)
        age = place[past:, None] - place  # (T, K)
        masks = {}
        for window in set(config.windows):
            near = (age >= 0) & (age < (window or length))
            allowed = near & seen[:, None, None].bool()
            masks[window] = allowed | (age == 0)  # padding sees itself: attention to nothing is not a number
        x = norm(self.embed(ids))  # of the whole rows, for smear: less work than the cache's own
        seen = seen[..., None].to(x.dtype)
        if self.smear_lambda is not None:
            gate = torch.sigmoid(self.smear_gate(x[..., :SMEAR_INPUTS]))
            gate = gate.masked_fill((ids == config.bos_id)[..., None], 0)  # nothing of another document
            before = F.pad(x * seen, (0, 0, 1, -1))  # nothing of padding
            x = x + self.smear_lambda * gate * before
        return Rows(given, x[:, past:], rotation, seen[:, None, past:], masks, cache, count(1))

    def hidden(self, rows: Rows) -> Tensor:
        """Return the head's input (B, T, width); a recursive model has a latent state z too."""
        config = self.config
        x = middle = rows.x0
        z = torch.zeros_like(x)
        sweeps = 1  # times that the layers run
        if config.supervision:
            sweeps = config.supervision * config.passes
        for _ in range(sweeps):
            for i in range(config.depth):
                if config.supervision:
                    for _ in range(config.loops):
                        change = self.apply_block(i, norm(rows.x0 + x + z), rows)
                        z = z + change
                    x = x + self.apply_block(i, norm(x + z), rows)
                else:
                    x = self.apply_block(i, x, rows)
                if i == config.depth // 2:
                    middle = x
        return norm(x if self.backout_lambda is None else x - self.backout_lambda * middle)

    def apply_block(self, number: int, x: Tensor, rows: Rows) -> Tensor:
        if self.residual_lambdas is not None:
            x = self.residual_lambdas[number] * x
        if self.x0_lambdas is not None:
            x = x + self.x0_lambdas[number] * rows.x0
        name = str(number)
        block = self.blocks[number]
        assert isinstance(block, nn.ModuleDict)
        values = self.value_embeds[name](rows.ids) if name in self.value_embeds else None
        x = x + block["attn"](norm(x), values, rows)
        return x + block["mlp"](norm(x))
