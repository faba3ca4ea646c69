"""The report card as one HTML file without scripts or requests, for phone and desk, light and dark mode."""

from urllib.parse import quote

from markdown_it import MarkdownIt

from nanochat.log import duration, format_value, markdown_table
from nanochat.outcome import ANSWERS
from nanochat.report.card import EVALUATIONS, Card, body, summary
from nanochat.report.plots import STYLE

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
<h1>nanochat training report</h1>
{content}</main>
</html>
"""
FOLDER = "pictures"  # of the links that stand for the pictures


def opening(card: Card) -> list[str]:
    """Return the first screen as Markdown: what was trained on what, how long, whether it worked, and its answers."""
    sections = {section.outcome.stage: section for section in card.sections if section.outcome.tag == card.tag}
    parts = []
    shown = []
    base = sections.get("base_train")
    if base:
        shown += list(base.plots)[:1]  # the loss of base training
        parameters = format_value(base.outcome.metrics["Number of parameters"])
        machine = card.environment["Hardware"]
        place = f"{machine['CPUs']} CPUs" if machine["GPUs"] == "none" else machine["GPUs"]
        seconds = sum(section.outcome.seconds for section in sections.values())
        parts.append(f"A model with {parameters} parameters. All stages took {duration(seconds)} on {place}.")
    parts += card.origin
    # The last model's.
    last = [section for stage, section in sections.items() if stage.startswith(EVALUATIONS)][-1:]
    parts += [f"![]({quote(f'{FOLDER}/{name}')})" for name in shown]
    for section in last:
        for table in section.outcome.tables:
            if table["title"] == ANSWERS:
                parts += [f"### {ANSWERS}, {section.title}", markdown_table(table)]
    return parts


def html_page(card: Card) -> str:
    """Return the page: the opening, summary, environment, then the stages in order."""
    # Only these parts of Markdown: other texts appear as they are.
    renderer = MarkdownIt("zero").enable(["heading", "list", "table", "hr", "image"])
    pictures = {quote(f"{FOLDER}/{name}"): element for name, element in card.plots.items()}
    # The drawing itself stands in the page; nothing else is an image.
    renderer.add_render_rule("image", lambda _, tokens, index, *__: pictures.get(tokens[index].attrs["src"], ""))
    content = renderer.render("\n\n".join([*opening(card), "## Summary", summary(card), *body(card, FOLDER)]))
    return PAGE.format(policy=POLICY, style=PAGE_STYLE + STYLE, content=content)
