"""The calculator that a model may call: exact arithmetic and letter counting, read as a syntax tree, never run."""

import ast
import operator
import re
import warnings
from decimal import Context, Decimal
from fractions import Fraction

MAX_LENGTH = 200  # characters of an expression: with the limits below, also a limit on time
MAX_DIGITS = 40  # of a number on the way, and of its denominator
MAX_EXPONENT = 64
SHOWN_DIGITS = 12  # of a result that is no whole number
SHOWN_DECIMALS = 2  # of one with many digits before the point, at least

THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
PERCENT = re.compile(r"(\d+\.?\d*|\.\d+)\s*%(?=\s*(?:[-+*/)]|$))")  # where nothing follows that could be divided by


class Refused(ValueError):
    """An expression that is not calculated, and why."""


def calculate(expression: str) -> str:
    """Its value as text: 12/60 is 0.2, 20/2 is 10, 20%*1,500 is 300, "strawberry".count("r") is 3."""
    if len(expression) > MAX_LENGTH:
        raise Refused(f"an expression of {len(expression)} characters, the limit is {MAX_LENGTH}")
    text = expression.strip()
    if not {"'", '"'} & set(text):
        text = PERCENT.sub(r"(\1/100)", THOUSANDS.sub("", text))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Python about odd literals: who wrote them does not read it
            tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Refused(f"no expression: {error}") from None
    return _written(_value(tree, text))


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1 or abs(exponent) > MAX_EXPONENT:
        raise Refused(f"the exponent {exponent}: it must be whole and at most {MAX_EXPONENT}")
    return base ** int(exponent)


OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}


def _value(node: ast.expr, text: str) -> Fraction:
    match node:
        case ast.Constant(value=number) if type(number) in (int, float) and abs(number) < 10**MAX_DIGITS:
            exact = Decimal(number if type(number) is int else ast.get_source_segment(text, node))  # 0.1 is a tenth
            if abs(exact.as_tuple().exponent) >= MAX_DIGITS:  # asked before a power of ten is made of it
                raise Refused(f"a number of more than {MAX_DIGITS} digits")
            return Fraction(exact)
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in OPERATORS:
            values = [_value(left, text), _value(right, text)]
        case ast.UnaryOp(op=sign, operand=operand) if type(sign) in OPERATORS:
            values = [_value(operand, text)]
        case ast.Call(
            func=ast.Attribute(value=ast.Constant(value=str(text)), attr="count"),
            args=[ast.Constant(value=str(part))],
            keywords=[],
        ):
            return Fraction(text.count(part))
        case _:
            raise Refused(f"{type(node).__name__} is not calculated")
    try:
        number = Fraction(OPERATORS[type(sign)](*values))
    except ZeroDivisionError:
        raise Refused("a division by zero") from None
    if max(abs(number.numerator), number.denominator) >= 10**MAX_DIGITS:
        raise Refused(f"a number of more than {MAX_DIGITS} digits")
    return number


def _written(number: Fraction) -> str:
    if number.denominator == 1:
        return str(number.numerator)
    digits = max(SHOWN_DIGITS, len(str(int(abs(number)))) + SHOWN_DECIMALS)
    rounded = Context(prec=digits).divide(Decimal(number.numerator), Decimal(number.denominator))
    return f"{rounded.normalize():f}"
