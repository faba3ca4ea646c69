"""Runs a step of the main job: skipped where it is finished, gone on with where it was left, anew where it changed.

python -m nanochat.jobs.runner --run=FOLDER --stage=base_train, as speedrun.sh does, with the lock on descriptor LOCK.
"""

import errno
import fcntl
import hashlib
import json
import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from nanochat.config import option, run
from nanochat.data import hub
from nanochat.data.corpus import find
from nanochat.data.hub import HubFile
from nanochat.evals.core_tasks import data_files
from nanochat.jobs.plan import LAST, PARENTS, Plan, Step, read, record_of
from nanochat.log import duration, print0
from nanochat.outcome import ROOT, Outcome
from nanochat.paths import base_dir, stage_dir, write_json
from nanochat.stages import MODELS

LOCK = 9  # the descriptor that speedrun.sh opens, and every process below it inherits
LOOK = 0.5  # seconds between looks whether the script is still there
TEXTS = ("tok_train", "tok_eval", "base_train", "base_loss")  # stages that read text
QUIET = ("download",)  # runs beside others: its lines go to its log alone
ESCAPES = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass(frozen=True)
class Config:
    """Run a step of a planned main job, if it is not finished."""

    run: str = option("", "folder of the plan", group="step", unit="FOLDER")
    stage: str = option("", "step of it", group="step")


# ---- one run at a time ----


def take(lock: int, tag: str) -> None:
    """The lock of a run, an open file, which stays taken until all who inherited it have ended; or a ValueError."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ValueError(
            f"speedrun: another one is at work with --tag={tag}: wait for its end, or take another --tag"
        ) from None
    except OSError as error:
        if error.errno == errno.EBADF:
            raise ValueError("this is a part of speedrun.sh, which holds the lock of the run: start that") from None
        # Some shared file systems have no locks.
        print0(f"speedrun: this run cannot be locked ({error}): see that no other uses --tag={tag}")


def set_aside(plan: Plan, step: str) -> Path | None:
    """Move what a stage has left out of the way, and forget that it ran; where it lies now. Nothing is deleted."""
    record, home = plan.folder / f"{step}.json", stage_dir(step, plan.tag)
    if step not in PARENTS or not home.exists():
        record.unlink(missing_ok=True)
        return None
    with open(home / "lock", "a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ValueError(f"another run is at work in {home}: wait for its end, or take another --tag") from None
        kept = plan.folder / "set_aside" / f"{step}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
        kept.parent.mkdir(parents=True, exist_ok=True)
        home.rename(kept)
    record.unlink(missing_ok=True)  # last: as long as it is there, a stage that it does not fit is moved again
    return kept


# ---- what a step depends on ----


def inputs_of(plan: Plan, step: str) -> dict[str, str]:
    """Hash of each thing that a stage starts from, as far as it is here: artifacts of its parent, text, data sets."""
    if step not in PARENTS:
        return {}
    found = {}
    if parent := PARENTS[step]:
        record = stage_dir(parent, plan.tag) / "outcome.json"
        if record.exists():
            try:
                made = Outcome.load(record).artifacts
            except ValueError as error:
                raise ValueError(f"{record} is damaged ({error}): remove it, and {parent} writes it again") from None
            found = {f"{parent}/{name}": content for name, content in made.items()}
    hashed = Hashes(plan.folder / "hashes.json")
    if step in TEXTS:
        try:
            files = [file for listing, _ in find(plan.data, offline=True) for file in listing.files]
            found["the text"] = hashlib.sha256("\n".join(sorted(map(hashed, files))).encode()).hexdigest()
        except hub.HubError:  # to be fetched yet
            pass
    else:
        wanted = [HubFile(*entry) for entry in plan.files["bundle" if step == "base_eval" else "tasks"]]
        here = {file: hub.fetch([file], offline=True)[0].path for file in wanted if hub.is_here([file])}
        if step == "base_eval" and here:
            named = data_files(here[wanted[0]])
            here |= {file: hub.fetch([file], offline=True)[0].path for file in named if hub.is_here([file])}
        found |= {str(file): hashed(path) for file, path in here.items()}
    hashed.save()
    return found


class Hashes:
    """SHA-256 of files, each read again only when its size or time has changed."""

    def __init__(self, path: Path):
        self.path = path
        self._known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}

    def __call__(self, path: Path) -> str:
        about = path.stat()
        stamp = [about.st_size, about.st_mtime_ns]
        known = self._known.get(str(path))
        if not known or known[:2] != stamp:
            known = self._known[str(path)] = [*stamp, hub.sha256(path)]
        return known[2]

    def save(self) -> None:
        write_json(self.path, self._known)


def difference(record: dict[str, Any], words: list[str], inputs: dict[str, str]) -> str:
    """How a step differs from what its record says; nothing where it does not. What is gone, or new, is no change."""
    before = record["words"]
    if before != words:
        gone, new = ([w for w in some if w not in others] for some, others in ((before, words), (words, before)))
        return f"{shlex.join(gone) or 'nothing'} is now {shlex.join(new) or 'nothing'}"
    changed = [name for name in inputs if record["inputs"].get(name, inputs[name]) != inputs[name]]
    return f"{', '.join(changed)} changed" if changed else ""


# ---- running it ----


def main(config: Config) -> None:
    plan = read(Path(config.run))
    os.environ.update(plan.environment)
    step = plan.step(config.stage)
    take(LOCK, plan.tag)
    if step.left_out:
        print0(f"== {step.name}: left out, {step.left_out}")
        record = record_of(plan.folder, step.name)
        if (
            record
            and difference(record, step.words, inputs_of(plan, step.name))
            and (kept := set_aside(plan, step.name))
        ):
            print0(f"== {step.name}: what an earlier run left does not fit this one, it is kept in {kept}")
    else:
        perform(plan, step)
    if step.name == LAST:
        closing(plan)


def perform(plan: Plan, step: Step) -> None:
    """The step, unless it is finished with these words and inputs; leaves a record of it."""
    name, inputs = step.name, inputs_of(plan, step.name)
    path, record, outcome = plan.folder / f"{name}.json", record_of(plan.folder, name), stage_dir(name, plan.tag)
    if record and (why := difference(record, step.words, inputs)):
        kept = set_aside(plan, name)
        print0(f"\n== {name}: again, {why}" + (f"; what was there is kept in {kept}" if kept else ""))
        record = {}
    if record.get("finished") and name in PARENTS and (outcome / "outcome.json").exists():
        print0(f"== {name}: finished before")
        return
    print0(f"\n== {name}: python {shlex.join(step.command[1:])}")
    log = plan.folder / f"{name}.log"
    spent = record.get("seconds", 0.0)
    if "began" in record and log.exists():  # an attempt that was killed: it wrote its last line then
        spent += max(0.0, log.stat().st_mtime - record["began"])
    about = {"words": step.words, "inputs": record.get("inputs", inputs), "seconds": spent}
    write_json(path, about | {"finished": False, "began": time.time()})
    start = time.monotonic()
    status, heard = execute(step.command, log, name in QUIET)
    about["seconds"] += time.monotonic() - start
    complete = not status and not heard and (name not in PARENTS or (outcome / "outcome.json").exists())
    # What came while it ran counts too, like fetched text; what was there when it began counts as it was then.
    about["inputs"] = inputs_of(plan, name) | about["inputs"] if complete else about["inputs"]
    if complete and "seconds" in record and name in PARENTS:  # of all attempts, for the card
        done = Outcome.load(outcome / "outcome.json")
        write_json(outcome / "outcome.json", asdict(replace(done, seconds=about["seconds"])))
    write_json(path, about | {"finished": complete})
    if not complete:
        stopped(plan, step, status or (128 + heard if heard else 1), heard)
    print0(f"== {name}: done in {duration(about['seconds'])}")


def stopped(plan: Plan, step: Step, status: int, heard: int) -> None:
    """The last words on a step that did not end well: why, its log, and how to go on."""
    log = plan.folder / f"{step.name}.log"
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    what = (
        f"was stopped by {signal.Signals(heard).name}"
        if heard
        else f"failed with exit status {status}: {_reason(lines)}"
    )
    print0(f"speedrun: {step.name} {what}", f"its log: {log}", f"to go on: {plan.again}", sep="\n  ", file=sys.stderr)
    raise SystemExit(status)


def _reason(lines: list[str]) -> str:
    """The line of a log that says what went wrong; torchrun puts a frame of its own behind it."""
    said = [line for line in lines if line.startswith("error:")] or [line for line in lines if "Error" in line]
    return (said or lines)[-1]


def closing(plan: Plan) -> None:
    """What the run came to: the card's summary, once more what was left out, and how to talk to its model."""
    card = ROOT / "report.md"
    done = not plan.step(LAST).left_out
    if done:
        print0(f"\n{card.read_text(encoding='utf-8').rpartition('## Summary')[2].strip()}\n")
    print0(*plan.left_out(), sep="\n")
    if done:
        print0(f"report card: {card}")
    print0(*talks(plan), sep="\n")


def talks(plan: Plan) -> list[str]:
    """The commands, for any folder, with which to talk to the last model of a run."""
    sources = [source for source, stage in MODELS.items() if not plan.step(stage).left_out]
    place = f"cd {shlex.quote(str(ROOT))} &&"
    if "NANOCHAT_BASE_DIR" in os.environ:
        place += f" NANOCHAT_BASE_DIR={shlex.quote(str(base_dir().resolve()))}"
    scripts = {"talk to it": "chat_cli", "in a browser": "chat_web"} if sources else {}
    return [
        f"{label}: {place} .venv/bin/python -m scripts.{script} -i {sources[-1]} -g {plan.tag}"
        for label, script in scripts.items()
    ]


def execute(command: list[str], log: Path, quiet: bool) -> tuple[int, int]:
    """Exit status of a command, and the signal that this process had meanwhile (0: none).

    Its output goes to the log, and unless quiet to ours: on a terminal it has one of its own, so that it draws live
    lines. SIGTERM is handed on to it, Ctrl-C of a terminal has reached it already. It is ended when our script is gone.
    """
    live = sys.stdout.isatty() and not quiet
    source, sink = pty.openpty() if live else os.pipe()
    if live:
        settings = termios.tcgetattr(sink)
        settings[1] &= ~termios.OPOST  # our own terminal makes line ends of line feeds
        termios.tcsetattr(sink, termios.TCSANOW, settings)
        fcntl.ioctl(sink, termios.TIOCSWINSZ, fcntl.ioctl(sys.stdout, termios.TIOCGWINSZ, bytes(8)))
    with open(log, "ab", buffering=0) as file, hearing() as signals:
        file.write(f"== {time.strftime('%Y-%m-%d %H:%M:%S')} {shlex.join(command)}\n".encode())
        child = subprocess.Popen(command, cwd=ROOT, stdout=sink, stderr=sink, pass_fds=(LOCK,))
        os.close(sink)
        line = b""
        for part in _output(source, child, signals):
            try:
                if not quiet:
                    sys.stdout.buffer.write(part)
                    sys.stdout.flush()
            except OSError:  # whoever read our lines has gone; the stage need not, and the log has them
                quiet = True
            *whole, line = (line + part).split(b"\n")
            file.writelines(_plain(one) for one in whole)
        file.write(_plain(line) if line else b"")
        status = child.wait()
    os.close(source)
    return (128 - status if status < 0 else status), (signals[0] if signals else 0)


def _output(source: int, child: subprocess.Popen, signals: list[int]) -> Iterator[bytes]:
    """What the child writes, as it comes, until it has ended; signals that come are handed on meanwhile."""
    script, told = os.getppid(), False
    while True:
        ended = child.poll() is not None  # all that it wrote is there by now
        if not signals and os.getppid() != script:
            signals.append(signal.SIGTERM)  # without the script nobody would run the next step
        if signal.SIGTERM in signals and not told:
            child.terminate()
            told = True
        ready, _, _ = select.select([source], [], [], LOOK)
        try:
            part = os.read(source, 1 << 16) if ready else b""
        except OSError:  # how Linux tells that a terminal has been closed
            return
        if part:
            yield part
        elif ready or ended:  # closed; or ended, and what it left behind holds it open
            return


def _plain(line: bytes) -> bytes:
    """A line as it looked when it was complete: without what was drawn over, colours and the like."""
    return ESCAPES.sub(b"", line.rstrip(b"\r").rpartition(b"\r")[2]) + b"\n"


@contextmanager
def hearing() -> Iterator[list[int]]:
    """The signals to stop that this process gets: they wait for the child's end."""
    had: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda number, _: had.append(number)) for number in numbers}
    try:
        yield had
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


if __name__ == "__main__":
    run(main, Config)
