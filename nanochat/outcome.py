"""What a stage did and where it ran: the record `outcome.json` that the report card is rendered from."""

import contextlib
import dataclasses
import glob
import importlib.metadata
import json
import math
import os
import platform
import re
import shlex
import statistics
import subprocess
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from nanochat.paths import read_sha256, stage_dir, write_json

ROOT = Path(__file__).parent.parent
LOCK = "requirements.lock"
SOURCE_SUFFIXES = (".py", ".md", ".rs", ".html", ".toml", ".sh")
VERSIONED = ("nanochat", "rustbpe", "torch", "numpy", "pyarrow", "tiktoken")


@dataclasses.dataclass(kw_only=True)
class Outcome:
    """What a stage did, as `outcome.json` in its folder.

    config: every field; card: those of its fields that the report card shows. metrics: name -> a number, a text, or
    {"value", "stderr", "format", "unit"} of which the last three may be absent. tables: {"title", "columns", "rows"}; a
    column is [name, format spec], rows hold raw values, None where there is none. curves: {"title", "x", "y", "series"}
    of which the last maps a name to two lists, of x and of y. artifacts: file name -> SHA-256.
    seconds: of wall clock, from start to end.
    """

    stage: str
    tag: str
    started: str
    timestamp: str = ""
    command: str
    config: dict
    card: list
    metrics: dict = dataclasses.field(default_factory=dict)
    tables: list = dataclasses.field(default_factory=list)
    seconds: float = 0.0
    artifacts: dict = dataclasses.field(default_factory=dict)
    versions: dict
    environment: dict
    curves: list = dataclasses.field(default_factory=list)

    @classmethod
    def begin(cls, stage: str, tag: str, config: Any) -> "Outcome":
        """The record of a stage that starts now."""
        about = {"config": dataclasses.asdict(config), "command": shlex.join(["python", *sys.orig_argv[1:]])}
        card = [field.name for field in dataclasses.fields(config) if field.metadata["in_card"]]
        about |= {"card": card, "versions": versions(), "environment": environment() | {"Bloat": bloat()}}
        return cls(stage=stage, tag=tag, started=_now(), **about)

    def add_artifact(self, path: Path) -> None:
        self.artifacts[path.name] = read_sha256(path)

    def write(self) -> Path:
        """Stop the clock and leave the record in the stage's folder: the last thing a stage does."""
        self.timestamp = _now()
        ended, started = datetime.fromisoformat(self.timestamp), datetime.fromisoformat(self.started)
        self.seconds = (ended - started).total_seconds()
        path = stage_dir(self.stage, self.tag) / "outcome.json"
        write_json(path, dataclasses.asdict(self))
        return path

    @classmethod
    def load(cls, path: Path) -> "Outcome":
        """The record in `path`; ValueError or OSError with what is wrong with it."""
        record = json.loads(path.read_text(encoding="utf-8"))
        record = {"curves": [], **record} if isinstance(record, dict) else {}
        for field in dataclasses.fields(cls):
            if not isinstance(record.get(field.name), field.type):
                raise ValueError(f"it has no `{field.name}` of type {field.type.__name__}")
        for moment in (record["started"], record["timestamp"]):
            datetime.fromisoformat(moment)
        return cls(**{field.name: record[field.name] for field in dataclasses.fields(cls)})


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="milliseconds")


def versions() -> dict[str, str]:
    """What of VERSIONED is installed, by its metadata: importing torch takes seconds."""
    found = {}
    for name in VERSIONED:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def output_of(*command: str) -> str:
    """What a program prints, or nothing where it is absent or fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def git(root: Path, *words: str) -> str:
    return output_of("git", "-C", str(root), *words)


def environment(root: Path = ROOT) -> dict[str, dict[str, str]]:
    """Where a stage runs, as the header of the card shows it."""
    software = {"Python": platform.python_version(), "PyTorch": versions().get("torch", "not installed")}
    return {"Git Information": _checkout(root), "Hardware": _hardware(), "Software": software}


def bloat(root: Path = ROOT) -> dict[str, dict]:
    """The size of the source: what git tracks, or outside a checkout whatever lies there, build folders apart."""
    files = [root / name for name in git(root, "ls-files", "-z").split("\0") if name]
    if not files:
        for folder, below, names in os.walk(root):
            below[:] = [name for name in below if not name.startswith(".") and name not in ("target", "out", "wandb")]
            files += [Path(folder, name) for name in names]
    sources = [file for file in files if file.suffix in SOURCE_SUFFIXES and file.is_file()]
    texts = [file.read_text(encoding="utf-8", errors="replace") for file in sources]
    characters = sum(map(len, texts))
    parts = {"Characters": characters, "Lines": sum(len(text.splitlines()) for text in texts), "Files": len(texts)}
    parts["Tokens (approx)"] = characters // 4
    if (root / LOCK).exists():
        parts[f"Dependencies ({LOCK} lines)"] = len((root / LOCK).read_text(encoding="utf-8").splitlines())
    return {label: {"value": count, "format": ",d"} for label, count in parts.items()}


def _checkout(root: Path) -> dict[str, str]:
    commit = git(root, "rev-parse", "--short", "HEAD")
    if not commit:
        return {"Commit": "unknown (not a git checkout)"}
    # The card itself is rewritten by every run: that alone makes no tree dirty.
    card = [":!report.md", ":!report"]
    changes = git(root, "status", "--porcelain", "--untracked-files=no", "--", ".", *card)
    commit += " (dirty)" if changes else " (clean)"
    branch, message = git(root, "rev-parse", "--abbrev-ref", "HEAD"), git(root, "log", "-1", "--format=%s")
    return {"Branch": branch, "Commit": commit, "Message": message}


def _hardware() -> dict[str, str]:
    parts = {"Platform": platform.system()}
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text(errors="replace") if cpuinfo.exists() else ""
    # A core is a (package, core) pair; logical processors share it.
    cores = len(set(re.findall(r"physical id\s*: (\d+)(?:\n.+)*?\ncore id\s*: (\d+)", text)))
    parts["CPUs"] = f"{cores} cores ({os.cpu_count()} logical)" if cores else f"{os.cpu_count()} logical"
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        parts["Memory"] = f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.1f} GB"
    found = output_of("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits")
    gpus = [line.rsplit(", ", 1) for line in found.splitlines() if ", " in line]
    names = [name for name, _ in gpus]
    parts["GPUs"] = ", ".join(f"{names.count(name)}x {name}" for name in dict.fromkeys(names)) or "none"
    if gpus and all(memory.isdigit() for _, memory in gpus):
        parts["GPU Memory"] = f"{sum(int(memory) for _, memory in gpus) / 1024:.1f} GB total"
    if "torch" in sys.modules and sys.modules["torch"].version.cuda:
        parts["CUDA Version"] = sys.modules["torch"].version.cuda
    return parts


class Estimate(NamedTuple):
    """A mean with the standard error of that mean."""

    value: float
    stderr: float

    def centered(self, baseline: float) -> "Estimate":
        """Return the estimate on a scale where `baseline`, the score of guessing, is 0 and a perfect score is 1."""
        span = 1 - baseline
        return Estimate((self.value - baseline) / span, self.stderr / span)

    def metric(self, spec: str = ".4f") -> dict[str, Any]:
        """Return the estimate as a metric of an outcome; spec: format of both numbers."""
        return {"value": self.value, "stderr": self.stderr, "format": spec}


def mean_estimate(values: Sequence[float]) -> Estimate:
    """Return the mean of a sample; the standard error of a single value is nan."""
    spread = statistics.stdev(values) if len(values) > 1 else math.nan
    return Estimate(statistics.fmean(values), spread / math.sqrt(len(values)))


def average(estimates: Sequence[Estimate]) -> Estimate:
    """Return the mean of independent estimates."""
    count = len(estimates)
    value = sum(one.value for one in estimates) / count
    return Estimate(value, math.hypot(*(one.stderr for one in estimates)) / count)


def read_outcomes(base: Path, tag: str = "") -> list[tuple[Path, Outcome | str]]:
    """Return the path and the record of each stage below `base`, of all tags or one; a sentence if it is damaged."""
    found = []
    for path in sorted(base.glob(f"*/{glob.escape(tag) or '*'}/outcome.json")):
        try:
            found.append((path, Outcome.load(path)))
        except OSError as error:
            found.append((path, error.strerror or str(error)))
        except ValueError as error:
            found.append((path, str(error)))
    return found
