"""Compare two models' free answers side by side: a judge at an endpoint reads each pair in both orders.

python -m scripts.judge --a=sft:d8 --b=dpo:d8 --tasks=World-Talk --teacher=http://localhost:8000/v1 --teacher-model=...
python -m scripts.judge --rows=answers.jsonl --pairs=pairs.jsonl --teacher=... --teacher-model=...
"""

import statistics
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from nanochat.chat import check_conversation
from nanochat.config import Count, option, run
from nanochat.curate.teacher import Teacher, TeacherSettings, judge, plain, read_rows
from nanochat.log import Record, format_value, print0
from nanochat.outcome import Metrics, Outcome, mean_estimate, measured
from nanochat.paths import stage_dir, write_jsonl
from nanochat.settings import DeviceSettings, SamplingSettings, TagSettings
from nanochat.stages import MODELS
from tasks import TASKS, pick

TIE = 0.5


@dataclass(frozen=True)
class Config(TeacherSettings, SamplingSettings, DeviceSettings, TagSettings):
    """Judge the answers of two models, or rows with two answers each."""

    a: str = option("", "model like sft:d8, or file of answered prompts, JSONL", group="rows")
    b: str = option("", "model or file to compare it with", group="rows")
    prompts: str = option("", "file of conversations to answer, JSONL", group="rows")
    tasks: str = option("", "or tasks, joined by |", group="rows")
    max_problems: Count = option(100, "problems of each task", group="rows", least=1)
    rows: str = option("", "instead: file with prompt, answer_a and answer_b in each row, JSONL", group="rows")
    pairs: str = option("", "file to write for scripts.chat_dpo: prompt, chosen, rejected", group="rows")


def read_prompts(config: Config) -> list[list[dict]]:
    """Return conversations up to the answer."""
    if config.prompts:
        found = [row["messages"] for row in read_rows(config.prompts, "messages")]
    else:
        tasks = [TASKS[name]() for name in pick(config.tasks, TASKS)]
        found = [task[i]["messages"] for task in tasks for i in range(min(len(task), config.max_problems))]
    if not found:
        raise ValueError("there is nothing to answer: add --prompts=FILE, --tasks=NAMES, or answers with --rows=FILE")
    return [messages[:-1] if messages[-1]["role"] == "assistant" else messages for messages in found]


def answers_of(name: str, prompts: list[list[dict]], config: Config) -> list[str]:
    """Return a model's answers: sampled from a checkpoint, or read from a file."""
    if name.endswith(".jsonl"):
        answered = [row["messages"] for row in read_rows(name, "messages")]
        if [messages[:-1] for messages in answered] != prompts:
            raise ValueError(f"{name} has other prompts: it needs a row for each prompt, in the same order")
        return [plain(messages[-1]) for messages in answered]
    # Slow imports stay out of --help.
    from nanochat.chat import Reply, fitted_prompt
    from nanochat.checkpoint import load_model
    from nanochat.engine import Engine, Request
    from nanochat.runtime import setup

    source, _, tag = name.partition(":")
    if source not in MODELS:
        raise ValueError(f"{name} is neither a file .jsonl nor a model like sft:d8")
    with setup(config.device_type, config.dtype) as runtime:
        model, tokenizer, _ = load_model(MODELS[source], tag, -1, runtime)
        requests = []
        for number, messages in enumerate(prompts):
            prompt, _ = fitted_prompt(
                {"messages": messages}, tokenizer, model.config.max_seq_len, config.max_new_tokens
            )
            seed = (config.seed << 32) + number
            requests.append(Request(prompt, config.max_new_tokens, config.temperature, config.top_k, seed=seed))
        answers = []
        for [sample] in Engine(model, tokenizer).generate(requests):
            reply = Reply(tokenizer)
            pieces = [piece for token in sample.tokens for piece in reply.add(token)] + reply.close()
            answers.append("".join(piece.text for piece in pieces if piece.kind == "text"))
        return answers


def read_answers(config: Config) -> list[Record]:
    """Return rows with a prompt and two answers."""
    if config.rows:
        rows = read_rows(config.rows, "prompt", "answer_a", "answer_b")
        for row in rows:
            check_conversation({"messages": row["prompt"]})
        return rows
    prompts = read_prompts(config)
    sides = zip(prompts, answers_of(config.a, prompts, config), answers_of(config.b, prompts, config), strict=True)
    return [{"prompt": prompt, "answer_a": a, "answer_b": b} for prompt, a, b in sides]


def judge_twice(teacher: Teacher, row: Record) -> Record:
    """Return the row with the score of A, 0 to 1, as it stands first and second; if they differ, it is a tie."""
    a, b = row["answer_a"], row["answer_b"]
    first = second = TIE
    if a != b:
        first, second = judge(teacher, row["prompt"], a, b), 1 - judge(teacher, row["prompt"], b, a)
    return row | {"first": first, "second": second, "score": first if first == second else TIE}


def figures(judged: list[Record]) -> Metrics:
    """Return win rate and biases; standard errors are over prompts."""
    scores = [row["score"] for row in judged]
    # The first place scores `first` with A in it, and 1 - `second` with B.
    places = [(row["first"] + 1 - row["second"]) / 2 for row in judged]
    longer = [len(row["answer_a"]) - len(row["answer_b"]) for row in judged]
    try:
        correlation = statistics.correlation(scores, longer)
    except statistics.StatisticsError:  # all scores or all lengths are equal
        correlation = None
    return {
        "Prompts": len(judged),
        "Win rate of A": mean_estimate(scores).metric(),
        "Wins, ties, losses": ", ".join(str(scores.count(value)) for value in (1, TIE, 0)),
        "Verdicts that depend on the order": sum(row["first"] != row["second"] for row in judged),
        "Wins of the first place": mean_estimate(places).metric(),
        "Correlation of score and length": measured(correlation),
    }


def pair_of(row: Record) -> Record:
    """Return a judged row as a pair for preference tuning."""
    sides = row["answer_a"], row["answer_b"]
    chosen, rejected = sides if row["score"] == 1 else sides[::-1]
    return {"prompt": row["prompt"], "chosen": chosen, "rejected": rejected}


def main(config: Config) -> None:
    outcome = Outcome.begin("judge", config.tag, config)
    teacher = Teacher(config)
    judged = [result for _, result in teacher.map(partial(judge_twice, teacher), read_answers(config))]
    path = stage_dir("judge", config.tag) / "judged.jsonl"
    write_jsonl(path, judged)
    outcome.add_artifact(path)
    outcome.metrics = figures(judged)
    print0(*(f"{name}: {format_value(value)}" for name, value in outcome.metrics.items()), sep="\n")
    if config.pairs:
        pairs = [pair_of(row) for row in judged if row["score"] != TIE]
        write_jsonl(Path(config.pairs).expanduser(), pairs)
        print0(f"judge: {len(pairs):,} pairs: {config.pairs}")
    outcome.write()


if __name__ == "__main__":
    run(main, Config)
