"""One frozen dataclass per script is its command line, its record and its lines in the report card."""

import contextlib
import dataclasses
import difflib
import io
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Annotated, Any, TypeVar, get_type_hints

import tyro

from nanochat.log import end_live, say

Config = TypeVar("Config")


def _parse_count(words: list[str]) -> int:
    """A whole number as people write it: 2e9, 2_000_000, 2,000,000."""
    text = words[0]
    try:
        # A comma that does not part thousands is somebody's decimal comma: left in, Decimal refuses it.
        number = Decimal(text.replace(",", "") if re.fullmatch(r"[+-]?\d{1,3}(,\d{3})+", text) else text)
        if abs(number) < 2**63 and number == int(number):
            return int(number)
    except (ArithmeticError, ValueError):  # not a number, out of any range; NaN
        pass
    raise ValueError(f"{text} is not a whole number, write it like 20000 or 2e4")


_COUNT = tyro.constructors.PrimitiveConstructorSpec(
    1, "COUNT", _parse_count, lambda value: isinstance(value, int), lambda value: [f"{value:,}"]
)
Count = Annotated[int, _COUNT]


def option(default, text: str, *, group: str, unit=None, in_card=True, may_change=False, least=None, short=None) -> Any:
    """A field of a config: its default, its help, and whether it is a line of the report card.

    group: the box of `--help` it stands in, one word. unit: what `--help` shows in place of the value, in capitals.
    may_change: a run that was begun may go on with another value. least: the smallest value that makes sense,
    beside the default. short: another name of its flag, like -i.
    """
    about = {"text": text, "group": group, "unit": unit, "in_card": in_card, "may_change": may_change, "least": least}
    about["short"] = [short] if short else None
    return dataclasses.field(default=default, metadata=about)


def _grouped(config_class: type) -> type:
    """The same fields nested by group: nesting is how tyro is told of groups; the flags' names stay flat."""
    hints = get_type_hints(config_class, include_extras=True)
    groups: dict[str, list] = {}
    for field in dataclasses.fields(config_class):
        about = field.metadata
        names = {"prefix_name": False, "aliases": about["short"]}
        flag = tyro.conf.arg(**names, help=about["text"], metavar=about["unit"])
        groups.setdefault(about["group"], []).append((field.name, Annotated[hints[field.name], flag], field.default))
    boxes = [(name, dataclasses.make_dataclass(name, fields, frozen=True)) for name, fields in groups.items()]
    return dataclasses.make_dataclass("Flags", [(name, box, box()) for name, box in boxes])


def _first_sentence(complaint: str) -> str:
    """What tyro's drawn box says is wrong: its lines between the title and the first rule, where help begins."""
    lines = [line.strip("│| ") for line in complaint.splitlines()[1:]]
    end = next((i for i, line in enumerate(lines) if line.startswith(("─", "-----", "╰"))), len(lines))
    return " ".join(lines[:end]).removeprefix("Error parsing ")


def parse(config_class: type[Config], argv: Sequence[str] | None = None) -> Config:
    """The config that a command line describes; ValueError with one sentence where it describes none."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["--"]:  # `torchrun -m scripts.base_train -- --depth=20` hands the dashes on
        words = words[1:]
    module = sys.modules[config_class.__module__].__spec__
    about = {
        "prog": module and f"python -m {module.name.removesuffix('.__main__')}",
        "description": config_class.__doc__,
    }
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            flags, unknown = tyro.cli(_grouped(config_class), args=words, return_unknown_args=True, **about)
    except SystemExit as stop:
        if not stop.code:  # --help
            raise
        raise ValueError(_first_sentence(complaint.getvalue())) from None
    if unknown:
        known = ["--" + field.name.replace("_", "-") for field in dataclasses.fields(config_class)]
        flag = unknown[0].split("=")[0]
        near = difflib.get_close_matches(flag.replace("_", "-"), known, n=1)
        raise ValueError(f"unknown argument {flag}, " + (f"did you mean {near[0]}?" if near else "see --help."))
    config = config_class(**{name: value for box in vars(flags).values() for name, value in vars(box).items()})
    for field in dataclasses.fields(config):
        value, least = getattr(config, field.name), field.metadata["least"]
        if None not in (least, value) and value != field.default and value < least:
            raise ValueError(f"--{field.name.replace('_', '-')} has to be {least} or more, not {value}")
    return config


def run(main: Callable[[Config], None], config_class: type[Config]) -> None:
    """A script's last line: `main` of the parsed config; what a user can mend ends it with one sentence, no traceback.

    Exit code 2: a setting that cannot be. 1: a file or folder that fails, a loss that is not finite. 130: Ctrl-C.
    """
    try:
        with contextlib.ExitStack() as stack:
            stack.callback(end_live)  # whatever ends it speaks on a line of its own
            main(parse(config_class))
    except (ValueError, OSError, FloatingPointError, KeyboardInterrupt) as error:
        if sys.flags.dev_mode:  # python -X dev shows the traceback
            raise
        sentence, code = _last_words(error)
        say(sentence, file=sys.stderr)
        raise SystemExit(code) from None


def _last_words(error: BaseException) -> tuple[str, int]:
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", 130
    if isinstance(error, OSError | FloatingPointError):
        named = getattr(error, "filename", None)
        return f"error: {error.filename}: {error.strerror}" if named else f"error: {error}", 1
    # Who wrote a `raise` wrote a sentence for the user; any other ValueError is a defect: say where.
    where = traceback.extract_tb(error.__traceback__)[-1]
    place = "" if (where.line or "").startswith("raise") else f" ({where.filename}:{where.lineno})"
    return f"error: {error}{place}", 2
