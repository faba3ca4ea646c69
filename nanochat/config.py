"""One frozen dataclass per script is the command line, the run's record, and lines in the report card."""

import difflib
import io
import math
import re
import shlex
import signal
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import Field, dataclass, field, fields, make_dataclass
from decimal import Decimal, InvalidOperation
from types import FrameType, NoneType
from typing import Annotated, Any, ClassVar, Literal, NoReturn, Protocol, TypeVar, get_args, get_type_hints

import tyro
from typing_extensions import dataclass_transform

from nanochat import registry
from nanochat.errors import UserError
from nanochat.extras import not_installed
from nanochat.foreign import VALUES, hint_for
from nanochat.log import print_line
from nanochat.paths import fix_folders


class Dataclass(Protocol):
    """An instance or a class that `dataclass` made."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


Config = TypeVar("Config", bound=Dataclass)
Decorated = TypeVar("Decorated")
Default = TypeVar("Default")


def _parse_count(words: list[str]) -> int:
    """Return a whole number: 20000, 20_000 or 2e4."""
    text = words[0]  # nargs=1
    try:
        number = Decimal(text.replace("_", ""))
    except InvalidOperation:
        number = Decimal("nan")
    if not number.is_finite() or number != number.to_integral_value():
        raise UserError(f"{text} is not a whole number, write it like 20000 or 2e4")
    return int(number)


_COUNT = tyro.constructors.PrimitiveConstructorSpec(
    nargs=1,
    metavar="COUNT",
    instance_from_str=_parse_count,
    is_instance=lambda value: isinstance(value, int),
    str_from_instance=lambda value: [f"{value:_}"],  # as --help shows defaults
)
Count = Annotated[int, _COUNT]


def _parse_resume(words: list[str]) -> int | str:
    """Return `auto`, `never`, or a step."""
    if words[0] in ("auto", "never"):
        return words[0]
    try:
        return _parse_count(words)
    except ValueError:
        raise UserError(f"{words[0]} is not known, write auto, never, or the step of a checkpoint") from None


_RESUME = tyro.constructors.PrimitiveConstructorSpec(
    nargs=1,
    metavar="{auto,never,STEP}",
    instance_from_str=_parse_resume,
    is_instance=lambda value: isinstance(value, int | str),
    str_from_instance=lambda value: [str(value)],
)
Resume = Annotated[Literal["auto", "never"] | int, _RESUME]
Positional = tyro.conf.Positional  # Positional[str]: an argument without a flag


# What an option has that neither `option` nor the inherited option says.
USUAL = {"in_card": True, "may_change": False, "least": 0, "below": math.inf, "short": None, "rest": False, "off": None}


def option(
    default: Default,
    text: str | None = None,
    *,
    group: str | None = None,
    least: float | None = None,
    below: float | None = None,
    may_change: bool | None = None,
    in_card: bool | None = None,
    short: str | None = None,
    rest: bool | None = None,
    off: float | str | None = None,
) -> Default:
    """Return a config field. For type checkers it is its default, so a default of another type than the field's shows.

    None: as in the option that this one inherits, else as in USUAL. text: help for the flag. group: the title of its
    box in `--help`, if not that of its class. least: the smallest number, besides the default. below: a limit.
    may_change: a run may resume with another value. in_card: in the report card. short: a second name, like -i. rest:
    the text gets all flags that the config does not know. off: the default with which the option does nothing, where
    that is not one of the usual values (see `is_off`).
    """
    said = {
        "text": text,
        "group": group,
        "least": least,
        "below": below,
        "may_change": may_change,
        "in_card": in_card,
        "short": short,
        "rest": rest,
        "off": off,
    }
    made: Any = field(default=default, metadata={name: value for name, value in said.items() if value is not None})
    return made


@dataclass_transform(frozen_default=True, field_specifiers=(option,))
def options(group: str = "") -> Callable[[type[Decorated]], type[Decorated]]:
    """Return the decorator for config classes, which makes a frozen dataclass of the class and its options.

    `name = default` in the class gives an inherited option another default; type, help and limits stay. group: title of
    the box in `--help` for the options that the class adds, one word.
    """

    def decorate(config_class: type[Decorated]) -> type[Decorated]:
        inherited = {}
        for base in reversed(config_class.__mro__[1:]):  # as `dataclass` collects them
            inherited |= getattr(base, "__dataclass_fields__", {})
        for name, value in list(vars(config_class).items()):
            own = value if isinstance(value, Field) else field(default=value)
            if name in inherited:
                # `dataclass` makes fields only of names with a type.
                config_class.__annotations__.setdefault(name, inherited[name].type)
                metadata = inherited[name].metadata | own.metadata
            elif isinstance(value, Field):
                metadata = USUAL | {"group": group} | own.metadata
            else:  # a method
                continue
            setattr(config_class, name, field(default=own.default, metadata=metadata))
        return dataclass(frozen=True)(config_class)

    return decorate


def fixed_settings(config: Config) -> dict[str, Any]:
    """Return the fields of a config that no resume may change."""
    return {one.name: getattr(config, one.name) for one in fields(config) if not one.metadata["may_change"]}


def is_off(one: Field[Any], value: Any) -> bool:
    """Return True for an option that was left at a default with which it does nothing, or leaves a choice to others."""
    if value != one.default:
        return False
    if isinstance(value, bool) or value is None:
        return not value
    return value in ("", "auto", "off", -1) or value == one.metadata["off"]


def flag_of(name: str) -> str:
    """Return the flag for a field: max_seq_len -> --max-seq-len, and from_, as Python has that word, -> --from."""
    return f"--{name.rstrip('_').replace('_', '-')}"


def check_names(kind: str, names: Iterable[str], known: Collection[str]) -> None:
    """Raise a UserError for a name that is none of the known ones. kind: words before the name, like "the task"."""
    for name in names:
        if name not in known:
            raise UserError(f"{kind} {name} is not known, choose from {', '.join(filter(None, known))}")


def _value_type(config_class: type[Any], name: str, hint: Any) -> Any:
    """Return the type of a flag's values: without None in a script where the setting is never None.

    Fine-tuning has settings that are None, the parent's; base training has the same ones and nothing to inherit.
    """
    own = [vars(base).get("__dataclass_fields__", {}) for base in config_class.__mro__]
    is_none_somewhere = any(name in fields and fields[name].default is None for fields in own)
    if NoneType not in get_args(hint) or is_none_somewhere:
        return hint
    [value_type] = [part for part in get_args(hint) if part is not NoneType]
    return value_type


def _grouped(config_class: type[Any]) -> type[Any]:
    """Return a dataclass with the same fields nested by group: tyro draws a box for each. Flags stay flat."""
    hints = get_type_hints(config_class, include_extras=True)  # Count is an Annotated type
    groups: dict[str, list[tuple[str, Any, Any]]] = {}  # title → a (name, type, field) for each flag
    for one in fields(config_class):
        short = one.metadata["short"]
        text = one.metadata["text"]
        flag = tyro.conf.arg(
            name=flag_of(one.name).removeprefix("--"),
            help=text,
            help_behavior_hint="" if "default:" in text else None,  # else tyro adds the default
            aliases=[short] if short else None,
            prefix_name=False,
        )
        flag_type: Any = Annotated[_value_type(config_class, one.name, hints[one.name]), flag]  # ty: ignore[invalid-type-form]  # a type made here
        groups.setdefault(one.metadata["group"], []).append((one.name, flag_type, field(default=one.default)))
    # A field whose type is a dataclass is a box; prefix_name=False keeps the box out of the flag.
    boxes = []
    for name, entries in groups.items():
        box = make_dataclass(name, entries, frozen=True)
        boxes.append((name, box, field(default=box())))
    return make_dataclass("Flags", boxes)


def _first_sentence(drawn: str) -> str:
    """Return the complaint in tyro's drawn box: the text between its title and a rule."""
    # tyro frames errors, in Unicode or ASCII; in ASCII a rule stands below the title too.
    below = drawn.partition("\n")[2].replace("│", "")
    sentence = next(filter(str.strip, re.split(r"(?m)^ *[╰─-]{5,}", below)))
    sentence = " ".join(sentence.split()).removeprefix("Error parsing ")
    # For a type like `int | None` tyro lists the complaints of both parts; the last one is about the value.
    return re.sub(r"no type matching .*(?:\)\]|'>): ", "", sentence)


def _read_flags(config_class: type[Config], words: list[str]) -> Config:
    """Return the config that tyro reads from a command line; UserError for unknown flags and unreadable values."""
    # The name in `python -m NAME`; a test's class may have none.
    module = sys.modules[config_class.__module__].__spec__
    name = module.name.removesuffix(".__main__") if module else ""
    complaint = io.StringIO()  # tyro draws its errors on stderr
    try:
        with redirect_stderr(complaint):
            flags, unknown = tyro.cli(
                _grouped(config_class),
                args=words,
                prog=f"python -m {name}" if name else None,
                description=config_class.__doc__,
                return_unknown_args=True,  # refused below, with a close name as a hint
            )
    except SystemExit as stop:
        if not stop.code:  # --help
            raise
        raise UserError(_first_sentence(complaint.getvalue())) from None
    rest = [one.name for one in fields(config_class) if one.metadata["rest"]]
    if unknown and not rest:
        # Both spellings are flags: --max-chars, --max_chars.
        flag = unknown[0].split("=")[0]
        moved = registry.MOVED_FLAGS.get(name, {}).get(flag.replace("_", "-"))
        if moved:
            raise UserError(f"{flag} is a flag of python -m {moved}: run that, with the same flags")
        known = [flag_of(one.name) for one in fields(config_class)]
        elsewhere = hint_for(flag, known)
        if elsewhere:
            raise UserError(f"unknown argument {flag}: {elsewhere.text}")
        near = difflib.get_close_matches(flag.replace("_", "-"), known, n=1)  # typing errors
        hint = f"did you mean {near[0]}?" if near else "see --help."
        raise UserError(f"unknown argument {flag}, {hint}")
    values = {}
    for box in vars(flags).values():  # nested boxes back to flat fields
        values.update(vars(box))
    for word in unknown:
        if not re.match("--[a-z]", word):
            raise UserError(f"unknown argument {word}: write flags for other commands like --depth=4")
        values[rest[0]] = f"{values[rest[0]]} {shlex.quote(word)}".strip()
    return config_class(**values)


def check_limits(config: Dataclass) -> None:
    """Raise a UserError for a number outside the limits of its option, `least` and `below`."""
    for one in fields(config):
        value = getattr(config, one.name)
        # The default may lie below: -1 often means "chosen for you".
        if not isinstance(value, int | float) or value == one.default:
            continue
        least = one.metadata["least"]
        below = one.metadata["below"]
        if not least <= value < below:  # nor is it NaN
            limit = "" if value < below else f" and below {below}"
            raise UserError(f"{flag_of(one.name)} has to be {least} or more{limit}, not {value}")


def parse(config_class: type[Config], argv: Sequence[str] | None = None) -> Config:
    """Return the config that a command line describes; UserError with one sentence if it describes none."""
    words = list(sys.argv[1:] if argv is None else argv)  # tests pass their own
    if words[:1] == ["--"]:  # `torchrun -m scripts.base_train -- --depth=20` passes the dashes on
        words = words[1:]
    config = _read_flags(config_class, words)
    for name, values in VALUES.items():
        given = getattr(config, name, None)
        if given in values:
            raise UserError(f"{flag_of(name)}={given} is not known: {values[given]}")
    check_limits(config)
    return config


def run_script(main: Callable[[Any], None]) -> None:
    """Run a script: `main(config: Config)` with the parsed command line. A user's error ends it with one sentence.

    Exit code 2: a setting that is not possible, an extra that is not installed. 1: a file or folder that fails, a loss
    that is not finite. 130: Ctrl-C.
    """
    fix_folders()
    try:
        main(parse(get_type_hints(main)["config"]))
    except (ValueError, OSError, FloatingPointError, KeyboardInterrupt, ModuleNotFoundError) as error:
        known = not_installed(error.name or "") if isinstance(error, ModuleNotFoundError) else error
        if known is None or sys.flags.dev_mode:  # python -X dev shows the traceback
            raise
        sentence, code = last_words(known)
        print_line(sentence, file=sys.stderr)
        raise SystemExit(code) from None


def refuse_moved(old: str, new: str) -> NoReturn:
    """End with one sentence that names the new place of a command."""
    print_line(f"error: {old} has moved: run python -m {new}, with the same flags", file=sys.stderr)
    sys.exit(2)


def stop_signals() -> list[signal.Signals]:
    """Return the signals that ask to stop. A terminal that closes sends SIGHUP, which nohup has ignored."""
    numbers = [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGQUIT]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    return numbers


@contextmanager
def collect_signals(*numbers: int, react: Callable[[int], None] | None = None) -> Iterator[list[int]]:
    """Yield a list that collects these signals until the block ends; they end nothing and raise nothing.

    react: called with each signal.
    """
    received = []

    def handle(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if react:
            react(number)

    # The handler runs in the main thread between two instructions.
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def last_words(error: BaseException) -> tuple[str, int]:
    """Return what to print of an exception that ends a process, and the exit code."""
    if isinstance(error, SystemExit):  # whoever raised it has said why
        return "", error.code if isinstance(error.code, int) else 1
    if isinstance(error, ModuleNotFoundError):
        error = not_installed(error.name or "") or error
    expected = isinstance(error, ValueError | OSError | FloatingPointError | KeyboardInterrupt)
    if not expected or sys.flags.dev_mode:  # python -X dev shows the traceback
        return "".join(traceback.format_exception(error)), 1
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", 130  # shells report 128 + SIGINT
    if isinstance(error, OSError) and error.filename:
        return f"error: {error.filename}: {error.strerror}", 1
    if isinstance(error, OSError | FloatingPointError):
        return f"error: {error}", 1
    if isinstance(error, UserError):
        return f"error: {error}", 2
    # Any other ValueError is a defect: show its place.
    where = traceback.extract_tb(error.__traceback__)[-1]  # the innermost frame
    return f"error: {error} ({where.filename}:{where.lineno})", 2
