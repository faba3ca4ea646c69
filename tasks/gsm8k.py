"""GSM8K: problems of grade school arithmetic, solved in words with calls of the calculator."""

import re

from tasks.common import FILE, DataSet, Task, TaskError

CALL = re.compile(r"<<([^<>=]*)=([^<>]*)>>")  # <<16-3-4=9>>
ANSWER = re.compile(r"#### (-?[0-9.,]+)")  # as the data set's authors read it


def extract_answer(text: str) -> str | None:
    """The number behind the first ####, without its commas, or None."""
    found = ANSWER.search(text)
    return found[1].replace(",", "") if found else None


class GSM8K(Task):
    """The solution is parts: text, a call of the calculator, its answer, text …"""

    def conversation(self, question: str, answer: str) -> dict:
        if extract_answer(answer) is None:
            raise TaskError("its answer has no number behind ####")
        texts = iter(CALL.split(answer))  # text, expression, result, text, …
        parts = [{"type": "text", "text": next(texts)}]
        for expression, result, text in zip(texts, texts, texts, strict=True):
            parts += [{"type": "python", "text": expression}, {"type": "python_output", "text": result}]
            parts.append({"type": "text", "text": text})
        asked = {"role": "user", "content": question}
        return {"messages": [asked, {"role": "assistant", "content": [part for part in parts if part["text"]]}]}

    def evaluate(self, conversation: dict, completion: str) -> bool:
        """The last part of the right answer holds its number."""
        return extract_answer(completion) == extract_answer(conversation["messages"][-1]["content"][-1]["text"])


SETS = {"GSM8K": DataSet(GSM8K, "openai/gsm8k", "main/" + FILE, "train test", "question answer")}
