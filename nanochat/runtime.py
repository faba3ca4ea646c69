"""A process's ranks, device and precision, and collectives."""

import ctypes
import gc
import os
import re
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist

import rustbpe
from nanochat.config import collect_signals, stop_signals
from nanochat.cores import CPU_INFO, processor, usable_cores
from nanochat.errors import UserError
from nanochat.hardware import (
    LEAST_DRIVERS,
    NVIDIA_DEVICE,
    Accelerator,
    find_accelerator,
    given_price,
    nvidia_driver,
    parse_hardware,
)
from nanochat.log import is_main_rank, print0, print_line
from nanochat.paths import base_dir, text_sha256
from nanochat.waiting import sharing_cores
from nanochat.watch import joined, process_group

Value = TypeVar("Value")


class Divisible(Protocol):
    """Has a length, and parts of the same type."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> Any: ...


Items = TypeVar("Items", bound=Divisible)

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
# On a CPU, a shorter run gains nothing by a compiler, which takes a minute (seconds where its cache is warm).
COMPILING_PAYS = 2e12  # FLOPs
COMPILING_SECONDS = 120.0
VALIDATION_BYTES = {"cpu": 500_000, "gpu": 20_000_000}
UNKNOWN = Accelerator("unknown")
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # glibc's numbers for mallopt
# Bytes of a tensor whose memory is kept for the next one. A chunk of logits over a vocabulary of 65,536 has 134 MB;
# tensors of a vocabulary of 262,144, if kept, fragment the heap until memory runs out.
LARGEST_KEPT = 160 << 20


def compiling_pays(on_cpu: bool, flops: float, steps: int | None, seconds: float | None) -> bool:
    """Return True if a compiler will pay for itself in a run; assumed on an accelerator, or if the length is unknown.

    flops: of one rank's step. steps, seconds: the length of the run; steps win.
    """
    if not on_cpu:
        return True
    if steps is not None:
        return flops * steps > COMPILING_PAYS
    return seconds is None or seconds > COMPILING_SECONDS


@dataclass(frozen=True)
class Runtime:
    """This process's device, precision and ranks.

    dtype: for activations; master weights stay fp32. attention: the path as asked, "auto" or a name in attention.PATHS;
    the model's builder resolves it. store: torch.distributed's, for messages outside collectives; None on one rank.
    """

    device: torch.device
    dtype: torch.dtype
    attention: str = "auto"
    rank: int = 0
    world_size: int = 1
    accelerator: Accelerator = UNKNOWN
    store: dist.Store | None = None

    # ---- precision, memory, compiler ----

    @property
    def dtype_name(self) -> str:
        return next(name for name, dtype in DTYPES.items() if dtype == self.dtype)

    @property
    def peak_flops(self) -> float | None:
        """Return this rank's peak FLOP/s in this precision; None where unknown."""
        return self.accelerator.peak(self.dtype_name)

    @property
    def validation_bytes(self) -> int:
        """Return a size for validation text that costs little beside training."""
        return VALIDATION_BYTES["gpu" if self.device.type == "cuda" else "cpu"]

    def compiling_pays(self, flops: float, steps: int | None, seconds: float | None) -> bool:
        """Return True if a compiler will pay for itself in a run on these ranks; see the function of that name."""
        return compiling_pays(self.device.type == "cpu", flops / self.world_size, steps, seconds)

    def peak_memory(self) -> int:
        """Return the most bytes that this process has held: on the accelerator, or in main memory on a CPU."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

    # ---- collectives: every rank calls them at the same place ----

    def all_reduce(self, numbers: torch.Tensor) -> torch.Tensor:
        """Sum a tensor over the ranks, in place."""
        if self.world_size > 1:
            dist.all_reduce(numbers)
        return numbers

    def all_reduce_maxima(self, numbers: torch.Tensor) -> torch.Tensor:
        """Replace each element by the largest over the ranks, in place."""
        if self.world_size > 1:
            dist.all_reduce(numbers, dist.ReduceOp.MAX)
        return numbers

    def copy_from(self, source: int, numbers: torch.Tensor) -> torch.Tensor:
        """Overwrite a tensor with that of rank `source`."""
        if self.world_size > 1:
            dist.broadcast(numbers, source)
        return numbers

    def all_gather(self, value: Value) -> list[Value]:
        """Return every rank's value, which can be pickled, in rank order."""
        values = [value] * self.world_size  # filled below
        if self.world_size > 1:
            dist.all_gather_object(values, value)
        return values

    def broadcast(self, work: Callable[[], Value]) -> Value:
        """Run `work` on rank 0 and return its value on every rank; its ValueError is raised on every rank."""
        return self._of_ranks(work, self.rank == 0)[0]

    def on_each_machine(self, work: Callable[[], Value]) -> list[Value]:
        """Run `work` on the first rank of each machine; returns the values on every rank, raises a ValueError there."""
        return self._of_ranks(work, os.environ.get("LOCAL_RANK", "0") == "0")

    def _of_ranks(self, work: Callable[[], Value], is_asked: bool) -> list[Value]:
        """Return the values of the ranks that are asked, on every rank."""
        answer: tuple[Value | ValueError, ...] = ()
        try:
            if is_asked:
                answer = (work(),)
        except ValueError as error:
            # It travels like a value: otherwise the other ranks would wait in a collective.
            kind = UserError if isinstance(error, UserError) else ValueError
            answer = (kind(str(error)),)
        received: list[Any] = [value for found in self.all_gather(answer) for value in found]
        for value in received:
            if isinstance(value, ValueError):
                raise value
        return received


def free_memory(device: torch.device) -> int:
    """Return the bytes that this process can still allocate."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        # PyTorch keeps freed blocks for itself: they count as used there.
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():
        return 4 << 30  # a guess for laptops
    kilobytes = int(meminfo.read_text().split("MemAvailable:")[1].split()[0])
    return 1024 * kilobytes // int(os.environ.get("LOCAL_WORLD_SIZE", 1))


def in_halves(work: Callable[[Items], Value], items: Items) -> Iterator[Value]:
    """Yield work(items); where memory runs out, the values for smaller and smaller parts of the items, in order."""
    try:
        value = work(items)
    except torch.OutOfMemoryError:
        if len(items) == 1:
            raise
    else:
        yield value
        return
    # Outside the handler: its traceback would keep the tensors of the failed call.
    torch.cuda.empty_cache()
    half = len(items) // 2
    print_line(f"out of memory with {len(items)} rows at once, trying {half}")
    yield from in_halves(work, items[:half])
    yield from in_halves(work, items[half:])


class Waiting:
    """Counts the seconds in which a rank's computation waits for communication."""

    def __init__(self) -> None:
        self._seconds = 0.0
        # On a GPU: pairs around each wait, which the host does not wait for.
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count the time that this context takes: on a GPU, on the stream that computes."""
        if torch.cuda.is_initialized():
            start = torch.cuda.current_stream().record_event(torch.cuda.Event(enable_timing=True))
            yield
            self._events.append((start, torch.cuda.current_stream().record_event(torch.cuda.Event(enable_timing=True))))
        else:
            start = time.perf_counter()
            yield
            self._seconds += time.perf_counter() - start

    def take(self) -> float:
        """Return the seconds since the last call; those that a GPU has not reached yet count in the next."""
        seconds, self._seconds = self._seconds, 0.0
        while self._events and self._events[0][1].query():
            start, end = self._events.pop(0)
            seconds += start.elapsed_time(end) / 1000
        return seconds


# ---- setup ----


@contextmanager
def setup(device_type: str = "auto", dtype: str = "auto", attention: str = "auto") -> Iterator[Runtime]:
    """Choose and print this process's runtime, and join the ranks until the block ends.

    device_type: auto, cuda, mps or cpu. dtype: auto (then NANOCHAT_DTYPE counts) or a name in DTYPES.
    """
    # Compiled code is kept for later processes and stages: before torch chooses its own folder.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(compiled_folder()))
    # Before the first allocation: blocks that can grow leave fewer gaps that no tensor fits into. The second name is an
    # older one.
    os.environ.setdefault("PYTORCH_ALLOC_CONF", os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"))
    avoid_broken_amx()
    keep_tile_stores()
    if "OMP_NUM_THREADS" not in os.environ and usable_cores() < torch.get_num_threads():
        torch.set_num_threads(usable_cores())  # OpenMP knows nothing of a container's quota
    distributed = all(name in os.environ for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))  # Slurm sets only some
    rank = int(os.environ["RANK"]) if distributed else 0
    world_size = int(os.environ["WORLD_SIZE"]) if distributed else 1
    with ExitStack() as stack:
        # First of all, so that the other ranks learn of whatever fails here.
        store = stack.enter_context(joined(rank, world_size)) if world_size > 1 else None
        device = _device(device_type)
        precision = _precision(device, dtype)
        name = _device_name(device)
        if device.type == "cuda":
            torch.cuda.set_device(device)  # NCCL uses the current device
            torch.set_float32_matmul_precision("high")  # TF32 for the products that stay in fp32
        if store:
            stack.enter_context(process_group(store, device, rank, world_size))
        if device.type == "cpu":
            stack.enter_context(sharing_cores())
        accelerator = find_accelerator(name)
        print0(f"device: {device.type} ({name}), ranks: {world_size}, precision: {precision}")
        yield Runtime(device, DTYPES[precision], attention, rank, world_size, accelerator, store)


def compiled_folder() -> Path:
    """Return the folder for compiled code: each kind of processor has its own, as a base folder may be shared.

    Inductor takes a graph from its folder that was made for another width of vectors, and such code writes beyond the
    ends of its tensors (torch 2.15).
    """
    kind = f"{torch.backends.cpu.get_cpu_capability()} {processor()}"
    return base_dir() / "compiled" / text_sha256(kind)[:12]


def avoid_broken_amx() -> None:
    """Keep oneDNN from AMX where a virtual machine announces it but a product in bf16 would end the process.

    oneDNN checks this itself from August 2026 on.
    """
    if rustbpe.amx_is_broken():
        os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")


def keep_tile_stores() -> None:
    """Let GCC keep the stores to the tiles in which compiled code for a CPU transposes bf16 (before inductor's import).

    GCC 12 at -O3 removes them, and the gradients of a layer with one key head become nan. Inductor takes no flags, but
    passes this setting on as it is.
    """
    if sys.platform == "linux":
        os.environ.setdefault("TORCHINDUCTOR_CPP_ENABLE_FLOATING_POINT_CONTRACT_FLAG", "off -fno-dse")


def keep_freed_memory() -> None:
    """Let glibc keep the memory of freed tensors for the next ones, as a GPU's allocator does.

    Otherwise each tensor above 32 MB gets new pages from the kernel, and clearing them takes as long as filling them.
    Those above LARGEST_KEPT still do. glibc before 2.35 keeps no more than 32 MB at once, and is left as it is.
    """
    with suppress(AttributeError):  # another library
        libc = ctypes.CDLL(None)
        if libc.mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT):
            libc.mallopt(M_TRIM_THRESHOLD, -1)  # never


def return_freed_memory() -> None:
    """Give memory that was freed in small pieces, as of a large vocabulary, back to the kernel: glibc keeps most."""
    with suppress(AttributeError):  # another library
        ctypes.CDLL(None).malloc_trim(0)


def unusable_gpu() -> str:
    """Return why torch cannot use the NVIDIA GPU of this machine; "" if it can, or if there is none.

    Without this, a driver that is too old or a container without its toolkit would look like a machine without a GPU.
    """
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")  # whoever sets that wants no GPU
    if hidden or not NVIDIA_DEVICE.exists() or torch.cuda.is_available():
        return ""
    if torch.version.cuda is None:
        print0(
            f"device: PyTorch {torch.__version__} is built without CUDA, so the NVIDIA GPU of this machine is not used"
        )
        return ""
    try:
        torch.cuda.init()
        reason = "torch finds none"
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0].partition(" Please update")[0].rstrip(".")
    least = LEAST_DRIVERS.get(torch.version.cuda.partition(".")[0])
    needs = f", and CUDA {torch.version.cuda} needs {least} or newer" if least else ""
    return f"{reason} (driver {nvidia_driver() or 'unknown'}{needs})"


def _device(device_type: str) -> torch.device:
    """Return this rank's device; auto: the first of cuda, mps, cpu on this machine."""
    obstacle = unusable_gpu() if device_type == "auto" else ""
    if obstacle:
        raise UserError(
            f"this machine has an NVIDIA GPU that cannot be used: {obstacle}. "
            "Install a newer driver, or choose the CPU with --device-type=cpu or CUDA_VISIBLE_DEVICES=-1"
        )
    present = [name for name in ("cuda", "mps", "cpu") if torch.get_device_module(name).is_available()]
    if device_type not in ("auto", *present):
        raise UserError(f"--device-type={device_type} is not on this machine, use one of {', '.join(present)}")
    name = present[0] if device_type == "auto" else device_type
    return torch.device(name, int(os.environ.get("LOCAL_RANK", 0))) if name == "cuda" else torch.device(name)


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{torch.get_num_threads()} threads" if device.type == "cpu" else device.type


def asked_precision(dtype: str) -> str:
    """Return the DTYPES key that a flag or else NANOCHAT_DTYPE asks for, or "auto"."""
    asked = os.environ.get("NANOCHAT_DTYPE", "auto") if dtype == "auto" else dtype
    if asked not in ("auto", *DTYPES):
        hint = "; --fp8 adds products in 8 bits" if asked == "fp8" else ""
        raise UserError(f"precision {asked} is not known, use one of auto, {', '.join(DTYPES)}{hint}")
    return asked


def planned_precision(dtype: str, accelerator: Accelerator, is_elsewhere: bool) -> str:
    """Return the DTYPES key that a run computes in. is_elsewhere: on hardware that was asked for by its name."""
    if not is_elsewhere:
        device = _device("auto")
        if accelerator.name == device.type.upper():  # not in the table: the machine itself is asked
            return _precision(device, dtype)
    asked = asked_precision(dtype)
    return accelerator.precision if asked == "auto" else asked


def _precision(device: torch.device, dtype: str) -> str:
    """Return the DTYPES key to compute in."""
    name = asked_precision(dtype)
    if name != "auto":
        return name
    # fp16 would be faster than fp32 on older GPUs, and has to be asked for: it can overflow.
    has_bf16 = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
    if device.type == "cpu" and CPU_INFO.exists():
        # AVX512-BF16 doubles the speed of products in bf16 over fp32 on AMD, and halves it on Intel without AMX.
        fast = re.search("amx_bf16|AuthenticAMD.*avx512_bf16", CPU_INFO.read_text(), re.DOTALL)
        has_bf16 = fast and not rustbpe.amx_is_broken()
    return "bf16" if has_bf16 else "fp32"


def planned_hardware(name: str, nodes: int = 1) -> tuple[int, Accelerator]:
    """Return (number, accelerator) for a plan: the named ones (8xH100), or those of so many machines like this one."""
    if name:
        return parse_hardware(name)
    device = _device("auto")
    if device.type == "cuda":
        count = torch.cuda.device_count()
        accelerator = find_accelerator(_device_name(device))
        memory = accelerator.memory or torch.cuda.get_device_properties(device).total_memory / 1e9
    else:
        count = 1
        accelerator = Accelerator(device.type.upper())
        memory = free_memory(device) / 1e9
    count *= nodes
    price = given_price()
    dollars = accelerator.dollars if price is None else price / count
    return count, replace(accelerator, memory=memory, dollars=dollars)


# ---- interruptions of a training step: signals, and the garbage collector ----

ECHO_SECONDS = 3.0  # torchrun passes a terminal's Ctrl-C on to ranks that have had it already


def stop_requests() -> AbstractContextManager[list[int]]:
    """Yield a list of the signals that ask to stop, until the block ends; a second one ends the process at once."""
    first = None  # when it came

    def react(number: int) -> None:
        nonlocal first
        if first is None:
            first = time.monotonic()
            if is_main_rank():
                name = signal.Signals(number).name
                sentence = f"{name}: stopping at the end of this step, a second signal ends at once\n"
                with suppress(OSError):  # SIGHUP: the terminal is gone
                    os.write(1, sentence.encode())  # the signal may have interrupted a `print`
        elif time.monotonic() - first > ECHO_SECONDS:
            os._exit(128 + number)

    return collect_signals(*stop_signals(), react=react)


@contextmanager
def without_garbage_collection() -> Iterator[Callable[[], None]]:
    """Switch the collector off, which would stall a step for up to half a second; yields a call that collects."""

    def collect() -> None:
        gc.collect()
        gc.freeze()  # objects alive now live for the whole run: never scan them again
        gc.disable()

    try:
        yield collect
    finally:
        gc.enable()
        gc.unfreeze()
