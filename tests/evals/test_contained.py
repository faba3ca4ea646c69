"""The inside of the sandbox: its table of system calls. tests/attacks runs hostile programs."""

from contain import NEEDS_SANDBOX

from bench.hostile_programs import C
from nanochat.evals import contained
from nanochat.evals.sandbox import Limits, run_program

QUICK = Limits(seconds=20.0, cpu_seconds=2)


@NEEDS_SANDBOX
def test_each_call_has_its_result() -> None:
    """All rows at once: one call that ends the process each would hide the others."""
    rows = [row for row in contained.refusals() if row[0] != "clone"]
    for result in {*contained.CALLS} - {contained.KILL_PROCESS}:
        calls = [(number, value) for _, own, number, values in rows if own == result for value in values or [0]]
        verdict = run_program(
            f"{C}for number, value in {calls}:\n    ctypes.set_errno(0)\n    c.syscall(number, 1, value, 0, 0, 0, 0)\n"
            f"    assert ctypes.get_errno() == {result & 0xFFFF}, number",
            QUICK,
        )
        assert verdict.passed, verdict
    killed = [number for _, own, number, _ in rows if own == contained.KILL_PROCESS]
    verdict = run_program(
        f"{C}import os\nfor number in {killed}:\n    if not os.fork():\n        c.syscall(number, 0, 0, 0, 0, 0, 0)\n"
        "        os._exit(0)\n    assert os.waitstatus_to_exitcode(os.wait()[1]) == -31, number",
        QUICK,
    )
    assert verdict.passed, verdict
