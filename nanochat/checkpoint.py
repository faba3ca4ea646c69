"""Checkpoints: written whole or not at all, in the background; verified when read; free of the number of ranks.

A step's folder holds the model, optimizer files of whole parameters each, and a manifest, written last, which maps
parameters to files and has every file's size and hash. `latest` is a link for people; readers verify and choose.
"""

import fcntl
import hashlib
import json
import os
import random
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from nanochat.log import print0
from nanochat.outcome import versions
from nanochat.paths import publish_folder, read_sha256, write_json

MODEL, MANIFEST = "model.safetensors", "manifest.json"
RECORD = {"stage", "parent", "config", "data", "tokenizer", "loop", "source", "rng"}  # what a run tells of itself
BLOCK = 16 << 20  # bytes hashed and written at a time
PATIENCE = 3600  # seconds that ranks wait for each other's writing
POLL = 0.05  # seconds between looks for another rank's answer
DTYPES = "F64 F32 F16 BF16 I64 I32 I16 I8 U8 BOOL".split()  # as safetensors writes them

# ---- reading ----


@dataclass(frozen=True)
class Checkpoint:
    """One step of a run on disk. manifest: the run's record, `optimizer` (parameter -> file), `files`, `versions`."""

    path: Path
    step: int
    manifest: dict[str, Any]

    def model_tensors(self, device: str = "cpu") -> dict[str, torch.Tensor]:
        return load_file(self.path / MODEL, device)

    def optimizer_state(self, name: str) -> dict[str, torch.Tensor]:
        """What the optimizer keeps of one parameter: state name -> tensor, on the CPU."""
        if name not in self.manifest["optimizer"]:
            raise ValueError(f"{self.path} has no optimizer state of {name}: it is of another model or optimizer")
        with safe_open(self.path / self.manifest["optimizer"][name], "pt") as file:
            keys = [key.rpartition("/") for key in file.keys()]  # noqa: SIM118 (no dict: not iterable)
            return {state: file.get_tensor(f"{name}/{state}") for owner, _, state in keys if owner == name}


def load(folder: Path, step: int, hashes: bool = True) -> Checkpoint:
    """The checkpoint of one step; ValueError says what is wrong with it.

    hashes: read every file and compare its hash, which one rank has to; the others can trust the step it chose.
    """
    path = _home(folder, step)
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        sound = manifest.pop("sha256") == _seal(manifest) and manifest["step"] == step
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise ValueError(f"{path / MANIFEST} cannot be read ({error!r})") from error
    if not sound:
        raise ValueError(f"{path / MANIFEST} is damaged or of another step")

    def fault(name: str) -> str:
        file, about = path / name, manifest["files"][name]
        try:
            if (size := file.stat().st_size) != about["size"]:
                return f"{file} has {size:,} bytes and not {about['size']:,}"
            return f"{file} is damaged" if hashes and read_sha256(file) != about["sha256"] else ""
        except OSError as error:
            return f"{file} cannot be read ({error.strerror})"

    with ThreadPoolExecutor(8) as pool:  # hashing lets other threads run
        if faults := [found for found in pool.map(fault, manifest["files"]) if found]:
            raise ValueError(", ".join(faults))
    return Checkpoint(path, step, manifest)


def newest(folder: Path) -> Checkpoint | None:
    """The last step of a run that is whole; what is skipped is printed with the reason."""
    for step in reversed(steps(folder)):
        try:
            return load(folder, step)
        except ValueError as fault:
            print0(f"checkpoint: skipped step {step:,}: {fault}")
    return None


def steps(folder: Path) -> list[int]:
    """The steps that have a checkpoint here, in order; nothing is verified."""
    names = (re.fullmatch(r"step_(\d{6,})", path.name) for path in folder.glob("step_*"))
    return sorted(int(name[1]) for name in names if name)


def _home(folder: Path, step: int) -> Path:
    return folder / f"step_{step:06d}"


def _seal(manifest: dict[str, Any]) -> str:
    """The hash by which a manifest vouches for itself."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


# ---- writing ----


class Saver:
    """Saves a run's checkpoints while it goes on: `save` takes a copy, a thread writes and publishes it.

    Every rank has one and calls `save` at the same steps. Their threads speak through `store` (torch.distributed's, if
    there are more ranks than one), never through collectives, which belong to training. keep_last: so many newest steps
    stay (0: all); keep_every: its multiples stay too. The folder is of this run alone (see `hold`), seen by all ranks.
    """

    def __init__(self, folder: Path, rank=0, world_size=1, keep_last=0, keep_every=0, store: Any = None):
        assert store is not None or world_size == 1, "ranks need a store to agree through"
        assert min(keep_last, keep_every) >= 0, (keep_last, keep_every)
        self.folder, self.rank, self.world_size = folder, rank, world_size
        self.keep_last, self.keep_every = keep_last, keep_every
        self.saved: int | None = None  # the last step that this object published
        self._store = store or torch.distributed.HashStore()
        # Ranks make and use their savers alike, so these counts agree on all of them, and no key is used twice.
        self._key, self._saves = f"{folder}/{self._store.add(f'{folder}/savers of rank {rank}', 1)}", 0
        self._job: Future | None = None

    def save(
        self, step: int, model_tensors: dict[str, torch.Tensor], optimizer_tensors: Iterable, record: dict[str, Any]
    ) -> None:
        """Copy all of it and return; waits for the save before it. If that one failed, this one is waited for as well.

        model_tensors, and record, which is JSON with at least the keys RECORD, count on rank 0. optimizer_tensors:
        (name, states) of the parameters this rank is to write, each is written by one rank; they may be gathered on
        the way. A step that this object saved is left alone.
        """
        failed = False
        try:
            self.wait()
        except OSError:  # which was said; by now there may be room
            failed = True
        if step == self.saved:
            return
        assert self.rank or record.keys() >= RECORD, RECORD - record.keys()
        file, owned = f"optimizer-{self.rank:05d}.safetensors", {}
        tensors: dict[str, dict[str, torch.Tensor]] = {file: {}}
        for name, states in optimizer_tensors:  # each is copied before the next is made: the device has room for few
            owned[name] = file
            tensors[file] |= {f"{name}/{key}": _copy(state) for key, state in states.items()}
        if self.rank == 0:
            tensors[MODEL] = {name: _copy(tensor) for name, tensor in model_tensors.items()}
        copied = torch.cuda.current_stream().record_event() if torch.cuda.is_initialized() else None
        self._saves += 1
        writer = ThreadPoolExecutor(1, "nanochat-checkpoint")
        self._job = writer.submit(self._run, step, tensors, owned, json.dumps(record), copied)
        writer.shutdown(wait=False)
        if failed:
            self.wait()

    def wait(self) -> None:
        """Until the last save is on disk. What went wrong is raised on every rank, as an OSError if it is the disk."""
        job, self._job = self._job, None
        if job is not None:
            job.result()

    def __enter__(self) -> "Saver":
        return self

    def __exit__(self, *exception: Any) -> None:
        try:
            self.wait()
        except OSError:
            if not any(exception):  # it was said, and must not hide what ends the run
                raise

    def _run(self, step: int, tensors: dict[str, dict], owned: dict[str, str], record: str, copied: Any) -> None:
        if copied:
            copied.synchronize()
        part = _home(self.folder, step).with_suffix(".tmp-part")
        size = sum(tensor.nbytes for file in tensors.values() for tensor in file.values())
        self._tell(f"{self.rank}", lambda: [_write_files(part, tensors), owned], size=size)
        if self.rank == 0:
            self._tell("published", lambda: self._publish(part, step, json.loads(record)))
        try:
            _value(self._hear("published"))
        except OSError as error:
            print0(f"checkpoint: {error}")  # at once: who waits for this job may come a thousand steps later
            raise
        self.saved = step

    def _publish(self, part: Path, step: int, record: dict[str, Any]) -> None:
        """When all ranks have written: the manifest, the final name, `latest`, and old steps go."""
        answers, home = [self._hear(f"{rank}") for rank in range(self.world_size)], _home(self.folder, step)
        try:
            manifest = record | {"step": step, "versions": versions(), "optimizer": {}, "files": {}}
            for files, owned in map(_value, answers):
                manifest["files"].update(files)
                manifest["optimizer"].update(owned)
            write_json(part / MANIFEST, manifest | {"sha256": _seal(manifest)})
            if home.exists():  # damaged, or of a run that was stopped there and goes on
                home.rename(home.with_suffix(".tmp-replaced"))
            publish_folder(part, home)
            link = self.folder / "latest.tmp-link"
            link.symlink_to(home.name)
            link.replace(self.folder / "latest")
            done = [old for old in steps(self.folder) if old <= step]
            for old in done[: -self.keep_last] if self.keep_last else []:
                if not self.keep_every or old % self.keep_every:  # renamed first: half of it must not look whole
                    _home(self.folder, old).rename(_home(self.folder, old).with_suffix(".tmp-old"))
            _sweep(self.folder)
        except OSError as error:
            _sweep(self.folder)
            check_free_space(self.folder, sum(answer["size"] for answer in answers), f"step {step:,}")
            raise OSError(f"step {step:,} is not saved: {error}") from error

    # What ranks tell each other, each thing once a save.

    def _tell(self, what: str, work: Callable[[], Any], **about: Any) -> None:
        answer = {"error": f"rank {self.rank} failed, its log says why"}
        try:
            answer = {"value": work()}
        except OSError as error:
            answer = {"error": str(error)}
        finally:  # whatever happened, the others must not wait for ever
            self._store.set(f"{self._key}/{self._saves}/{what}", json.dumps(answer | about))

    def _hear(self, what: str) -> dict[str, Any]:
        key = f"{self._key}/{self._saves}/{what}"
        deadline = time.monotonic() + PATIENCE
        while not self._store.check([key]):  # a blocking get would keep the store from training, and time out
            if time.monotonic() > deadline:
                raise OSError(f"a rank said nothing about the checkpoint for {PATIENCE} s, its log may say why")
            time.sleep(POLL)
        return json.loads(self._store.get(key))


def _value(answer: dict[str, Any]) -> Any:
    """What a rank's work gave; its OSError is raised on every rank that asks."""
    if "error" in answer:
        raise OSError(answer["error"])
    return answer["value"]


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """On the CPU; from a GPU into pinned memory, complete once the stream has come this far."""
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
    return copy.copy_(tensor.detach(), non_blocking=tensor.is_cuda)


def _write_files(folder: Path, files: dict[str, dict[str, torch.Tensor]]) -> dict[str, dict]:
    """Write safetensors files, on the disk when this returns; name -> size and hash.

    By hand: so they are hashed on the way, what the disk says comes as an OSError, and tests can stop after any write.
    """
    about = {}
    folder.mkdir(parents=True, exist_ok=True)
    for name, tensors in files.items():
        digest = hashlib.sha256()
        with open(folder / name, "wb") as file:
            for data in _safetensors(tensors):
                for at in range(0, len(data), BLOCK):
                    digest.update(data[at : at + BLOCK])
                    file.write(data[at : at + BLOCK])
            file.flush()
            os.fsync(file.fileno())
            about[name] = {"size": file.tell(), "sha256": digest.hexdigest()}
    return about


def _safetensors(tensors: dict[str, torch.Tensor]) -> Iterator[bytes | memoryview]:
    """The content of a safetensors file: length of the header, header, tensors."""
    names = sorted(tensors, key=lambda name: (-tensors[name].itemsize, name))  # so each is aligned to its items
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name in names:
        tensor, begin = tensors[name], end
        dtype = str(tensor.dtype).removeprefix("torch.")  # bfloat16 -> BF16, int64 -> I64, bool -> BOOL
        dtype = dtype.replace("float", "F").replace("uint", "U").replace("int", "I").upper()
        assert dtype in DTYPES, f"{name} is {tensor.dtype}"
        end += tensor.nbytes
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for name in names:
        yield memoryview(tensors[name].reshape(-1).view(torch.uint8).numpy())


# ---- the folder of a run ----


def check_free_space(folder: Path, needed: int, what: str = "a checkpoint") -> None:
    """OSError that says how much is missing, where `needed` bytes do not fit."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if (free := shutil.disk_usage(there).free) < needed:
        need, have, missing = (f"{size / 1e6:,.1f} MB" for size in (needed, free, needed - free))
        raise OSError(f"{folder} has no room for {what}: it takes {need}, {have} are free, {missing} are missing")


@contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Keep a run's folder from other runs, until this process ends at the latest; ValueError if one has it.

    First it puts in order what a process that was killed has left half done there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"another run is at work in {folder}: wait for its end, or take another --tag") from None
        except OSError as error:  # some shared file systems have no locks
            print0(f"{folder} cannot be locked ({error}): see that no other run uses it")
        _sweep(folder)
        yield


def _sweep(folder: Path) -> None:
    """Remove what has no final name: of saves that died, of steps that are not kept.

    A step that was to be replaced, and was not, gets its name back.
    """
    for stale in (*folder.glob("step_*.tmp-*"), *folder.glob("latest.tmp-*")):
        if stale.suffix == ".tmp-replaced" and not (home := stale.with_suffix("")).exists():
            stale.rename(home)
        elif stale.is_symlink():
            stale.unlink()
        else:
            shutil.rmtree(stale, ignore_errors=True)


# ---- random numbers ----


def rng_state() -> dict[str, str]:
    """The state of this process's generators: torch's on CPU and CUDA device, Python's, numpy's."""
    kind, keys, *rest = np.random.get_state()
    state = {"python": random.getstate(), "numpy": [kind, keys.tolist(), *rest], "cpu": torch.get_rng_state().tolist()}
    if torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state().tolist()
    return {name: json.dumps(value) for name, value in state.items()}  # as lists they were thousands of lines


def set_rng_state(texts: dict[str, str]) -> None:
    """Go on where `rng_state` was, on the devices there are."""
    state = {name: json.loads(text) for name, text in texts.items()}
    version, keys, gauss = state["python"]
    random.setstate((version, tuple(keys), gauss))
    np.random.set_state(tuple(state["numpy"]))
    torch.set_rng_state(torch.tensor(state["cpu"], dtype=torch.uint8))
    if "cuda" in state and torch.cuda.is_initialized():
        torch.cuda.set_rng_state(torch.tensor(state["cuda"], dtype=torch.uint8))
