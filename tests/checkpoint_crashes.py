"""Saves in children that are killed, one after each thing they do to the disk; prints how many points there were.

Argument: a folder. Before the save of step 200, which is killed, there is no checkpoint, that of step 100, or of 200.
"""

import builtins
import itertools
import multiprocessing
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch.testing import assert_close

from nanochat import checkpoint
from nanochat.checkpoint import RECORD, Checkpoint, Saver, hold, newest

PARAMETERS = [f"blocks.{i}.attn.{kind}.weight" for i in range(2) for kind in "qkv"] + ["embed.weight"]
PARAMETERS += ["a", "a/b"]  # a name that another begins with


def model_of(step: int):
    generator = torch.Generator().manual_seed(step)
    return {name: torch.randn(3, 5, generator=generator) for name in PARAMETERS}


def state_of(step: int, name: str):
    number = PARAMETERS.index(name)
    return {"step": torch.tensor(step), "momentum": torch.full((3, 5), step + number / 7, dtype=torch.bfloat16)}


def states_of(step: int, rank: int = 0, ranks: int = 1):
    return [(name, state_of(step, name)) for name in PARAMETERS[rank::ranks]]


def record_of(step: int):
    return dict.fromkeys(RECORD) | {"stage": "base_train", "loop": {"step": step, "loss": 1 / 3, "π": float("inf")}}


def amended(step: int):
    return record_of(step) | {"loop": {"step": step, "loss": 0.25}}


def save(saver: Saver, step: int) -> None:
    saver.save(step, model_of(step), states_of(step, saver.rank, saver.world_size), record_of(step))


def saved(folder: Path, *numbers: int, **options):
    with Saver(folder, **options) as saver:
        for number in numbers:
            save(saver, number)
    return folder


def check(checkpoint: Checkpoint, *also: dict) -> None:
    """A step that is whole; its record is the usual one, or one of `also`."""
    step = checkpoint.step
    assert_close(checkpoint.model_tensors(), model_of(step), atol=0, rtol=0)
    for name, state in states_of(step):
        assert_close(checkpoint.optimizer_state(name), state, atol=0, rtol=0)
    assert checkpoint.manifest["loop"] in [each["loop"] for each in (record_of(step), *also)]


def names(folder: Path):
    return {path.name for path in folder.iterdir()} - {"lock"}


CALLS = "fsync rename replace mkdir unlink rmdir".split()


class DyingFile:
    """A file open for writing, each write of which is two: half of the data, and the rest."""

    def __init__(self, file: Any, point: Callable[[], None]) -> None:
        self._file, self._point = file, point

    def write(self, data: Any):
        for half in (data[: len(data) // 2], data[len(data) // 2 :]):
            self._file.write(half)
            self._file.flush()
            self._point()
        return len(data)

    def __enter__(self):
        return self

    def __exit__(self, *exception: Any) -> None:
        self._file.close()

    def __getattr__(self, name: str):
        return getattr(self._file, name)


def die_after(act: int):
    """From now on, kill this process when it has done so many things to the disk; what it did is in the list."""
    done: list[str] = []

    def point(name: str) -> None:
        done.append(name)
        if len(done) == act:
            os.kill(os.getpid(), signal.SIGKILL)

    def dying(name: str, call: Callable):
        def then_die(*arguments: Any, **options: Any):
            result = call(*arguments, **options)
            point(name)
            return result

        return then_die

    for name in CALLS:
        setattr(os, name, dying(name, getattr(os, name)))
    plain_open = open

    def opening(path: Any, mode: str = "r", *arguments: Any, **options: Any):
        file = plain_open(path, mode, *arguments, **options)
        return DyingFile(file, lambda: point("write")) if set(mode) & set("wax+") else file

    def writing(tensors: dict[str, torch.Tensor], path: Path, metadata: dict[str, str]) -> None:
        """The file is there in part, at several lengths, before all of it is."""
        save_file(tensors, path, metadata)
        data = path.read_bytes()
        for part in range(5):
            with plain_open(path, "wb") as file:
                file.write(data[: part * len(data) // 4])
            point("write")

    builtins.open = opening
    checkpoint.save_file = writing
    return done


def save_step(folder: Path, step: int, act: int = 0) -> None:
    with hold(folder):
        saver = Saver(folder, keep_last=1)
        if act:
            die_after(act)
        save(saver, step)
        saver.wait()


def amend_step(folder: Path, step: int, act: int) -> None:
    """Save a step, and die while its record is replaced, as a run does after its last evaluations."""
    with hold(folder):
        saver = Saver(folder, keep_last=1)
        save(saver, step)
        saver.wait()
        die_after(act)
        saver.amend(amended(step))


def main(folder: Path, earlier: list[int], work: Callable[[Path, int, int], None] = save_step) -> None:
    torch.set_num_threads(1)
    template = folder.with_name(f"{folder.name}-template")
    template.mkdir()
    for step in earlier:
        save_step(template, step)
    for act in itertools.count(1):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(template, folder, symlinks=True)
        child = multiprocessing.get_context("fork").Process(target=work, args=(folder, 200, act))
        child.start()
        child.join()
        if child.exitcode == 0:
            break
        assert child.exitcode == -signal.SIGKILL, (act, child.exitcode)
        with hold(folder):  # as a run does before it looks
            found = newest(folder)
        assert (found and found.step) in {*(earlier or [None]), 200}, (act, found)
        assert work is save_step or found
        if found:
            check(found, *([amended(200)] if work is amend_step else []))
        save_step(folder, 300)
        found = newest(folder)
        assert found.step == 300, (act, found.step)
        check(found)
        assert names(folder) == {"step_000300"}, (act, names(folder))
    print("points", act - 1)


if __name__ == "__main__":
    for number, steps in enumerate(([], [100], [200])):
        main(Path(sys.argv[1], f"{number}"), steps)
    main(Path(sys.argv[1], "record"), [], amend_step)
