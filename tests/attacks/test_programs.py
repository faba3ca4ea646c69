"""The sandbox against hostile programs, against answers that forge verdicts, and when its caller is killed."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from conftest import ROOT
from contain import NEEDS_SANDBOX
from test_speedrun import until

from bench.hostile_programs import DOUBLE_TESTS, FORGERIES, PROGRAMS, RIGHT, SLOW
from nanochat import cores, errors
from nanochat.evals import contained, plain_data, sandbox
from nanochat.evals.sandbox import Case, Limits, Verdict, judge, run_program, side_by_side

pytestmark = NEEDS_SANDBOX
QUICK = Limits(seconds=6.0, cpu_seconds=2)
SOON = replace(QUICK, cpu_seconds=1)  # for programs that may compute until they are stopped
HOSTILE = {f"{kind}: {name}": program for kind, table in PROGRAMS.items() for name, program in table.items()}


@pytest.fixture(scope="module")
def verdicts():
    """The verdicts on all hostile programs, which run side by side."""
    with ThreadPoolExecutor(6) as pool:
        limits = [SOON if name.startswith("time: ") else QUICK for name in HOSTILE]
        return dict(zip(HOSTILE, pool.map(run_program, HOSTILE.values(), limits), strict=True))


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_program_is_held(name, verdicts) -> None:
    verdict = verdicts[name]
    assert not verdict.passed, verdict
    assert len(verdict.output) <= QUICK.file_bytes


def cases(answers: dict[str, str]):
    return [Case(answer, "double", DOUBLE_TESTS) for answer in answers.values()]


def test_no_verdict_is_forged_and_right_answers_pass() -> None:
    verdicts = dict(zip(FORGERIES, side_by_side(partial(judge, limits=SOON), cases(FORGERIES)), strict=True))
    assert not [name for name, verdict in verdicts.items() if verdict.passed or verdict.forgeable]
    verdicts = dict(zip(RIGHT, side_by_side(partial(judge, limits=QUICK), cases(RIGHT)), strict=True))
    assert not [(name, verdict) for name, verdict in verdicts.items() if not verdict.passed or verdict.forgeable]
    assert judge(Case("def f(n):\n    yield from range(n)", "f", "assert list(f(3)) == [0, 1, 2]"), QUICK).passed
    fails = "try: f(1)\nexcept ZeroDivisionError: pass\nelse: assert False"
    assert judge(Case("def f(n):\n    return n / 0", "f", fails), QUICK).passed
    # Tests with other values say that they are forgeable.
    called = Case("def f(g):\n    return g(2)", "f", "assert f(lambda x: x + 1) == 3")
    assert judge(called, QUICK) == Verdict(True, "", forgeable=True)
    # A result that is given back is plain, whatever the answer says: its own process never judges.
    case = Case(
        "class E(int):\n    __reduce_ex__ = 0\ndef double(x): return E(2 * x)",
        "double",
        "assert double(double(2)) == 8",
    )
    assert judge(case, QUICK) == Verdict(True, "", forgeable=False)
    # An end of iteration in an answer ends no loop of the tests.
    looped = "assert all(map(lambda x: f(x) == 2 * x, range(5)))"
    assert not judge(Case("def f(x): raise StopIteration", "f", looped), QUICK).passed
    pairs = "for ours, right in zip(map(f, [1, 2]), [2, 4]): assert ours == right"
    assert not judge(Case("def f(x): raise StopIteration", "f", pairs), QUICK).passed
    # What an answer would do as a program of its own, like asking for input, it does not do here.
    main = "\nif __name__ == '__main__':\n    raise SystemExit(f(int(input())))"
    assert judge(Case(f"def f(n):\n    return n + 1\n{main}", "f", "assert f(1) == 2"), QUICK).passed
    whole = Case(f"from __future__ import annotations\ndef f(g):\n    return g(2)\n{main}", "f", called.tests)
    assert judge(whole, QUICK) == Verdict(True, "", forgeable=True)
    # A program may end with the judge's exit status for values that are not plain.
    assert not run_program("raise SystemExit(3)", QUICK).forgeable
    assert not judge(replace(case, answer="def f(g):\n    return 2"), QUICK).passed


def children():
    """The processes that run the sandbox's file, or a program inside."""
    lines = subprocess.run(["ps", "-wweo", "pid,args"], capture_output=True, text=True, check=True).stdout.splitlines()
    return {line.split()[0] for line in lines if "contained.py" in line or "-IB -c" in line}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_outlives_a_caller_that_is_killed(number) -> None:
    """Neither the helper nor the program, which would sleep for ten minutes."""
    before, folders = children(), set(Path(tempfile.gettempdir()).glob("nanochat-sandbox-*"))
    program = "import os, time\nos.fork()\ntime.sleep(600)"
    code = f"from nanochat.evals.sandbox import run_program\nrun_program({program!r})"
    caller = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    until(lambda: len(children() - before) >= 3, "a helper and two processes of the program")
    caller.send_signal(number)
    caller.wait(10)
    until(lambda: not children() - before, "the end of all of them")
    assert set(Path(tempfile.gettempdir()).glob("nanochat-sandbox-*")) <= folders


# As another user: reads programs and answers, prints which passed.
ASK = """
import json, sys
from concurrent.futures import ThreadPoolExecutor
from nanochat.evals import sandbox
assert not sandbox.missing(), sandbox.missing()
asked = json.load(sys.stdin)
limits = sandbox.LIMITS_HERE
with ThreadPoolExecutor(4) as pool:
    programs = pool.map(lambda program: sandbox.run_program(program, limits).passed, asked["programs"])
    cases = [sandbox.Case(answer, "double", asked["tests"]) for answer in asked["answers"]]
    verdicts = pool.map(lambda case: sandbox.judge(case, limits).passed, cases)
    print(json.dumps([list(programs), list(verdicts)]))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("share", [3, pytest.param(1, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])])
def test_a_user_without_rights_is_held_too(seed, share) -> None:
    """A third of the programs and forgeries, others in each run; with `-m slow` all of them."""
    python = shutil.which("python3", path="/usr/bin")
    if python is None:
        pytest.skip("needs a python3 in /usr/bin")
    folder = Path(tempfile.mkdtemp(dir="/tmp"))  # other users cannot read pytest's folder
    folder.chmod(0o755)
    package = folder / "nanochat" / "evals"
    package.mkdir(parents=True)
    for module in (sandbox, contained, plain_data):
        shutil.copy(module.__file__, package)
    for module in (errors, cores):
        shutil.copy(module.__file__, package.parent)
    (folder / "ask.py").write_text(ASK.replace("sandbox.LIMITS_HERE", f"sandbox.{QUICK}"))
    dice = random.Random(seed)
    quick = [name for name in HOSTILE if share == 1 or name.partition(": ")[2] not in SLOW]
    attacks = {name: HOSTILE[name] for name in dice.sample(quick, len(quick) // share)}
    answers = {name: FORGERIES[name] for name in dice.sample(list(FORGERIES), len(FORGERIES) // share)}
    command = ["setpriv", "--reuid=12345", "--regid=12345", "--clear-groups", python, "ask.py"]
    environment = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}
    asked = {
        "programs": [*attacks.values(), "print(1)"],
        "answers": [*answers.values(), "def double(x): return 2 * x"],
        "tests": DOUBLE_TESTS,
    }
    done = subprocess.run(
        command, cwd=folder, env=environment, input=json.dumps(asked), capture_output=True, text=True, timeout=1500
    )
    shutil.rmtree(folder)
    assert done.returncode == 0, done.stderr
    (*passed, honest), (*forged, right) = json.loads(done.stdout)
    assert not [name for name, held in zip(attacks, passed, strict=True) if held]
    assert not [name for name, held in zip(answers, forged, strict=True) if held]
    assert honest
    assert right
    print(f"held as another user: {len(passed)} programs, {len(forged)} forgeries")
