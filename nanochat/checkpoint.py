"""Checkpoints: written whole or not at all, in the background; verified when read; the same for any number of ranks.

A step's folder holds the model, optimizer files with whole parameters, and a manifest, written last, with each
parameter's file and each file's size and hash. Readers verify and choose.
"""

import json
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed import HashStore, PrefixStore, Store

from nanochat.environment import versions
from nanochat.errors import UserError
from nanochat.log import Record, print0
from nanochat.paths import (
    hold_folder,
    publish_folder,
    read_json,
    read_sha256,
    saved_steps,
    step_dir,
    sync,
    text_sha256,
    write_json,
)

# Both are written by rank 0.
MODEL = "model.safetensors"
MANIFEST = "manifest.json"
RECORD = {"stage", "parent", "config", "data", "tokenizer", "loop", "source"}  # keys in every manifest
SMALLEST_BLOCK = 32 << 20  # bytes, for copies of tensors
LARGEST_BLOCK = 1 << 30  # unless a tensor is larger
ALIGNMENT = 64  # bytes
POLL_SECONDS = 0.05  # between two checks for another rank's result

# ---- reading ----


@dataclass(frozen=True)
class Checkpoint:
    """A saved step. manifest: the run's record, `optimizer` (parameter → file), `files`, `versions`."""

    path: Path
    step: int
    manifest: Record

    def model_tensors(self) -> dict[str, Tensor]:
        return load_file(self.path / MODEL)

    @contextmanager
    def reading_weights(self) -> Iterator[Callable[[str], Tensor]]:
        """Yield a function from a parameter's name to its values; they are read one at a time."""
        with safe_open(self.path / MODEL, "pt") as file:
            yield file.get_tensor

    def optimizer_state(self, name: str) -> dict[str, Tensor]:
        """Return a parameter's optimizer states by name, on the CPU."""
        with safe_open(self.path / self.manifest["optimizer"][name], "pt") as file:
            states = {}
            for key in file.keys():  # noqa: SIM118 (no dict: not iterable)
                owner, _, state = key.rpartition("/")  # a parameter's name may have slashes too
                if owner == name:
                    states[state] = file.get_tensor(key)
            return states


def load(folder: Path, step: int, optimizer: bool = True) -> Checkpoint:
    """Return a step's checkpoint after reading every file and comparing the hash; a UserError names the damage.

    optimizer: False for a model that is only read; the files of the optimizer may be gone then.
    """
    found = load_manifest(folder, step)
    try:
        with ThreadPoolExecutor(8) as pool:  # hashing lets other threads run
            files = found.manifest["files"]
            unread = set() if optimizer else set(found.manifest["optimizer"].values())
            hashes = {name: pool.submit(read_sha256, found.path / name) for name in files if name not in unread}
        damaged = [name for name, sha256 in hashes.items() if sha256.result() != files[name]["sha256"]]
    except (ValueError, KeyError, OSError, RecursionError) as error:
        raise UserError(f"{found.path} cannot be read ({error})") from error
    if damaged:
        raise UserError(f"{found.path} is damaged: {', '.join(damaged)}")
    return found


def load_manifest(folder: Path, step: int) -> Checkpoint:
    """Return a step's checkpoint after reading its manifest alone; other files may be missing."""
    path = step_dir(folder, step)
    try:
        manifest = read_json(path / MANIFEST)
        is_intact = manifest.pop("sha256") == manifest_hash(manifest)
    except (ValueError, KeyError, OSError, RecursionError) as error:
        raise UserError(f"{path} cannot be read ({error})") from error
    if not is_intact:
        raise UserError(f"{path} is damaged: {MANIFEST}")
    return Checkpoint(path, step, manifest)


def newest(folder: Path, read: Callable[[Path, int], Checkpoint] = load) -> Checkpoint | None:
    """Return a run's last intact checkpoint; print the reason for each step that is skipped.

    read: `load`, with or without the optimizer, or load_manifest for a plan.
    """
    for step in reversed(saved_steps(folder)):
        try:
            return read(folder, step)
        except ValueError as damage:
            print0(f"checkpoint: skipped step {step:,}: {damage}")
    return None


def to_resume(folder: Path, resume: int | str) -> Checkpoint | None:
    """Return the checkpoint that a run resumes from; None for a new run.

    resume: "auto" for the newest that is intact, a step, or "never". What is given up is set aside by the run, once it
    begins: a command that is refused changes nothing.
    """
    if resume == "never":
        return None
    saved = saved_steps(folder)
    if isinstance(resume, int):
        if resume not in saved:
            raise UserError(f"{folder} has no checkpoint of step {resume}, only {saved}: give --resume one of these")
        found = load(folder, resume)
    elif saved:
        found = newest(folder)
    else:
        return None
    if found is None:
        raise UserError(f"{folder} has checkpoints, but none is intact: --resume=never starts again")
    if "merge" in found.manifest:
        raise UserError(f"{folder} holds a merge, which does not train on: start from it with --model-tag")
    if not found.manifest["optimizer"]:
        raise UserError(
            f"{folder} holds an imported model, which does not train on: use another --tag, and start from it with"
            " --model-tag and --no-warm-start"
        )
    return found


def learned_from(manifest: Record) -> list[list[str]]:
    """Return [stage, name] for each text and task that a model and those before it learned from."""
    data = manifest["data"]
    # Pretraining has a record for each file; later stages have one with tasks, merges and imports have none. A merge
    # has the rows of its models.
    names = [file["source"] for file in data] if isinstance(data, list) else (data or {}).get("tasks", {})
    before = manifest.get("learned", [])
    if not names and (data or not before):
        names = ["not recorded"]
    return [[manifest["stage"], name] for name in dict.fromkeys(names)] + before


def manifest_hash(manifest: Record) -> str:
    return text_sha256(json.dumps(manifest, sort_keys=True))  # key order must not matter


# ---- writing ----


class NamedTensors(Protocol):
    """Weights by name: a dict, or sharded ones that are gathered while they are read."""

    def items(self) -> Iterable[tuple[str, Tensor]]: ...


@dataclass
class Saver(AbstractContextManager):
    """Saves checkpoints while a run trains: `save` copies the state, a thread writes and publishes the copy.

    Every rank has a saver and calls `save` at the same steps. Their threads exchange results through `store`
    (torch.distributed's; needed with more ranks than one), never through collectives, which belong to training.
    keep_last: newest steps to keep, 0 for all. No other run uses the folder (see `hold`), and all ranks see it.
    """

    folder: Path
    rank: int = 0
    world_size: int = 1
    keep_last: int = 0
    store: Store | None = None

    def __post_init__(self) -> None:
        self._store = self.store or HashStore()
        self._saves = 0
        self.step = -1  # the last saved one; in a thread its files may still be written
        self._job: Future[None] | None = None  # the write under way
        self._manifest: Record = {}  # on rank 0: of the last step that was saved

    def save(
        self,
        step: int,
        model_tensors: "NamedTensors",
        optimizer_tensors: Iterable[tuple[str, Mapping[str, Tensor]]],
        record: Record,
        given: bool = False,
    ) -> None:
        """Copy a state, start to write the copy, and return; first waits for the save before.

        If the save before failed (a full disk), this one is waited for as well. model_tensors and record (JSON, with
        the keys in RECORD) count on rank 0. optimizer_tensors: (name, states) for the parameters that this rank writes;
        each parameter is written by one rank. Both may be gathered on the way. A step that is saved is replaced.
        given: nobody changes model_tensors, which are on the CPU, so they are not copied.
        """
        failed = False
        try:
            self.wait()
        except OSError:  # printed when it happened; there may be room now
            failed = True
        self.step = step
        copies = _Copies()
        owned = []
        states = {}
        for name, each in optimizer_tensors:  # copied before the next is gathered: the device has room for few
            owned.append(name)
            states |= {f"{name}/{key}": copies.of(tensor) for key, tensor in each.items()}  # one flat file
        files = {_optimizer_file(self.rank): states}
        keep = (lambda tensor: tensor) if given else copies.of
        weights = {name: keep(tensor) for name, tensor in model_tensors.items() if self.rank == 0}
        if self.rank == 0:
            files[MODEL] = weights
        # The copies are queued; the writing thread waits until they are complete.
        copied = torch.cuda.current_stream().record_event() if torch.cuda.is_initialized() else None
        self._saves += 1
        # No key is used twice.
        self._results = PrefixStore(f"{self.folder}/{self._saves}", self._store)
        self._begin(partial(self._write, step, files, owned, deepcopy(record), copied))
        if failed:
            self.wait()

    def amend(self, record: Record, wait: bool = True) -> None:
        """Give the last saved step another record, behind its save. Its tensors have not changed since.

        wait: until it is on disk; an OSError on every rank if that save failed, or this; it was printed.
        """
        if wait:
            self.wait()
            self._amend(record)
        else:
            self._begin(partial(self._amend, deepcopy(record), self._job))

    def _begin(self, work: Callable[[], None]) -> None:
        """Let a thread of its own work: an idle one would keep the process from ending."""
        writer = ThreadPoolExecutor(1, "nanochat-checkpoint")
        self._job = writer.submit(work)
        writer.shutdown(wait=False)

    def _amend(self, record: Record, save: "Future[None] | None" = None) -> None:
        """Replace the record of a step; save: to be awaited first, and its failure is raised."""
        if save:
            save.result()
        self._saves += 1
        self._results = PrefixStore(f"{self.folder}/{self._saves}", self._store)
        if self.rank == 0:
            self._post("amended", lambda: self._replace_record(record))
        try:
            self._result("amended")
        except OSError as error:
            print0(f"checkpoint: step {self.step:,} keeps its earlier record: {error}")
            raise

    def _replace_record(self, record: Record) -> None:
        # What was written is known, and not read again: whatever is wrong with the file, ranks must agree about it.
        manifest = self._manifest | record
        home = step_dir(self.folder, self.step)
        for name, about in manifest["files"].items():
            if (home / name).stat().st_size != about["size"]:  # or an OSError, if somebody has removed it
                raise OSError(f"{home / name} has changed")
        write_json(home / MANIFEST, manifest | {"sha256": manifest_hash(manifest)})

    def wait(self) -> None:
        """Wait until the last save is on disk. Its failure is raised on every rank, a full disk as an OSError."""
        job, self._job = self._job, None  # a failure is raised once
        if job is not None:
            job.result()

    def __exit__(self, *exception: object) -> None:
        self.wait()

    # What follows runs in the writing thread; `save` does not go on to the next save before it ends. A collective would
    # time out while a disk is slow, and belongs to training.

    def _write(
        self,
        step: int,
        files: dict[str, dict[str, Tensor]],
        owned: list[str],
        record: Record,
        copied: "torch.cuda.Event | None",
    ) -> None:
        if copied:
            with torch.cuda.device(copied.device):  # a new thread has the machine's first GPU, not that of its rank
                copied.synchronize()  # else half-copied tensors would be written
        part = step_dir(self.folder, step).with_suffix(".tmp-part")  # all ranks write into this folder
        self._post(f"rank {self.rank}", lambda: [_write_files(part, files), owned])
        if self.rank == 0:
            self._post("published", lambda: self._publish(part, step, record))
        try:
            self._result("published")
        except OSError as error:
            print0(f"checkpoint: {error}")  # now: the run may wait for this job a thousand steps later
            raise

    def _publish(self, part: Path, step: int, record: Record) -> None:
        """Wait for all ranks, write the manifest, give the folder its name, and remove the steps that are not kept."""
        manifest: Record = record | {"step": step, "versions": versions(), "optimizer": {}, "files": {}}
        try:
            for rank in range(self.world_size):
                files, owned = self._result(f"rank {rank}")
                manifest["files"] |= files
                manifest["optimizer"] |= dict.fromkeys(owned, _optimizer_file(rank))
            write_json(part / MANIFEST, manifest | {"sha256": manifest_hash(manifest)})
            home = step_dir(self.folder, step)
            if home.exists():
                home.rename(home.with_suffix(".tmp-replaced"))
            publish_folder(part, home)  # from here on readers see the checkpoint
            self._manifest = manifest
            # Later steps, which were damaged when the run resumed, are left alone.
            earlier = [old for old in saved_steps(self.folder) if old <= step]
            surplus = earlier[: -self.keep_last] if self.keep_last else []
            for old in surplus:  # renamed first: a folder that is half removed must not look like a checkpoint
                step_dir(self.folder, old).rename(step_dir(self.folder, old).with_suffix(".tmp-old"))
        except OSError as error:
            raise OSError(f"step {step:,} is not saved: {error}") from error
        finally:
            _sweep(self.folder)

    def _post(self, name: str, work: Callable[[], Any]) -> None:
        """Run `work` and put its JSON value, or its OSError's text, into the store for all ranks to read.

        Any other failure is raised here; the other ranks learn about it, so that none waits for ever.
        """
        answer = None, f"{name} stopped, the log of a rank says why"
        try:
            answer = work(), None
        except OSError as error:
            answer = None, str(error)
        finally:
            self._results.set(name, json.dumps(answer))

    def _result(self, name: str) -> Any:
        """Return the value posted under a name in this save, once it is there; raise OSError if that work failed.

        A rank that can post nothing is dead, and its launcher ends the others.
        """
        while not self._results.check([name]):  # a blocking get would keep the store from other threads
            time.sleep(POLL_SECONDS)
        value, error = json.loads(self._results.get(name))
        if error is not None:
            raise OSError(error)
        return value


def _optimizer_file(rank: int) -> str:
    return f"optimizer-{rank:05d}.safetensors"


class _Copies:
    """Makes copies on the CPU; from a GPU, in pinned memory and complete once the stream has come this far.

    Pinned memory comes in powers of two: a table of 277 MB would take 512 MB. So copies lie side by side in blocks, and
    what a large one leaves free is filled by smaller ones.
    """

    def __init__(self, smallest: int = SMALLEST_BLOCK, largest: int = LARGEST_BLOCK) -> None:
        self.smallest = smallest
        self.largest = largest
        self.blocks: list[Tensor] = []  # of bytes
        self.used: list[int] = []  # bytes of each

    def of(self, tensor: Tensor) -> Tensor:
        tensor = tensor.detach()
        place = self._room(tensor.nbytes, pinned=tensor.is_cuda)
        return place.view(tensor.dtype).view(tensor.shape).copy_(tensor, non_blocking=tensor.is_cuda)

    def _room(self, size: int, pinned: bool) -> Tensor:
        """Return so many bytes, aligned for every dtype."""
        whole = -(-size // ALIGNMENT) * ALIGNMENT
        for number, (block, used) in enumerate(zip(self.blocks, self.used, strict=True)):
            if used + whole <= len(block) and block.is_pinned() == pinned:
                self.used[number] += whole
                return block[used : used + size]
        # Each is twice as large as the one before, as the number of copies is not known.
        usual = min(2 * len(self.blocks[-1]), self.largest) if self.blocks else self.smallest
        length = max(usual, 1 << (whole - 1).bit_length())
        self.blocks.append(torch.empty(length, dtype=torch.uint8, pin_memory=pinned))
        self.used.append(whole)
        return self.blocks[-1][:size]


def _write_files(folder: Path, files: dict[str, dict[str, Tensor]]) -> dict[str, dict[str, int | str]]:
    """Write safetensors files, on the disk when this returns; name → size and hash."""
    folder.mkdir(parents=True, exist_ok=True)
    written = {}
    for name, tensors in files.items():
        path = folder / name
        try:
            save_file(tensors, path, {"format": "pt"})
        except SafetensorError as error:  # its only I/O error
            size = sum(tensor.nbytes for tensor in tensors.values())
            raise OSError(f"{path}, {size:,} bytes: {error}") from error
        sync(path)
        written[name] = {"size": path.stat().st_size, "sha256": read_sha256(path)}
    return written


# ---- a run's folder ----


def check_free_space(folder: Path, needed: int) -> None:
    """Raise an OSError where the `needed` bytes for a run's checkpoints do not fit."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        sizes = f"{needed / 1e6:,.1f} MB needed, {free / 1e6:,.1f} MB free"
        raise OSError(f"{folder} has no room for the checkpoints of this run: {sizes}")


@contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Keep other runs out of a run's folder until the block or the process ends; UserError if another run has it.

    Cleans up first after a process that was killed.
    """
    with hold_folder(folder):
        _sweep(folder)  # safe now: no other run is saving
        yield


def _sweep(folder: Path) -> None:
    """Remove unfinished saves, and steps that are not kept.

    A step that was to be replaced, and was not, gets its name back.
    """
    for stale in folder.glob("step_*.tmp-*"):
        home = stale.with_suffix("")
        if stale.suffix == ".tmp-replaced" and not home.exists():
            stale.rename(home)  # the replacing save did not end
        else:
            shutil.rmtree(stale, ignore_errors=True)


def set_aside(folder: Path, after: int = -1) -> None:
    """Rename the checkpoints after a step, so that no later resume chooses them; the next time they are replaced."""
    given_up = [step for step in saved_steps(folder) if step > after]
    if given_up or after < 0:
        (folder / "outcome.json").unlink(missing_ok=True)  # describes steps that are gone
    for step in given_up:
        # Not `step_…`: neither `saved_steps` nor `newest` sees the folder.
        kept = folder / f"given_up_step_{step:06d}"
        shutil.rmtree(kept, ignore_errors=True)
        step_dir(folder, step).rename(kept)
