"""Accelerators: peak rates from their makers' data sheets, memory, and the price of an hour."""

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

from nanochat.errors import UserError
from nanochat.tables import parse_table

Figure = float | None  # None: unknown, or lacking

NVIDIA_DEVICE = Path("/dev/nvidiactl")  # there is a GPU and a driver, though not always one that torch can use
LEAST_DRIVERS = {"12": 525, "13": 580}  # major version of CUDA -> series of the driver, by NVIDIA's release notes


@dataclass(frozen=True)
class Accelerator:
    """An accelerator; None for a figure that is unknown, or a precision that it lacks.

    name: as people type it. devices: a pattern of the names that drivers report, without the maker's. bf16, fp16, fp8,
    fp32: TFLOP/s in dense matrix products, summed in fp32; fp32 means TF32 where there is TF32. memory: GB.
    bandwidth: of the memory, GB/s. nvlink: GB/s in one direction, where every such board has it. dollars: an hour,
    rented on demand, in 2026; providers differ by a factor of two and more. mfu: the share of the peak that a plan
    assumes in bf16. On H100 the public nanochat had it at depth 24, with FlashAttention 3; on H200 our code had it at
    depths 12 and 20, without (dev/MEASURED.md, "On one GPU"); elsewhere it is assumed. fp8_gain says what fp8 adds.
    """

    name: str
    devices: str = ""
    bf16: Figure = None
    fp16: Figure = None
    fp8: Figure = None
    fp32: Figure = None
    memory: Figure = None
    bandwidth: Figure = None
    nvlink: Figure = None
    dollars: Figure = None
    mfu: float = 0.4

    @property
    def precision(self) -> str:
        """Return the precision to train in by default: bf16, or fp32 without bf16."""
        return "fp32" if self.fp32 and not self.bf16 else "bf16"

    def peak(self, dtype: str) -> Figure:
        """Return the peak FLOP/s in a precision."""
        rate = getattr(self, dtype)
        return rate and rate * 1e12


# Names have to match as a whole: laptop models, slices of a GPU and later variants are slower than their namesakes.
ACCELERATORS = parse_table(
    Accelerator,
    """
    name       devices                        bf16    fp16    fp8     fp32   memory  bandwidth  nvlink  dollars  mfu
    B200       B200                           2250    2250    4500    -      180     8000       900     -      -
    H200       H200                           989.4   989.4   1978.9  494.7  141     4800       450     3.5      0.48
    H200-NVL   H200 NVL                       835.5   835.5   1670.5  417.7  141     4800       -       -      -
    H100       H100 80GB HBM3                 989.4   989.4   1978.9  494.7  84.9    3350       450     3.0      0.5
    H100-PCIe  H100 PCIe                      756     756     1513    378    80      2000       -       -      -
    H100-NVL   H100 NVL                       835.5   835.5   1670.5  417.7  94      3900       -       -      -
    A100       A100-SXM4-80GB|A100 80GB PCIe  312     312     -       156    80      -          -       1.5      -
    A100-40GB  A100-(SXM4|PCIE)-40GB          312     312     -       156    40      1555       -       -      -
    L40S       L40S                           362     362     733     -      48      864        -       -      -
    L4         L4                             121     121     242.5   60     24      300        -       -      -
    T4         (Tesla )?T4                    -       65      -       8.1    16      -          -       -      -
    RTX-5090   GeForce RTX 5090               209.5   209.5   419     104.8  32      1792       -       -      -
    RTX-4090   GeForce RTX 4090               165.2   165.2   330.3   82.6   24      1008       -       -      -
    RTX-3090   GeForce RTX 3090               71      71      -       35.6   24      936        -       -      -
    MI300X     Instinct MI300X( OAM)?         1307.4  1307.4  2614.9  163.4  192     5300       -       -      -
    """,
)


@dataclass(frozen=True)
class Fp8Speed:
    """A speed of base training in fp8 that others measured."""

    accelerator: str
    depth: int
    share: float  # FLOPs over training time, of the bf16 peak
    source: str


# With FlashAttention 3. Ours were not measured on such hardware yet.
FP8_SPEEDS = [
    Fp8Speed("H100", depth=22, share=0.56, source="the public nanochat's pull request 830, 81.8 min"),
    Fp8Speed("H100", depth=24, share=0.59, source="the public nanochat, 99.0 min"),
]
NEAR_DEPTH = 4  # layers; a speed says little about smaller models, whose products in fp8 gain less than they cost
PRICE = "NANOCHAT_DOLLARS_AN_HOUR"  # environment variable: the price of all machines of a run


def find_accelerator(name: str) -> Accelerator:
    """Return the accelerator that a driver or a person names; an unknown one has nothing but a name.

    A person's case and separators do not count.
    """
    device = re.sub("^(NVIDIA|AMD) ", "", name)  # drivers put the maker first
    for accelerator in ACCELERATORS:
        if re.fullmatch(accelerator.devices, device) or _plain(name) == _plain(accelerator.name):
            return accelerator
    return Accelerator(name)


def fp8_gain(accelerator: Accelerator, depth: int) -> tuple[float, str]:
    """Return the speed in fp8 relative to bf16, and its source in words; 1 where no gain is known.

    On other accelerators with fp8, the smallest gain that was measured on H100 is assumed.
    """
    if not accelerator.fp8:
        return 1.0, "it has no fp8"
    if depth < min(speed.depth for speed in FP8_SPEEDS) - NEAR_DEPTH:
        return 1.0, f"no gain by fp8 is known at depth {depth}"
    gains = {speed: speed.share / find_accelerator(speed.accelerator).mfu for speed in FP8_SPEEDS}
    own = [speed for speed in FP8_SPEEDS if speed.accelerator == accelerator.name]
    if not own:
        least = min(gains, key=gains.__getitem__)
        return gains[least], f"fp8 gains {gains[least] - 1:.0%}, as on {least.accelerator}: {least.source}"
    nearest = min(own, key=lambda speed: abs(speed.depth - depth))
    return gains[nearest], f"as {nearest.source}"


def parse_hardware(text: str) -> tuple[int, Accelerator]:
    """Return (number, accelerator) for text like 8xH100, or 8xH100@98 (dollars an hour)."""
    match = re.fullmatch(r"(?:([1-9]\d*) ?[x×*] ?)?([A-Za-z][\w -]*|\d{4})(?:@(.*))?", text.strip())
    if not match:
        raise UserError(f"--on={text} is not known hardware; use e.g. 8xH100 or {ACCELERATORS[0].name}")
    count = int(match[1] or 1)
    accelerator = find_accelerator(match[2])
    if match[3] is not None:
        accelerator = replace(accelerator, dollars=_price(match[3], f"--on={text}") / count)
    return count, accelerator


def given_price() -> float | None:
    """Return the dollars an hour that the environment gives for all machines of this run, or None."""
    text = os.environ.get(PRICE)
    return _price(text, f"{PRICE}={text}") if text else None


def _price(text: str, given: str) -> float:
    if not re.fullmatch(r"\d+(\.\d+)?", text):
        raise UserError(f"{given} has no price: give the dollars an hour of the whole machine, such as 98")
    return float(text)


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]", "", name).lower().removeprefix("rtx")


def nvidia_driver() -> str:
    """Return the version of NVIDIA's driver, "" if there is none; a container has this file without nvidia-smi too."""
    version = Path("/proc/driver/nvidia/version")
    if not version.exists():
        return ""
    found = re.search(r"(?<!\S)\d+\.\d+(\.\d+)?(?!\S)", version.read_text(encoding="utf-8", errors="replace"))
    return found[0] if found else ""
