"""Compare two models' free answers side by side: a judge at an endpoint reads each pair in both orders.

python -m tracks.preferences.judge sft:d8 dpo:d8 --prompts=World-Chat --teacher=http://host:8000/v1 --teacher-model=...
"""

from pathlib import Path

from nanochat.config import Positional, check_names, option, options, run_script
from nanochat.errors import UserError
from nanochat.log import Record
from nanochat.outcome import Outcome
from nanochat.paths import stage_dir, write_jsonl
from nanochat.settings import AnswerSettings, DeviceSettings, TagSettings
from nanochat.stages import MODELS
from tasks.common import DataSet, Task
from tracks.chatdata.teacher import Teacher, TeacherSettings, judge, judged_metrics


@options("models")
class Config(TeacherSettings, AnswerSettings, DeviceSettings, TagSettings):
    """Judge the answers of two models, and make pairs for tracks.preferences.train."""

    models: Positional[tuple[str, str]] = option(("", ""), "A and B, each STAGE:TAG like sft:d8")
    prompts: str = option("", "conversations whose last answer is replaced: a task's training split, or json:FILE")
    pairs: str = option("", "file to write for tracks.preferences.train, with a better and a worse answer")
    max_problems = 100


def place_of(name: str) -> tuple[str, str]:
    """Return the stage and the tag of a model, named like sft:d8."""
    source, _, tag = name.partition(":")
    check_names(f"{name} is not like sft:d8: the stage", [source], MODELS)
    return MODELS[source], tag


def open_prompts(data: DataSet, models: tuple[str, str]) -> Task:
    """Return the prompts, which some tasks take from the text of a model's tokenizer; a UserError if they differ."""
    from nanochat.models import described

    tags = [described(*place_of(name)).manifest["tokenizer"]["tag"] for name in models]
    # Pairs may be learned from, and a test split never is.
    first, second = (data("train", tokenizer=tag) for tag in tags)
    if first.hashes() != second.hashes():
        raise UserError(f"{' and '.join(models)} learned from different texts, and these prompts ask for what one read")
    return first


def answers_of(name: str, task: Task, config: Config) -> list[Record]:
    """Return a model's answers to the problems in a task, as an evaluation records them."""
    from nanochat.evals.chat import evaluate_task
    from nanochat.models import load_model
    from nanochat.runtime import setup

    with setup(config.device_type, config.dtype) as runtime:
        model, tokenizer, _ = load_model(*place_of(name), -1, runtime)
        return evaluate_task(task, model, tokenizer, runtime, config, name).records


def main(config: Config) -> None:
    from tasks import TASKS
    from tasks.mixing import find_set
    from tracks.preferences.pairs import make_pairs

    if config.num_samples * config.repeats > 1:
        raise UserError("each model gives one answer to a prompt: leave out --num-samples and --repeats")
    outcome = Outcome.begin("judge", config.tag, config)
    teacher = Teacher(config)
    _, data = find_set(config.prompts, TASKS)
    check_names(f"--prompts={config.prompts}: the split", ["train"], data.split_names)
    task = open_prompts(data, config.models)
    if task.kind == "categorical":
        raise UserError(f"--prompts={config.prompts} is answered by a letter, use a task with free answers")
    rows = []
    for records in zip(*(answers_of(model, task, config) for model in config.models), strict=True):
        messages = task[records[0]["problem"]]["messages"]
        if messages[-1]["role"] == "assistant":
            messages = messages[:-1]
        samples = [record["completions"][0] for record in records]
        rows.append({"prompt": records[0]["prompt"], "messages": messages, "samples": samples})
    judged = teacher.map(judge, rows)
    write_jsonl(stage_dir("judge", config.tag) / "judged.jsonl", judged)
    outcome.metrics = judged_metrics(judged)
    outcome.finish()
    if config.pairs:
        write_jsonl(Path(config.pairs), make_pairs(judged, 1))


if __name__ == "__main__":
    run_script(main)
