"""The Transformer, from config to logits. Each trick in the model is a field in GPTConfig and can be switched off.

To add a trick: a field in GPTConfig, code below, and a row in PARAMETERS if the trick learns something. Inference and
the optimizer read both; export refuses unknown fields. `--model=reference,FIELD=VALUE` sets a field.

Another kind of model is a subclass of GPT with a config class derived from GPTConfig: it replaces the attention
(`attention_class`), adds parameters (`parameter_rows`), or runs the blocks in another way (`hidden`).
nanochat/induction.py is one; registry.MODELS has those of tracks.
"""

import re
import zlib
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypeVar, overload

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn
from torch.utils.checkpoint import checkpoint

from nanochat.attention import Mask, RotaryTable, Rotation, attend, make_mask, previous
from nanochat.cross_entropy import SAFE_EXPONENT, Reduced, cross_entropy
from nanochat.errors import UserError

if TYPE_CHECKING:
    from nanochat.decoder import Cache
    from nanochat.sharding import Shards

Result = TypeVar("Result")

VOCAB_MULTIPLE = 64  # pad the vocabulary so that the head's matmul fills tensor-core tiles
SHORT_MULTIPLE = 128  # the attention kernels' tile: a short window is a multiple of it, and the token itself
NORM_EPS = 2**-23  # the resolution of fp32 beside 1
INITIAL_THREADS = 8  # new parameters in memory at once, beside the model
VALUE_GATE_INPUTS = 12  # channels that the gate of the value embeddings reads
SMEAR_GATE_INPUTS = 24  # channels that the gate of smear reads


MLPName = Literal["relu2", "swiglu", "leaky2"]  # the keys of MLP_KINDS


@dataclass(frozen=True)
class Applications:
    """How often a step of training runs all blocks and the head on a token: once each, in a plain model."""

    trained: int = 1  # runs of the blocks that have a gradient
    untrained: int = 0  # runs without one
    heads: int = 1  # runs of the head, each with a loss
    # Activations beside those of a block, by token and channel, that each run keeps.
    kept: float = 0.0
    kept_with_checkpointing: float = 0.0


@dataclass(frozen=True)
class GPTConfig:
    """Shape and tricks; the defaults are the public reference from mid-2026, at depth 12."""

    kind: ClassVar[str] = "gpt"  # of model: a key in models.KINDS or registry.MODELS

    vocab_size: int = 32768
    depth: int = 12
    width: int = 768
    heads: int = 6
    kv_heads: int = 6  # heads of keys and values, which divide the heads of queries among them
    max_seq_len: int = 2048
    mlp: MLPName = "relu2"
    mlp_ratio: float = 4.0  # hidden units per channel
    window_pattern: str = "SSSL"  # repeated over the layers, the last is always L. S: a quarter of max_seq_len, L: all
    rope_base: float = 100_000.0
    qk_scale: float = 1.2  # factor for queries and for keys: sharper attention
    softcap: float = 15.0  # logits lie within ±softcap; 0: no limit
    tie_embeddings: bool = False
    residual_lambdas: bool = True  # x = r·x before each block, r learned per layer
    x0_lambdas: bool = True  # x += a·x0 before each block, x0 the input of the first block, a learned per layer
    value_embeds: bool = True  # every other layer, the last included, adds an embedding of the token to its values
    smear: bool = True  # each token's embedding takes a part of the previous token's, within a document
    backout: bool = True  # part of the middle layer's output is subtracted from the head's input
    bos_id: int = -1  # the token that starts a document: smear stops there; -1: a row is one document

    def __post_init__(self) -> None:
        if self.kv_heads < 1 or self.heads % self.kv_heads:
            raise UserError(f"kv_heads={self.kv_heads} does not divide heads={self.heads}")
        if self.mlp not in MLP_KINDS:
            raise UserError(f"mlp={self.mlp} is not known, use one of {', '.join(MLP_KINDS)}")
        if not re.fullmatch("[SL]+", self.window_pattern):
            raise UserError(f"window_pattern={self.window_pattern} must be made of the letters S and L")

    @property
    def head_dim(self) -> int:
        return self.width // self.heads

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def rotated_channels(self) -> int:
        """Channels of a head that rotate by position."""
        return self.head_dim

    @property
    def attention_scale(self) -> float:
        return self.qk_scale**2 * self.head_dim**-0.5

    @property
    def scores_are_bounded(self) -> bool:
        """True if exp(score) fits into fp32 for any weights: normed queries and keys have length √head_dim."""
        return self.attention_scale * self.head_dim <= SAFE_EXPONENT  # by Cauchy-Schwarz

    @property
    def applications(self) -> Applications:
        """For the cost of a run."""
        return Applications()

    @property
    def padded_vocab(self) -> int:
        return -(-self.vocab_size // VOCAB_MULTIPLE) * VOCAB_MULTIPLE

    @cached_property
    def windows(self) -> list[int]:
        """Return the number of keys that a token sees in each layer, the token included; 0: all."""
        short = -(-self.max_seq_len // (4 * SHORT_MULTIPLE)) * SHORT_MULTIPLE + 1  # as in the public reference
        letters = (self.window_pattern * self.depth)[: self.depth - 1] + "L"
        return [short if letter == "S" and short < self.max_seq_len else 0 for letter in letters]

    @property
    def value_layers(self) -> list[int]:
        """The layers that add value embeddings."""
        return list(range((self.depth - 1) % 2, self.depth, 2)) if self.value_embeds else []


@dataclass(frozen=True)
class MLPKind:
    """How an MLP computes its hidden units: activation(up), or with a gate activation(gate) * up."""

    activation: Callable[[Tensor], Tensor]
    has_gate: bool = False


MLP_KINDS: dict[MLPName, MLPKind] = {
    "relu2": MLPKind(lambda up: F.relu(up).square()),
    "swiglu": MLPKind(F.silu, has_gate=True),
    "leaky2": MLPKind(lambda up: F.leaky_relu(up, 0.5).square()),
}
Store = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]  # from some tokens' keys and values to those of whole rows


class Linear(nn.Linear):
    """A linear layer without bias. The fp32 weight is cast to the input's dtype, so gradients add up in fp32."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False)

    def reset_parameters(self) -> None:
        """Leave the values to `GPT.init_weights`."""

    @property
    def active_weight(self) -> Tensor:
        """The weight as products read it, in fp32. A subclass may round it."""
        return self.weight

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.active_weight.to(x.dtype))


class Embedding(nn.Embedding):
    """A table without values until init_weights: random numbers on the meta device would import the compiler."""

    def reset_parameters(self) -> None:
        """Leave the values to `GPT.init_weights`."""

    @property
    def active_weight(self) -> Tensor:
        """The weight as products read it, in fp32. A subclass may round it."""
        return self.weight

    def forward(self, ids: Tensor) -> Tensor:
        grad = self.weight.grad if self.weight.is_leaf else None  # no leaf: whole weights gathered from shards
        # A view is a place in our optimizer's buffer, which is never replaced: a sparse gradient is added to it by
        # index, and no whole table is made. Other optimizers do not take sparse gradients; nobody tried them on MPS.
        sparse = grad is not None and grad._is_view() and not ids.is_mps
        return F.embedding(ids, self.active_weight, sparse=sparse)


def norm(x: Tensor, eps: float = NORM_EPS) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], eps=eps)  # sums squares in fp32 for every dtype of x


def smeared(
    rows: Tensor, dtype: torch.dtype, first: Tensor | None, is_first: Tensor, gate: nn.Module, factor: Tensor
) -> Tensor:
    """Return normed embeddings in dtype, each with a part of the previous token's; is_first: tokens that take none.

    rows: (B, T, width) of the table. first: the embedding before each row's first token.
    """
    x = norm(rows.to(dtype))
    part = factor.to(dtype) * torch.sigmoid(gate(x[..., :SMEAR_GATE_INPUTS]))
    return x + part.masked_fill(is_first[..., None], 0) * previous(x, first)


def backed_out(x: Tensor, middle: Tensor, factor: Tensor) -> Tensor:
    """Return the last layer's output without a part of the middle layer's, normed."""
    return norm(x - factor.to(x.dtype) * middle)


class LayerContext(NamedTuple):
    """Inputs for one block besides the state; layers differ in these tensors only, so equal blocks share a graph."""

    x0: Tensor  # (B, T, width): the first block's input
    residual_lambda: Tensor | None
    x0_lambda: Tensor | None
    values: Tensor | None  # (B, T, kv_width): the tokens' value embeddings
    rotation: Rotation
    mask: Mask
    store: Store | None  # from a cache: takes these tokens' keys and values, returns the whole rows'


class Attention(nn.Module):
    """One layer's attention. Subclasses replace the methods below `forward`."""

    def __init__(self, config: GPTConfig, number: int) -> None:
        super().__init__()
        self.config = config
        self.q = Linear(config.width, config.width)
        self.k = Linear(config.width, config.kv_width)
        self.v = Linear(config.width, config.kv_width)
        self.o = Linear(config.width, config.width)
        self.ve_gate = Linear(VALUE_GATE_INPUTS, config.kv_heads) if number in config.value_layers else None
        # For inference (fused.py): one product in place of q, k and v, and the heads of each part of the result.
        self.qkv: nn.Module | None = None  # packed, for generation
        self.qkv_parts = [config.heads + config.kv_heads, config.kv_heads]

    def forward(self, x: Tensor, layer: LayerContext) -> Tensor:
        *parts, v = self.project(x)  # queries and keys are one part if one product made both: one rotation and norm
        if self.ve_gate is not None:
            assert layer.values is not None  # layers with a gate have a table
            gate = 3 * torch.sigmoid(self.ve_gate(x[..., :VALUE_GATE_INPUTS]))  # (B, T, kv_heads), from 0 to 3
            v = v + gate[..., None] * layer.values.view_as(v)
        q, k = self.queries_and_keys(parts, layer.rotation)
        k, values = self.keys_and_values(k.to(x.dtype), v, layer.store)
        y = attend(q.to(x.dtype), k, values, layer.mask, self.config.attention_scale)  # (B, T, heads, head_dim)
        y = self.mixed(y, v)
        return self.o(y.flatten(-2))

    def project(self, x: Tensor) -> list[Tensor]:
        """Return queries, keys and values, or a fused [q; k] and v, each (B, T, heads, head_dim)."""
        if self.qkv is not None:
            return list(self.qkv(x).unflatten(-1, (-1, self.config.head_dim)).split(self.qkv_parts, dim=2))
        return [layer(x).unflatten(-1, (-1, self.config.head_dim)) for layer in (self.q, self.k, self.v)]

    def queries_and_keys(self, parts: list[Tensor], rotation: Rotation) -> tuple[Tensor, Tensor]:
        """Return both in fp32, rotated by position and normed. parts: queries and keys, or both in one."""
        parts = [norm(self.rotate(part, rotation)) for part in parts]
        return self.split(parts)

    def rotate(self, part: Tensor, rotation: Rotation) -> Tensor:
        return rotation.apply(part)

    def split(self, parts: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Return queries and keys as two tensors."""
        q, k = parts if len(parts) == 2 else parts[0].split([self.config.heads, self.config.kv_heads], dim=2)
        return q, k

    def keys_and_values(self, k: Tensor, v: Tensor, store: Store | None) -> tuple[Tensor, Tensor]:
        """Return those that the queries see: of these tokens, or with a cache of the whole rows."""
        return (k, v) if store is None else store(k, v)

    def mixed(self, y: Tensor, v: Tensor) -> Tensor:
        """Return the input of the last product. y: (B, T, heads, head_dim), the values that each head has mixed."""
        return y


class MLP(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        kind = MLP_KINDS[config.mlp]
        self.activation = kind.activation
        units = max(64, round(config.mlp_ratio * config.width / 64) * 64)  # matrix units like whole tiles
        self.up = Linear(config.width, units)
        self.gate = Linear(config.width, units) if kind.has_gate else None
        self.down = Linear(units, config.width)

    def forward(self, x: Tensor) -> Tensor:
        if self.gate is None:
            return self.down(self.activation(self.up(x)))
        gate = self.gate(x)
        return self.down(self.activation(gate) * self.up(x))


class Block(nn.Module):
    """One layer with residual mixing inside, so compiling a block fuses the mixing too."""

    def __init__(self, config: GPTConfig, number: int, attention: type[Attention] = Attention) -> None:
        super().__init__()
        self.attn = attention(config, number)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, layer: LayerContext) -> Tensor:
        if layer.residual_lambda is not None:
            x = layer.residual_lambda * x
        if layer.x0_lambda is not None:
            x = x + layer.x0_lambda * layer.x0
        x = x + self.attn(norm(x), layer)
        return x + self.mlp(norm(x))


class Context(NamedTuple):
    """Everything that the blocks share in a forward, however often they run."""

    ids: Tensor  # (B, T)
    x0: Tensor  # (B, T, width): embedded tokens, in compute_dtype
    rotation: Rotation
    masks: dict[int, Mask]  # by window
    cache: "Cache | None"
    first: int = 0  # place of the first layer's keys and values in the cache


@dataclass(frozen=True)
class ParameterRow:
    """Parameters by name. Every parameter of a model matches one row's pattern."""

    pattern: str
    group: str  # for the optimizer: a row name in param_groups.RULES
    initial: Callable[[Tensor, Any, Generator], Tensor]  # from (an empty fp32 tensor on the CPU, config, generator)


def uniform(factor: float) -> Callable[[Tensor, GPTConfig, Generator], Tensor]:
    """Values with a standard deviation of factor / √width, without outliers."""
    return lambda t, config, generator: t.uniform_(-1, 1, generator=generator) * (3 / config.width) ** 0.5 * factor


def constant(value: float) -> Callable[[Tensor, GPTConfig, Generator], Tensor]:
    return lambda t, config, generator: t.fill_(value)


def _line(first: float, last: float) -> Callable[[Tensor, GPTConfig, Generator], Tensor]:
    """Values that change evenly from the first layer to the last."""
    return lambda t, config, generator: torch.linspace(first, last, len(t), device="cpu")


def _embedding(t: Tensor, config: GPTConfig, generator: Generator) -> Tensor:
    return t.normal_(0, 0.02 if config.tie_embeddings else 0.8, generator=generator)


def _head(t: Tensor, config: GPTConfig, generator: Generator) -> Tensor:
    return t.normal_(0, 0.001, generator=generator)


def _gate(t: Tensor, config: GPTConfig, generator: Generator) -> Tensor:
    return t.uniform_(0, 0.02, generator=generator)


PARAMETERS = (
    # A tied embedding is also the head, and belongs to the group "unembedding" (param_groups.py).
    ParameterRow(r"embed\.weight", "embedding", _embedding),
    ParameterRow(r"head\.weight", "unembedding", _head),
    ParameterRow(r"value_embeds\.\d+\.weight", "value_embeds", uniform(1)),
    ParameterRow(r"blocks\.\d+\.attn\.ve_gate\.weight", "matrices", _gate),
    ParameterRow(r"blocks\.\d+\.attn\.[qkv]\.weight", "matrices", uniform(1)),
    ParameterRow(r"blocks\.\d+\.mlp\.(up|gate)\.weight", "matrices", uniform(0.4)),
    # They write the residual stream.
    ParameterRow(r"blocks\.\d+\.(attn\.o|mlp\.down)\.weight", "matrices", constant(0)),
    ParameterRow(r"residual_lambdas", "residual_lambdas", _line(1.15, 1.05)),
    ParameterRow(r"x0_lambdas", "x0_lambdas", _line(0.20, 0.05)),
    ParameterRow(r"smear_gate\.weight", "smear", _gate),
    ParameterRow(r"smear_lambda", "smear", constant(0)),
    ParameterRow(r"backout_lambda", "backout", constant(0.2)),
)


def with_rows(rows: tuple[ParameterRow, ...], *others: ParameterRow) -> tuple[ParameterRow, ...]:
    """Return rows with others added, in place of those that have the same pattern."""
    return tuple({row.pattern: row for row in (*rows, *others)}.values())


class GPT(nn.Module):
    """The model. Build on the meta device; to_empty allocates on another device, init_weights fills in values."""

    config_class: ClassVar[type[GPTConfig]] = GPTConfig
    parameter_rows: ClassVar[tuple[ParameterRow, ...]] = PARAMETERS

    def __init__(self, config: GPTConfig, attention: str = "sdpa", checkpointing: bool = False) -> None:
        super().__init__()
        assert config.kind == self.config_class.kind, (
            f"{type(self).__name__} has another config than that of a {config.kind}"
        )
        self.config = config
        self.attention = attention  # a key in attention.PATHS
        self.checkpointing = checkpointing  # compute activations twice to save memory
        self.compute_dtype = torch.float32  # for activations; parameters stay fp32
        self.compiled = False
        self.smeared, self.backed_out = smeared, backed_out  # or compiled forms
        self.shards: Shards | None = None  # if this rank keeps a share of the weights
        self.embed = Embedding(config.padded_vocab, config.width)
        tables = {str(i): Embedding(config.padded_vocab, config.kv_width) for i in config.value_layers}
        self.value_embeds = nn.ModuleDict(tables)
        self.blocks = nn.ModuleList(Block(config, i, self.attention_class) for i in range(config.depth))
        if not config.tie_embeddings:
            self.head = Linear(config.width, config.padded_vocab)
        self.smear_gate = Linear(SMEAR_GATE_INPUTS, 1) if config.smear else None
        self.residual_lambdas = nn.Parameter(torch.empty(config.depth)) if config.residual_lambdas else None
        self.x0_lambdas = nn.Parameter(torch.empty(config.depth)) if config.x0_lambdas else None
        self.smear_lambda = nn.Parameter(torch.empty(1)) if config.smear else None
        self.backout_lambda = nn.Parameter(torch.empty(1)) if config.backout else None
        self.rotary = RotaryTable(config.max_seq_len, config.rotated_channels, config.rope_base)

    @property
    def attention_class(self) -> type[Attention]:
        return Attention

    @property
    def device(self) -> torch.device:
        return self.embed.weight.device

    @property
    def head_module(self) -> Linear | Embedding:
        return self.embed if self.config.tie_embeddings else self.head

    @property
    def head_weight(self) -> Tensor:
        return self.head_module.active_weight

    @property
    def cached_layers(self) -> int:
        """The number of times that a block runs in a forward, each with keys and values to cache."""
        runs = self.config.applications
        return self.config.depth * (runs.trained + runs.untrained)

    def choose_exits(self, exits: int) -> None:
        """End forwards at another exit than the model was trained with; a plain model has one."""
        raise UserError("--exits is for recursive models, and this is not one")

    def end_like(self, model: "GPT") -> None:
        """End forwards at the exit that another model of this kind has chosen."""

    def gather_and_call(
        self, module: nn.Module, function: Callable[..., Result], *inputs: Any, **options: bool
    ) -> Result:
        """Return function(*inputs), which reads a module's weights; sharded ones are gathered (Shards.call)."""
        return function(*inputs) if self.shards is None else self.shards.call(module, function, *inputs, **options)

    def whole(self) -> AbstractContextManager[None]:
        """Return a context in which all weights can be read. All ranks enter."""
        return nullcontext() if self.shards is None else self.shards.whole()

    def compile_parts(self) -> None:
        """Compile the loss and the blocks, with one graph for equal blocks; slower to start, faster to run."""
        # 64: kinds of block x shapes x training or not; 8 would be too few
        torch._dynamo.config.recompile_limit = 64  # ty: ignore[invalid-assignment]  # torch annotates the default alone
        for block in self.blocks:
            block.compile(dynamic=False)  # a smaller micro-batch is compiled anew; for every size at once is slower
        if self.device.type == "cuda":  # a CPU compiles for ten seconds to save 3 %
            self.compile_ends()
        self.compiled = True

    def compile_ends(self) -> None:
        """Compile what comes before and after the blocks: one kernel each in place of a dozen."""
        self.smeared = torch.compile(smeared, dynamic=False)
        self.backed_out = torch.compile(backed_out, dynamic=False)

    def to_empty(self, *, device: torch.device | str) -> "GPT":  # ty: ignore[incompatible-method-override]  # always whole
        """Allocate as torch's method does, then compute the rotary tables, which no checkpoint holds.

        torch's own would import the compiler's algebra, which takes seconds.
        """
        self._apply(lambda old: torch.empty(old.shape, dtype=old.dtype, device=device))
        self.fill_tables()
        return self

    def fill_tables(self) -> None:
        self.rotary.fill()

    @classmethod
    def parameter_row(cls, name: str) -> ParameterRow:
        """Return the row for a parameter."""
        rows = [row for row in cls.parameter_rows if re.fullmatch(row.pattern, name)]
        assert len(rows) == 1, f"{name} matches {len(rows)} rows of {cls.__name__}.parameter_rows, and must match one"
        return rows[0]

    def init_weights(self, seed: int, names: Collection[str] = ()) -> None:
        """Set every parameter from seed and name: the same for any device, dtype and number of ranks.

        names: only these parameters, if there are any.
        """

        def fill(name: str) -> None:
            self.get_parameter(name).data.copy_(self.initial(seed, name))

        # Each has a generator, which uses one thread: several are filled at a time.
        with ThreadPoolExecutor(INITIAL_THREADS) as threads:
            list(
                threads.map(fill, names or [name for name, _ in self.named_parameters()])
            )  # raises what a thread has raised

    def initial(self, seed: int, name: str) -> Tensor:
        """Return a new parameter's values, on the CPU."""
        generator = Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))
        empty = torch.empty(self.get_parameter(name).shape, device="cpu")
        return self.parameter_row(name).initial(empty, self.config, generator)

    def forward(
        self, ids: Tensor, targets: Tensor | None = None, reduction: str = "sum", cache: "Cache | None" = None
    ) -> Tensor:
        """Return logits (B, T, vocab_size), or the loss at targets (B, T; -1: none): the sum, or (B, T) for "none"."""
        hidden = self.hidden(ids, cache)
        return self.logits(hidden) if targets is None else self.loss(hidden, targets, reduction)

    @overload
    def loss(self, hidden: Tensor, targets: Tensor, reduction: str = "sum", factors: None = None) -> Tensor: ...

    @overload
    def loss(
        self, hidden: Tensor, targets: Tensor, reduction: str = "sum", *, factors: Tensor
    ) -> tuple[Tensor, Tensor]: ...

    def loss(self, hidden: Tensor, targets: Tensor, reduction: str = "sum", factors: Tensor | None = None) -> Reduced:
        """Return the loss of the head's inputs (…, width) at targets, as `forward` does.

        factors: weights of the tokens; then it returns the weighted sum, and the losses of the tokens (cross_entropy).
        """

        def loss_of(hidden: Tensor) -> Reduced:
            return cross_entropy(
                hidden,
                self.head_weight,
                targets,
                softcap=self.config.softcap,
                vocab_size=self.config.vocab_size,
                compiled=self.compiled,
                reduction=reduction,
                factors=factors,
            )

        return self.gather_and_call(self.head_module, loss_of, hidden)

    def hidden(self, ids: Tensor, cache: "Cache | None" = None) -> Tensor:
        """Return the head's input, (B, T, width) in compute_dtype."""
        context = self.context(ids, cache)
        return self.sweep(context.x0, context)

    def context(self, ids: Tensor, cache: "Cache | None" = None) -> Context:
        """Return the inputs common to all blocks for tokens (B, T); with a cache they continue the cache's rows."""
        config = self.config
        length = ids.shape[1]
        positions = None if cache is None else cache.positions
        keys = length if cache is None or positions is None else cache.capacity
        assert keys <= config.max_seq_len
        bounded = config.scores_are_bounded and self.compute_dtype != torch.float16  # at most exp(11) in fp16
        make = partial(make_mask, self.attention, length, keys, ids.device, positions=positions, bounded=bounded)
        masks = {window: make(window=window) for window in set(config.windows)}  # layers share them
        rotation = self.rotary(slice(length) if positions is None else positions)
        return Context(ids, self.first_state(ids, cache), rotation, masks, cache)

    def sweep(self, x: Tensor, context: Context) -> Tensor:
        """Run all blocks on the state x (B, T, width); return the new state, normed. May run again on a context."""
        x = x.view_as(x)  # were x and x0 the same tensor, the compiler would make another graph
        middle = x
        for i, (block, layer) in enumerate(zip(self.blocks, self.layers(context), strict=True)):
            if self.checkpointing and torch.is_grad_enabled():
                x = checkpoint(self.gather_and_call, block, block, x, layer, recomputed=True, use_reentrant=False)
            else:
                x = self.gather_and_call(block, block, x, layer)
            if i == self.config.depth // 2:
                middle = x
        return self.last_state(x, middle)

    def layers(self, context: Context) -> Iterator[LayerContext]:
        """Yield each block's inputs besides the state."""
        config = self.config
        tables = self.value_embeds
        ids = context.ids
        no_lambdas = [None] * config.depth
        residual_lambdas = no_lambdas if self.residual_lambdas is None else self.residual_lambdas.unbind()
        x0_lambdas = no_lambdas if self.x0_lambdas is None else self.x0_lambdas.unbind()
        for i in range(config.depth):
            yield LayerContext(
                x0=context.x0,
                residual_lambda=residual_lambdas[i],
                x0_lambda=x0_lambdas[i],
                values=self.gather_and_call(tables[str(i)], tables[str(i)], ids).to(context.x0)
                if str(i) in tables
                else None,
                rotation=context.rotation,
                mask=context.masks[config.windows[i]],
                store=None if context.cache is None else partial(context.cache.update, context.first + i),
            )

    def last_state(self, x: Tensor, middle: Tensor) -> Tensor:
        """Return the head's input, from the outputs of the last layer and the middle one."""
        return norm(x) if self.backout_lambda is None else self.backed_out(x, middle, self.backout_lambda)

    def first_state(self, ids: Tensor, cache: "Cache | None") -> Tensor:
        """Return the first block's input: embedded tokens, with smear."""
        rows = self.gather_and_call(self.embed, self.embed, ids)
        if self.smear_lambda is None or self.smear_gate is None:
            return norm(rows.to(self.compute_dtype))
        is_first = ids == self.config.bos_id  # of a document: it takes nothing from the token before
        if cache is None:
            return self.smeared(rows, self.compute_dtype, None, is_first, self.smear_gate, self.smear_lambda)
        first = None
        if cache.positions is not None:  # rows began before
            assert cache.previous is not None  # as positions are
            first = norm(self.gather_and_call(self.embed, self.embed, cache.previous).to(self.compute_dtype))
            is_first = is_first | (cache.positions == 0)
        return smeared(rows, self.compute_dtype, first, is_first, self.smear_gate, self.smear_lambda)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return (…, vocab_size) in fp32."""
        tied = self.config.tie_embeddings
        softcap = self.config.softcap
        head = (lambda x: F.linear(x, self.head_weight.to(x.dtype))) if tied else self.head
        logits = self.gather_and_call(self.head_module, head, hidden)[..., : self.config.vocab_size].float()
        return softcap * (logits / softcap).tanh() if softcap else logits
