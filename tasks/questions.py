"""Free questions with a word that a right answer contains: ten questions about an embedded world."""

import json
import re

from tasks.common import DataSet, Task


class Questions(Task):
    """A file with lines {"question": …, "answer": …}."""

    def open_rows(self) -> list[list]:
        [path] = self.fetch_files()
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        return [[row["question"], row["answer"]] for row in rows]

    def evaluate(self, conversation: dict, completion: str) -> bool:
        """Return True if the completion contains the answer as a whole word."""
        # "Kim" is not in "Kimchi".
        word = re.escape(conversation["messages"][-1]["content"])
        return re.search(rf"(?<!\w){word}(?!\w)", completion) is not None


# Only a mirror has this file: an embedded world writes it.
SETS = {"Questions": DataSet(task=Questions, path="questions.jsonl", splits="test")}
