"""Training steps, ours and the reference in turn: tokens per second, first step, memory, bits per byte learned.

    python -m bench.train_step --data FOLDER [--reference CHECKOUT] [--depths 4,6] [--steps 40] [--learn]
    python -m bench.train_step --data FOLDER --reference CHECKOUT --learn --steps 200 --own-steps 80

Ours is `scripts.base_train` with a user's flags and the times in its log. The reference is a checkout of the public
nanochat: its model, optimizer and schedules on the same batches, already in memory, so its data loader costs nothing.
Every run is a process of its own. Both are evaluated in the same way on one held-out text. A cold first step starts
with an empty compile cache, a warm one with the cache of the previous run.
The second command is a race: if ours learns as much in fewer steps, the ratio of the times says how much faster it is.
"""

import argparse
import math
import shutil
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from bench.common import Figure, compare, in_child, parser_of, required, run_script
from bench.findings import Findings

SKIPPED = 5  # steps, before the rate is taken
EVAL_BYTES = 500_000
OURS = {"ours, as shipped": "", "ours, fp32": "--dtype=fp32", "ours, eager": "--no-compile"}
# With --variants: the kernels, formats and sizes that a GPU can choose from.
VARIANTS = {
    "ours, as shipped": "",
    "ours, flash3": "--attention=flash3",
    "ours, flash4": "--attention=flash4",
    "ours, flex": "--attention=flex",
    "ours, sdpa": "--attention=sdpa",
    "ours, fp8": "--fp8",
    "ours, half the rows": "--device-batch-size={half}",
    "ours, checkpointing": "--checkpointing",
    "ours, eager": "--no-compile",
}
REFERENCE = {  # (compiled, environment variables)
    "reference, as shipped": (True, {}),
    "reference, bf16": (True, {"NANOCHAT_DTYPE": "bfloat16"}),
    "reference, eager": (False, {}),
}
FIGURES = [
    Figure("rate", "tokens/s", less_is_better=False, shown=",.0f"),
    Figure("all steps", "s, the median step times their number", shown=".1f"),
    Figure("first step, cold", "s", shown=".1f"),
    Figure("first step, warm", "s", shown=".1f"),
    Figure("memory", "MB", shown=",.0f"),
    Figure("learned", "bits per byte", shown=".4f"),
]


def facts(options: argparse.Namespace, times: list[float], bpb: float | None):
    import torch

    # The median step, without the first ones.
    step = statistics.median(times[SKIPPED:])
    found = {"rate": options.rows * options.length / step, "all steps": step * len(times)}
    found |= {"first step, warm" if options.round else "first step, cold": times[0], "learned": bpb}
    return found | ({"memory": torch.cuda.max_memory_allocated() / 1e6} if torch.cuda.is_available() else {})


# ---- ours ----


def prepare(job: dict) -> None:
    """Train the vocabulary; write batches for each seed and the held-out text to files that need none of our code."""
    import numpy as np
    import torch

    from nanochat.data.corpus import open_corpus
    from nanochat.dataloader import TextLoader
    from nanochat.evals.bpb import read_text
    from nanochat.tokenizer import Tokenizer

    options = argparse.Namespace(**job)
    run_script("tok_train", [f"--vocab-size={options.vocab}", "--max-chars=5e7", f"--data={options.data}"])
    folder = Path(options.folder)
    tokenizer = Tokenizer.load(folder / "tok_train/default/tokenizer.json")
    corpus = open_corpus(options.data)
    text = read_text(corpus.batches("val"), tokenizer, EVAL_BYTES)
    np.save(folder / "eval.npy", text.ids.numpy())
    np.save(folder / "lengths.npy", text.lengths.numpy())
    for seed in range(options.repeats if options.learn else 1):
        with TextLoader(corpus, tokenizer, options.rows, options.length, seed=seed) as loader:
            batches = (next(loader) for _ in range(options.steps))
            rows = [torch.cat([inputs, targets[:, -1:]], dim=1).numpy().astype(np.int32) for inputs, targets in batches]
        np.save(folder / f"train{seed}.npy", np.stack(rows))


def ours(job: dict, case: str):
    from nanochat.log import read_metrics
    from nanochat.outcome import Outcome

    options = argparse.Namespace(**job)
    stage = Path(options.folder, "base_train/bench")
    shutil.rmtree(stage, ignore_errors=True)
    flags = [f"--depth={options.depth}", f"--head-dim={options.head_dim}", f"--max-seq-len={options.length}"]
    flags += [f"--device-batch-size={options.device_batch}", f"--total-batch-size={options.rows * options.length}"]
    flags += [f"--num-iterations={options.own_steps or options.steps}", f"--seed={options.seed}"]
    flags += [f"--data={options.data}", "--tag=bench"]
    flags += [f"--window-pattern={options.window}", f"--eval-bytes={EVAL_BYTES}", "--save-every=-1"]
    flags += [f"--eval-every={0 if options.learn else -1}"]
    flags += (OURS | VARIANTS)[case].format(half=options.device_batch // 2).split()

    def figures(_: None):
        log = read_metrics(stage / "metrics.jsonl")
        times = [record["train/dt"] for record in log if "train/dt" in record]
        bpb = Outcome.load(stage / "outcome.json").figure("Final validation bpb") if options.learn else None
        return facts(options, times, bpb)

    return partial(run_script, "base_train", flags), figures


# ---- the reference, in a process whose `nanochat` is the reference's ----


def reference(job: dict, case: str):
    import numpy as np
    import torch

    from nanochat.gpt import GPT, GPTConfig

    options = argparse.Namespace(**job)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_float32_matmul_precision("high" if device.type == "cuda" else "highest")
    torch.manual_seed(options.seed)
    train = np.load(Path(options.folder, f"train{options.seed}.npy"), mmap_mode="r")

    def build(depth: int):
        heads = -(-depth * 64 // options.head_dim)
        sizes = (options.length, options.vocab, depth, heads, heads, heads * options.head_dim, options.window)
        with torch.device("meta"):
            return GPT(GPTConfig(*sizes))

    def scaling(model: Any):
        counts = model.num_scaling_params()
        return counts["transformer_matrices"] + counts["lm_head"]

    original = build(options.depth)
    original.to_empty(device=device)
    original.init_weights()
    model = torch.compile(original, dynamic=False) if REFERENCE[case][0] else original
    # As in its base_train: a batch of 2**19 tokens at depth 12, and decay for a horizon of 12 tokens per parameter.
    batch_scale = math.sqrt(options.rows * options.length / 2**19)
    decay = 0.28 * batch_scale * scaling(build(12)) / scaling(original)
    rates = {"unembedding_lr": 0.008, "embedding_lr": 0.3, "scalar_lr": 0.5, "matrix_lr": 0.02}
    scaled = {name: rate * batch_scale for name, rate in rates.items()}
    optimizer = original.setup_optimizer(weight_decay=decay, **scaled)

    def step(number: int):
        start = time.perf_counter()
        batch = torch.from_numpy(train[number].astype(np.int64)).to(device)
        micro_batches = batch.split(options.device_batch)
        for part in micro_batches:
            loss = model(part[:, :-1].contiguous(), part[:, 1:].contiguous())
            (loss / len(micro_batches)).backward()
        lr, momentum, fade = reference_schedule(number, options.steps)
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] * lr
            if group["kind"] == "muon":
                group["momentum"] = momentum
                group["weight_decay"] = decay * fade
        optimizer.step()
        model.zero_grad(set_to_none=True)
        loss.item()  # waits for the device
        return time.perf_counter() - start

    def figures(times: list[float]):
        return facts(options, times, reference_bpb(original, options, device) if options.learn else None)

    return lambda: [step(number) for number in range(options.steps)], figures


def reference_schedule(step: int, steps: int):
    """Return the factor for learning rates, Muon's momentum, and the factor for weight decay."""
    warmdown = round(0.65 * steps)
    left = (steps - step) / max(warmdown, 1)
    lr = (step + 1) / 40 if step < 40 else 1.0 if step <= steps - warmdown else left + (1 - left) * 0.05
    late = 0.97 if step < steps - warmdown else 0.97 - 0.07 * (1 - left)
    momentum = 0.85 + 0.12 * step / 400 if step < 400 else late
    return lr, momentum, 0.5 * (1 + math.cos(math.pi * step / steps))


def reference_bpb(model: Any, options: argparse.Namespace, device: Any):
    import numpy as np
    import torch
    from nanochat.loss_eval import evaluate_bpb  # the reference's

    ids, lengths = (
        torch.from_numpy(np.load(Path(options.folder, f"{name}.npy"))).to(device) for name in ("eval", "lengths")
    )
    rows = [ids[None, start : start + options.length + 1] for start in range(0, len(ids) - 1, options.length)]
    return evaluate_bpb(model, [(row[:, :-1], row[:, 1:]) for row in rows], len(rows), lengths)


# ---- the parent ----


def measure(findings: Findings, options: argparse.Namespace, depth: int):
    def run(case: str, number: int):
        job = vars(options) | {"depth": depth, "round": number, "seed": number if options.learn else 0}
        cache = Path(options.folder, "compiled", case.replace(" ", "-"))
        if number == 0:
            shutil.rmtree(cache, ignore_errors=True)
        env = {"NANOCHAT_BASE_DIR": options.folder, "TORCHINDUCTOR_CACHE_DIR": str(cache)}
        if case.startswith("ours"):
            return in_child(ours, job, case, env=env, limit=None)
        env |= REFERENCE[case][1]
        return in_child(reference, job, case, checkout=options.reference, env=env, limit=None)

    def spread(found: dict[str, list[dict]], name: str):
        # Failed runs have no figures.
        bpbs = [run.get("learned") for run in found[name] if run.get("learned") is not None]
        return f"bpb {statistics.mean(bpbs):.4f} ± {statistics.stdev(bpbs):.4f}" if len(bpbs) > 1 else ""

    cases = [*(VARIANTS if options.variants else OURS), *(REFERENCE if options.reference else ())]
    runs = {case: partial(run, case) for case in cases if any(word in case for word in options.only or [""])}
    return compare(findings, f"depth {depth}", runs, FIGURES, options.repeats + (not options.learn), spread)


def main() -> None:
    sizes = {"steps": 40, "rows": 8, "device-batch": 8, "length": 512, "head-dim": 64, "vocab": 4096}
    parser = parser_of("train_step", __doc__, has_reference=True, **sizes)
    parser.add_argument("--data", required=True, help="corpus or folder, as scripts.base_train takes it")
    parser.add_argument("--depths", default="4,6")
    parser.add_argument("--own-steps", type=int, default=0, help="fewer steps of ours, for a race to the same quality")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each case, after one with a cold cache")
    parser.add_argument("--learn", action="store_true", help="evaluate on held-out text, with a seed for each repeat")
    parser.add_argument("--variants", action="store_true", help="ours with each attention kernel, fp8, other sizes")
    parser.add_argument("--only", nargs="*", default=[], help="only cases with one of these words in the name")
    parser.add_argument("--window", default="L")
    options = parser.parse_args()
    if min(options.steps, options.own_steps or options.steps) <= SKIPPED:
        parser.error(f"--steps and --own-steps must be above {SKIPPED}: the first steps are not timed")
    findings = Findings("train_step", options.json)
    # Here, because a child has the reference's nanochat.
    from nanochat.runtime import avoid_broken_amx, keep_tile_stores

    avoid_broken_amx()  # in the child processes too
    keep_tile_stores()
    with tempfile.TemporaryDirectory() as options.folder:
        required(prepare, vars(options), env={"NANOCHAT_BASE_DIR": options.folder})
        found = [measure(findings, options, int(depth)) for depth in options.depths.split(",")]
    findings.finish()
    if not any("rate" in run for cases in found for runs in cases.values() for run in runs):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
