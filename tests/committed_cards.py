"""Committed report cards beside those that today's code writes: what only one of the two has."""

import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from conftest import ROOT
from outcomes import card_fields

from bench.evidence import AWAITING, CARDS
from nanochat.paths import read_json
from tasks import TASKS

# They depend on the machine, on the data that is there, on whether a run was resumed, and on whether a clock ends it:
# the last three are figures of a planned horizon, which tests/report/test_golden.py has.
MAY_DIFFER = {
    *("Not shown", "GPU Memory", "CUDA Version", "Hourly Rate", "Dollars", "MFU %", "Tokens per second"),
    *("aqua_train_examples", "aqua_val_examples"),
    *("Tokens : Params ratio", "Calculated number of iterations", "Number of training tokens"),
}
LABELS = read_json(ROOT / "tests/golden/card.json")["Base model evaluation"][3:]  # of CORE's tasks


def fields_to_compare(names: Iterable[str], settings: set[str]) -> set[str]:
    """Return the fields that the code decides: no rows of tables, no settings, no names of tasks."""
    plain = {
        re.sub(r" \(\d+ of \d+ tasks\)$", "", name) for name in names if " | row " not in name and name[:4] != "row "
    }
    return {name for name in plain - settings - MAY_DIFFER - {*LABELS, *TASKS} if not name.startswith("world_")}


def differences(committed: str, made: str, base: Path) -> dict[str, set[str]]:
    """Return what only one of two cards has, by section; "sections" if they have others, or another order.

    made: today's, of a run in `base`. A setting is shown when it is used, so settings of today are not compared: one
    that no command has any more is a difference.
    """
    settings = set()
    for path in base.glob("*/default/outcome.json"):
        settings |= set(read_json(path)["config"])
    ours, theirs = card_fields(made), card_fields(committed)
    found = {"sections": {*ours} ^ {*theirs}} if [*ours] != [*theirs] else {}
    for section in ours.keys() & theirs.keys():
        found[section] = fields_to_compare(ours[section], settings) ^ fields_to_compare(theirs[section], settings)
    return {section: names for section, names in found.items() if names or section == "sections"}


def check_committed(name: str, made: Path, base: Path) -> None:
    """Assert that a committed card and today's have the same sections, fields and pictures.

    A card in AWAITING is to differ: an entry that has done its work is a failure too. made: the Markdown file.
    """
    card = next(card for card in CARDS if card.name == name)
    committed = ROOT / card.path
    found = differences(committed.read_text(encoding="utf-8"), made.read_text(encoding="utf-8"), base)
    for picture in re.findall(r"\]\((.*?\.svg)\)", committed.read_text(encoding="utf-8")):
        assert (committed.parent / picture).is_file(), f"{card.path} shows {picture}, which is not there"
    if name in AWAITING:
        assert found, f"{card.path} is today's: remove {name} from AWAITING in bench/evidence.py"
        return
    if found:
        pytest.fail(f"{card.path} is not today's, run bash runs/evidence.sh --only={name}: {found}")
