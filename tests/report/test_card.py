"""The card as data: values as text, the order of stages, headline metrics, damage, what time and money went where."""

import html
import json
import re

import pytest
from markdown_it import MarkdownIt
from outcomes import leave, sections

from nanochat.errors import UserError
from nanochat.log import format_value
from nanochat.paths import write_json
from nanochat.report.card import hourly_rate, markdown, read_card
from nanochat.report.html import html_page


def render(base):
    """Return the Markdown of the outcomes below a folder."""
    return markdown(read_card(base), "report")


VALUES = r"""
2048 → 2048
9999 → 9999
10_000 → 10,000
-41_839 → -41,839
0.2 → 0.2000
-1.0 → -1.0000
None → None
"" →
True → True
"two\nlines" → two lines
{"value": 0.0155} → 0.0155
{"value": 0.0155, "stderr": 0.0021} → 0.0155 ± 0.0021
{"value": 0.0155, "stderr": float("nan")} → 0.0155
{"value": 0.2107, "format": ".2%"} → 21.07%
{"value": float("nan"), "format": ",d"} → nan
{"value": None, "stderr": None, "format": ".4f"} → -
{"value": 19176.264, "format": ".2f", "unit": "MiB"} → 19176.26MiB
{"value": 4.749890e16, "format": ".6e"} → 4.749890e+16
"""


@pytest.mark.parametrize("case", VALUES.strip().splitlines())
def test_values_as_the_card_prints_them(case) -> None:
    value, text = case.split(" →")
    assert format_value(eval(value)) == text.strip()


def test_stages_in_order_unknown_ones_last_and_none_lost(tmp_path) -> None:
    for stage, tag in [("zebra", "x"), ("tok_eval", "default"), ("ant", "x"), ("tok_train", "b"), ("tok_train", "a")]:
        leave(tmp_path, stage, tag)
    names = ["Tokenizer training (a)", "Tokenizer training (b)", "Tokenizer evaluation", "ant", "zebra"]
    assert list(sections(render(tmp_path))) == ["Environment", *names, "Summary"]
    card = read_card(tmp_path, tag="a")
    assert [share["title"] for share in card["summary"]["shares"]] == ["Tokenizer training"]
    card = read_card(tmp_path, tag="b,x")
    assert [share["title"] for share in card["summary"]["shares"]] == ["Tokenizer training", "ant", "zebra"]
    with pytest.raises(UserError, match=r"^--tag=a,c: no stage has left an outcome with the tag c$"):
        read_card(tmp_path, tag="a,c")


def test_tables(tmp_path) -> None:
    columns = [["Text Type", ""], ["Bytes", "d"], ["GPT-2 Ratio", ".2f"], ["Relative Diff %", "+.1%"]]
    rows = [["news", 1819, 4.5025, 0.0817], ["not | here:\nno network", None, None, None]]
    table = {"title": "Comparison with GPT-2", "columns": columns, "rows": rows}
    leave(tmp_path, "tok_eval", card=[], metrics={"size": 3}, tables=[table])
    section = render(tmp_path).partition("---\n\n")[2].partition("\n\n## Summary")[0]
    assert (
        section
        == """## Tokenizer evaluation
timestamp: 2025-10-24 01:20:23

- size: 3

### Comparison with GPT-2

| Text Type               | Bytes | GPT-2 Ratio | Relative Diff % |
| ----------------------- | ----- | ----------- | --------------- |
| news                    | 1819  | 4.50        | +8.2%           |
| not \\| here: no network | -     | -           | -               |"""
    )


def test_what_a_model_writes_is_text_and_no_markup(tmp_path) -> None:
    """As CommonMark renders it: no picture is asked for, and signs of sums stay."""
    said = "<img src=https://a.b/p.png> ![x](https://a.b/q.png) 2*3*4 `code` a\\*b [link](https://a.b) ~~no~~ &copy;"
    table = {"title": "Answers", "columns": [["Answer", ""]], "rows": [[said]]}
    leave(tmp_path, "tok_eval", card=["text"], config={"text": [said]}, tables=[table])
    read = MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(render(tmp_path))
    assert not re.search("<(img|em|code|a|s)\\b", read)
    page = html_page(read_card(tmp_path))
    assert said not in page
    for shown in (re.sub("<[^>]*>", "", read), page):
        text = html.unescape(shown)
        assert (text.count(said), text.count(repr([said]))) == (1, 1)  # in the table, and as a setting


def test_what_says_nothing_is_counted(tmp_path) -> None:
    config = {"depth": 3, "clip": 0.0, "sugar": False}
    leave(tmp_path, "bake", config=config, card=[*config], off=["clip", "sugar"], metrics={"size": 3, "MFU %": "n/a"})
    leave(tmp_path, "boil", config=config, card=[*config], metrics={"size": 3})
    found = sections(render(tmp_path))
    hidden = "2 settings at the default that does nothing and 1 figure that this machine does not have"
    assert found["bake"].partition("\n\n")[2].splitlines()[:3] == ["- depth: 3", "- size: 3", f"- Not shown: {hidden}"]
    assert "Not shown" not in found["boil"]
    assert read_card(tmp_path)["stages"][0]["metrics"]["MFU %"] == "n/a"


def test_the_summary_of_headline_metrics(tmp_path) -> None:
    leave(tmp_path, "base_eval", "old", metrics={"CORE metric": 0.1}, timestamp="2025-10-24T01:00:00.000+00:00")
    leave(tmp_path, "base_eval", "new", metrics={"CORE metric": {"value": 0.0155, "stderr": 0.002}, "other": 1})
    leave(tmp_path, "chat_eval_mid", metrics={"GSM8K": 0.0023})
    lines = [line.split() for line in render(tmp_path).partition("## Summary")[2].splitlines()]
    assert "| Metric | BASE | MID | SFT | RL |".split() in lines
    assert "| CORE metric | 0.0155 ± 0.0020 | - | - | - |".split() in lines
    assert "| GSM8K | - | 0.0023 | - | - |".split() in lines


def test_the_newest_is_the_last_to_end_wherever_its_clock_stands(tmp_path) -> None:
    """14:00 in UTC, and an hour later, of which the text would sort first."""
    leave(tmp_path, "base_eval", "old", metrics={"CORE metric": 0.1}, timestamp="2025-10-24T23:00:00.000+09:00")
    leave(tmp_path, "base_eval", "new", metrics={"CORE metric": 0.2}, timestamp="2025-10-24T15:00:00.000+00:00")
    assert read_card(tmp_path)["summary"]["metrics"]["CORE metric"]["BASE"] == 0.2


def test_shares_of_time_and_money(tmp_path) -> None:
    for stage, tag, seconds in [("tok_train", "a", 900.0), ("tok_train", "b", 900.0), ("zebra", "x", 1800.0)]:
        leave(tmp_path, stage, tag, seconds=seconds)
    summary = read_card(tmp_path)["summary"]
    titles = ["Tokenizer training (a)", "Tokenizer training (b)", "zebra"]
    found = [(share["title"], share["part"], share["dollars"]) for share in summary["shares"]]
    assert found == list(zip(titles, [0.25, 0.25, 0.5], [6.0, 6.0, 12.0], strict=True))
    assert (summary["seconds"], summary["dollars"]) == (3600.0, 24.0)
    leave(tmp_path, "ant", seconds=3600.0, environment={"Hardware": {"GPUs": "none"}})  # its price is not known
    assert read_card(tmp_path)["summary"]["dollars"] is None
    assert "| ant | 1h00m | 50.0% | - |".split() in [line.split() for line in render(tmp_path).splitlines()]
    assert "Total cost" not in render(tmp_path)
    for case in RATES.strip("\n").splitlines():
        gpus, dollars = case.split(" → ")
        assert str(hourly_rate({"GPUs": gpus})) == dollars, case
    assert hourly_rate({"GPUs": "8x NVIDIA H100 80GB HBM3", "Nodes": 2}) == 48


def test_the_given_price_and_the_record_of_preflight(tmp_path) -> None:
    hours = {"GPUs": "none", "Hourly Rate": 98.0}
    leave(tmp_path, "base_train", seconds=1800.0, environment={"Hardware": hours})
    assert read_card(tmp_path)["preflight"] == {}
    write_json(tmp_path / "preflight.json", {"ranks": 8})
    card = read_card(tmp_path)
    assert (card["summary"]["dollars"], card["preflight"]) == (49, {"ranks": 8})
    text = sections(render(tmp_path))
    assert "- Hourly Rate: $98.00/hour" in text["Environment"]
    assert "- Dollars: 49.00" in text["Base model training"]


def test_the_command_of_the_main_job_without_folders(tmp_path) -> None:
    leave(tmp_path, "base_train", command="python -m scripts.base_train --data=folder:/home/me/text")
    assert "\nCommand: python -m scripts.base_train --data=folder:text\n" in render(tmp_path)
    leave(tmp_path, "base_train", "zebra", command="python -m other", timestamp="2020-10-24T01:00:00.000+00:00")
    assert "\nCommand: python -m scripts.base_train --data=folder:text\n" in render(tmp_path)
    plan = tmp_path / "speedrun/default/plan.json"
    plan.parent.mkdir(parents=True)
    resume = "bash '/home/me/my repo/speedrun.sh' --fresh --data=/home/me/text/,climbmix:0.5"
    plan.write_text(json.dumps({"resume": resume}))
    assert "\nCommand: bash speedrun.sh --fresh --data=text/,climbmix:0.5\n" in render(tmp_path)


# The price of an L4 is not known.
RATES = """
8x NVIDIA H100 80GB HBM3 → 24.0
2x NVIDIA A100-SXM4-80GB → 3.0
1x NVIDIA H200, 1x NVIDIA Q9 → None
1x NVIDIA L4 → None
none → None
 → None
"""
