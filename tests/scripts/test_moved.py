"""Commands that moved: the old name is answered by one sentence that names the new one."""

import re
import runpy
import sys

import pytest
from conftest import ROOT

MOVED = sorted(path.stem for path in (ROOT / "scripts/moved").glob("*.py"))


def test_old_names_are_there() -> None:
    assert {"golf_train", "chat_dpo", "lab", "export"} <= set(MOVED)


@pytest.mark.parametrize("name", MOVED)
def test_an_old_command_names_the_new_one(name, capsys, monkeypatch) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--tag=mine"])
    with pytest.raises(SystemExit) as end:
        runpy.run_module(f"scripts.{name}", run_name="__main__")
    sentence = rf"error: scripts\.{name} has moved: run python -m tracks\.\w+\.\w+, with the same flags\n"
    assert end.value.code == 2
    assert re.fullmatch(sentence, capsys.readouterr().err)
