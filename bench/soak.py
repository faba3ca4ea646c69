"""Soaks: the chat server under 32 clients, one request in ten abusive; training that is killed once a minute.

    python -m bench.soak [--minutes 60] [--only server training]

Server: memory and open files are read every ten seconds, and a line is fitted to them after the first quarter, in
which threads, pools and caches get their size. They are flat if the slope lies within two of its standard errors.
Latencies are of whole answers of a fixed length, in the first and in the last sixth. Training: a run that nothing
disturbs, then runs that are killed once a minute and resume; their weights and optimizer states must be equal. The exit
status is 1 if a goal is missed.
"""

import itertools
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from bench.attempts import Training
from bench.common import parser_of
from bench.findings import Findings
from bench.hostile_requests import CHAT, requests, status_of
from bench.serve import CONTEXT, VOCABULARY, memory, random_words, served
from nanochat.log import table_of

ABUSIVE = 10  # one request in so many
TOKENS = 24  # of each answer
BETWEEN = 10.0  # seconds between two looks at the server
SETTLED = 0.25  # share of the time before the line
PART = 1 / 6  # share of the time whose latencies are compared
SLOWER = 0.1  # growth of the latency that is still equal
MINUTE = 60.0
STEPS = 20_000  # of a training run: minutes


def slope_of(times: list[float], values: list[float]) -> tuple[float, float]:
    """Return the slope of a line, and its standard error, an hour."""
    hours = np.array(times) / 3600
    (slope, _), covariance = np.polyfit(hours, values, 1, cov=True)
    return float(slope), float(covariance[0, 0] ** 0.5)


def soak_server(minutes: float, clients: int, slots: int) -> dict[str, Any]:
    """Ask a server for so long; return what was found."""
    from bench.served import write_model  # imports torch

    attacks = [data for _, _, data in requests()]
    seconds = minutes * MINUTE
    with tempfile.TemporaryDirectory() as folder:
        text = [random_words(random.Random(1), 20_000)]
        sizes = {"depth": 4, "width": 256, "heads": 4, "kv_heads": 4, "max_seq_len": CONTEXT}
        write_model(Path(folder), endless=True, text=text, vocabulary=VOCABULARY, **sizes)
        with served(Path(folder), slots) as server:
            start = time.monotonic()
            numbers = itertools.count()
            workers = ThreadPoolExecutor(clients)
            working = [workers.submit(_ask, server, numbers, start + seconds, attacks) for _ in range(clients)]
            looks: list[tuple[float, float, float]] = []  # seconds, memory in MB, open files
            waits: list[float] = []  # of /health, in ms
            with httpx.Client(base_url=server.url, timeout=60) as watcher:
                while time.monotonic() - start < seconds:
                    asked = time.perf_counter()
                    watcher.get("/health").raise_for_status()
                    waits.append(1e3 * (time.perf_counter() - asked))
                    files = len(os.listdir(f"/proc/{server.process.pid}/fd"))
                    looks.append((time.monotonic() - start, memory(server.process.pid), files))
                    time.sleep(BETWEEN)
            answers = [answer for one in working for answer in one.result()]
            workers.shutdown()
            idle = server.becomes_idle()
            lines = len(server.log)
    times, sizes_seen, files_seen = (list(column) for column in zip(*looks, strict=True))
    settled = next(number for number, moment in enumerate(times) if moment >= SETTLED * seconds)
    good = [(moment, wait) for moment, wait, status in answers if status == 200 and wait]
    first = [wait for moment, wait in good if moment - start < PART * seconds]
    last = [wait for moment, wait in good if moment - start > (1 - PART) * seconds]
    return {
        "answers": len(good),
        "bad requests": sum(wait == 0 for _, wait, _ in answers),
        "errors": sum(status >= 500 if wait == 0 else status != 200 for _, wait, status in answers),
        "idle afterwards": idle,
        "lines in the log": lines,
        "memory": statistics.median(sizes_seen[settled:]),
        "memory, slope": slope_of(times[settled:], sizes_seen[settled:]),
        "open files": statistics.median(files_seen[settled:]),
        "open files, slope": slope_of(times[settled:], files_seen[settled:]),
        "latency, first": statistics.median(first),
        "latency, last": statistics.median(last),
        "health p50": statistics.median(waits),
        "health worst": max(waits),
        "looks": looks,
    }


def _ask(server: Any, numbers: Iterator[int], end: float, attacks: list[bytes]) -> list[tuple[float, float, int]]:
    """Send one request after another; return of each: when it began, milliseconds (0: an abusive one), status."""
    found = []
    with httpx.Client(base_url=server.url, timeout=300) as client:
        while (moment := time.monotonic()) < end:
            number = next(numbers)
            if number % ABUSIVE == 0:
                status = 0
                with suppress(OSError):  # the server may reset such a connection
                    status = status_of(server.address, attacks[number // ABUSIVE % len(attacks)], seconds=1.0)
                found.append((moment, 0.0, status))
                continue
            words = random_words(random.Random(number), 12)
            body = {"messages": [{"role": "user", "content": words}], "max_tokens": TOKENS, "seed": number}
            try:
                status = client.post(CHAT, json=body).status_code
            except httpx.HTTPError:  # an error of the server, like a status
                status = 0
            found.append((moment, 1e3 * (time.monotonic() - moment), status))
            if status != 200:
                time.sleep(0.1)
    return found


def soak_training(minutes: float, between: float = MINUTE) -> dict[str, Any]:
    """Kill training once a minute for so long."""
    kills = 0
    equal = []
    with tempfile.TemporaryDirectory() as folder:
        training = Training(folder, steps=STEPS, save_every=100)
        training.run("whole").wait()
        whole = training.files("whole")
        end = time.monotonic() + minutes * MINUTE
        for number in itertools.count():
            if time.monotonic() >= end:
                break
            while (process := training.run(f"killed-{number}")).poll() is None:
                try:
                    process.wait(between if time.monotonic() < end else None)
                    break
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
                    kills += 1
            equal.append(process.returncode == 0 and training.files(f"killed-{number}") == whole != [])
    return {"kills": kills, "runs": len(equal), "runs with equal bits": sum(equal)}


def missed_goals(found: dict[str, Any]) -> list[str]:
    """Return the goals that are missed."""
    missed = []
    for name in ("memory", "open files"):
        slope, error = found.get(f"{name}, slope", (0.0, 0.0))
        if slope > 2 * error:
            missed.append(f"{name} is flat (it grows by {slope:.2f} ± {error:.2f} an hour)")
    if found.get("latency, last", 0.0) > (1 + SLOWER) * found.get("latency, first", 0.0):
        missed.append("the last latencies are within 10 % of the first")
    if found.get("errors"):
        missed.append("no error")
    if not found.get("idle afterwards", True):
        missed.append("no sample is left")
    if found.get("kills") == 0:
        missed.append("training is killed")
    if found.get("runs with equal bits") != found.get("runs"):
        missed.append("equal bits")
    return missed


def main() -> None:
    parser = parser_of("soak", __doc__, clients=32, slots=32)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--only", nargs="*", choices=["server", "training"], default=["server", "training"])
    options = parser.parse_args()
    findings = Findings("soak", options.json)
    found: dict[str, Any] = {}
    if "server" in options.only:
        found |= soak_server(options.minutes, options.clients, options.slots)
        looks = found.pop("looks")
        findings.add(looks=[{"seconds": t, "memory": size, "files": files} for t, size, files in looks])
    if "training" in options.only:
        found |= soak_training(options.minutes)
    rows = [
        [name, " ± ".join(f"{x:.2f}" for x in value) if isinstance(value, tuple) else value]
        for name, value in found.items()
    ]
    findings.show(table_of("", "Figure | Value", rows))
    missed = missed_goals(found)
    print(f"goals missed: {', '.join(missed)}" if missed else "all goals are reached")
    findings.add(missed=missed)
    findings.finish()
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
