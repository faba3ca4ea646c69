"""Job runner: runs a list of steps; skips finished steps, resumes stopped ones, repeats changed ones.

A job has a folder with `plan.json` (all steps) and, for each step, a log and a record. A step is finished if the
record says so, command and input hashes are as recorded, and the `outcome.json` exists; printed text is never read.

From Python, `run_job` runs all steps, several at once if asked; jobs in different folders run side by side. speedrun.sh
runs one step a line: `python -m nanochat.jobs.runner --job=FOLDER --step=base_train --lock=9`.
"""

import fcntl
import hashlib
import json
import os
import re
import select
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from nanochat.config import Count, option, run
from nanochat.data import hub
from nanochat.log import duration, print0
from nanochat.outcome import ROOT, Outcome
from nanochat.paths import base_dir, stage_dir, write_json

POLL_SECONDS = 0.5  # between checks that the calling script is still there
ESCAPES = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")  # colours and cursor movements of a terminal
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True)
class Step:
    """A command in a job. A stage is named STAGE/TAG, like the folder below the base folder."""

    name: str
    command: list[str]  # module and flags that decide the result; a change repeats the step
    output: str = ""  # the written stage, with an outcome.json; empty: none, and the step always runs
    parents: list[str] = field(default_factory=list)  # stages with artifacts that the command reads
    data: str = ""  # text that the command reads, as in --data
    files: list[list] = field(default_factory=list)  # further inputs on the hub: [path, repo, revision]
    launch: list[str] = field(default_factory=list)  # words before the module (torchrun); a change repeats nothing
    options: list[str] = field(default_factory=list)  # flags without influence on the result
    skip: str = ""  # reason to leave the step out; empty: the step runs
    quiet: bool = False  # output goes to the log alone

    @property
    def words(self) -> list[str]:
        """The whole command line."""
        return [sys.executable, *self.launch, "-m", *self.command, *self.options]

    @property
    def outcome(self) -> Path:
        return base_dir() / self.output / "outcome.json"

    @property
    def is_done(self) -> bool:
        """True if the written stage is there; a step without a stage is never done."""
        return bool(self.output) and self.outcome.exists()


@dataclass(frozen=True)
class Job:
    """Steps in order, a step after its parents, with a folder for plan, logs and records."""

    kind: str  # with the tag, names the folder and the messages
    tag: str
    steps: list[Step]
    environment: dict[str, str] = field(default_factory=dict)  # variables for all steps
    resume: str = ""  # the command that resumes the job
    closing: list[str] = field(default_factory=list)  # lines to print after the last step
    settings: dict[str, Any] = field(default_factory=dict)  # choices of the planner, which a later plan keeps

    @property
    def folder(self) -> Path:
        return stage_dir(self.kind, self.tag)

    def step(self, name: str) -> Step:
        return next(step for step in self.steps if step.name == name)

    def save(self) -> None:
        write_json(self.folder / "plan.json", asdict(self))


def read_settings(folder: Path) -> dict[str, Any]:
    """Return the plan's settings from a folder; empty without a plan."""
    path = folder / "plan.json"
    saved = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    # Older plans keep their settings at the top level.
    return saved.get("settings", saved)


def load_job(folder: Path) -> Job:
    """Return the job saved in a folder."""
    saved = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    steps = [Step(**step) for step in saved.pop("steps")]
    return Job(steps=steps, **saved)


class StepFailed(Exception):
    """A step ended without a result. status: the exit status for the process that ran it."""

    def __init__(self, message: str, status: int):
        super().__init__(message)
        self.status = status


# ---- one process at a time ----


@contextmanager
def hold_job(job: Job) -> Iterator[int]:
    """Hold the job's lock; yields the file descriptor. A ValueError if another process holds the lock."""
    job.folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(job.folder / "lock", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        take_lock(lock, job)
        yield lock
    finally:
        os.close(lock)


def take_lock(lock: int, job: Job) -> None:
    """Lock an open file. The lock lasts until every process with an inherited descriptor has ended."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ValueError(
            f"{job.kind}: another process runs --tag={job.tag}: wait until it ends, or take another --tag"
        ) from None
    except OSError as error:
        # Some shared file systems cannot lock: warn and continue.
        print0(f"{job.kind}: cannot lock {job.folder} ({error}): make sure that nothing else runs --tag={job.tag}")


def archive(job: Job, step: Step) -> Path | None:
    """Move a step's stage into the job's archive and forget the record. Returns the new place; deletes no artifact."""
    record = job.folder / f"{step.name}.json"
    stage = base_dir() / step.output
    if not step.output or not stage.exists():
        record.unlink(missing_ok=True)
        return None
    with open(stage / "lock", "a") as lock:
        try:
            # A training process, perhaps started by hand, holds this lock.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ValueError(f"another run writes to {stage}: wait until it ends, or take another --tag") from None
        # The process number keeps two archives within one second apart.
        now = time.strftime("%Y%m%d-%H%M%S")
        place = job.folder / "archive" / f"{step.name}-{now}-{os.getpid()}"
        place.parent.mkdir(parents=True, exist_ok=True)
        stage.rename(place)
    # Last: after a crash before this line, the old record still asks for the archive.
    record.unlink(missing_ok=True)
    return place


# ---- records and inputs ----


def read_record(job: Job, step: Step) -> dict[str, Any]:
    """Return a step's record: command, inputs, seconds, finished, began; empty if the step never started."""
    path = job.folder / f"{step.name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def recorded_command(record: dict[str, Any]) -> list[str]:
    """Return the command in a record; records of older versions call it `words`."""
    return record.get("command") or record.get("words", [])


TEXT_INPUT = "the text"  # one hash of all files, also if there is one
_HASHING = threading.Lock()  # steps side by side share the file of hashes


def input_hashes(job: Job, step: Step) -> dict[str, str]:
    """Return the hash for every local input: parents' artifacts, text, data sets."""
    found = {}
    for parent in step.parents:
        outcome = base_dir() / parent / "outcome.json"
        if outcome.exists():
            artifacts = _load_outcome(outcome).artifacts
            found |= {f"{parent}/{name}": digest for name, digest in artifacts.items()}
    with _HASHING:
        for name, paths in _input_files(step).items():
            # Sorted: the order in which files are listed does not matter.
            digests = sorted(hash_files(job.folder / "hashes.json", paths))
            joined = hashlib.sha256("\n".join(digests).encode()).hexdigest()
            found[name] = joined if name == TEXT_INPUT else digests[0]
    return found


def hash_files(memory: Path, paths: Sequence[Path]) -> list[str]:
    """Return SHA-256 digests; a file is read again only if size or time differ from the entry in `memory`."""
    known = json.loads(memory.read_text(encoding="utf-8")) if memory.exists() else {}
    digests = []
    for path in paths:
        status = path.stat()
        # Shards are large: hashing them all takes minutes.
        stamp = [status.st_size, status.st_mtime_ns]
        *before, digest = known.get(str(path), [None])
        if before != stamp:
            digest = hub.sha256(path)
            known[str(path)] = [*stamp, digest]
        digests.append(digest)
    write_json(memory, known)
    return digests


def _input_files(step: Step) -> dict[str, list[Path]]:
    """Return input -> local files, for the text and for each data set; inputs not yet downloaded are left out."""
    text = _text_files(step.data) if step.data else []
    found = {TEXT_INPUT: text} if text else {}
    for entry in step.files:
        file = hub.HubFile(*entry)
        if hub.is_here([file]):
            found[str(file)] = hub.fetch([file], offline=True)
    return found


def _load_outcome(path: Path) -> Outcome:
    try:
        return Outcome.load(path)
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}): remove the file to repeat the stage") from None


def _text_files(data: str) -> list[Path]:
    """Return the files for --data, or nothing until all have been downloaded."""
    from nanochat.data.corpus import parse_data, source_files  # slow to import, and most steps read no text

    try:
        return [file for source, _ in parse_data(data) for file in source_files(source, offline=True)]
    except hub.HubError:
        return []


def difference(record: dict[str, Any], step: Step, inputs: dict[str, str]) -> str:
    """Return the difference between a step and the record as text; empty if both match."""
    before = recorded_command(record)
    if before != step.command:
        # Name only the flags that differ.
        gone = [word for word in before if word not in step.command]
        new = [word for word in step.command if word not in before]
        return f"{' '.join(gone) or 'nothing'} is now {' '.join(new) or 'gone'}"
    known = record["inputs"]
    # New and missing inputs do not count: a data set may be downloaded, or removed to make room.
    changed = [name for name, digest in inputs.items() if known.get(name, digest) != digest]
    return f"{', '.join(changed)} changed" if changed else ""


# ---- running steps ----


def run_job(job: Job, workers: int = 1) -> dict[str, str]:
    """Run all steps, up to `workers` at once, each after all parents; returns step -> reason for each failure.

    A failed step does not stop steps that do not depend on it. Output goes to the logs.
    """
    os.environ.update(job.environment)
    failures: dict[str, str] = {}
    lost: set[str] = set()  # outputs that will not come
    waiting = list(job.steps)
    running: dict[Future, Step] = {}
    with hold_job(job) as lock, stop_signals() as stop, ThreadPoolExecutor(workers) as pool:
        while waiting or running:
            pending = {step.output for step in [*waiting, *running.values()]}
            # A copy, because the loop removes steps.
            for step in list(waiting):
                parents = set(step.parents)
                if stop or parents & lost:
                    waiting.remove(step)
                    lost.add(step.output)
                    failures[step.name] = "the job was stopped" if stop else "a step before it failed"
                elif len(running) < workers and not parents & pending:
                    waiting.remove(step)
                    # Lines from several steps would mix on the terminal.
                    future = pool.submit(run_step, job, replace(step, quiet=True), lock, stop)
                    running[future] = step
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                step = running.pop(future)
                error = future.exception()
                if error:
                    lost.add(step.output)
                    failures[step.name] = str(error)
    return failures


def run_step(job: Job, step: Step, lock: int, stop: list[int], script: int = 0) -> None:
    """Run one step unless finished or left out, and keep a record; a StepFailed without a result.

    lock: descriptor for the job's lock, inherited by the command. stop: signals received so far. script: the process
    that runs the steps one by one; the step ends with this process; 0: none.
    """
    record = read_record(job, step)
    inputs = input_hashes(job, step)
    reason = difference(record, step, inputs) if record else ""
    if reason:
        place = archive(job, step)
        earlier = f"; earlier results are in {place}" if place else ""
        print0(f"\n== {step.name}: repeated, {reason}{earlier}")
        record = {}
    if step.skip:
        print0(f"== {step.name}: left out, {step.skip}")
        return
    if record.get("finished") and step.is_done:
        print0(f"== {step.name}: already finished")
        return
    print0(f"\n== {step.name}: python {shlex.join(step.words[1:])}")
    log = job.folder / f"{step.name}.log"
    seconds = record.get("seconds", 0.0) + _lost_seconds(record, log)
    entry = {
        "command": step.command,
        "inputs": record.get("inputs", inputs),  # as they were when the first attempt began
        "seconds": seconds,  # all attempts
        "finished": False,
    }
    path = job.folder / f"{step.name}.json"
    write_json(path, entry | {"began": time.time()})

    start = time.monotonic()
    status = execute(step.words, log, lock, stop, echo=not step.quiet, script=script)
    # A stop request may have come just before a normal end: training has saved, and exits with 0.
    entry["seconds"] += time.monotonic() - start
    finished = not status and not stop and (step.is_done or not step.output)
    if finished:
        # With files that the command has downloaded.
        entry["inputs"] = input_hashes(job, step) | entry["inputs"]
        # The stage itself counted the last attempt alone.
        if step.output and record:
            _set_seconds(step.outcome, entry["seconds"])
    write_json(path, entry | {"finished": finished})
    if not finished:
        raise _failure(job, step, log, status, stop)
    print0(f"== {step.name}: done in {duration(entry['seconds'])}")


def _lost_seconds(record: dict[str, Any], log: Path) -> float:
    """Return the length in seconds for a killed attempt: until the last line in the log."""
    # Only an attempt that was killed leaves its start in the record.
    if "began" not in record or not log.exists():
        return 0.0
    return max(0.0, log.stat().st_mtime - record["began"])


def _set_seconds(path: Path, seconds: float) -> None:
    """Write the time for all attempts into an outcome, for the report card."""
    outcome = replace(Outcome.load(path), seconds=seconds)
    write_json(path, asdict(outcome))


def _failure(job: Job, step: Step, log: Path, status: int, stop: list[int]) -> StepFailed:
    """Return the error for a step: the stage, the reason, the log, the command that resumes."""
    if stop:
        reason = f"was stopped by {signal.Signals(stop[0]).name}"
        status = status or 128 + stop[0]  # as a shell reports a signal
    else:
        reason = f"failed with exit status {status}: {failure_line(log)}"
    lines = [f"{job.kind}: {step.name} {reason}", f"log: {log}"]
    if job.resume:
        lines.append(f"resume with: {job.resume}")
    return StepFailed("\n  ".join(lines), status or 1)  # 0 without an outcome is a failure too


def failure_line(log: Path) -> str:
    """Return the log line that names the error, for the message alone; torchrun prints a frame below the error."""
    text = log.read_text(encoding="utf-8", errors="replace")
    lines = [line for line in text.splitlines() if line.strip()]
    # Messages for users come before tracebacks, and any line before none.
    messages = [line for line in lines if line.startswith("error:")]
    errors = [line for line in lines if "Error" in line]
    return (messages or errors or lines)[-1]


# ---- a command and its output ----


def execute(words: Sequence[str], log: Path, lock: int, stop: list[int], echo: bool = True, script: int = 0) -> int:
    """Run a command and return its exit status (128 + signal if one killed it).

    Output goes to the log, and if `echo` also to our standard output, without delay.
    """
    with open(log, "ab", buffering=0) as file:
        file.write(f"== {time.strftime('%Y-%m-%d %H:%M:%S')} {shlex.join(words)}\n".encode())
        child = subprocess.Popen(
            words,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(lock,),  # held until the last child has ended
        )
        line = b""
        # A part may end within a line: the log gets complete lines, the terminal gets everything at once.
        for part in read_output(child, stop, script):
            if echo:
                echo = _write_out(part)
            *complete, line = (line + part).split(b"\n")
            file.writelines(plain_line(one) for one in complete)
        if line:
            file.write(plain_line(line))
        child.stdout.close()
        status = child.wait()
    # Popen returns the negative number of a signal, a shell 128 + the number.
    return 128 - status if status < 0 else status


def _write_out(part: bytes) -> bool:
    """Write to our output; False if nobody reads any more. The step continues, and the log has all lines."""
    try:
        sys.stdout.buffer.write(part)
        sys.stdout.flush()
    except OSError:
        return False
    return True


def read_output(child: subprocess.Popen, stop: list[int], script: int) -> Iterator[bytes]:
    """Yield a child's output until the end. A SIGTERM is passed on; Ctrl-C reaches the child by itself."""
    asked = False
    while True:
        # Checked before reading: an ended child has written everything.
        ended = child.poll() is not None
        # The kernel gives us another parent when the script is killed.
        if script and not stop and os.getppid() != script:
            stop.append(signal.SIGTERM)
        if signal.SIGTERM in stop and not asked:
            child.terminate()
            asked = True
        ready, _, _ = select.select([child.stdout], [], [], POLL_SECONDS)
        part = os.read(child.stdout.fileno(), 1 << 16) if ready else b""
        if part:
            yield part
        elif ready or ended:  # closed; or a process that the child left behind keeps the pipe open
            return


def plain_line(line: bytes) -> bytes:
    """Return a line without colours and without text overwritten after a carriage return."""
    shown = line.rstrip(b"\r").rpartition(b"\r")[2]
    return ESCAPES.sub(b"", shown) + b"\n"


@contextmanager
def stop_signals() -> Iterator[list[int]]:
    """Yield a list that collects SIGINT and SIGTERM, so that the running steps can save and end."""
    received: list[int] = []
    before = {}  # handlers to restore
    for number in STOP_SIGNALS:
        before[number] = signal.signal(number, lambda number, _: received.append(number))
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# ---- the command of speedrun.sh ----


@dataclass(frozen=True)
class Config:
    """Run one step of a planned job, unless it is finished."""

    job: str = option("", "folder of the job", group="step", unit="FOLDER")
    step: str = option("", "name of the step", group="step")
    lock: Count = option(-1, "descriptor that holds the job's lock; -1: take the lock", group="step", least=-1)


def main(config: Config) -> None:
    job = load_job(Path(config.job))
    os.environ.update(job.environment)
    step = job.step(config.step)
    with stop_signals() as stop:
        try:
            if config.lock >= 0:
                take_lock(config.lock, job)
                run_step(job, step, config.lock, stop, script=os.getppid())
            else:
                with hold_job(job) as lock:
                    run_step(job, step, lock, stop)
        except StepFailed as failure:
            print0(failure, file=sys.stderr)
            raise SystemExit(failure.status) from None
    if step == job.steps[-1]:
        print0(*job.closing, sep="\n")


if __name__ == "__main__":
    run(main, Config)
