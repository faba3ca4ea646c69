"""The sandbox: honest programs run, and it is refused where it cannot contain. tests/attacks runs hostile programs."""

import os
import re
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import pytest
from conftest import ROOT
from contain import NEEDS_SANDBOX

from nanochat.cores import usable_cores
from nanochat.evals import contained, sandbox
from nanochat.evals.sandbox import Case, Limits, judge, run_program, side_by_side

QUICK = Limits(seconds=20.0, cpu_seconds=2)

HONEST = {
    "uses memory": ("import time\nx = b'x' * 10**8\ntime.sleep(0.3)\nprint(6 * 7)", "42"),
    "uses the library": ("import json, math, random, re, threading\nprint(math.comb(5, 2))", "10"),
    "uses its directory": ("open('/tmp/x', 'w').write('mine')\nprint(open('x').read())", "mine"),
    "starts a process": ("import subprocess\nprint(subprocess.check_output(['echo', 'hello']).decode())", "hello"),
    "uses threads": ("import threading as t\nx = t.Thread(target=print, args=(5,))\nx.start()\nx.join()", "5"),
}


@NEEDS_SANDBOX
@pytest.mark.parametrize("name", HONEST)
def test_an_honest_program_runs(name) -> None:
    program, printed = HONEST[name]
    verdict = run_program(program, QUICK)
    assert (verdict.passed, verdict.output.strip()) == (True, printed), verdict


@NEEDS_SANDBOX
def test_nothing_of_the_caller_is_seen(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "plum")
    (tmp_path / "secret").write_text("plum")
    paths = [str(tmp_path / "secret"), str(ROOT / "README.md"), os.path.expanduser("~/.bashrc")]
    program = f"""
import os
assert 'plum' not in str(os.environ), os.environ
for path in {paths!r}:
    assert not os.path.exists(path), path
os.kill({os.getpid()}, 0)
"""
    verdict = run_program(program, QUICK)
    assert not verdict.passed
    assert re.match("ProcessLookupError|PermissionError", verdict.output.splitlines()[-1]), verdict  # of the last line


@NEEDS_SANDBOX
def test_background_processes_die() -> None:
    mark = f"left behind {os.getpid()}"
    started = "import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)', %r]%s)"
    for options in ("", ", start_new_session=True, stdout=-3, stderr=-3"):
        verdict = run_program(started % (mark, options), QUICK)
        assert verdict.passed, verdict
    time.sleep(0.2)
    assert mark not in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout


def test_without_containment_nothing_runs_unless_asked(monkeypatch) -> None:
    monkeypatch.setattr(sandbox, "missing", lambda: "namespaces: not permitted")
    with pytest.raises(ValueError, match=r"cannot be contained here: .*namespaces.*--unsafe-exec"):
        sandbox.require(unsafe=False)
    abandoned, other = (Path(tempfile.gettempdir(), name) for name in ("nanochat-sandbox-old", "nanochat-sandbox-new"))
    for path in (abandoned, other):
        path.mkdir()
        (path / "file").touch()
    os.utime(abandoned, (0, 0))
    sandbox._remove_abandoned.cache_clear()
    verdict = run_program("import os\nprint(len(os.environ) <= 3)", QUICK, unsafe=True)
    assert (abandoned.exists(), other.exists()) == (False, True)
    assert (verdict.passed, verdict.output.strip()) == (True, "True")
    assert not run_program("while True:\n    pass", Limits(seconds=1.0), unsafe=True).passed


def test_missing_names_the_architecture_or_the_step_that_failed(monkeypatch, tmp_path) -> None:
    """The trial runs a copy of the file that asks for a namespace which no kernel has."""
    text = Path(contained.__file__).read_text(encoding="utf-8")
    broken = tmp_path / "contained.py"
    broken.write_text(text.replace("CLONE_OTHERS = 0x6E000000", "CLONE_OTHERS = 0x1"), encoding="utf-8")
    monkeypatch.setattr(contained, "__file__", str(broken))
    assert re.match(r"\[Errno \d+\] namespaces: ", sandbox.missing.__wrapped__())
    monkeypatch.setattr(sandbox.platform, "machine", lambda: "m68k")
    assert "m68k" in sandbox.missing.__wrapped__()


@pytest.mark.parametrize(("ranks", "most"), [(1, usable_cores()), (1000, 1)])
def test_as_many_at_once_as_there_are_cpus(ranks, most, monkeypatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
    tests = "import time\nstart = time.monotonic()\ntime.sleep(0.2)\nprint(start, time.monotonic())"
    verdicts = side_by_side(partial(judge, limits=QUICK, unsafe=True), [Case("f = 1", "f", tests)] * 3)
    spans = [[*map(float, verdict.output.split())] for verdict in verdicts]
    assert max(sum(a <= start < b for a, b in spans) for start, _ in spans) <= most


def test_it_needs_nothing_but_the_standard_library() -> None:
    """It is a process of its own, twice for each program: other imports would slow it down."""
    code = "import sys; sys.path.insert(0, 'nanochat/evals'); import contained; print(*sorted(set(sys.modules)))"
    loaded = subprocess.run([sys.executable, "-IS", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not {"torch", "numpy", "nanochat", "subprocess", "dataclasses"} & set(loaded.stdout.split())


BURN = """
import os, signal, time
def burn(seconds):
    while time.process_time() < seconds:
        pass
"""
# Programs whose helpers compute for 0.6 seconds in all, beside one that does nothing.
HELPED = {
    "waits for it": "if not os.fork():\n    burn(0.6)\n    os._exit(0)\nos.wait()",
    "ends before it": "reads, writes = os.pipe()\nif not os.fork():\n    burn(0.6)\n    os.write(writes, b'x')\n"
    "    time.sleep(60)\nos.read(reads, 1)",
    "ends before its child's child": "reads, writes = os.pipe()\nif not os.fork():\n    if not os.fork():\n"
    "        burn(0.6)\n        os.write(writes, b'x')\n        time.sleep(60)\n    os._exit(0)\nos.read(reads, 1)",
    "ignores its end": "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\nif not os.fork():\n    burn(0.6)\n"
    "    os._exit(0)\ntry:\n    os.wait()\nexcept ChildProcessError:\n    pass",
}


@NEEDS_SANDBOX
@pytest.mark.parametrize("name", HELPED)
def test_the_time_of_all_its_processes_is_counted(name: str) -> None:
    alone, helped = (run_program(f"{BURN}\n{program}", QUICK) for program in ("", HELPED[name]))
    assert alone.passed
    assert helped.passed, helped
    assert alone.used
    assert helped.used
    assert helped.used.cpu_seconds - alone.used.cpu_seconds > 0.4  # what one used after the last look may be missing


@NEEDS_SANDBOX
def test_many_short_processes_that_nobody_waits_for_are_at_least_counted() -> None:
    program = f"""
{BURN}
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for _ in range(20):
    if not os.fork():
        burn(0.02)
        os._exit(0)
    try:
        os.wait()
    except ChildProcessError:
        continue
"""
    verdict = run_program(program, QUICK)
    assert verdict.used
    assert verdict.used.processes == 23, verdict  # with two of the sandbox, and one that counts


@NEEDS_SANDBOX
def test_a_program_cannot_write_what_it_has_used() -> None:
    """No descriptor of the report is open in it, and what it prints is no report."""
    program = """
import os
print("0.0 0")
for descriptor in range(3, 64):
    try:
        os.write(descriptor, b"0.0 0")
    except OSError:
        continue
    raise SystemExit(f"{descriptor} can be written")
"""
    verdict = run_program(f"{program}\n{BURN}\nburn(0.3)", QUICK)
    assert verdict.passed, verdict
    assert verdict.used
    assert verdict.used.cpu_seconds > 0.3
