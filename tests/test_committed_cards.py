"""report/cpu.md beside the card of a small run at its scale; report.md is compared in tests/test_end_to_end.py."""

from pathlib import Path

import pytest
from committed_cards import check_committed, differences
from conftest import ROOT
from corpora import write_letters
from outcomes import leave
from test_end_to_end import fewer

from bench.evidence import AWAITING, CARDS, PLANNED
from nanochat.report.card import markdown, read_card


@pytest.mark.timeout(600)
def test_the_card_of_a_run_on_real_text(speedrun, base, tmp_path: Path) -> None:
    fewer(speedrun.home)
    text = write_letters(tmp_path / "letters", 200)
    speedrun.run("--scale=cpu", "--depth=1", "--seconds=2", f"--data={text}", cwd=tmp_path)
    check_committed("cpu", speedrun.home / "report.md", base)


def test_a_section_a_field_and_a_picture_that_only_one_card_has_are_found(base) -> None:
    leave(base, metrics={"train_time": 167.3, "num_special_tokens": 9})
    leave(base, "base_train", card=["vocab_size"], metrics={"Tokens seen": 9})
    made = markdown(read_card(base), "report")
    assert differences(made, made, base) == {}
    # A setting that is only shown where it is used, and figures of another machine.
    assert (
        differences(made.replace("- vocab_size: 65536\n", "").replace("- GPUs: ", "- MFU %: 1\n- GPUs: "), made, base)
        == {}
    )
    old = made.replace("- train_time: ", "- old_setting: 1\n\n![Old](old.svg)\n- time: ")
    assert differences(old, made, base) == {"Tokenizer training": {"old_setting", "picture Old", "time", "train_time"}}
    section = made.partition("\n## Base model training")[0]
    assert differences(section, made, base)["sections"] == {"Base model training", "Summary"}
    assert differences(made.replace("## Base model training", "## Other"), made, base)["sections"] == {
        "Base model training",
        "Other",
    }


def test_cards_that_wait_are_known_and_have_a_reason() -> None:
    assert {card.name for card in PLANNED} <= AWAITING.keys() <= {card.name for card in [*CARDS, *PLANNED]}
    assert all(len(reason) > 20 for reason in AWAITING.values())
    page = (ROOT / "docs/runs.md").read_text(encoding="utf-8")
    assert "`AWAITING`" in page
