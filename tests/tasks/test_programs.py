"""Programs as answers: HumanEval's become whole, and the sandbox judges them."""

import subprocess
import sys
import textwrap

import pytest
from chat_files import contents
from contain import NEEDS_SANDBOX

from nanochat.evals import sandbox
from tasks import TASKS, open_tasks
from tasks.humaneval import complete_program

PROMPT = 'import math\n\ndef half(x):\n    return x / 2\n\ndef area(r: float) -> float:\n    """Of a half disc."""\n'
BODY = "    full = math.pi * r * r\n\n    return half(full)\n"
FUNCTION = f"def area(r):\n{BODY}"
USING = "return math.pi * r * r / HALF"
VALUED = f"def area(r):\n    {USING}\n"
RIGHT = {
    "the body": BODY,
    "the body, not indented": "return half(math.pi * r * r)",
    "the body and text after it": f"{BODY}\nprint(area(1))\nThat is it.",
    "the body between fences": f"So:\n```python\n{BODY}```\nDone.",
    "the function": FUNCTION,
    "the function after prose": f"Here it is, from me to you:\n\n{FUNCTION}",
    "the whole prompt again": PROMPT + BODY,
    "the whole prompt again between fences": f"Sure!\n```python\n{PROMPT}{BODY}\n```\nIt works, as\n```\narea(1)\n```",
    "the function in the second of two blocks": f"```\npip install math\n```\nthen\n```py\n{FUNCTION}```",
    "a function in a line of prose": "Sure: def area(r): return half(math.pi * r * r)",
    "an indented function": textwrap.indent(FUNCTION, "  "),
    "an indented function after prose": f"It is this:\n\n{textwrap.indent(FUNCTION, '    ')}",
    "a value before it between fences": f"So:\n```python\nHALF: float = 2\n\ndef area(r):\n    {USING}\n```\nDone.",
    "a value and words of code before it": f"```\nfrom math import pi\nHALF = 2\nif HALF:\n    HALF = 2\n{VALUED}```",
    "a value before it": f"HALF = 2\n\n{VALUED}",
    "a value before it after prose": f"I call it x = y, so:\n\nHALF = 2\n\n{VALUED}",
    "its language on a line of its own": f"```\npython\n{FUNCTION}```",
    "a call before it": f"```python\nprint(area(2))\n\n{FUNCTION}```",
    "prose between fences": f"```\nThis is it:\n\n{FUNCTION}```",
    "fences that are not closed": f"```python\n{FUNCTION}",
}
WRONG = ["", "I cannot.", "```\n```", "def other(r):\n    return 1"]
ROWS = [
    {
        "prompt": f'def {name}(a, b):\n    """Return a result."""\n',
        "canonical_solution": f"    return a {sign} b\n",
        "test": f"def check(candidate):\n    assert candidate(6, 3) == 6 {sign} 3\n",
        "entry_point": name,
    }
    for name, sign in {"add": "+", "subtract": "-", "times": "*"}.items()
]


def test_answers_become_programs() -> None:
    """One process runs all programs, each in a namespace of its own."""
    programs = [complete_program(PROMPT, "area", answer) for answer in [*RIGHT.values(), *WRONG]]
    code = (
        "import sys\n"
        f"for program in {programs!r}:\n"
        "    names = {}\n"
        "    try:\n"
        "        exec(program, names)\n"
        "        print(names['area'](2), file=sys.stderr)\n"
        "    except Exception:\n"
        "        print('failed', file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    results = done.stderr.splitlines()
    for name, result, program in zip(RIGHT, results, programs, strict=False):
        assert result == str(3.141592653589793 * 2), f"{name}\n{program}"
    for result in results[len(RIGHT) :]:
        assert result in ("failed", "None")
    assert len(results) == len(programs)


@NEEDS_SANDBOX
def test_right_programs_pass_and_others_do_not(write_rows) -> None:
    write_rows("HumanEval", ROWS)
    task = TASKS["HumanEval"]()
    answers = []
    for conversation in task:
        prompt, solution = contents(conversation)
        answers += [(conversation, solution), (conversation, f"```python\n{solution[len(prompt) :]}```")]
        answers += [(conversation, "    pass"), (conversation, "    import os\n    os._exit(0)")]
    assert task.evaluate_all(answers) == [True, True, False, False] * (len(answers) // 4)
    assert task.reward(*answers[0]) == 1.0
    assert not task.evaluate(*answers[2])


@NEEDS_SANDBOX
def test_all_164_official_solutions_pass(mirror) -> None:
    task = TASKS["HumanEval"]()
    answers = [(conversation, conversation["messages"][1]["content"]) for conversation in task]
    assert task.evaluate_all(answers) == [True] * 164


def test_programs_that_cannot_be_contained_are_not_run(write_rows, monkeypatch, capsys) -> None:
    write_rows("HumanEval", ROWS)
    monkeypatch.setattr(sandbox, "missing", lambda: "no namespaces")
    with pytest.raises(ValueError, match="programs cannot be contained here: no namespaces; --unsafe-exec runs"):
        open_tasks("HumanEval")
    assert "HumanEval" not in open_tasks("")
    assert "tasks: HumanEval is left out: programs cannot be contained" in capsys.readouterr().out
    task = open_tasks("HumanEval", unsafe_exec=True)["HumanEval"]
    assert task.evaluate_all([(one, one["messages"][1]["content"]) for one in task]) == [True, True, True]
