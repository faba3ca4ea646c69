"""Steps of reinforcement learning, ours and the reference's in turn in one run: questions of GSM8K, random weights.

    python -m bench.rl_step [--reference CHECKOUT] [--depth 4] [--steps 4] [--repeats 3]

Ours is `scripts.chat_rl` with a user's flags, its times read from its log. The reference is a checkout of the public
nanochat: its model, engine and optimizer in the loop of its chat_rl, on the same number of prompts of the same data
set. Answers of random weights run to the limit; half of them, by a hash, are rewarded. The first step is left out.
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
from typing import Any

from bench.common import Figure, compare, finish, in_child

OURS = {"ours, as shipped": [], "ours, fp32": ["--dtype=fp32"]}
REFERENCE = {"reference, as shipped": {}, "reference, bf16": {"NANOCHAT_DTYPE": "bfloat16"}}
FIGURES = [Figure("step", "s"), Figure("of which sampling", "s")]


def facts(times: list[float], sampling: list[float]) -> dict:
    return {"step": statistics.median(times[1:]), "of which sampling": statistics.median(sampling[1:])}


def prepare(job: dict) -> None:
    """A vocabulary, a model after one step, and prompts for the reference, in files without our code."""
    from nanochat.chat import render_prompt
    from nanochat.config import parse
    from nanochat.tokenizer import Tokenizer
    from nanochat.world import write_world
    from scripts import base_train, tok_train
    from tasks import TASKS

    folder = Path(job["folder"])
    write_world(folder / "hub", 1, "tiny")
    tok_train.main(parse(tok_train.Config, [f"--vocab-size={job['vocab']}", "--data=python", "--max-chars=2e7"]))
    model = [f"--depth={job['depth']}", "--head-dim=64", "--max-seq-len=512", "--window-pattern=L", "--no-compile"]
    plan = ["--num-iterations=1", "--total-batch-size=512", "--eval-every=-1", "--data=world", "--dtype=fp32"]
    base_train.main(parse(base_train.Config, [*model, *plan, "--tag=bench"]))
    tokenizer = Tokenizer.load(folder / "tok_train/default/tokenizer.json")
    task = TASKS["GSM8K"]("train")
    prompts = [render_prompt(task[i], tokenizer) for i in range(job["examples"] * job["steps"])]
    (folder / "prompts.json").write_text(json.dumps([prompts, tokenizer.special_tokens]))


def ours(job: dict, case: str) -> Any:
    from nanochat.config import parse
    from scripts import chat_rl
    from tasks.common import Task

    stage = Path(job["folder"], "chat_rl/bench")
    shutil.rmtree(stage, ignore_errors=True)
    Task.reward = lambda task, conversation, completion: float(zlib.crc32(completion.encode()) % 2)
    flags = ["--tag=bench", "--source=base", f"--num-iterations={job['steps']}", "--eval-every=-1", "--save-every=-1"]
    flags += [f"--examples-per-step={job['examples']}", f"--num-samples={job['samples']}", *OURS[case]]

    def found(_: None) -> dict:
        log = [json.loads(line) for line in (stage / "metrics.jsonl").read_text().splitlines()]
        log = [record for record in log if "train/dt" in record]
        times = [record["train/dt"] for record in log]
        return facts(times, [record["train/wait"] * record["train/dt"] for record in log])

    return partial(chat_rl.main, parse(chat_rl.Config, [*flags, f"--max-new-tokens={job['tokens']}"])), found


def reference(job: dict, case: str) -> Any:
    """In a process whose `nanochat` is the reference's."""
    import torch
    from nanochat.engine import Engine
    from nanochat.gpt import GPT, GPTConfig
    from torch.nn.utils.rnn import pad_sequence

    prompts, special = json.loads(Path(job["folder"], "prompts.json").read_text())

    class Words:
        encode_special = staticmethod(special.get)
        get_bos_token_id = staticmethod(lambda: special["<|bos|>"])
        decode = encode = staticmethod(lambda given: "")

    torch.manual_seed(0)
    with torch.device("meta"):
        model = GPT(GPTConfig(512, job["vocab"], job["depth"], job["depth"], job["depth"], 64 * job["depth"], "L"))
    model.to_empty(device="cpu")
    model.init_weights()
    engine, optimizer = Engine(model, Words), model.setup_optimizer()
    drawn = {"max_tokens": job["tokens"], "temperature": 0.7, "top_k": 50}

    def group(number: int) -> float:
        """Sample the answers to a question and add up their gradients; seconds of sampling."""
        start = time.perf_counter()
        model.eval()
        rows, masks = engine.generate_batch(prompts[number], num_samples=job["samples"], seed=number, **drawn)
        seconds = time.perf_counter() - start
        rewards = torch.tensor([float(zlib.crc32(str(row).encode()) % 2) for row in rows])
        ids, kept = (pad_sequence(list(map(torch.tensor, part)), batch_first=True) for part in (rows, masks))
        targets = torch.where(kept[:, 1:] == 1, ids[:, 1:], -1)
        model.train()
        losses = model(ids[:, :-1], targets, loss_reduction="none").view_as(targets)
        advantages = rewards - rewards.mean()
        ((losses * advantages[:, None]).sum() / (targets >= 0).sum() / job["examples"]).backward()
        return seconds

    def step(number: int) -> tuple[float, float]:
        start, first = time.perf_counter(), number * job["examples"]
        sampling = sum(group(first + i) for i in range(job["examples"]))
        optimizer.step()
        model.zero_grad(set_to_none=True)
        return time.perf_counter() - start, sampling

    return lambda: [step(number) for number in range(job["steps"])], lambda found: facts(*zip(*found, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.rl_step", description=__doc__.splitlines()[0])
    parser.add_argument("--reference", default="", help="a checkout of the public nanochat")
    sizes = {"depth": 4, "vocab": 4096, "examples": 16, "samples": 4, "tokens": 64, "steps": 4, "repeats": 3}
    for name, size in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=size)
    parser.add_argument("--json", help="file to write all figures to")
    options = parser.parse_args()

    def run(work: Any, case: str, checkout: dict, number: int) -> dict:
        return in_child(work, vars(options), case, env=env | REFERENCE.get(case, {}), limit=None, **checkout)

    with tempfile.TemporaryDirectory() as options.folder:
        env = {"NANOCHAT_BASE_DIR": options.folder, "NANOCHAT_HUB": f"{options.folder}/hub"}
        if made := in_child(prepare, vars(options), env=env):
            raise SystemExit(made["failure"])
        runs = {case: partial(run, ours, case, {}) for case in OURS}
        theirs = {"checkout": Path(options.reference).resolve()}
        runs |= {case: partial(run, reference, case, theirs) for case in REFERENCE if options.reference}
        records = compare("a step", runs, FIGURES, options.repeats)
    finish(options.json, records)


if __name__ == "__main__":
    main()
