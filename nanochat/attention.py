"""Causal attention, and the table of ways to compute it: fused kernels where there is one, plain PyTorch everywhere.

A forward makes one mask per window (`make_mask`), outside of the compiled blocks; each layer calls `attend` with it.
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


class Mask(NamedTuple):
    """Keys that each query sees, in the form that one path needs; all layers with the same window share a mask."""

    path: str
    window: int  # keys that a query sees at most, its own position included; 0: no limit
    # (B or 1, 1, Tq, Tk), True where a query sees a key, or flex's BlockMask; None where the kernel needs none.
    allowed: "Tensor | BlockMask | None"
    by_position: bool  # queries stand at given positions, not at the end of the keys
    bounded: bool  # exp(score * scale) fits into fp32 without subtracting the maximum
    kernel: Callable[..., Tensor] | None  # of the path's package


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
    """Return causal attention of q (B, Tq, H, D) over k and v (B, Tk, Hkv, D); H is a multiple of Hkv.

    Key j stands at position j. Query i of row b stands at positions[b, i]; without positions the queries are the last
    Tq keys. A query sees keys up to its own position, and only the last `window` keys if window is not 0.
    """
    lengths = q.shape[1], k.shape[1]
    mask = make_mask(path, *lengths, q.device, q.dtype, window=window, positions=positions, bounded=bounded)
    return attend(q, k, v, mask, q.shape[-1] ** -0.5 if scale is None else scale)


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
    """Return the mask for `attend`; ValueError where the path cannot do what is asked.

    positions: (B or 1, queries). bounded: the caller knows that exp(score * scale) fits into fp32.
    """
    if path not in PATHS:
        raise ValueError(f"there is no attention path {path}, choose one of {', '.join(PATHS)}")
    needs = set()
    if window:
        needs.add("window")
    if positions is not None:
        needs.add("positions")
    reason = _refusal(path, device, dtype, needs)
    if reason:
        raise ValueError(f"attention path {path} {reason}; sdpa does everything everywhere")
    if window >= keys:
        window = 0
    if positions is None:
        allowed = _cached_mask(path, queries, keys, window, device)
    else:
        allowed = PATHS[path].mask(positions, keys, window)
    bounded = bounded and dtype != torch.float16  # the largest fp16 number is exp(11)
    kernel = _kernel(PATHS[path].package) if PATHS[path].package else None
    return Mask(path, window, allowed, positions is not None, bounded, kernel)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float) -> Tensor:
    """Return attention of q (B, Tq, H, D) over k and v (B, Tk, Hkv, D), by the mask's path."""
    return PATHS[mask.path].run(q, k, v, mask, scale)


def choose(device: torch.device, dtype: torch.dtype, needs: Iterable[str] = ()) -> tuple[str, str]:
    """Return the fastest path that does what is needed ("window", "positions"), and the reason for the choice."""
    skipped = []
    for name, path in PATHS.items():
        reason = _refusal(name, device, dtype, set(needs))
        if not reason and path.pays_with and not path.pays_with & set(needs):
            reason = f"pays only with {' or '.join(sorted(path.pays_with))}"
        if not reason:
            return name, f"{name}: {'; '.join(skipped) or 'the fastest on ' + device.type}"
        skipped.append(f"{name} {reason}")
    raise AssertionError("the twin does everything everywhere")


def find_path(asked: str, device: torch.device, dtype: torch.dtype, needs: Iterable[str] = ()) -> tuple[str, str]:
    """Return the path that a flag asks for, where "auto" is the fastest that meets the needs; and the reason."""
    if asked == "auto":
        return choose(device, dtype, needs)
    if asked not in PATHS:
        raise ValueError(f"--attention={asked} is not known, take one of auto, {', '.join(PATHS)}")
    return asked, f"{asked}: as asked"


def _refusal(name: str, device: torch.device, dtype: torch.dtype, needs: set[str]) -> str:
    """Return why a path cannot do what is asked, or an empty string."""
    path = PATHS[name]
    if path.device not in ("", device.type):
        return f"is for the device {path.device}"
    if path.package:
        if device.type != "cuda" or torch.cuda.get_device_capability(device)[0] != path.generation:
            return "has no kernel for this device"
        if dtype not in (torch.bfloat16, torch.float16):
            return f"has no kernel for {dtype}"
        kernel = _kernel(path.package)
        if isinstance(kernel, str):
            return kernel
    unmet = " and ".join(sorted(needs - path.can))
    return f"cannot do {unmet}" if unmet else ""


# ---- positions ----


def previous(x: Tensor, first: Tensor | None = None) -> Tensor:
    """Return x (B, T, …) one token later: each token gets the value of the token before it.

    A row's first token gets `first` (B, 1, …), or zeros.
    """
    first = torch.zeros_like(x[:, :1]) if first is None else first
    return torch.cat([first, x[:, :-1]], dim=1)


class Rotation(NamedTuple):
    """Cosines and sines of some positions, (B or none, T, 1, pairs) each."""

    cos: Tensor
    sin: Tensor

    def apply(self, x: Tensor) -> Tensor:
        """Return x (B, T, H, D) rotated by position, in fp32: channel i pairs with i + pairs, later channels stay."""
        pairs = self.cos.shape[-1]
        a, b, rest = x.split([pairs, pairs, x.shape[-1] - 2 * pairs], dim=-1)
        return torch.cat([a * self.cos - b * self.sin, b * self.cos + a * self.sin, rest.float()], dim=-1)


class RotaryTable(nn.Module):
    """Cosines and sines for all positions of a context. No checkpoint holds them: call `fill` after to_empty.

    channels: of a head that rotate, in pairs.
    """

    def __init__(self, positions: int, channels: int, base: float):
        super().__init__()
        self.base = base
        shape = (positions, channels // 2)
        self.register_buffer("cos", torch.empty(shape), persistent=False)
        self.register_buffer("sin", torch.empty(shape), persistent=False)

    def fill(self) -> None:
        positions, pairs = self.cos.shape
        rates = self.base ** -(torch.arange(pairs, device="cpu", dtype=torch.float64) / pairs)
        angles = torch.outer(torch.arange(positions, device="cpu", dtype=torch.float64), rates)
        self.cos.copy_(angles.cos())
        self.sin.copy_(angles.sin())

    def forward(self, positions: Tensor | slice) -> Rotation:
        return Rotation(self.cos[positions].unsqueeze(-2), self.sin[positions].unsqueeze(-2))


# ---- masks ----


def _sees(query: Tensor, key: Tensor, window: int) -> Tensor:
    """Return whether queries see keys, both given by position, in any shapes that broadcast: the definition."""
    seen = key <= query
    return seen & (key > query - window) if window else seen


def _dense_mask(positions: Tensor, keys: int, window: int) -> Tensor:
    """Return (B or 1, 1, Tq, Tk) from the positions of the queries, (B or 1, Tq)."""
    return _sees(positions[:, None, :, None], torch.arange(keys, device=positions.device), window)


def _block_mask(positions: Tensor, keys: int, window: int) -> "BlockMask":
    from torch.nn.attention.flex_attention import create_block_mask  # takes seconds: only where it is used

    rows, queries = positions.shape

    def sees(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        row = row if rows > 1 else row * 0  # the positions of one row may stand for all rows
        return _sees(positions[row, query], key, window)

    return create_block_mask(sees, rows if rows > 1 else None, None, queries, keys, device=positions.device)


@lru_cache(maxsize=16)
def _cached_mask(path: str, queries: int, keys: int, window: int, device: torch.device) -> "Tensor | BlockMask | None":
    """Return a mask that follows from lengths alone: every training step asks for the same ones."""
    if PATHS[path].needs_no_mask(queries, keys, window):
        return None
    # An evaluation may make the mask that the backward of the next training step reads.
    with torch.inference_mode(False):
        return PATHS[path].mask(torch.arange(keys - queries, keys, device=device)[None], keys, window)


# ---- paths ----


def _plain(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor, scale: float, bounded: bool = False) -> Tensor:
    """Return attention by the formula, with all scores in memory at once; `bounded` takes fewer passes over them."""
    group = q.shape[2] // k.shape[2]
    k = k.repeat_interleave(group, dim=2)
    v = v.repeat_interleave(group, dim=2)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # (B, H, T, D)
    scores = (q @ k.mT).float() * scale
    if not bounded:
        weights = scores.masked_fill(~allowed, -torch.inf).softmax(-1)
        return (weights.to(v.dtype) @ v).transpose(1, 2)
    # No maximum to find, and the division comes after the sum over keys.
    weights = scores.exp().masked_fill(~allowed, 0)
    out = (weights.to(v.dtype) @ v) / weights.sum(-1, keepdim=True)
    return out.to(v.dtype).transpose(1, 2)


def _chunks(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float) -> Tensor:
    """Run the plain formula by quarters of the queries, each with the keys in sight: compiled, the fastest on CPUs."""
    if mask.by_position:
        return _plain(q, k, v, mask.allowed, scale)
    queries = q.shape[1]
    earlier = k.shape[1] - queries  # keys before the first query
    size = max(128, -(-queries // 4))
    parts = []
    for first in range(0, queries, size):
        end = min(first + size, queries)
        first_key = max(0, earlier + first - mask.window + 1) if mask.window else 0
        seen = slice(first_key, earlier + end)
        allowed = mask.allowed[..., first:end, seen]
        parts.append(_plain(q[:, first:end], k[:, seen], v[:, seen], allowed, scale, mask.bounded))
    return torch.cat(parts, dim=1)


def _sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float) -> Tensor:
    causal = mask.allowed is None and q.shape[1] > 1
    grouped = q.shape[2] != k.shape[2]
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    kernel = F.scaled_dot_product_attention
    return kernel(q, k, v, mask.allowed, is_causal=causal, scale=scale, enable_gqa=grouped).transpose(1, 2)


def _decode(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float) -> Tensor:
    """Compute one query per row as two batched products over keys stored by head: faster than a CPU's fused kernel."""
    if mask.allowed is None or q.shape[1] > 1:
        return _sdpa(q, k, v, mask, scale)
    rows, _, heads, channels = q.shape
    k = k.transpose(1, 2).flatten(0, 1)  # (B * Hkv, Tk, D)
    v = v.transpose(1, 2).flatten(0, 1)
    grouped = q.reshape(len(k), -1, channels)  # the queries that share a head's keys
    scores = torch.bmm(k, grouped.mT).mT.float() * scale  # with the factors swapped bf16 takes three times as long
    scores = scores.reshape(rows, heads, -1)
    weights = torch.where(mask.allowed[:, 0], scores, -torch.inf).softmax(-1)
    return torch.bmm(weights.to(v.dtype).view(len(v), -1, weights.shape[-1]), v).view(q.shape)


@lru_cache(maxsize=1)
def _compiled(flex_attention: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return torch.compile(flex_attention)


def _flex(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float) -> Tensor:
    on_cuda = q.device.type == "cuda"
    if not on_cuda and torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
        raise ValueError(f"attention path flex has no gradient on {q.device.type}; sdpa has")
    run = torch.nn.attention.flex_attention.flex_attention  # imported when the mask was made
    if on_cuda and not torch.compiler.is_compiling():
        run = _compiled(run)
    grouped = q.shape[2] != k.shape[2]
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return run(q, k, v, block_mask=mask.allowed, scale=scale, enable_gqa=grouped).transpose(1, 2)


def _flash(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float) -> Tensor:
    attend_with = partial(mask.kernel, softmax_scale=scale, causal=True)
    if mask.window:
        attend_with = partial(
            attend_with, window_size=(mask.window - 1, 0)
        )  # the package does not count a query's own key
    out = attend_with(q, k, v)
    return out[0] if isinstance(out, tuple) else out  # some versions add the log-sum-exp


@lru_cache(maxsize=8)
def _kernel(package: str) -> Callable[..., Tensor] | str:
    """Return the attention function of a package, or the reason why there is none."""
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
    """One way to compute attention. All do grouped queries and any lengths."""

    run: Callable[[Tensor, Tensor, Tensor, Mask, float], Tensor]
    # (positions of the queries, keys, window) → Mask.allowed
    mask: "Callable[[Tensor, int, int], Tensor | BlockMask]" = _dense_mask
    can: frozenset[str] = frozenset({"window", "positions"})
    needs_no_mask: Callable[[int, int, int], bool] = _never  # (queries, keys, window), without positions
    pays_with: frozenset[str] = frozenset()  # chosen only when one of these is needed; empty: always
    device: str = ""  # the only device type; empty: any
    package: str = ""  # has the kernel, for half precision
    generation: int = 0  # the only CUDA generation for which the package has the kernel


FLASH = Path(_flash, can=frozenset({"window"}), needs_no_mask=_always)
PATHS = {  # fastest first
    "chunks": Path(_chunks, device="cpu"),
    "flash4": replace(FLASH, package="flash_attn.cute", generation=10),
    "flash3": replace(FLASH, package="flash_attn_interface", generation=9),
    "flex": Path(_flex, _block_mask, pays_with=frozenset({"window"})),
    "sdpa": Path(_sdpa, needs_no_mask=_plain_causal),
    "twin": Path(_twin),
    "decode": Path(_decode, device="cpu", needs_no_mask=_plain_causal),
}
