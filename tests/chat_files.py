"""Small conversations, and files of them."""

import json
from pathlib import Path

import made_chats

from nanochat.paths import write_text


def chat(number: int):
    return made_chats.chat(f"{number}?", f"{number}!")


def contents(conversation: dict):
    """Return what the messages say: question and answer, if there are two."""
    return [message["content"] for message in conversation["messages"]]


def key(conversation: dict):
    """Return a text by which equal conversations are equal."""
    return json.dumps(conversation, sort_keys=True)


def write_lines(path: Path, *rows: dict | list | str):
    """Write rows as lines of JSON, texts as they are; return the file's name in a mixture."""
    lines = [row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows]
    write_text(path, "".join(line + "\n" for line in lines))
    return f"json:{path}"
