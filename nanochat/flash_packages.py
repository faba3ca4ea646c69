"""Packages of FlashAttention: a line for the log of a training run that could use one and does not."""

from collections.abc import Collection
from importlib.util import find_spec
from typing import NamedTuple

import torch

from nanochat.attention import FLASH, obstacle
from nanochat.runtime import Runtime


class FlashPackage(NamedTuple):
    """How a version of FlashAttention gets here."""

    name: str
    modules: tuple[str, ...]  # one of them is needed
    install: str
    gain: str  # what it brings to a training step


FLASH_PACKAGES = {
    "flash3": FlashPackage(
        "FlashAttention 3",
        ("flash_attn_interface", "kernels"),
        "pip install kernels",
        "a step would take about 3 to 6 % less time with it",  # an estimate: docs/gpu.md has the reason
    ),
    "flash4": FlashPackage(
        "FlashAttention 4",
        ("flash_attn",),
        'pip install --pre "flash-attn-4[cu13]"',
        "it would shorten a step, by how much is not measured",
    ),
}


def kernel_note(path: str, runtime: Runtime) -> str:
    """Return a line for the log if a faster kernel could run on these GPUs; "" if there is none, or it runs.

    A collective: a kernel that one rank lacks, none runs.
    """
    device, dtype = runtime.device, runtime.dtype
    if path in FLASH or device.type != "cuda":  # of all ranks
        return ""
    in_halves = dtype in (torch.bfloat16, torch.float16)
    best = best_version(torch.cuda.get_device_capability(device)[0]) if in_halves else ""
    installed = [version for version, package in FLASH_PACKAGES.items() if any(map(find_spec, package.modules))]
    reasons = runtime.all_gather(obstacle(best, device, dtype) if best else "")  # also if this rank's GPU has none
    if not best:
        return ""
    return missing_kernel(best, installed, next(filter(None, reasons), "the GPU of another rank has no kernels for it"))


def best_version(family: int) -> str:
    """Return the fastest FlashAttention for a GPU with this major compute capability; "" if there is none."""
    return next((version for version, families in FLASH.items() if family in families), "")


def missing_kernel(best: str, installed: Collection[str], reason: str) -> str:
    """Return the line about the best version of FlashAttention for a GPU, which does not run for a reason.

    installed: versions of FlashAttention.
    """
    package = FLASH_PACKAGES[best]
    if best in installed:
        return f"attention: {package.name} cannot run here: {reason}; {package.gain}"
    return f"attention: {package.name} is not installed: {package.gain}; {package.install}"
