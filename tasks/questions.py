"""Questions in free form, each with a word that a right answer has: ten about the embedded world of a seed."""

import json
import re

from nanochat.data.hub import fetch
from tasks.common import DataSet, Task, TaskError


class Questions(Task):
    """A file of lines {"question": …, "answer": …}."""

    def open(self) -> int:
        self._files = self.data.files(self.split)
        self._paths = [found.path for found in fetch(self._files)]
        lines = self._paths[0].read_text(encoding="utf-8").splitlines()
        try:
            self._rows = [(row["question"], row["answer"]) for row in map(json.loads, filter(None, lines))]
        except (ValueError, KeyError, TypeError) as error:
            raise TaskError(f'{self._files[0]} is not made of lines {{"question": …, "answer": …}} ({error})') from None
        return len(self._rows)

    def place(self, number: int) -> str:
        return str(self._files[0])

    def cells(self, number: int) -> list:
        return list(self._rows[number])

    def _within(self, number: int) -> tuple[int, int]:
        return 0, number

    def conversation(self, question: str, answer: str) -> dict:
        return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}

    def evaluate(self, conversation: dict, completion: str) -> bool:
        """Whether the word stands in what was said, as a word."""
        word = re.escape(conversation["messages"][-1]["content"])
        return re.search(rf"(?<!\w){word}(?!\w)", completion) is not None


SETS = {"Questions": DataSet(Questions, "", "questions.jsonl", "test")}  # of a mirror only, as what is local
