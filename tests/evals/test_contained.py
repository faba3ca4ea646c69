"""The inside of the sandbox: its tables of system calls. tests/attacks runs hostile programs."""

import errno
import platform

import pytest
from contain import NEEDS_SANDBOX
from usual_programs import USUAL, call_name, missed_calls

from bench.hostile_programs import C
from nanochat.evals import contained
from nanochat.evals.sandbox import Limits, run_program

QUICK = Limits(seconds=20.0, cpu_seconds=2)
LAST_CALL = 500  # no machine has a call with a higher number yet
PROBES = {
    335,
    336,
}  # on x86_64 the kernel's probes make them, no filter sees them, and a program that does so is killed


def held(program: str) -> None:
    verdict = run_program(program, QUICK)
    assert verdict.passed, verdict


def test_the_tables_name_each_call_once() -> None:
    tables = [*contained.ALLOWED.values(), *contained.ANSWERED.values()]
    for column in (1, 2):
        rows = [row.split() for table in tables for row in table.replace("\n", "|").split("|") if row.strip()]
        numbers = [row[column] for row in rows if row[column] != "-"]
        assert len({*numbers}) == len(numbers)
        assert all(len(row) == 3 for row in rows)
    names = [name for table in tables for name in contained.numbers(table)]
    assert {*contained.VALUES, *contained.WITHOUT} <= {*names}


@NEEDS_SANDBOX
def test_a_call_that_is_not_in_the_tables_fails_and_others_answer_as_they_say() -> None:
    tables = [*contained.ALLOWED.values(), *contained.ANSWERED.values()]
    known = {number for table in tables for number in contained.numbers(table).values()}
    refused = sorted({*range(LAST_CALL)} - known - PROBES)
    wanted = [(number, errno.EPERM) for number in refused]
    for error, table in contained.ANSWERED.items():
        wanted += [(number, error) for number in contained.numbers(table).values()]
    held(
        f"{C}for number, wanted in {wanted}:\n    ctypes.set_errno(0)\n    c.syscall(number, -1, 0, 0, 0, 0, 0)\n"
        "    assert ctypes.get_errno() == wanted, number"
    )
    if platform.machine() == "x86_64":  # the second set of numbers ends the process
        held(
            f"{C}import os\nif not os.fork():\n    c.syscall(0x40000000 + 39)\n    os._exit(0)\n"
            "assert os.waitstatus_to_exitcode(os.wait()[1]) == -31"
        )


@NEEDS_SANDBOX
def test_of_some_calls_only_some_uses_are_allowed() -> None:
    numbers = {name: number for rows in contained.ALLOWED.values() for name, number in contained.numbers(rows).items()}
    for name, (argument, values) in contained.VALUES.items():
        other = sorted({*range(64), *range(1024, 1040), *range(0x5400, 0x5480)} - {*values})
        held(
            f"{C}for value in {other}:\n    ctypes.set_errno(0)\n    words = [-1] * 6\n    words[{argument}] = value\n"
            f"    c.syscall({numbers[name]}, *words)\n    assert ctypes.get_errno() == 1, value"
        )
    for name, (argument, bits) in contained.WITHOUT.items():
        single = [1 << place for place in range(32) if bits >> place & 1]
        assert single
        held(
            f"{C}for bit in {single}:\n    ctypes.set_errno(0)\n    words = [0] * 6\n    words[{argument}] = bit\n"
            f"    c.syscall({numbers[name]}, *words)\n    assert ctypes.get_errno() == 1, bit"
        )


@NEEDS_SANDBOX
@pytest.mark.parametrize("name", USUAL)
def test_a_usual_program_runs_and_misses_no_call(name) -> None:
    missed = {call_name(number) for number in missed_calls(USUAL[name])}
    assert not missed, f"add to contained.ALLOWED: {', '.join(sorted(missed))}"
    held(USUAL[name])


@NEEDS_SANDBOX
def test_a_missed_call_is_named() -> None:
    missing = missed_calls("import socket\ntry: socket.socket()\nexcept OSError: pass")
    assert missing == {{"x86_64": 41, "aarch64": 198}[platform.machine()]}
