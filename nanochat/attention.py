"""Causal attention, and the table with all ways to compute attention: fused kernels and plain PyTorch.

A forward makes one mask per window (`make_mask`), outside the compiled blocks; each layer calls `attend` with a mask.
"""

import importlib
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nanochat.errors import UserError

if TYPE_CHECKING:
    from typing import Concatenate

    from torch.nn.attention.flex_attention import BlockMask

    # q, k, v and the package's own options → attention. Python before 3.11 cannot evaluate these dots.
    Kernel = Callable[Concatenate[Tensor, Tensor, Tensor, ...], Tensor]


class Mask(NamedTuple):
    """Keys that each query sees, in the form for one path; all layers with the same window share a mask."""

    path: str  # a key in PATHS
    window: int  # most keys that a query sees, including the query's position; 0: no limit
    # (B or 1, 1, Tq, Tk), True where a query sees a key, or flex's BlockMask; None where the kernel needs none.
    allowed: "Tensor | BlockMask | None"
    bounded: bool  # exp(score * scale) fits into the dtype without subtracting the maximum
    kernel: "Kernel | None" = None  # FlashAttention 3's function


Path = Callable[[Tensor, Tensor, Tensor, Mask, float], Tensor]  # q, k, v, mask and scale → attention, as in `attend`

# Versions of FlashAttention, the fastest first → major compute capabilities of the GPUs that each has kernels for.
FLASH = {"flash3": (9,), "flash4": (9, 10)}


def make_mask(
    path: str,
    queries: int,
    keys: int,
    device: torch.device,
    *,
    window: int = 0,
    positions: Tensor | None = None,
    bounded: bool = False,
) -> Mask:
    """Return the mask for `attend`. Key j stands at position j, query i in row b at positions[b, i].

    positions: (B or 1, queries); None: the queries are the last keys. A query sees keys up to its own position, and
    only the last `window` keys if window is not 0. bounded: the caller knows that exp(score * scale) does not overflow.
    """
    if window >= keys:
        window = 0  # every key is in sight: a mask without window costs less
    if positions is None:
        allowed = _cached_mask(path, queries, keys, window, device)
    else:
        # FlashAttention 3 has no masks, flex compiles a kernel for each, and chunks need to know on the host which keys
        # are in sight; masks by position are new in each step.
        path = path if path in ("twin", "decode") else "sdpa"
        allowed = _mask(positions, keys, window)
    return Mask(path, window, allowed, bounded, _flash3_kernel() if path == "flash3" else None)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float) -> Tensor:
    """Return attention from q (B, Tq, H, D) to k and v (B, Tk, Hkv, D), H a multiple of Hkv, by the mask's path."""
    return PATHS[mask.path](q, k, v, mask, scale)


def find_path(asked: str, device: torch.device, dtype: torch.dtype, slower: str) -> str:
    """Return the path for a flag value; "auto" means FlashAttention, or else the path `slower`."""
    if asked == "auto":
        return next((path for path in FLASH if not obstacle(path, device, dtype)), slower)
    if asked not in PATHS:
        raise UserError(f"--attention={asked} is not known, use one of auto, {', '.join(PATHS)}")
    if asked in FLASH and (reason := obstacle(asked, device, dtype)):
        raise UserError(f"--attention={asked} cannot run: {reason}")
    return asked


@lru_cache
def obstacle(path: str, device: torch.device, dtype: torch.dtype) -> str:
    """Return the reason that a version of FlashAttention cannot run here; "" if a small trial gives good values."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device)[0] not in FLASH[path]:
        return "it has no kernels for this device"
    try:
        # A relative error; bf16 rounds by 0.004.
        return "" if _trial_error(path, device, dtype) < 0.02 else "it computes wrong values here"
    # A missing package, a failed download or compilation, a dtype: the libraries have no common base class.
    except Exception as error:
        return str(error).partition("\n")[0]


@lru_cache(maxsize=1)
def _flash3_kernel() -> "Kernel":
    """Return FlashAttention 3's function, from its own package, or else from the kernels hub (a download, once)."""
    try:
        package = importlib.import_module("flash_attn_interface")
    except ImportError:
        from nanochat.kernel_builds import hub_kernel

        # The hub has builds for each version of PyTorch.
        package = hub_kernel("kernels-community/flash-attn3", version=1)
    return package.flash_attn_func


def _trial_error(path: str, device: torch.device, dtype: torch.dtype) -> float:
    """Return the relative error of a path's gradient, which depends on its output too, against sdpa's."""
    if path == "flash4":
        importlib.import_module("flash_attn.cute")  # torch would miss it only after it has compiled all around it
    x = torch.arange(2 * 384 * 2 * 128, device=device).sin().view(2, 384, 2, 128).to(dtype)  # (B, T, H, D)
    gradients = []
    for each in (path, "sdpa"):
        given = x.clone().requires_grad_()
        # A window that cuts through blocks of keys.
        mask = make_mask(each, 384, 384, device, window=130)
        loss = attend(given, given, given, mask, 0.1).square().sum()
        gradients.append(torch.autograd.grad(loss, given)[0].float())
    ours, expected = gradients
    return float((ours - expected).norm() / expected.norm())


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
        """Return x (B, T, H, D) in fp32, the first channels rotated by position: channel i pairs with i + pairs."""
        pairs = self.cos.shape[-1]
        a, b, *rest = x.split(pairs, dim=-1)
        # (a, b) turns by the angle of its position; the products promote bf16 to fp32.
        return torch.cat([a * self.cos - b * self.sin, b * self.cos + a * self.sin, *rest], dim=-1)


class RotaryTable(nn.Module):
    """Cosines and sines for all positions in a context. No checkpoint holds them: call `fill` after `to_empty`.

    channels: of a head that rotate, in half as many pairs.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, positions: int, channels: int, base: float) -> None:
        super().__init__()
        self.base = base
        for name in ("cos", "sin"):
            self.register_buffer(name, torch.empty(positions, channels // 2), persistent=False)
        self.fill()

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
        return Rotation(self.cos[positions].unsqueeze(-2), self.sin[positions].unsqueeze(-2))  # the new axis: heads


# ---- masks ----


def _sees(query: Tensor, key: Tensor, window: int) -> Tensor:
    """Return True for each query that sees a key, both given by position, in shapes that broadcast: the definition."""
    seen = key <= query
    return seen & (key > query - window) if window else seen


def _block_mask(path: str, queries: int, keys: int, window: int, device: torch.device) -> "BlockMask":
    """Return the mask for flex; the queries are the last keys."""
    from torch.nn.attention.flex_attention import create_block_mask  # takes seconds: only for these paths

    size = 128
    if path == "flash4" and torch.cuda.get_device_capability(device)[0] >= 10:
        size = (256, 128)  # FlashAttention 4 takes two blocks of queries at once on Blackwell
    return create_block_mask(
        lambda row, head, query, key: _sees(query + keys - queries, key, window),
        B=None,  # all rows alike
        H=None,  # all heads alike
        Q_LEN=queries,
        KV_LEN=keys,
        device=device,
        BLOCK_SIZE=size,
    )


def _mask(positions: Tensor, keys: int, window: int) -> Tensor:
    """Return Mask.allowed from the query positions, (B or 1, Tq)."""
    key = torch.arange(keys, device=positions.device)
    return _sees(positions[:, None, :, None], key, window)  # (B or 1, 1, Tq, Tk)


@lru_cache(maxsize=16)
def _cached_mask(path: str, queries: int, keys: int, window: int, device: torch.device) -> "Tensor | BlockMask | None":
    """Return a mask that depends on lengths alone: every training step needs the same few."""
    # Without a mask torch's kernel is causal from the first key: right for as many queries as keys, or for one query.
    plainly_causal = path in ("sdpa", "decode") and not window and queries in (1, keys)
    if path == "flash3" or plainly_causal:
        return None
    # An evaluation may make the mask that the next training step's backward reads.
    with torch.inference_mode(False):
        if path in ("flex", "flash4"):
            return _block_mask(path, queries, keys, window, device)
        positions = torch.arange(keys - queries, keys, device=device)  # the last positions
        return _mask(positions[None], keys, window)


# ---- paths ----


def _plain(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor, scale: float, bounded: bool = False) -> Tensor:
    """Return attention by the formula, with all scores in memory at once; `bounded` takes fewer passes over them."""
    group = q.shape[2] // k.shape[2]  # query heads that share a key head
    if group > 1:
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


def _tensor(mask: Mask) -> Tensor:
    """Return what is allowed, on a path whose masks are tensors."""
    assert isinstance(mask.allowed, Tensor)
    return mask.allowed


def _twin(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float) -> Tensor:
    """Run the plain formula on all queries and keys at once: the definition that the other paths are tested against."""
    return _plain(q, k, v, _tensor(mask), scale)


def _chunks(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float) -> Tensor:
    """Run the plain formula on a quarter of the queries at a time and the keys in sight: compiled, for CPUs."""
    queries = q.shape[1]
    earlier = k.shape[1] - queries  # keys before the first query
    size = max(128, -(-queries // 4))  # queries in a part: a quarter, but no tiny parts
    parts = []
    for first in range(0, queries, size):
        end = first + size  # slices of the last part end earlier
        # The oldest key that the part's first query sees.
        first_key = max(0, earlier + first - mask.window + 1) if mask.window else 0
        seen = slice(first_key, earlier + end)
        allowed = _tensor(mask)[..., first:end, seen]
        parts.append(_plain(q[:, first:end], k[:, seen], v[:, seen], allowed, scale, mask.bounded))
    return torch.cat(parts, dim=1)


def _sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float) -> Tensor:
    causal = mask.allowed is None and q.shape[1] > 1  # a single query sees all keys
    return _by_head(F.scaled_dot_product_attention, q, k, v, attn_mask=mask.allowed, is_causal=causal, scale=scale)


def _by_head(run: "Kernel", q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Run one of torch's kernels, which take heads before length."""
    grouped = q.shape[2] != k.shape[2]
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return run(q, k, v, enable_gqa=grouped, **options).transpose(1, 2)  # (B, Tq, H, D) again


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
    weights = torch.where(_tensor(mask)[:, 0], scores, -torch.inf).softmax(-1)
    weights = weights.to(v.dtype).view(len(v), -1, weights.shape[-1])  # by key head again
    return torch.bmm(weights, v).view(q.shape)


@lru_cache(maxsize=1)
def _compiled(flex_attention: "Kernel") -> "Kernel":
    return torch.compile(flex_attention)


def _flex(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float) -> Tensor:
    from torch.nn.attention.flex_attention import flex_attention  # imported already when the mask was made

    run: Kernel = flex_attention
    # Uncompiled, flex would hold all scores in memory; inside a compiled block the block's compiler fuses the call.
    if q.device.type == "cuda" and not torch.compiler.is_compiling():
        run = _compiled(run)
    return _by_head(
        run,
        q,
        k,
        v,
        block_mask=mask.allowed,
        scale=scale,
        kernel_options={"BACKEND": "FLASH"} if mask.path == "flash4" else None,
    )


def _flash(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float) -> Tensor:
    # The package does not count a query's own key; -1: no limit.
    window = (mask.window - 1, 0) if mask.window else (-1, -1)
    assert mask.kernel is not None  # as the path is flash3
    out = mask.kernel(q, k, v, softmax_scale=scale, causal=True, window_size=window)
    return out[0] if isinstance(out, tuple) else out  # some versions add the log-sum-exp


PATHS: dict[str, Path] = {  # all do windows, grouped queries and any lengths
    "chunks": _chunks,  # for CPUs
    "flash3": _flash,  # FlashAttention 3, for Hopper GPUs in half precision
    "flash4": _flex,  # FlashAttention 4 as the backend of flex, for Hopper and Blackwell GPUs in half precision
    "flex": _flex,  # for GPUs
    "sdpa": _sdpa,
    "twin": _twin,
    "decode": _decode,  # for generation on CPUs (fused.py)
}
