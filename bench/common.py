"""What every benchmark does: contenders in turn, a process for each run, medians, a table, records as JSON."""

import importlib
import itertools
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent


def in_child(work: Callable, *job: Any, python: Any = sys.executable, checkout: Any = ROOT, env: Any = (), limit=1800):
    """What a function of a module of bench/ returns in a fresh process, where the packages of `checkout` go first.

    If it returns a pair `(run, facts)`: the dict `facts(run())`, with the `seconds` that run() took and the most
    `memory` the process held until then, in MB. Where there is no answer within `limit` seconds: {"failure": why}.
    """
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder, "answer.json")
        call = [str(checkout), Path(work.__code__.co_filename).stem, work.__name__, job, str(answer)]
        command = [
            python,
            "-E",
            __file__,
            json.dumps(call),
        ]  # -E: PYTHONPATH may hide the peer that has our core's name
        try:
            done = subprocess.run(command, env=os.environ | dict(env), capture_output=True, timeout=limit)
        except subprocess.TimeoutExpired:
            return {"failure": f"over {limit} s" if answer.exists() else f"not ready to start in {limit} s"}
        if done.returncode:
            print(said := done.stderr.decode(errors="replace").strip()[-4000:], file=sys.stderr)
            last = (said or "failed without a word").splitlines()[-1]
            return {"failure": last if done.returncode > 0 else f"killed by {signal.Signals(-done.returncode).name}"}
        return json.loads(answer.read_text())


def child(checkout: str, module: str, function: str, job: list, answer: str) -> None:
    sys.path[:1] = [checkout, str(ROOT)]
    found = getattr(importlib.import_module(f"bench.{module}"), function)(*job)
    if isinstance(found, tuple):
        Path(answer).touch()  # a process that is ended from now on was ended at the work itself
        start = time.perf_counter()
        result = found[0]()
        found = {"seconds": time.perf_counter() - start, "memory": peak_memory()} | found[1](result)
    Path(answer).write_text(json.dumps(found))
    os._exit(0)  # its threads in the background need not be waited for


def peak_memory() -> float:
    """MB; Linux only. Not `getrusage`: its figure is inherited from the process that started this one."""
    return int(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024 / 1e6


class Figure(NamedTuple):
    """A figure of the runs. key: its name in their dicts, where it may be missing. shown: a format."""

    key: str
    unit: str
    less_is_better: bool = True
    shown: str = ",.2f"

    def values(self, runs: list[dict]) -> list[float]:
        """Best first."""
        return sorted((run[self.key] for run in runs if run.get(self.key) is not None), reverse=not self.less_is_better)

    def record(self, case: str, ours: list[dict], peer: list[dict], name: str) -> dict:
        """Of the medians, null where there is none; ratio > 1: ours is better."""
        mine, theirs = (statistics.median(v) if (v := self.values(runs)) else None for runs in (ours, peer))
        ratio = (theirs / mine) ** (1 if self.less_is_better else -1) if mine and theirs else None
        figures = {"ours": mine, "peer": theirs, "peer_name": name, "ratio": ratio}
        return {"case": f"{case}: {self.key}", "unit": self.unit} | figures

    def cell(self, ours: list[dict], runs: list[dict]) -> str:
        """Median, in brackets the best, and how many times better ours is."""
        values, ratio = self.values(runs), self.record("", ours, runs, "")["ratio"]
        told = f"{statistics.median(values):{self.shown}} ({values[0]:{self.shown}})" if values else ""
        return told + (f" {ratio:.2f}x" if ratio else "")


def compare(case: str, runs: dict[str, Callable[[int], dict]], figures: list[Figure], repeats: int, note=lambda *_: ""):
    """Records of all contenders, called in turn with the number of the round; prints them as a table.

    Who is called "ours…" is compared with all others; in the table, the first is. note: (all runs, name) -> a remark.
    """
    found: dict[str, list[dict]] = {name: [] for name in runs}
    load = f"load before: {os.getloadavg()[0]:.1f}"  # others' work spoils ours
    for repeat, name in itertools.product(range(repeats), runs):
        if not any("failure" in run for run in found[name]):  # who failed is not asked again
            found[name].append(last := runs[name](repeat))
            told = {figure.key: last[figure.key] for figure in figures if figure.key in last} or last
            print(f"{case}, {repeat + 1} of {repeats}, {name}: {told}", file=sys.stderr, flush=True)
    first = found[next(iter(runs))]
    rows = [[case, *(f"{figure.key}, {figure.unit}" for figure in figures), load]]
    for name, its in found.items():
        rows.append([name, *(f.cell(first, its) for f in figures), its[-1].get("failure") or note(found, name)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    print("", *("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows), sep="\n", flush=True)
    pairs = [(mine, peer) for mine in runs if mine.startswith("ours") for peer in runs if peer != mine]
    return [f.record(f"{case}, {mine}", found[mine], found[peer], peer) for mine, peer in pairs for f in figures]


def finish(path: Path | str | None, records: list[dict]) -> None:
    """Says what all this ran on, and writes the records where --json wants them."""
    from nanochat.outcome import environment, versions  # not there in a peer's process

    print("", *(f"{name}: {value}" for name, value in (environment()["Hardware"] | versions()).items()), sep="\n")
    if path:
        Path(path).write_text(json.dumps(records, indent=1) + "\n")


if __name__ == "__main__":
    child(*json.loads(sys.argv[1]))
