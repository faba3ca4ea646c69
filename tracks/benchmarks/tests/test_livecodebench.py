"""Programs of contests: they run on input and calls, and the sandbox judges them."""

import base64
import json
import zlib
from collections.abc import Callable
from dataclasses import replace

import pytest
from chat_files import write_lines
from contain import NEEDS_SANDBOX

from nanochat.evals import sandbox
from tasks import TASKS
from tracks.benchmarks import livecodebench
from tracks.benchmarks.livecodebench import comparable, decimals, read_tests

ADD = "a, b = map(int, input().split())\nprint(a + b)"


def pickled(tests: list[dict], protocol: int = 4) -> bytes:
    """The bytes of pickle.dumps(json.dumps(tests)), which this project does not import."""
    text = json.dumps(tests).encode()
    data = b"X" + len(text).to_bytes(4, "little") + text
    if protocol == 3:
        return b"\x80\x03" + data + b"q\x00."
    return b"\x80\x04\x95" + (len(data) + 2).to_bytes(8, "little") + data + b"\x94."


def packed(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data)).decode()


def problem(number: int, function: str = "") -> dict[str, str]:
    """A row in the layout of the hub: sums of two numbers, read from a line or given to a function."""
    kind, blank = ("functional", "\n") if function else ("stdin", " ")
    tests = [{"input": f"{number}{blank}{b}", "output": str(number + b), "testtype": kind} for b in (1, -5)]
    return {
        "question_title": "Sum",
        "question_content": f"Add to {number}.",
        "platform": "leetcode" if function else "atcoder",
        "question_id": f"abc{number}",
        "starter_code": f"class Solution:\n    def {function}(self, a: int, b: int) -> List[int]:" if function else "",
        "public_test_cases": json.dumps(tests[:1]),
        "private_test_cases": packed(pickled(tests[1:], protocol=3 + number % 2)),
        "metadata": json.dumps({"func_name": function} if function else {}),
    }


@pytest.fixture
def write_problems(tmp_path, monkeypatch) -> Callable[..., None]:
    def write(*files: list[dict]) -> None:
        for path, rows in zip(TASKS[f"LiveCodeBench-v{len(files)}"].files(), files, strict=True):
            write_lines(tmp_path / "hub" / str(path), *rows)

    monkeypatch.setenv("NANOCHAT_HUB", str(tmp_path / "hub"))
    monkeypatch.setattr(livecodebench, "LIMITS", replace(livecodebench.LIMITS, cpu_seconds=1))
    return write


def test_packed_tests_are_read_and_other_pickles_are_not(tmp_path) -> None:
    tests = [{"input": "1 2\n", "output": "값"}] * 300
    for cell in (json.dumps(tests), packed(pickled(tests)), packed(pickled(tests, protocol=3))):
        assert read_tests(cell) == tests
    hostile = f"cbuiltins\nopen\n(V{tmp_path / 'mark'}\nVw\ntR.".encode()
    for data, reason in ((hostile, "a pickle with GLOBAL"), (pickled(tests)[:-1] + b"\x85.", "a pickle with TUPLE1")):
        with pytest.raises(ValueError, match=f"{reason}, but only a pickle of one text is read"):
            read_tests(packed(data))
    assert not (tmp_path / "mark").exists()


def test_outputs_are_compared_by_lines() -> None:
    equal = [("sNaN", "sNaN"), ("3", "3\n"), (" 1 2 \r\n3\n\n", "1 2\n3"), ("1.0 2", "1 2.00"), ("1  2", "1 2")]
    other = [
        ("yes  no", "yes no"),
        ("1\n\n2", "1\n2"),
        ("5" + "0" * 16 + "1", "5" + "0" * 17),
        ("", "0"),
        ("a", "A"),
        ("sNaN", "4"),
        ("-sNaN1", "4"),
        ("inf", "4"),
    ]
    for own, right in equal + other:
        assert (comparable(own, decimals) == comparable(right, decimals)) is ((own, right) in equal), own


def test_a_release_has_the_files_before_it(write_problems, monkeypatch) -> None:
    assert [file.path for file in TASKS["LiveCodeBench-v3"].files()] == ["test.jsonl", "test2.jsonl", "test3.jsonl"]
    monkeypatch.setattr(sandbox, "missing", lambda: "")
    write_problems([problem(n) for n in range(20)], [problem(n, "add") for n in range(20, 25)])
    assert len(TASKS["LiveCodeBench-v1"]()) == 20
    prompts = {conversation["messages"][0]["content"] for conversation in TASKS["LiveCodeBench-v2"]()}
    assert len(prompts) == 25
    assert sum("def add(self, a: int" in prompt for prompt in prompts) == 5
    write_problems([{name: cell for name, cell in problem(1).items() if name != "starter_code"}])
    with pytest.raises(ValueError, match=r"livecodebench/.*, split test, row 0: the column starter_code is missing"):
        TASKS["LiveCodeBench-v1"]()[0]


@NEEDS_SANDBOX
def test_programs_and_functions_are_judged_by_their_output(write_problems) -> None:
    write_problems([problem(7)])
    task = TASKS["LiveCodeBench-v1"]()
    [secret] = task.files.values()
    answers = {
        ADD: True,
        f"First:\n```python\nprint('an idea')\n```\nBetter:\n```python\n{ADD}\n```\nDone.": True,
        "print(sum(map(int, sys.stdin.buffer.read().split())))\nprint('note', file=sys.stderr)\nexit(0)": True,
        "print(sum(map(int, open(0).read().split())), flush=True)\nraise SystemExit": True,
        "import threading, time\ndef f():\n    time.sleep(0.05)\n    print(sum(map(int, input().split())))\n"
        "threading.Thread(target=f).start()": True,
        "import atexit\nx = sum(map(int, input().split()))\natexit.register(lambda: print(x))": True,
        "q = deque(map(int, input().split()))\nprint(heappop([sum(q)]))": True,  # imports of the contests' sites
        "print(8)": False,  # right for the public test alone
        f"{ADD}\nraise ValueError": False,
        f"{ADD}\nprint()\nprint(1)": False,
        f"print(open({str(secret)!r}).read())": False,
        "print('1 ' * 2**24)": False,  # too long to be compared
        "while True: pass": False,
        "I cannot.": False,
    }
    assert task.evaluate_all([(task[0], answer) for answer in answers]) == list(answers.values())
    # Functions are called, and only plain results count.
    write_problems([problem(7, "add")])
    task = TASKS["LiveCodeBench-v1"]()
    method = task[0]["messages"][0]["content"].split("\n\n")[1]
    answers = {
        f"```python\n{method}\n        return a + b\n```": True,
        "print(5)\ndef add(a, b):\n    print(a)\n    return float(a + b)": True,
        f"{method}\n        return a - b": False,
        "class Equal(int):\n    def __eq__(self, other): return True\ndef add(a, b): return Equal(1)": False,
        "def add(a, b):\n    import os\n    os.write(1, b'[' * 9**6)": False,
        "class Solution:\n    pass": False,
        "import os\nos._exit(0)": False,
    }
    assert task.evaluate_all([(task[0], answer) for answer in answers]) == list(answers.values())
