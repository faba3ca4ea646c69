import json
import re
import sys
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Literal

import pytest
from conftest import ROOT, each_row

from nanochat.config import Count, option, options, parse, run_script
from nanochat.errors import UserError


@options("oven")
class Config:
    """Bake a cake."""

    max_chars: Count = option(2_000_000_000, "how much to read", group="data")
    data: str = option("auto", "where from", group="data", short="-d")
    heat: float = option(0.5, "how hot")
    fan: bool = option(False, "with air")
    size: Count | None = option(None, "None: as the parent")
    racks: Count = option(-1, "-1: as many as there are", least=1)
    shape: Literal["round", "square"] = option("round", "of the tin")

    def __post_init__(self) -> None:
        if self.heat > 1:
            raise UserError(f"--heat has to be at most 1, not {self.heat}")


def refusal(*words: str):
    with pytest.raises(ValueError) as refused:
        parse(Config, words)
    message = str(refused.value)
    assert "\n" not in message
    assert not set(message) & set("│─╭╰")
    return message


@pytest.mark.parametrize("spelling", ["--max-chars", "--max_chars"])
def test_counts_and_both_spellings(spelling) -> None:
    for number in ("2e4", "20000", "20_000"):
        assert parse(Config, [f"{spelling}={number}"]).max_chars == 20_000
        assert parse(Config, [spelling, number]).max_chars == 20_000
    for number in ("2.5", "2,5", "many", "", "nan", "inf", "0x10"):
        assert re.match("--max-chars: .*is not a whole number", refusal(f"{spelling}={number}")), number


def test_values_of_all_kinds_and_unknown_flags() -> None:
    assert parse(Config, []) == Config()
    for words in ("-d base", "-d=base", "--data=base", "--data base"):
        assert parse(Config, words.split()) == Config(data="base")
    config = parse(Config, ["--fan", "--heat=1e-3", "--size", "3e2", "--shape=square", "--data", "a b"])
    assert config == Config(fan=True, heat=0.001, size=300, shape="square", data="a b")
    assert parse(Config, ["--size=None"]).size is None
    assert parse(Config, ["--max-chars=9007199254740993"]).max_chars == 2**53 + 1  # which no float is
    assert parse(Config, ["--", "--heat=0.25"]).heat == 0.25  # a leading double dash is dropped
    assert refusal("--max-char=3") == "unknown argument --max-char, did you mean --max-chars?"
    assert refusal("--hea_t", "1") == "unknown argument --hea_t, did you mean --heat?"
    assert refusal("--zzzz") == "unknown argument --zzzz, see --help."
    assert refusal("extra").startswith("unknown argument extra")
    for case in ("--heat=warm", "--data", "--shape=oval", f"--heat={'x' * 300}"):
        assert case.split("=")[0] in refusal(case)
    assert "--heat has to be 0 or more and below inf, not nan" in refusal("--heat=nan")


@pytest.mark.parametrize("number", ["1/0", "4/2", "1.5", "inf", "nan", "two"])
def test_a_count_is_a_whole_number(number) -> None:
    assert parse(Config, ["--racks=2e1"]).racks == parse(Config, ["--racks=2_0"]).racks == 20
    assert refusal(f"--racks={number}") == f"--racks: {number} is not a whole number, write it like 20000 or 2e4"


def test_limits_are_kept_but_for_the_default() -> None:
    assert [parse(Config, [f"--racks={number}"]).racks for number in (-1, 1, 7)] == [-1, 1, 7]
    for number in (0, -2):
        assert refusal(f"--racks={number}") == f"--racks has to be 1 or more, not {number}"


@options("tray")
class Small(Config):
    """Bake a small cake."""

    heat = 0.4
    fan = option(True, "with less air")
    racks: Count | None = None
    trays: Count = option(2, "how many")
    time: float = option(1.0, "how long", group="oven")


def test_a_subclass_changes_defaults_and_keeps_the_rest() -> None:
    found = {one.name: one for one in fields(Small)}
    before = {one.name: one for one in fields(Config)}
    assert list(found) == [*before, "trays", "time"]  # in the same order
    assert (parse(Small, []).heat, parse(Config, []).heat) == (0.4, 0.5)
    assert parse(Small, ["--heat=0.3"]).heat == 0.3
    assert found["heat"].metadata == before["heat"].metadata
    assert found["heat"].type is float
    assert found["fan"].metadata == before["fan"].metadata | {"text": "with less air"}
    assert (parse(Small, []).racks, found["racks"].metadata["least"]) == (None, 1)
    boxes = {name: one.metadata["group"] for name, one in found.items()}
    assert (boxes["max_chars"], boxes["heat"], boxes["trays"], boxes["time"]) == ("data", "oven", "tray", "oven")
    with pytest.raises(ValueError, match="--trays has to be 0 or more, not -1"):
        parse(Small, ["--trays=-1"])
    with pytest.raises(FrozenInstanceError):
        Small().heat = 1.0


def bake(config: Config) -> None:
    if config.size == 8:
        raise KeyboardInterrupt
    if config.size == 7:
        Path("/no such folder/bread").touch()
    if config.size == 6:
        int("minus")  # a defect
    if config.size == 5:
        json.loads("{")  # a defect that a library found
    print(f"{config.size} baked")


# flag | exit code | end of stderr. Defects name their place.
ENDS = r"""
--heat=2 | 2 | error: --heat has to be at most 1, not 2.0
--heatt=1 | 2 | error: unknown argument --heatt, did you mean --heat\?
--size=5 | 2 | decoder.py:[0-9]+[)]
--size=6 | 2 | :[0-9]+[)]
--size=7 | 1 | error: /no such folder/bread: No such file or directory
--size=8 | 130 | interrupted
"""


@each_row("word code said", ENDS)
def test_a_script_ends_with_one_sentence_and_a_code(word, code, said, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["bake", word])
    with pytest.raises(SystemExit) as stop:
        run_script(bake)
    assert stop.value.code == int(code)
    assert re.search(rf"{said}\n$", capsys.readouterr().err)


def test_dev_mode_shows_the_traceback(python, tmp_path) -> None:
    words = ("-X", "dev", "-m", "scripts.rollouts", f"--tag={'x' * 20}")
    assert "Traceback" in python(*words, code=1, NANOCHAT_BASE_DIR=str(tmp_path)).stderr


SCRIPTS = [f"scripts.{path.stem}" for path in sorted((ROOT / "scripts").glob("[!_]*.py"))]


@pytest.mark.parametrize("script", [*SCRIPTS, "nanochat.report", "nanochat.world"])
def test_help_imports_nothing_heavy(script, without_heavy) -> None:
    assert "(default: " in without_heavy("-m", script, "--help").stdout
