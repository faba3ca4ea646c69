"""Reinforcement learning steps in turn: our scripts.chat_rl, and the loop of the public chat_rl with its own model.

Random weights, questions from the embedded world; a hash of the answer decides its reward, half of them are rewarded.

    python -m bench.rl_step [--reference CHECKOUT] [--depth 4] [--steps 4] [--repeats 3]
"""

import argparse
import json
import shutil
import statistics
import tempfile
import time
import zlib
from functools import partial
from pathlib import Path

from bench.common import Figure, compare, contenders, parser_of, reference_model, required, run_script
from bench.findings import Findings

OURS = {"ours, as shipped": [], "ours, fp32": ["--dtype=fp32"]}
SIZES = {"depth": 4, "vocab": 4096, "examples": 16, "samples": 4, "tokens": 64, "steps": 4, "repeats": 3}


def prepare(job: dict) -> None:
    """Train a vocabulary, save a model, and write prompts for the reference."""
    from nanochat.chat import render_prompt
    from nanochat.tokenizer import Tokenizer
    from tasks import TASKS

    folder = Path(job["folder"])
    run_script("tok_train", [f"--vocab-size={job['vocab']}", "--data=world", "--max-chars=2e7"])
    flags = f"--depth={job['depth']} --head-dim=64 --max-seq-len=512 --window-pattern=L --no-compile --dtype=fp32"
    flags += " --tag=bench --num-iterations=1 --total-batch-size=8192 --eval-every=-1 --data=world"
    run_script("base_train", flags.split())
    tokenizer = Tokenizer.load(folder / "tok_train/default/tokenizer.json")
    prompts = [render_prompt(chat, tokenizer) for chat in TASKS["World-Sums"]("train")]
    (folder / "prompts.json").write_text(json.dumps([prompts, tokenizer.special_tokens]))


def ours(job: dict, case: str):
    from nanochat.log import read_metrics
    from tasks.common import Task

    stage = Path(job["folder"], "chat_rl/bench")
    shutil.rmtree(stage, ignore_errors=True)
    Task.reward = lambda task, conversation, completion: float(zlib.crc32(completion.encode()) % 2)
    flags = (
        f"--tag=bench --source=base --task=World-Sums --num-iterations={job['steps']} --eval-every=-1 --save-every=-1"
    )
    flags += f" --examples-per-step={job['examples']} --num-samples={job['samples']} --max-new-tokens={job['tokens']}"

    def facts(_: None):
        # The first step compiles and allocates.
        log = read_metrics(stage / "metrics.jsonl")
        return {"step": statistics.median([record["train/dt"] for record in log if "train/dt" in record][1:])}

    return partial(run_script, "chat_rl", flags.split() + OURS[case]), facts


def reference(job: dict):
    """Run in a process with the reference as package `nanochat`."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    from nanochat.engine import Engine

    prompts, special = json.loads(Path(job["folder"], "prompts.json").read_text())
    words = argparse.Namespace(encode_special=special.get, get_bos_token_id=lambda: special["<|bos|>"])
    words.encode = words.decode = lambda given: ""
    model = reference_model(512, job["vocab"], job["depth"], job["depth"], job["depth"], 64 * job["depth"], "L")
    engine = Engine(model, words)
    optimizer = model.setup_optimizer()

    def group(number: int) -> None:
        sampling = {"max_tokens": job["tokens"], "temperature": 0.7, "top_k": 50, "seed": number}
        rows, masks = engine.generate_batch(prompts[number % len(prompts)], num_samples=job["samples"], **sampling)
        rewards = torch.tensor([float(zlib.crc32(str(row).encode()) % 2) for row in rows])
        ids, kept = (
            pad_sequence(list(map(torch.tensor, part)), batch_first=True).to(model.get_device())
            for part in (rows, masks)
        )
        targets = torch.where(kept[:, 1:] == 1, ids[:, 1:], -1)
        losses = model(ids[:, :-1], targets, loss_reduction="none").view_as(targets)
        advantages = (rewards - rewards.mean())[:, None].to(losses.device)
        ((losses * advantages).sum() / (targets >= 0).sum() / job["examples"]).backward()

    def step(number: int):
        start = time.perf_counter()
        for place in range(job["examples"]):
            group(number * job["examples"] + place)
        optimizer.step()
        model.zero_grad(set_to_none=True)
        return time.perf_counter() - start

    return lambda: list(map(step, range(job["steps"]))), lambda times: {"step": statistics.median(times[1:])}


def main() -> None:
    options = parser_of("rl_step", __doc__, has_reference=True, **SIZES).parse_args()
    findings = Findings("rl_step", options.json)
    with tempfile.TemporaryDirectory() as options.folder:
        about = {"env": {"NANOCHAT_BASE_DIR": options.folder, "NANOCHAT_HUB": f"{options.folder}/hub"}, "limit": None}
        required(prepare, vars(options), **about)
        works = {case: (ours, vars(options), case) for case in OURS} | {"reference": (reference, vars(options))}
        runs = contenders(options.reference, works, **about)
        compare(findings, "a step", runs, [Figure("step", "s")], options.repeats)
    findings.finish()


if __name__ == "__main__":
    main()
