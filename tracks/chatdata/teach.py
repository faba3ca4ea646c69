"""Let a teacher translate the prompts of conversations, write answers, name topics, or check multiple-choice questions.

python -m tracks.chatdata.teach --language=Korean --sources=web=json:chats.jsonl --out=prompts.jsonl --teacher=...
python -m tracks.chatdata.teach --sources=web=json:prompts.jsonl --teacher=http://localhost:8000/v1 --teacher-model=...
python -m tracks.chatdata.teach --check-choices --sources=mcq=MMLU~options:8 --out=checked.jsonl --teacher=...
python -m tracks.chatdata.teach --topics --sources=web=json:chats.jsonl --out=tagged.jsonl --teacher=...
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from nanochat.chat import check_conversation, has_tool_turns
from nanochat.config import option, options, run_script
from nanochat.errors import UserError
from nanochat.log import Record, print0
from nanochat.paths import write_jsonl
from tracks.chatdata.teacher import Teacher, TeacherSettings, answer, check_choices, topic, translate


@options("data")
class Config(TeacherSettings):
    """Translate, answer, check or tag conversations. Run the same command again to resume: answers are kept."""

    sources: str = option("", "source of each bucket, like facts=World-Chat,web=json:my.jsonl")
    out: str = option("taught.jsonl", "file to write, JSONL")
    language: str = option("", "translate the prompts into it (default: write the answers)")
    check_choices: bool = option(False, "keep only multiple-choice questions with exactly one right choice")
    topics: bool = option(False, "add the topic of each conversation, for tracks.chatdata.chats --topics")
    tokenizer_tag: str = option("default", "run that trained the tokenizer, for tasks about its text")

    def __post_init__(self) -> None:
        uses = {"--language": self.language, "--check-choices": self.check_choices, "--topics": self.topics}
        chosen = [flag for flag, value in uses.items() if value]
        if len(chosen) > 1:
            raise UserError(f"{' and '.join(chosen)} cannot be combined: run the command once for each")


def name_topics(teacher: Teacher, rows: list[Record]) -> list[Record]:
    """Return all rows, each with the topic that the teacher names; one that it cannot name has none.

    The rules of tracks.chatdata.chats --topics tag such a row.
    """
    numbered = [{"number": number, "messages": row["messages"]} for number, row in enumerate(rows)]
    named = {one["number"]: one["topic"] for one in teacher.map(topic, numbered)}
    found = []
    for number, row in enumerate(rows):
        tagged = {key: value for key, value in row.items() if key != "topic"}
        if number in named:
            tagged["topic"] = named[number]
        found.append(tagged)
    lacking = len(rows) - len(named)
    if lacking:
        print0(f"rows without a topic, which tracks.chatdata.chats tags by rules: {lacking:,}")
    return found


def main(config: Config) -> None:
    from tasks import TASKS
    from tracks.chatdata.sources import open_sources

    rows = []
    for source in open_sources(config.sources, "", TASKS, config.tokenizer_tag):
        for number, row in enumerate(source.stream(), 1):
            try:
                conversation = check_conversation(row)
            except UserError as error:
                # A row that a task cannot convert has no messages, and the reason.
                raise UserError(f"row {number}, from {row['source']}: {row.get('fault', error)}") from None
            if has_tool_turns(conversation):
                raise UserError(f"row {number}, from {row['source']}: it has turns of tools, which no teacher writes")
            rows.append(row)
    teacher = Teacher(config)
    if config.topics:
        write_jsonl(Path(config.out), name_topics(teacher, rows))
        return
    work: Callable[[Teacher, Record], Record]
    if config.check_choices:
        work = check_choices
    elif config.language:
        work = partial(translate, language=config.language)
    else:
        work = answer
    write_jsonl(Path(config.out), teacher.map(work, rows))


if __name__ == "__main__":
    run_script(main)
