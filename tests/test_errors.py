"""A user's error is one sentence with exit code 2; any other ValueError names its place."""

import subprocess
import sys

PROGRAM = """
from dataclasses import dataclass
from nanochat.config import options, run_script
from nanochat.errors import UserError
@options()
class Config:
    pass
def main(config: Config) -> None:
    {}
run_script(main)
"""


def end_of(statement: str) -> tuple[int, str]:
    done = subprocess.run([sys.executable, "-c", PROGRAM.format(statement)], capture_output=True, text=True)
    return done.returncode, done.stderr


def test_whose_error_it_is() -> None:
    assert end_of("raise UserError('write --depth=4')") == (2, "error: write --depth=4\n")
    code, sentence = end_of("int('x')")
    assert code == 2
    assert sentence.startswith("error: invalid literal for int() with base 10: 'x' (<string>:")
