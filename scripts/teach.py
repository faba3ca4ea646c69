"""Let a teacher translate the prompts of conversations, or write the answers.

python -m scripts.teach --task=translate --language=Korean --chats=chats.jsonl --out=prompts.jsonl --teacher=...
python -m scripts.teach --task=answer --chats=prompts.jsonl --out=answered.jsonl --teacher=http://localhost:8000/v1
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from nanochat.chat import check_conversation
from nanochat.config import option, run
from nanochat.curate.teacher import Teacher, TeacherSettings, answer, plain, read_rows, translate
from nanochat.log import Record
from nanochat.paths import write_jsonl


@dataclass(frozen=True)
class Config(TeacherSettings):
    """Translate or answer each conversation of a file. Run the same command again to resume: answers are kept."""

    task: Literal["translate", "answer"] = option("answer", "translate the prompts, or write the answers", group="rows")
    chats: str = option("", "file of conversations, JSONL", group="rows")
    out: str = option("", "file to write, JSONL", group="rows")
    language: str = option("Korean", "language to translate into", group="rows")


def translate_prompts(teacher: Teacher, config: Config, row: Record) -> Record:
    """Return the row with its prompts in another language, and the last one's text before as `original`."""
    messages = []
    for message in row["messages"]:
        if message["role"] != "assistant":
            original = plain(message)
            message = message | {"content": translate(teacher, original, config.language)}
        messages.append(message)
    return row | {"messages": messages, "original": original}


def answer_prompts(teacher: Teacher, config: Config, row: Record) -> Record:
    """Return the row with the teacher's answer after each prompt, in place of other answers."""
    messages = []
    for message in row["messages"]:
        if message["role"] != "assistant":
            messages.append(message)
        if message["role"] == "user":
            messages.append({"role": "assistant", "content": answer(teacher, messages)})
    return row | {"messages": messages, "teacher": config.teacher_model}


def main(config: Config) -> None:
    rows = read_rows(config.chats, "messages")
    for row in rows:
        check_conversation(row)
    work = {"translate": translate_prompts, "answer": answer_prompts}[config.task]
    teacher = Teacher(config)
    done = teacher.map(partial(work, teacher, config), rows)
    write_jsonl(Path(config.out).expanduser(), [result for _, result in done])


if __name__ == "__main__":
    run(main, Config)
