"""The lines of the report card, found in the source by the way the code makes them."""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from itertools import product

from source_tree import CARD, Function, Module, Texts, Tree, committed, constants_of, is_named, texts_of

from nanochat import registry

METRIC_MAKERS = ("figures", "summary", "markdown")  # functions that make metrics, besides those that are named so
HEADER_MAKERS = ("environment", "hardware", "bloat")
PARTS_OF_A_METRIC = ("value", "format", "stderr", "unit")
FIGURE = re.compile(r"(train|val|eval|rl|dpo|chat)/[\w*@ ,]*[\w*@]")  # a name in metrics.jsonl
# Metrics named by a run: figures of evaluations before the first step and after the last, means over some of the tasks.
FILLED_IN = ("* before", "* after", "* (* of * tasks)")


def lines(tree: Tree) -> Iterator[str]:
    """Yield all lines about the card, but those of committed cards."""
    for module in tree.modules:
        known = constants_of(module.tree.body)
        for function in module.functions():
            if not module.is_benchmark:
                yield from (f"metric {name}" for name in metrics_in(function, known) if is_metric(name))
            if function.name in HEADER_MAKERS:
                yield from (f"header {name}" for name in keys_in(function, known))
            if function.name == "read_card":
                yield from (f"json {key}" for key in returned_keys(function))
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and node.name == "Outcome":
                yield from (f"json stages.{name}" for name in fields_of(node))
        yield from table_lines(module, known)
        yield from curve_lines(module)
        yield from figure_lines(module)
    yield from stage_lines()


# ---- metrics ----


def keys_in(node: ast.AST, known: Texts) -> Iterator[str]:
    """Yield the keys of dictionaries that are written out below a node, and of assignments to single keys."""
    for inner in ast.walk(node):
        keys: list[ast.expr | None] = []
        if isinstance(inner, ast.Dict):
            keys = inner.keys
        elif isinstance(inner, ast.DictComp):
            keys = [inner.key]
        elif isinstance(inner, ast.Assign):
            keys = [target.slice for target in inner.targets if isinstance(target, ast.Subscript)]
        for key in keys:
            yield from texts_of(key, known)


def metrics_in(function: Function, known: Texts) -> Iterator[str]:
    """Yield the names of metrics that a function gives an outcome: keys of dictionaries that become metrics.

    They are all keys in a function whose name or type says that it makes metrics; in other functions those assigned to
    `.metrics`, those in a dictionary with a `measured` value, and those passed to `finish`.
    """
    for node in ast.walk(function):
        # validation_metrics(state, "bpb", "Final validation bpb") names a metric.
        if isinstance(node, ast.Call) and getattr(node.func, "id", "").endswith("_metrics"):
            yield from (text for argument in node.args for text in texts_of(argument, known) if text[0].isupper())
    if makes_metrics(function):
        yield from keys_in(function, known)
        for node in ast.walk(function):
            if isinstance(node, ast.Name) and len(known.get(node.id, [])) > 1:
                yield from known[node.id]
        return
    finished: set[str] = set()  # variables that are passed to `finish`
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and is_named(node.func, "finish"):
            for argument in node.args:
                yield from keys_in(argument, known)
                finished |= {inner.id for inner in ast.walk(argument) if isinstance(inner, ast.Name)}
    for node in ast.walk(function):
        if isinstance(node, ast.Dict) and any(is_measured(value) for value in node.values):
            yield from keys_in(node, known)
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AugAssign):
            targets = [node.target]
        for target in targets:
            if is_named(target, "metrics", *finished):
                yield from keys_in(node.value, known)
            elif isinstance(target, ast.Subscript) and is_named(target.value, "metrics"):
                yield from texts_of(target.slice, known)


def is_metric(name: str) -> bool:
    # A name that is filled in as a whole would stand for every line.
    return not FIGURE.fullmatch(name) and name not in PARTS_OF_A_METRIC and re.search("[^* ]", name) is not None


def makes_metrics(function: Function) -> bool:
    if [argument.arg for argument in function.args.args][:1] == ["self"] and function.name == "figures":
        return False  # of an objective
    returns = ast.unparse(function.returns) if function.returns else ""
    return function.name in METRIC_MAKERS or function.name.endswith("_metrics") or "Metrics" in returns


def is_measured(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and is_named(value.func, "measured", "metric")


# ---- tables, curves, figures ----


def table_lines(module: Module, known: Texts) -> Iterator[str]:
    """Yield title and name of each column. A title that is filled in is a *; such tables of benchmarks are left out."""
    for title, columns in tables_in(module, known):
        if module.is_benchmark and title == "*":
            continue
        for column in columns.split("|"):
            name = re.sub(r":\S*$", "", column.strip())  # a number format follows a colon without a space
            if name:
                yield f"table {title or '*'} | {name}"


def tables_in(module: Module, known: Texts) -> Iterator[tuple[str, str]]:
    """Yield titles and columns: arguments of `table_of`, or beside each other in a table of tables."""
    for scope in [module.tree, *module.functions()]:
        own = constants_of(scope.body, known)
        for node in ast.walk(scope):
            if isinstance(node, ast.Call) and is_named(node.func, "table_of") and len(node.args) > 1:
                yield from product(texts_of(node.args[0], own) or ["*"], texts_of(node.args[1], own))
            elif isinstance(node, ast.Tuple) and len(node.elts) > 1:
                yield from pairs(node.elts[0], node.elts[1], own)
            elif isinstance(node, ast.Dict):
                for key, value in zip(node.keys, node.values, strict=True):
                    yield from pairs(key, value.elts[0] if isinstance(value, ast.Tuple) and value.elts else value, own)


def pairs(title: ast.expr | None, columns: ast.expr, known: Texts) -> Iterator[tuple[str, str]]:
    """Yield title and columns if the second expression has columns with a number format: `Bucket | Rows:,d`."""
    for text in texts_of(columns, known):
        if re.fullmatch(r"[A-Z][^|\n]*(\|[^|\n]+)+", text) and re.search(r":[,+\d.]*[a-z%]\s*(\||$)", text):
            yield from ((one, text) for one in texts_of(title, known))


def curve_lines(module: Module) -> Iterator[str]:
    """Yield title and figure of each row of a table CURVES: a text, a dictionary, or rows."""
    if not re.search(r"^CURVES\b", module.text, re.MULTILINE):
        return
    table = getattr(module.load(), "CURVES", ())
    if isinstance(table, registry.Door):  # the curves are in tracks
        return
    if isinstance(table, str):
        rows = [re.split(r"\s{2,}", row.strip()) for row in table.strip().splitlines()]
    elif isinstance(table, Mapping):
        rows = [[title, figure] for title, figure in table.items() if isinstance(figure, str)]
    else:
        rows = [list(vars(row).values()) if is_dataclass(row) else list(row) for row in table]
    yield from (f"curve {row[0]}: {row[-1]}" for row in rows)


def figure_lines(module: Module) -> Iterator[str]:
    """Yield the figures of metrics.jsonl, which dashboards and programs of users read."""
    if module.is_benchmark:
        return
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Constant | ast.JoinedStr):
            found = [text for text in texts_of(node, {}) if FIGURE.fullmatch(text)]
            yield from (f"figure {text}" for text in found if not text.endswith("_"))  # the start of a name


# ---- the frame ----


def stage_lines() -> Iterator[str]:
    """Yield titles of sections, and rows and columns of the summary."""
    from nanochat import stages

    yield from (f"section {name}: {title}" for name, title in stages.TITLES.items())
    for stage in stages.STAGES:
        yield from (f"summary row {name}" for name in stage.headline)
        if stage.column:
            yield f"summary column {stage.column}"


def returned_keys(function: Function) -> Iterator[str]:
    """Yield the keys of the dictionary that a function returns, inner ones as outer.inner."""
    queue = [("", node.value) for node in ast.walk(function) if isinstance(node, ast.Return)]
    while queue:
        prefix, value = queue.pop()
        if isinstance(value, ast.Dict):
            for key, inner in zip(value.keys, value.values, strict=True):
                if isinstance(key, ast.Constant):
                    yield f"{prefix}{key.value}"
                    queue.append((f"{prefix}{key.value}.", inner))


def fields_of(definition: ast.ClassDef) -> list[str]:
    """Return the fields of a dataclass."""
    names = [node.target for node in definition.body if isinstance(node, ast.AnnAssign)]
    return [name.id for name in names if isinstance(name, ast.Name)]


# ---- committed cards ----


def committed_lines(tree: Tree, written: Iterable[str], listed: Iterable[str]) -> Iterator[str]:
    """Yield section and name of each line in the committed cards that today's code writes.

    written: names that today's code writes; * stands for anything. A card may be older than the code. listed: known
    promises. A section that says "Not shown" leaves out lines without a value, and whether one has a value depends on
    the run: those that are listed, and that today's code writes, are there (report.json has them).
    """
    promised: dict[str, list[str]] = {}  # section -> names
    for line in listed:
        if found := re.fullmatch(r"field (.+?): (.+)", line):
            promised.setdefault(found[1], []).append(found[2])
    names = [re.escape(name).replace(r"\*", ".+") for name in sorted({*written, *FILLED_IN})]
    known = re.compile("|".join(names))
    for path in tree.pages():
        text = committed(tree.root, path)
        if not text.startswith(CARD):
            continue
        for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
            title, _, content = section.partition("\n")
            title = re.sub(r" \(.*\)$", "", title)  # the tag, if there are several runs
            labels = re.findall(r"^- (.+?):(?: |$)", content.partition("\n### ")[0], re.MULTILINE)
            if "Not shown" in labels:
                labels += promised.get(title, [])
            yield from (f"field {title}: {label}" for label in labels if known.fullmatch(label))
