"""The sandbox: hostile programs are held, honest ones run."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import ROOT

from nanochat.evals import sandbox
from nanochat.evals.sandbox import Limits, Verdict, run, run_all

QUICK = Limits(seconds=20.0, cpu_seconds=2)
needs_sandbox = pytest.mark.skipif(bool(sandbox.missing()), reason=f"no sandbox here: {sandbox.missing()}")

HONEST = {
    "uses memory": ("import time\nx = b'x' * 10**8\ntime.sleep(0.3)\nprint(6 * 7)", "42"),
    "uses the library": ("import json, math, random, re, threading\nprint(math.comb(5, 2))", "10"),
    "uses its directory": ("open('/tmp/x', 'w').write('mine')\nprint(open('x').read())", "mine"),
    "starts a process": ("import subprocess\nprint(subprocess.check_output(['echo', 'hello']).decode())", "hello"),
    "uses threads": ("import threading as t\nx = t.Thread(target=print, args=(5,))\nx.start()\nx.join()", "5"),
}
HOSTILE = {  # attack -> a program that reaches its end only if the attack succeeds
    "fork bomb": "import os\nwhile True:\n    os.fork()",
    "many processes": "import os, time\nfor _ in range(7):\n    if not os.fork():\n        time.sleep(5)",
    "memory bomb": "x = []\nwhile True:\n    x.append(bytearray(2**24))",
    "endless loop": "while True:\n    pass",
    "endless output": "while True:\n    print('x' * 1000)",
    "endless file": "f = open('/tmp/f', 'wb')\nwhile True:\n    f.write(bytes(2**20))",
    "many files": "for i in range(100):\n    open(f'/tmp/{i}', 'wb').write(bytes(2**20))",
    "socket": "import socket\nsocket.socket()",
    "writing to the system": "open('/usr/planted', 'w')",
    "writing to the root": "open('/planted', 'w')",
    "ptrace by ctypes": "import ctypes\nassert ctypes.CDLL(None).ptrace(0, 0, 0, 0) == 0",
    "namespaces by ctypes": "import ctypes\nassert ctypes.CDLL(None).unshare(0x10000000) == 0",
    "mount by ctypes": "import ctypes\nassert ctypes.CDLL(None).mount(b'none', b'/tmp', b'tmpfs', 0, None) == 0",
    "becoming root": "import os\nos.setuid(0)",
    "early success": "import os\nos._exit(0)",
    "silence": "import os, time\nos.close(1)\nos.close(2)\nwhile True:\n    pass",
    "memory shared by key": "import ctypes\nassert ctypes.CDLL(None).shmget(0, 2**20, 0o1600) >= 0",
    "memory that is a file": "import os\nos.memfd_create('x')",
    "an exit status like an unknown signal": "import os\nos._exit(160)",
    "raising its limits": "import resource\nresource.setrlimit(resource.RLIMIT_AS, (2**40, 2**40))",
}


@needs_sandbox
@pytest.mark.parametrize("name", HONEST)
def test_an_honest_program_runs(name):
    program, printed = HONEST[name]
    verdict = run(program, QUICK)
    assert (verdict.passed, verdict.output.strip()) == (True, printed), verdict


@pytest.fixture(scope="module")
def verdicts() -> dict[str, Verdict]:
    """The verdicts on all hostile programs, which run side by side."""
    with ThreadPoolExecutor(4) as pool:
        return dict(zip(HOSTILE, pool.map(lambda program: run(program, QUICK), HOSTILE.values()), strict=True))


@needs_sandbox
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_program_is_held(name, verdicts):
    verdict = verdicts[name]
    assert not verdict.passed, verdict
    assert len(verdict.output) <= QUICK.file_bytes


@needs_sandbox
def test_nothing_of_the_caller_is_seen(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "plum")
    (tmp_path / "secret").write_text("plum")
    paths = [str(tmp_path / "secret"), str(ROOT / "README.md"), os.path.expanduser("~/.bashrc"), "/etc/passwd"]
    program = f"""
import os
assert 'plum' not in str(os.environ), os.environ
for path in {paths!r}:
    assert not os.path.exists(path), path
assert os.listdir('/tmp') == ['program.py'], os.listdir('/tmp')
assert not os.path.exists('/proc/{os.getpid()}')
try:
    os.kill({os.getpid()}, 0)
except (ProcessLookupError, PermissionError):
    pass
else:
    raise AssertionError('it can signal its caller')
"""
    verdict = run(program, QUICK)
    assert verdict.passed, verdict


@needs_sandbox
def test_the_secret_word_is_not_in_the_program():
    program = """
import os, re, sys
seen = open(__file__).read() + repr([sys._getframe().f_code.co_consts, sys.orig_argv, os.environ, os.listdir()])
seen += sys.stdin.read()
for word in re.findall("[0-9a-f]{32}", seen):
    print(f"\\n{word}", flush=True)
os._exit(0)
"""
    verdict = run(program, QUICK)
    assert (verdict.passed, verdict.output) == (False, ""), verdict


@needs_sandbox
def test_background_processes_die():
    mark = f"left behind {os.getpid()}"
    started = "import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)', %r]%s)"
    for options in ("", ", start_new_session=True, stdout=-3, stderr=-3"):
        verdict = run(started % (mark, options), QUICK)
        assert verdict.passed, verdict
    time.sleep(0.2)
    assert mark not in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout


def test_without_containment_nothing_runs_unless_asked(monkeypatch):
    monkeypatch.setattr(sandbox, "missing", lambda: "namespaces: not permitted")
    with pytest.raises(ValueError, match=r"cannot be contained here: .*namespaces.*--unsafe-exec"):
        sandbox.require(unsafe=False)
    verdict = run("import os\nprint(len(os.environ) <= 3)", QUICK, unsafe=True)
    assert (verdict.passed, verdict.output.strip()) == (True, "True")
    assert not run("while True:\n    pass", Limits(seconds=1.0), unsafe=True).passed


def test_missing_names_the_architecture_or_the_step_that_failed(monkeypatch, tmp_path):
    """The trial runs a copy of the file that asks for a namespace which no kernel has."""
    text = Path(sandbox.__file__).read_text(encoding="utf-8")
    broken = tmp_path / "sandbox.py"
    broken.write_text(text.replace("CLONE_NEWNS = 0x00020000", "CLONE_NEWNS = 0x1"), encoding="utf-8")
    monkeypatch.setattr(sandbox, "__file__", str(broken))
    assert re.match(r"\[Errno \d+\] namespaces: ", sandbox.missing.__wrapped__())
    monkeypatch.setattr(sandbox.platform, "machine", lambda: "m68k")
    assert "m68k" in sandbox.missing.__wrapped__()


@pytest.mark.parametrize(("ranks", "most"), [(1, os.cpu_count()), (1000, 1)])
def test_as_many_at_once_as_there_are_cpus(ranks, most, monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
    programs = ["import time\nstart = time.monotonic()\ntime.sleep(0.2)\nprint(start, time.monotonic())"] * 3
    spans = [[*map(float, verdict.output.split())] for verdict in run_all(programs, QUICK, unsafe=True)]
    assert max(sum(a <= start < b for a, b in spans) for start, _ in spans) <= most


@needs_sandbox
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_user_without_rights_is_contained_too():
    python = shutil.which("python3", path="/usr/bin")
    if python is None:
        pytest.skip("needs a python3 in /usr/bin")
    folder = Path(tempfile.mkdtemp(dir="/tmp"))  # other users cannot read pytest's folder
    folder.chmod(0o755)
    shutil.copy(sandbox.__file__, folder)
    attacks = [program for name, program in HOSTILE.items() if not re.search("endless|bomb|silence|many", name)]
    programs = json.dumps([*attacks, "print(1)"])
    (folder / "ask.py").write_text(
        "import sandbox, json\n"
        "assert not sandbox.missing(), sandbox.missing()\n"
        f"verdicts = sandbox.run_all({programs}, sandbox.Limits(20.0, 2))\n"
        "print(json.dumps([verdict.passed for verdict in verdicts]))"
    )
    command = ["setpriv", "--reuid=12345", "--regid=12345", "--clear-groups", python, "ask.py"]
    environment = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=200)
    shutil.rmtree(folder)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [False] * len(attacks) + [True]


def test_it_needs_nothing_but_the_standard_library():
    code = "import sys; sys.path.insert(0, 'nanochat/evals'); import sandbox; print(*sorted(set(sys.modules)))"
    loaded = subprocess.run([sys.executable, "-IS", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not {"torch", "numpy", "pyarrow", "nanochat"} & set(loaded.stdout.split())
