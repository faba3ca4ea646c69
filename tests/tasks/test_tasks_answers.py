"""How answers are read out of what a model writes: letters, numbers, programs. Real rows where the mirror is."""

import random
import subprocess
import sys
import textwrap
from fractions import Fraction
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from nanochat.evals import sandbox
from nanochat.world.writer import write_world
from tasks import TASKS, open_tasks
from tasks.gsm8k import extract_answer
from tasks.hrm8k import final_answer
from tasks.humaneval import complete_program
from tasks.multiple_choice import extract_letter

MIRROR = Path(__file__).resolve().parents[3] / "shared/hub"
NEEDS_MIRROR = pytest.mark.skipif(not MIRROR.is_dir(), reason="no mirror of real data on this machine")
NEEDS_SANDBOX = pytest.mark.skipif(sandbox.missing() != "", reason="programs cannot be contained here")


def dice() -> random.Random:
    seed = random.randrange(10**6)
    print("seed", seed)
    return random.Random(seed)


# ---- letters ----


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("B", "B"),
        ("B.", "B"),
        ("(b)", "B"),
        ("B) 600", "B"),
        ("**B**", "B"),
        ("The answer is B.", "B"),
        ("So the answer is (c).", "C"),
        ("Answer: D", "D"),
        ("ANSWER:E", "E"),
        ("Correct answer - A", "A"),
        ("the correct option is C) 12 km", "C"),
        (r"Therefore \boxed{D}.", "D"),
        (r"The answer is \boxed{\text{C}}.", "C"),
        ("The answer is **option D**", "D"),
        ("4 + 4 = 8\nOption B is correct", "B"),
        ("4 + 4 = 8\nHence (A) is the correct answer", "A"),
        ("The answer is\nE", "E"),
        ("The answer is A or B? No: the answer is C, not 5.", "C"),
        ("The answer is a number.", None),
        ("What is the answer?\nA train is late.", None),
        ("Answer: F", None),
        ("b", None),
        ("ABC", None),
        ("the answer is 5", None),
        ("", None),
    ],
)
def test_letters_in_prose(text, letter):
    assert extract_letter(text, "ABCDE") == letter


def test_an_announced_letter_is_found_behind_any_prose():
    ours = dice()
    frames = ["The answer is {}.", "Answer: {}", "answer is ({}).", r"so \boxed{{{}}}", "Correct answer - {}"]
    words = "therefore 3x + 2 = 11, Answers may vary; B(x) A a (i) option choose 12.5% \n E=mc".split(" ")
    for _ in range(500):
        prose = " ".join(ours.choices(words, k=ours.randrange(20)))
        letter = ours.choice("ABCDE")
        assert extract_letter(f"{prose}\n{ours.choice(frames).format(letter)}", "ABCDE") == letter, prose


@NEEDS_MIRROR
def test_real_rationales_are_read_right():
    """Of those of AQuA that name a letter at all, all but one: it ends with "(B) must be true" behind another."""
    rows = [
        row
        for file in TASKS["AQUA"].files("validation", "test")
        for row in pq.read_table(MIRROR / str(file)).to_pylist()
    ]
    read = [extract_letter(row["rationale"], "ABCDE") for row in rows]
    assert len(rows) == 508
    assert sum(letter not in (None, row["correct"]) for letter, row in zip(read, rows, strict=True)) <= 1
    assert sum(letter == row["correct"] for letter, row in zip(read, rows, strict=True)) >= 470


# ---- numbers ----


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("#### 18", 18),
        ("#### 1,234,567 dollars", 1234567),
        ("#### -5", -5),
        ("#### $1,000.50.", Fraction("1000.5")),
        (r"so \boxed{12}", 12),
        (r"\boxed{-0.25}", Fraction("-0.25")),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"#### \frac{1}{2}", r"\frac{1}{2}"),
        (r"\boxed{3} or rather #### 4", 4),
        ("The answer is 18 apples.", 18),
        ("The answer is:\n\nnine. No, 9", 9),
        ("정답은 18명입니다.", 18),
        ("답: 0.25", Fraction("0.25")),
        ("따라서 총 18개", 18),
        ("16-3=13", 13),
        ("x = -7", -7),
        ("1/2", Fraction(1, 2)),
        ("#### 3x+2", "3x+2"),
        ("none", None),
        ("", None),
    ],
)
def test_numbers_in_prose(text, answer):
    assert final_answer(text) == answer


def test_a_number_is_the_same_however_it_is_written():
    ours = dice()
    frames = ["#### {}", "It is 7.\n#### {} km", r"\boxed{{{}}}", "The answer is {}.", "정답: {}", "2 and 3 make\n{}"]
    for _ in range(500):
        number = ours.choice([-1, 1]) * ours.randrange(10**7) / ours.choice([1, 10, 100])
        text = ours.choice(frames).format(f"{number:,}")
        assert final_answer(text) == Fraction(str(number)), text
        official = extract_answer(f"so\n#### {number:,} of them")
        assert official == str(number)


# ---- programs ----

PROMPT = 'import math\n\ndef half(x):\n    return x / 2\n\ndef area(r: float) -> float:\n    """Of a half disc."""\n'
BODY = "    full = math.pi * r * r\n\n    return half(full)\n"
FUNCTION = f"def area(r):\n{BODY}"
ANSWERS = {
    "the body": BODY,
    "the body, not indented": "return half(math.pi * r * r)",
    "the body and what follows": f"{BODY}\nprint(area(1))\nThat is it.",
    "the body between fences": f"So:\n```python\n{BODY}```\nDone.",
    "the function": FUNCTION,
    "the function behind prose": f"Here it is, from me to you:\n\n{FUNCTION}",
    "the whole prompt again": PROMPT + BODY,
    "the whole prompt again between fences": f"Sure!\n```python\n{PROMPT}{BODY}\n```\nIt works, as\n```\narea(1)\n```",
    "the function in the second of two blocks": f"```\npip install math\n```\nthen\n```py\n{FUNCTION}```",
    "a function in a line of prose": "Sure: def area(r): return half(math.pi * r * r)",
    "a function that is indented": textwrap.indent(FUNCTION, "  "),
    "a function that is indented behind prose": f"It is this:\n\n{textwrap.indent(FUNCTION, '    ')}",
    "fences that are not closed": f"```python\n{FUNCTION}",
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_an_answer_becomes_a_program(answer):
    program = complete_program(PROMPT, "area", ANSWERS[answer])
    done = subprocess.run([sys.executable, "-c", f"{program}\nprint(area(2))"], capture_output=True, text=True)
    assert done.stdout.strip() == str(3.141592653589793 * 2), f"{program}\n{done.stderr}"


@pytest.mark.parametrize("answer", ["", "I cannot.", "```\n```", "def other(r):\n    return 1"])
def test_no_program_is_no_answer(answer):
    done = subprocess.run(
        [sys.executable, "-c", f"{complete_program(PROMPT, 'area', answer)}\nassert area(2) > 6"], capture_output=True
    )
    assert done.returncode != 0


@NEEDS_SANDBOX
@pytest.mark.parametrize("hub", ["world", "mirror"])
def test_canonical_solutions_pass_and_others_do_not(hub, tmp_path, monkeypatch):
    folder = MIRROR if hub == "mirror" else tmp_path / "world"
    if hub == "world":
        write_world(folder, 1, "tiny")
    elif not MIRROR.is_dir():
        pytest.skip("no mirror of real data on this machine")
    monkeypatch.setenv("NANOCHAT_HUB", str(folder))
    task = TASKS["HumanEval"](stop=20) if hub == "mirror" else TASKS["HumanEval"]()
    answers = []
    for conversation in task:
        asked, solution = (message["content"] for message in conversation["messages"])
        answers += [(conversation, solution), (conversation, f"```python\n{solution[len(asked) :]}```")]
        answers += [(conversation, "    pass"), (conversation, "    import os\n    os._exit(0)")]
    assert task.evaluate_all(answers) == [True, True, False, False] * len(task)
    assert task.reward(*answers[0]) == 1.0
    assert not task.evaluate(*answers[2])


@NEEDS_SANDBOX
@NEEDS_MIRROR
def test_all_164_official_solutions_pass_as_they_are_judged(monkeypatch):
    monkeypatch.setenv("NANOCHAT_HUB", str(MIRROR))
    task = TASKS["HumanEval"]()
    answers = [(conversation, conversation["messages"][1]["content"]) for conversation in task]
    failed = [
        asked["entry_point"] for (asked, _), right in zip(answers, task.evaluate_all(answers), strict=True) if not right
    ]
    assert (len(answers), failed) == (164, [])


def test_where_programs_cannot_be_contained_they_are_not_run(tmp_path, monkeypatch, capsys):
    write_world(tmp_path / "world", 1, "tiny")
    monkeypatch.setenv("NANOCHAT_HUB", str(tmp_path / "world"))
    monkeypatch.setattr(sandbox, "missing", lambda: "no namespaces")
    with pytest.raises(ValueError, match="programs cannot be contained here: no namespaces; --unsafe-exec runs it"):
        open_tasks("HumanEval")
    assert "HumanEval" not in open_tasks("")
    assert "tasks: HumanEval is left out: programs cannot be contained" in capsys.readouterr().out
    task = open_tasks("HumanEval", unsafe_exec=True)["HumanEval"]
    assert task.evaluate_all([(one, one["messages"][1]["content"]) for one in (task[0], task[1])]) == [True, True]
