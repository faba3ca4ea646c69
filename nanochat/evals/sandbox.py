"""Run programs that a model wrote, contained: `judge` tests a function from one, `run_program` runs one to its end.

A contained program sees the system's libraries and Python read-only, and an empty /tmp; no network, no other process,
nothing from the caller's environment or home. contained.py does this. docs/security.md says what is promised.
"""

import contextlib
import json
import os
import platform
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import IO, TypeVar

from nanochat.cores import usable_cores
from nanochat.errors import UserError
from nanochat.evals import contained, plain_data

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Limits:
    """Limits on a program; sizes in bytes. Nothing outlives a process, so its memory is at most memory × processes."""

    seconds: float = 60.0  # wall time; generous, as other work on the machine slows the program down
    cpu_seconds: int = 10  # for all processes together
    memory: int = 2**28  # address space per process
    file_bytes: int = 2**24  # per file, for all files together, and for the output
    processes: int = 4  # and threads


LIMITS = Limits()
MODULE = "answer"  # name of the module with a function from a model: a block for `__main__` does not run
UNSEEN = contained.POLL_SECONDS  # of a process that nobody waits for: the most that it can use without being counted


FOLDER = "nanochat-sandbox-"  # how the names of folders begin, for programs that are not contained
ABANDONED = 24 * 3600.0  # seconds since a folder changed


class NoSandbox(UserError):
    """Programs cannot be contained on this system."""


@dataclass(frozen=True)
class Case:
    """A program from a model, and tests for one of its functions."""

    answer: str  # the program
    name: str  # of the function
    tests: str  # call the function by its name, and end early if it is wrong
    helpers: str = ""  # code that the tests need


@dataclass(frozen=True)
class Used:
    """What a contained program and all its processes have used, as counted outside.

    The time of a process is exact, unless its parent has chosen not to wait for it. Then what it has used in its last
    UNSEEN seconds may be missing, so all of a shorter one: `processes` bounds how much that is.
    """

    cpu_seconds: float
    processes: int  # and threads, those of the sandbox too


@dataclass(frozen=True)
class Verdict:
    """The result of running a program.

    A secret word, printed after the last line, proves that the program reached its end. The word is neither in the
    program nor in its file, arguments or environment. A hostile program can find it in the interpreter's memory, so a
    verdict on an answer is trusted only if the tests ran elsewhere.
    """

    passed: bool  # the program ran to its last line
    output: str
    forgeable: bool = False  # tests whose arguments are not plain data can run only in the answer's own process
    used: Used | None = field(default=None, compare=False)  # None: it has not ended by itself, or is not contained
    killed: bool = field(default=False, compare=False)  # by SIGKILL: for want of memory, or after its processor time


def side_by_side(function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Return the function's results; it waits for programs, for as many at once as this rank has cores."""
    cpus = usable_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    with ThreadPoolExecutor(min(max(cpus, 1), 20)) as pool:
        return list(pool.map(function, items))


def require(unsafe: bool) -> None:
    """Raise NoSandbox if programs cannot be contained here, unless they may run all the same."""
    if missing() and not unsafe:
        raise NoSandbox(f"programs cannot be contained here: {missing()}; --unsafe-exec runs them with limits alone")


@cache
def missing() -> str:
    """Return the protection that this system cannot give, found by a trial run; empty if it gives all."""
    if sys.platform != "linux" or platform.machine() not in contained.AUDIT:
        return f"no namespaces, or no system call filter, for {platform.system()} on {platform.machine()}"
    verdict = run_program("", Limits(cpu_seconds=30))
    return "" if verdict.passed else verdict.output.strip()[-300:] or "a trial run failed"


# ---- outside ----


def judge(case: Case, limits: Limits = LIMITS, unsafe: bool = False) -> Verdict:
    """Run tests on a function from an answer; each side has a sandbox, so the answer sees calls and never the tests.

    Only plain data comes back (plain_data.py), so no object from the answer can claim to be equal. Tests whose
    arguments are not plain data run in the answer's own process, and the verdict says so.
    """
    answer_reads, judge_writes = os.pipe()
    judge_reads, answer_writes = os.pipe()
    data = Path(plain_data.__file__).read_text(encoding="utf-8")
    named = f"READS, WRITES, MODULE, NAME = {answer_reads}, {answer_writes}, {MODULE!r}, {case.name!r}"
    calls = f"{named}\nDATA = {data!r}\n{ANSWER}"
    candidate = f"READS, WRITES, NOT_PLAIN, DATA = {judge_reads}, {judge_writes}, {NOT_PLAIN}, {data!r}\n{JUDGE}"
    program = f"{candidate}\n{case.helpers}\n{case.name} = candidate\n{case.tests}\n"
    with (
        _start(case.answer, calls, limits, unsafe, (answer_reads, answer_writes)),
        _start(program, LAUNCHER, limits, unsafe, (judge_reads, judge_writes)) as tests,
    ):
        verdict = tests()
    if verdict.forgeable:
        launcher = LAUNCHER.replace('"__main__"', repr(MODULE))
        with _start(f"{case.answer}\n\n{case.tests}\n", launcher, limits, unsafe) as both:
            return replace(both(), forgeable=True)
    return verdict


def run_program(program: str, limits: Limits = LIMITS, unsafe: bool = False, readable: Sequence[str] = ()) -> Verdict:
    """Run a Python program, contained; with `unsafe` under limits alone where that is impossible.

    readable: files and folders that it may read beside the system's.
    """
    with _start(program, LAUNCHER, limits, unsafe, readable=readable) as verdict:
        return replace(verdict(), forgeable=False)  # a program may end with the judge's exit status too


@contextlib.contextmanager
def conversation(
    program: str, limits: Limits = LIMITS, unsafe: bool = False, readable: Sequence[str] = ()
) -> Iterator[tuple[int, int, Callable[[float], Verdict]]]:
    """Start a Python program, contained as by `run_program`, that is asked and answers.

    Yields the descriptors to ask and to listen by, and a function that waits so many seconds for the program's end. The
    program has its own ends as READS and WRITES.
    """
    program_reads, asks = os.pipe()
    listens, program_writes = os.pipe()
    whole = f"READS, WRITES = {program_reads}, {program_writes}\n{program}"
    try:
        with _start(whole, LAUNCHER, limits, unsafe, (program_reads, program_writes), readable) as verdict:
            yield asks, listens, verdict
    finally:
        os.close(asks)
        os.close(listens)


@contextlib.contextmanager
def _start(
    program: str,
    launcher: str,
    limits: Limits,
    unsafe: bool,
    descriptors: Sequence[int] = (),
    readable: Sequence[str] = (),
) -> Iterator[Callable[..., Verdict]]:
    """Start a program by a launcher, and yield a function that waits until the program or its time ends.

    The function may be told to wait for fewer seconds. The program takes over the descriptors. At the end it is killed.
    """
    is_contained = not (unsafe and missing())
    word = secrets.token_hex(16)
    task = {
        "program": program,
        "launcher": launcher,
        "word": word,
        "limits": asdict(limits),
        "contained": is_contained,
        "caller": os.getpid(),
        "readable": [os.path.realpath(path) for path in readable],
    }
    python = os.path.realpath(getattr(sys, "_base_executable", sys.executable))  # not the environment's
    with (
        contextlib.nullcontext("/") if is_contained else _own_folder() as folder,
        _output() as output,
        _output() as report,
    ):
        task["report"] = report.fileno()
        child = subprocess.Popen(
            [python, "-IS", contained.__file__],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={},
            start_new_session=True,
            pass_fds=(*descriptors, report.fileno()),
        )
        for descriptor in descriptors:
            os.close(descriptor)  # so that the program's end is an end of file for the other side

        def verdict(patience: float = limits.seconds) -> Verdict:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(patience)
            output.seek(0)
            text = output.read().decode(errors="replace")
            # Everything before the word is the program's output.
            before, found, _ = text.rpartition(f"\n{word}\n")
            status = child.returncode
            killed = status in (-signal.SIGKILL, 256 - signal.SIGKILL)  # the second as contained.py hands it on
            passed = bool(found) and status == 0
            return Verdict(passed, before if found else text, status == NOT_PLAIN, _used(report), killed)

        assert child.stdin is not None  # a pipe
        try:
            with contextlib.suppress(BrokenPipeError), child.stdin as stdin:
                stdin.write(json.dumps(task).encode())
            yield verdict
        finally:
            # The whole process group, so that the program does not outlive its helper.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()


@contextlib.contextmanager
def _own_folder() -> Iterator[str]:
    """Yield an empty folder for a program that is not contained."""
    _remove_abandoned()
    with tempfile.TemporaryDirectory(prefix=FOLDER) as folder:
        yield folder


@cache
def _remove_abandoned() -> None:
    """Remove the folders whose caller was killed: no program runs for so long."""
    for path in Path(tempfile.gettempdir()).glob(f"{FOLDER}*"):
        with contextlib.suppress(OSError):  # of another user, or removed meanwhile
            if path.lstat().st_mtime < time.time() - ABANDONED and path.lstat().st_uid == os.getuid():
                shutil.rmtree(path)


def _used(report: IO[bytes]) -> Used | None:
    """Return what the watching process has written at its end, if it has, and before it the first of its namespace."""
    report.seek(0)
    *counts, time_used = report.read().split() or [b""]
    return Used(float(time_used), max(map(int, counts))) if counts else None


def _output() -> IO[bytes]:
    """Return a file for what a program prints: in memory, as blocks of a disk can be taken beyond its length."""
    return open(os.memfd_create("output"), "w+b") if sys.platform == "linux" else tempfile.TemporaryFile()


# ---- launchers: the last process in a sandbox runs one ----

# Reads the word, runs the program, and prints the word if the program has come to its last line.
LAUNCHER = """
def run() -> None:
    import runpy
    word = input()
    runpy.run_path("program.py", run_name="__main__")
    print(f"\\n{word}", flush=True)
run()
"""
# Calls the answer's function for the judge: a call and a reply are a line each. It is imported, as the tests would.
ANSWER = """
def serve() -> None:
    import sys
    import types
    input()  # the word: the answer finds an empty input
    data = {"__name__": "plain_data"}
    exec(DATA, data)
    calls, results = open(READS, "rb"), open(WRITES, "wb")
    module = sys.modules[MODULE] = types.ModuleType(MODULE)
    module.__file__ = "program.py"
    with open("program.py", "rb") as file:
        exec(compile(file.read(), "program.py", "exec"), module.__dict__)
    function = module.__dict__[NAME]
    while line := calls.readline():
        args, options = data["loads"](line)
        try:
            reply = data["dumps"]((None, function(*args, **options)))
        except Exception as error:
            reply = data["dumps"]((type(error).__name__, str(error)))
        results.write(reply.encode() + b"\\n")
        results.flush()
serve()
"""
# Gives the tests a function that asks the other side.
JUDGE = """
def make_candidate() -> object:
    import builtins
    data = {"__name__": "plain_data"}
    exec(DATA, data)
    results, calls = open(READS, "rb"), open(WRITES, "wb")
    # They end loops without a word: an answer that raises them would leave out the tests in a map.
    SILENT = StopIteration, StopAsyncIteration

    def candidate(*args: object, **options: object) -> object:
        try:
            call = data["dumps"]((args, options))
        except data["NotPlain"]:
            raise SystemExit(NOT_PLAIN)
        calls.write(call.encode() + b"\\n")
        calls.flush()
        try:
            error, value = data["loads"](results.readline())
        except Exception as reason:
            raise RuntimeError(f"the answer's process sent no value: {reason}") from None
        if error is None:
            return value
        kind = getattr(builtins, str(error), RuntimeError)
        is_usual = isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, SILENT)
        raise (kind if is_usual else RuntimeError)(value)

    return candidate
candidate = make_candidate()
"""
NOT_PLAIN = 3  # the judge's exit status where an argument is not plain data
