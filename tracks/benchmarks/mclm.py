r"""MCLM: competition mathematics in Korean. Answers are compared by value where they are numbers, else by spelling.

A number is arithmetic with fractions, roots and π: 1\frac{1}{2} is 1.5. Solutions and sets have no order, tuples and
intervals have one. Units, degrees and percent signs do not count.
"""

import re

from nanochat.calculator import REFUSALS, calculate
from nanochat.tables import parse_rows
from tracks.benchmarks.hrm8k import ANNOUNCEMENTS, HRM8K, NUMBER

MAX_ANSWER = 300  # characters
# Rewritten in this order, so that spellings of one answer become equal. Three times: fractions and roots in each other.
# Blanks go after thousands separators: "120, 240" and "120 and 240", with a tab for now, are two numbers.
SPELLINGS = r"""
\\(?:text|mathrm)\{\s*(?:and|or|또는|그리고)\s*\}|\s(?:and|or|또는|그리고)\s => ,\t
\s(?:because|since|which|so)\s.*|\.\s.* =>
(\\\\)|\\left|\\right|\\displaystyle|\\q?quad|\\[!,;:()\[\] ]|\\?[$%]|\^?\{?(?:\\circ|°|\\degree)\}? => \1
\{,\} => ,
\\[dtc]frac => \\frac
(?<=[^\s,({\[=])\s*\\(?:text|textbf|mathrm|mathbf|mbox)\{[^{}]*\}(?:\^\{?\d\}?)? =>
\\(?:text|textbf|mathrm|mathbf|mbox)\{([^{}]*)\} => \1
(?<=\d)\s*(?:square )?(?:[cmk]?m|k?g|inch(?:es)?|f(?:ee)?t|(?:mile|unit)s?)(?![A-Za-z])(?:\^\{?\d\}?)? =>
(?<=\d)\s*(?:degree|dollar|cent|second|minute|hour|day|week|month|year|people|person|way|point)s?(?![A-Za-z]) =>
(?<=\S)\s*[가-힣].* =>
(?<![\d/.])(\d+)\s+(\d+/\d+) => ❨\1+\2❩
(?<=\d),(?=\d{3}(?!\d))(?!.*(?:[)\]]|\\\})) =>
\s+|\.$ =>
\\frac(\d) => \\frac{\1}
(\\frac\{[^{}]*\})(\d) => \1{\2}
\\sqrt(\d) => \\sqrt{\1}
(\d+)\\frac\{(\d+)\}\{(\d+)\} => ❨\1+\2/\3❩
([_^])\{(\w+)\} => \1\2
\\sqrt(?:\[(\d)\])?\{([^{}]*)\} => √\1❨\2❩
\\frac\{([^{}]*)\}\{([^{}]*)\} => ❨❨\1❩/❨\2❩❩
\\sqrt(?:\[(\d)\])?\{([^{}]*)\} => √\1❨\2❩
\\frac\{([^{}]*)\}\{([^{}]*)\} => ❨❨\1❩/❨\2❩❩
\\sqrt(?:\[(\d)\])?\{([^{}]*)\} => √\1❨\2❩
\\frac\{([^{}]*)\}\{([^{}]*)\} => ❨❨\1❩/❨\2❩❩
\\pi|π => ❨3.14159265359❩
\\infty|infinity => ∞
\\cup => ∪
(?:\\cdot|\\times)(?![a-z]) => *
(?<=\d)[eE](?=[-+]?\d) => *10^
\^\{([^{}]*)\} => **❨\1❩
\^ => **
(?<!√\d)(?<=[\d❩])(?=[❨√])|(?<=❩)(?=\d) => *
^\([a-z](?:,[a-z])+\)=|(?:^|(?<=,))[A-Za-z](?:\([a-z]\))?(?:=|\\in(?![a-z])) =>
^\(([^,()]*)\)$ => \1
^\\\{(.*)\\\}$ => \1
"""
RULES = parse_rows(SPELLINGS, " *=> *")
# Between brackets and separators of tuples, intervals and sets. Arithmetic has the brackets ❨ and ❩ instead.
ELEMENT = re.compile(r"[^][(){},∪]+")
ROOT = re.compile(r"√(\d?)(?:\(((?:[^()]|\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))*)\))")
ARITHMETIC = re.compile(r"[-+*/().\d]+")


def _number(text: str) -> str:
    """Return a value as text, exact for a whole number, else to nine digits; empty for other text."""
    try:
        text = text.replace("❨", "(").replace("❩", ")")
        text = ROOT.sub(lambda found: f"({float(_number(found[2])) ** (1 / int(found[1] or 2)):.12f})", text)
        value = calculate(text) if ARITHMETIC.fullmatch(text) else ""
    except REFUSALS:
        return ""
    return f"{float(value):.9g}" if "." in value else value


class MCLM(HRM8K):
    @staticmethod
    def read(text: str) -> str:
        """Return the announced answer, or else the last number, in a form that is equal for equal answers."""
        # As for HRM8K: the surest announcement counts, and the last of its kind.
        found = [found for pattern in (*ANNOUNCEMENTS, NUMBER) for found in pattern.findall(text)[-1:]]
        answer = "".join(found[:1])[:MAX_ANSWER].strip()
        for pattern, replacement in RULES:
            answer = re.sub(pattern, replacement, answer)
        answer = ELEMENT.sub(lambda found: _number(found[0]) or found[0], answer)
        # The order of solutions, and of a union's parts, does not count.
        separator = "∪" if "(" in answer or "[" in answer else ","
        return separator.join(sorted(answer.split(separator)))
