"""Fine-tuning a public model, ours and trl's SFTTrainer in turn, on the same rows, in fp32.

    python -m bench.tuning --model=PLACE --peers FOLDER [--mixture GSM8K] [--steps 8]

A place is a folder or a GGUF file, as tracks.bases.bring reads it. Ours is `scripts.chat_sft` with a user's flags and
the times in its log. trl trains the model that we export again as a folder in fp32 (it refuses GGUF files), with AdamW,
on the rows that our loader packed, so it tokenizes nothing. --peers: a folder with trl, datasets and accelerate (`pip
install --target`). Every run is a process of its own.
"""

import argparse
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from bench.common import Figure, compare, in_child, parser_of, required, run_script
from bench.findings import Findings

SKIPPED = 3  # steps, before the rate is taken
FASTER = 1.2  # the goal
FIGURES = [
    Figure("rate", "tokens/s", less_is_better=False, shown=",.0f"),
    Figure("first", "s, the first step", shown=".1f"),
    Figure("memory", "MB", shown=",.0f"),
    Figure("loss", "of the last step", shown=".3f"),
]


def prepare(job: dict) -> None:
    """Bring the model in, write it as a folder for trl, and the rows that our loader makes of the mixture."""
    import numpy as np

    from nanochat.models import described, tokenizer_of
    from nanochat.packing import ChatLoader
    from tasks import open_tasks
    from tracks.bases import bring
    from tracks.export import export

    options = argparse.Namespace(**job)
    bring.main(bring.Config(from_=options.model, tag="bench", source="base", context=options.length))
    export.main(export.Config(source="base", tag="bench", out=str(Path(options.folder, "folder"))))
    tokenizer = tokenizer_of(described("base_train", "bench"))
    [task] = open_tasks(options.mixture).values()
    with ChatLoader(task, tokenizer, options.rows, options.length, seed=0) as loader:
        batches = [next(loader) for _ in range(options.steps)]
    for name, number in (("inputs", 0), ("targets", 1)):
        np.save(Path(options.folder, f"{name}.npy"), np.concatenate([batch[number].numpy() for batch in batches]))


def facts(options: argparse.Namespace, times: list[float], loss: float) -> dict[str, float]:
    step = statistics.median(times[SKIPPED:])
    return {"rate": options.rows * options.length / step, "first": times[0], "loss": loss}


def ours(job: dict, extra: str):
    from nanochat.log import read_metrics

    options = argparse.Namespace(**job)
    flags = ["--source=base", "--model-tag=bench", "--tag=tuned", f"--mixture={options.mixture}", "--dtype=fp32"]
    flags += [f"--max-seq-len={options.length}", f"--device-batch-size={options.device_batch}", "--no-warm-start"]
    flags += [f"--total-batch-size={options.rows * options.length}", f"--num-iterations={options.steps}"]
    flags += ["--eval-every=-1", "--eval-metrics-every=-1", "--save-every=-1", "--resume=never", *extra.split()]

    def figures(_: None):
        log = read_metrics(Path(options.folder, "chat_sft/tuned/metrics.jsonl"))
        times = [record["train/dt"] for record in log if "train/dt" in record]
        return facts(options, times, [record["train/loss"] for record in log if "train/loss" in record][-1])

    return partial(run_script, "chat_sft", flags), figures


def trl(job: dict, checkpointing: bool):
    import numpy as np
    import torch

    options = argparse.Namespace(**job)
    sys.path.append(options.peers)
    import transformers
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    folder = Path(options.folder, "folder")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    inputs, targets = (np.load(Path(options.folder, f"{name}.npy")) for name in ("inputs", "targets"))
    labels = np.where(targets < 0, -100, targets)
    # Their labels stand under their inputs: a row gets one token more.
    last = np.where(targets[:, -1:] < 0, 0, targets[:, -1:])
    rows = Dataset.from_dict(
        {
            "input_ids": np.concatenate([inputs, last], 1).tolist(),
            "labels": np.concatenate([np.full_like(labels[:, :1], -100), labels], 1).tolist(),
        }
    )
    times: list[float] = []

    class Clock(transformers.TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.start = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            times.append(time.perf_counter() - self.start)

    config = SFTConfig(
        output_dir=str(Path(options.folder, "trl")),
        per_device_train_batch_size=options.device_batch,
        gradient_accumulation_steps=options.rows // options.device_batch,
        max_steps=options.steps,
        max_length=options.length + 1,
        gradient_checkpointing=checkpointing,
        bf16=False,
        use_cpu=not torch.cuda.is_available(),
        dataset_kwargs={"skip_prepare_dataset": True},
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )

    def collate(batch: list[dict]) -> dict[str, torch.Tensor]:
        tensors = {name: torch.tensor([row[name] for row in batch]) for name in ("input_ids", "labels")}
        return tensors | {"attention_mask": torch.ones_like(tensors["input_ids"])}

    trainer = SFTTrainer(
        model, config, train_dataset=rows, processing_class=tokenizer, data_collator=collate, callbacks=[Clock()]
    )

    def figures(_: None):
        losses = [record["loss"] for record in trainer.state.log_history if "loss" in record]
        return facts(options, times, losses[-1])

    def run() -> None:
        trainer.train()

    return run, figures


def main() -> None:
    parser = parser_of("tuning", __doc__, **{"steps": 8, "rows": 16, "device-batch": 4, "length": 512})
    parser.add_argument("--model", required=True, help="folder or GGUF file")
    parser.add_argument("--peers", default="", help="folder with trl, datasets and accelerate")
    parser.add_argument("--mixture", default="GSM8K", help="a task, as scripts.chat_sft takes it")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    if options.steps <= SKIPPED:
        parser.error(f"--steps must be above {SKIPPED}: the first steps are not timed")
    findings = Findings("tuning", options.json)
    with tempfile.TemporaryDirectory() as options.folder:
        job = vars(options)
        env = {"NANOCHAT_BASE_DIR": options.folder}
        required(prepare, job, env=env)
        runs = {
            "ours": lambda _: in_child(ours, job, "", env=env, limit=None),
            "ours, eager": lambda _: in_child(ours, job, "--no-compile", env=env, limit=None),
        }
        if options.peers:
            runs["trl"] = lambda _: in_child(trl, job, False, env=env, limit=None)
            runs["trl, as shipped: checkpointing"] = lambda _: in_child(trl, job, True, env=env, limit=None)
        found = compare(findings, f"{options.rows} rows of {options.length} tokens", runs, FIGURES, options.repeats)
    findings.finish()
    if any("rate" not in run for runs in found.values() for run in runs):
        sys.exit(1)
    medians = {name: statistics.median(run["rate"] for run in runs) for name, runs in found.items()}
    if options.peers:
        ratio = medians["ours"] / medians["trl"]
        print(f"goal: {FASTER} x trl's rate; found: {ratio:.2f} x")
        sys.exit(ratio < FASTER)


if __name__ == "__main__":
    main()
