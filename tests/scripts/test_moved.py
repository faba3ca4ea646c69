"""Commands that moved: the old name is answered by one sentence that names the new one."""

import re
import runpy
import sys

import pytest
from conftest import ROOT

MOVED = sorted(
    f"{package}.{path.stem}" for package in ("scripts", "bench") for path in (ROOT / package / "moved").glob("*.py")
)


def test_old_names_are_there() -> None:
    assert {"scripts.golf_train", "scripts.chat_dpo", "scripts.lab", "scripts.export", "bench.puzzles"} <= set(MOVED)


@pytest.mark.parametrize("name", MOVED)
def test_an_old_command_names_the_new_one(name, capsys, monkeypatch) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--tag=mine"])
    with pytest.raises(SystemExit) as end:
        runpy.run_module(name, run_name="__main__")
    sentence = rf"error: {re.escape(name)} has moved: run python -m (tracks\.\w+|bench)\.\w+, with the same flags\n"
    assert end.value.code == 2
    assert re.fullmatch(sentence, capsys.readouterr().err)
