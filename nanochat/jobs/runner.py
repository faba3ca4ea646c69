"""Job runner: runs a list of steps; skips finished steps, resumes stopped ones, repeats changed ones.

A job has a folder with `plan.json` (all steps) and, for each step, a log and a record. A step is finished if the
record says so, command and input hashes are as recorded, and the `outcome.json` exists; printed text is never read.

speedrun.sh runs one step a line: `python -m nanochat.jobs.runner --job=FOLDER --step=base_train --lock=9`. Jobs in
different folders run side by side.
"""

import os
import shlex
import signal
import subprocess
import sys
import time
from codecs import getincrementaldecoder
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from nanochat.config import Count, collect_signals, option, options, run_script, stop_signals
from nanochat.cores import usable_cores
from nanochat.data import hub
from nanochat.environment import ROOT
from nanochat.jobs.hashes import file_hashes
from nanochat.jobs.scales import flag_words, read_flags
from nanochat.log import Record, duration, print0, print_raw
from nanochat.outcome import Outcome
from nanochat.paths import base_dir, hold_folder, read_json, stage_dir, take_lock, text_sha256, write_json, write_text
from nanochat.stages import MODELS, STAGES

POLL_SECONDS = 0.05  # between two looks at a running command and its log
TORCHRUN = ["-m", "torch.distributed.run", "--standalone"]  # as words of Step.launch
PROGRESS = "download: "  # how lines begin that a quiet step shows too (hub.fetch prints them)
EVALUATIONS = [stage.name for stage in STAGES if stage.parent and stage.name not in MODELS.values()]
FREE = ("run", "tracker", "device_type", "device_batch_size")  # settings of an evaluation without influence on it
TAIL = 10  # lines of the log to show when a quiet step fails


@dataclass(frozen=True)
class Step:
    """A command in a job. A stage is named STAGE/TAG, like the folder below the base folder."""

    name: str
    command: list[str]  # module and flags that decide the result; a change repeats the step
    output: str = ""  # the written stage, with an outcome.json; empty: none, and the step always runs
    parent: str = ""  # stage with artifacts that the command reads
    data: str = ""  # text that the command reads, as in --data
    files: Sequence[list[Any]] = ()  # further inputs on the hub or in the base folder: [path, repo, revision]
    local: Sequence[str] = ()  # further input files, absolute
    launch: Sequence[str] = ()  # words before the module (torchrun); a change repeats nothing
    options: Sequence[str] = ()  # flags without influence on the result
    skip: str = ""  # reason to leave the step out; empty: the step runs
    skip_without_files: str = ""  # the same, if `files` are not here when its turn comes
    quiet: bool = False  # output goes to the log alone, unless the step fails

    @property
    def words(self) -> list[str]:
        """The whole command line."""
        return [sys.executable, *self.launch, "-m", *self.command, *self.options]

    @property
    def outcome(self) -> Path:
        return base_dir() / self.output / "outcome.json"

    @property
    def is_evaluation(self) -> bool:
        """True if the step measures a model, and trains none."""
        return self.output.partition("/")[0] in EVALUATIONS


Chain = Sequence[Step]  # steps that follow one another


@dataclass(frozen=True)
class Job:
    """Steps in order, a step after its parents, with a folder for plan, logs and records."""

    kind: str  # with the tag, names the folder and the messages
    tag: str
    steps: list[Step]
    resume: str = ""  # the command that resumes the job
    closing: Sequence[str] = ()  # lines to print after the last step
    settings: Record = field(default_factory=dict)  # choices of the planner, which a later plan keeps

    @property
    def folder(self) -> Path:
        return stage_dir(self.kind, self.tag)

    def record(self, step: Step) -> Path:
        return self.folder / f"{step.name}.json"

    def step(self, name: str) -> Step:
        return next(step for step in self.steps if step.name == name)

    def save(self) -> None:
        write_json(self.folder / "plan.json", asdict(self))


def load_job(folder: Path) -> Job:
    """Return the job saved in a folder."""
    saved = read_json(folder / "plan.json")
    return Job(steps=[Step(**step) for step in saved.pop("steps")], **saved)


# ---- records and inputs ----


def archive(job: Job, step: Step) -> None:
    """Move a step's stage into the job's archive, print the place, and forget the record; no artifact is deleted."""
    stage = base_dir() / step.output
    if step.output and stage.exists():
        place = job.folder / "archive" / f"{step.name}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
        place.parent.mkdir(parents=True, exist_ok=True)
        # A training process, perhaps started by hand, holds this lock.
        with hold_folder(stage):
            stage.rename(place)
        print0(f"earlier results of {step.name} are in {place}")
    # Last: after a crash before this line, the old record still asks for the archive.
    job.record(step).unlink(missing_ok=True)


def saved_record(path: Path) -> Record:
    """Return the record in a file, as of a step: command, inputs, seconds, finished; empty without a file."""
    return read_json(path) if path.exists() else {}


def parent_hashes(step: Step) -> dict[str, str]:
    """Return the hash for every artifact of the stage that a step starts from; empty if that has not finished."""
    outcome = base_dir() / step.parent / "outcome.json"
    if not (step.parent and outcome.exists()):
        return {}
    return {f"{step.parent}/{name}": digest for name, digest in Outcome.load(outcome).artifacts.items()}


def has_other_parent(record: Record, step: Step) -> bool:
    """Return True if the artifacts that a result was made from are gone, or are others now."""
    now = parent_hashes(step)
    known = {name: digest for name, digest in record["inputs"].items() if name.startswith(f"{step.parent}/")}
    return bool(step.parent) and any(now.get(name) != digest for name, digest in known.items())


def input_hashes(step: Step) -> dict[str, str]:
    """Return the hash for every local input: the parent's artifacts, text, data sets.

    A file takes 1.5 seconds a GB when it is read for the first time, or has changed since.
    """
    found = parent_hashes(step)
    if step.data:
        from nanochat.data.corpus import parse_data, source_files  # slow to import, and most steps read no text

        # Nothing until all files have been downloaded.
        with suppress(hub.HubError):
            files = [file for source, _ in parse_data(step.data) for file in source_files(source, refused="not now")]
            # Sorted: the order in which files are listed does not matter.
            digests = sorted(file_hashes(files))
            found["the text"] = text_sha256("\n".join(digests))
    places = {}  # name of an input -> its file
    for entry in step.files:
        file = hub.HubFile(*entry)
        path = hub.find(file)
        if path:
            places[str(file)] = path
    places |= {path: Path(path) for path in step.local}
    return found | dict(zip(places, file_hashes(places.values()), strict=True))


def difference(record: Record, step: Step, inputs: dict[str, str]) -> str:
    """Return the difference between a step and the record as text; empty if both match."""
    # The order of flags does not matter, but that of a flag that is there twice, of which the last counts.
    before, now = read_flags(record["command"]), read_flags(step.command)
    gone = flag_words({flag: value for flag, value in before.items() if now.get(flag) != value})
    new = flag_words({flag: value for flag, value in now.items() if before.get(flag) != value})
    if gone or new:
        return f"{' '.join(gone) or 'nothing'} is now {' '.join(new) or 'gone'}"
    # New and missing inputs do not count: a data set may be downloaded, or removed to make room.
    changed = [name for name, digest in inputs.items() if record["inputs"].get(name, digest) != digest]
    return f"{', '.join(changed)} changed" if changed else ""


def deciding_settings(outcome: Outcome) -> Record:
    """Return the settings of an evaluation that decide its result."""
    return {name: value for name, value in outcome.config.items() if name not in FREE}


def reason_to_repeat(record: Record, step: Step, inputs: dict[str, str]) -> str:
    """Return why a step's result is not what its command would give now, as text; empty if it is, or without a record.

    Evaluations are also run by hand, with other flags and the same tag.
    """
    if not record:
        return ""
    reason = difference(record, step, inputs)
    if not reason and "config" in record and step.outcome.exists():
        config = deciding_settings(Outcome.load(step.outcome))
        others = [name for name, value in record["config"].items() if config.get(name) != value]
        reason = f"its result is of a command with another --{others[0].replace('_', '-')}" if others else ""
    return reason


# ---- running steps ----


def run_step(
    job: Job, step: Step, lock: int, stop: list[int], script: int = 0, variables: Mapping[str, str] | None = None
) -> int:
    """Run one step unless finished or left out, and keep a record. Returns the exit status: 0 if the result is there.

    lock: descriptor for the job's lock, inherited by the command. stop: signals received so far. script: the process
    that runs the steps one by one; the step ends with this process; 0: none. variables: more of the environment.
    """
    path = job.record(step)
    record = saved_record(path)
    if step.skip:
        print0(f"== {step.name}: left out, {step.skip}")
        # The card would show a result of the model that was, beside those of the new one.
        if record and has_other_parent(record, step):
            archive(job, step)
        return 0
    inputs = input_hashes(step)
    reason = reason_to_repeat(record, step, inputs)
    if reason:
        print0(f"\n== {step.name}: repeated, {reason}")
        archive(job, step)
        record = {}
    if has_finished(job, step):
        print0(f"== {step.name}: already finished")
        return 0
    if record.get("finished"):  # its result was deleted, or it has none: nothing is resumed
        record = {}
    if is_left_out(job, step):
        print0(f"== {step.name}: left out, {step.skip_without_files}")
        return 0
    print0(f"\n== {step.name}: python {shlex.join(step.words[1:])}")
    log = job.folder / f"{step.name}.log"
    entry = {
        "command": step.command,
        "inputs": record.get("inputs", inputs),  # as they were when the first attempt began
        "seconds": record.get("seconds", 0.0),  # all attempts, but for those that were killed
        "finished": False,
    }
    start = time.time()
    write_json(path, entry)  # the command and its inputs, should the machine fail
    if step.launch and not stop and "NANOCHAT_MEETING" in os.environ:
        variables = announce(step)
    # A stop may have come while the inputs were read: nobody would pass it on to a command that begins now.
    status = 128 + stop[0] if stop else execute(step, log, lock, stop, script, variables)
    entry["seconds"] += time.time() - start
    # A stop request may have come just before a normal end: training has saved, and exits with 0.
    if status or stop or (step.output and not step.outcome.exists()):
        reason = f"failed with exit status {status}"
        if stop:
            reason = f"was stopped by {signal.Signals(stop[0]).name}"
            status = status or 128 + stop[0]  # as a shell reports a signal
        write_json(path, entry | {"status": status})
        message = f"{job.kind}: {step.name} {reason}\n  log: {log}\n  resume with: {job.resume}"
        print0(message, file=sys.stderr)
        return status or 1  # 0 without an outcome is a failure too
    # With files that the command has downloaded.
    entry["inputs"] = input_hashes(step) | entry["inputs"]
    # For the report card. A stage that evaluates counts its last attempt alone; one that trains counts them all, those
    # too that a runner which was killed has not.
    if step.output and record:
        outcome = read_json(step.outcome)
        entry["seconds"] = max(float(entry["seconds"]), outcome["seconds"])
        write_json(step.outcome, outcome | {"seconds": entry["seconds"]})
    if step.is_evaluation:
        entry["config"] = deciding_settings(Outcome.load(step.outcome))
    write_json(path, entry | {"finished": True})
    print0(f"== {step.name}: done in {duration(entry['seconds'])}")
    return 0


def is_left_out(job: Job, step: Step) -> bool:
    """Return True if a planned step is left out now, as its files have not come."""
    if step.skip or not step.skip_without_files or has_finished(job, step):
        return False
    return not hub.is_here([hub.HubFile(*entry) for entry in step.files])


def has_finished(job: Job, step: Step) -> bool:
    """Return True if a step's record says so and its result is there."""
    return bool(saved_record(job.record(step)).get("finished")) and step.outcome.exists()


def first_finished(job: Job) -> list[str]:
    """Return the names of the first steps that would be skipped, up to one that has to run, or always runs."""
    names = []
    for step in job.steps:
        if step.skip:
            continue
        record = saved_record(job.record(step))
        if not has_finished(job, step) or reason_to_repeat(record, step, input_hashes(step)):
            break
        names.append(step.name)
    return names


def closing_lines(job: Job) -> list[str]:
    """Return the lines to print after the last step: what was left out without being planned, and the planned ones."""
    # Whether the files have come meanwhile does not matter.
    left_out = [step for step in job.steps if step.skip_without_files and not step.skip and not has_finished(job, step)]
    return [*(f"left out: {step.name} ({step.skip_without_files})" for step in left_out), *job.closing]


def announce(step: Step) -> dict[str, str]:
    """Announce a step to the other nodes, which run the same torchrun (nodes.sh); returns its variables here.

    An announcement is an identifier, then a word of the command on each line.
    """
    attempt = str(time.time_ns())  # a node that comes late cannot join another attempt
    write_text(Path(os.environ["NANOCHAT_MEETING"], "step"), "\n".join([attempt, *step.words[1:]]))
    return {"PET_RDZV_ID": attempt}


def execute(step: Step, log: Path, lock: int, stop: list[int], script: int, variables: Mapping[str, str] | None) -> int:
    """Run a step's command and return the exit status (128 + signal if one killed it).

    The command writes to the log, which is also shown; from a quiet step only its progress, and the last lines if it
    fails. A signal is passed on as SIGTERM; Ctrl-C reaches the command by itself.
    """
    with open(log, "ab") as file, open(log, "rb") as shown:
        file.write(f"== {time.strftime('%Y-%m-%d %H:%M:%S')} {shlex.join(step.words)}\n".encode())
        file.flush()
        shown.seek(0, os.SEEK_END)
        child = subprocess.Popen(
            step.words,
            cwd=ROOT,
            env=os.environ | (variables or {}),
            stdout=file,
            stderr=subprocess.STDOUT,
            pass_fds=(lock,),  # held until the last child has ended
        )
        decoder = getincrementaldecoder("utf-8")("replace")  # a read may end within a character
        rest = ""  # of a quiet step: a line that has no end yet
        last: list[str] = []  # and the lines before it
        status = None
        is_asked = False
        while status is None:
            time.sleep(POLL_SECONDS)
            # Before reading: an ended command has written everything.
            status = child.poll()
            text = decoder.decode(shown.read())
            if step.quiet:
                *lines, rest = (rest + text).split("\n")
                text = "".join(f"{line}\n" for line in lines if line.startswith(PROGRESS))
                last = [*last, *lines][-TAIL:]
            print_raw(text, sys.stdout)
            # The kernel gives us another parent when the script is killed.
            if script and not stop and os.getppid() != script:
                stop.append(signal.SIGTERM)
            if set(stop) - {signal.SIGINT} and not is_asked:
                child.terminate()
                is_asked = True
        if status and step.quiet:
            print_raw("\n".join([*last, rest]).rstrip("\n") + "\n", sys.stdout)
    # Popen has the negative number of a signal, a shell 128 + the number.
    return 128 - status if status < 0 else status


def core_share(runs: int) -> dict[str, str]:
    """Return variables for each of several runs at the same time: more threads than cores would wait for each other."""
    share = max(usable_cores() // runs, 1)
    return {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS") or str(share)}


def run_chains(job: Job, chains: Sequence[Chain], slots: Sequence[Mapping[str, str]]) -> int:
    """Run chains of a job's steps, and return the number of those that failed.

    A chain ends with the first step that fails, and the others continue. slots: environment variables for each of the
    chains that run at the same time, such as the GPUs of each; each also gets its share of the cores.
    """
    free = SimpleQueue()
    for variables in slots:
        free.put(core_share(len(slots)) | dict(variables))
    with hold_folder(job.folder) as lock, collect_signals(*stop_signals()) as stop:
        job.save()

        def run_chain(chain: Chain) -> bool:
            variables = free.get()
            try:
                # A signal stops the steps at work, and no others begin.
                return all(not stop and run_step(job, step, lock, stop, variables=variables) == 0 for step in chain)
            finally:
                free.put(variables)

        with ThreadPoolExecutor(len(slots)) as pool:
            done = list(pool.map(run_chain, chains))
    if stop:
        raise KeyboardInterrupt
    return done.count(False)


# ---- the command of speedrun.sh ----


@options("step")
class Config:
    """Run one step of a planned job, unless it is finished."""

    job: str = option("", "folder of the job")
    step: str = option("", "name of the step")
    lock: Count = option(9, "descriptor that holds the job's lock")
    finished: bool = option(False, "print the names of the first steps that have finished, and run none")


def main(config: Config) -> None:
    job = load_job(Path(config.job))
    if config.finished:
        print0(*first_finished(job))
        return
    step = job.step(config.step)
    take_lock(config.lock, job.folder)
    # The running step can save and end.
    with collect_signals(*stop_signals()) as stop:
        status = run_step(job, step, config.lock, stop, script=os.getppid())
    if status:
        raise SystemExit(status)
    if step == job.steps[-1]:
        print0(*closing_lines(job), sep="\n")


if __name__ == "__main__":
    run_script(main)
