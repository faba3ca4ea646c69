"""What a process computes with: ranks, device, precision, attention path; chosen, and told, in `setup()`."""

import os
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from nanochat import attention
from nanochat.hardware import Accelerator, find, parse_named
from nanochat.log import print0
from nanochat.paths import base_dir

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
# Of a CPU: what is shorter gains nothing by a compiler, which takes a minute, and seconds where its cache is warm.
COMPILING_PAYS = 2e12  # FLOPs
COMPILING_SECONDS = 120.0
PATIENCE = 30.0  # seconds that a rank which failed waits for the others to fail as well


@dataclass(frozen=True)
class Runtime:
    """device and ranks of this process; dtype: of activations, weights stay fp32; attention: a path's name."""

    device: torch.device
    dtype: torch.dtype
    attention: str
    rank: int = 0
    world_size: int = 1
    accelerator: Accelerator | None = None
    store: Any = None  # torch.distributed's, through which ranks may speak outside of collectives

    @property
    def dtype_name(self) -> str:
        return next(name for name, dtype in DTYPES.items() if dtype == self.dtype)

    @property
    def peak_flops(self) -> float | None:
        """Per second, of this rank's accelerator in this precision; None where it is not known."""
        return self.accelerator.peak(self.dtype_name) if self.accelerator else None

    @property
    def optimizer_options(self) -> dict[str, Any]:
        """Muon's matrix products in bf16 where the model's are; its step compiled on a GPU (a CPU gains too little)."""
        polar = torch.bfloat16 if self.dtype == torch.bfloat16 else torch.float32
        return {"polar_dtype": polar, "compile": self.device.type == "cuda"}

    @property
    def validation_bytes(self) -> int:
        """How much text a validation takes that should cost little beside training."""
        return 20_000_000 if self.device.type == "cuda" else 500_000

    def compiling_pays(self, flops: float) -> bool:
        """Whether so many of all ranks take longer than compiling for them; an accelerator is compiled for always."""
        return self.device.type != "cpu" or flops / self.world_size > COMPILING_PAYS

    def as_in(self, manifest: dict[str, Any], path: str, needs: Collection[str] = ()) -> "Runtime":
        """In the precision of the run that a checkpoint is of: what auto measures may differ from day to day.

        path, needs: of attention, as in `attending`.
        """
        if manifest["dtype"] == self.dtype_name:
            return self
        print0(f"precision: {manifest['dtype']}: as the run began")
        return replace(self, dtype=DTYPES[manifest["dtype"]]).attending(path, needs)

    def attending(self, path: str, needs: Collection[str]) -> "Runtime":
        """By a path of attention that does what a model needs, which may not be known before `setup`."""
        path, why = _attention(self.device, self.dtype, path, needs)
        if path != self.attention:
            print0(f"attention: {why}")
        return replace(self, attention=path)

    def all_sum(self, numbers: torch.Tensor) -> torch.Tensor:
        """Over ranks, in place."""
        if self.world_size > 1:
            dist.all_reduce(numbers)
        return numbers

    def everyones(self, value: Any) -> list[Any]:
        """A JSON-like value of each rank, in the order of ranks."""
        values = [value] * self.world_size
        if self.world_size > 1:
            dist.all_gather_object(values, value)
        return values

    def from_first(self, work: Callable[[], Any]) -> Any:
        """The value of `work()`, which rank 0 does; its ValueError is raised on every rank."""
        value, fault = None, None
        try:
            value = work() if self.rank == 0 else None
        except ValueError as error:
            fault = str(error)
        value, fault = self.everyones((value, fault))[0]
        if fault is not None:
            raise ValueError(fault)
        return value

    def all_come(self, where: str) -> bool:
        """Whether all ranks come here soon; asked outside of collectives, in which a rank that does not may wait."""
        if self.world_size == 1:
            return True
        verdict, end = f"{where}/verdict", time.monotonic() + PATIENCE
        if self.store.add(where, 1) == self.world_size:
            self.store.compare_set(verdict, "", "all")
        while not self.store.check([verdict]):
            time.sleep(0.05)
            if time.monotonic() > end:
                self.store.compare_set(verdict, "", "some")  # unless the last one came in this moment
        return self.store.get(verdict) == b"all"

    def free_memory(self) -> int:
        return free_memory(self.device)

    def peak_memory(self) -> int:
        """Bytes that this process has held at most: on the accelerator, or of a CPU's memory."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        status = Path("/proc/self/status")
        told = status.read_text() if status.exists() else ""
        if "VmHWM:" in told:  # getrusage inherits what the process held that started this one
            return 1024 * int(told.split("VmHWM:")[1].split()[0])
        import resource  # absent on Windows

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if os.uname().sysname == "Darwin" else 1024)


def free_memory(device: torch.device) -> int:
    """Bytes that this process can still take."""
    if device.type == "cuda":
        kept_for_later = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + kept_for_later
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():
        return 4 << 30  # a guess for laptops that do not tell
    kilobytes = int(meminfo.read_text().split("MemAvailable:")[1].split()[0])
    return 1024 * kilobytes // int(os.environ.get("LOCAL_WORLD_SIZE", 1))


def keep_compiled() -> None:
    """Compiled code outlives the process, and serves all stages; to be called before torch chooses another place."""
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(base_dir() / "compiled"))


@contextmanager
def setup(
    device_type: str = "auto", dtype: str = "auto", attention_path: str = "auto", needs: Collection[str] = ()
) -> Iterator[Runtime]:
    """The runtime of this process, until the block ends.

    device_type: auto, cuda, mps or cpu. dtype: auto, which asks NANOCHAT_DTYPE first, or a name in DTYPES. needs: of
    attention, as `attention.choose` takes them.
    """
    keep_compiled()
    device, why = _device(device_type)
    distributed = all(name in os.environ for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))  # Slurm sets only some
    rank, world_size = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE")) if distributed else (0, 1)
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.set_float32_matmul_precision("high")  # TF32 for what is left in fp32
    store = None
    if world_size > 1:
        backend, bound = ("nccl", device) if device.type == "cuda" else ("gloo", None)
        store, *_ = next(dist.rendezvous("env://"))
        shared = {"store": dist.PrefixStore("process group", store), "rank": rank, "world_size": world_size}
        dist.init_process_group(backend, device_id=bound, timeout=timedelta(minutes=30), **shared)
    try:
        runtime = Runtime(device, torch.float32, "", rank, world_size, find(_name(device)), store)
        precision, why_dtype = runtime.from_first(lambda: _precision(device, dtype))
        path, why_path = _attention(device, DTYPES[precision], attention_path, needs)
        ranks = f"{world_size} ranks" if world_size > 1 else "1 process"
        print0(f"device: {device.type} ({_name(device)}), {ranks}: {why}")
        print0(f"precision: {precision}: {why_dtype}")
        print0(f"attention: {why_path}")
        yield replace(runtime, dtype=DTYPES[precision], attention=path)
    finally:
        if world_size > 1:
            dist.destroy_process_group()


def planned_hardware(named: str) -> tuple[int, Accelerator]:
    """How many of which accelerator a plan is for: as named (8xH100), or those of this machine."""
    if named:
        return parse_named(named)
    device, _ = _device("auto")
    if device.type != "cuda":
        return 1, Accelerator(device.type.upper(), memory=Runtime(device, torch.float32, "").free_memory() / 1e9)
    name, memory = _name(device), torch.cuda.get_device_properties(device).total_memory / 1e9
    return torch.cuda.device_count(), find(name) or Accelerator(name, memory=memory)


def _device(device_type: str) -> tuple[torch.device, str]:
    here = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    present = [name for name, is_here in here.items() if is_here]
    if device_type not in ("auto", *present):
        raise ValueError(f"--device-type={device_type} is not on this machine, take one of {', '.join(present)}")
    name = present[0] if device_type == "auto" else device_type
    why = "the first of cuda, mps, cpu that is here" if device_type == "auto" else "as asked"
    return torch.device(name, int(os.environ.get("LOCAL_RANK", 0))) if name == "cuda" else torch.device(name), why


def _name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{torch.get_num_threads()} threads" if device.type == "cpu" else device.type


def asked_precision(dtype: str) -> str:
    """The name in DTYPES of what a flag asks for, or else NANOCHAT_DTYPE; or auto."""
    asked = os.environ.get("NANOCHAT_DTYPE", "auto") if dtype == "auto" else dtype
    name = {str(full).removeprefix("torch."): short for short, full in DTYPES.items()}.get(asked, asked)
    if name not in ("auto", *DTYPES):
        raise ValueError(f"precision {asked} is not known, take one of auto, {', '.join(DTYPES)}")
    return name


def _precision(device: torch.device, dtype: str) -> tuple[str, str]:
    if (name := asked_precision(dtype)) != "auto":
        return name, "as asked"
    if device.type == "cuda":
        if torch.cuda.get_device_capability(device) >= (8, 0):
            return "bf16", "this GPU computes in it"
        return "fp32", "this GPU has no bf16; fp16 is faster, and scaled so that it does not overflow"
    if device.type == "mps":
        return "fp32", "the safe choice on MPS"
    seconds = {name: _linear_seconds(DTYPES[name]) for name in ("fp32", "bf16")}
    faster = min(seconds, key=seconds.get)
    return faster, f"a linear layer takes {seconds['fp32'] * 1e3:.1f} ms in fp32, {seconds['bf16'] * 1e3:.1f} in bf16"


def _linear_seconds(dtype: torch.dtype) -> float:
    """The fastest of a few times the products of a layer of the size that a CPU trains: forward, and both gradients."""
    x, weight, grad = (torch.ones(*sizes, dtype=dtype) for sizes in ((4096, 256), (1024, 256), (4096, 1024)))
    times = []
    for _ in range(4):
        start = time.perf_counter()
        _ = x @ weight.mT, grad @ weight, grad.mT @ x
        times.append(time.perf_counter() - start)
    return min(times)


def _attention(device: torch.device, dtype: torch.dtype, path: str, needs: Collection[str]) -> tuple[str, str]:
    if path == "auto":
        return attention.choose(device, dtype, needs)
    if path not in attention.PATHS:
        raise ValueError(f"--attention={path} is not known, take one of auto, {', '.join(attention.PATHS)}")
    return path, f"{path}: as asked"
