"""The calculator for model output: exact arithmetic and letter counting on a syntax tree, without running any code."""

import ast
import re
import warnings
from decimal import Context, Decimal
from fractions import Fraction
from operator import add, floordiv, mul, neg, pos, sub, truediv

from nanochat.errors import UserError

MAX_LENGTH = 200  # characters per expression: with the limits below, also a limit on time
MAX_DIGITS = 40  # for the numerator and the denominator, intermediate results included
MAX_EXPONENT = 64
SOURCE = "<calculator>"  # the name of an expression in Python's messages
SHOWN_DIGITS = 12  # significant digits shown for a result that is not a whole number
SHOWN_DECIMALS = 2  # least decimals shown, however many digits stand before the point

NUMBER = re.compile(r"\d+\.?\d*|\.\d+")  # no exponent, which could take forever
THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")


# Raised for other expressions, and for those that would take too long.
REFUSALS = (SyntaxError, ValueError, KeyError, RecursionError, MemoryError, ArithmeticError)


def calculate(expression: str) -> str:
    """Return the value as text: 12/60 is 0.2, 20/2 is 10, 2*1,500 is 3000, "strawberry".count("r") is 3.

    Raise one of REFUSALS for anything else.
    """
    if len(expression) > MAX_LENGTH:
        raise UserError("too long")
    text = expression.strip()
    if not {"'", '"'} & set(text):  # quoted text stays unchanged
        text = THOUSANDS.sub("", text)
    return _written(_value(_tree(text), text))


def _tree(text: str) -> ast.expr:
    _silence()
    tree = compile(text, SOURCE, "eval", ast.PyCF_ONLY_AST)
    assert isinstance(tree, ast.Expression)
    return tree.body


def _silence() -> None:
    """Leave out Python's warnings about an expression such as 1if 1else 2: a model's text would fill the log."""
    # Whoever calls within `warnings.catch_warnings` takes the filters away again.
    if not any(getattr(module, "pattern", "") == SOURCE for _, _, _, module, _ in warnings.filters):
        for category in (SyntaxWarning, DeprecationWarning):
            warnings.filterwarnings("ignore", category=category, module=SOURCE)


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1 or abs(exponent) > MAX_EXPONENT:
        raise UserError("the exponent must be whole, and not large")
    return base ** int(exponent)


OPERATORS = {  # by the name of the sign's class in ast
    "Add": add,
    "Sub": sub,
    "Mult": mul,
    "Div": truediv,
    "FloorDiv": floordiv,
    "Pow": _power,
    "USub": neg,
    "UAdd": pos,
}


def _value(node: ast.expr, text: str) -> Fraction:
    """Return the exact value of a node; `text` is the source, for reading decimals digit by digit."""
    match node:
        case ast.Constant(value=int() | float()):
            # The source text rather than the float: 0.1 means exactly one tenth.
            digits = ast.get_source_segment(text, node) or ""
            if not NUMBER.fullmatch(digits):
                raise UserError("no plain number")
            return Fraction(digits)
        case ast.BinOp(left=left, op=sign, right=right):
            values = [_value(left, text), _value(right, text)]
        case ast.UnaryOp(op=sign, operand=operand):
            values = [_value(operand, text)]
        # The only call: "text".count("part").
        case ast.Call(
            func=ast.Attribute(value=ast.Constant(value=str(text)), attr="count"),
            args=[ast.Constant(value=str(part))],
            keywords=[],
        ):
            return Fraction(text.count(part))
        case _:
            raise UserError("only arithmetic, and counting letters")
    number = Fraction(OPERATORS[type(sign).__name__](*values))
    # After each operation, so that repeated powers cannot grow without bound.
    if max(abs(number.numerator), number.denominator) >= 10**MAX_DIGITS:
        raise UserError("a number has too many digits")
    return number


def _written(number: Fraction) -> str:
    """Return decimal text, rounded unless the result is whole."""
    if number.denominator == 1:
        return str(number.numerator)
    digits = max(SHOWN_DIGITS, len(str(int(abs(number)))) + SHOWN_DECIMALS)
    rounded = Context(prec=digits).divide(Decimal(number.numerator), Decimal(number.denominator))
    return f"{rounded.normalize():f}"  # "f": never in scientific notation
