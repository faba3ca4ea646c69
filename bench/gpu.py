"""Tests and benchmarks that need a GPU, the most useful first: speed against the reference, a profile, variants.

    bash bench/gpu.sh --minutes 25 [--reference CHECKOUT] [--data FOLDER] [--bundle FOLDER] [--out FOLDER]
    bash bench/gpu.sh --rehearse

Run again, it goes on with the items that have not finished. An item that does not fit into the minutes left is passed
over for a shorter one. `--rehearse` runs every item on the CPU, small, and says so in each title.
"""

import argparse
import os
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from bench.common import ROOT

SHAPE = "--length 2048 --head-dim 128 --window SSSL --vocab 32768 --rows 64 --device-batch 32"
TINY = "--length 128 --head-dim 32 --window SSSL --vocab 512 --rows 4 --device-batch 2 --depths 2 --repeats 1"
STEP = "bench.train_step --data {data}"


@dataclass(frozen=True)
class Item:
    """A process to run. command: the module and its words; rehearsal: the same, as small as it works on a CPU."""

    name: str
    title: str
    minutes: float  # at most, on an H100; a guess for most items
    command: str
    rehearsal: str


ITEMS = (
    Item(
        "ranks",
        "Training step on all GPUs, depth 22 in fp8, as the main job has it",
        8,
        "bench.ranks --depth 22 --steps 30 --fp8",
        "bench.ranks --ranks 2 --depth 2 --steps 12 --vocab 512 --head-dim=32 --max-seq-len=64 --total-batch-size=256",
    ),
    Item(
        "tests",
        "Tests that need a GPU",
        5,
        "pytest -m gpu -q -p no:cacheprovider tests",
        "pytest -m gpu -q -p no:cacheprovider tests/test_attention.py tests/test_cross_entropy.py",
    ),
    Item(
        "step-12",
        "Training step, depth 12",
        5,
        f"{STEP} --depths 12 --steps 30 --repeats 1 --only shipped {SHAPE} {{reference}}",
        f"{STEP} --steps 7 --only shipped {TINY} {{reference}}",
    ),
    Item(
        "step-20",
        "Training step, depth 20",
        6,
        # At 32 rows of a micro-batch it would take 85 GB.
        f"{STEP} --depths 20 --steps 20 --repeats 1 --only shipped {SHAPE} --rows 32 --device-batch 16 {{reference}}",
        f"{STEP} --steps 7 --only eager {TINY} {{reference}}",
    ),
    Item(
        "variants",
        "Training step by attention kernel, fp8, rows and compiler, depth 12",
        8,
        f"{STEP} --depths 12 --steps 20 --repeats 1 --variants {SHAPE}",
        f"{STEP} --steps 7 --variants {TINY}",
    ),
    Item(
        "attention",
        "Attention alone, by kernel",
        3,
        "bench.attention --rows 16 --length 2048 --heads 10 --windows 0,513",
        "bench.attention --rows 1 --length 128 --heads 2 --head-dim 32 --windows 0,33 --repeats 2",
    ),
    Item(
        "products",
        "Candidates for products of a step: head in fp8, sums in the product, delayed scales, fused relu²",
        3,
        "bench.products --rows 16 --length 2048 --width 1408 --vocab 49152",
        "bench.products --rows 2 --length 128 --width 64 --vocab 512 --repeats 2",
    ),
    Item(
        "profile",
        "Profile of a training step, depth 12",
        3,
        "bench.profile --depth 12 --rows 32 --length 2048 --trace {trace}",
        "bench.profile --depth 2 --rows 2 --length 128 --trace {trace}",
    ),
    Item(
        "generation",
        "Generation, depth 12",
        4,
        "bench.engine --depth 12 --repeats 2 {reference}",
        "bench.engine --depth 2 --repeats 1 {reference}",
    ),
    Item(
        "rl",
        "A step of reinforcement learning, depth 12",
        4,
        "bench.rl_step --depth 12 --tokens 256 --samples 16 --repeats 2 {reference}",
        "bench.rl_step --depth 2 --tokens 16 --samples 2 --examples 2 --steps 2 --repeats 1 {reference}",
    ),
    Item(
        "core",
        "CORE, depth 12",
        4,
        "bench.core_eval --data {data} --bundle {bundle} --depth 12 --repeats 2 {reference}",
        "bench.core_eval --data {data} --bundle {bundle} --depth 2 --repeats 1 {reference}",
    ),
    Item(
        "preflight",
        "Preflight: disk, and the network between all GPUs",
        3,
        "torch.distributed.run --standalone --nproc_per_node=gpu -m tracks.scale.preflight",
        "torch.distributed.run --standalone --nproc_per_node=2 -m tracks.scale.preflight",
    ),
    Item(
        "bpb",
        "Bits per byte after 1,000 steps and the time they take, depth 12, three seeds",
        20,
        # Alone: with the reference it would take twice as long.
        f"{STEP} --depths 12 --steps 1000 --repeats 3 --learn --only shipped {SHAPE}",
        f"{STEP} --steps 8 --learn --only eager {TINY}",
    ),
)


def gpu_count() -> int:
    import torch

    return torch.cuda.device_count()


def run_item(item: Item, options: argparse.Namespace, limit: float) -> None:
    """Run an item for at most `limit` seconds and write its output to a file; NAME.txt stands for a finished one.

    Benchmarks also write NAME.json.
    """
    values = {
        "{data}": [options.data],
        "{bundle}": [options.bundle],
        "{trace}": [str(options.out / "profile.json")],
        "{reference}": ["--reference", options.reference] if options.reference else [],
    }
    words = []
    for word in (item.rehearsal if options.rehearse else item.command).split():
        words += values.get(word, [word])
    if words[0].startswith("bench."):
        words += ["--json", str(options.out / f"{item.name}.json")]
    title = ("CPU rehearsal: " if options.rehearse else "") + item.title
    print(f"\n== {title}\n$ python -m {shlex.join(words)}", flush=True)
    env = os.environ | ({"CUDA_VISIBLE_DEVICES": ""} if options.rehearse else {})
    unfinished = options.out / f"{item.name}.unfinished.txt"
    start = time.monotonic()
    with open(unfinished, "w", encoding="utf-8") as file:
        file.write(f"## {title}\n\n`python -m {shlex.join(words)}`\n\n```\n")
        file.flush()
        # A session of its own: benchmarks have processes, which would go on after a time-out.
        done = subprocess.Popen([sys.executable, "-m", *words], cwd=ROOT, env=env, stdout=file, start_new_session=True)
        try:
            end = f"status {done.wait(limit)}"
        except subprocess.TimeoutExpired:
            os.killpg(done.pid, signal.SIGKILL)
            done.wait()
            end = "stopped, the time was over"
        file.write(f"```\n\n{end}, {time.monotonic() - start:.0f} s\n")
    print(unfinished.read_text(encoding="utf-8").partition("```\n")[2].replace("```\n", ""), flush=True)
    if done.returncode in (0, 5):  # 5: pytest found no test to run
        unfinished.rename(options.out / f"{item.name}.txt")


def main() -> None:
    parser = argparse.ArgumentParser(prog="bash bench/gpu.sh", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30, help="time for all items together")
    parser.add_argument("--reference", default="", help="checkout of the public nanochat, to compare with")
    parser.add_argument("--data", default="world", help="text, as scripts.base_train takes it")
    parser.add_argument("--bundle", default="", help="folder of core.yaml, for CORE")
    parser.add_argument("--out", default="", help="folder for the output (default: gpu-results, gpu-rehearsal)")
    parser.add_argument("--only", nargs="*", default=[], help=f"of {', '.join(item.name for item in ITEMS)}")
    parser.add_argument("--rehearse", action="store_true", help="everything on the CPU, small")
    options = parser.parse_args()
    options.out = Path(options.out or ("gpu-rehearsal" if options.rehearse else "gpu-results")).resolve()
    options.out.mkdir(parents=True, exist_ok=True)
    # Items run in the repository.
    for name in ("reference", "bundle", "data"):
        folder = getattr(options, name)
        if folder and Path(folder).is_dir():
            setattr(options, name, str(Path(folder).resolve()))
    end = time.monotonic() + 60 * options.minutes
    for item in ITEMS:
        left = end - time.monotonic()
        finished = options.out / f"{item.name}.txt"
        if options.only and item.name not in options.only:
            continue
        if finished.exists():
            print(f"{item.name}: finished before, in {finished}")
        elif item.name == "preflight" and not Path(ROOT, "tracks/scale").is_dir():
            print(f"{item.name}: left out, it belongs to tracks/scale, which is not here")
        elif item.name == "ranks" and not options.rehearse and gpu_count() < 2:
            print(f"{item.name}: left out, it needs two GPUs or more")
        elif "{bundle}" in item.command and not options.bundle:
            print(f"{item.name}: left out, give --bundle")
        elif left < 60 * item.minutes and not options.rehearse:
            print(f"{item.name}: passed over, it takes up to {item.minutes:g} min and {left / 60:.1f} min are left")
        elif left > 0:
            run_item(item, options, left if options.rehearse else min(left, 60 * item.minutes))
    parts = [path.read_text(encoding="utf-8") for item in ITEMS for path in options.out.glob(f"{item.name}.*txt")]
    (options.out / "results.md").write_text("\n".join(parts), encoding="utf-8")
    print(f"\nall results: {options.out / 'results.md'}")


if __name__ == "__main__":
    main()
