"""Conversations to learn from, without a verdict: data sets of chats and of instructions, and files of your own."""

import json
from pathlib import Path

from nanochat.chat import check_conversation
from nanochat.data.hub import fetch, sha256
from tasks.common import CONVERTED, FILE, REVISION, DataSet, Task, TaskError

SHOWN = 5  # faults of a file


class Chat(Task):
    kind = "chat"

    def conversation(self, messages: list[dict]) -> dict:
        return _learnable({"messages": messages})


class JsonLines(Chat):
    """A file with a conversation on each line: {"messages": […]}, or the list of messages alone."""

    def open(self) -> int:
        self._path = Path(self.data.path)
        if not self._path.is_absolute():
            self._path = fetch(self.data.files(self.split))[0].path
        elif not self._path.is_file():
            raise TaskError(f"there is no file {self._path}: name one with a conversation on each line")
        self._rows, faults = [], []
        for number, line in enumerate(self._path.read_bytes().split(b"\n"), 1):
            try:
                if line.strip():
                    said = json.loads(line)
                    json.dumps(said, ensure_ascii=False).encode()  # half of a surrogate pair is no character
                    self._rows.append(_learnable({"messages": said} if isinstance(said, list) else said)["messages"])
            except (ValueError, RecursionError) as error:
                faults.append(f"{self._path}:{number}: {error}")
        if faults:
            rest = [f"and {len(faults) - SHOWN:,} more"] if len(faults) > SHOWN else []
            raise TaskError("\n  ".join(["not every line is a conversation:", *faults[:SHOWN], *rest]))
        return len(self._rows)

    def hashes(self) -> dict[str, str]:
        return {self._path.name: sha256(self._path)}

    def place(self, number: int) -> str:
        return str(self._path)

    def cells(self, number: int) -> list:
        return [self._rows[number]]


def json_lines(path: str) -> DataSet:
    """A file of this machine."""
    return DataSet(JsonLines, "", str(Path(path).expanduser().resolve()), "train")


def _learnable(conversation: dict) -> dict:
    check_conversation(conversation)
    if all(message["role"] != "assistant" for message in conversation["messages"]):
        raise TaskError("the assistant says nothing in it that could be learned")
    return conversation


def _instruction(*cells: str) -> tuple:
    """What is asked, in one column or in several of which some may be empty, and last the answer."""
    asked = "\n\n".join(cell for cell in cells[:-1] if cell)
    return ([{"role": "user", "content": asked}, {"role": "assistant", "content": cells[-1]}],)


_INPUT = "instruction input output"
SETS = {  # name: repository, files, splits, columns, their form
    "SmolTalk": DataSet(Chat, "HuggingFaceTB/smol-smoltalk", "data/" + FILE, "train*4 test", "messages"),
    "SmolTalk-Large": DataSet(Chat, "HuggingFaceTB/smoltalk", "data/all/" + FILE, "train*9 test", "messages"),
    "Identity": DataSet(JsonLines, "", "identity_conversations.jsonl", "train"),  # of a mirror only, as what is local
    "Multi-Turn": DataSet(Chat, "local/multiturn-chat", "data/" + FILE, "train test", "messages"),
    "KoAlpaca": DataSet(
        *(Chat, "beomi/KoAlpaca-v1.1a", CONVERTED, "train", "instruction output", _instruction), revision=REVISION
    ),
    "KoAlpaca-v1": DataSet(Chat, "local/ko-alpaca-v1", "data/" + FILE, "train", _INPUT, _instruction),
}
