"""LiveCodeBench: contest problems, solved by programs with input and output or by a function; judged in the sandbox.

The tests of all problems are larger than most memories, so a problem's row is read again when its programs are judged.
"""

import base64
import json
import pickletools
import zlib
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

from nanochat.errors import UserError
from nanochat.evals import sandbox
from nanochat.protocols import Conversation
from tasks.common import Answered, exchange
from tasks.humaneval import FENCED, HumanEval

# The authors' limit on time, and memory for deep recursion in a thread: processes × memory is as for HumanEval.
LIMITS = sandbox.Limits(cpu_seconds=6, memory=2**29, processes=2, file_bytes=2**26)
CLOSING = "Put the whole program between ```python and ```."
# Runs an answer with an input; only its stdout shows. It may end by sys.exit too, and what threads and
# exit handlers print counts. The contests' sites make these imports, and programs rely on them.
RUN = """
def run(source: str, given: str) -> None:
    import atexit, os, runpy, sys, threading

    for name, text in (("input.txt", given), ("answer.py", IMPORTS + source)):
        with open(name, "w", encoding="utf-8") as file:
            file.write(text)
    os.dup2(os.open("input.txt", os.O_RDONLY), 0)
    os.dup2(os.open("/dev/null", os.O_WRONLY), 2)
    sys.stdin = open(0, encoding="utf-8")
    try:
        runpy.run_path("answer.py", run_name="__main__")
    except SystemExit:
        pass
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stdout = sys.__stdout__
    sys.stdout.flush()

IMPORTS = '''
import sys
sys.setrecursionlimit(50_000)
for _module in (
    "string re datetime collections heapq bisect copy math random statistics itertools functools operator io sys json"
    " builtins typing"
).split():
    exec(f"from {_module} import *; import {_module}")
'''
"""
# Around a function: each line of the input is an argument in JSON. The function's own output does not count.
BEFORE = "sys.stdout = sys.stderr\n"
AFTER = """
import json, sys
_function = Solution().{name} if "Solution" in globals() else {name}
print(json.dumps(_function(*map(json.loads, sys.stdin.read().split("\\n")))), file=sys.__stdout__)
"""
# The opcodes of a pickle that holds one text.
PICKLED_TEXT = "PROTO FRAME SHORT_BINUNICODE BINUNICODE BINUNICODE8 BINPUT MEMOIZE STOP".split()


def read_tests(cell: str) -> list[dict[str, Any]]:
    """Return tests, each with `input` and `output`: JSON, or JSON as a pickled text, compressed, in base64.

    The pickle is searched for its text and never loaded, because loading one can run code.
    """
    if cell.startswith("["):
        return json.loads(cell)
    text = ""
    for opcode, value, _ in pickletools.genops(zlib.decompress(base64.b64decode(cell))):
        if opcode.name not in PICKLED_TEXT:
            raise UserError(f"its tests are a pickle with {opcode.name}, but only a pickle of one text is read")
        if isinstance(value, str):
            text += value
    return json.loads(text)


def decimals(line: str) -> list[Decimal]:
    numbers = [Decimal(word) for word in line.split()]
    if not all(number.is_finite() for number in numbers):
        raise ValueError("no numbers")  # compared as text: NaN equals nothing, and sNaN cannot be compared
    return numbers


def comparable(output: str, read: Callable[[str], Any]) -> list[Any]:
    """Return the lines of an output as `read` reads them, or as text without blanks at the ends."""
    lines = []
    for line in output.strip().split("\n"):
        try:
            lines.append(read(line))
        except (ArithmeticError, ValueError, RecursionError):
            lines.append(line.strip())
    return lines


class PlacedConversation(Conversation):
    """A problem with the place of its row, whose tests are too large to keep."""

    place: tuple[Path, int]  # file, first byte


class LiveCodeBench(HumanEval):
    """A row is the place of a JSON object: its file and its first byte."""

    def open_rows(self) -> list[tuple[Path, int]]:
        rows = []
        for path in self.fetch_files():
            start = 0
            with path.open("rb") as file:
                for line in file:
                    rows.append((path, start))
                    start += len(line)
        return rows

    def conversation(  # ty: ignore[incompatible-method-override]  # rows differ by task
        self, path: Path, start: int
    ) -> PlacedConversation:
        question, starter_code, *_ = self._cells(path, start)
        return {**exchange(f"{question}\n\n{starter_code}\n\n{CLOSING}", ""), "place": (path, start)}

    def evaluate_all(self, answers: Answered) -> list[bool]:
        return sandbox.side_by_side(self._passes, answers)

    def _cells(self, path: Path, start: int) -> list[str]:
        """Return a row in the order of the data set's columns."""
        with path.open("rb") as file:
            file.seek(start)
            row = json.loads(file.readline())
        try:
            return [row[column] for column in self.data.columns]
        except KeyError as error:
            raise UserError(f"the column {error.args[0]} is missing") from None

    def _passes(self, answer: tuple[Conversation, str]) -> bool:
        conversation, completion = answer
        placed = cast("PlacedConversation", conversation)  # `conversation` made it
        _, _, metadata, public, private = self._cells(*placed["place"])
        program = (FENCED.findall(completion) or [completion])[-1]
        name = json.loads(metadata).get("func_name")
        if name:
            program = BEFORE + program + AFTER.format(name=name)
        read = json.loads if name else decimals
        for test in read_tests(public) + read_tests(private):
            # The program never sees the output that is expected.
            verdict = sandbox.run_program(f"{RUN}run({program!r}, {test['input']!r})", LIMITS, self.unsafe_exec)
            own = verdict.output
            right = test["output"]
            is_plausible = verdict.passed and len(own) < 20 * len(right) + 1000  # before all of it is read
            if not is_plausible or comparable(own, read) != comparable(right, read):
                return False
        return True
