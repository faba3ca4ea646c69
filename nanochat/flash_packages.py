"""Packages of FlashAttention: a line for the log of a training run that could use one and does not."""

from collections.abc import Collection, Mapping
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
    if device.type != "cuda" or dtype not in (torch.bfloat16, torch.float16):
        return ""
    installed = [version for version, package in FLASH_PACKAGES.items() if any(map(find_spec, package.modules))]
    ranks = runtime.all_gather({name: obstacle(name, device, dtype) for name in FLASH})
    obstacles = {name: next(filter(None, (found[name] for found in ranks)), "") for name in FLASH}
    return missing_kernel(path, torch.cuda.get_device_capability(device)[0], installed, obstacles)


def missing_kernel(path: str, family: int, installed: Collection[str], obstacles: Mapping[str, str]) -> str:
    """Return what `kernel_note` does, from what was found.

    path: that runs. family: major compute capability of the GPU. installed: versions of FlashAttention, and obstacles
    the reason that each cannot run.
    """
    best = next((version for version, families in FLASH.items() if family in families), None)
    if best is None or path in FLASH:
        return ""
    package = FLASH_PACKAGES[best]
    if best in installed:
        return f"attention: {package.name} cannot run here: {obstacles[best]}; {package.gain}"
    return f"attention: {package.name} is not installed: {package.gain}; {package.install}"
