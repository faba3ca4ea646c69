"""A process's ranks, device and precision, collectives, and results that ranks share through a store."""

import gc
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist

from nanochat.hardware import Accelerator, find_accelerator, parse_hardware
from nanochat.log import ERASE, is_main_rank, is_terminal, print0, print_line
from nanochat.paths import base_dir

if TYPE_CHECKING:
    from torch.distributed import Store

Value = TypeVar("Value")

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
# On a CPU, a shorter run gains nothing by a compiler, which takes a minute (seconds where its cache is warm).
COMPILING_PAYS = 2e12  # FLOPs
COMPILING_SECONDS = 120.0
BARRIER_SECONDS = 30.0  # for a rank that failed to wait until the others fail as well
POLL_SECONDS = 0.05  # between two checks for another rank's result
WAIT_NOTICE_SECONDS = 10.0  # between two lines that say that a rank waits


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
    accelerator: Accelerator | None = None
    store: "Store | None" = None

    # ---- precision, memory, compiler ----

    @property
    def dtype_name(self) -> str:
        return next(name for name, dtype in DTYPES.items() if dtype == self.dtype)

    @property
    def peak_flops(self) -> float | None:
        """Return this rank's peak FLOP/s in this precision; None where unknown."""
        return self.accelerator.peak(self.dtype_name) if self.accelerator else None

    @property
    def optimizer_options(self) -> dict[str, Any]:
        """Return keyword arguments for Optimizer: Muon's matrix products in bf16 where the model is, compiled on GPUs.

        On a CPU a compiled step gains too little.
        """
        polar_dtype = torch.bfloat16 if self.dtype == torch.bfloat16 else torch.float32
        return {"polar_dtype": polar_dtype, "compile": self.device.type == "cuda"}

    @property
    def validation_bytes(self) -> int:
        """Return a size for validation text that costs little beside training."""
        return 20_000_000 if self.device.type == "cuda" else 500_000

    def compiling_pays(self, flops: float) -> bool:
        """Return True if `flops`, shared by the ranks, take longer than compiling; always True on an accelerator."""
        return self.device.type != "cpu" or flops / self.world_size > COMPILING_PAYS

    def with_dtype(self, name: str) -> "Runtime":
        """Return the runtime in a checkpoint's precision: a CPU's measurement may differ from day to day."""
        if name == self.dtype_name:
            return self
        print0(f"precision: {name}, as in the run that resumes")
        return replace(self, dtype=DTYPES[name])

    def free_memory(self) -> int:
        return free_memory(self.device)

    def peak_memory(self) -> int:
        """Return the most bytes that this process has held: on the accelerator, or in main memory on a CPU."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        status = Path("/proc/self/status")
        text = status.read_text() if status.exists() else ""
        if "VmHWM:" in text:  # getrusage would include the parent process
            return 1024 * int(text.split("VmHWM:")[1].split()[0])
        import resource  # absent on Windows

        unit = 1 if os.uname().sysname == "Darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit

    # ---- collectives: every rank calls them at the same place ----

    def all_reduce(self, numbers: torch.Tensor) -> torch.Tensor:
        """Sum a tensor over the ranks, in place."""
        if self.world_size > 1:
            dist.all_reduce(numbers)
        return numbers

    def all_gather(self, value: Value) -> list[Value]:
        """Return every rank's JSON-like value, in rank order."""
        values = [value] * self.world_size  # filled below
        if self.world_size > 1:
            dist.all_gather_object(values, value)
        return values

    def broadcast(self, work: Callable[[], Value]) -> Value:
        """Run `work` on rank 0 and return its value on every rank; its ValueError is raised on every rank."""
        value, fault = None, None
        try:
            if self.rank == 0:
                value = work()
        except ValueError as error:
            fault = str(error)
        # The fault travels with the value: otherwise the other ranks would wait in a collective.
        value, fault = self.all_gather((value, fault))[0]
        if fault is not None:
            raise ValueError(fault)
        return value

    def barrier(self, name: str) -> bool:
        """Return True once all ranks are here, False on ranks that waited BARRIER_SECONDS in vain.

        The ranks meet in the store: inside a collective, a rank would wait for one that failed. A name is used once.
        """
        if self.world_size == 1:
            return True  # there is nobody to wait for
        verdict = f"{name}/verdict"
        deadline = time.monotonic() + BARRIER_SECONDS
        if self.store.add(name, 1) == self.world_size:
            self.store.compare_set(verdict, "", "all")
        while not self.store.check([verdict]):
            time.sleep(POLL_SECONDS)
            if time.monotonic() > deadline:
                self.store.compare_set(verdict, "", "some")  # unless the last rank came in this moment
        return self.store.get(verdict) == b"all"


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


# ---- setup ----


def keep_compiled() -> None:
    """Keep compiled code for later processes and stages; called before torch chooses a folder of its own."""
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(base_dir() / "compiled"))


@contextmanager
def setup(device_type: str = "auto", dtype: str = "auto", attention: str = "auto") -> Iterator[Runtime]:
    """Choose and print this process's runtime, and join the ranks until the block ends.

    device_type: auto, cuda, mps or cpu. dtype: auto (then NANOCHAT_DTYPE counts) or a name in DTYPES.
    """
    keep_compiled()
    device, device_reason = _device(device_type)
    distributed = all(name in os.environ for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))  # Slurm sets only some
    rank = int(os.environ["RANK"]) if distributed else 0
    world_size = int(os.environ["WORLD_SIZE"]) if distributed else 1
    if device.type == "cuda":
        torch.cuda.set_device(device)  # NCCL takes the current device
        torch.set_float32_matmul_precision("high")  # TF32 for the products that stay in fp32
    store = _join_ranks(device, rank, world_size) if world_size > 1 else None
    try:
        accelerator = find_accelerator(_device_name(device))
        runtime = Runtime(device, torch.float32, attention, rank, world_size, accelerator, store)
        # Rank 0 decides for all: each rank would measure something else.
        precision, precision_reason = runtime.broadcast(lambda: _precision(device, dtype))
        ranks = f"{world_size} ranks" if world_size > 1 else "1 process"
        print0(f"device: {device.type} ({_device_name(device)}), {ranks}: {device_reason}")
        print0(f"precision: {precision}: {precision_reason}")
        yield replace(runtime, dtype=DTYPES[precision])
    finally:
        if world_size > 1:
            dist.destroy_process_group()


def _join_ranks(device: torch.device, rank: int, world_size: int) -> "Store":
    """Start the process group and return its store."""
    store, _, _ = next(dist.rendezvous("env://"))
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=dist.PrefixStore("process group", store),
        rank=rank,
        world_size=world_size,
        timeout=timedelta(minutes=30),  # one rank may evaluate or compile for long
        device_id=device if device.type == "cuda" else None,
    )
    return store


def _device(device_type: str) -> tuple[torch.device, str]:
    """Return this rank's device, and the reason."""
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    present = [name for name, is_available in available.items() if is_available]
    if device_type not in ("auto", *present):
        raise ValueError(f"--device-type={device_type} is not on this machine, take one of {', '.join(present)}")
    name, reason = device_type, "as asked"
    if device_type == "auto":
        name, reason = present[0], "the first of cuda, mps, cpu on this machine"
    if name == "cuda":
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))), reason
    return torch.device(name), reason


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{torch.get_num_threads()} threads" if device.type == "cpu" else device.type


def asked_precision(dtype: str) -> str:
    """Return the DTYPES key that a flag or else NANOCHAT_DTYPE asks for, or "auto". bfloat16 means bf16."""
    asked = os.environ.get("NANOCHAT_DTYPE", "auto") if dtype == "auto" else dtype
    short_names = {str(full).removeprefix("torch."): name for name, full in DTYPES.items()}
    name = short_names.get(asked, asked)
    if name not in ("auto", *DTYPES):
        raise ValueError(f"precision {asked} is not known, take one of auto, {', '.join(DTYPES)}")
    return name


def _precision(device: torch.device, dtype: str) -> tuple[str, str]:
    """Return the DTYPES key to compute in, and the reason."""
    name = asked_precision(dtype)
    if name != "auto":
        return name, "as asked"
    if device.type == "cuda":
        if torch.cuda.get_device_capability(device) >= (8, 0):
            return "bf16", "this GPU has bf16 matrix products"
        return "fp32", "this GPU has no bf16; fp16 is faster, and its loss is scaled to avoid overflow"
    if device.type == "mps":
        return "fp32", "the safe choice on MPS"
    seconds = {name: _linear_seconds(DTYPES[name]) for name in ("fp32", "bf16")}
    faster = min(seconds, key=seconds.get)
    return faster, f"a linear layer takes {seconds['fp32'] * 1e3:.1f} ms in fp32, {seconds['bf16'] * 1e3:.1f} in bf16"


def _linear_seconds(dtype: torch.dtype) -> float:
    """Return the best time for a linear layer's forward and backward products, out of four.

    4,096 tokens, 256 → 1,024: as in models that a CPU trains.
    """
    x = torch.ones(4096, 256, dtype=dtype)
    weight = torch.ones(1024, 256, dtype=dtype)
    gradient = torch.ones(4096, 1024, dtype=dtype)
    times = []
    for _ in range(4):  # the first one warms up
        start = time.perf_counter()
        _ = x @ weight.mT, gradient @ weight, gradient.mT @ x
        times.append(time.perf_counter() - start)
    return min(times)


def planned_hardware(name: str) -> tuple[int, Accelerator]:
    """Return (number, accelerator) for a plan: the named ones (8xH100), or this machine's."""
    if name:
        return parse_hardware(name)
    device, _ = _device("auto")
    if device.type != "cuda":
        return 1, Accelerator(device.type.upper(), memory=free_memory(device) / 1e9)
    device_name = _device_name(device)
    memory = torch.cuda.get_device_properties(device).total_memory / 1e9
    return torch.cuda.device_count(), find_accelerator(device_name) or Accelerator(device_name, memory=memory)


# ---- results through a store ----
# For work that may take long, like a download or a write to disk: a collective would time out, and belongs to training.


def post_result(store: "Store", key: str, work: Callable[[], Any], refusal: type[Exception]) -> None:
    """Run `work` and put its JSON value, or its `refusal`'s text, into the store for all ranks to read.

    Any other failure is raised here; the other ranks learn about it, so that none waits for ever.
    The key ends with a place: "…/rank 1", "…/node 0".
    """
    _, _, place = key.rpartition("/")  # "rank 1"
    answer = {"error": f"{place} stopped, its log says why"}
    try:
        answer = {"value": work()}
    except refusal as error:
        answer = {"error": str(error)}
    finally:
        store.set(key, json.dumps(answer))


def wait_result(
    store: "Store", key: str, refusal: type[Exception], timeout: float = float("inf"), notice: str = ""
) -> Any:
    """Return the value posted under a key; raise `refusal` if that work failed, or after `timeout` seconds.

    notice: the work's name in a line that is printed every few seconds; none is printed without it.
    """
    start = printed = time.monotonic()
    while not store.check([key]):  # a blocking get would keep the store from other threads
        now = time.monotonic()
        if now - start > timeout:
            raise refusal(f"no result of {key} in {timeout:.0f} s, the log of a rank may say why")
        if notice and now - printed > WAIT_NOTICE_SECONDS:
            printed = now
            print_line(f"rank {os.environ['RANK']} waits for {notice}, {now - start:.0f} s so far")
        time.sleep(POLL_SECONDS)
    answer = json.loads(store.get(key))
    if "error" in answer:
        raise refusal(answer["error"])
    return answer["value"]


# ---- interruptions of a training step: signals, and the garbage collector ----

STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
ECHO_SECONDS = 3.0  # torchrun passes a terminal's Ctrl-C on to ranks that have had it already


@contextmanager
def stop_requests() -> Iterator[list[str]]:
    """Yield a list that gets the name of the first signal that asks to stop; a second one ends the process at once.

    A thread reads the signals: Python's own handlers wait while the main thread waits for a device or another rank.
    """
    requests: list[str] = []
    read_fd, write_fd = os.pipe()
    os.set_blocking(write_fd, False)
    threading.Thread(target=_read_signals, args=(read_fd, requests), name="nanochat-signals", daemon=True).start()
    old_fd = signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
    old_handlers = {number: signal.signal(number, lambda *_: None) for number in STOPPING}
    try:
        yield requests
    finally:
        for number, handler in old_handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(old_fd)
        os.close(write_fd)  # ends the thread


def _read_signals(read_fd: int, requests: list[str]) -> None:
    """Read signal numbers, a byte each, until the pipe is closed."""
    first = 0.0
    while received := os.read(read_fd, 1):
        number = received[0]
        if number not in STOPPING:
            continue
        if requests and time.monotonic() - first > ECHO_SECONDS:
            os._exit(128 + number)
        if not requests:
            first = time.monotonic()
            requests.append(signal.Signals(number).name)
            _announce_stop(requests[0])
    os.close(read_fd)


def _announce_stop(name: str) -> None:
    """Print without `print`, whose lock this thread must not hold when the process ends."""
    if not is_main_rank():
        return
    clear = ERASE if is_terminal(sys.stdout) else ""
    sentence = f"{clear}{name}: stopping at the end of this step, a second signal ends at once\n"
    with suppress(OSError):
        os.write(1, sentence.encode())


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
