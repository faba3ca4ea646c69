"""HumanEval: programs written from a signature and a description, judged by running their tests in the sandbox."""

import ast
import re
import textwrap
from functools import partial
from pathlib import Path

from nanochat.chat import text_of
from nanochat.evals import sandbox
from nanochat.log import print_line
from nanochat.protocols import Conversation
from tasks.common import Answered, Task, exchange

FENCED = re.compile(r"```[^\n`]*\n(.*?)(?:```|\Z)", re.DOTALL)  # a code block; the last fence may be missing
CODE = re.compile(r"^(?:import \w|from [\w.]+ import|def |class |@)", re.MULTILINE)  # a line that starts code
ASSIGNED = re.compile(r"^[A-Za-z_]\w*(?:[ \t]*:[^=\n]+)?[ \t]*=(?!=)", re.MULTILINE)  # a line that names a value
UNINDENTED = re.compile(r"^[^ \t\n]", re.MULTILINE)


def complete_program(prompt: str, entry_point: str, completion: str) -> str:
    """Return the program that an answer means.

    The answer may stand between fences or not, and be the whole function or only the code after the prompt.
    """
    signature = f"def {entry_point}("
    # The block with the function counts, not one with usage or installation.
    blocks = FENCED.findall(completion) or [completion]
    code = next((block for block in blocks if signature in block), blocks[0])
    if signature in code:
        # Skip prose before the code; else the function is inside a line of prose, or indented.
        start = CODE.search(code) or re.search(rf"[ \t]*{re.escape(signature)}", code)
        assert start is not None  # the code has the signature
        # A table or a number that the function reads may stand before it; a word of prose is no program.
        earlier = (found.start() for found in ASSIGNED.finditer(code, 0, start.start()))
        places = [place for place in earlier if _is_program(code[place:])]
        # Answers seldom repeat the imports and helpers that the prompt has before the function.
        helpers = prompt[: prompt.index(signature)]
        return f"{helpers}\n{textwrap.dedent(code[min([*places, start.start()]) :])}"
    body = "\n".join(code.strip("\n").splitlines())
    if UNINDENTED.match(body):
        return prompt + textwrap.indent(body, "    ")
    # Everything from the first unindented line on is outside the function.
    return prompt + UNINDENTED.split(body, maxsplit=1)[0]


def _is_program(code: str) -> bool:
    try:
        ast.parse(textwrap.dedent(code))
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # also of a zero byte, or nested too deep
        return False
    return True


class HumanEval(Task):
    kind = "program"

    def fetch_files(self) -> list[Path]:
        sandbox.require(self.unsafe_exec)
        return super().fetch_files()

    def conversation(self, prompt: str, solution: str, test: str, entry_point: str) -> Conversation:
        return exchange(prompt, prompt + solution) | {"test": test, "entry_point": entry_point}

    def evaluate(self, conversation: Conversation, completion: str) -> bool:
        return self.evaluate_all([(conversation, completion)])[0]

    def evaluate_all(self, answers: Answered) -> list[bool]:
        cases = []
        for conversation, completion in answers:
            prompt = text_of(conversation["messages"][0])
            name = conversation["entry_point"]
            code = complete_program(prompt, name, completion)
            tests = f"{conversation['test']}\n\ncheck({name})"
            # Some tests use what the prompt has before the function.
            cases.append(sandbox.Case(code, name, tests, prompt.partition(f"def {name}(")[0]))
        verdicts = sandbox.side_by_side(partial(sandbox.judge, unsafe=self.unsafe_exec), cases)
        forgeable = sum(verdict.forgeable for verdict in verdicts)
        if forgeable:
            print_line(
                f"HumanEval: {forgeable} answers were tested in their own process, where they can forge verdicts"
            )
        return [verdict.passed for verdict in verdicts]
