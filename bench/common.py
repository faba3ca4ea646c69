"""Shared by all benchmarks: contenders in turn, a process for each run, medians, a table, --json."""

import argparse
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
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bench.findings import Findings

ROOT = Path(__file__).resolve().parent.parent


def in_child(work: Callable, *job: Any, python: Any = sys.executable, checkout: Any = ROOT, env: Any = (), limit=1800):
    """Call a function of bench/ or of a track in a fresh process, and return its result.

    The packages of `checkout` come first on its path.

    A function may return a pair `(run, facts)`. Then the result is the dict `facts(run())`, with the `seconds` that
    run() took, the `rate` for a `count`, and the peak `memory` of the process in MB. Without an answer in `limit`
    seconds: {"failure": reason}.
    """
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder, "answer.json")
        # Its own __module__ may be "__main__".
        module = ".".join(Path(work.__code__.co_filename).resolve().relative_to(ROOT).with_suffix("").parts)
        call = [str(Path(checkout).resolve()), module, work.__name__, job, str(answer)]
        command = [
            python,
            "-E",  # PYTHONPATH may hide the peer that has our core's name
            __file__,
            json.dumps(call),
        ]
        try:
            done = subprocess.run(command, env=os.environ | dict(env), capture_output=True, timeout=limit)
        except subprocess.TimeoutExpired:
            # The child creates the file when the clock starts.
            return {"failure": f"over {limit} s" if answer.exists() else f"not ready to start in {limit} s"}
        if done.returncode:
            error = done.stderr.decode(errors="replace").strip()[-4000:]
            print(error, file=sys.stderr)
            last = (error or "failed without a message").splitlines()[-1]
            return {"failure": last if done.returncode > 0 else f"killed by {signal.Signals(-done.returncode).name}"}
        return json.loads(answer.read_text())


def required(work: Callable, *job: Any, **options: Any):
    """Call a function as `in_child` does, or stop with its error."""
    found = in_child(work, *job, **options)
    if found and "failure" in found:
        raise SystemExit(found["failure"])
    return found


def contenders(reference: str, works: dict[str, tuple], **options: Any):
    """Return the runs for `compare`. works: name -> function and its job; "reference" needs a checkout."""
    runs = {}
    for name, work in works.items():
        checkout = reference if name == "reference" else ROOT
        if checkout:
            runs[name] = lambda _, work=work, checkout=checkout: in_child(*work, checkout=checkout, **options)
    return runs


def child(checkout: str, module: str, function: str, job: list, answer: str) -> None:
    """Run a job in this process and write the result to a JSON file."""
    sys.path[:1] = [checkout, str(ROOT)]
    found = getattr(importlib.import_module(module), function)(*job)
    if isinstance(found, tuple):
        Path(answer).touch()  # a time-out from now on is one of the work itself
        start = time.perf_counter()
        result = found[0]()
        seconds = time.perf_counter() - start
        found = {"seconds": seconds, "memory": peak_memory()} | found[1](result)
        if "count" in found:
            found["rate"] = found["count"] / seconds
    Path(answer).write_text(json.dumps(found))
    os._exit(0)  # does not wait for threads in the background


def peak_memory():
    """Return the peak memory in MB; Linux only. `getrusage` inherits its figure from the parent process."""
    return int(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024 / 1e6


def run_script(name: str, flags: Iterable[str]) -> None:
    """Run a script of scripts/ in this process."""
    from nanochat.config import parse

    script = importlib.import_module(f"scripts.{name}")
    script.main(parse(script.Config, list(flags)))


# ---- models with random weights, each made in a process of its own ----


def our_model(*sizes: int, **fields: int):
    """Return a model of ours in the dtype of the device, and its runtime."""
    import torch

    from nanochat.gpt import GPTConfig
    from nanochat.models import build_model
    from nanochat.runtime import Runtime

    gpu = torch.cuda.is_available()
    runtime = Runtime(torch.device("cuda" if gpu else "cpu"), torch.bfloat16 if gpu else torch.float32, "sdpa")
    return build_model(GPTConfig(*sizes, **fields), runtime, 1).eval(), runtime


def reference_model(*sizes: Any):
    """Return a model of the reference, which is the package `nanochat` in this process."""
    import torch

    from nanochat.gpt import GPT, GPTConfig

    with torch.device("meta"):
        model = GPT(GPTConfig(*sizes))
    model.to_empty(device="cuda" if torch.cuda.is_available() else "cpu")
    model.init_weights()
    return model


# ---- the parent ----


def parser_of(name: str, text: str, has_reference: bool = False, **sizes: int):
    """Return a parser with the options that most benchmarks have. text: the benchmark's docstring."""
    from bench.findings import add_json  # here, because `in_child` runs this file without the package

    parser = argparse.ArgumentParser(prog=f"python -m bench.{name}", description=text.splitlines()[0])
    if has_reference:
        parser.add_argument("--reference", default="", help="checkout of the public nanochat")
    for size, default in sizes.items():
        parser.add_argument(f"--{size}", type=int, default=default)
    add_json(parser)
    return parser


@dataclass(frozen=True)
class Figure:
    """A figure that runs report."""

    key: str  # in the dict of a run; some runs may lack it
    unit: str
    less_is_better: bool = True
    shown: str = ",.2f"  # format in the table

    def values(self, runs: list[dict]):
        """Return the values of several runs, best first."""
        return sorted((run[self.key] for run in runs if run.get(self.key) is not None), reverse=not self.less_is_better)

    def record(self, ours: list[dict], runs: list[dict]) -> dict[str, Any] | None:
        """Return the figure of a contender for --json: median, best, all values, ratio to ours; None without runs."""
        values = self.values(runs)
        if not values:
            return None
        median = statistics.median(values)
        mine = statistics.median(self.values(ours) or [0])
        ratio = (median / mine if self.less_is_better else mine / median) if mine and median else None
        return {"unit": self.unit, "median": median, "best": values[0], "values": values, "ratio": ratio}

    def cell(self, ours: list[dict], runs: list[dict]):
        """Return a cell: median, in brackets the best run, and the ratio to ours; above 1, ours is better."""
        found = self.record(ours, runs)
        if not found:
            return ""
        cell = f"{found['median']:{self.shown}} ({found['best']:{self.shown}})"
        return cell + (f" {found['ratio']:.2f}x" if found["ratio"] else "")


def compare(
    findings: "Findings",
    case: str,
    runs: dict[str, Callable[[int], dict]],
    figures: list[Figure],
    repeats: int,
    note=lambda *_: "",
):
    """Run all contenders in turn, each with the number of the round; print a table and return the runs by name.

    Ratios are to the first contender. note: (all runs, name) -> a remark for the last column. `findings` gets a row for
    each contender, with a dict for each figure (`Figure.record`).
    """
    found: dict[str, list[dict]] = {name: [] for name in runs}
    load = f"load before: {os.getloadavg()[0]:.1f}"  # other processes spoil the figures
    for repeat, name in itertools.product(range(repeats), runs):
        if any("failure" in run for run in found[name]):
            continue  # no second try after a failure
        found[name].append(runs[name](repeat))
        print(f"{case}, {repeat + 1} of {repeats}, {name}: {found[name][-1]}", file=sys.stderr, flush=True)
    first = found[next(iter(runs))]
    rows = [[case, *(f"{figure.key}, {figure.unit}" for figure in figures), load]]
    for name, own in found.items():
        remark = own[-1].get("failure") or note(found, name)
        rows.append([name, *(figure.cell(first, own) for figure in figures), remark])
        records = {figure.key: figure.record(first, own) for figure in figures}
        findings.add(case=case, name=name, note=remark, failed="failure" in own[-1], **records)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    print("", *("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows), sep="\n", flush=True)
    return found


if __name__ == "__main__":
    child(*json.loads(sys.argv[1]))
