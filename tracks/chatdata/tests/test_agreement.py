"""Agreement with the labels: kappa against values worked out by hand, and the tables of real rows."""

import math
import shlex
from pathlib import Path

import pytest

from bench.evidence import CARDS
from nanochat.config import parse
from nanochat.log import markdown_table
from nanochat.outcome import Outcome
from tracks.chatdata import agreement, labelled
from tracks.chatdata.tests.teachers import completion, teaching


def test_kappa_of_pairs_worked_out_by_hand() -> None:
    # 20 yes-yes, 5 yes-no, 10 no-yes, 15 no-no: agreed 0.7, by chance 0.5, kappa 0.4.
    pairs = [("yes", "yes")] * 20 + [("yes", "no")] * 5 + [("no", "yes")] * 10 + [("no", "no")] * 15
    value, error = agreement.kappa(pairs)
    assert value == pytest.approx(0.4)
    assert error == pytest.approx(math.sqrt(0.7 * 0.3 / 50) / 0.5)
    assert agreement.kappa([("a", "a"), ("b", "b")]).value == 1
    assert math.isnan(agreement.kappa([("a", "a")]).value)


def test_tables_count_each_half() -> None:
    rows = [
        {"half": half, "stratum": stratum, "label": label, "topic": "daily"}
        for half in labelled.HALVES
        for stratum in ("any", "health")
        for label in ("daily", "medical")
    ]
    scores = agreement.score_table(rows)["rows"]
    assert [row[:3] for row in scores] == [
        ("tune", "all", 4),
        ("tune", "any", 2),
        ("test", "all", 4),
        ("test", "any", 2),
    ]
    assert scores[0][3].startswith("0.5000 ± ")
    confused = agreement.confusion_table([*rows, rows[0] | {"topic": "none"}], "tune")
    assert confused["rows"][0] == ["daily", 2, 0, 0, 0, 0, 1]
    assert confused["rows"][3][:2] == ["medical", 2]
    assert "none" in markdown_table(confused)


def test_the_tag_of_the_card_is_that_of_the_comparison() -> None:
    [card] = [card for card in CARDS if card.name == "chatdata"]
    assert card.tag == agreement.tag_of(parse(agreement.Config, shlex.split(card.commands[-1])[3:]))


def test_the_rules_agree_with_the_labels_of_the_mirror(here, mirror, base: Path) -> None:
    printed = here("tracks.chatdata.agreement", NANOCHAT_HUB=str(mirror)).stdout
    assert printed.count("Half t") == 2
    assert printed.count("| all ") == 2
    accuracies = [float(line.split("|")[4].split("±")[0]) for line in printed.splitlines() if "| all " in line]
    assert min(accuracies) > 0.7  # card.md has the figures
    record = Outcome.load(base / "agreement" / "rules" / "outcome.json")
    assert (record.metrics["Topics by"], record.metrics["Rows"]) == ("rules", 300)
    assert [table["title"].partition(":")[0] for table in record.tables] == [
        "Agreement with labels of a language model",
        "Half tune",
        "Half test",
    ]


def test_a_teacher_can_be_compared_too(here, mirror, monkeypatch) -> None:
    rows = labelled.labelled_rows()[:4]
    monkeypatch.setattr(labelled, "labelled_rows", lambda: rows)
    with teaching(lambda text: completion("It is small talk.\nVerdict: daily")) as served:
        printed = here("tracks.chatdata.agreement", *served.flags, NANOCHAT_HUB=str(mirror)).stdout
        assert len(served.asked) == 4
    assert "teacher: 4 of 4 rows" in printed
