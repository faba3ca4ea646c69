r"""MCLM: competition mathematics in Korean. Answers are compared by value where they are numbers, else by spelling.

A number is arithmetic with fractions, roots and π: 1\frac{1}{2} is 1.5, and 0.\overline{3} is 1/3. Solutions and sets
have no order, tuples and intervals have one. Units, degrees and percent signs do not count.
"""

import re
from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

from nanochat.calculator import REFUSALS, calculate
from nanochat.errors import UserError
from nanochat.protocols import Conversation
from tasks.common import exchange
from tracks.benchmarks.hrm8k import BOXED, HRM8K, NUMBER, WORDS, after_hashes

MAX_ANSWER = 300  # characters


class Rule(NamedTuple):
    """A rule of spelling, by regular expressions."""

    pattern: str
    replacement: str | Callable[[re.Match[str]], str]


def _fraction(found: re.Match[str]) -> str:
    r"""Return a repeating decimal as a fraction: 0.1\overline{6} is 1/6. Groups: whole part, decimals, what repeats."""
    whole, decimals, repeated = found.groups()
    before = int(whole + decimals or "0")
    value = Fraction(int(whole + decimals + repeated) - before, 10 ** len(decimals) * (10 ** len(repeated) - 1))
    return f"❨{value}❩"


# Rules are applied in this order, so that spellings of one answer become equal.
WORDS_AND_UNITS = (
    # 11,\! 111: a thousands separator, whatever follows it.
    Rule(r",\\!\s*", ","),
    # "and" between numbers, with a tab for now: blanks go after thousands separators, and "120, 240" and "120 and 240"
    # are two numbers.
    Rule(r"\\(?:text|mathrm)\{\s*(?:and|or|또는|그리고)\s*\}|\s(?:and|or|또는|그리고)\s", r",\t"),
    # Reasons, and further sentences.
    Rule(r"\s(?:because|since|which|so)\s.*|\.\s.*", ""),
    # Layout, dollars, percent signs and degrees. Ends of lines stay.
    Rule(
        r"(\\\\)|\\left|\\right|\\displaystyle|\\q?quad|\\[!,;:()\[\] ]|\\?[$%]|\^?\{?(?:\\circ|°|\\degree)\}?", r"\1"
    ),
    Rule(r"\{,\}", ","),
    Rule(r"\\[dtc]frac", r"\\frac"),
    # Text behind a value is a unit; other text is a part of the answer.
    Rule(r"(?<=[^\s,({\[=])\s*\\(?:text|textbf|mathrm|mathbf|mbox)\{[^{}]*\}(?:\^\{?\d\}?)?", ""),
    Rule(r"\\(?:text|textbf|mathrm|mathbf|mbox)\{([^{}]*)\}", r"\1"),
    # Units behind a number: of length and weight, perhaps with a power; others; Korean ones.
    Rule(r"(?<=\d)\s*(?:square )?(?:[cmk]m|kg|inch(?:es)?|f(?:ee)?t|(?:mile|unit)s?)(?![A-Za-z])(?:\^\{?\d\}?)?", ""),
    # A single letter behind a number may be a variable, unless a blank is between and the answer ends.
    Rule(r"(?<=\d)\s+(?:square )?[mg](?:\^\{?\d\}?)?(?=\s*$)", ""),
    Rule(
        r"(?<=\d)\s*(?:degree|dollar|cent|second|minute|hour|day|week|month|year|people|person|way|point)s?(?![A-Za-z])",
        "",
    ),
    Rule(r"(?<=\S)\s*[가-힣].*", ""),
    # 1 1/2
    Rule(r"(?<![\d/.])(\d+)\s+(\d+/\d+)", r"❨\1+\2❩"),
    # 1,000, unless brackets follow: their commas are between numbers.
    Rule(r"(?<=\d),(?=\d{3}(?!\d))(?!.*(?:[)\]]|\\\}))", ""),
    # Blanks, and the point at the end.
    Rule(r"\s+|\.$", ""),
    # \frac12, \frac{1}2, \sqrt2 and \overline3 get their braces.
    Rule(r"\\frac(\d)", r"\\frac{\1}"),
    Rule(r"(\\frac\{[^{}]*\})(\d)", r"\1{\2}"),
    Rule(r"\\(sqrt|overline)(\d)", r"\\\1{\2}"),
    # 1\frac{1}{2}
    Rule(r"(\d+)\\frac\{(\d+)\}\{(\d+)\}", r"❨\1+\2/\3❩"),
    Rule(r"([_^])\{(\w+)\}", r"\1\2"),
)
ROOT_OR_FRACTION = (
    Rule(r"\\sqrt(?:\[(\d)\])?\{([^{}]*)\}", r"√\1❨\2❩"),
    Rule(r"\\frac\{([^{}]*)\}\{([^{}]*)\}", r"❨❨\1❩/❨\2❩❩"),
)
REPEATING = (Rule(r"(\d*)\.(\d*)\\overline\{(\d+)\}", _fraction),)
NESTING = 3  # levels of roots and fractions in each other, the innermost first
SIGNS = (
    Rule(r"\\pi|π", "❨3.14159265359❩"),
    Rule(r"\\infty|infinity", "∞"),
    Rule(r"\\cup", "∪"),
    # Products and powers.
    Rule(r"(?:\\cdot|\\times)(?![a-z])", "*"),
    Rule(r"(?<=\d)[eE](?=[-+]?\d)", "*10^"),
    Rule(r"\^\{([^{}]*)\}", r"**❨\1❩"),
    Rule(r"\^", "**"),
    # A product without a sign: 2√3.
    Rule(r"(?<!√\d)(?<=[\d❩])(?=[❨√])|(?<=❩)(?=\d)", "*"),
    # Names before a value: (x,y)=, x=, f(x)=, x\in.
    Rule(r"^\([a-z](?:,[a-z])+\)=|(?:^|(?<=,))[A-Za-z](?:\([a-z]\))?(?:=|\\in(?![a-z]))", ""),
    # Brackets around one value, and around a set.
    Rule(r"^\(([^,()]*)\)$", r"\1"),
    Rule(r"^\\\{(.*)\\\}$", r"\1"),
)
REWRITINGS = (*WORDS_AND_UNITS, *REPEATING, *ROOT_OR_FRACTION * NESTING, *SIGNS)
# Between brackets and separators of tuples, intervals and sets. Arithmetic has the brackets ❨ and ❩ instead.
ELEMENT = re.compile(r"[^][(){},∪]+")
ROOT = re.compile(r"√(\d?)(?:\(((?:[^()]|\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))*)\))")
ARITHMETIC = re.compile(r"[-+*/().\d]+")


def _value(text: str) -> str:
    """Return a value as text, exact for a whole number, else to twelve digits; empty for other text."""
    try:
        text = text.replace("❨", "(").replace("❩", ")")
        text = ROOT.sub(lambda found: f"({float(_value(found[2])) ** (1 / int(found[1] or 2)):.12f})", text)
        return calculate(text) if ARITHMETIC.fullmatch(text) else ""
    except REFUSALS:
        return ""


def _number(text: str) -> str:
    """Return a value as text, exact for a whole number, else to nine digits; empty for other text."""
    value = _value(text)
    return f"{float(value):.9g}" if "." in value else value


class MCLM(HRM8K):
    @staticmethod
    def read(text: str) -> str:
        """Return the announced answer, or else the last number, in a form that is equal for equal answers."""
        # A box comes first: competitions ask for one, and #### may be a heading. Many answers begin with no number.
        number, end = after_hashes(text)
        found = [*BOXED.findall(text)[-1:], end, number, *WORDS.findall(text)[-1:], *NUMBER.findall(text)[-1:]]
        answer = next(filter(None, found), "")[:MAX_ANSWER].strip()
        for rule in REWRITINGS:
            answer = re.sub(rule.pattern, rule.replacement, answer)
        answer = ELEMENT.sub(lambda found: _number(found[0]) or found[0], answer)
        # The order of solutions, and of a union's parts, does not count.
        separator = "∪" if "(" in answer or "[" in answer else ","
        return separator.join(sorted(answer.split(separator)))


class SolvedMCLM(MCLM):
    """Problems with a solution in words, which announces the answer."""

    def conversation(self, question: str, answer: float | str) -> Conversation:
        if not self.read(str(answer)):
            raise UserError("the solution has no answer")
        return exchange(question, str(answer))
