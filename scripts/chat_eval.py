"""Evaluate a chat model on tasks: accuracy, pass@k and their mean.

python -m scripts.chat_eval --source=sft --tag=d8 --tasks="ARC-Easy|GSM8K"
python -m scripts.chat_eval -i sft -a "GSM8K|AQUA"
"""

import json
import re
from dataclasses import replace

from nanochat.config import Count, check_limits, option, options, run_script
from nanochat.errors import UserError
from nanochat.log import print0, table_of
from nanochat.outcome import Outcome
from nanochat.paths import stage_dir
from nanochat.settings import AnswerSettings, DeviceSettings, LogSettings, ModelChoice
from tasks import JUDGED, TASKS, open_tasks, pick

SAMPLING = re.compile(r"\d(\.\d+)?,[01](\.\d+)?,[1-9]\d*")


@options("tasks")
class Config(AnswerSettings, DeviceSettings, ModelChoice, LogSettings):
    """Evaluate a model on tasks."""

    tasks: str = option(
        "", f"tasks, separated by commas (or |): {', '.join(JUDGED)} (default: ChatCORE's, or the world's)", short="-a"
    )
    # As the settings of a published evaluation are often given.
    sampling: str = option(
        "", "short for --temperature, --top-p and --max-new-tokens with --top-k=0, like 0.7,0.9,32768"
    )
    out_tag: str = option("", "name of the evaluation's folder (default: the run's)", in_card=False)
    unsafe_exec: bool = option(False, "run programs even where the sandbox cannot contain them")
    slots: Count = option(0, "samples generated in parallel (0: chosen for the device)")

    def __post_init__(self) -> None:
        temperature = self.temperature
        if self.sampling:
            if not SAMPLING.fullmatch(self.sampling):
                raise UserError(f"--sampling={self.sampling} has to be three numbers like 0.7,0.9,32768")
            temperature = json.loads(f"[{self.sampling}]")[0]
        if self.num_samples * self.repeats > 1 and not temperature:
            raise UserError("all answers to a problem would be the same, add --temperature=1")
        # An unknown task or augmentation is an error before the model is loaded.
        for name in pick(self.tasks, JUDGED):
            TASKS[name]


def with_sampling(config: Config) -> Config:
    """Return the config with the values that --sampling is short for, so that the record has them too."""
    if not config.sampling:
        return config
    temperature, top_p, max_new_tokens = json.loads(f"[{config.sampling}]")
    config = replace(config, temperature=temperature, top_p=top_p, max_new_tokens=max_new_tokens, top_k=0)
    check_limits(config)
    return config


def main(config: Config) -> None:
    from nanochat.engine import Engine
    from nanochat.evals.chat import common_tasks, evaluate_task, mean_scores, sample_answers
    from nanochat.models import load_chosen
    from nanochat.runtime import keep_freed_memory, setup

    config = with_sampling(config)
    stage = f"chat_eval_{config.source}"
    tag = config.evaluation_tag(config.out_tag)
    folder = stage_dir(stage, tag)
    outcome = Outcome.begin(stage, tag, config)
    with setup(config.device_type, config.dtype) as runtime:
        if runtime.device.type == "cpu":
            keep_freed_memory()
        model, tokenizer, checkpoint = load_chosen(config, runtime)
        # Spelling tasks take their words from the tokenizer's training text.
        found = open_tasks(config.tasks, config.unsafe_exec, checkpoint.manifest["tokenizer"]["tag"])
        tasks = common_tasks(found, runtime)
        if not tasks:
            raise UserError("no task has its files here, see `python -m scripts.prepare` or set NANOCHAT_HUB")
        # One engine answers all tasks: its KV cache is allocated once.
        engine = Engine(model, tokenizer, config.slots)
        scores = {}
        for name, task in tasks.items():
            score = evaluate_task(task, model, tokenizer, runtime, config, name, folder / f"{name}.jsonl", engine)
            print0(f"{name}: {score.accuracy}, guessing {score.baseline:.2f}")
            scores[name] = score
            outcome.metrics[name] = score.accuracy.metric(score.baseline)
        for name, estimate in mean_scores(scores).items():
            # Means are over centered scores, where guessing is 0.
            outcome.metrics[name] = estimate.metric(chance=0.0)
        # All ranks have the scores; one writes the record.
        if runtime.rank != 0:
            return
        for name in scores:
            outcome.add_artifact(folder / f"{name}.jsonl")
        outcome.metrics |= {"model_tag": config.tag, "Step": checkpoint.step}
        repeated = [[n, one.repeats, *one.accuracy, one.repeat_error] for n, one in scores.items() if one.repeats > 1]
        # One row per task and k.
        passed = [
            [n, k, *found] for n, one in scores.items() for k, found in one.pass_at.items() if len(one.pass_at) > 1
        ]
        categories = [[n, *row] for n, one in scores.items() for row in one.by_category()]
        for title, columns, rows in (
            ("Mean over k repeats", "Task|k:d|Avg@k:.4f|Error over questions:.4f|Error over repeats:.4f", repeated),
            ("One of k answers is right", "Task|k:d|pass@k:.4f|Standard error:.4f", passed),
            ("Sample answers", "Task|Question|Answer|Right", sample_answers(tasks, scores)),
            ("By category", "Task|Category|Problems:d|Accuracy:.4f|Standard error:.4f", categories),
        ):
            if rows:
                outcome.tables.append(table_of(title, columns, rows))
        outcome.write_evaluation("tasks", checkpoint.step)


if __name__ == "__main__":
    run_script(main)
