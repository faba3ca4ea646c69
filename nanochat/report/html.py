"""The report card as one HTML file without scripts or requests, for phone and desk, light and dark mode."""

import math
from collections.abc import Sequence
from urllib.parse import quote

from markdown_it import MarkdownIt

from nanochat.log import Record, duration, escape_markup, markdown_table
from nanochat.report.card import Card, markdown, plots
from nanochat.report.compare import end_of
from nanochat.report.plots import STYLE, Bar, draw_bars, draw_plot
from nanochat.stages import CORE, SHOWN

# Nothing is fetched or run, whatever text a run has put into its records.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
PAGE_STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1f2430; --soft: #5d6675; --rule: #e4e7ec; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171c; --ink: #e3e7ed; --soft: #98a2b0; --rule: #2a2f38; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); overflow-wrap: anywhere;
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
main { max-width: 60rem; margin: 0 auto; padding: 2.5rem 1rem 5rem; font-variant-numeric: tabular-nums; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0; }
h2 { font-size: 1.3rem; margin: 3rem 0 .2rem; padding-top: 1.2rem; border-top: 1px solid var(--rule); }
h3 { font-size: 1rem; margin: 1.8rem 0 .5rem; }
hr { display: none; }
p { margin: .4rem 0; color: var(--soft); }
ul { columns: 20rem; column-gap: 2.2rem; list-style: none; margin: .8rem 0; padding: 0; font-size: .925rem; }
li { break-inside: avoid; padding: .28rem 0; border-bottom: 1px solid var(--rule); }
table { display: block; overflow-x: auto; width: fit-content; max-width: 100%; margin: .8rem 0; font-size: .9rem;
  border-collapse: collapse; overflow-wrap: normal; }
th, td { padding: .35rem 1.2rem .35rem 0; border-bottom: 1px solid var(--rule); text-align: left;
  vertical-align: top; }
th { color: var(--soft); font-weight: 600; white-space: nowrap; }
p:has(.plot) { display: inline-block; width: 28rem; max-width: 100%; padding-right: .6rem; vertical-align: top; }
.plot { display: block; width: 100%; height: auto; }
@media (max-width: 30rem) { .plot { font-size: 13px; } }
"""
PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>nanochat training report</title>
<style>{style}</style>
<main>
{content}</main>
</html>
"""
FOLDER = "pictures"  # of the links that stand for the pictures
SCORES = "scores.svg"  # a picture that only the page has


def html_page(card: Card) -> str:
    """Return the card as a page, which contains the pictures: first what matters most, then the card in Markdown."""
    # Only these parts of Markdown: other texts appear as they are.
    renderer = MarkdownIt("zero").enable(["heading", "list", "table", "hr", "image", "escape"])
    pictures = {name: draw_plot(plot) for name, plot in plots(card["stages"]).items()}
    pictures[SCORES] = draw_bars("Scores, with standard errors", scores(card))
    drawings = {quote(f"{FOLDER}/{name}"): drawing for name, drawing in pictures.items()}
    # The drawing itself is part of the page; nothing else is an image.
    renderer.add_render_rule("image", lambda _, tokens, index, *__: drawings.get(tokens[index].attrs["src"], ""))
    title, _, rest = markdown(card, FOLDER).partition("\n\n")
    content = renderer.render("\n\n".join([title, *opening(card), rest]))
    return PAGE.format(policy=POLICY, style=PAGE_STYLE + STYLE, content=content)


def opening(card: Card) -> list[str]:
    """Return paragraphs of Markdown: what was trained on what, its loss and its scores, and three answers."""
    stages = sorted(card["stages"], key=end_of)  # several tags: the newest model counts
    trained = [stage for stage in stages if stage["stage"] == "base_train"]
    sentences = []
    if trained and "Number of parameters" in trained[-1]["metrics"]:
        sentences.append(f"A model with {trained[-1]['metrics']['Number of parameters']:,} parameters.")
    if card["text"]:
        tokens = f", {trained[-1]['metrics']['Tokens seen']:,} tokens of pretraining" if trained else ""
        sentences.append(f"It learned from: {escape_markup(card['text'])}{tokens}.")
    found = card["summary"]
    machine = card["environment"]["Hardware"]
    place = machine.get("GPUs", "none")
    if place == "none":
        cores = machine.get("CPUs", "").partition(" (")[0]  # without the logical ones; an early card has none
        place = f"a CPU with {cores}" if cores.endswith("cores") else "a CPU"
    price = f" and cost ${found['dollars']:.2f}" if found["dollars"] is not None else ""
    sentences.append(f"All stages together took {duration(found['seconds'])} on {place}{price}.")
    parts = [" ".join(sentences)]
    curve = next((name for name, plot in plots(trained[-1:]).items() if plot["title"] == "Loss"), None)
    pictures = [curve] if curve else []
    if scores(card):
        pictures.append(SCORES)
    parts += [f"![{name}]({quote(f'{FOLDER}/{name}')})" for name in pictures]
    answers = sample_answers(stages)
    if answers:
        parts += ["### Answers", markdown_table(answers)]
    return parts


def scores(card: Card) -> list[Bar]:
    """Return the headline scores of the newest model that has each."""
    bars = []
    for name, columns in card["summary"]["metrics"].items():
        found = [value for value in columns.values() if isinstance(value, dict)]
        if found and name.partition(" (")[0] in (*SHOWN, *CORE):
            bars.append(Bar(name, found[-1]["value"], found[-1].get("stderr", math.nan)))
    return bars


def sample_answers(stages: Sequence[Record]) -> Record | None:
    """Return the first three sample answers of the newest model, or of a base model what it writes."""
    for title in ("Sample answers", "Samples"):
        tables = [table for stage in stages for table in stage["tables"] if table["title"] == title]
        if tables:
            return {**tables[-1], "rows": tables[-1]["rows"][:3]}
    return None
