"""A lab on one rank and on two gloo ranks under torchrun: the same records and the same card, but for rounding."""

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from nanochat.paths import read_json
from tracks.lab.tests.made_labs import BaseLab, write_sbatch

TOLERANCE = 1e-4  # of losses, gradient norms and bits per byte, as in tests/test_run.py
OF_QUOTIENTS = 5e-3  # of p values and intervals, which are quotients of small differences
NUMBER = re.compile(r"[-+]?\d[\d.]*(e-?\d+)?")  # in a sentence, where it is rounded
CHANGES = {
    "seeds = [1, 2, 3]": "seeds = [1, 2]",
    "--no-compile": "--no-compile --eval-every=0",
    'same = "--matrix-lr=0.01 --weight-decay=0"\n': "",
    '"bpb", "world_people"': '"bpb"',
    "[sampling]\nmax_problems = 4\n": "",
}


def numbers(value: Any, place: str = "") -> Iterator[tuple[str, float]]:
    """Yield the numbers in a document of JSON with their places; texts without theirs are a part of the place."""
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield from numbers(part, f"{place}/{name}")
    elif isinstance(value, list):
        for number, part in enumerate(value):
            yield from numbers(part, f"{place}/{number}")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield place, value
    else:
        yield f"{place}={NUMBER.sub('#', str(value))}", 0.0


@pytest.fixture(scope="module")
def labs(tmp_path_factory: pytest.TempPathFactory, quick: str) -> dict[int, BaseLab]:
    """The lab on one rank and on two, as a job array without a machine: a rank needs no GPU there."""
    folder = tmp_path_factory.mktemp("labs")
    write_sbatch(folder / "bin")
    made = {}
    for ranks in (1, 2):
        made[ranks] = BaseLab(folder / f"{ranks}", quick, CHANGES)
        path = os.pathsep.join([str(folder / "bin"), os.environ["PATH"]])
        code, text = made[ranks].lab("--engine=slurm", f"--gpus={ranks}", PATH=path)
        assert code == 0, text
    return made


def test_both_were_trained_as_asked(labs: dict[int, BaseLab]) -> None:
    for ranks, lab in labs.items():
        for path in lab.folder.glob("base_train/*/outcome.json"):
            assert read_json(path)["metrics"]["DDP world size"] == ranks
        assert len(list(lab.folder.glob("base_train/*/outcome.json"))) == 4


def test_records_are_the_same(labs: dict[int, BaseLab]) -> None:
    for path in labs[1].folder.glob("base_train/*"):
        one, two = (lab.metrics(path.name) for lab in labs.values())
        assert [record.keys() for record in one] == [record.keys() for record in two]
        for first, second in zip(one, two, strict=True):
            assert first == pytest.approx(second, abs=TOLERANCE), path.name


def test_cards_are_the_same(labs: dict[int, BaseLab]) -> None:
    one, two = (read_json(lab.folder / "lab/lab/outcome.json") for lab in labs.values())
    for part in ("tables", "metrics", "curves"):
        cells = []
        for record in (one, two):
            rows = record[part]
            if part == "tables":  # time is not a finding
                rows = [table for table in rows if table["title"] != "Cost"]
            cells.append(dict(numbers(rows)))
        assert len(cells[0]) > 3
        assert cells[0].keys() == cells[1].keys()
        assert cells[0] == pytest.approx(cells[1], abs=OF_QUOTIENTS)
    verdicts = [read_json(lab.folder / "lab/lab/recommendation.json")["recommendation"] for lab in labs.values()]
    assert [[one["mix"], one["verdict"]] for one in verdicts[0]] == [
        [two["mix"], two["verdict"]] for two in verdicts[1]
    ]
