"""What this code promises its users, found in the source: commands, flags, lines of the report card, routes, names.

`interface(root)` returns them as lines, a kind and a name, such as `flag scripts.base_train --depth`. Commands are
found, not listed: each file below FOLDERS that can be run. Their flags are the fields of their `Config`, read in this
process; no command is started. `card_promises.py` has the report card.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import card_promises
from source_tree import FOLDERS, Function, Module, Tree, is_named

# Kind of a line -> what its names are.
KINDS = {
    "command": "Commands: the module of `python -m NAME`, or a script and the shell that runs it",
    "flag": "Flags of each command",
    "choice": "Values of flags that have a fixed list of them",
    "file": "Files that commands and pages name: specs of runs, settings of schedulers",
    "variable": "Environment variables",
    "route": "Routes of the chat server",
    "entry": "Fields of the server's requests, of files that users write, and of a model's shape",
    "header": "Facts in the header of the report card",
    "section": "Sections of the report card: name of the stage, title",
    "setting": "Flags that the section of a command shows as settings",
    "metric": "Metrics that sections show; * is filled in",
    "field": "Lines that the committed cards have in a section",
    "table": "Tables of the report card and of commands: title, column",
    "curve": "Curves of the report card: title, figure in metrics.jsonl",
    "summary": "Rows and columns of the summary",
    "json": "Keys of report.json",
    "figure": "Figures in metrics.jsonl; * is filled in",
    "key": "Names in tables that flags and pages offer",
    "name": "Names that packages promise to others, in the docstring of __init__.py",
}

# Tables whose keys are values of flags. Others are found by their names in the docs.
TABLES = set(
    "ACCELERATORS ADVANTAGES ARCHITECTURES AUGMENTATIONS BASELINES COMMANDS CONFIGURATIONS CORPORA DTYPES ENGINES "
    "FILTERS KINDS MEANS METHODS MLP_KINDS MODELS PATHS POLICY_LOSSES PREFERENCE_LOSSES PRESETS SCALES SIZES STAGES "
    "STEPS STYLES TASKS TRICKS".split()
)
NOT_TABLES = {
    "CHATS",
    "LENGTHS",
    "LICENSES",
    "ROWS",
    "SETS",
    "SOURCES",
    "TEXT",
}  # words in the docs that mean something else
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*[a-z]")


def interface(root: Path) -> list[str]:
    """Return all promises of the code below `root`, in the order of the file."""
    tree = Tree.read(root)
    makers = (command_lines, file_lines, variable_lines, route_lines, entry_lines, key_lines, name_lines)
    found = {line for maker in (*makers, card_promises.lines) for line in maker(tree)}
    # What a section can show: settings, metrics, scores of tasks.
    shown = [re.fullmatch(r"(setting \S+ --|metric |summary row |key TASKS |key MEANS )(.*)", line) for line in found]
    written = {line[2].replace("-", "_") if line[1].startswith("setting") else line[2] for line in shown if line}
    path = root / "tests/interface.txt"
    listed = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return ordered(found | set(card_promises.committed_lines(tree, written, listed)))


def ordered(lines: Iterable[str]) -> list[str]:
    return sorted(set(lines), key=lambda line: (list(KINDS).index(line.partition(" ")[0]), line))


# ---- commands ----


def command_lines(tree: Tree) -> Iterator[str]:
    """Yield all commands, with flags, their values, and the settings that the report card shows."""
    for module in tree.modules:
        if not module.can_be_run:
            continue
        if module.has_config:
            yield from config_lines(module)
        elif re.search(rf"-m {re.escape(module.command)}\b", tree.docs):  # others are started by our own code alone
            yield f"command {module.command}"
            yield from (f"flag {module.command} {flag}" for flag in parsed_flags(module))
    for path in tree.shells:
        text = path.read_text(encoding="utf-8")
        # Others are a part of scripts, or name the command that took their place.
        if text.startswith("#!") and "has moved" not in text:
            name = f"bash {tree.name_of(path)}"
            yield f"command {name}"
            yield from (f"flag {name} {flag}" for flag in shell_flags(text))
            # A script may hand all words on to a module.
            for module in tree.modules:
                if module.has_config and re.search(
                    rf'^exec .*-m {re.escape(module.command)} "\$@"', text, re.MULTILINE
                ):
                    handed = [line for line in config_lines(module) if line.startswith("flag ")]
                    yield from (line.replace(module.command, name) for line in handed)


def config_lines(module: Module) -> Iterator[str]:
    """Yield a command with a `Config`."""
    from nanochat.config import flag_of

    loaded = module.load()
    if loaded is None:
        return
    yield f"command {module.command}"
    config_class = get_type_hints(loaded.main)["config"]
    hints = get_type_hints(config_class)
    # The usage may show flags that are handed on to another command.
    for usage in re.findall(rf"^python -m {re.escape(module.command)}\b.*", module.text, re.MULTILINE):
        yield from (f"flag {module.command} {flag}" for flag in FLAG.findall(usage))
    for one in fields(config_class):
        flag = flag_of(one.name)
        yield f"flag {module.command} {flag}"
        if one.metadata["short"]:
            yield f"flag {module.command} {one.metadata['short']}"
        hint = hints[one.name]
        for part in (hint, *get_args(hint)):  # the flag may also take something else, like a number
            if get_origin(part) is Literal:
                # The empty value is the default, which nobody types.
                yield from (f"choice {module.command} {flag}={value}" for value in get_args(part) if value)
        if one.metadata["in_card"]:
            yield f"setting {module.command} {flag}"


def parsed_flags(module: Module) -> set[str]:
    """Return the flags of a command without a `Config`: those added to a parser, and those of its usage."""
    found: set[str] = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and is_named(node.func, "add_argument"):
            names = [name.value for name in node.args if isinstance(name, ast.Constant)]
            found |= {name for name in names if name.startswith("-")}
        elif isinstance(node, ast.Call) and is_named(node.func, "parser_of"):  # bench/common.py adds these
            names = [keyword.arg for keyword in node.keywords if keyword.arg]
            found |= {"--reference" if name == "has_reference" else f"--{name}" for name in names} | {"--json"}
        elif isinstance(node, ast.Call) and is_named(node.func, "add_json"):
            found.add("--json")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "usage:" in node.value:
            found |= set(FLAG.findall(node.value))
    return found


def shell_flags(text: str) -> set[str]:
    """Return the flags of a shell script: those that its first comment shows, and those that it reads itself."""
    usage = re.match(r"#!.*\n(# .*\n)*", text)
    found = set(FLAG.findall(usage[0])) if usage else set()
    for names in re.findall(r'^[^#\n]*set_flag "\$\w+" "([\w ]+)"', text, re.MULTILINE):
        found |= {f"--{name.replace('_', '-')}" for name in names.split()}
    for branch in re.findall(r"^ +(--[^)\n]+)\)(?!\s+stop)", text, re.MULTILINE):  # of a `case`; `stop` refuses a flag
        found |= set(FLAG.findall(branch))
    return found - {"--help"}


def file_lines(tree: Tree) -> Iterator[str]:
    """Yield the files beside the scripts of runs, and the specs of tracks."""
    for path in tree.files(
        "runs/*", *(f"tracks/**/{name}" for name in ("*.toml", "*.json", "*.yaml", "Containerfile"))
    ):
        if path.suffix not in (".sh", ".py"):
            yield f"file {tree.name_of(path)}"


def variable_lines(tree: Tree) -> Iterator[str]:
    texts = [module.text for module in tree.modules] + [path.read_text(encoding="utf-8") for path in tree.shells]
    for text in texts:
        yield from (f"variable {name}" for name in re.findall(r"\bNANOCHAT_[A-Z_]+\b", text))


# ---- the server, files that users write, the model ----


def route_lines(tree: Tree) -> Iterator[str]:
    for module in tree.modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Call) and is_named(node.func, "Route") and node.args:
                methods = ["GET"]  # Starlette's default
                for keyword in node.keywords:
                    if keyword.arg == "methods":
                        methods = ast.literal_eval(keyword.value)
                yield from (f"route {method} {ast.literal_eval(node.args[0])}" for method in methods)


def entry_lines(tree: Tree) -> Iterator[str]:
    """Yield the fields of all pydantic models: requests, and files that describe studies. And those of GPTConfig.

    `--model=NAME,field=value` sets a field of GPTConfig, and manifests hold them. The config of another kind of model
    is a class derived from it.
    """
    for module in tree.modules:
        if re.search(r"^from pydantic import", module.text, re.MULTILINE):
            from pydantic import BaseModel

            for name, value in list(getattr(module.load(), "__dict__", {}).items()):
                if isinstance(value, type) and issubclass(value, BaseModel) and value.__module__ == module.name:
                    yield from (f"entry {name} {one}" for one in value.model_fields)
        for node in module.tree.body:
            if not isinstance(node, ast.ClassDef):
                continue
            if {node.name, *map(ast.unparse, node.bases)} & {"GPTConfig", "InductionConfig"}:
                yield from (f"entry GPTConfig {name}" for name in card_promises.fields_of(node))


# ---- names ----


def key_lines(tree: Tree) -> Iterator[str]:
    """Yield the keys of tables: those of TABLES, and those whose name the docs have."""
    named = set(re.findall(r"\b[A-Z][A-Z_]{3,}\b", tree.docs)) - NOT_TABLES | TABLES
    for module in tree.modules:
        for name in named.intersection(public_names(module.tree)):
            if not module.is_benchmark:
                yield from (f"key {name} {key}" for key in keys_of(getattr(module.load(), name, None)))


def keys_of(table: Any) -> Iterator[str]:
    """Yield the names in a table: its keys, the names of its rows, its texts, or the commands in a text."""
    if isinstance(table, str):
        yield from re.findall(r"(?<!\S)/[a-z]+", table)
    elif isinstance(table, Mapping | tuple | list | set | frozenset):
        for row in table:
            name = getattr(row, "name", row)
            if isinstance(name, tuple) and all(isinstance(part, str) for part in name):
                name = " ".join(name)
            if isinstance(name, str):
                yield name


def name_lines(tree: Tree) -> Iterator[str]:
    """Yield the names that a docstring in `__init__.py` has and a module beside it defines; and those of rustbpe."""
    for package in tree.modules:
        if package.path.name != "__init__.py" or package.name in FOLDERS[:2]:
            continue
        # Many docstrings say first what the package is for, and then what others import.
        listing = re.split(r"\bdoor\b|\bimport\b", ast.get_docstring(package.tree) or "", maxsplit=1)[-1]
        words = set(re.findall(r"\w+", listing)) - {"main"}
        for module in tree.modules:
            if module.path.parent == package.path.parent:
                yield from (f"name {package.name} {name}" for name in words.intersection(public_names(module.tree)))
    for path in tree.files("rustbpe/rustbpe.pyi"):
        stub = ast.parse(path.read_text(encoding="utf-8"))
        yield from (f"name rustbpe {name}" for name in public_names(stub))
        for node in stub.body:
            if isinstance(node, ast.ClassDef):
                methods = [inner.name for inner in node.body if isinstance(inner, Function)]
                yield from (f"name rustbpe {node.name}.{name}" for name in methods)


def public_names(tree: ast.Module) -> set[str]:
    """Return the names that a module defines, without those that begin with an underscore."""
    found: set[str] = set()
    for node in tree.body:
        if isinstance(node, Function | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return {name for name in found if not name.startswith("_")}
