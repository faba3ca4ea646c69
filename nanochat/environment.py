"""The environment of a stage: checkout, machine, software, and the size of the source, for the report card."""

import contextlib
import importlib.util
import os
import platform
import re
import runpy
import subprocess
from collections import Counter
from importlib import metadata
from pathlib import Path

from nanochat.hardware import given_price
from nanochat.log import Record
from nanochat.statistics import NOT_KNOWN

ROOT = Path(__file__).parent.parent
LOCK = "requirements.lock"  # locks the dependencies; the card counts lines
# Files that count as source in the report card's "Bloat".
SOURCES = ("*.py", "*.md", "*.rs", "*.html", "*.toml", "*.sh")
TESTS = re.compile(r"(^|/)(tests/|test_[^/]*$|conftest\.py$)")  # those of them that are tests
VERSIONED = ("nanochat", "nanochat-rustbpe", "torch", "numpy", "pyarrow", "tiktoken")

Texts = dict[str, str]  # name -> text


def versions() -> Texts:
    """Return installed versions for VERSIONED, from their metadata: importing torch takes seconds."""
    found = {}
    for name in VERSIONED:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def output_of(*command: str) -> str:
    """Return what a program prints, or "" if it is absent or fails."""
    try:
        # Half a minute: a driver that hangs must not stop a run.
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def git(*words: str) -> str:
    return output_of("git", "-C", str(ROOT), *words)


def environment() -> dict[str, Record]:
    """Return checkout, hardware and software, as the report card's header shows them."""
    software = {"Python": platform.python_version(), "PyTorch": torch_build()["__version__"]}
    commit = git("rev-parse", "--short", "HEAD")
    # Every run rewrites the report card: a new card alone does not make the tree dirty.
    card = [":!report.md", ":!report"]
    changes = git("status", "--porcelain", "--untracked-files=no", "--", ".", *card)
    checkout = {
        "Branch": git("rev-parse", "--abbrev-ref", "HEAD"),
        "Commit": f"{commit} ({'dirty' if changes else 'clean'})" if commit else "unknown (not a git checkout)",
        "Message": git("log", "-1", "--format=%s"),
        "Date": git("log", "-1", "--format=%cs"),
    }
    price = given_price()
    machine: Record = {**hardware()}
    if price is not None:
        machine["Hourly Rate"] = price
    if node_count() > 1:
        machine["Nodes"] = node_count()
    return {"Git Information": checkout, "Hardware": machine, "Software": software}


def node_count() -> int:
    """Return the machines of this run: by torchrun's variables, or those that tracks/scale/nodes.sh found."""
    if "LOCAL_WORLD_SIZE" in os.environ:
        return int(os.environ["WORLD_SIZE"]) // int(os.environ["LOCAL_WORLD_SIZE"])
    return int(os.environ.get("NANOCHAT_NODES_FOUND", 1))


def torch_build() -> Record:
    """Return the names in PyTorch's version file: __version__ with a build tag, 2.15.0+cu130, and cuda, or None."""
    # Importing torch takes seconds.
    found = importlib.util.find_spec("torch")
    assert found is not None  # torch is installed
    assert found.origin is not None
    return runpy.run_path(str(Path(found.origin).with_name("version.py")))


def bloat() -> dict[str, int | str]:
    """Return the size of the source files that git tracks."""
    # -z: file names with spaces stay whole.
    names = git("ls-files", "-z", *SOURCES).split("\0")
    files = {name: (ROOT / name).read_text(encoding="utf-8") for name in names if (ROOT / name).is_file()}
    text = "".join(files.values())
    tests = sum(len(content) for name, content in files.items() if TESTS.search(name))
    lock = ROOT / LOCK  # an installed wheel has none
    return {
        "Characters": len(text),
        "Lines": text.count("\n"),
        "Files": len(files),
        "Tokens (approx)": len(text) // 4,  # four characters a token, roughly
        "Share of tests": f"{tests / max(len(text), 1):.1%}",  # of the characters
        f"Dependencies ({LOCK} lines)": lock.read_text(encoding="utf-8").count("\n") if lock.exists() else 0,
    }


def hardware() -> Texts:
    """Return this machine's processors, memory and GPUs."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    listed = output_of("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits").splitlines()
    gpus = Counter(line.rpartition(", ")[0] for line in listed)
    sizes = [line.rpartition(", ")[2] for line in listed]  # MiB; a GPU that shares the memory of its host has none
    cores = physical_cores()
    facts = {
        "Platform": platform.system(),
        "CPUs": f"{cores} cores ({os.cpu_count()} logical)" if cores else f"{os.cpu_count()} logical",
        "Memory": f"{memory / 2**30:.1f} GB",  # binary gigabytes
        "GPUs": ", ".join(f"{count}x {name}" for name, count in gpus.items()) or "none",
    }
    if gpus:
        if all(size.isdigit() for size in sizes):
            facts["GPU Memory"] = f"{sum(map(int, sizes)) / 1024:.1f} GB total"
        facts["CUDA Version"] = torch_build()["cuda"] or NOT_KNOWN
    return facts


def physical_cores() -> int | None:
    """Return the number of cores, each of which may run several threads; None where the system does not say."""
    if platform.system() == "Darwin":
        told = output_of("sysctl", "-n", "hw.physicalcpu")
        return int(told) if told.isdigit() else None
    cores = set()
    for topology in Path("/sys/devices/system/cpu").glob("cpu[0-9]*/topology"):
        with contextlib.suppress(OSError):  # of a core that was switched off
            cores.add(tuple((topology / name).read_text().strip() for name in ("physical_package_id", "core_id")))
    return len(cores) or None
