"""Compare two models' free answers side by side: a judge at an endpoint reads each pair in both orders.

python -m scripts.judge --a=sft:d8 --b=dpo:d8 --prompts=World-Sums --teacher=http://host:8000/v1 --teacher-model=...
python -m scripts.judge --rows=answers.jsonl --pairs=pairs.jsonl --teacher=... --teacher-model=...
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from nanochat.chat import check_conversation
from nanochat.config import Count, option, run
from nanochat.curate.teacher import Teacher, TeacherSettings, judge_twice, judged_metrics, read_rows
from nanochat.log import Record, format_value, print0
from nanochat.outcome import Outcome
from nanochat.paths import stage_dir, write_jsonl
from nanochat.settings import DeviceSettings, SamplingSettings, TagSettings
from nanochat.stages import MODELS


@dataclass(frozen=True)
class Config(TeacherSettings, SamplingSettings, DeviceSettings, TagSettings):
    """Judge the answers of two models, or rows with two answers each."""

    a: str = option("", "model, STAGE:TAG like sft:d8", group="rows")
    b: str = option("", "model to compare it with", group="rows")
    prompts: str = option("", "prompts to answer: held-out rows of a mixture, as in --mixture", group="rows")
    max_problems: Count = option(100, "prompts", group="rows", least=1)
    rows: str = option("", "instead: file with prompt, answer_a and answer_b in each row, JSONL", group="rows")
    pairs: str = option("", "file to write for scripts.chat_dpo: prompt, chosen, rejected", group="rows")


def answers_of(name: str, prompts: list[list[dict]], config: Config) -> list[str]:
    """Return the texts that a model's checkpoint answers."""
    # Slow imports stay out of --help.
    from nanochat.chat import Reply, fitted_prompt
    from nanochat.checkpoint import load_model
    from nanochat.engine import Engine, Request
    from nanochat.runtime import setup

    source, _, tag = name.partition(":")
    if source not in MODELS:
        raise ValueError(f"{name} is no model like sft:d8; the stage is one of {', '.join(MODELS)}")
    length = config.max_new_tokens
    with setup(config.device_type, config.dtype) as runtime:
        model, tokenizer, _ = load_model(MODELS[source], tag, -1, runtime)
        requests = []
        for number, messages in enumerate(prompts):
            prompt, _ = fitted_prompt({"messages": messages}, tokenizer, model.config.max_seq_len, length)
            seed = (config.seed << 32) + number  # a prompt's own
            requests.append(Request(prompt, length, config.temperature, config.top_k, seed=seed))
        texts = []
        for [sample] in Engine(model, tokenizer).generate(requests):
            reply = Reply(tokenizer)
            pieces = [piece for token in sample.tokens for piece in reply.add(token)] + reply.close()
            texts.append("".join(piece.text for piece in pieces if piece.kind == "text"))
        return texts


def answered_rows(config: Config) -> list[Record]:
    """Return rows with a prompt and two answers."""
    if config.rows:
        rows = read_rows(config.rows, "prompt", "answer_a", "answer_b")
        for row in rows:
            check_conversation({"messages": row["prompt"]})
        return rows
    if not config.prompts:
        raise ValueError("there is nothing to judge: add --prompts=NAMES, or answers with --rows=FILE")
    from tasks import TASKS
    from tasks.mixing import mix

    chats = mix(TASKS, config.prompts, "validation")
    count = min(len(chats), config.max_problems)
    prompts = [chats[i]["messages"][:-1] for i in range(count)]  # without the answer
    sides = zip(prompts, answers_of(config.a, prompts, config), answers_of(config.b, prompts, config), strict=True)
    return [{"prompt": prompt, "answer_a": a, "answer_b": b} for prompt, a, b in sides]


def main(config: Config) -> None:
    outcome = Outcome.begin("judge", config.tag, config)
    teacher = Teacher(config)
    judged = [result for _, result in teacher.map(partial(judge_twice, teacher), answered_rows(config))]
    path = stage_dir("judge", config.tag) / "judged.jsonl"
    write_jsonl(path, judged)
    outcome.add_artifact(path)
    outcome.metrics = judged_metrics(judged)
    print0(*(f"{name}: {format_value(value)}" for name, value in outcome.metrics.items()), sep="\n")
    if config.pairs:
        pairs = []
        for row in judged:
            better, worse = ("answer_a", "answer_b") if row["score"] == 1 else ("answer_b", "answer_a")
            if row["score"] != 0.5:  # no tie
                pairs.append({"prompt": row["prompt"], "chosen": row[better], "rejected": row[worse]})
        write_jsonl(Path(config.pairs).expanduser(), pairs)
        print0(f"judge: {len(pairs):,} pairs: {config.pairs}")
    outcome.write()


if __name__ == "__main__":
    run(main, Config)
