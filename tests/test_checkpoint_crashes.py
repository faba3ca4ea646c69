"""What is on disk after a process, a machine or a disk gave out in the middle of a save."""

import os
import re
import resource
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from checkpoints import check, names, save, saved

from nanochat.checkpoint import Saver, newest, steps

TESTS = Path(__file__).parent


@pytest.mark.parametrize("before", ["nothing", "100", "200"])
def test_kill_9_after_anything_a_save_of_step_200_does(before, tmp_path, python):
    words = str(TESTS / "checkpoint_crashes.py"), str(tmp_path / "run"), *before.replace("nothing", "").split()
    done = python(*words, PYTHONPATH=str(TESTS.parent))
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)
    assert int(re.search(r"points (\d+)", done.stdout)[1]) >= 20


def test_all_is_synced_before_it_gets_its_name(tmp_path, monkeypatch):
    """A power cut loses what was not synced, so the order counts: files, their folder, rename, the folder above."""
    done, plain_sync, plain_rename = [], os.fsync, os.rename

    def sync(handle):
        done.append(Path(os.readlink(f"/proc/self/fd/{handle}")).name)
        plain_sync(handle)

    def rename(old, new):
        done.append("rename")
        plain_rename(old, new)

    if not Path("/proc/self/fd").exists():
        pytest.skip("needs /proc to name what is synced")
    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "rename", rename)
    saved(tmp_path / "run", 100)
    named = done.index("rename")
    part = "step_000100.tmp-part"
    assert done[named - 1] == part
    assert any(name.startswith("manifest.json") for name in done[:named])
    for name in ("model.safetensors", "optimizer-00000.safetensors"):
        assert done[:named].count(name) == 2  # by the rank that wrote it, on another node perhaps, and by rank 0
    assert done[named + 1] == "run"


def test_a_rank_that_is_killed_leaves_the_checkpoint_before(tmp_path):
    """Both ranks are processes; rank 1 dies before it has written, so rank 0 cannot publish and is killed too."""
    saved(tmp_path / "run", 100)
    children = []
    for rank in range(2):
        child = os.fork()
        if not child:
            store = torch.distributed.FileStore(str(tmp_path / "store"), 2)
            saver = Saver(tmp_path / "run", rank, 2, store=store)
            if rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            save(saver, 200)
            (tmp_path / "saving").touch()
            saver.wait()
            os._exit(0)
        children.append(child)
    assert os.waitstatus_to_exitcode(os.waitpid(children[1], 0)[1]) == -signal.SIGKILL
    while not (tmp_path / "saving").exists():
        assert os.waitpid(children[0], os.WNOHANG) == (0, 0)
    os.kill(children[0], signal.SIGKILL)
    os.waitpid(children[0], 0)
    assert newest(tmp_path / "run").step == 100
    saved(tmp_path / "run", 200)
    check(newest(tmp_path / "run"))
    assert not [name for name in names(tmp_path / "run") if ".tmp-" in name]


@contextmanager
def full_disk() -> Iterator[None]:
    """To the code that writes: no file may be larger than 1,000 bytes."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_save_that_fails_is_told_at_once_and_the_next_one_tries_again(tmp_path, capfd):
    with Saver(tmp_path) as saver:
        with full_disk():
            save(saver, 100)
            while not (said := capfd.readouterr().out):  # nobody waits for this save
                time.sleep(0.01)
            assert re.fullmatch(r"checkpoint: step 100 is not saved: .*File too large.*\n", said)
        save(saver, 200)  # there is room again
        check(newest(tmp_path))
        with full_disk():
            save(saver, 300)
            with pytest.raises(OSError, match="step 400 is not saved"):
                save(saver, 400)
    assert steps(tmp_path) == [200]
