"""Conversations without a verdict: chats, instructions, and users' own files."""

import json
from pathlib import Path

from nanochat.chat import check_conversation
from nanochat.data.hub import fetch, sha256
from tasks.common import CONVERTED, FILE, DataSet, ListRows, Task, TaskError, exchange

MAX_FAULTS = 5  # listed in an error message


class Chat(Task):
    """Conversations as the data set has them."""

    kind = "chat"

    def conversation(self, messages: list[dict]) -> dict:
        return _checked({"messages": messages})


class JsonLines(Chat):
    """A file with one conversation per line: {"messages": […]}, or only the message list."""

    def open_rows(self) -> ListRows:
        path = Path(self.data.path)
        if not path.is_absolute():
            path = fetch(self.data.files(self.split))[0].path
        elif not path.is_file():
            raise TaskError(f"there is no file {path}: name one with a conversation on each line")
        # All faults are collected, so that a user can repair the file in one go.
        rows, faults = [], []
        for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
            try:
                if line.strip():
                    rows.append([_parse_line(line)])
            except (ValueError, RecursionError) as error:
                faults.append(f"{path}:{number}: {error}")
        if len(faults) > MAX_FAULTS:
            faults[MAX_FAULTS:] = [f"and {len(faults) - MAX_FAULTS:,} more"]
        if faults:
            raise TaskError("\n  ".join(["not every line is a conversation:", *faults]))
        return ListRows(str(path), rows, {path.name: sha256(path)})


def json_lines(path: str) -> DataSet:
    """Return a file on this machine as a data set."""
    return DataSet(task=JsonLines, path=str(Path(path).expanduser().resolve()), splits="train")


def _parse_line(line: bytes) -> list[dict]:
    """Return a line's messages; ValueError names the fault."""
    value = json.loads(line)
    json.dumps(value, ensure_ascii=False).encode()  # fails for half a surrogate pair, which is no character
    conversation = {"messages": value} if isinstance(value, list) else value
    return _checked(conversation)["messages"]


def _checked(conversation: dict) -> dict:
    """Return a conversation that is well formed and has text to learn; ValueError names the fault."""
    check_conversation(conversation)
    # Training needs at least one answer.
    if all(message["role"] != "assistant" for message in conversation["messages"]):
        raise TaskError("the assistant says nothing in it that could be learned")
    return conversation


def instruction(*cells: str) -> tuple[list[dict]]:
    """Convert instructions in columns: the last is the answer; the others, perhaps empty, make up the question."""
    *parts, answer = cells
    question = "\n\n".join(part for part in parts if part)
    return (exchange(question, answer)["messages"],)


# Data sets without a repository, or from `local`, exist only in a mirror.
SETS = {
    # Chats written by a larger model, selected for small models: 460,000 conversations.
    "SmolTalk": DataSet(
        task=Chat,
        repo="HuggingFaceTB/smol-smoltalk",
        path="data/" + FILE,
        splits="train*4 test",
        columns="messages",
    ),
    # The whole collection: about a million conversations, many too long for a small context.
    "SmolTalk-Large": DataSet(
        task=Chat,
        repo="HuggingFaceTB/smoltalk",
        path="data/all/" + FILE,
        splits="train*9 test",
        columns="messages",
    ),
    # The model's own name, maker and purpose.
    "Identity": DataSet(task=JsonLines, path="identity_conversations.jsonl", splits="train"),
    # Conversations with several turns.
    "Multi-Turn": DataSet(
        task=Chat,
        repo="local/multiturn-chat",
        path="data/" + FILE,
        splits="train test",
        columns="messages",
    ),
    # Korean questions from a forum, answered by a larger model.
    "KoAlpaca": DataSet(
        task=Chat,
        repo="beomi/KoAlpaca-v1.1a",
        path=CONVERTED,
        splits="train",
        columns="instruction output",
        convert=instruction,
    ),
    # Korean instructions, some with an input to work on.
    "KoAlpaca-v1": DataSet(
        task=Chat,
        repo="local/ko-alpaca-v1",
        path="data/" + FILE,
        splits="train",
        columns="instruction input output",
        convert=instruction,
    ),
}
