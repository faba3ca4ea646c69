"""All attacks, tried one after the other: (kind, name, held) of each, for `python -m bench.attacks`."""

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from bench import hostile_requests as tables
from bench.common import ROOT
from bench.hostile_programs import DOUBLE_TESTS, FORGERIES, PROGRAMS
from nanochat.calculator import REFUSALS, calculate
from nanochat.evals.sandbox import LIMITS, Case, Limits, judge, missing, run_program, side_by_side

QUICK = Limits(seconds=8.0, cpu_seconds=2)
PARTS = """1 2 0 9999999999 1e-99999999999999999999 .5 1,000 20% + - * / // % ** ( ) 'a' "b" .count( # _ e j 0x1f 1_0
    é \ud800 \0 \r \x0c \\ , if lambda: ~ << [ ] { } := f'{1}' ''' ... not in""".split()


def available():
    """Return the machine's available memory in bytes."""
    return 1024 * int(Path("/proc/meminfo").read_text().split("MemAvailable:")[1].split()[0])


def held_with_memory(program: str):
    """Run a memory attack alone; return whether it was held, and the bytes that it took from the machine."""
    before = available()
    least = [available()]
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.01):
            least[0] = min(least[0], available())

    watcher = threading.Thread(target=watch)
    watcher.start()
    verdict = run_program(program, LIMITS)
    over.set()
    watcher.join()
    taken = before - least[0]
    return not verdict.passed and taken <= 1.1 * LIMITS.memory * LIMITS.processes, taken


def programs():
    if missing():
        raise SystemExit(f"there is no sandbox here: {missing()}")
    for name, program in PROGRAMS["memory"].items():
        held, taken = held_with_memory(program)
        print(f"memory: {name}: {taken / 2**20:,.0f} MB")
        yield "memory", name, held
    others = [
        (kind, name, program) for kind in PROGRAMS if kind != "memory" for name, program in PROGRAMS[kind].items()
    ]
    with ThreadPoolExecutor(4) as pool:
        verdicts = pool.map(lambda other: run_program(other[2], QUICK), others)
        for (kind, name, _), verdict in zip(others, verdicts, strict=True):
            yield kind, name, not verdict.passed


def forgeries():
    cases = [Case(answer, "double", DOUBLE_TESTS) for answer in FORGERIES.values()]
    verdicts = side_by_side(partial(judge, limits=QUICK), cases)
    for name, verdict in zip(FORGERIES, verdicts, strict=True):
        yield "forgeries", name, not verdict.passed


def requests():
    from bench.served import serving, write_model  # imports torch

    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder, "base")
        write_model(base)
        with serving(base, "--slots=4") as server:
            url = httpx.URL(server.url)
            for kind, name, data in tables.requests():
                status = tables.status_of((url.host, url.port), data)
                yield kind, name, status < 500  # 0: the connection is closed
            yield "requests", "the server is idle afterwards", server.becomes_idle()
            failures = httpx.get(f"{server.url}/health").json()["engine_failures"]
            yield "requests", "no engine has failed", failures == 0


def expressions(count: int = 3_000_000):
    dice = random.Random(5)
    wrong = []
    slowest = 0.0
    for number in range(count):
        expression = "".join(dice.choices(PARTS, k=dice.randint(1, 60 if number % 3 else 9)))
        start = time.perf_counter()
        try:
            calculate(expression)
        except REFUSALS:
            pass
        except Exception as error:  # the calculator promises no other
            wrong.append(f"{expression!r}: {error!r}")
        slowest = max(slowest, time.perf_counter() - start)
    print(f"expressions: the slowest took {1000 * slowest:.1f} ms")
    yield from (("expressions", text, False) for text in wrong)
    yield from (("expressions", "", True) for _ in range(count - len(wrong)))


class Training:
    """Small runs of base training in a folder, which can be killed."""

    def __init__(self, folder: str, steps: int, save_every: int) -> None:
        self.folder = Path(folder)
        self.steps = steps
        self.flags = ["--depth=1", "--head-dim=32", "--max-seq-len=64", "--device-batch-size=2"]
        self.flags += ["--total-batch-size=128", f"--num-iterations={steps}", f"--save-every={save_every}"]
        self.flags += ["--keep-last=2", "--eval-every=-1", "--tokenizer-tag=default"]
        self.start("nanochat.world", f"--out={folder}/world", "--size=tiny").wait()
        self.start("scripts.tok_train", "--vocab-size=300").wait()

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """Start a module, without output."""
        environment = os.environ | {"NANOCHAT_BASE_DIR": str(self.folder), "OMP_NUM_THREADS": "1"}
        streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return subprocess.Popen([sys.executable, "-m", *words], cwd=ROOT, env=environment, **streams)

    def run(self, tag: str) -> subprocess.Popen[bytes]:
        """Start a run, or resume it."""
        return self.start("scripts.base_train", *self.flags, f"--tag={tag}")

    def files(self, tag: str) -> list[str]:
        """Return the hashes of the weights and states after the last step."""
        paths = sorted((self.folder / "base_train" / tag / f"step_{self.steps:06d}").glob("*.safetensors"))
        return [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]


def kills(count: int = 100):
    """Kill a run at random moments, and again when it resumes, until `count` kills; it must end as if undisturbed."""
    dice = random.Random(3)
    with tempfile.TemporaryDirectory() as folder:
        training = Training(folder, steps=240, save_every=3)
        began = time.monotonic()
        training.run("whole").wait()
        seconds = time.monotonic() - began
        whole = training.files("whole")
        done = 0
        run = 0
        while done < count:
            run += 1
            tag = f"killed-{run}"
            killed = 0
            process = training.run(tag)
            while done + killed < count and killed < KILLS_PER_RUN:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(dice.uniform(0.3, 1.0) * seconds)
                    break
                process.kill()
                process.wait()
                killed += 1
                process = training.run(tag)
            ended = process.wait() == 0
            done += killed
            for _ in range(killed):
                yield "base_train", tag, ended and training.files(tag) == whole != []


def artifacts(folder: str):
    """Return the hashes of each finished stage's artifacts."""
    return {path: json.loads(path.read_text())["artifacts"] for path in Path(folder).glob("*/default/outcome.json")}


def speedrun(count: int = 20):
    """Kill `speedrun.sh` with its stages at random moments: finished stages stay, and the last attempt ends."""
    dice = random.Random(4)
    kept: dict[str, Any] = {}
    kills = 0
    with tempfile.TemporaryDirectory() as folder:
        command = ["env", f"NANOCHAT_BASE_DIR={folder}", "bash", "speedrun.sh", "--seconds=10", "--until=chat_sft"]
        while kills < count:
            process = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
            with suppress(subprocess.TimeoutExpired):
                process.wait(dice.uniform(0.5, 12))
                if process.returncode:
                    yield "speedrun.sh", f"fails with exit code {process.returncode}", False
                    return
                shutil.rmtree(folder)  # it has ended: from the beginning
                kept = {}
                continue
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            kills += 1
            yield "speedrun.sh", f"stages finished: {len(kept)}", kept.items() <= artifacts(folder).items()
            kept = artifacts(folder)
        process = subprocess.run(command, cwd=ROOT, check=False)
        yield "speedrun.sh", "ends", process.returncode == 0 and kept.items() <= artifacts(folder).items()


KILLS_PER_RUN = 5
KINDS = {
    "kills": kills,
    "speedrun": speedrun,
    "programs": programs,
    "forgeries": forgeries,
    "requests": requests,
    "expressions": expressions,
}
