"""`--help` of the tracks' commands answers at once, as that of the trunk's."""

import pytest
from conftest import ROOT

WITH_FLAGS = [
    path.relative_to(ROOT).as_posix().removesuffix(".py").replace("/", ".")
    for path in sorted((ROOT / "tracks").glob("*/*.py"))
    if "run_script(main)" in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("command", WITH_FLAGS)
def test_help_imports_nothing_heavy(command, without_heavy) -> None:
    assert "(default: " in without_heavy("-m", command, "--help").stdout
