"""A user's error is one sentence with exit code 2; any other ValueError names its place."""

import subprocess
import sys

import pytest

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


@pytest.mark.parametrize(
    ("module", "extras", "first"),
    [
        ("starlette.applications", "serve", "serve"),
        ("pydantic", "lab or serve", "lab"),  # tracks.lab.run, or scripts.chat_web
        ("openai", "teacher or dev", "teacher"),
    ],
)
def test_a_package_of_extras_that_is_not_installed(module, extras, first) -> None:
    name = module.partition(".")[0]
    code, sentence = end_of(f"sys = __import__('sys'); sys.modules['{name}'] = None; import {module}")
    assert code == 2
    assert sentence.startswith(
        f"error: {name} is not installed: add the extra {extras}, by `uv sync --extra={first}` or"
    )
    assert sentence.count("\n") == 1


def test_a_package_that_no_extra_has() -> None:
    code, traceback = end_of("import no_such_module")
    assert code == 1
    assert "Traceback" in traceback
