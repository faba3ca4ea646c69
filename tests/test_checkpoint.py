import os
import random
import re
import resource
import shutil
import threading
import time
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path

import pytest
import torch
from checkpoint_crashes import amended, check, model_of, names, record_of, save, saved, states_of
from conftest import ROOT
from torch.testing import assert_close

from nanochat.checkpoint import Saver, _Copies, load, newest
from nanochat.models import verified
from nanochat.paths import read_json, read_sha256, saved_steps


def test_a_round_trip_of_every_dtype_and_shape(tmp_path) -> None:
    before = saved(tmp_path / "run", 100, 200)
    checkpoint = newest(before)
    assert checkpoint.step == 200
    assert newest(tmp_path / "absent") is None
    check(checkpoint)
    check(load(before, 100))
    assert names(before) == {"step_000100", "step_000200"}
    manifest = read_json(checkpoint.path / "manifest.json")
    assert manifest["files"].keys() == names(checkpoint.path) - {"manifest.json"}
    for name, about in manifest["files"].items():
        file = checkpoint.path / name
        assert about == {"size": file.stat().st_size, "sha256": read_sha256(file)}
    assert manifest["versions"]["torch"].startswith("2.")
    torch.manual_seed(0)
    tensors = {}
    for name in "float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 bool".split():
        dtype = getattr(torch, name)
        for shape in [(), (0,), (1,), (3, 5), (2, 1, 7)]:
            tensors[f"{name} {shape}"] = (torch.randn(shape) * 3).to(dtype)
        tensors[f"{name} turned"] = (torch.randn(4, 6) * 3).to(dtype).t()
    with Saver(tmp_path) as saver:
        saver.save(1, tensors, [], record_of(1))
    assert_close(load(tmp_path, 1).model_tensors(), tensors, atol=0, rtol=0)


def test_old_steps_go(tmp_path) -> None:
    saved(tmp_path, *range(10, 101, 10), keep_last=2)
    assert saved_steps(tmp_path) == [90, 100]
    saved(tmp_path, 110, keep_last=1)
    assert saved_steps(tmp_path) == [110]
    saved(tmp_path, 120, 130)
    assert saved_steps(tmp_path) == [110, 120, 130]
    saved(tmp_path, 115, keep_last=1)  # by a run that resumed before damaged steps: these are not its to remove
    assert saved_steps(tmp_path) == [115, 120, 130]
    saved(tmp_path, 999_999, 1_000_000)  # in the order of numbers, not of names
    assert newest(tmp_path).step == 1_000_000


@pytest.fixture
def ranks(tmp_path):
    """The savers of two ranks."""
    store = torch.distributed.HashStore()
    return [Saver(tmp_path, rank, 2, store=store) for rank in range(2)]


def test_save_returns_before_anything_is_published_and_what_it_saves_is_of_that_moment(tmp_path, ranks) -> None:
    """Rank 0 cannot publish before rank 1 has written: so its `save` has returned without waiting for the disk."""
    model = model_of(100)
    states = [states_of(100, rank, 2) for rank in range(2)]
    record = record_of(100)
    ranks[0].save(100, model, states[0], record)
    assert saved_steps(tmp_path) == []
    for tensor in [*model.values(), *(tensor for _, state in states[0] for tensor in state.values())]:
        tensor.zero_()  # the next step of training
    record["loop"]["loss"] = 2.0
    ranks[1].save(100, {}, states[1], {})
    for saver in ranks:
        saver.wait()
    check(newest(tmp_path))


def test_each_state_is_copied_before_the_next_is_made(tmp_path) -> None:
    buffer = torch.empty(3, 5)  # stands for the memory that ranks gather into
    states = ((name, {"m": buffer.fill_(number)}) for number, name in enumerate("abc"))
    with Saver(tmp_path) as saver:
        saver.save(100, {}, states, record_of(100))
    read = [load(tmp_path, 100).optimizer_state(name)["m"].unique().tolist() for name in "abc"]
    assert read == [[0], [1], [2]]


def test_one_save_is_in_flight_and_the_next_waits_for_it(tmp_path, ranks) -> None:
    save(ranks[0], 100)
    second = threading.Thread(target=save, args=(ranks[0], 200))
    second.start()
    second.join(timeout=0.3)
    assert second.is_alive()
    save(ranks[1], 100)
    second.join()
    save(ranks[1], 200)
    for saver in ranks:
        saver.wait()
    check(newest(tmp_path))
    assert saved_steps(tmp_path) == [100, 200]


def test_what_goes_wrong_on_one_rank_is_raised_on_all_and_the_next_save_works(tmp_path, ranks) -> None:
    save(ranks[0], 100)
    ranks[1].save(100, {}, [("a", {"m": torch.ones(2, dtype=torch.complex128)})], {})  # safetensors has no such
    for saver in ranks:
        with pytest.raises(BaseException, match=r"rank 1 stopped, the log of a rank says why|complex128") as caught:
            saver.wait()
        assert saver.rank == 1 or isinstance(caught.value, OSError)
    assert saved_steps(tmp_path) == []
    for saver in ranks:
        save(saver, 100)
    for saver in ranks:
        saver.wait()
    check(newest(tmp_path))


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer-00000.safetensors", "manifest.json"])
def test_damage_is_found_and_named_and_the_step_before_is_taken(file, tmp_path, capsys) -> None:
    path = saved(tmp_path, 100, 200) / "step_000200" / file
    data = path.read_bytes()
    for at in random.Random(0).sample(range(len(data)), 10):
        flipped = data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :]
        for damaged in (flipped, data[:at], data + b"}"):
            path.write_bytes(damaged)
            checkpoint = newest(tmp_path)
            assert checkpoint.step == 100, at
            assert f"skipped step 200: {path.parent}" in capsys.readouterr().out
    check(checkpoint)
    path.write_bytes(b"[" * 100_000)  # nested too deeply to be read
    assert newest(tmp_path).step == 100
    path.unlink()
    assert newest(tmp_path).step == 100
    with pytest.raises(ValueError, match=re.escape(f"{path.parent} cannot be read")):
        load(tmp_path, 200)
    # A model that is only read does without the optimizer.
    if file.startswith("optimizer"):
        found = load(tmp_path, 200, optimizer=False)
        assert found.model_tensors().keys() == checkpoint.model_tensors().keys()
    else:
        with pytest.raises(ValueError, match=re.escape(f"{path.parent} cannot be read")):
            load(tmp_path, 200, optimizer=False)


def test_a_model_without_its_optimizers_files_is_read_and_starts_no_warm_run(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(tmp_path))
    [path] = saved(tmp_path / "base_train/d1", 100).glob("step_*")
    assert verified("base_train", "d1", optimizer=True).step == 100
    for file in path.glob("optimizer-*"):
        file.unlink()
    assert verified("base_train", "d1").step == verified("base_train", "d1", 100).step == 100
    with pytest.raises(ValueError, match=r"d1 has no intact optimizer state to start with: give --no-warm-start$"):
        verified("base_train", "d1", optimizer=True)
    with pytest.raises(ValueError, match=r"there is no model in .*d2: python -m scripts\.base_train makes one$"):
        verified("base_train", "d2", optimizer=True)


@pytest.mark.gpu
def test_a_copy_from_the_gpu_is_of_the_moment_of_the_call(tmp_path) -> None:
    tensor, saver = torch.zeros(1 << 24, device="cuda"), Saver(tmp_path)
    for step in range(1, 4):
        for _ in range(50):  # work that is queued before the copy
            tensor += 1
        saver.save(step, {"a": tensor}, [("a", {"m": tensor})], record_of(step))
        tensor += 1000
        tensor -= 1000
    saver.wait()
    for step in range(1, 4):
        checkpoint = load(tmp_path, step)
        for read in (checkpoint.model_tensors()["a"], checkpoint.optimizer_state("a")["m"]):
            assert read.unique().tolist() == [50 * step]
    # What was gathered for it alone is given back before its copy is done, and the memory used again.
    gathered = ((name, {"m": tensor + number}) for number, name in enumerate("abcd"))
    with Saver(tmp_path) as saver:
        saver.save(4, {}, gathered, record_of(4))
        torch.zeros_like(tensor)
    read = [load(tmp_path, 4).optimizer_state(name)["m"].unique().tolist() for name in "abcd"]
    assert read == [[150], [151], [152], [153]]


def test_kill_9_after_anything_a_save_does(tmp_path, python) -> None:
    done = python(str(ROOT / "tests/checkpoint_crashes.py"), str(tmp_path), PYTHONPATH=str(ROOT))
    points = [int(number) for number in re.findall(r"points (\d+)", done.stdout)]
    *saves, amendment = points
    assert len(saves) == 3
    assert min(saves) >= 20
    assert amendment >= 3  # half of the new manifest, all of it, its name


def test_all_is_synced_before_it_gets_its_name(tmp_path, monkeypatch) -> None:
    """A power cut loses what was not synced, so the order counts: files, their folder, rename, the folder above."""
    done, plain_sync, plain_rename = [], os.fsync, os.rename

    def sync(handle) -> None:
        done.append(Path(os.readlink(f"/proc/self/fd/{handle}")).name)
        plain_sync(handle)

    def rename(old, new) -> None:
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


@contextmanager
def full_disk():
    """To the code that writes: no file may be larger than 1,000 bytes."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_save_that_fails_is_told_at_once_and_the_next_one_tries_again(tmp_path, capfd) -> None:
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
    assert saved_steps(tmp_path) == [200]


def in_turn(*works) -> None:
    """Do what ranks do at the same time."""
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_the_record_of_the_last_step_is_replaced_and_its_files_stay(tmp_path, ranks) -> None:
    for saver in ranks:
        save(saver, 100)
    in_turn(*(lambda saver=saver: saver.amend(amended(100)) for saver in ranks))  # waits for the files too
    checkpoint = load(tmp_path, 100)
    assert checkpoint.manifest["loop"] == amended(100)["loop"]
    assert_close(checkpoint.model_tensors(), model_of(100), atol=0, rtol=0)
    before = (checkpoint.path / "model.safetensors").stat().st_ino
    in_turn(*(lambda saver=saver: saver.amend(record_of(100)) for saver in ranks))
    assert (checkpoint.path / "model.safetensors").stat().st_ino == before
    check(load(tmp_path, 100))
    assert names(checkpoint.path) == {"manifest.json", "model.safetensors", *optimizer_files(2)}


def test_a_record_is_replaced_behind_its_save_while_training_goes_on(tmp_path, ranks) -> None:
    for step in (100, 200):
        for saver in ranks:
            save(saver, step)  # waits for what came before
            record = amended(step)
            saver.amend(record, wait=False)
            record["loop"] = None  # what the caller does with it afterwards changes nothing
    for saver in ranks:
        saver.wait()
    for step in (100, 200):
        checkpoint = load(tmp_path, step)
        assert checkpoint.manifest["loop"] == amended(step)["loop"]
        assert_close(checkpoint.model_tensors(), model_of(step), atol=0, rtol=0)


def test_a_record_behind_a_save_that_fails(tmp_path) -> None:
    saver = Saver(tmp_path)
    with full_disk():
        save(saver, 100)
        saver.amend(amended(100), wait=False)
        with pytest.raises(OSError, match="step 100 is not saved"):
            saver.wait()
    save(saver, 200)
    saver.amend(amended(200), wait=False)
    saver.wait()
    assert load(tmp_path, 200).manifest["loop"] == amended(200)["loop"]


def optimizer_files(count: int):
    return {f"optimizer-{rank:05d}.safetensors" for rank in range(count)}


def test_a_record_of_a_step_that_could_not_be_saved(tmp_path) -> None:
    saver = Saver(tmp_path)
    with full_disk():
        save(saver, 100)
        with pytest.raises(OSError, match="step 100 is not saved"):
            saver.amend(amended(100))
    save(saver, 100)
    saver.wait()
    with full_disk(), pytest.raises(OSError, match="File too large"):
        saver.amend(amended(100) | {"data": "x" * 2000})
    check(load(tmp_path, 100))  # as it was
    # A manifest that somebody has damaged is not read: ranks would disagree about it.
    (tmp_path / "step_000100/manifest.json").write_text("{")
    saver.amend(amended(100))
    assert load(tmp_path, 100).manifest["loop"] == amended(100)["loop"]
    # Nor does a step come back that has lost its files.
    (tmp_path / "step_000100/model.safetensors").write_bytes(b"short")
    with pytest.raises(OSError, match="has changed"):
        saver.amend(record_of(100))
    shutil.rmtree(tmp_path / "step_000100")
    with pytest.raises(OSError, match="No such file"):
        saver.amend(record_of(100))
    assert saved_steps(tmp_path) == []


def test_copies_lie_in_few_blocks_whose_sizes_are_powers_of_two() -> None:
    """Pinned memory comes in such sizes: each copy of its own would take 1.8 times what it holds."""
    tables = [torch.full((277_000,), number, dtype=torch.uint8) for number in range(12)]
    matrices = [torch.randn(7, number) for number in range(1, 900)]
    tensors = [tensor for pair in zip_longest(tables, matrices) for tensor in pair if tensor is not None]
    copies = _Copies(smallest=32 << 10, largest=1 << 20)
    made = [copies.of(tensor) for tensor in tensors]
    for copy, tensor in zip(made, tensors, strict=True):
        assert torch.equal(copy, tensor)
    size = sum(tensor.nbytes for tensor in tensors)
    taken = sum(map(len, copies.blocks))
    assert all(len(block).bit_count() == 1 for block in copies.blocks)
    assert taken < 1.3 * size
    assert sum(1 << (tensor.nbytes - 1).bit_length() for tensor in tensors) > 1.5 * size
