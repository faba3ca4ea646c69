"""A training step on all GPUs of a machine: `scripts.base_train` under torchrun, with the flags of the main job.

python -m bench.ranks [--ranks 8] [--depth 22] [--steps 30] [--vocab 49152] [FLAGS OF BASE TRAINING …]

One run on the text of an embedded world. The figures are those of its outcome, so the first steps do not count.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.common import ROOT, parser_of, required, run_script
from bench.findings import Findings
from nanochat.log import table_of, terminal_table
from nanochat.outcome import Outcome

# Words of an outcome -> a column.
FIGURES = {
    "Tokens per second": "tokens/s, all ranks",
    "MFU %": "MFU, %",
    "Communication not hidden": "communication not hidden, %",
    "Peak memory usage": "memory of a rank, MiB",
}
# What a run prints about its step.
LINES = re.compile(r"^(?:attention|compiler|fp8|device): .*$", re.MULTILINE)


def train_tokenizer(vocabulary: int) -> None:
    run_script("tok_train", [f"--vocab-size={vocabulary}", "--data=world", "--max-chars=2e7"])


def main() -> None:
    parser = parser_of("ranks", __doc__, ranks=0, depth=22, steps=30, vocab=49152)
    options, flags = parser.parse_known_args()
    findings = Findings("ranks", options.json)
    with tempfile.TemporaryDirectory() as folder:
        environment = {"NANOCHAT_BASE_DIR": folder}
        required(train_tokenizer, options.vocab, env=environment)
        words = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        words += [f"--nproc_per_node={options.ranks or 'gpu'}", "-m", "scripts.base_train", "--"]
        words += [f"--depth={options.depth}", f"--num-iterations={options.steps}", "--data=world", "--tag=ranks"]
        words += ["--eval-every=-1", "--sample-every=-1", "--save-every=-1", *flags]
        done = subprocess.run(words, cwd=ROOT, env=os.environ | environment, stdout=subprocess.PIPE, text=True)
        if done.returncode:
            print(done.stdout[-4000:], file=sys.stderr)
            raise SystemExit(f"base_train has failed (exit code {done.returncode})")
        steps = [line for line in done.stdout.splitlines() if line.startswith("step ")]
        metrics = Outcome.load(Path(folder, "base_train/ranks/outcome.json")).metrics
        known = {name: value for name, value in metrics.items() if isinstance(value, dict)}  # else text: n/a
        row = {title: known[name]["value"] if name in known else None for name, title in FIGURES.items()}
        said = LINES.findall(done.stdout)
    findings.add(**row, said=said, last_step=steps[-1])
    table = [[name, value] for name, value in row.items()]
    title = f"Depth {options.depth}, {options.steps} steps, ranks: {options.ranks or 'all GPUs'}"
    print(*said, steps[-1], "", terminal_table(table_of(title, "figure | value:,.2f", table)), sep="\n")
    findings.finish()


if __name__ == "__main__":
    main()
