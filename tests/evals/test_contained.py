"""The inside of the sandbox: its table of system calls. tests/attacks runs hostile programs."""

import errno

from contain import NEEDS_SANDBOX

from bench.hostile_programs import C
from nanochat.evals import contained
from nanochat.evals.sandbox import Limits, run

QUICK = Limits(seconds=20.0, cpu_seconds=2)


@NEEDS_SANDBOX
def test_each_call_has_its_result():
    """All rows at once: one call that ends the process each would hide the others."""
    rows = [row for row in contained.refusals() if row[0] != "clone"]
    for error in (errno.EPERM, errno.ENOSYS, 0):
        refused = [row for row in rows if row[1] == contained.FAIL_WITH | error]
        calls = [(number, value) for _, _, number, values in refused for value in values or [0]]
        verdict = run(
            f"{C}for number, value in {calls}:\n    ctypes.set_errno(0)\n    c.syscall(number, 1, value, 0, 0, 0, 0)\n"
            f"    assert ctypes.get_errno() == {error}, number",
            QUICK,
        )
        assert calls and verdict.passed, verdict
    killed = [number for _, result, number, _ in rows if result == contained.KILL_PROCESS]
    verdict = run(
        f"{C}import os\nfor number in {killed}:\n    if not os.fork():\n        c.syscall(number, 0, 0, 0, 0, 0, 0)\n"
        "        os._exit(0)\n    assert os.waitstatus_to_exitcode(os.wait()[1]) == -31, number",
        QUICK,
    )
    assert killed and verdict.passed, verdict
