"""The report card as one HTML file without scripts or requests, for phone and desk, light and dark mode."""

import re
from collections.abc import Collection
from html import escape

from nanochat.report.card import Card, Facts, Section, Table
from nanochat.report.plots import STYLE

# Nothing is fetched or run, whatever text a run has put into its records.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
LONG_VALUE, LONG_FACT = 24, 44  # characters of a value, and of a value with its label, that need a line of their own
PAGE_STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1f2430; --soft: #5d6675; --rule: #e4e7ec; --tint: #f6f7f9;
  --link: #1d5fd1; --shade: #1f243030; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171c; --ink: #e3e7ed; --soft: #98a2b0; --rule: #2a2f38;
  --tint: #1b1f26; --link: #7fb0ff; --shade: #000a; } }
* { box-sizing: border-box; }
html { scroll-behavior: smooth; -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--paper); color: var(--ink); overflow-wrap: break-word;
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
main { max-width: 60rem; margin: 0 auto; padding: 2.5rem 1rem 5rem; }
a { color: var(--link); text-decoration: none; }
a:hover { text-decoration: underline; }
h1 { font-size: 1.9rem; line-height: 1.2; letter-spacing: -.02em; margin: 0 0 .3rem; }
h2 { font-size: 1.3rem; letter-spacing: -.01em; margin: 3.2rem 0 .2rem; padding-top: 1.2rem;
  border-top: 1px solid var(--rule); }
h3 { font-size: 1rem; margin: 1.8rem 0 .5rem; }
p { margin: .4rem 0; }
.soft, .moment { color: var(--soft); }
.moment { font-size: .875rem; }
.remark { background: var(--tint); border-left: 3px solid #d1495b; padding: .6rem .9rem; white-space: pre-line; }
nav { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; margin: 1.4rem 0 0; font-size: .9rem; }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 17rem), 1fr)); gap: 0 2.2rem;
  margin: .8rem 0; font-size: .925rem; }
dl div { display: flex; justify-content: space-between; gap: 1rem; padding: .28rem 0;
  border-bottom: 1px solid var(--rule); }
dl .long { grid-column: 1 / -1; display: block; }
dt { color: var(--soft); }
dd { margin: 0; text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
dl .long dd { text-align: left; white-space: normal; overflow-wrap: anywhere; }
.groups { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 20rem), 1fr)); gap: 0 2.2rem; }
.groups dl { grid-template-columns: 1fr; }
.groups h3 { margin-bottom: 0; }
/* Shadows show that a table continues: they stay at the edges, and the gradients that cover them scroll along. */
.table { overflow-x: auto; margin: .8rem 0; max-width: 100%; width: fit-content;
  background: linear-gradient(to right, var(--paper) 60%, transparent) 0 0 / 3rem 100% local no-repeat,
    linear-gradient(to left, var(--paper) 60%, transparent) 100% 0 / 3rem 100% local no-repeat,
    linear-gradient(to right, var(--shade), transparent) 0 0 / 1rem 100% no-repeat,
    linear-gradient(to left, var(--shade), transparent) 100% 0 / 1rem 100% no-repeat; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem 1.2rem .35rem 0; border-bottom: 1px solid var(--rule); text-align: left;
  vertical-align: top; }
th { color: var(--soft); font-weight: 600; }
th, .number { white-space: nowrap; }
.number { text-align: right; }
.none { color: var(--soft); opacity: .6; }
.text { min-width: 7rem; }
td.text:last-child { min-width: 14rem; }
th:last-child, td:last-child { padding-right: 0; }
.plots { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 22rem), 1fr)); gap: 1.6rem 2.4rem;
  margin: 1.4rem 0; align-items: start; }
.plots .plot { display: block; width: 100%; height: auto; }
@media (max-width: 30rem) { .plots .plot { font-size: 13px; } }
details { margin: .8rem 0; }
summary { cursor: pointer; color: var(--soft); font-size: .925rem; }
"""


def html_page(card: Card) -> str:
    """Return the page: summary, environment, then the stages in order."""
    names = ["Summary", "Environment", *(section.title for section in card.sections)]
    # Links to all headings, because a phone shows no sidebar.
    links = "".join(f'<a href="#{_anchor(name)}">{escape(name)}</a>\n' for name in names)
    dates = [f"Run started: {card.started}"] if card.started else []
    dates.append(f"Generated: {card.generated}")
    groups = []
    for name, facts in card.environment.items():
        groups.append(f"<section><h3>{escape(name)}</h3>{_facts(facts)}</section>")
    parts = [
        "<h1>nanochat training report</h1>",
        *(f'<p class="moment">{escape(date)}</p>' for date in dates),
        f"<nav>{links}</nav>",
        *_summary(card),
        _heading("Environment"),
        '<div class="groups">',
        *groups,
        "</div>",
    ]
    for section in card.sections:
        parts += _section(section)
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<link rel="icon" href="data:,">',
            "<title>nanochat training report</title>",
            f"<style>{PAGE_STYLE}{STYLE}</style>",
            "<main>",
            *parts,
            "</main>",
            "</html>\n",
        ]
    )


def _summary(card: Card) -> list[str]:
    parts = [_heading("Summary")]
    if card.metrics_table:
        parts.append(_table(card.metrics_table))
    parts += [f"<p>{escape(name)}: <strong>{escape(value)}</strong></p>" for name, value in card.totals.items()]
    parts += _side_by_side([*card.timeline.values(), _table(card.times_table)])
    return [*parts, _facts(card.bloat)]


def _section(section: Section) -> list[str]:
    """Return a stage: results and pictures first, settings folded away."""
    parts = [_heading(section.title)]
    if section.moment:  # damaged records have none
        parts.append(f'<p class="moment">{escape(section.moment)}</p>')
    if section.remark:
        parts.append(f'<p class="remark">{escape(section.remark)}</p>')
    if section.results:
        parts.append(_facts(section.results))
    parts += _side_by_side(section.plots.values())
    parts += [_table(table) for table in section.tables]
    # Long lists that few readers need: one click away.
    if section.settings:
        parts.append(f"<details><summary>Settings</summary>{_facts(section.settings)}</details>")
    return parts


def _heading(title: str) -> str:
    return f'<h2 id="{_anchor(title)}">{escape(title)}</h2>'


def _anchor(title: str) -> str:
    # Letters, digits and hyphens alone need no escape in a link.
    return re.sub(r"\W+", "-", title.lower()).strip("-")


def _facts(facts: Facts) -> str:
    rows = []
    for label, value in facts.items():
        # Two short facts fit side by side on a desk screen.
        is_long = len(value) > LONG_VALUE or len(label) + len(value) > LONG_FACT
        style = ' class="long"' if is_long else ""
        rows.append(f"<div{style}><dt>{escape(label)}</dt><dd>{escape(value)}</dd></div>")
    return f"<dl>{''.join(rows)}</dl>"


def _table(table: Table) -> str:
    """Return a table: number columns to the right; a long cell before dashes is a remark over all columns."""
    title, (header, *rows) = table
    styles = ["number" if all(map(_is_number, column)) else "text" for column in zip(*rows, strict=True)]
    # Without rows nothing shows the kind.
    styles = styles or ["text" for _ in header]
    names = [f'<th class="{style}">{escape(cell)}</th>' for style, cell in zip(styles, header, strict=True)]
    lines = ["".join(names)]
    for row in rows:
        first, *others = row
        is_remark = len(row) > 2 and set(others) == {"-"} and len(first) > LONG_FACT
        if is_remark:
            lines.append(f'<td class="soft" colspan="{len(row)}">{escape(first)}</td>')
        else:
            lines.append("".join(map(_cell, styles, row)))
    body = "\n".join(f"<tr>{line}</tr>" for line in lines)
    heading = f"<h3>{escape(title)}</h3>" if title else ""
    return f'{heading}<div class="table"><table>{body}</table></div>'


def _is_number(cell: str) -> bool:
    # A sign, a price or a digit first; a dash alone is a missing value.
    return bool(re.match(r"[-+]?[$\d]|-$", cell)) and len(cell) < LONG_VALUE


def _cell(style: str, text: str) -> str:
    empty = " none" if text == "-" else ""
    return f'<td class="{style}{empty}">{escape(text)}</td>'


def _side_by_side(elements: Collection[str]) -> list[str]:
    """Return elements in a grid, as many in a row as fit."""
    return ['<div class="plots">', *elements, "</div>"] if elements else []
