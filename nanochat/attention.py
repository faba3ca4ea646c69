"""Causal attention, and the table with all ways to compute attention: fused kernels and plain PyTorch.

A forward makes one mask per window (`make_mask`), outside the compiled blocks; each layer calls `attend` with a mask.
"""

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask


Kernel = Callable[..., Tensor]  # q, k, v and the package's own options → attention


class Mask(NamedTuple):
    """Keys that each query sees, in the form for one path; all layers with the same window share a mask."""

    path: str
    window: int  # most keys that a query sees, including the query's position; 0: no limit
    # (B or 1, 1, Tq, Tk), True where a query sees a key, or flex's BlockMask; None where the kernel needs none.
    allowed: "Tensor | BlockMask | None"
    by_position: bool  # queries stand at given positions, not at the end of the keys
    bounded: bool  # exp(score * scale) fits into fp32 without subtracting the maximum
    kernel: Kernel | None  # from the path's package


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    path: str,
    window: int = 0,
    positions: Tensor | None = None,
    bounded: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Return causal attention from q (B, Tq, H, D) to k and v (B, Tk, Hkv, D); H is a multiple of Hkv.

    Key j stands at position j. Query i in row b stands at positions[b, i]; without positions the queries are the last
    Tq keys. A query sees keys up to its own position, and only the last `window` keys if window is not 0.
    """
    mask = make_mask(
        path,
        q.shape[1],
        k.shape[1],
        q.device,
        q.dtype,
        window=window,
        positions=positions,
        bounded=bounded,
    )
    if scale is None:
        scale = q.shape[-1] ** -0.5
    return attend(q, k, v, mask, scale)


def make_mask(
    path: str,
    queries: int,
    keys: int,
    device: torch.device,
    dtype: torch.dtype,
    *,
    window: int = 0,
    positions: Tensor | None = None,
    bounded: bool = False,
) -> Mask:
    """Return the mask for `attend`; ValueError if the path cannot meet the request.

    positions: (B or 1, queries). bounded: the caller knows that exp(score * scale) fits into fp32.
    """
    if path not in PATHS:
        raise ValueError(f"there is no attention path {path}, choose one of {', '.join(PATHS)}")
    # Abilities that this call needs from the path (Path.can).
    needs = set()
    if window:
        needs.add("window")
    if positions is not None:
        needs.add("positions")
    reason = _refusal(path, device, dtype, needs)
    if reason:
        raise ValueError(f"attention path {path} {reason}; sdpa does everything everywhere")
    if window >= keys:
        window = 0  # every key is in sight: a mask without window costs less
    if positions is None:
        allowed = _cached_mask(path, queries, keys, window, device)
    else:  # new values in each decoding step
        allowed = PATHS[path].mask(positions, keys, window)
    bounded = bounded and dtype != torch.float16  # the largest fp16 number is exp(11)
    kernel = _kernel(PATHS[path].package) if PATHS[path].package else None
    return Mask(
        path,
        window,
        allowed,
        by_position=positions is not None,
        bounded=bounded,
        kernel=kernel,
    )


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float) -> Tensor:
    """Return attention from q (B, Tq, H, D) to k and v (B, Tk, Hkv, D), by the mask's path."""
    return PATHS[mask.path].run(q, k, v, mask, scale)


def choose(device: torch.device, dtype: torch.dtype, needs: Iterable[str] = ()) -> tuple[str, str]:
    """Return the fastest path that meets the needs ("window", "positions"), and the reason for the choice."""
    needed = set(needs)
    skipped = []  # faster paths, each with the reason against it
    for name, path in PATHS.items():
        reason = _refusal(name, device, dtype, needed)
        # A path may be able, and still slower than the next one without these needs.
        if not reason and path.pays_with and not path.pays_with & needed:
            reason = f"pays only with {' or '.join(sorted(path.pays_with))}"
        if not reason:
            explanation = "; ".join(skipped) or f"the fastest on {device.type}"
            return name, f"{name}: {explanation}"
        skipped.append(f"{name} {reason}")
    raise AssertionError("the twin does everything everywhere")


def find_path(asked: str, device: torch.device, dtype: torch.dtype, needs: Iterable[str] = ()) -> tuple[str, str]:
    """Return the path for a flag value and the reason; "auto" means the fastest path that meets the needs."""
    if asked == "auto":
        return choose(device, dtype, needs)
    if asked not in PATHS:
        raise ValueError(f"--attention={asked} is not known, take one of auto, {', '.join(PATHS)}")
    return asked, f"{asked}: as asked"


def _refusal(name: str, device: torch.device, dtype: torch.dtype, needs: set[str]) -> str:
    """Return the reason against a path, or an empty string if the path can do everything asked."""
    path = PATHS[name]
    if path.device not in ("", device.type):
        return f"is for the device {path.device}"
    if path.package:
        # The major number: 9 for Hopper, 10 for Blackwell. Each package has kernels for one of them.
        if device.type != "cuda" or torch.cuda.get_device_capability(device)[0] != path.generation:
            return "has no kernel for this device"
        if dtype not in (torch.bfloat16, torch.float16):
            return f"has no kernel for {dtype}"
        kernel = _kernel(path.package)
        if isinstance(kernel, str):  # the reason for a failed import
            return kernel
    unmet = " and ".join(sorted(needs - path.can))
    return f"cannot do {unmet}" if unmet else ""


# ---- positions ----


def previous(x: Tensor, first: Tensor | None = None) -> Tensor:
    """Return x (B, T, …) one token later: each token gets the previous token's value.

    A row's first token gets `first` (B, 1, …), or zeros.
    """
    if first is None:
        first = torch.zeros_like(x[:, :1])
    return torch.cat([first, x[:, :-1]], dim=1)


class Rotation(NamedTuple):
    """Cosines and sines for some positions, (B or none, T, 1, pairs) each."""

    cos: Tensor
    sin: Tensor

    def apply(self, x: Tensor) -> Tensor:
        """Return x (B, T, H, D) rotated by position, in fp32: channel i pairs with i + pairs, later channels stay."""
        pairs = self.cos.shape[-1]
        a, b, rest = x.split([pairs, pairs, x.shape[-1] - 2 * pairs], dim=-1)
        # (a, b) turns by the angle of its position; the products promote bf16 to fp32.
        turned = [
            a * self.cos - b * self.sin,
            b * self.cos + a * self.sin,
            rest.float(),
        ]
        return torch.cat(turned, dim=-1)


class RotaryTable(nn.Module):
    """Cosines and sines for all positions in a context. No checkpoint holds them: call `fill` after to_empty.

    channels: how many channels per head rotate, in pairs.
    """

    def __init__(self, positions: int, channels: int, base: float):
        super().__init__()
        self.base = base
        shape = (positions, channels // 2)
        self.register_buffer("cos", torch.empty(shape), persistent=False)
        self.register_buffer("sin", torch.empty(shape), persistent=False)

    def fill(self) -> None:
        positions, pairs = self.cos.shape
        # In fp64 on the CPU: the same table on every device, exact at late positions too.
        pair = torch.arange(pairs, device="cpu", dtype=torch.float64)
        position = torch.arange(positions, device="cpu", dtype=torch.float64)
        rates = self.base ** -(pair / pairs)  # radians per position
        angles = torch.outer(position, rates)
        self.cos.copy_(angles.cos())
        self.sin.copy_(angles.sin())

    def forward(self, positions: Tensor | slice) -> Rotation:
        return Rotation(
            self.cos[positions].unsqueeze(-2),  # the new axis: heads
            self.sin[positions].unsqueeze(-2),
        )


# ---- masks ----


def _sees(query: Tensor, key: Tensor, window: int) -> Tensor:
    """Return True for each query that sees a key, both given by position, in shapes that broadcast: the definition."""
    seen = key <= query
    if window:
        seen = seen & (key > query - window)
    return seen


def _dense_mask(positions: Tensor, keys: int, window: int) -> Tensor:
    """Return (B or 1, 1, Tq, Tk) from the query positions, (B or 1, Tq)."""
    key = torch.arange(keys, device=positions.device)
    return _sees(positions[:, None, :, None], key, window)


def _block_mask(positions: Tensor, keys: int, window: int) -> "BlockMask":
    from torch.nn.attention.flex_attention import create_block_mask  # takes seconds: only for this path

    rows, queries = positions.shape

    def sees(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        row = row if rows > 1 else row * 0  # one row's positions may stand for all rows
        return _sees(positions[row, query], key, window)

    return create_block_mask(
        sees,
        rows if rows > 1 else None,
        None,  # all heads see the same keys
        queries,
        keys,
        device=positions.device,
    )


@lru_cache(maxsize=16)
def _cached_mask(path: str, queries: int, keys: int, window: int, device: torch.device) -> "Tensor | BlockMask | None":
    """Return a mask that depends on lengths alone: every training step needs the same few."""
    if PATHS[path].needs_no_mask(queries, keys, window):
        return None
    # An evaluation may make the mask that the next training step's backward reads.
    with torch.inference_mode(False):
        positions = torch.arange(keys - queries, keys, device=device)  # the last positions
        return PATHS[path].mask(positions[None], keys, window)


# ---- paths ----


def _plain(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor, scale: float, bounded: bool = False) -> Tensor:
    """Return attention by the formula, with all scores in memory at once; `bounded` takes fewer passes over them."""
    group = q.shape[2] // k.shape[2]  # query heads that share a key head
    k = k.repeat_interleave(group, dim=2)
    v = v.repeat_interleave(group, dim=2)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # (B, H, T, D)
    scores = (q @ k.mT).float() * scale  # (B, H, Tq, Tk)
    if not bounded:
        weights = scores.masked_fill(~allowed, -torch.inf).softmax(-1)
        return (weights.to(v.dtype) @ v).transpose(1, 2)
    # No maximum to find, and the division comes after the sum over keys.
    weights = scores.exp().masked_fill(~allowed, 0)
    out = (weights.to(v.dtype) @ v) / weights.sum(-1, keepdim=True)
    return out.to(v.dtype).transpose(1, 2)


def _chunks(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float) -> Tensor:
    """Run the plain formula on a quarter of the queries at a time and the keys in sight: compiled, fastest on CPUs."""
    if mask.by_position:  # keys in sight are known only on the device
        return _plain(q, k, v, mask.allowed, scale)
    queries = q.shape[1]
    earlier = k.shape[1] - queries  # keys before the first query
    size = max(128, -(-queries // 4))  # queries in a part: a quarter, but no tiny parts
    parts = []
    for first in range(0, queries, size):
        end = min(first + size, queries)
        first_key = 0
        if mask.window:  # the oldest key that the part's first query sees
            first_key = max(0, earlier + first - mask.window + 1)
        seen = slice(first_key, earlier + end)
        part = _plain(
            q[:, first:end],
            k[:, seen],
            v[:, seen],
            mask.allowed[..., first:end, seen],
            scale,
            mask.bounded,
        )
        parts.append(part)
    return torch.cat(parts, dim=1)


def _sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float) -> Tensor:
    causal = mask.allowed is None and q.shape[1] > 1  # a single query sees all keys
    grouped = q.shape[2] != k.shape[2]
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    out = F.scaled_dot_product_attention(
        q,
        k,
        v,
        mask.allowed,
        is_causal=causal,
        scale=scale,
        enable_gqa=grouped,
    )
    return out.transpose(1, 2)  # (B, Tq, H, D) again


def _decode(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float) -> Tensor:
    """Compute one query per row as two batched products over keys stored by head: faster than a CPU's fused kernel."""
    if mask.allowed is None or q.shape[1] > 1:
        return _sdpa(q, k, v, mask, scale)
    rows, _, heads, channels = q.shape
    k = k.transpose(1, 2).flatten(0, 1)  # (B * Hkv, Tk, D)
    v = v.transpose(1, 2).flatten(0, 1)
    grouped = q.reshape(len(k), -1, channels)  # the queries that share a head's keys
    # Keys first: with the factors swapped bf16 takes three times as long.
    scores = torch.bmm(k, grouped.mT).mT.float() * scale
    scores = scores.reshape(rows, heads, -1)  # (B, H, Tk)
    weights = torch.where(mask.allowed[:, 0], scores, -torch.inf).softmax(-1)
    weights = weights.to(v.dtype).view(len(v), -1, weights.shape[-1])  # by key head again
    return torch.bmm(weights, v).view(q.shape)


@lru_cache(maxsize=1)
def _compiled(flex_attention: Kernel) -> Kernel:
    return torch.compile(flex_attention)


def _flex(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float) -> Tensor:
    on_cuda = q.device.type == "cuda"
    if not on_cuda and torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
        raise ValueError(f"attention path flex has no gradient on {q.device.type}; sdpa has")
    run = torch.nn.attention.flex_attention.flex_attention  # imported when the mask was made
    # Uncompiled, flex would hold all scores in memory; inside a compiled block the block's compiler fuses the call.
    if on_cuda and not torch.compiler.is_compiling():
        run = _compiled(run)
    grouped = q.shape[2] != k.shape[2]
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    out = run(
        q,
        k,
        v,
        block_mask=mask.allowed,
        scale=scale,
        enable_gqa=grouped,
    )
    return out.transpose(1, 2)


def _flash(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float) -> Tensor:
    attend_with = partial(mask.kernel, softmax_scale=scale, causal=True)
    if mask.window:
        # The package does not count a query's own key.
        attend_with = partial(attend_with, window_size=(mask.window - 1, 0))
    out = attend_with(q, k, v)
    return out[0] if isinstance(out, tuple) else out  # some versions add the log-sum-exp


@lru_cache(maxsize=8)
def _kernel(package: str) -> Kernel | str:
    """Return a package's attention function, or the reason for its absence."""
    try:
        return importlib.import_module(package).flash_attn_func
    except (ImportError, AttributeError, OSError) as error:  # absent, another version, built for another CUDA
        return f"needs the package {package} ({type(error).__name__}: {error})"


def _twin(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float) -> Tensor:
    return _plain(q, k, v, mask.allowed, scale)


def _always(queries: int, keys: int, window: int) -> bool:
    return True


def _plain_causal(queries: int, keys: int, window: int) -> bool:
    # Without a mask torch's kernel is causal from the first key: right for as many queries as keys, or for one query.
    return not window and queries in (1, keys)


def _never(queries: int, keys: int, window: int) -> bool:
    return False


@dataclass(frozen=True)
class Path:
    """One way to compute attention. All paths do grouped queries and any lengths."""

    run: Callable[[Tensor, Tensor, Tensor, Mask, float], Tensor]
    # (query positions, keys, window) → Mask.allowed
    mask: "Callable[[Tensor, int, int], Tensor | BlockMask]" = _dense_mask
    can: frozenset[str] = frozenset({"window", "positions"})  # abilities beyond causal attention
    needs_no_mask: Callable[[int, int, int], bool] = _never  # (queries, keys, window), without positions
    pays_with: frozenset[str] = frozenset()  # chosen only when one of these is needed; empty: always
    device: str = ""  # the only device type; empty: any
    package: str = ""  # Python package with the kernel, for half precision
    generation: int = 0  # the only CUDA generation with a kernel in the package


FLASH = Path(
    _flash,
    can=frozenset({"window"}),
    needs_no_mask=_always,  # the kernel is causal and knows windows
)
PATHS = {  # fastest first
    "chunks": Path(_chunks, device="cpu"),
    "flash4": replace(
        FLASH,
        package="flash_attn.cute",
        generation=10,
    ),
    "flash3": replace(
        FLASH,
        package="flash_attn_interface",
        generation=9,
    ),
    "flex": Path(
        _flex,
        _block_mask,
        pays_with=frozenset({"window"}),  # the kernel skips blocks out of sight
    ),
    "sdpa": Path(_sdpa, needs_no_mask=_plain_causal),
    "twin": Path(_twin),
    # For generation (fused.py), never chosen by "auto": sdpa comes first.
    "decode": Path(
        _decode,
        device="cpu",
        needs_no_mask=_plain_causal,
    ),
}
