"""Answers in mathematics: HRM8K's numbers in prose, MCLM's spellings of one value."""

from fractions import Fraction

import pytest
from chat_files import contents
from conftest import cells, each_row

from tasks import TASKS
from tracks.benchmarks.hrm8k import HRM8K
from tracks.benchmarks.mclm import MCLM

# A text, and its answer: a number, a text in quotes, or none. A / at the end of a word begins a line.
IN_PROSE = r"""
#### 18 => 18
#### 1,234,567 dollars => 1234567
#### -5 => -5
#### $1,000.50. => 1000.5
so \boxed{12} => 12
\boxed{-0.25} => -0.25
\boxed{\frac{1}{2}} => "\frac{1}{2}"
#### \frac{1}{2} => "\frac{1}{2}"
\boxed{3} or rather #### 4 => 4
The answer is 18 apples. => 18
The answer is:/ / nine. No, 9 => 9
정답은 18명입니다. => 18
답: 0.25 => 0.25
따라서 총 18개 => 18
16-3=13 => 13
x = -7 => -7
1/2 => 1/2
#### 3x+2 => "3x+2"
#### Step 1: find x/ so \boxed{4} => 4
#### 1. Find x/ so \boxed{4} => 4
#### (1) x/ so \boxed{4} => 4
#### 1단계: x/ \boxed{4}입니다 => 4
#### Final Answer/ \boxed{4} => 4
#### Final Answer/ 4 => 4
#### Final Answer/ The answer is 4, as 2 times 2. => 4
#### Answer: 4 => 4
#### 정답: 4 => 4
#### Step 1: add/ The answer is 4 apples. => 4
#### Step 1: add/ #### 4/ #### Check/ 2 + 2 = 5 - 1 => 4
##### 3/ so it is 4 => 4
#### 18. That is all. => 18
\boxed{3}/ #### 3x+2 => 3
none =>
 =>
"""


@pytest.mark.parametrize("line", IN_PROSE.strip("\n").split("\n"))
def test_numbers_in_prose(line) -> None:
    text, _, cell = line.replace("/ ", "\n").partition(" =>")
    answer = cell.strip()
    expected = answer.strip('"') if answer.startswith('"') else Fraction(answer or -999)
    assert HRM8K.read(text) == (expected if answer else None)


def test_answers_have_several_types(write_rows) -> None:
    number = {"question": "몇 개?", "answer": 18.0, "original": "?"}
    write_rows("HRM8K", [number], [{"question": "값?", "answer": "1,200"}])
    task = TASKS["HRM8K"]()
    assert len(task) == 5
    for conversation in task:
        number = {"몇 개?": "18", "값?": "1200"}[conversation["messages"][0]["content"]]
        for text in (f"#### {number}", f"정답은 {number}.", rf"\boxed{{{number}.0}}"):
            assert task.evaluate(conversation, text)
        assert not task.evaluate(conversation, "#### 17")
        assert not task.evaluate(conversation, "모름")


# The right answer | spellings that are right, separated by two blanks | others that are wrong.
SPELLINGS = r"""
18                    | 18  18.0  18명입니다  $18$  18.  +18  \text{18}     | 17  1.8  -18  18x  180
-5                    | -5  -5.00  $-5$  -\frac{10}{2}                        | 5  -0.5  - 6
\frac{3}{4}           | 3/4  0.75  \dfrac{3}{4}  \tfrac34  .75  \frac{6}{8}   | 4/3  0.7  \frac{3}{40}
-\frac{1}{3}          | -1/3  \frac{-1}{3}  -\frac13                          | \frac{1}{3}  -0.33  -3
\frac{\sqrt{3}}{3}    | \frac{1}{\sqrt{3}}  \frac{\sqrt3}3  1/\sqrt{3}        | \sqrt{3}  0.577  \frac{3}{\sqrt{2}}
\sqrt{51}             | \sqrt{51}  \sqrt{51.0}  $\sqrt{51}$                   | 51  \sqrt{15}  7.14
3\sqrt{2}             | 3 \sqrt2  \sqrt{18}  \frac{6}{\sqrt{2}}               | \sqrt{6}  2\sqrt{3}
\sqrt[3]{8}           | 2  \sqrt{4}                                           | 8  \sqrt{8}
1\frac{1}{2}          | 1.5  3/2  1 1/2  1\dfrac12                            | 0.5  11/2  1
12,345                | 12345  12{,}345  12\,345  12{,}345.0                  | 12.345  (12,345)  12
1000000               | 10^6  1\times10^{6}  1e6  1,000,000                   | 10^5  1e5
6.02\times10^{-3}     | 0.00602  6.02 \cdot 10^{-3}  6.02e-3                  | 6.02\times10^{3}  6.02
50\%                  | 50  50\%  50%                                         | 5%  0.05
60^\circ              | 60  60^{\circ}  60°  60\degree  60\text{ degrees}     | 30^\circ  6
10\text{ cm}          | 10  10 cm  10\mathrm{cm}  10 \text{ cm}               | 100  1 cm
25\text{ cm}^2        | 25  25\text{ cm}^{2}  25 square cm                    | 625  5
\$18.90               | 18.9  18.90  \$18.9  18.90 dollars                    | 1.89  \$19
2\pi                  | 2π  \pi\cdot2  \frac{4\pi}{2}                         | 6.28  \pi^2  2
(3, 4)                | (3,4)  \left(3, 4\right)  (\frac{6}{2}, 4.0)          | (4,3)  [3,4]  3,4  34
[0, \infty)           | [0,\infty)  \left[0, \infty\right)                    | (0,\infty)  [0,\infty]
(-\infty, 2) \cup (3, 4) | (-\infty,2)\cup(3,4)  (3,4) \cup (-\infty,2.0)     | (-\infty,2)  (-\infty,3)\cup(2,4)
\{1, 2, 3\}           | \{3,2,1\}  1, 2, 3  \left\{1,2,3\right\}              | \{1,2\}  (1,2,3)  6
x=5                   | 5  x = 5  y=5                                         | x=6  -5
1, -2                 | -2, 1  x=1 \text{ or } x=-2  \{-2,1\}                 | 1, 2  -1
120, 240              | 240, 120  x=120, x=240  120 또는 240                  | 120240  120,240  120
x^2+2x+1              | x^{2} + 2x + 1  $x^2+2x+1$                            | x^2+2x  x^2-2x+1
\text{east}           | east  \textbf{east}                                   | west  \text{(A)}
\text{(C)}            | C  (C)  \text{C}                                      | B  (D)
\begin{pmatrix}1\\2\end{pmatrix} | \begin{pmatrix} 1 \\ 2 \end{pmatrix}       | \begin{pmatrix}2\\1\end{pmatrix}
11111111              | 11,111,111  11,\! 111,\! 111  11{,}111{,}111            | 11,111
5m+3                  | 5m + 3  5m+3                                          | 8  5+3  5m
7 m                   | 7  7 m  7\text{ m}                                    | 7m
1011_2                | 1011_{2}                                              | 1011  1101_2
0.\overline{3}        | \frac13  1/3  0.3\overline{3}  .\overline3  0.\overline{33} | 0.3  0.333333  3  0.0\overline{3}
0.\overline{9}        | 1  \frac{3}{3}  1.0                                     | 0.9  0.99999  0.\overline{90}
-1.2\overline{27}     | -\frac{27}{22}  -1\frac{5}{22}  -1.2\overline{2727} | 1.2\overline{27}  -1.\overline{27}  -1.227
\frac{2}{3}           | \sqrt{\frac{4}{9}}  \sqrt{0.\overline{4}}  \frac{1.\overline{3}}{2} | \frac{3}{2}  \frac{4}{9}
\overline{AB}         | \overline{AB}                                         | AB  \overline{BA}
"""
# The right answer | what a near miss of it says: a sign, an order, an end of an interval, a term, a number beside it.
NEAR_MISSES = r"""
18                    | 81  \frac{1}{18}  18\pi  18^2  18\frac{1}{2}
-5                    | |-5|  \pm 5  5^{-1}
5                     | 5!  \pm5  5i  5\frac{1}{2}  5\text{ or }6
\frac{3}{4}           | -\frac{3}{4}  \frac{3}{4}\pi  3.4  0.7500001  3:4  \frac{4}{5}
\frac{\sqrt{3}}{3}    | \frac{3}{\sqrt{3}}  \frac{\sqrt{3}}{9}  -\frac{\sqrt{3}}{3}  \sqrt[3]{3}
\sqrt{51}             | \pm\sqrt{51}  -\sqrt{51}  \sqrt[3]{51}
3\sqrt{2}             | 3+\sqrt{2}  \sqrt{12}  \sqrt[3]{2}  4.24
2\sqrt{3}+1           | 2\sqrt{3}-1  2\sqrt{3+1}  3\sqrt{2}+1  2\sqrt{3}
\frac{1+\sqrt{5}}{2}  | \frac{1-\sqrt{5}}{2}  1+\frac{\sqrt{5}}{2}  1.618
1\frac{1}{2}          | -1\frac{1}{2}  1\frac{2}{1}  2\frac{1}{2}
12,345                | 12,354  1234.5  (12,345)
6.02\times10^{-3}     | 6.02\times10^{-2}  -6.02\times10^{-3}  0.0602
50\%                  | 0.5  \frac{1}{2}  0.5%  -50\%  500%
\frac{\pi}{3}         | 60^\circ  60  \frac{\pi}{6}  \frac{2\pi}{3}  1.047
60^\circ              | \frac{\pi}{3}  -60^\circ  300^\circ  120  61
2\pi                  | 360^\circ  2  \pi  2+\pi  2\pi^2  -2\pi  2\pi r
(3, 4)                | (3,-4)  (3,4,0)  (3,4]  \{3,4\}  (3,5)  7
(1, 2), (3, 4)        | (1,2)  (1,2,3,4)  (2,1),(4,3)  (1,4),(3,2)
[0, \infty)           | (-\infty,0]  [1,\infty)  [0,-\infty)  \{0,\infty\}
[2, 5)                | (2,5)  (2,5]  [2,5]  [2,6)  [5,2)  \{2,5\}
(-\infty, 2) \cup (3, 4) | (-\infty,2]\cup(3,4)  (-\infty,2)\cap(3,4)  (2,\infty)\cup(3,4)
\{1, 2, 3\}           | \{1,2,3,4\}  \{1,2,4\}  \{-1,2,3\}  123
x=5                   | x\ne5  x<5  x\ge5  x=-5  x=5,6
x\le 2                | x<2  x\ge2  x=2  x\le-2
1, -2                 | -1, 2  (1,-2)  1, -2, 0  -2
\frac{1}{2}, \frac{1}{3} | \frac{5}{6}  \frac{1}{6}  \frac{1}{2}  2, 3
x^2+2x+1              | x^2+2x-1  x+2x+1  x^3+2x+1  x^2+2x+1=0  y^2+2y+1  (x-1)^2
y=2x+1                | y=2x-1  y=x+2  x=2y+1  y=2x
3+4i                  | 3-4i  4+3i  7i  5
\log_2 3              | \log_3 2  \log 3  \ln 3
\frac{x}{y}           | \frac{y}{x}  xy  -\frac{x}{y}
\frac{1}{x+1}         | \frac{1}{x}+1  \frac{1}{x-1}  x+1
2^{10}                | 10^2  20  1023  2^{-10}
10:30                 | 10:03  10.30  1030
\text{no solution}    | 0  \text{one solution}
"""
CASES = [
    (right.strip(), spelling, verdict)
    for right, *columns in [*cells(SPELLINGS, "|"), *([right, "", wrong] for right, wrong in cells(NEAR_MISSES, " | "))]
    for verdict, column in zip((True, False), columns, strict=True)
    for spelling in column.strip().split("  ")
    if spelling
]


def test_a_hundred_right_and_a_hundred_wrong_spellings_and_hostile_answers() -> None:
    for side in (True, False):
        assert len({(right, spelling) for right, spelling, verdict in CASES if verdict == side}) >= 100
    wrong = [case for case in CASES if (MCLM.read(f"\\boxed{{{case[1]}}}") == MCLM.read(f"#### {case[0]}")) != case[2]]
    assert wrong == []
    nested = ["(" * 5000, r"\boxed{" * 3000, "√(" * 500]
    for text in [*nested, r"\boxed{" + " " * 10**5, "9**" * 999, r"\boxed{9^{9^{9^{9}}}}"]:
        assert MCLM.read(text) != MCLM.read("#### 1")
    assert MCLM.read("") == ""


IN_SENTENCES = r"""
먼저 2를 더하면 \boxed{3}, 따라서 \boxed{\frac{\sqrt{3}}{2}}입니다. => \frac{\sqrt3}{2}
정답은 $\frac{3}{4}$입니다. => 0.75
답: 18명입니다. 다른 값은 없습니다. => 18
The answer is 5 because 2 + 3 = 5. => 5
The answer is \(x+1\). => x+1
값은 3이고 합은 7 => 7
#### Step 1: find x/ so \boxed{4} => 4
#### 1. Find x/ so \boxed{x+1} => x+1
#### 7/ so \boxed{4} => 4
#### Final Answer/ \boxed{\frac{1}{2}} => 0.5
#### Final Answer/ The answer is $x+1$ => x+1
#### Step 1: add/ #### Answer: x+1 => x+1
#### Step 1: add/ #### \frac{3}{4} => 0.75
#### 12 dollars/ and more => 12
#### 3/ No, #### x+1 => x+1
"""


@each_row("text answer", IN_SENTENCES, " => ")
def test_answers_in_sentences(text: str, answer: str) -> None:
    text = text.replace("/ ", "\n")
    assert MCLM.read(text) == MCLM.read(f"#### {answer}") != MCLM.read("#### 1")


def test_columns_of_the_hub(write_rows) -> None:
    """A column for each language, and the answer in LaTeX."""
    answers = list(dict.fromkeys(right for right, _, _ in CASES))
    write_rows("MT-MATH100", [{"ko": f"{n}번 값은?", "en": "?", "answer": answers[n]} for n in range(20)])
    task = TASKS["MT-MATH100"]()
    assert [file.path for file in task.data.files()] == ["MT-MATH100/test/0000.parquet"]
    for conversation in task:
        question, right = contents(conversation)
        answer = answers[int(question.partition("번")[0])]
        assert task.evaluate(conversation, right)
        assert task.evaluate(conversation, f"따라서 \\boxed{{{answer}}}")
        assert not task.evaluate(conversation, "\\boxed{77}")
        assert not task.evaluate(conversation, "모름")


def test_solutions_in_words(write_rows) -> None:
    """A right answer in another spelling, and each of the wrong ones, against solutions in the layout of the hub."""
    rights = list(dict.fromkeys(right for right, _, _ in CASES))
    rows = [
        {"problem": f"Number {n}?", "solution": f"We see \\boxed{{{rights[n]}}} at once."} for n in range(len(rights))
    ]
    write_rows("MATH", rows)
    task = TASKS["MATH"]()
    assert len(task.data.files("test")) == 7
    assert len(task) == 7 * len(rights)
    found = {contents(conversation)[0]: conversation for conversation in task}
    for right, spelling, verdict in CASES:
        conversation = found[f"Number {rights.index(right)}?"]
        assert task.evaluate(conversation, f"So it is \\boxed{{{spelling}}}.") == verdict, (right, spelling)
        assert task.evaluate(conversation, contents(conversation)[1])
    write_rows("MATH-500", [{"problem": "Half of 3?", "answer": "\\frac{3}{2}"}])
    [conversation] = TASKS["MATH-500"]()
    assert task.evaluate(conversation, "The answer is 1.5.")
    assert task.evaluate(conversation, "#### Final Answer\n\\boxed{1.5}")
    assert not task.evaluate(conversation, "The answer is 2/3.")
