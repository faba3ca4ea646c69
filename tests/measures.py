"""Measure how much a reader of the code has to carry: size, density, rooms, words.

Ceilings stand in `tests/test_rules.py`. Size is counted in nodes of the syntax tree, because lines can be met by
squeezing; comments and docstrings cost nothing.
"""

import ast
import io
import re
import tokenize
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

OUR_CODE = ("nanochat", "scripts", "tasks")
STATIC_FILES = (".sh", ".html", ".js", ".css", ".txt", ".toml", ".json", ".jsonl", ".yaml", ".yml")
STORY_WORDS = set("told tell tells hear heard ear mouth look looks hooked begun anew said say says what whose".split())
PRONOUNS = set("what that those which whose where whether it its".split())
WRONG_OPENING = re.compile(r"(What|Of|Those|That|Whether|Where|Whose|Which|How|Why|As|By|Not|Nothing|Until|To|Into)\b")
NO_CODE = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER, tokenize.COMMENT}
VAGUE = re.compile(r"\b(Any|object)\b")  # types
Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef


@dataclass
class File:
    """One Python file. statements: nodes of each, without those of statements inside it."""

    counts: Counter
    statements: list[int]
    public: list[str]
    docstrings: list[str]
    prose: list[str]


def statement_size(statement: ast.stmt):
    count, queue = 0, [statement]
    while queue:
        count += 1
        children = ast.iter_child_nodes(queue.pop())
        queue += [child for child in children if not isinstance(child, ast.stmt | ast.excepthandler | ast.match_case)]
    return count


def is_squeezed(node: ast.AST):
    """A ** splat in a call, three assignments in one, or a list times something."""
    if isinstance(node, ast.Call):
        return any(keyword.arg is None for keyword in node.keywords)
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
        return isinstance(node.value, ast.Tuple) and len(node.targets[0].elts) > 2
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and isinstance(node.left, ast.List | ast.Tuple)


def useful_comment_lines(tokens: list[tokenize.TokenInfo]):
    """Count comments with two words or more that neither the next three lines of code nor an earlier comment have."""
    words_of_code: dict[int, set[str]] = defaultdict(set)
    for token in tokens:
        if token.type == tokenize.NAME:
            words_of_code[token.start[0]] |= {word.lower() for word in re.findall("[A-Z]?[a-z]+|[A-Z]+", token.string)}
    rows, seen = set(), set()
    for token in tokens:
        if token.type == tokenize.COMMENT and token.string not in seen:
            near = set().union(*(words_of_code[token.start[0] + offset] for offset in range(4)))
            if len({word.lower() for word in re.findall("[A-Za-z]{3,}", token.string)} - near) > 1:
                rows.add(token.start[0])
            seen.add(token.string)
    return len(rows)


def measure(path: Path):
    text = path.read_text(encoding="utf-8")
    tree, lines = ast.parse(text), text.split("\n")
    nodes = list(ast.walk(tree))
    tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))

    documented = [node for node in nodes if isinstance(node, ast.Module | Definition) and ast.get_docstring(node)]
    docstring_nodes = {id(node.body[0].value) for node in documented}
    docstring_rows = {row for node in documented for row in range(node.body[0].lineno, node.body[0].end_lineno + 1)}
    docstrings = [ast.get_docstring(node) for node in documented]

    code_tokens = [token for token in tokens if token.type not in NO_CODE]
    code_rows = {row for token in code_tokens for row in range(token.start[0], token.end[0] + 1)} - docstring_rows
    comments = [token for token in tokens if token.type == tokenize.COMMENT]
    beside_code = sum(len(token.string) for token in comments if token.start[0] in code_rows)
    names = [getattr(node, key, None) for node in nodes for key in ("id", "attr", "arg", "name")]
    words = re.findall("[a-z]+", " ".join(name for name in names if isinstance(name, str)).lower())
    counts = Counter(
        nodes=len(nodes),
        code_lines=len(code_rows),
        code_bytes=sum(len(lines[row - 1].encode()) + 1 for row in code_rows) - beside_code,
        comment_lines=useful_comment_lines(tokens),
        squeezed=sum(map(is_squeezed, nodes)),
        story_names=sum(word in STORY_WORDS for word in words),
    )
    for function in (node for node in nodes if isinstance(node, Function)):
        arguments = function.args.posonlyargs + function.args.args + function.args.kwonlyargs
        types = [argument.annotation for argument in arguments if argument.arg not in ("self", "cls")]
        counts["parameters"] += len(types)
        counts["vague_parameters"] += sum(not type or bool(VAGUE.search(ast.unparse(type))) for type in types)

    public = [node for node in nodes if isinstance(node, Definition) and not node.name.startswith("_")]
    strings = [node.value for node in nodes if isinstance(node, ast.Constant) and id(node) not in docstring_nodes]
    messages = [value for value in strings if isinstance(value, str) and len(re.findall("[a-z]+", value)) > 3]
    if "world" in path.parts:  # sentences of the embedded world are data
        messages = []
    return File(
        counts,
        statements=[statement_size(node) for node in nodes if isinstance(node, ast.stmt)],
        public=[node.name for node in tree.body if node in public and node.name not in ("main", "Config")],
        docstrings=docstrings,
        prose=[*docstrings, *(token.string for token in comments), *messages],
    )


def prose_outside_python(root: Path, files: list[str]):
    """Comments of shell scripts; README and docs without code."""
    for path in files:
        text = (root / path).read_text(encoding="utf-8", errors="replace")
        if path.endswith(".sh"):
            yield from re.findall(r"(?m)(?:^|\s)#+ (.*)$", text)
        elif path == "README.md" or re.fullmatch(r"docs/[^/]+\.md", path):
            yield re.sub(r"```.*?```|`[^`]*`", " ", text, flags=re.DOTALL)


def module_name(path: str):
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def loaded_by(start: str, imports: dict[str, set[str]]):
    """Modules that an import of `start` may load, lazy imports too; packages' own files are left out."""
    seen, queue = set(), [start]
    while queue:
        name = queue.pop()
        if name in imports and name not in seen:
            seen.add(name)
            queue += [*imports[name], name.rpartition(".")[0]]
    packages = {name.rpartition(".")[0] for name in imports}
    return {name for name in seen - {start} - packages if not name.startswith("scripts")}


def figures(root: Path, files: list[str], imports: dict[str, set[str]]):
    """All figures by name. imports: modules that each module of ours may load."""
    python = [path for path in files if path.endswith(".py")]
    ours = {path: measure(root / path) for path in python if path.split("/")[0] in OUR_CODE}
    elsewhere = {path: len(list(ast.walk(ast.parse((root / path).read_text())))) for path in python if path not in ours}
    tests = [path for path in elsewhere if path.startswith("tests/")]
    total = sum((file.counts for file in ours.values()), Counter())
    statements = [nodes for file in ours.values() for nodes in file.statements]
    docstrings = [docstring for file in ours.values() for docstring in file.docstrings]
    public = [name for file in ours.values() for name in set(file.public)]

    prose = [part for file in ours.values() for part in file.prose] + list(prose_outside_python(root, files))
    words = Counter(word.lower() for part in prose for word in re.findall("[A-Za-z']+", part))
    thousand_words = max(1, words.total()) / 1000
    made = ("tests/", "docs/", "report/")
    static = [path for path in files if path.endswith(STATIC_FILES) and not path.startswith(made)]
    by_module = {module_name(path): file for path, file in ours.items()}
    under_base_train = loaded_by("scripts.base_train", imports)
    sizes = [(file.counts["code_lines"], file.counts["nodes"]) for file in ours.values()]
    return {
        "AST nodes": total["nodes"],
        "bytes of code": total["code_bytes"],
        "AST nodes of Python elsewhere": sum(nodes for path, nodes in elsewhere.items() if path not in tests),
        "bytes of shell, HTML, TOML, JSON, text": sum((root / path).stat().st_size for path in static),
        "test lines": sum((root / path).read_text(encoding="utf-8").count("\n") for path in tests),
        "test AST nodes": sum(elsewhere[path] for path in tests),
        "nodes per code line": total["nodes"] / max(1, total["code_lines"]),
        "files over 12.5 nodes per code line": sum(lines > 40 and nodes > 12.5 * lines for lines, nodes in sizes),
        "nodes per statement": sum(statements) / max(1, len(statements)),
        "statements over 25 nodes, per 1,000": 1000 * sum(n > 25 for n in statements) / max(1, len(statements)),
        "splats, threefold assignments, lists times something": total["squeezed"],
        "vague parameters, %": 100 * total["vague_parameters"] / max(1, total["parameters"]),
        "useful comment lines per code line": total["comment_lines"] / max(1, total["code_lines"]),
        "files directly in nanochat/": sum(bool(re.fullmatch(r"nanochat/(?!__init__)\w+\.py", path)) for path in ours),
        "packages in nanochat/": len({path.split("/")[1] for path in ours if re.match(r"nanochat/\w+/", path)}),
        "modules that base_train loads": len(under_base_train),
        "AST nodes that base_train loads": sum(
            by_module[name].counts["nodes"] for name in under_base_train if name in by_module
        ),
        "public names defined in several modules": sum(count > 1 for count in Counter(public).values()),
        "names that tell a story": total["story_names"],
        "'what' per 1,000 words": words["what"] / thousand_words,
        "'of' per 1,000 words": words["of"] / thousand_words,
        "pronouns per 1,000 words": sum(words[word] for word in PRONOUNS) / thousand_words,
        "docstrings with a wrong opening, %": 100
        * sum(bool(WRONG_OPENING.match(docstring)) for docstring in docstrings)
        / max(1, len(docstrings)),
    }
