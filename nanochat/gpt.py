"""The Transformer, from config to logits; every trick of it is a field that can be switched off."""

import re
import zlib
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from nanochat import attention as attn
from nanochat.before import Place, behind, shifted
from nanochat.cross_entropy import SAFE_EXPONENT, cross_entropy
from nanochat.cross_entropy import choose as choose_loss
from nanochat.layers import Embedding, Linear, norm, rotate

VOCAB_MULTIPLE = 64  # the vocabulary is padded to it: matrix units like whole tiles
SHORT_MULTIPLE = 128  # and the short window to this, the tile of the attention kernels
VALUE_GATE_INPUTS, SMEAR_GATE_INPUTS = 12, 24  # how many of the channels the two gates look at


@dataclass(frozen=True)
class GPTConfig:
    """The model's shape and tricks; the defaults are the public reference of mid-2026, at depth 12."""

    vocab_size: int = 32768
    depth: int = 12
    width: int = 768
    heads: int = 6
    kv_heads: int = 0  # 0: as many as heads
    max_seq_len: int = 2048
    mlp: str = "relu2"  # a key of MLP_KINDS
    mlp_ratio: float = 4.0  # hidden units per channel
    window_pattern: str = "SSSL"  # laid along the layers, the last is always L. S: a quarter of max_seq_len, L: all
    rope_base: float = 100_000.0
    rope_dims: int = 0  # how many of a head's channels turn with position; 0: all
    norm_eps: float = 2**-23  # of every norm: what fp32 itself can resolve beside 1
    qk_norm: bool = True
    qk_scale: float = 1.2  # of queries and keys each, for sharper attention
    qk_gain: bool = False  # a learned factor per head besides
    softcap: float = 15.0  # logits lie within ±softcap; 0: anywhere
    tie_embeddings: bool = False
    embed_norm: bool = True
    residual_lambdas: bool = True  # x = r·x before each block, r learned per layer
    x0_lambdas: bool = True  # x += a·x0, what entered the first block, before each block
    value_embeds: bool = True  # every other layer, the last included, adds an embedding of the token to its values
    smear: bool = True  # each token's embedding takes some of the token's before it, within a document
    induction: bool = False  # half of the heads look for what followed a token like this one
    backout: bool = True  # what the middle of the network made is taken out before the head
    bos_id: int = -1  # the token that starts a document: smear does not reach across it; -1: rows are one document

    def __post_init__(self):
        object.__setattr__(self, "kv_heads", self.kv_heads or self.heads)
        head = self.width // max(self.heads, 1)
        positive = ("vocab_size", "depth", "width", "heads", "kv_heads", "max_seq_len", "mlp_ratio", "norm_eps")
        rules = [
            *((getattr(self, name) > 0, f"{name} must be above 0") for name in positive),
            (self.heads > 0 and self.width % self.heads == 0, "width must be a multiple of heads"),
            (self.width >= SMEAR_GATE_INPUTS, f"width must be at least {SMEAR_GATE_INPUTS}"),
            (self.heads % max(self.kv_heads, 1) == 0, "heads must be a multiple of kv_heads"),
            (head % 2 == 0, "a head needs an even number of channels: change width or heads"),
            (self.rope_dims % 2 == 0 and 0 <= self.rope_dims <= head, f"rope_dims must be even and at most {head}"),
            (self.mlp in MLP_KINDS, f"mlp must be one of {', '.join(MLP_KINDS)}"),
            (re.fullmatch("[SL]+", self.window_pattern), "window_pattern is made of the letters S and L"),
            (not self.induction or (self.smear and self.kv_heads > 1), "induction needs smear, and kv_heads above 1"),
            (self.softcap >= 0, "softcap must be 0 or above"),
            (self.bos_id < self.vocab_size, "bos_id must be below vocab_size"),
        ]
        for kept, sentence in rules:
            if not kept:
                raise ValueError(f"{sentence} ({self})")

    @property
    def head_dim(self) -> int:
        return self.width // self.heads

    @property
    def attention_scale(self) -> float:
        return self.qk_scale**2 * self.head_dim**-0.5

    @property
    def scores_are_bounded(self) -> bool:
        """Whether normed queries and keys, of length √head_dim, keep all scores from overflowing an exponential."""
        return self.qk_norm and not self.qk_gain and self.attention_scale * self.head_dim <= SAFE_EXPONENT

    @property
    def attention_needs(self) -> set[str]:
        """What a path must be able to do to train it."""
        return {"window"} if any(self.windows) else set()

    @property
    def padded_vocab(self) -> int:
        return -(-self.vocab_size // VOCAB_MULTIPLE) * VOCAB_MULTIPLE

    @property
    def windows(self) -> list[int]:
        """Per layer how many keys a token sees, itself included; 0: all."""
        short = -(-self.max_seq_len // (4 * SHORT_MULTIPLE)) * SHORT_MULTIPLE
        letters = (self.window_pattern * self.depth)[: self.depth - 1] + "L"
        return [short if letter == "S" and short < self.max_seq_len else 0 for letter in letters]

    @property
    def shifted_heads(self) -> int:
        """How many heads, the first ones, have keys of the token before; distance does not count for them."""
        return self.kv_heads // 2 if self.induction else 0

    @property
    def value_layers(self) -> list[int]:
        return list(range((self.depth - 1) % 2, self.depth, 2)) if self.value_embeds else []


_NO_LAMBDAS = {"residual_lambdas": False, "x0_lambdas": False, "smear": False, "backout": False}
_PLAIN = {**_NO_LAMBDAS, "value_embeds": False, "window_pattern": "L", "qk_scale": 1.0}
SIZE_FIELDS = ("vocab_size", "depth", "width", "heads", "kv_heads", "max_seq_len", "bos_id")  # set by other flags
CONFIGURATIONS = {  # name → fields that differ from the defaults
    "reference": {},
    "october-2025": {**_PLAIN, "rope_base": 10_000.0},
    # The reference, made to search its context after few steps: what it is about to say looks like what it has read.
    "induction": {"induction": True, "tie_embeddings": True},
    "portable": {**_PLAIN, "mlp": "swiglu", "mlp_ratio": 8 / 3, "softcap": 0.0},  # what other runtimes know as Qwen3
}
MLP_KINDS = {  # name → (has a gate, hidden units from what `up` and `gate` give)
    "relu2": (False, lambda up, gate: F.relu(up).square()),
    "swiglu": (True, lambda up, gate: F.silu(gate) * up),
}


class Attention(nn.Module):
    def __init__(self, config: GPTConfig, has_values: bool):
        super().__init__()
        self.config = config
        self.q = Linear(config.width, config.width)
        self.k = Linear(config.width, config.kv_heads * config.head_dim)
        self.v = Linear(config.width, config.kv_heads * config.head_dim)
        self.o = Linear(config.width, config.width)
        self.ve_gate = Linear(VALUE_GATE_INPUTS, config.kv_heads) if has_values else None
        self.qk_gain = nn.Parameter(torch.empty(config.heads)) if config.qk_gain else None

    def forward(self, x: Tensor, values: Tensor | None, rope: tuple, plan: attn.Plan, place, cache=None) -> Tensor:
        config = self.config
        q, k, v = (project(x).unflatten(-1, (-1, config.head_dim)) for project in (self.q, self.k, self.v))
        if self.ve_gate is not None:
            gate = 3 * torch.sigmoid(self.ve_gate(x[..., :VALUE_GATE_INPUTS]))
            v = v + gate[..., None] * values.view_as(v)
        shifted_heads = config.shifted_heads
        q = rotate(q, *rope, still=shifted_heads * config.heads // config.kv_heads)
        k = rotate(k, *rope, still=shifted_heads)
        if config.qk_norm:
            q, k = norm(q, config.norm_eps), norm(k, config.norm_eps)
        if self.qk_gain is not None:
            q = q * self.qk_gain[:, None]
        q, k = q.to(x.dtype), k.to(x.dtype)
        k, v = (shifted(k, shifted_heads, place), v) if cache is None else cache.update(k, v)
        return self.o(attn.attend(q, k, v, plan, config.attention_scale).flatten(-2))


class MLP(nn.Module):
    def __init__(self, config: GPTConfig):
        super().__init__()
        has_gate, self.activation = MLP_KINDS[config.mlp]
        units = max(64, round(config.mlp_ratio * config.width / 64) * 64)  # whole tiles again
        self.up = Linear(config.width, units)
        self.gate = Linear(config.width, units) if has_gate else None
        self.down = Linear(units, config.width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.activation(self.up(x), None if self.gate is None else self.gate(x)))


class Block(nn.Module):
    """One layer, all of it, so that compiling it fuses the mixing too; what differs between layers comes as tensors."""

    def __init__(self, config: GPTConfig, has_values: bool):
        super().__init__()
        self.eps = config.norm_eps
        self.attn = Attention(config, has_values)
        self.mlp = MLP(config)

    def forward(self, x, x0, residual_lambda, x0_lambda, values, rope, plan, place, cache=None) -> Tensor:
        if residual_lambda is not None:
            x = residual_lambda * x
        if x0_lambda is not None:
            x = x + x0_lambda * x0
        x = x + self.attn(norm(x, self.eps), values, rope, plan, place, cache)
        return x + self.mlp(norm(x, self.eps))


class GPT(nn.Module):
    """The model; may be built on the meta device, to_empty brings it to another, init_weights gives it values.

    A `cache`, for decoding, has: `capacity`, how many keys a row holds; `positions` (B, T), where in its row each of
    the given tokens stands; `previous` (B, 1), the token before each row's first (any, for a row that is empty); and
    `layers[i].update(k, v)`, which stores keys and values (B, T, Hkv, D) at the positions and returns all of the row's,
    (B, capacity, Hkv, D), key j at position j. The model changes nothing else of it: who owns it moves it on.
    """

    def __init__(self, config: GPTConfig, attention: str = "sdpa", checkpointing: bool = False):
        super().__init__()
        self.config, self.attention, self.checkpointing = config, attention, checkpointing
        self.compute_dtype = torch.float32  # of activations; parameters stay fp32
        self.compiled = False
        self.loss_form: str | None = None  # of cross_entropy.FORMS; None: the fastest that is not compiled
        values_width = config.kv_heads * config.head_dim
        self.embed = Embedding(config.padded_vocab, config.width)
        tables = {str(i): Embedding(config.padded_vocab, values_width) for i in config.value_layers}
        self.value_embeds = nn.ModuleDict(tables)
        self.blocks = nn.ModuleList(Block(config, i in config.value_layers) for i in range(config.depth))
        if not config.tie_embeddings:
            self.head = Linear(config.width, config.padded_vocab)
        self.smear_gate = Linear(SMEAR_GATE_INPUTS, 1) if config.smear else None
        sizes = {"residual_lambdas": config.depth, "x0_lambdas": config.depth, "smear_lambda": 1, "backout_lambda": 1}
        for name, size in sizes.items():
            used = getattr(config, name.removesuffix("_lambda"))
            self.register_parameter(name, nn.Parameter(torch.empty(size)) if used else None)
        for name in ("rope_cos", "rope_sin"):
            shape = (config.max_seq_len, (config.rope_dims or config.head_dim) // 2)
            self.register_buffer(name, torch.empty(shape), persistent=False)
        self.init_buffers()

    def compile_parts(self) -> None:
        """Compile the blocks, one graph for all that are alike, and the loss; slower to start, faster to run."""
        torch._dynamo.config.recompile_limit = 64  # kinds of block x shapes x training or not; 8 would be too few
        for block in self.blocks:
            block.compile()
        self.compiled = True
        self.loss_form = choose_loss(self.rope_cos.device, compiling=True)[0]

    def to_empty(self, *, device: torch.device | str | int | None, recurse: bool = True) -> "GPT":
        """As torch's own, which from the meta device imports the compiler's algebra: seconds."""
        return self._apply(lambda old: torch.empty(old.shape, dtype=old.dtype, device=device), recurse=recurse)

    def as_written(self) -> AbstractContextManager:
        """Nothing runs compiled: where every batch has another shape."""
        return torch.compiler.set_stance("force_eager") if self.compiled else nullcontext()  # the first imports a lot

    def init_buffers(self) -> None:
        """The tables of rotation, which no checkpoint holds: call it after to_empty if the weights are loaded."""
        pairs = self.rope_cos.shape[1]
        rates = self.config.rope_base ** -(torch.arange(pairs, device="cpu", dtype=torch.float64) / pairs)
        angles = torch.outer(torch.arange(self.config.max_seq_len, device="cpu", dtype=torch.float64), rates)
        self.rope_cos.copy_(angles.cos())
        self.rope_sin.copy_(angles.sin())

    def init_weights(self, seed: int) -> None:
        """Every parameter from the seed and its own name: the same for any device, dtype and number of ranks."""
        self.init_buffers()
        for name, parameter in self.named_parameters():
            fill = next(fill for pattern, fill in INITIAL if re.fullmatch(pattern, name))
            generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))
            parameter.data.copy_(fill(torch.empty(parameter.shape, device="cpu"), self.config, generator))
        if self.config.induction:
            self._look_alike()

    @torch.no_grad()
    def _look_alike(self) -> None:
        """From the start the shifted heads match a token with one like it, and smear tells the token before from it."""
        self.smear_lambda.fill_(1)
        group = self.config.heads // self.config.kv_heads
        for block in self.blocks:
            q, k = (layer.weight.unflatten(0, (-1, self.config.head_dim)) for layer in (block.attn.q, block.attn.k))
            k[: self.config.shifted_heads] = q[::group][: self.config.shifted_heads]

    @property
    def head_weight(self) -> Tensor:
        return self.embed.weight if self.config.tie_embeddings else self.head.weight

    def hidden(self, ids: Tensor, starts: Tensor | None = None, cache=None, trunks: Tensor | None = None) -> Tensor:
        """What the head reads, (B, T, width) in compute_dtype; starts (B, T): where each token's document begins.

        Without starts attention sees the whole row. trunks (B, 1): a row begins with so many tokens, starting at 0,
        that each document behind them goes on from: several endings of one text, computed once. Such a row may be
        longer than max_seq_len, if its trunk with any one of its documents is not.
        """
        config, length = self.config, ids.shape[1]
        keys = length if cache is None else cache.capacity
        if keys > config.max_seq_len and trunks is None:
            raise ValueError(f"{keys} positions are more than the model's max_seq_len, {config.max_seq_len}: shorten")
        positions = None if cache is None else cache.positions
        rows = slice(length) if cache is None else positions
        if trunks is not None:
            index = torch.arange(length, device=ids.device)
            rows = torch.where(starts > 0, index - starts + trunks, index)
            rows = rows.clamp(max=config.max_seq_len - 1)  # padding, which starts at 0, may lie beyond
        rope = self._rope(rows)
        common = {"device": ids.device, "dtype": self.compute_dtype, "positions": positions, "starts": starts}
        common |= {"trunks": trunks, "bounded": config.scores_are_bounded}
        plans = {w: attn.plan(self.attention, length, keys, window=w, **common) for w in set(config.windows)}
        place = None if starts is None else Place.of(starts, trunks)
        x0 = self._smear(self._embed(ids), ids, place, cache)
        # A view, for the compiler makes another graph where two arguments are one and the same tensor.
        x, middle = x0.view_as(x0), None
        mixes = (self.residual_lambdas, self.x0_lambdas)
        mixes = ([None] * config.depth if mix is None else mix.unbind() for mix in mixes)
        for i, (block, window, r, a) in enumerate(zip(self.blocks, config.windows, *mixes, strict=True)):
            values = self.value_embeds[str(i)](ids).to(x.dtype) if str(i) in self.value_embeds else None
            given = (x, x0, r, a, values, rope, plans[window], place)
            if cache is not None:
                x = block(*given, cache.layers[i])
            elif self.checkpointing and torch.is_grad_enabled():
                x = checkpoint(block, *given, use_reentrant=False)
            else:
                x = block(*given)
            if i == config.depth // 2:
                middle = x
        if config.backout:
            x = x - self.backout_lambda.to(x.dtype) * middle
        return norm(x, config.norm_eps)

    def _rope(self, positions: Tensor | slice) -> tuple[Tensor, Tensor]:
        return self.rope_cos[positions].unsqueeze(-2), self.rope_sin[positions].unsqueeze(-2)

    def _embed(self, ids: Tensor) -> Tensor:
        x = self.embed(ids).to(self.compute_dtype)
        return norm(x, self.config.norm_eps) if self.config.embed_norm else x

    def _smear(self, x: Tensor, ids: Tensor, place: Place | None, cache) -> Tensor:
        if not self.config.smear:
            return x
        alone = ids == self.config.bos_id
        if cache is not None:
            before, alone = behind(x, self._embed(cache.previous)), alone | (cache.positions == 0)
        else:
            before = behind(x) if place is None else place.before(x)
        gate = self.smear_lambda.to(x.dtype) * torch.sigmoid(self.smear_gate(x[..., :SMEAR_GATE_INPUTS]))
        return x + gate.masked_fill(alone[..., None], 0) * before

    def logits(self, hidden: Tensor) -> Tensor:
        """(…, vocab_size) in fp32."""
        tied = self.config.tie_embeddings
        logits = F.linear(hidden, self.embed.weight.to(hidden.dtype)) if tied else self.head(hidden)
        logits = logits[..., : self.config.vocab_size].float()
        return self.config.softcap * (logits / self.config.softcap).tanh() if self.config.softcap else logits

    def forward(
        self, ids: Tensor, targets: Tensor | None = None, starts=None, reduction: str = "sum", cache=None
    ) -> Tensor:
        """Logits (B, T, vocab_size), or the loss at targets (B, T; -1: none there): its sum, or (B, T) for "none"."""
        hidden = self.hidden(ids, starts, cache)
        if targets is None:
            return self.logits(hidden)
        options = {"softcap": self.config.softcap, "vocab_size": self.config.vocab_size, "reduction": reduction}
        options["form"] = self.loss_form
        loss = cross_entropy(hidden.flatten(0, 1), self.head_weight, targets.flatten(), **options)
        return loss.view_as(targets) if reduction == "none" else loss

    def parameter_counts(self) -> dict[str, int]:
        """By kind, and the total; the padding of the vocabulary is counted."""
        counts = dict.fromkeys(KINDS, 0)
        for name, parameter in self.named_parameters():
            counts[next(kind for kind, pattern in KINDS.items() if re.fullmatch(pattern, name))] += parameter.numel()
        return {**counts, "total": sum(counts.values())}

    def flops_per_token(self) -> int:
        """Forward and backward: 6 a matmul weight, 12 a channel and key as if windows were full; norms are left out."""
        linears = sum(module.weight.numel() for module in self.modules() if isinstance(module, nn.Linear))
        tied = self.embed.weight.numel() if self.config.tie_embeddings else 0
        keys = sum(window or self.config.max_seq_len for window in self.config.windows)
        return 6 * (linears + tied) + 12 * self.config.width * keys


KINDS = {  # kind of parameter → pattern of names, the first that fits
    "matrices": r"blocks\..*\.weight",
    "embed": r"embed\.weight",
    "head": r"head\.weight",
    "value_embeds": r"value_embeds\..*",
    "scalars": ".*",
}


def _spread(t: Tensor, config: GPTConfig, generator: torch.Generator) -> Tensor:
    return t.uniform_(-1, 1, generator=generator) * (3 / config.width) ** 0.5  # deviation 1/√width, no outliers


# Pattern of names → value from (empty fp32 tensor, config, generator). What writes to the residual stream starts at 0.
INITIAL = (
    (r"embed\.weight", lambda t, config, g: t.normal_(0, 0.02 if config.tie_embeddings else 0.8, generator=g)),
    (r"head\.weight", lambda t, config, g: t.normal_(0, 0.001, generator=g)),
    (r"value_embeds\..*|blocks\..*\.[qkv]\.weight", _spread),
    (r"blocks\..*\.(up|gate)\.weight", lambda t, config, g: 0.4 * _spread(t, config, g)),
    (r"blocks\..*\.(o|down)\.weight|smear_lambda", lambda t, config, g: t.zero_()),
    (r".*(ve|smear)_gate\.weight", lambda t, config, g: t.uniform_(0, 0.02, generator=g)),
    (r".*\.qk_gain", lambda t, config, g: t.fill_(1)),
    (r"residual_lambdas", lambda t, config, g: torch.linspace(1.15, 1.05, len(t), device="cpu")),
    (r"x0_lambdas", lambda t, config, g: torch.linspace(0.20, 0.05, len(t), device="cpu")),
    (r"backout_lambda", lambda t, config, g: t.fill_(0.2)),
)


# Kind of model → its config and its class. A manifest names the kind; one without a kind, of an older run, means "gpt".
MODELS = {"gpt": (GPTConfig, GPT)}


def config_of(manifest: Mapping[str, Any]) -> GPTConfig:
    """Return the config of the model that a checkpoint's manifest describes."""
    fields = dict(manifest["model"])
    kind = fields.pop("kind", "gpt")
    if kind not in MODELS:
        raise ValueError(f"this checkpoint holds a model of kind {kind}, take one of {', '.join(MODELS)}")
    config_class, _ = MODELS[kind]
    return config_class(**fields)


def describe_config(config: GPTConfig) -> dict[str, Any]:
    """Return the config as a manifest's "model" entry: the kind of model and all fields."""
    kind = next(kind for kind, (config_class, _) in MODELS.items() if config_class is type(config))
    return {"kind": kind, **asdict(config)}


def new_model(config: GPTConfig, attention: str = "sdpa", checkpointing: bool = False) -> GPT:
    """Return a model of the config's kind, without values: call it under torch.device("meta") to take no memory."""
    model_class = next(model_class for config_class, model_class in MODELS.values() if config_class is type(config))
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
