"""The card as data: values as text, the order of stages, headline metrics, damage, what time and money went where."""

import re

import pytest
from outcomes import ENVIRONMENT, leave

from nanochat.log import format_value, terminal_table
from nanochat.report.card import markdown, read_card
from nanochat.stages import STAGES, Stage


def render(base, stages=STAGES) -> str:
    """Return the Markdown of the outcomes below a folder."""
    return markdown(read_card(base, stages), "report")


def headings(card: str) -> list[str]:
    return re.findall(r"^## (.*)", card, re.MULTILINE)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2048, "2048"),
        (9999, "9999"),
        (10_000, "10,000"),
        (-41_839, "-41,839"),
        (0.2, "0.2000"),
        (-1.0, "-1.0000"),
        (None, "None"),
        ("", ""),
        (True, "True"),
        ("two\nlines", "two lines"),
        ({"value": 0.0155}, "0.0155"),
        ({"value": 0.0155, "stderr": 0.0021}, "0.0155 ± 0.0021"),
        ({"value": 0.0155, "stderr": float("nan")}, "0.0155"),
        ({"value": 0.2107, "format": ".2%"}, "21.07%"),
        ({"value": float("nan"), "format": ",d"}, "nan"),
        ({"value": None, "stderr": None, "format": ".4f"}, "-"),  # the same in JSON
        ({"value": 19176.264, "format": ".2f", "unit": "MiB"}, "19176.26MiB"),
        ({"value": 4.749890e16, "format": ".6e"}, "4.749890e+16"),
    ],
)
def test_values_as_the_card_prints_them(value, text):
    assert format_value(value) == text


def test_stages_in_order_unknown_ones_last_and_none_lost(tmp_path):
    for stage, tag in [("zebra", "x"), ("tok_eval", "default"), ("ant", "x"), ("tok_train", "b"), ("tok_train", "a")]:
        leave(tmp_path, stage, tag)
    names = ["Tokenizer training (a)", "Tokenizer training (b)", "Tokenizer evaluation", "ant", "zebra"]
    assert headings(render(tmp_path)) == ["Environment", *names, "Summary"]
    card = read_card(tmp_path, tag="a")
    assert [section.title for section in card.sections] == ["Tokenizer training"]


def test_tables(tmp_path):
    columns = [["Text Type", ""], ["Bytes", "d"], ["GPT-2 Ratio", ".2f"], ["Relative Diff %", "+.1%"]]
    rows = [
        ["news", 1819, 4.5025, 0.0817],
        ["korean", 893, 2.453, -0.986],
        ["not | here:\nno network", None, None, None],
    ]
    table = {"title": "Comparison with GPT-2", "columns": columns, "rows": rows}
    leave(tmp_path, "tok_eval", card=[], metrics={}, tables=[table, table])
    markdown = """### Comparison with GPT-2

| Text Type | Bytes | GPT-2 Ratio | Relative Diff % |
|-----------|-------|-------------|-----------------|
| news | 1819 | 4.50 | +8.2% |
| korean | 893 | 2.45 | -98.6% |
| not \\| here: no network | - | - | - |
"""
    section = f"## Tokenizer evaluation\ntimestamp: 2025-10-24 01:20:23\n\n{markdown}\n{markdown}\n\n## Summary\n"
    assert section in render(tmp_path)
    assert terminal_table(table).splitlines()[1:3] == [
        "Text Type  Bytes  GPT-2 Ratio  Relative Diff %",
        "news        1819         4.50            +8.2%",
    ]


def test_the_summary_of_headline_metrics(tmp_path):
    stages = (
        *STAGES[:4],
        Stage("base_eval", "Base model evaluation", column="BASE", headline=("CORE", "GSM8K")),
        Stage("mid_eval", "Chat evaluation mid", column="MID", headline=("GSM8K",)),
    )
    leave(tmp_path, "base_eval", "old", metrics={"CORE": 0.1}, timestamp="2025-10-24T01:00:00.000+00:00")
    leave(tmp_path, "base_eval", "new", metrics={"CORE": {"value": 0.0155, "stderr": 0.002}, "other": 1})
    leave(tmp_path, "mid_eval", metrics={"GSM8K": 0.0023})
    table = """| Metric          | BASE     | MID      |
|-----------------|----------|----------|
| CORE            | 0.0155 ± 0.0020 | -        |
| GSM8K           | -        | 0.0023   |
"""
    assert table in render(tmp_path, stages=stages)


def test_a_damaged_outcome_is_named(tmp_path, capsys):
    leave(tmp_path, "tok_eval")
    leave(tmp_path).write_text('{"stage": ')
    leave(tmp_path, "bake", tables=[{"title": "no columns"}])
    card = render(tmp_path)
    assert headings(card) == ["Environment", "Tokenizer training", "Tokenizer evaluation", "bake", "Summary"]
    assert "tok_train/default/outcome.json is damaged: Expecting value" in card
    assert "bake/default/outcome.json is damaged: " in card
    assert str(tmp_path) not in card
    errors = capsys.readouterr().err.splitlines()
    assert [line.split(" is damaged")[0] for line in errors] == [
        "report: tok_train/default/outcome.json",
        "report: bake/default/outcome.json",
    ]


def test_only_damaged_outcomes(tmp_path):
    leave(tmp_path).write_text("")
    card = render(tmp_path)
    assert "### Hardware\n- Recorded: no\n" in card  # nothing of this machine
    assert "Run started" not in card


def test_a_stage_of_another_commit_or_machine_says_so(tmp_path):
    leave(tmp_path)
    git = {"Branch": "main", "Commit": "0000000 (clean)", "Message": "Before"}
    early = {"timestamp": "2025-10-23T00:00:00.000+00:00"}
    leave(tmp_path, "tok_eval", environment=ENVIRONMENT | {"Git Information": git}, **early)
    remarks = [section.remark for section in read_card(tmp_path).sections]
    where = "104 cores (104 logical), 1007.4 GB, 8x NVIDIA H100 80GB HBM3"
    assert remarks == ["", f"Of another commit or machine: 0000000 (clean), {where}"]


def test_scores_are_drawn_and_parameters_are_not(tmp_path):
    score = {"value": 0.5, "stderr": 0.1, "format": ".2f"}
    leave(tmp_path, "base_eval", metrics={"CORE metric": score, "piqa": score | {"stderr": float("nan")}, "Step": 3})
    leave(tmp_path, "base_loss", metrics={"val bpb": score})
    loss, scores = read_card(tmp_path).sections
    assert not loss.plots
    [(name, picture)] = scores.plots.items()
    assert name == "base_eval-default-tasks.svg"
    assert [part in picture for part in (">piqa<", ">0.50 ± 0.10<", ">0.50<", "Step")] == [True, True, True, False]
    assert picture.count('class="whisker"') == 1


def test_shares_of_time_and_money(tmp_path):
    for stage, tag, seconds in [("tok_train", "a", 900.0), ("tok_train", "b", 900.0), ("zebra", "x", 1800.0)]:
        leave(tmp_path, stage, tag, seconds=seconds)
    card = read_card(tmp_path)
    ran = [(share.title, share.part, share.dollars) for share in card.shares if share.seconds is not None]
    titles = ["Tokenizer training (a)", "Tokenizer training (b)", "zebra"]
    assert ran == list(zip(titles, [0.25, 0.25, 0.5], [6.0, 6.0, 12.0], strict=True))
    assert [share.title for share in card.shares][-1] == "zebra"
    assert (card.seconds, card.dollars) == (3600.0, 24.0)
    leave(tmp_path, "ant", seconds=3600.0, environment={})  # its price is not known
    card = read_card(tmp_path)
    assert card.dollars is None
    assert "| ant | 1h00m | 50.0% | - |\n" in render(tmp_path)
    assert "Total cost" not in render(tmp_path)
