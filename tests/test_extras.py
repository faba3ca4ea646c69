"""A package that is missing names the extras that install it; one that no extra has ends in a traceback."""

import pytest
from test_errors import end_of


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
