"""A run of one side: it trains in the sandbox, and the model that comes out is scored by `judging`.

The sandbox has the side's code, the installed packages, the text to learn from and the tokenizer, all read-only, and
memory for its files. Neither the validation text nor the ledger nor the other side can be reached from it. What it
prints goes nowhere but into the reason of a failure; time and processor time are measured outside.
"""

import json
import math
import os
import re
import resource
import select
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from nanochat.cores import most_threads
from nanochat.errors import UserError
from nanochat.evals import sandbox
from nanochat.log import Record
from nanochat.paths import new_folder, read_sha256
from nanochat.trial.judging import Limits, judge
from nanochat.trial.scorer import (
    CPUS,
    ENDING,
    LOADING,
    SCORER,
    Broken,
    Missing,
    Refused,
    package_folders,
    printable,
)
from nanochat.trial.sides import Side

INSTALLED = ("numpy", "torch", "nanochat-rustbpe", "pyarrow", "tyro")  # packages that say where all are
TAG = "trial"  # of the run, in its sandbox
MEMORY = 2**36  # address space
FILES = 2**32  # bytes of all files that a run may have
PROCESSES = 128  # and threads; more where there are many cores
PROBES = 300  # places of the text that are asked for again
STRIDE = 128  # places that are asked for at once
SCORING = 1800.0  # seconds for a whole scoring, generous: those of an incumbent
CALLS = 16  # of the model, whose rows of text are hashed: a warm-up may have made the first
# What is measured of a run beside bits per byte; TIMES are what other work on the machine changes.
TIMES = ("seconds", "cpu_seconds", "scoring", "scoring_cpu_seconds")
METRICS = (*TIMES, "memory", "bytes")
LEAVING = 10.0  # seconds that a process may take to end once its files are here; they count
# Threads that wait spin briefly, as nobody in a sandbox sees how busy the machine is: on two quiet cores steps take a
# quarter less than with threads that sleep at once, and beside other work a tenth more (twice as much by default).
# A trial is on the CPU, also where a GPU is in sight.
WAITING = {"GOMP_SPINCOUNT": "3000", "CUDA_VISIBLE_DEVICES": "-1"}
HEAD = "<Q"  # the length of a JSON head; bytes of the files follow it

TRAIN = """
import fcntl, hashlib, json, os, pathlib, resource, runpy, shutil, struct, sys

def main() -> None:
    home = pathlib.Path.cwd() / "home"
    (home / "tok_train").mkdir(parents=True)
    shutil.copytree({tokenizer!r}, home / "tok_train" / "default")
    os.environ |= {{"NANOCHAT_BASE_DIR": str(home), **{variables!r}}}
    fcntl.flock = lambda *_: None  # nobody else writes here, and the sandbox has no locks
    sys.path[:0] = {paths!r}
    facts = {{}}
    # Of two ways to add up, that which gives the same sum each time: a keep has to repeat. Nothing is filled for it.
    import torch
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    import nanochat.models as models
    if hasattr(models, "initialize"):
        own = models.initialize
        def initialize(model: object, *more: object) -> None:
            own(model, *more)
            digest = hashlib.sha256()
            for name, weight in sorted(model.named_parameters()):
                digest.update(weight.detach().float().numpy().tobytes())
            facts["initial"] = digest.hexdigest()
            rows, calls = hashlib.sha256(), []
            def watch(_: object, given: tuple) -> None:
                if given and hasattr(given[0], "tolist"):  # other code may call it in another way
                    calls.append(None)
                    rows.update(repr(given[0].tolist()).encode())
                if len(calls) == {calls}:
                    facts["rows"] = rows.hexdigest()
                    watched.remove()
            watched = model.register_forward_pre_hook(watch)
        models.initialize = initialize
    sys.argv = ["scripts.base_train", *{flags!r}]
    try:
        runpy.run_module("scripts.base_train", run_name="__main__", alter_sys=True)
    except SystemExit as ending:
        if ending.code:
            raise
    facts["memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    run = home / "base_train" / {tag!r}
    files = sorted(path for path in run.rglob("*") if path.is_file())
    sizes = {{str(path.relative_to(run)): path.stat().st_size for path in files}}
    head = json.dumps({{"facts": facts, "sizes": sizes}}).encode()
    with open(WRITES, "wb") as out:
        out.write(struct.pack({head!r}, len(head)) + head)
        for path in files:
            with path.open("rb") as file:
                shutil.copyfileobj(file, out, 1 << 20)

main()
"""

# What the code says of flags that it cannot read, or cannot plan a run by.
PARSE = """
import sys

sys.path[:0] = {paths!r}
from nanochat.config import parse
from nanochat.errors import UserError
from scripts.base_train import Config

try:
    config = parse(Config, {flags!r})
    from nanochat.scaling import plan_run, row_choices

    plan = plan_run(config, {vocab_size})
    row_choices(config.device_batch_size, plan.total_batch_size, plan.model.max_seq_len, 1)
except UserError as error:
    print({complaint!r} + str(error))
except SystemExit:  # of --help
    print({complaint!r} + "there is a flag that trains nothing")
"""
COMPLAINT = "complaint: "

# The model of a side as a scorer.
MODEL = """
import os
import sys
from pathlib import Path
from typing import NamedTuple

PLACE = Path(__file__).parent
os.environ["NANOCHAT_BASE_DIR"] = str(PLACE / "home")
sys.path.insert(0, {code!r})

import numpy as np
import safetensors.torch
import torch

import nanochat.checkpoint
import nanochat.models



# The sandbox has no shared maps of files.
def load_file(path: Path) -> dict[str, torch.Tensor]:
    return safetensors.torch.load(Path(path).read_bytes())


nanochat.checkpoint.load_file = load_file

from nanochat.runtime import setup


class Entry:
    def __init__(self) -> None:
        torch.set_num_threads(1)  # a question is short
        self.setup = setup("cpu", "fp32")
        trained = nanochat.models.load_model("base_train", {tag!r}, -1, self.setup.__enter__())
        self.model, self.tokenizer = trained.model, trained.tokenizer
        special = set(self.tokenizer.special_tokens.values())
        core = self.tokenizer.core
        self.vocabulary = [b"" if id in special else core.token_bytes(id) for id in range(self.tokenizer.vocab_size)]
        self.context = self.model.config.max_seq_len - 1  # before it stands <|bos|>
        self.stride = min({stride}, self.context)

    def encode(self, text: bytes) -> list[int]:
        return self.tokenizer.encode(text.decode())

    @torch.inference_mode()
    def log_probs(self, ids: list[int], first: int) -> np.ndarray:
        logits = self.model(torch.tensor([[self.tokenizer.bos, *ids]]))[0, first:, : len(self.vocabulary)]
        return logits.float().log_softmax(-1).numpy()


def load() -> Entry:
    return Entry()
"""


class Failure(UserError):
    """A run that did not come to its end, or left no model that can be scored."""


class Stopped(Failure):
    """What the machine may have stopped, for other work. cpu_seconds: that its ended processes had used."""

    def __init__(self, reason: str, cpu_seconds: float = 0.0) -> None:
        super().__init__(reason)
        self.cpu_seconds = cpu_seconds


class Killed(Stopped):
    """A run that the kernel has killed, for want of memory or because it had used its processor time."""


class Late(Stopped):
    """A model that was not scored in time, as on a machine with other work."""


def complaint(code: Path, flags: Sequence[str], vocab_size: int, unsafe: bool) -> str:
    """Return why the code cannot plan a run by these flags of scripts.base_train; "" if it can, or if it does not say.

    The code is asked in the sandbox: it may be a commit with other flags than there are here.
    """
    packages = package_folders(INSTALLED)
    program = PARSE.format(paths=[str(code), *packages], flags=list(flags), vocab_size=vocab_size, complaint=COMPLAINT)
    limits = sandbox.Limits(seconds=LOADING, cpu_seconds=int(LOADING), memory=MEMORY, processes=most_threads(PROCESSES))
    said = sandbox.run_program(program, limits, unsafe, [str(code), *packages, CPUS])
    last = (said.output.strip().splitlines() or [""])[-1]
    return printable(last.removeprefix(COMPLAINT)) if said.passed and last.startswith(COMPLAINT) else ""


def train(
    side: Side, flags: Sequence[str], home: Path, text: Path, folder: Path, seconds: float, unsafe: bool
) -> Record:
    """Train a side in the sandbox, and write its checkpoint below `folder`; return what was measured.

    home: has the tokenizer. text: a folder of documents. seconds: after which the run has failed. Seconds are measured
    here, and the processor time of all its processes and their number outside of the sandbox; the run itself says how
    much memory it took, and the hashes of its first weights and rows ("" if the code has changed so much that they are
    not known).
    """
    packages = package_folders(INSTALLED)
    tokenizer = home / "tok_train" / "default"
    words = [*flags, f"--data=folder:{text}", f"--tag={TAG}"]
    program = TRAIN.format(
        tokenizer=str(tokenizer),
        variables=WAITING,
        paths=[str(side.code), *packages],
        flags=words,
        tag=TAG,
        head=HEAD,
        calls=CALLS,
    )
    most = most_threads(PROCESSES)
    limits = sandbox.Limits(
        seconds=seconds,
        cpu_seconds=int(seconds * most),
        memory=MEMORY,
        file_bytes=FILES,
        processes=most,
    )
    readable = [str(side.code), *packages, str(tokenizer), str(text), CPUS]
    began, used = time.monotonic(), _children()
    with sandbox.conversation(program, limits, unsafe, readable) as (_, listens, verdict):
        source = _Source(listens, began + seconds)
        try:
            head = _head(source)
            _receive(source, head.sizes, folder)
            ended = verdict(LEAVING)
            if not ended.passed:
                raise Failure("its process did not end when its run had")
            elapsed = time.monotonic() - began
        except (Failure, Refused):
            raise
        except EOFError:
            ended = verdict(ENDING)
            if ended.killed:
                raise Killed("its run was killed, as by a machine without memory for it") from None
            said = ended.output.strip().splitlines()
            raise Failure(f"its run failed: {printable(said[-1] if said else 'it printed nothing')}") from None
        except TimeoutError:
            raise Failure(f"its run did not end within {seconds:g} seconds") from None
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            raise Failure("its process sent something else than files") from None
    spent = ended.used or sandbox.Used(_children() - used, 0)  # without the sandbox nobody has watched
    return {
        "seconds": elapsed,
        "cpu_seconds": spent.cpu_seconds,
        "processes": spent.processes,
        "memory": head.memory,
        "initial": head.initial,
        "rows": head.rows,
        "bytes": sum(head.sizes.values()),
    }


class Head(NamedTuple):
    """What a run says of itself before its files."""

    sizes: dict[str, int]
    memory: float
    initial: str  # hash of the first weights
    rows: str  # hash of the first rows of text


def _head(source: "_Source") -> Head:
    """Return what a run says, if it is what a run would say; a ValueError or a TypeError otherwise."""
    [size] = struct.unpack(HEAD, source.read(struct.calcsize(HEAD)))
    if size > 2**20:
        raise ValueError
    said = json.loads(source.read(size))
    sizes = {str(name): int(count) for name, count in said["sizes"].items()}
    memory = float(said["facts"]["memory"])
    hashes = [str(said["facts"].get(name, "")) for name in ("initial", "rows")]
    if min(sizes.values(), default=0) < 0 or not math.isfinite(memory):
        raise ValueError
    if not all(re.fullmatch("[0-9a-f]{0,64}", one) for one in hashes):
        raise ValueError
    return Head(sizes, memory, *hashes)


def score(
    side: Side, home: Path, place: Path, documents: Sequence[str], unsafe: bool, seconds: float = SCORING
) -> Record:
    """Return a trained model's bits per byte, and what was checked.

    place: its folder, with the checkpoint. seconds: for all of it, after which it is Late.
    """
    scorer = MODEL.format(code=str(side.code), tag=TAG, stride=STRIDE)
    (place / SCORER).write_text(scorer, encoding="utf-8")
    tokenizer = place / "home" / "tok_train" / "default"
    if not tokenizer.exists():
        tokenizer.mkdir(parents=True)
        for path in (home / "tok_train" / "default").iterdir():
            if path.is_file():
                (tokenizer / path.name).write_bytes(path.read_bytes())
    for path in [place, *place.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    readable = [str(side.code), *package_folders(INSTALLED)]
    began, used = time.monotonic(), _children()
    try:
        limits = Limits(SCORING, unsafe, PROBES, learns=False, readable=readable, until=began + seconds)
        found = judge(place, documents, limits)
    except Missing as missing:
        kept = f"the reason is in {_keep_words(place, missing)}"
        raise Refused(missing.check, f"it needs what is not among its files ({missing.kind}): {kept}") from None
    except Refused as refused:
        if refused.check == "time":
            raise Late(f"its model was not scored within {seconds:.0f} seconds", _children() - used) from None
        raise
    except UserError as error:
        if isinstance(error, Broken) and error.killed:
            reason = "the scoring of its model was killed, as by a machine without memory for it"
            raise Killed(reason, _children() - used) from None
        raise Failure(f"its model could not be scored: the reason is in {_keep_words(place, error)}") from None
    elapsed = time.monotonic() - began
    if not math.isfinite(found.bpb):
        raise Refused("normalised", "a token of the text has no probability at all")
    cpu_seconds = found.cpu_seconds or _children() - used  # without the sandbox nobody has watched
    if elapsed > seconds:
        raise Late(f"its model was not scored within {seconds:.0f} seconds", cpu_seconds)
    if not found.ended:
        raise Late("its process did not end, or not without an error, when its model was scored", cpu_seconds)
    return {
        "scoring": elapsed,  # with loading
        "scoring_cpu_seconds": cpu_seconds,
        "scoring_processes": found.processes,
        "bpb": found.bpb,
        "sum_error": found.sum_error,
        "difference": found.difference,
    }


def _keep_words(place: Path, error: UserError) -> Path:
    """Write what a scorer's process has said, and return the file: its words may hold the text, and no answer does."""
    path = place.with_name(f"{place.name}.txt")  # beside the checkpoint, which is removed
    path.write_text(str(error), encoding="utf-8")
    return path


class _Source:
    """A pipe that is read up to a moment."""

    def __init__(self, descriptor: int, until: float) -> None:
        self._descriptor = descriptor
        self._until = until

    def read(self, size: int) -> bytes:
        """Return so many bytes; EOFError if the other side ends before, TimeoutError if it takes too long.

        Any other OSError is a fault of this side, as those of writing are.
        """
        parts = []
        while size:
            left = self._until - time.monotonic()
            if left <= 0 or not select.select([self._descriptor], [], [], left)[0]:
                raise TimeoutError
            part = os.read(self._descriptor, min(size, 1 << 20))
            if not part:
                raise EOFError
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


def _receive(source: _Source, sizes: dict[str, int], folder: Path) -> None:
    """Write the files that a run sends, and nothing outside the folder."""
    if sum(sizes.values()) > FILES or len(sizes) > 1000:
        raise Failure(f"its files have more than {FILES:,} bytes")
    for name in sizes:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise Refused("files", f"it names a file outside its folder, {printable(name)}")
    folders = {str(above) for name in sizes for above in Path(name).parents}  # with "."
    for name in sizes:
        if name in folders or not _is_plain(name):
            raise Failure(f"it names a file that cannot be written, {printable(name)}")
    with new_folder(folder) as part:
        for name, size in sizes.items():
            path = part / "home" / "base_train" / TAG / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                while size:
                    block = source.read(min(size, 1 << 24))
                    file.write(block)
                    size -= len(block)


def _is_plain(name: str) -> bool:
    """Whether a file may have this name on any system: what it cannot have is the run's fault, not the disk's."""
    words = name.encode(errors="replace").split(b"/")
    return name.isprintable() and name == str(Path(name)) and len(name) <= 500 and max(map(len, words)) <= 200


def _children() -> float:
    """Return the processor time of all processes that were started here and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def weights_hash(place: Path) -> str:
    """Return the hash of the model that a run has left."""
    found = sorted(filter(Path.is_file, (place / "home" / "base_train" / TAG).rglob("model.safetensors")))
    if not found:
        raise Failure("its run left no model")
    return read_sha256(found[-1])
