"""The CORE metric, ours and the reference's in turn on one bundle: items a second, from its files to the decisions.

    python -m bench.core_eval --bundle HUB/eval_bundle --data FOLDER [--reference CHECKOUT]

The reference is a checkout of the public nanochat, whose `evaluate_core` is run as it is, with its own model and
tokenizer class over our vocabulary. Every run is a process of its own that renders and tokenizes its prompts again.
"""

import argparse
import base64
import importlib.util
import json
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import yaml

from bench.common import ROOT, Figure, compare, finish, in_child

CASES = {  # label of a task in the bundle → what it is called, shots, items
    "arc_easy": ("10-shot ARC-Easy", 10, 32),
    "piqa": ("0-shot PIQA", 0, 256),
    "lambada_openai": ("LAMBADA", 0, 256),
}
VOCABULARY, LENGTH = 4096, 2048
FIGURES = [Figure("rate", "items/s", less_is_better=False), Figure("memory", "MB", shown=",.0f")]


def ours(folder: str, depth: int, items: int) -> tuple[Callable, Callable]:
    import torch

    from nanochat.checkpoint import build_model
    from nanochat.evals.core import evaluate_core
    from nanochat.evals.core_tasks import read_bundle
    from nanochat.gpt import GPTConfig
    from nanochat.runtime import Runtime
    from nanochat.tokenizer import Tokenizer

    tokenizer, gpu = Tokenizer.load(Path(folder, "tokenizer.json")), torch.cuda.is_available()
    runtime = Runtime(torch.device("cuda" if gpu else "cpu"), torch.bfloat16 if gpu else torch.float32, "sdpa")
    config = GPTConfig(VOCABULARY, depth, 64 * depth, depth // 2, bos_id=tokenizer.special_tokens["<|bos|>"])
    model = build_model(config, runtime, 1)
    return lambda: evaluate_core(model.eval(), tokenizer, read_bundle(), runtime, items), lambda results: {}


def reference(folder: str, depth: int, items: int) -> tuple[Callable, Callable]:
    import tiktoken
    import torch

    from nanochat.gpt import GPT, GPTConfig
    from nanochat.tokenizer import RustBPETokenizer

    # By its path: its `scripts` is no package, so that ours would be found.
    spec = importlib.util.spec_from_file_location("base_eval", Path(sys.path[0], "scripts", "base_eval.py"))
    spec.loader.exec_module(script := importlib.util.module_from_spec(spec))
    made = json.loads(Path(folder, "tiktoken.json").read_text())
    made["mergeable_ranks"] = {base64.b64decode(token): rank for rank, token in enumerate(made["mergeable_ranks"])}
    tokenizer = RustBPETokenizer(tiktoken.Encoding("bench", **made), "<|bos|>")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with torch.device("meta"):
        model = GPT(GPTConfig(LENGTH, VOCABULARY, depth, depth // 2, depth // 2, 64 * depth))
    model.to_empty(device=device)
    model.init_weights()
    return lambda: script.evaluate_core(model.eval(), tokenizer, device, items), lambda results: {}


def write_inputs(data: str, source: Path, folder: Path) -> None:
    """A vocabulary in a form for each, and for each case a bundle that lists nothing else."""
    from nanochat.data.corpus import open_corpus
    from nanochat.tokenizer import Tokenizer

    tokenizer = Tokenizer.train(open_corpus(data).batches("train"), VOCABULARY, max_chars=20_000_000)
    tokenizer.save(folder / "tokenizer.json")
    special, core = tokenizer.special_tokens, tokenizer.core
    tokens = [base64.b64encode(core.token_bytes(rank)).decode() for rank in range(VOCABULARY - len(special))]
    made = {"pat_str": core.pattern, "mergeable_ranks": tokens, "special_tokens": special}
    (folder / "tiktoken.json").write_text(json.dumps(made))
    for label, (_, shots, _) in CASES.items():
        (bundle := folder / label / "eval_bundle").mkdir(parents=True)
        for name in ("eval_meta_data.csv", "eval_data"):
            (bundle / name).symlink_to(source / name)
        listed = yaml.safe_load((source / "core.yaml").read_text(encoding="utf-8"))["icl_tasks"]
        entries = {entry["label"]: entry for entry in listed}
        task = entries[label] | {"num_fewshot": [shots]}
        lines = [f"  {name}: {json.dumps(value)}" for name, value in task.items()]
        (bundle / "core.yaml").write_text("\n".join(["icl_tasks:", "-", *lines]))


def run(work: Callable, checkout: Path, folder: Path, label: str, depth: int, repeat: int) -> dict:
    hub, items = folder / label, CASES[label][2]
    base = hub if work is reference else hub / f"base-{repeat}"  # the reference looks for the bundle there
    env = {"NANOCHAT_HUB": str(hub), "NANOCHAT_BASE_DIR": str(base)}
    found = in_child(work, str(folder), depth, items, checkout=checkout, env=env)
    return found | ({"rate": items / found["seconds"]} if "seconds" in found else {})


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.core_eval", description=__doc__.splitlines()[0])
    parser.add_argument("--bundle", required=True, help="folder of core.yaml")
    parser.add_argument("--data", required=True, help="text for the vocabulary, as scripts.base_train takes it")
    parser.add_argument("--reference", help="checkout of the public nanochat")
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", help="file to write all figures to")
    options, records = parser.parse_args(), []
    works = {"ours": (ours, ROOT)}
    if options.reference:
        works["reference"] = (reference, Path(options.reference).resolve())
    with tempfile.TemporaryDirectory() as folder:
        write_inputs(options.data, Path(options.bundle).resolve(), Path(folder))
        for label, (case, _, _) in CASES.items():
            runs = {name: partial(run, *work, Path(folder), label, options.depth) for name, work in works.items()}
            records += compare(case, runs, FIGURES, options.repeats)
    finish(options.json, records)


if __name__ == "__main__":
    main()
