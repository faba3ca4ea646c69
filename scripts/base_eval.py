"""Evaluate a model on the CORE metric: the mean centered accuracy over the tasks of a bundle.

python -m scripts.base_eval --tag=d12
python -m scripts.base_eval --tag=d12 --source=sft --tasks=piqa,copa        what chat training has cost
torchrun --standalone --nproc_per_node=8 -m scripts.base_eval -- --tag=d24 --max-per-task=500
"""

from nanochat.config import Count, option, options, run_script
from nanochat.outcome import Outcome
from nanochat.paths import stage_dir
from nanochat.settings import DeviceSettings, LogSettings, ModelChoice
from nanochat.stages import MODELS, core_stage
from nanochat.statistics import average


@options("tasks")
class Config(DeviceSettings, ModelChoice, LogSettings):
    """Evaluate a model on the CORE metric."""

    source = "base"
    tasks: str = option("", "names of CORE's tasks, separated by commas (default: all)")
    out_tag: str = option("", "name of the evaluation's folder (default: the run's)", in_card=False)
    max_per_task: Count = option(-1, "items of each task (-1: all)", least=-1)


def main(config: Config) -> None:
    from nanochat.evals.core import evaluate_core
    from nanochat.evals.core_tasks import open_core
    from nanochat.models import load_chosen
    from nanochat.runtime import keep_freed_memory, setup

    stage = core_stage(config.source)
    tag = config.evaluation_tag(config.out_tag)
    outcome = Outcome.begin(stage, tag, config)
    with setup(config.device_type, config.dtype) as runtime:
        if runtime.device.type == "cpu":
            keep_freed_memory()
        model, tokenizer, checkpoint = load_chosen(config, runtime)
        folder = stage_dir(stage, tag)
        name, tasks = open_core(checkpoint.manifest["tokenizer"]["tag"], list(filter(None, config.tasks.split(","))))
        scores = evaluate_core(model, tokenizer, tasks, runtime, max(config.max_per_task, 0), folder)
        # All ranks have the scores; one writes the record.
        if runtime.rank != 0:
            return
        outcome.metrics["Model"] = f"{MODELS[config.source]} {config.tag} (step {checkpoint.step:,})"
        outcome.metrics[name] = average(scores.values()).metric(chance=0.0)
        # The report card shows metrics in this order; the artifacts let runs be compared item by item.
        for label, score in scores.items():
            outcome.metrics[label] = score.metric(chance=0.0)
            outcome.add_artifact(folder / f"{label}.jsonl")
        outcome.write_evaluation("core", checkpoint.step)


if __name__ == "__main__":
    run_script(main)
