"""HumanEval: programs to be written from a signature and a description, and judged by tests that run them."""

import re
import textwrap
from typing import Any

from nanochat.evals import sandbox
from tasks.common import FILE, DataSet, Task

FENCED = re.compile(r"```[^\n`]*\n(.*?)(?:```|\Z)", re.DOTALL)
CODE = re.compile(r"^(?:import \w|from [\w.]+ import|def |class |@)", re.MULTILINE)


def complete_program(prompt: str, entry_point: str, completion: str) -> str:
    """The program that an answer means: between fences or not, the whole function or what goes on after the prompt."""
    start = f"def {entry_point}("
    blocks = FENCED.findall(completion) or [completion]
    code = next((block for block in blocks if start in block), blocks[0])
    if start in code:
        begin = CODE.search(code) or re.search(rf"[ \t]*{re.escape(start)}", code)  # or behind prose, or indented
        # What stands before the function in the prompt, imports and helpers, is seldom repeated.
        return f"{prompt[: prompt.index(start)]}\n{textwrap.dedent(code[begin.start() :])}"
    lines = code.strip("\n").splitlines()
    if lines and lines[0].strip() and lines[0][0] not in " \t":
        lines = textwrap.indent("\n".join(lines), "    ").splitlines()
    outside = (number for number, line in enumerate(lines) if line.strip() and line[0] not in " \t")
    return prompt + "\n".join(lines[: next(outside, None)])


class HumanEval(Task):
    """unsafe: run programs also where the sandbox cannot contain them."""

    kind = "program"

    def __init__(self, data: DataSet, split: str = "test", unsafe: bool = False, **part: Any):
        if not unsafe and (lacking := sandbox.missing()):
            raise ValueError(f"programs cannot be contained here: {lacking}; {sandbox.REFUSED}")
        super().__init__(data, split, **part)
        self._unsafe = unsafe

    def conversation(self, prompt: str, solution: str, test: str, entry_point: str) -> dict:
        said = [{"role": "user", "content": prompt}, {"role": "assistant", "content": prompt + solution}]
        return {"messages": said, "test": test, "entry_point": entry_point}

    def evaluate(self, conversation: dict, completion: str) -> bool:
        return self.evaluate_all([(conversation, completion)])[0]

    def evaluate_all(self, answers: list[tuple[dict, str]]) -> list[bool]:
        """Side by side."""
        programs = []
        for asked, completion in answers:
            code = complete_program(asked["messages"][0]["content"], asked["entry_point"], completion)
            programs.append(f"{code}\n\n{asked['test']}\n\ncheck({asked['entry_point']})\n")
        return [verdict.passed for verdict in sandbox.run_all(programs, unsafe=self._unsafe)]


SETS = {
    "HumanEval": DataSet(
        *(HumanEval, "openai/openai_humaneval", "openai_humaneval/" + FILE, "test"),
        "prompt canonical_solution test entry_point",
    )
}
