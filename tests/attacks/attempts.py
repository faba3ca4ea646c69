"""All attacks, tried one after the other: (kind, name, held) of each, for `python -m bench.attacks`."""

import random
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
from attacks import requests as tables
from attacks.programs import DOUBLE_TESTS, FORGERIES, PROGRAMS
from served import serving, write_model

from nanochat.calculator import REFUSALS, calculate
from nanochat.evals.sandbox import LIMITS, Case, Limits, judge_all, missing, run

QUICK = Limits(seconds=8.0, cpu_seconds=2)
PARTS = """1 2 0 9999999999 1e-99999999999999999999 .5 1,000 20% + - * / // % ** ( ) 'a' "b" .count( # _ e j 0x1f 1_0
    é \ud800 \0 \r \x0c \\ , if lambda: ~ << [ ] { } := f'{1}' ''' ... not in""".split()
Attempt = tuple[str, str, bool]  # kind, name, held


def available() -> int:
    """Return the machine's available memory in bytes."""
    return 1024 * int(Path("/proc/meminfo").read_text().split("MemAvailable:")[1].split()[0])


def held_with_memory(program: str) -> tuple[bool, int]:
    """Run a memory attack alone; return whether it was held, and the bytes that it took from the machine."""
    before, least, over = available(), [available()], threading.Event()

    def watch() -> None:
        while not over.wait(0.01):
            least[0] = min(least[0], available())

    watcher = threading.Thread(target=watch)
    watcher.start()
    verdict = run(program, LIMITS)
    over.set()
    watcher.join()
    taken = before - least[0]
    return not verdict.passed and taken <= 1.1 * LIMITS.memory * LIMITS.processes, taken


def programs() -> Iterator[Attempt]:
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
        verdicts = pool.map(lambda other: run(other[2], QUICK), others)
        for (kind, name, _), verdict in zip(others, verdicts, strict=True):
            yield kind, name, not verdict.passed


def forgeries() -> Iterator[Attempt]:
    verdicts = judge_all([Case(answer, "double", DOUBLE_TESTS) for answer in FORGERIES.values()], QUICK)
    for name, verdict in zip(FORGERIES, verdicts, strict=True):
        yield "forgeries", name, not verdict.passed


def requests() -> Iterator[Attempt]:
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder, "base")
        write_model(base)
        with serving(base, "--slots=4") as server:
            url = httpx.URL(server.url)
            for kind, name, data in tables.requests():
                status = tables.status_of((url.host, url.port), data)
                yield kind, name, status in (0, 503) or status < 500
            yield "requests", "the server is idle afterwards", server.becomes_idle()


def expressions(count: int = 3_000_000) -> Iterator[Attempt]:
    dice, wrong, slowest = random.Random(5), [], 0.0
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


KINDS = {"programs": programs, "forgeries": forgeries, "requests": requests, "expressions": expressions}
