"""The HTML card of a small real run, in a real browser: on a phone and a desk, by day and by night."""

import re
from pathlib import Path
from typing import Any

import pytest
from base_runs import Base
from outcomes import leave

from nanochat.report.__main__ import write_card
from nanochat.report.card import read_card
from nanochat.report.html import POLICY, html_page

EVIL = '<script>document.title = "run"</script><img src="/stolen" onerror="x">&amp;'
LONG = "x" * 200  # a word that no line has room for
VIEWS = [(width, scheme) for width in (390, 1200) for scheme in ("light", "dark")]
# What is there. It comes from outside: the card's own policy forbids it all scripts.
LOOK = """(() => {
  const all = [...document.querySelectorAll("main *")], boxes = [...document.querySelectorAll("table")];
  const inside = element => element.parentElement.closest("table, svg");
  const cut = text => {
    const [word, plot] = [text, text.closest("svg")].map(element => element.getBoundingClientRect());
    return word.left < plot.left - 1 || word.right > plot.right + 1 || word.bottom > plot.bottom + 1;
  };
  const style = getComputedStyle(document.body);
  return {
    width: document.documentElement.clientWidth, scroll: document.documentElement.scrollWidth,
    out: all.filter(e => !inside(e) && e.getBoundingClientRect().right > innerWidth + .5).map(e => e.outerHTML),
    scrolling: boxes.filter(box => box.scrollWidth > box.clientWidth).length, tables: boxes.length,
    paper: style.backgroundColor, ink: style.color, text: document.querySelector("main").innerText,
    title: document.title, made: document.querySelectorAll("script, img, iframe, object").length,
    lines: [...document.querySelectorAll(".line")].map(e => getComputedStyle(e).stroke),
    cut: [...document.querySelectorAll("svg text")].filter(cut).map(e => e.textContent),
    letters: [...document.querySelectorAll("svg text")].map(e => e.getBoundingClientRect().height),
  };
})()"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A base folder: a model trained, tasks measured, and one outcome that is evil."""
    base = Base(tmp_path_factory.mktemp("run"))
    base.run("small", "--max-seq-len=128", "--num-iterations=12", "--total-batch-size=512")
    scores = {f"world_{name}": {"value": 0.4, "stderr": 0.1, "format": ".4f"} for name in ("people", "places")}
    leave(base.folder, "base_eval", metrics=scores)
    table = {"title": EVIL, "columns": [[EVIL, ""], ["n", ",d"]], "rows": [[EVIL, 3], [LONG, None]]}
    curve = {"title": EVIL, "x": EVIL, "y": EVIL, "series": {EVIL: [[0, 1], [0.5, 1.5]], "b": [[0, 1], [1, 2]]}}
    evil = {"metrics": {EVIL: EVIL, LONG: LONG}, "tables": [table], "curves": [curve]}
    leave(base.folder, "<b>", **evil, config={"data": EVIL}, card=["data"])
    return base.folder


@pytest.mark.parametrize(("width", "scheme"), VIEWS)
def test_a_reader_sees_all_of_it(visit, run, width, scheme, tmp_path) -> None:
    write_card(run, tmp_path / "report.md")
    seen = visit((tmp_path / "report.html").as_uri(), width, 1200, scheme).js(LOOK)
    assert (seen["width"], seen["scroll"], seen["out"]) == (width, width, [])
    # No other word of a picture is longer than there is room for.
    assert {text.removesuffix(" \xa0 b") for text in seen["cut"]} == {EVIL}
    assert seen["tables"] == 2
    assert seen["scrolling"] > 0  # a table with so long a word is wider than any screen, and scrolls in its box
    paper, ink = (sum(map(int, re.findall(r"\d+", seen[part])[:3])) / 3 for part in ("paper", "ink"))
    assert (paper > 200 > 80 > ink) if scheme == "light" else (paper < 80 < 200 < ink), seen
    assert len(set(seen["lines"])) == 2
    assert "none" not in seen["lines"]
    assert min(seen["letters"]) > 10
    assert (seen["title"], seen["made"]) == ("nanochat training report", 0)
    for words in ("Base model training", "Final validation bpb", "world_people", "Total wall clock time", EVIL, LONG):
        assert words in seen["text"], words


def test_it_opens_with_what_was_trained_and_how_well(tmp_path) -> None:
    assert "<rect" not in opened(tmp_path, "tok_train")  # nothing was trained yet
    loss = {"title": "Loss", "x": "tokens", "y": "nats", "series": {"train": [[0, 9], [5.0, 2.0]]}}
    metrics = {"Number of parameters": 92274688, "Tokens seen": 104857600, "Data": "letters"}
    assert "Loss" in opened(tmp_path, "base_train", metrics=metrics, curves=[loss])
    rows = [["GSM8K", f"What is {number} + 1?", f"{number + 1}", "yes"] for number in range(5)]
    answers = {"title": "Sample answers", "columns": [[name, ""] for name in ("Task", "Question", "Answer", "Right")]}
    for stage, score in (("chat_eval_sft", 0.3), ("chat_eval_rl", 0.4)):
        scores = {"GSM8K": {"value": score, "stderr": 0.02, "format": ".4f"}, "Step": 7}
        first = opened(tmp_path, stage, metrics=scores, tables=[answers | {"rows": rows}])
    text = re.sub("<[^>]*>", " ", first)
    sentence = (
        "A model with 92,274,688 parameters. It learned from: letters, 104,857,600 tokens of pretraining. All stages"
    )
    assert f"{sentence} together took 11h33m on 8x NVIDIA H100 80GB HBM3 and cost $277.39." in text
    assert "40.0%" in text  # of the newest model
    assert "30.0%" not in text
    assert re.findall(r"What is (\d)", text) == ["0", "1", "2"]


def test_of_several_tags_it_opens_with_the_newest_model(tmp_path) -> None:
    for tag, count, day in (("alpha", 2_000_000, "02"), ("beta", 1_000_000, "01")):
        moment = f"2026-01-{day}T00:00:00"
        metrics = {"Number of parameters": count, "Tokens seen": 10 * count, "Data": "letters"}
        leave(tmp_path, "base_train", tag=tag, timestamp=moment, metrics=metrics)
    assert "A model with 2,000,000 parameters" in html_page(read_card(tmp_path))
    leave(tmp_path, "base_train", tag="alpha", timestamp="2025-01-01T00:00:00", metrics=metrics)
    leave(tmp_path, "base_train", tag="beta", timestamp=moment, metrics={**metrics, "Number of parameters": 3_000_000})
    assert "A model with 3,000,000 parameters" in html_page(read_card(tmp_path))


def opened(base: Path, stage: str, **changes: Any) -> str:
    """Leave an outcome; return the page up to the card itself."""
    leave(base, stage, **changes)
    return html_page(read_card(base)).partition("Generated: ")[0].partition("</style>")[2]


def test_it_asks_for_nothing_and_runs_nothing(run) -> None:
    """What a browser is told, whether or not there is one here."""
    text = html_page(read_card(run))
    assert POLICY in text.partition("<style>")[0]
    assert not re.search(r"<script|<img|<iframe|\son\w+=\"|url\(|@import|https?://", text.replace("http-equiv", ""))
    assert "&lt;script&gt;" in text
    assert all(kind in text for kind in ("prefers-color-scheme: dark", 'class="line s0"'))
