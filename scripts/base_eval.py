"""Evaluate a base model on the CORE metric: the mean centered accuracy over the tasks of a bundle.

python -m scripts.base_eval --tag=d12
torchrun --standalone --nproc_per_node=8 -m scripts.base_eval -- --tag=d24 --max-per-task=500
"""

from nanochat.config import Count, option, options, run_script
from nanochat.outcome import Outcome
from nanochat.paths import stage_dir
from nanochat.settings import CheckpointChoice, DeviceSettings, LogSettings
from nanochat.statistics import average


@options("tasks")
class Config(DeviceSettings, CheckpointChoice, LogSettings):
    """Evaluate a base model on the CORE metric."""

    max_per_task: Count = option(-1, "items of each task (-1: all)", least=-1)


def main(config: Config) -> None:
    from nanochat.evals.core import evaluate_core
    from nanochat.evals.core_tasks import open_core
    from nanochat.models import load_model
    from nanochat.runtime import setup

    outcome = Outcome.begin("base_eval", config.tag, config)
    with setup(config.device_type, config.dtype) as runtime:
        model, tokenizer, checkpoint = load_model("base_train", config.tag, config.step, runtime, config.exits)
        folder = stage_dir("base_eval", config.tag)
        name, tasks = open_core(checkpoint.manifest["tokenizer"]["tag"])
        scores = evaluate_core(model, tokenizer, tasks, runtime, max(config.max_per_task, 0), folder)
        # All ranks have the scores; one writes the record.
        if runtime.rank != 0:
            return
        outcome.metrics["Model"] = f"base_train {config.tag} (step {checkpoint.step:,})"
        outcome.metrics[name] = average(scores.values()).metric(chance=0.0)
        # The report card shows metrics in this order; the artifacts let runs be compared item by item.
        for label, score in scores.items():
            outcome.metrics[label] = score.metric(chance=0.0)
            outcome.add_artifact(folder / f"{label}.jsonl")
        outcome.write_evaluation("core", checkpoint.step)


if __name__ == "__main__":
    run_script(main)
