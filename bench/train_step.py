"""Training steps, ours and the reference's in turn in one run: tokens a second, first step, memory, what was learned.

    python -m bench.train_step --data FOLDER [--reference CHECKOUT] [--depths 4,6] [--steps 40] [--learn]

Ours is `scripts.base_train` as a user runs it, its times read from its log. The reference is a checkout of the public
nanochat: its model, optimizer and schedules on the very batches that ours trains on, already in memory, so that its own
data loader costs it nothing. Every run is a process of its own. Both are judged on one text, which neither was trained
on, by the same sum. A cold first step starts with an empty compile cache, a warm one with that of the run before.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

SKIPPED = 5  # steps, before the rate is taken
EVAL_BYTES = 500_000


class Case(NamedTuple):
    """name: of a row of the table. options: of our command line. dtype, compiled: of the reference."""

    name: str
    options: tuple[str, ...] = ()
    dtype: str = ""
    compiled: bool = True


OURS = (
    Case("ours, as shipped"),
    Case("ours, fp32", ("--dtype=fp32",)),
    Case("ours, eager", ("--no-compile",)),
)
REFERENCE = (
    Case("reference, as shipped"),
    Case("reference, bf16", dtype="bfloat16"),
    Case("reference, eager", compiled=False),
)


class Job(NamedTuple):
    """What a process of the reference has to do; travels as JSON on its command line."""

    reference: str
    folder: str  # with train.npy (steps, rows, seq_len + 1), eval.npy (ids) and lengths.npy (bytes of each id)
    depth: int
    head_dim: int
    window: str
    device_batch: int
    vocab_size: int
    seed: int
    compiled: bool


# ---- the reference, in a process whose `nanochat` is the reference's ----


def run_reference(job: Job) -> dict[str, Any]:
    sys.path.insert(0, job.reference)
    import numpy as np
    import torch
    from nanochat.common import COMPUTE_DTYPE  # the reference's

    from nanochat.gpt import GPT, GPTConfig

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cuda":
        from nanochat.flash_attention import USE_FA3

        torch.set_float32_matmul_precision("high")
        print("reference attention:", "FA3" if USE_FA3 else "SDPA", file=sys.stderr)
    torch.manual_seed(job.seed)
    train = np.load(Path(job.folder, "train.npy"), mmap_mode="r")
    steps, rows, length = len(train), train.shape[1], train.shape[2] - 1

    def build(depth: int) -> Any:
        width = -(-depth * 64 // job.head_dim) * job.head_dim
        heads = width // job.head_dim
        config = GPTConfig(length, job.vocab_size, depth, heads, heads, width, job.window)
        with torch.device("meta"):
            return GPT(config)

    def scaling(model: Any) -> int:
        counts = model.num_scaling_params()
        return counts["transformer_matrices"] + counts["lm_head"]

    original = build(job.depth)
    original.to_empty(device=device)
    original.init_weights()
    model = torch.compile(original, dynamic=False) if job.compiled else original
    # As its base_train sets them: the batch is 2**19 tokens at depth 12, and decay goes by the horizon of ratio 12.
    batch_scale = math.sqrt(rows * length / 2**19)
    decay = 0.28 * batch_scale * scaling(build(12)) / scaling(original)
    rates = {"unembedding_lr": 0.008, "embedding_lr": 0.3, "scalar_lr": 0.5, "matrix_lr": 0.02}
    scaled = {name: rate * batch_scale for name, rate in rates.items()}
    optimizer = original.setup_optimizer(weight_decay=decay, **scaled)
    times, losses = [], []
    for step in range(steps):
        start = time.perf_counter()
        batch = torch.from_numpy(train[step].astype(np.int64)).to(device)
        micro_batches = batch.split(job.device_batch)
        for part in micro_batches:
            loss = model(part[:, :-1].contiguous(), part[:, 1:].contiguous())
            (loss / len(micro_batches)).backward()
        lr, momentum, fade = reference_schedule(step, steps)
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] * lr
            if group["kind"] == "muon":
                group["momentum"], group["weight_decay"] = momentum, decay * fade
        optimizer.step()
        model.zero_grad(set_to_none=True)
        losses.append(loss.item())
        times.append(time.perf_counter() - start)
    bpb = reference_bpb(original, job, length, device) if Path(job.folder, "eval.npy").exists() else None
    return {"times": times, "loss": losses, "bpb": bpb, "memory": peak_memory(device), "precision": str(COMPUTE_DTYPE)}


def reference_schedule(step: int, steps: int) -> tuple[float, float, float]:
    """Its multiplier of the learning rate, Muon's momentum and multiplier of the decay."""
    warmdown = round(0.65 * steps)
    left = (steps - step) / max(warmdown, 1)
    lr = (step + 1) / 40 if step < 40 else 1.0 if step <= steps - warmdown else left + (1 - left) * 0.05
    late = 0.97 if step < steps - warmdown else 0.97 - 0.07 * (1 - left)
    momentum = 0.85 + 0.12 * step / 400 if step < 400 else late
    return lr, momentum, 0.5 * (1 + math.cos(math.pi * step / steps))


def reference_bpb(model: Any, job: Job, length: int, device: Any) -> float:
    import numpy as np
    import torch

    ids = torch.from_numpy(np.load(Path(job.folder, "eval.npy")))
    lengths = torch.from_numpy(np.load(Path(job.folder, "lengths.npy"))).to(device)
    nats, size = 0.0, 0
    with torch.no_grad():
        for start in range(0, len(ids) - 1, length):
            row = ids[start : start + length + 1].to(device)
            losses = model(row[None, :-1], row[None, 1:], loss_reduction="none").view(-1)
            nats += float((losses.float() * (lengths[row[1:]] > 0)).double().sum())
            size += int(lengths[row[1:]].sum())
    return nats / size / math.log(2)


def peak_memory(device: Any) -> int:
    import resource

    import torch

    if device.type == "cuda":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


# ---- the parent ----


class Bench:
    def __init__(self, options: argparse.Namespace, folder: Path):
        self.options, self.folder = options, folder
        self.env = dict(
            os.environ, NANOCHAT_BASE_DIR=str(folder / "base"), PYTHONPATH=str(Path(__file__).parent.parent)
        )
        self.cache = folder / "compiled"

    def call(self, *command: str, **variables: str) -> str:
        env = self.env | variables
        done = subprocess.run([sys.executable, *command], env=env, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
        return done.stdout

    def prepare(self) -> None:
        """The vocabulary, and for the reference the batches of each seed and the text to judge on."""
        options = self.options
        data = f"--data={options.data}"
        self.call("-m", "scripts.tok_train", f"--vocab-size={options.vocab}", "--max-chars=5e7", data)
        if options.reference:
            write_batches(options, self.folder)

    def ours(self, case: Case, depth: int, seed: int, cold: bool) -> dict[str, Any]:
        options, tag = self.options, "bench"
        stage = self.folder / "base" / "base_train" / tag
        subprocess.run(["rm", "-rf", stage], check=True)
        flags = [f"--depth={depth}", f"--head-dim={options.head_dim}", f"--max-seq-len={options.length}"]
        flags += [f"--device-batch-size={options.device_batch}", f"--total-batch-size={options.rows * options.length}"]
        flags += [f"--num-iterations={options.steps}", f"--data={options.data}", f"--seed={seed}", f"--tag={tag}"]
        flags += [f"--window-pattern={options.window}", f"--eval-bytes={EVAL_BYTES}", "--save-every=-1"]
        flags += [f"--eval-every={0 if options.learn else -1}", *case.options]
        out = self.call("-m", "scripts.base_train", *flags, **self.compile_cache("ours" + case.name, cold))
        log = [json.loads(line) for line in (stage / "metrics.jsonl").read_text().splitlines()]
        steps = [record for record in log if "train/dt" in record]
        metrics = json.loads((stage / "outcome.json").read_text())["metrics"]
        bpb = metrics.get("Final validation bpb")
        return {
            "times": [record["train/dt"] for record in steps],
            "loss": [record["train/loss"] for record in steps],
            "bpb": bpb["value"] if isinstance(bpb, dict) else None,
            "memory": metrics["Peak memory usage"]["value"] * 2**20,
            "precision": next(line for line in out.splitlines() if line.startswith("precision")),
        }

    def reference(self, case: Case, depth: int, seed: int, cold: bool) -> dict[str, Any]:
        options = self.options
        about = (depth, options.head_dim, options.window, options.device_batch, options.vocab, seed, case.compiled)
        job = Job(str(Path(options.reference).resolve()), str(self.folder / f"seed{seed}"), *about)
        variables = {"NANOCHAT_DTYPE": case.dtype} if case.dtype else {}
        variables |= self.compile_cache("reference" + case.name, cold)
        return json.loads(self.call(__file__, json.dumps(job), **variables).splitlines()[-1])

    def compile_cache(self, name: str, cold: bool) -> dict[str, str]:
        path = self.cache / name.replace(" ", "-")
        if cold:
            subprocess.run(["rm", "-rf", path], check=True)
        return {"TORCHINDUCTOR_CACHE_DIR": str(path)}


def write_batches(options: argparse.Namespace, folder: Path) -> None:
    """What ours trains on with each seed, and what both are judged on, as files that need none of our code."""
    import numpy as np
    import torch

    from nanochat.corpus import open_corpus
    from nanochat.dataloader import TextLoader
    from nanochat.eval_bpb import read_text
    from nanochat.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(folder / "base/tok_train/default/tokenizer.json")
    corpus = open_corpus(options.data)
    text = read_text(corpus.batches("val"), tokenizer, EVAL_BYTES)
    for seed in range(options.seeds):
        home = folder / f"seed{seed}"
        home.mkdir()
        with TextLoader(corpus, tokenizer, options.rows, options.length, seed=seed) as loader:
            batches = (next(loader) for _ in range(options.steps))
            rows = [torch.cat([inputs, targets[:, -1:]], dim=1).numpy().astype(np.int32) for inputs, targets in batches]
        np.save(home / "train.npy", np.stack(rows))
        if options.learn:
            np.save(home / "eval.npy", text.ids.numpy())
        np.save(home / "lengths.npy", text.lengths.numpy())


def measure(bench: Bench, depth: int) -> list[dict[str, Any]]:
    """A record for each case: runs of all of them in turn, the first one of each with an empty compile cache."""
    options = bench.options
    runs = [(case, bench.ours) for case in OURS] + [(case, bench.reference) for case in REFERENCE if options.reference]
    runs = [(case, act) for case, act in runs if not options.only or any(word in case.name for word in options.only)]
    results: dict[str, list[dict]] = {case.name: [] for case, _ in runs}
    for repeat in range(options.repeats + (not options.learn)):
        for case, act in runs:
            result = act(case, depth, repeat if options.learn else 0, cold=repeat == 0)
            results[case.name].append(result)
            speed = f"first step {result['times'][0]:.1f} s, {rate(result, options):,.0f} tokens/s"
            told = f"  depth {depth} {case.name}: {speed}, loss {result['loss'][-1]:.4f}, bpb {result['bpb']}"
            print(told, file=sys.stderr, flush=True)
    return [summary(name, depth, found, options) for name, found in results.items()]


def rate(result: dict[str, Any], options: argparse.Namespace) -> float:
    return options.rows * options.length / statistics.median(result["times"][SKIPPED:])


def summary(name: str, depth: int, found: list[dict], options: argparse.Namespace) -> dict[str, Any]:
    bpbs = [result["bpb"] for result in found if result["bpb"] is not None]
    return {
        "name": name,
        "depth": depth,
        "rate": statistics.median(rate(result, options) for result in found),
        "cold": found[0]["times"][0],
        "warm": statistics.median(result["times"][0] for result in found[1:] or found),
        "memory": statistics.median(result["memory"] for result in found) / 2**20,
        "bpb": statistics.mean(bpbs) if bpbs else None,
        "spread": statistics.stdev(bpbs) if len(bpbs) > 1 else None,
        "precision": found[0]["precision"],
    }


def show(records: list[dict[str, Any]]) -> None:
    print("| depth | case | tokens/s | ratio | first step cold / warm, s | memory, MB | bpb, mean ± sd |")
    print("|---|---|---|---|---|---|---|")
    for record in records:
        ours = next(other for other in records if other["depth"] == record["depth"])
        ratio = "" if record is ours else f"{ours['rate'] / record['rate']:.2f}"
        spread = f" ± {record['spread']:.4f}" if record["spread"] is not None else ""
        bpb = "" if record["bpb"] is None else f"{record['bpb']:.4f}{spread}"
        print(f"| {record['depth']} | {record['name']} | {record['rate']:,.0f} | {ratio} | "
              f"{record['cold']:.1f} / {record['warm']:.1f} | {record['memory']:,.0f} | {bpb} |")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="corpus or folder, as scripts.base_train takes it")
    parser.add_argument("--reference", default="", help="a checkout of the public nanochat")
    parser.add_argument("--depths", default="4,6")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=3, help="runs of each case, after the one with a cold cache")
    parser.add_argument("--learn", action="store_true", help="judge what was learned: a seed for each repeat")
    parser.add_argument("--only", nargs="*", default=[], help="cases whose name holds one of these words")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--device-batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--window", default="L")
    parser.add_argument("--vocab", type=int, default=4096)
    parser.add_argument("--json", default="")
    options = parser.parse_args()
    options.seeds = options.repeats if options.learn else 1
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(options, Path(folder))
        bench.prepare()
        records = [record for depth in options.depths.split(",") for record in measure(bench, int(depth))]
    show(records)
    if options.json:
        cases = []
        for peer in (record for record in records if record["name"].startswith("reference")):
            ours = next(other for other in records if other["depth"] == peer["depth"])
            rates = {"ours": ours["rate"], "peer": peer["rate"], "ratio": ours["rate"] / peer["rate"]}
            cases.append({"case": f"depth {peer['depth']}", "unit": "tokens/s", "peer_name": peer["name"], **rates})
        Path(options.json).write_text(json.dumps(cases, indent=2))


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1].startswith("["):
        print(json.dumps(run_reference(Job(*json.loads(sys.argv[1])))))
    else:
        main()
