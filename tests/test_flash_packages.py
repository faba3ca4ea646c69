"""The line about a FlashAttention that is not installed: where it could run, and nowhere else."""

from importlib.util import find_spec

import torch
from conftest import each_row

from nanochat import flash_packages
from nanochat.runtime import Runtime

CPU = torch.device("cpu")
NOTES = """
9 | flex | - | FlashAttention 3 is not installed: a step would take about 3 to 6 % less time with it
9 | flex | flash4 | FlashAttention 3 is not installed: a step would take about 3 to 6 % less time with it
9 | flex | flash3 | FlashAttention 3 cannot run here: no build for this PyTorch; a step would take about 3 to 6 %
9 | sdpa | - | FlashAttention 3 is not installed: a step would take about 3 to 6 % less time with it
10 | flex | - | FlashAttention 4 is not installed: it would shorten a step, by how much is not measured
10 | flex | flash3 | FlashAttention 4 is not installed: it would shorten a step, by how much is not measured
9 | flash3 | flash3 | -
9 | flash4 | flash4 | -
8 | flex | - | -
12 | flex | - | -
"""


@each_row("family path installed note", NOTES)
def test_a_kernel_that_is_not_installed_is_named_where_it_could_run(family, path, installed, note, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (int(family), 0))
    monkeypatch.setattr(flash_packages, "obstacle", lambda path, device, dtype: "no build for this PyTorch")
    # No module is there but that of a version that is installed.
    modules = flash_packages.FLASH_PACKAGES[installed].modules if installed != "-" else ()
    monkeypatch.setattr(flash_packages, "find_spec", lambda name: name in modules or None)
    found = flash_packages.kernel_note(path, Runtime(torch.device("cuda"), torch.bfloat16))
    assert found.startswith(f"attention: {note}" if note != "-" else "")
    assert bool(found) is (note != "-")
    assert ("; pip install " in found) is ("not installed" in note)
    assert "\n" not in found


def test_no_kernel_is_missed_without_a_gpu_or_in_fp32(monkeypatch) -> None:
    assert flash_packages.kernel_note("chunks", Runtime(CPU, torch.bfloat16)) == ""
    gpu = torch.device("cuda")
    assert flash_packages.kernel_note("flex", Runtime(gpu, torch.float32)) == ""
    # On a Hopper GPU, with what this machine has.
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(flash_packages, "obstacle", lambda path, device, dtype: "it has no GPU")
    here = any(map(find_spec, ("flash_attn_interface", "kernels")))
    own = Runtime(gpu, torch.bfloat16)
    assert ("is not installed" in flash_packages.kernel_note("flex", own)) is not here
    if not here:
        return
    # One rank's reason is all ranks' reason, also where rank 0 could run it.
    monkeypatch.setattr(flash_packages, "obstacle", lambda path, device, dtype: "")
    monkeypatch.setattr(Runtime, "all_gather", lambda self, found: [found, "the hub sent 429"])
    assert "FlashAttention 3 cannot run here: the hub sent 429; " in flash_packages.kernel_note("flex", own)
