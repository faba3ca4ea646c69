"""Conversations without a verdict: chats, instructions, and users' own files."""

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from nanochat.chat import (
    as_messages,
    check_conversation,
    messages,
    refuse_template_values,
    tools_of,
    without_null_arguments,
)
from nanochat.data.corpus import learned_text, parse_data, shard_files, source_name
from nanochat.data.documents import by_size, documents, text_files
from nanochat.errors import UserError
from nanochat.log import Record
from nanochat.paths import read_jsonl, tokenizer_file
from nanochat.protocols import Conversation, Message
from nanochat.tokenizer import Tokenizer
from tasks.common import TRAIN, DataSet, Task

# A piece of a text, with the blanks before it: to the end of a sentence; else to a blank; else any characters.
PIECE = re.compile(
    r"\s*\S.{20,120}?(?:[.!?…][\"'”’»)_]*(?=\s|$)|[。！？])|\s*\S.{0,120}(?=\s|$)|.{1,120}",
    re.DOTALL,
)
# Names of roles in ShareGPT's conversations; others are the same.
SPEAKERS = {"human": "user", "gpt": "assistant"}
PASSAGE_BYTES = 300  # a passage ends with the piece that reaches this
PASSAGES = 20_000  # at most, from each part of the text


class Chat(Task):
    """Conversations as the data set has them."""

    kind = "chat"

    def conversation(self, messages: list[Message]) -> Conversation:
        return _checked({"messages": messages})


class JsonLines(Chat):
    """Files with one conversation per line, {"messages": […]} and perhaps "tools", or in a form of `as_row`."""

    def conversation(self, messages: list[Message], tools: list[Record] | None = None) -> Conversation:
        conversation: Conversation = {"messages": messages}  # it was checked when it was read
        return {**conversation, "tools": tools} if tools else conversation

    def open_rows(self) -> list[list[Any]]:
        path = Path(self.data.path)
        if path.is_absolute():
            self.files = {str(file.relative_to(path.parent)): file for file in chat_files(path)}
        else:
            self.fetch_files()
        rows = []
        any_order = self._any_order()
        for file in self.files.values():
            rows += read_jsonl(file, lambda value: _cells(as_row(value), any_order))
        return rows

    def _any_order(self) -> bool:
        """Return True if a chat template of a public model decides which message may follow which."""
        file = tokenizer_file(self.tokenizer)
        return file.is_file() and Tokenizer.load(file).template is not None


class Passages(Chat):
    """The text that the tokenizer learned from, as conversations: a sentence, answered with the text after it."""

    def open_rows(self) -> list[list[Any]]:
        rows = []
        for source, _ in parse_data(learned_text(self.tokenizer)):
            # The first shard is for training, the last for validation.
            shard = shard_files(source, 1)[0 if self.split == "train" else -1]
            self.files[f"{source_name(source)}/{shard.name}"] = shard
            rows += islice(_passages(shard), PASSAGES)
        if not rows:
            raise UserError(f"the text of the tokenizer {self.tokenizer} is too short for passages, split {self.split}")
        return rows


def _passages(shard: Path) -> Iterator[list[Any]]:
    for text in documents(shard):
        for first, *rest in by_size((piece.encode() for piece in PIECE.findall(text)), PASSAGE_BYTES):
            question = first.decode().strip()
            answer = b"".join(rest).decode().strip()
            if question and answer:
                yield [messages([question, answer])]


def chat_files(place: Path, kinds: Sequence[str] = (".jsonl",)) -> list[Path]:
    """Return a file, the files of a pattern like web-*.jsonl, or those of some kinds below a folder, in order."""
    if place.is_dir():
        files = text_files(place, kinds)
    else:
        files = [place] if place.is_file() else sorted(place.parent.glob(place.name))
    if not files:
        raise UserError(f"there is no file {place}")
    return files


def json_lines(path: str) -> DataSet:
    """Return files on this machine, named as for `chat_files`, as a data set."""
    return DataSet(task=JsonLines, path=str(Path(path).expanduser().resolve()), splits=(TRAIN,))


def as_row(value: Record | list[Any]) -> Record:
    """Return the row in a line of JSON: an object with `messages`, or in a form of another program.

    That is the list of messages alone; `prompt` and `completion`, each a text or messages, of which the completion is
    learned; ShareGPT's `conversations`, whose messages have `from` and `value`; or Alpaca's `instruction`, `input`,
    perhaps empty, and `output`. A text in a column `system` beside them is the system message.
    """
    row = {"messages": value} if isinstance(value, list) else value
    if not isinstance(row, dict):
        raise UserError("no JSON object with `messages`")
    if "messages" in row:
        return _with_system(row)
    if "prompt" in row and "completion" in row:
        others = {name: cell for name, cell in row.items() if name not in ("prompt", "completion")}
        before = [_unlearned(message) for message in as_messages(row["prompt"], "user")]
        return {**others, "messages": [*before, *as_messages(row["completion"], "assistant")]}
    if isinstance(row.get("conversations"), list):
        others = {name: cell for name, cell in row.items() if name != "conversations"}
        return _with_system({**others, "messages": [_from_sharegpt(message) for message in row["conversations"]]})
    if isinstance(row.get("instruction"), str) and isinstance(row.get("output"), str):
        columns = ("instruction", "input", "output")
        others = {name: cell for name, cell in row.items() if name not in columns}
        if not isinstance(row.get("input", ""), str | None):
            raise UserError("the `input` of its instruction is no text")
        [said] = instruction(row["instruction"], row.get("input") or "", row["output"])
        return _with_system({**others, "messages": said})
    raise UserError(
        "no JSON object with `messages`, with `prompt` and `completion`, with `conversations`, or with `instruction`"
        " and `output`"
    )


def _with_system(row: Record) -> Record:
    """Return a row with the text of its column `system`, if it has one, as the first message."""
    text, said = row.get("system"), row["messages"]
    if not isinstance(text, str) or not text.strip() or not isinstance(said, list):
        return row
    if any(isinstance(message, dict) and message.get("role") == "system" for message in said):
        raise UserError("it has a system message, and another in its column system: keep one")
    return {**row, "messages": [{"role": "system", "content": text}, *said]}


def _unlearned(message: Any) -> Any:
    """Return a message of a prompt: what the assistant says in it is not learned."""
    is_answer = isinstance(message, dict) and message.get("role") == "assistant"
    return {**message, "train": False} if is_answer else message


def _from_sharegpt(message: Any) -> Any:
    """Return a message with `role` and `content`; one that has them already as it is."""
    if not isinstance(message, dict) or "from" not in message:
        return message
    others = {name: cell for name, cell in message.items() if name not in ("from", "value")}
    speaker = message["from"]
    return {**others, "role": SPEAKERS.get(str(speaker), speaker), "content": message.get("value")}


def _cells(row: Record, any_order: bool) -> list[Any]:
    """Return the arguments of `JsonLines.conversation` in a row of a file."""
    conversation = _checked(row, any_order)
    refuse_template_values(row)
    return [without_null_arguments(conversation["messages"]), tools_of(row)]


def _checked(row: Record | Conversation, any_order: bool = False) -> Conversation:
    """Return a row as a conversation that is well formed and has text to learn; UserError names the fault."""
    conversation = check_conversation(row, any_order)
    # Training needs at least one answer.
    if all(message["role"] != "assistant" for message in conversation["messages"]):
        raise UserError("the assistant says nothing in it that could be learned")
    return conversation


def instruction(*cells: str) -> tuple[list[Message]]:
    """Convert instructions in columns: the last is the answer; the others, perhaps empty, make up the question."""
    *parts, answer = cells
    return (messages(["\n\n".join(part for part in parts if part), answer]),)
