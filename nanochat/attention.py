"""One attention call and the table of ways to compute it: fused kernels where there are any, plain everywhere."""

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Plan(NamedTuple):
    """What all layers with one window share: made once a forward, outside of what is compiled."""

    path: str
    window: int  # 0: no limit
    mask: Any  # what the path made of lengths, window, positions and starts; None where its kernel needs none
    by_position: bool  # queries stand where positions say, not at the end of the keys
    bounded: bool  # exponentials of scores, times scale, need no shift to stay within fp32
    kernel: Callable | None  # of a package, found outside of what is compiled


def attention(q: Tensor, k: Tensor, v: Tensor, *, path: str, bounded=False, scale=None, **sight) -> Tensor:
    """Causal attention of q (B, Tq, H, D) over k and v (B, Tk, Hkv, D), lengths of any size; sight: what `plan` takes.

    Key j stands at position j; query i of row b at positions[b, i], or without them the queries are the last Tq of the
    keys. A query sees keys up to its own position, the last `window` of them if that is not 0, and none before
    starts[b, i], where its document begins. With trunks (B, 1) a row's documents are branches: each goes on from the
    first trunks[b] tokens, which it sees as if they stood directly before it; the trunk's own tokens start at 0.
    """
    where = {"device": q.device, "dtype": q.dtype, "bounded": bounded}
    return attend(q, k, v, plan(path, q.shape[1], k.shape[1], **where, **sight), scale)


def plan(
    path: str,
    queries: int,
    keys: int,
    *,
    device: torch.device,
    dtype: torch.dtype,
    window: int = 0,
    positions: Tensor | None = None,
    starts: Tensor | None = None,
    trunks: Tensor | None = None,
    bounded: bool = False,
) -> Plan:
    """The first half of `attention`: all but the tensors themselves; ValueError where the path cannot do it.

    bounded: it is known that exponentials of scores, times scale, will stay within fp32 unshifted.
    """
    if path not in PATHS:
        raise ValueError(f"there is no attention path {path}, choose one of {', '.join(PATHS)}")
    asked = {"window": window or None, "positions": positions, "starts": starts}
    if why := _refusal(path, device, dtype, {name for name, given in asked.items() if given is not None}):
        raise ValueError(f"attention path {path} {why}; sdpa does everything everywhere")
    window = 0 if window >= keys else window
    if positions is None and starts is None:
        mask = _lasting_mask(path, queries, keys, window, device)
    else:
        query = torch.arange(keys - queries, keys, device=device)[None] if positions is None else positions
        mask = PATHS[path].mask(query, keys, window, starts, trunks)
    window = window if trunks is None else 0  # of keys by their index, which tells how far away they are no more
    bounded = bounded and dtype != torch.float16  # whose largest number is e^11
    kernel = _kernel(PATHS[path].package) if PATHS[path].package else None
    return Plan(path, window, mask, positions is not None, bounded, kernel)


def attend(q: Tensor, k: Tensor, v: Tensor, plan: Plan, scale: float | None = None) -> Tensor:
    """The second half: what runs in every layer."""
    return PATHS[plan.path].run(q, k, v, plan, q.shape[-1] ** -0.5 if scale is None else scale)


def choose(device: torch.device, dtype: torch.dtype, needs: Iterable[str] = ()) -> tuple[str, str]:
    """The fastest path that does what is needed (of: window, positions, starts), and why it is that one."""
    skipped = []
    for name, path in PATHS.items():
        why = _refusal(name, device, dtype, set(needs))
        if not why and path.pays_with and not path.pays_with & set(needs):
            why = f"pays only with {' or '.join(sorted(path.pays_with))}"
        if not why:
            return name, f"{name}: {'; '.join(skipped) or 'the fastest on ' + device.type}"
        skipped.append(f"{name} {why}")
    raise AssertionError("the twin does everything everywhere")


def find_path(asked: str, device: torch.device, dtype: torch.dtype, needs: Iterable[str] = ()) -> tuple[str, str]:
    """Return the path that a flag asks for, where "auto" is the fastest that meets the needs; and the reason."""
    if asked == "auto":
        return choose(device, dtype, needs)
    if asked not in PATHS:
        raise ValueError(f"--attention={asked} is not known, take one of auto, {', '.join(PATHS)}")
    return asked, f"{asked}: as asked"


def _refusal(name: str, device: torch.device, dtype: torch.dtype, needs: set[str]) -> str:
    path, unmet = PATHS[name], " and ".join(sorted(needs - PATHS[name].can))
    if path.device not in ("", device.type):
        return f"is for the device {path.device}"
    if path.package and (device.type != "cuda" or torch.cuda.get_device_capability(device)[0] != path.generation):
        return "has no kernel for this device"
    if path.package and dtype not in (torch.bfloat16, torch.float16):
        return f"has no kernel for {dtype}"
    if path.package and isinstance(why := _kernel(path.package), str):
        return why
    return unmet and f"cannot do {unmet}"


# ---- which keys a query sees ----


def _sees(query: Tensor, key: Tensor, window: int, start: Tensor | None, trunk: Tensor | None) -> Tensor:
    """The definition, for positions of any shapes that broadcast."""
    seen = (key <= query) & (key > query - window) if window else key <= query
    seen = seen if start is None else seen & (key >= start)
    if trunk is None:
        return seen
    before = (key < trunk) & (key <= query)
    return seen | (before & (key > query - start + trunk - window) if window else before)


def _dense_mask(query: Tensor, keys: int, window: int, starts: Tensor | None, trunks: Tensor | None) -> Tensor:
    """(B or 1, 1, Tq, Tk), from the positions of the queries, (B or 1, Tq)."""
    start = None if starts is None else starts[:, None, :, None]
    trunk = None if trunks is None else trunks[:, None, :, None]
    return _sees(query[:, None, :, None], torch.arange(keys, device=query.device), window, start, trunk)


def _block_mask(query: Tensor, keys: int, window: int, starts: Tensor | None, trunks: Tensor | None):
    rows = len(query) if starts is None else len(starts)
    query = query.expand(rows, -1)

    def sees(row, head, i, key):
        row = row if rows > 1 else row * 0  # one row's positions may stand for all
        start, trunk = None if starts is None else starts[row, i], None if trunks is None else trunks[row, 0]
        return _sees(query[row, i], key, window, start, trunk)

    from torch.nn.attention.flex_attention import create_block_mask  # which takes seconds: not where it is not used

    return create_block_mask(sees, rows if rows > 1 else None, None, query.shape[1], keys, device=query.device)


@lru_cache(maxsize=16)
def _lasting_mask(path: str, queries: int, keys: int, window: int, device: torch.device):
    """A mask that follows from the lengths: the next step asks for it again."""
    if PATHS[path].bare(queries, keys, window):
        return None
    with torch.inference_mode(False):  # made by an evaluation, it must still serve the backward of the step after
        return PATHS[path].mask(torch.arange(keys - queries, keys, device=device)[None], keys, window, None, None)


# ---- the paths ----


def _plain(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float, bounded: bool = False) -> Tensor:
    """Attention as the books have it; all the scores at once. bounded: in fewer passes over them."""
    k, v = (x.repeat_interleave(q.shape[2] // x.shape[2], dim=2) for x in (k, v))
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    scores = (q @ k.mT).float() * scale
    if not bounded:
        return (scores.masked_fill(~mask, -torch.inf).softmax(-1).to(v.dtype) @ v).transpose(1, 2)
    weights = scores.exp().masked_fill(~mask, 0)  # no maximum to look for; what is divided is the sum over keys
    return ((weights.to(v.dtype) @ v) / weights.sum(-1, keepdim=True)).to(v.dtype).transpose(1, 2)


def _chunks(q: Tensor, k: Tensor, v: Tensor, plan: Plan, scale: float) -> Tensor:
    """The plain way by quarters of the queries, each with the keys it can see: compiled, it is a CPU's fastest."""
    queries, before, parts = q.shape[1], k.shape[1] - q.shape[1], []
    if plan.by_position:
        return _plain(q, k, v, plan.mask, scale)
    for chunk in range(0, queries, size := max(128, -(-queries // 4))):
        here = slice(chunk, min(chunk + size, queries))
        seen = slice(max(0, before + chunk - plan.window + 1) if plan.window else 0, before + here.stop)
        parts.append(_plain(q[:, here], k[:, seen], v[:, seen], plan.mask[..., here, seen], scale, plan.bounded))
    return torch.cat(parts, dim=1)


def _sdpa(q: Tensor, k: Tensor, v: Tensor, plan: Plan, scale: float) -> Tensor:
    options = {"is_causal": plan.mask is None and q.shape[1] > 1, "enable_gqa": q.shape[2] != k.shape[2]}
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=plan.mask, scale=scale, **options).transpose(1, 2)


def _decode(q: Tensor, k: Tensor, v: Tensor, plan: Plan, scale: float) -> Tensor:
    """One query a row as two batched products, for which keys lie head by head; a CPU's fused kernel takes longer."""
    if q.shape[1] > 1:
        return _sdpa(q, k, v, plan, scale)
    rows, _, heads, channels = q.shape
    k, v = (x.transpose(1, 2).flatten(0, 1) for x in (k, v))
    shared = q.reshape(len(k), -1, channels)  # the queries that share a head's keys
    scores = torch.bmm(k, shared.mT).mT.float() * scale  # the other way round bf16 takes three times as long
    weights = torch.where(plan.mask[:, 0], scores.reshape(rows, heads, -1), -torch.inf).softmax(-1)
    return torch.bmm(weights.to(v.dtype).view(len(v), -1, weights.shape[-1]), v).view(q.shape)


@lru_cache(maxsize=1)
def _compiled(flex_attention: Callable) -> Callable:
    return torch.compile(flex_attention)


def _flex(q: Tensor, k: Tensor, v: Tensor, plan: Plan, scale: float) -> Tensor:
    fused = q.device.type == "cuda"
    if not fused and torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
        raise ValueError(f"attention path flex has no gradient on {q.device.type}; sdpa has")
    run = torch.nn.attention.flex_attention.flex_attention  # imported by what made the mask
    if fused and not torch.compiler.is_compiling():
        run = _compiled(run)
    options = {"block_mask": plan.mask, "scale": scale, "enable_gqa": q.shape[2] != k.shape[2]}
    return run(*(x.transpose(1, 2) for x in (q, k, v)), **options).transpose(1, 2)


def _flash(q: Tensor, k: Tensor, v: Tensor, plan: Plan, scale: float) -> Tensor:
    window = {"window_size": (plan.window - 1, 0)} if plan.window else {}  # theirs counts the keys before one's own
    out = plan.kernel(q, k, v, softmax_scale=scale, causal=True, **window)
    return out[0] if isinstance(out, tuple) else out  # some versions add the log-sum-exp


@lru_cache(maxsize=8)
def _kernel(package: str) -> Callable | str:
    """Its function, or why there is none."""
    try:
        return importlib.import_module(package).flash_attn_func
    except (ImportError, AttributeError, OSError) as error:  # absent, of another version, built for another CUDA
        return f"needs the package {package} ({type(error).__name__}: {error})"


@dataclass(frozen=True)
class Path:
    """run: (q, k, v, plan, scale) → out. mask: (positions of the queries, keys, window, starts, trunks)
    → Plan.mask.

    can: what it can do; all do grouped queries and odd lengths. bare: (queries, keys, window) that need no mask.
    pays_with: it is chosen when one of these is needed, or if empty. device: the only one, if any. package: that has
    its kernel, in half precision, for a generation of CUDA devices.
    """

    run: Callable[..., Tensor]
    mask: Callable[..., Any] = _dense_mask
    can: frozenset[str] = frozenset({"window", "positions", "starts"})
    bare: Callable[[int, int, int], bool] = lambda queries, keys, window: False
    pays_with: frozenset[str] = frozenset()
    device: str = ""
    package: str = ""
    generation: int = 0


_FLASH = {"run": _flash, "can": frozenset({"window"}), "bare": lambda queries, keys, window: True}
PATHS = {  # fastest first
    "chunks": Path(_chunks, device="cpu"),
    "flash4": Path(package="flash_attn.cute", generation=10, **_FLASH),
    "flash3": Path(package="flash_attn_interface", generation=9, **_FLASH),
    "flex": Path(_flex, _block_mask, pays_with=frozenset({"window", "starts"})),
    "sdpa": Path(_sdpa, bare=lambda queries, keys, window: not window and queries in (1, keys)),
    "twin": Path(lambda q, k, v, plan, scale: _plain(q, k, v, plan.mask, scale)),
    "decode": Path(_decode, device="cpu"),
}
