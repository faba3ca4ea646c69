"""Free questions with a word that a right answer contains: ten questions about an embedded world."""

import json
import re

from nanochat.data.hub import fetch, sha256
from tasks.common import DataSet, ListRows, Task, TaskError, exchange


class Questions(Task):
    """A file with lines {"question": …, "answer": …}."""

    def open_rows(self) -> ListRows:
        [file] = self.data.files(self.split)
        path = fetch([file])[0].path
        lines = path.read_text(encoding="utf-8").splitlines()
        # The file is written by hand or by an embedded world.
        try:
            rows = [json.loads(line) for line in lines if line]
            cells = [[row["question"], row["answer"]] for row in rows]
        except (ValueError, KeyError, TypeError) as error:
            raise TaskError(f'{file} is not made of lines {{"question": …, "answer": …}} ({error})') from None
        return ListRows(str(file), cells, {str(file): sha256(path)})

    def conversation(self, question: str, answer: str) -> dict:
        return exchange(question, answer)

    def evaluate(self, conversation: dict, completion: str) -> bool:
        """Return True if the completion contains the answer as a whole word."""
        # "Kim" is not in "Kimchi".
        word = re.escape(conversation["messages"][-1]["content"])
        return re.search(rf"(?<!\w){word}(?!\w)", completion) is not None


# Only a mirror has this file: an embedded world writes it.
SETS = {"Questions": DataSet(task=Questions, path="questions.jsonl", splits="test")}
