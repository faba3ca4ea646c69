"""What a process computes with: chosen and told with the reason, refused with a sentence, the same on all ranks."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from forks import Forked
from loop_parts import ALONE

from nanochat import runtime as under_test
from nanochat.hardware import find_accelerator
from nanochat.runtime import DTYPES, planned_hardware, setup

CPU_ONLY = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


@pytest.fixture(autouse=True)
def plain(tmp_path, monkeypatch):
    """No settings of this machine, nor of a setup before."""
    for name in ("NANOCHAT_DTYPE", "RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")


def told(capsys, *choices: str):
    with setup(*choices) as found:
        return found, dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines())


@CPU_ONLY
def test_choices_are_told_with_their_reasons(capsys):
    found, said = told(capsys)
    assert said["device"].endswith("1 process: the first of cuda, mps, cpu on this machine")
    assert said["precision"].startswith(f"{found.dtype_name}: a linear layer takes ")
    assert (found.device.type, found.rank, found.world_size, found.peak_flops) == ("cpu", 0, 1, None)
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == os.environ["NANOCHAT_BASE_DIR"] + "/compiled"


def test_what_is_asked_for_is_taken(capsys, monkeypatch):
    found, said = told(capsys, "cpu", "bf16", "twin")
    assert (found.dtype, found.attention) == (torch.bfloat16, "twin")
    assert said["device"].endswith("1 process: as asked")
    assert said["precision"] == "bf16: as asked"
    monkeypatch.setenv("NANOCHAT_DTYPE", "float16")
    assert told(capsys, "cpu")[0].dtype == torch.float16
    assert told(capsys, "cpu", "fp32")[0].dtype == torch.float32  # the flag is stronger


@pytest.mark.parametrize("faster", ["fp32", "bf16"])
def test_the_precision_of_a_cpu_is_measured(faster, capsys, monkeypatch):
    monkeypatch.setattr(under_test, "_linear_seconds", lambda dtype: 0.001 if dtype == DTYPES[faster] else 0.002)
    found, said = told(capsys, "cpu")
    assert found.dtype == DTYPES[faster]
    times = {name: "1.0" if name == faster else "2.0" for name in ("fp32", "bf16")}
    assert said["precision"] == f"{faster}: a linear layer takes {times['fp32']} ms in fp32, {times['bf16']} in bf16"


def test_a_measurement_takes_the_time_it_says():
    assert 1e-4 < under_test._linear_seconds(torch.float32) < 2


@CPU_ONLY
@pytest.mark.parametrize(
    ("choices", "sentence"),
    [
        (("cuda",), "--device-type=cuda is not on this machine, take one of cpu"),
        (("cpu", "int8"), "precision int8 is not known, take one of auto, bf16, fp16, fp32"),
    ],
)
def test_what_cannot_be_is_refused(choices, sentence):
    with pytest.raises(ValueError) as refusal, setup(*choices):
        pass
    assert str(refusal.value).startswith(sentence)


def test_a_wrong_environment_is_refused(monkeypatch):
    monkeypatch.setenv("NANOCHAT_DTYPE", "half")
    with pytest.raises(ValueError, match=r"^precision half is not known"), setup("cpu"):
        pass


def test_half_a_launcher_is_none(monkeypatch):
    """Slurm sets some of torchrun's variables."""
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    with setup("cpu", "fp32") as found:
        assert (found.rank, found.world_size) == (0, 1)


def test_a_run_resumes_in_its_precision(capsys):
    assert ALONE.with_dtype("fp32") == ALONE
    assert capsys.readouterr().out == ""
    found = ALONE.with_dtype("bf16")
    assert capsys.readouterr().out == "precision: bf16, as in the run that resumes\n"
    assert (found.dtype, found.dtype_name) == (torch.bfloat16, "bf16")
    assert found.optimizer_options["polar_dtype"] == torch.bfloat16


def test_hardware_for_a_plan(monkeypatch):
    assert planned_hardware("8xH100") == (8, find_accelerator("H100"))
    if not torch.cuda.is_available():
        count, cpu = planned_hardware("")
        assert (count, cpu.name, cpu.peak("bf16")) == (1, "CPU", None)
        assert 0.1 < cpu.memory < 10_000


def test_memory():
    before = ALONE.peak_memory()
    block = torch.ones(200_000_000)
    assert ALONE.peak_memory() >= before
    assert ALONE.peak_memory() > block.nbytes
    code = "from loop_parts import ALONE; print(ALONE.peak_memory())"
    paths = {"PYTHONPATH": f"{Path(__file__).parent}:{Path(__file__).parent.parent}"}
    its = subprocess.run([sys.executable, "-c", code], env=os.environ | paths, capture_output=True, check=True)
    if Path("/proc/self/status").exists():
        assert int(its.stdout) < block.nbytes  # though this process, which started it, holds more
    free = ALONE.free_memory()
    assert free > 0
    os.environ["LOCAL_WORLD_SIZE"] = "4"
    try:
        assert ALONE.free_memory() < free / 2
    finally:
        del os.environ["LOCAL_WORLD_SIZE"]


def one_of_three(folder: Path) -> None:
    rank = int(os.environ["RANK"])
    # Each rank measures something else, and may not go its own way.
    under_test._linear_seconds = lambda dtype: float((dtype == torch.float32) == (rank == 0))
    with setup("cpu") as found:
        seen = [
            found.rank,
            found.world_size,
            found.dtype_name,
            found.broadcast(lambda: f"by {rank}"),
        ]
        seen += [found.all_gather({"rank": rank}), found.all_reduce(torch.tensor([1.0, rank])).tolist()]
        found.store.set(f"key {rank}", "value")
        found.all_gather(0)
        seen.append(found.store.check([f"key {other}" for other in range(3)]))
        try:
            found.broadcast(lambda: int(f"fault of {rank}"))
        except ValueError as error:
            seen.append(str(error))
    (folder / f"{rank}.json").write_text(json.dumps(seen))


def test_ranks_agree(tmp_path):
    job = Forked(tmp_path / "out", one_of_three, tmp_path, ranks=3)
    assert "3 ranks: as asked" in job.done()
    assert job.out(1) == job.out(2) == ""
    for rank in range(3):
        seen = json.loads((tmp_path / f"{rank}.json").read_text())
        everyone = [{"rank": other} for other in range(3)]
        assert seen == [rank, 3, "bf16", "by 0", everyone, [3.0, 3.0], True, seen[-1]]
        assert "fault of 0" in seen[-1]
