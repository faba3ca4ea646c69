"""Device and precision of a process: chosen, or refused with a sentence. Tests of runs have several ranks."""

import contextlib
import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from conftest import ROOT
from loop_parts import ALONE

from nanochat import cores
from nanochat import runtime as under_test
from nanochat.errors import UserError
from nanochat.runtime import DTYPES, free_memory, planned_hardware, setup, stop_requests

CPU_ONLY = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


@pytest.fixture(autouse=True)
def plain(tmp_path, monkeypatch) -> None:
    """No settings of this machine, nor of a setup before."""
    for name in ("NANOCHAT_DTYPE", "RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(tmp_path))
    # A setup sets them; this test's end takes them back.
    for name in (
        "TORCHINDUCTOR_CACHE_DIR",
        "ONEDNN_MAX_CPU_ISA",
        "TORCHINDUCTOR_CPP_ENABLE_FLOATING_POINT_CONTRACT_FLAG",
    ):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def chosen(*choices: str):
    with setup(*choices) as found:
        return found


@CPU_ONLY
def test_the_choice_of_device_and_precision(monkeypatch, capsys) -> None:
    found = chosen()
    assert capsys.readouterr().out.endswith(f"ranks: 1, precision: {found.dtype_name}\n")
    assert (found.device.type, found.rank, found.world_size, found.peak_flops) == ("cpu", 0, 1, None)
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(under_test.compiled_folder())
    asked = chosen("cpu", "bf16", "twin")
    assert (asked.dtype, asked.attention) == (torch.bfloat16, "twin")
    monkeypatch.setenv("NANOCHAT_DTYPE", "fp16")
    assert chosen("cpu").dtype == torch.float16
    assert chosen("cpu", "fp32").dtype == torch.float32  # the flag is stronger


INSTRUCTIONS = """GenuineIntel, avx512_bf16 amx_bf16, bf16 | GenuineIntel, avx512_bf16, fp32
    | AuthenticAMD, avx512_bf16, bf16 | AuthenticAMD, avx2, fp32""".split("|")


@pytest.mark.parametrize("case", INSTRUCTIONS)
def test_the_precision_of_a_cpu_follows_its_instructions(case, monkeypatch, tmp_path) -> None:
    vendor, flags, dtype = case.strip().split(", ")
    (tmp_path / "cpuinfo").write_text(f"vendor_id : {vendor}\nflags : fpu {flags}\n")
    monkeypatch.setattr(under_test, "CPU_INFO", tmp_path / "cpuinfo")
    monkeypatch.setattr("rustbpe.amx_is_broken", lambda: False)
    assert chosen("cpu").dtype == DTYPES[dtype]
    assert "ONEDNN_MAX_CPU_ISA" not in os.environ
    monkeypatch.setattr("rustbpe.amx_is_broken", lambda: True)
    assert chosen("cpu").dtype == torch.float32
    assert os.environ["ONEDNN_MAX_CPU_ISA"] == "AVX512_CORE_FP16"


def test_compiled_code_has_a_folder_for_each_kind_of_processor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = {under_test.compiled_folder()}
    for capability, flags in (("AVX2", "avx2"), ("AVX2", "avx2 fma"), ("AVX512", "avx2")):
        (tmp_path / "cpuinfo").write_text(f"model name : A\nflags : {flags}\n", encoding="utf-8")
        monkeypatch.setattr(cores, "CPU_INFO", tmp_path / "cpuinfo")
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda found=capability: found)
        found.add(under_test.compiled_folder())
    assert len(found) == 4
    assert {folder.parent for folder in found} == {tmp_path / "compiled"}


SHARED = """
import torch
from nanochat.cross_entropy import cross_entropy
from nanochat.runtime import setup

with setup("cpu", "fp32"):
    torch.manual_seed(0)
    hidden = torch.randn(300, 64).bfloat16().requires_grad_()
    weight = torch.randn(20_000, 64).requires_grad_()
    loss = cross_entropy(hidden, weight, torch.randint(20_000, (300,)), compiled=True)
    loss.backward()
print(loss.item())
"""


@CPU_ONLY
@pytest.mark.slow
def test_code_for_narrow_vectors_is_not_taken_for_wide_ones() -> None:
    """With one folder the second process ended by a corrupted heap, on a processor with AVX-512."""
    losses = []
    command = [sys.executable, "-c", SHARED]
    for variables in ({"ATEN_CPU_CAPABILITY": "avx2"}, {}):
        own = {**os.environ, **variables}
        done = subprocess.run(command, env=own, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        losses.append(float(done.stdout.split()[-1]))
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_a_product_in_bf16_does_not_end_the_process(monkeypatch) -> None:
    """It did on virtual machines that announce AMX without tile sizes."""
    code = "with runtime.setup('cpu'): a = torch.ones(256, 256, dtype=torch.bfloat16); print(float((a @ a).sum()))"
    printed = subprocess.check_output([sys.executable, "-c", f"import torch; from nanochat import runtime\n{code}"])
    assert float(printed.splitlines()[-1]) == 256**3


TRANSPOSING = """
import torch
from nanochat import runtime

def turned(x, cos, sin):
    a, b = x.mT.float().chunk(2, dim=-1)
    return torch.cat([a * cos + b * sin, b * cos - a * sin], dim=-1).bfloat16()

with runtime.setup("cpu"):
    x = torch.randn(2, 256, 512).bfloat16()
    cos, sin = torch.randn(2, 512, 128)
    print(torch.equal(torch.compile(turned, dynamic=False)(x, cos, sin), turned(x, cos, sin)))
"""


def test_compiled_code_transposes_bf16() -> None:
    """GCC 12 removed the stores to transposed tiles: the gradients of Gemma's layers, with one key head, were nan."""
    assert subprocess.check_output([sys.executable, "-c", TRANSPOSING]).split()[-1] == b"True"


@CPU_ONLY
def test_what_cannot_be_is_refused_and_hardware_for_a_plan(monkeypatch) -> None:
    with pytest.raises(ValueError, match=r"^--device-type=cuda is not on this machine, use one of cpu"):
        chosen("cuda")
    with pytest.raises(ValueError, match=r"^precision int8 is not known, use one of auto, bf16, fp16, fp32"):
        chosen("cpu", "int8")
    count, cpu = planned_hardware("")
    assert (count, cpu.name, cpu.peak("bf16"), cpu.dollars) == (1, "CPU", None, None)
    monkeypatch.setenv("NANOCHAT_DOLLARS_AN_HOUR", "98")
    count, cpu = planned_hardware("", nodes=2)
    assert (count, cpu.dollars) == (2, 49)
    assert 0.1 < cpu.memory < 10_000


@CPU_ONLY
def test_a_gpu_that_torch_cannot_use_is_no_machine_without_a_gpu(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(under_test, "NVIDIA_DEVICE", tmp_path)  # a file of the driver is there
    monkeypatch.setattr(under_test, "nvidia_driver", lambda: "535.104.05")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(
        UserError, match=r"an NVIDIA GPU that cannot be used: .+\(driver 535.104.05, and CUDA"
    ) as refused:
        chosen("auto")
    assert "Install a newer driver, or choose the CPU with --device-type=cpu" in str(refused.value)
    with pytest.raises(UserError, match="an NVIDIA GPU that cannot be used"):
        planned_hardware("")
    assert chosen("cpu").device.type == "cpu"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")  # hidden on purpose
    assert chosen("auto").device.type == "cpu"


def test_memory(monkeypatch) -> None:
    block = torch.ones(200_000_000)
    assert ALONE.peak_memory() > block.nbytes
    free = free_memory(ALONE.device)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert 0 < free_memory(ALONE.device) < free / 2


PAGES = """
import resource, sys
import torch
from nanochat.runtime import keep_freed_memory
if sys.argv[1] == "kept":
    keep_freed_memory()
found = []
for _ in range(10):  # the first ones have new pages in any case, as the heap grows around what else is there
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.zeros(16_000_000)
    found.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(min(found[5:]))
"""


GLIBC = platform.libc_ver()
KEEPS = GLIBC[0] == "glibc" and tuple(map(int, GLIBC[1].split("."))) >= (2, 35)


@pytest.mark.skipif(not KEEPS, reason="the allocator of glibc 2.35 and newer")
def test_memory_of_freed_tensors_is_used_again() -> None:
    def faults(how: str) -> int:
        child = [sys.executable, "-c", PAGES, how]
        return int(subprocess.run(child, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120).stdout)

    assert faults("returned") > 10 * faults("kept") + 10


STEP = """
import time
from nanochat import runtime
runtime.ECHO_SECONDS = 0.3
with runtime.stop_requests():
    print("ready", flush=True)
    time.sleep(60)
"""


LARGE = """
from pathlib import Path
import torch
from nanochat.runtime import keep_freed_memory

def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

keep_freed_memory()
before = resident()
for size in (300_000_000, 500_000_000, 700_000_000):  # bytes
    torch.ones(size, dtype=torch.int8)
print(resident() - before < 200_000_000)
"""


@pytest.mark.skipif(not KEEPS, reason="the allocator of glibc 2.35 and newer")
def test_memory_of_the_largest_tensors_goes_back() -> None:
    child = subprocess.run([sys.executable, "-c", LARGE], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (child.stdout, child.stderr) == ("True\n", "")


def test_an_echo_is_not_a_second_signal_but_a_later_one_is() -> None:
    child = subprocess.Popen([sys.executable, "-c", STEP], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "ready\n"
    child.send_signal(signal.SIGINT)
    child.send_signal(signal.SIGTERM)
    time.sleep(0.6)
    assert child.poll() is None
    end = time.monotonic() + 30
    while child.poll() is None and time.monotonic() < end:  # on a slow machine it may have heard the first just now
        child.send_signal(signal.SIGTERM)
        time.sleep(0.1)
    assert child.returncode == 128 + signal.SIGTERM


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"])
def test_signals_are_collected_and_handlers_given_back(name) -> None:
    number = signal.Signals[name]
    outside = signal.signal(number, signal.default_int_handler)  # nohup and a shell's background ignore some of them
    try:
        with contextlib.suppress(ZeroDivisionError), stop_requests() as asked:
            os.kill(os.getpid(), number)
            time.sleep(0.01)
            assert asked == [number]
            raise ZeroDivisionError
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, outside)


def test_nohup_keeps_its_promise() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_requests() as asked:
            os.kill(os.getpid(), signal.SIGHUP)
        assert asked == []
    finally:
        signal.signal(signal.SIGHUP, before)
