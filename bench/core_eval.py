"""The CORE metric, ours and the reference's in turn on one bundle: items a second, from its files to the decisions.

    python -m bench.core_eval --bundle HUB/eval_bundle --data FOLDER [--reference CHECKOUT]

The reference is a checkout of the public nanochat, whose `evaluate_core` is run as it is, with its own model and
tokenizer class over our vocabulary. Every run is a process of its own that renders and tokenizes its prompts again.
"""

import importlib.util
import json
import os
import sys
import tempfile
from pathlib import Path

import yaml

from bench.common import Figure, compare, contenders, our_model, parser_of, reference_model
from bench.findings import Findings
from bench.tokenizer_peers import read_vocabulary, write_vocabulary

CASES = {  # label of a task in the bundle → what it is called, shots, items
    "arc_easy": ("10-shot ARC-Easy", 10, 32),
    "piqa": ("0-shot PIQA", 0, 256),
    "lambada_openai": ("LAMBADA", 0, 256),
}
VOCABULARY = 4096
LENGTH = 2048
FIGURES = [Figure("rate", "items/s", less_is_better=False), Figure("memory", "MB", shown=",.0f")]


def ours(folder: str, depth: int, items: int):
    from nanochat.evals.core import evaluate_core
    from nanochat.evals.core_tasks import read_bundle
    from nanochat.tokenizer import Tokenizer

    os.environ["NANOCHAT_BASE_DIR"] = tempfile.mkdtemp(dir=folder)  # each run tokenizes its prompts again
    tokenizer = Tokenizer.load(Path(folder, "tokenizer.json"))
    model, runtime = our_model(VOCABULARY, depth, 64 * depth, depth // 2, depth // 2, bos_id=tokenizer.bos)
    return lambda: evaluate_core(model, tokenizer, read_bundle(), runtime, items), lambda results: {"count": items}


def reference(folder: str, depth: int, items: int):
    from nanochat.tokenizer import RustBPETokenizer

    # By its path: its `scripts` is not a package, so ours would be found.
    spec = importlib.util.spec_from_file_location("base_eval", Path(sys.path[0], "scripts", "base_eval.py"))
    spec.loader.exec_module(script := importlib.util.module_from_spec(spec))
    tokenizer = RustBPETokenizer(read_vocabulary(folder), "<|bos|>")
    model = reference_model(LENGTH, VOCABULARY, depth, depth // 2, depth // 2, 64 * depth).eval()
    return lambda: script.evaluate_core(model, tokenizer, model.get_device(), items), lambda results: {"count": items}


def write_inputs(data: str, source: Path, folder: Path) -> None:
    """A vocabulary in a form for each, and for each case a bundle that lists nothing else."""
    from nanochat.data.corpus import open_corpus
    from nanochat.tokenizer import Tokenizer

    write_vocabulary(Tokenizer.train(open_corpus(data).batches("train"), VOCABULARY, max_chars=20_000_000), folder)
    listed = yaml.safe_load((source / "core.yaml").read_text(encoding="utf-8"))["icl_tasks"]
    entries = {entry["label"]: entry for entry in listed}
    for label, (_, shots, _) in CASES.items():
        (bundle := folder / label / "eval_bundle").mkdir(parents=True)
        for name in ("eval_meta_data.csv", "eval_data"):
            (bundle / name).symlink_to(source / name)
        task = entries[label] | {"num_fewshot": [shots]}
        (bundle / "core.yaml").write_text(json.dumps({"icl_tasks": [task]}))  # JSON is YAML too


def main() -> None:
    parser = parser_of("core_eval", __doc__, has_reference=True, depth=6, repeats=3)
    parser.add_argument("--bundle", required=True, help="folder of core.yaml")
    parser.add_argument("--data", required=True, help="text for the vocabulary, as scripts.base_train takes it")
    options = parser.parse_args()
    findings = Findings("core_eval", options.json)
    with tempfile.TemporaryDirectory() as folder:
        write_inputs(options.data, Path(options.bundle).resolve(), Path(folder))
        for label, (case, _, items) in CASES.items():
            # The reference looks for the bundle in the second one.
            env = dict.fromkeys(("NANOCHAT_HUB", "NANOCHAT_BASE_DIR"), f"{folder}/{label}")
            job = folder, options.depth, items
            runs = contenders(options.reference, {"ours": (ours, *job), "reference": (reference, *job)}, env=env)
            compare(findings, case, runs, FIGURES, options.repeats)
    findings.finish()


if __name__ == "__main__":
    main()
