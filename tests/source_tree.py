"""A checkout as the search for promises reads it: Python files as syntax trees, shell scripts, the text of pages."""

import ast
import importlib
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

FOLDERS = ("nanochat", "scripts", "tasks", "tracks", "bench")  # with code that users run or import
CARD = "# nanochat training report\n"  # the first line of a report card

Function = ast.FunctionDef | ast.AsyncFunctionDef
Texts = Mapping[str, list[str]]  # name -> texts that it can stand for


@dataclass
class Module:
    """A Python file. name: as it is imported."""

    name: str
    root: Path  # of the checkout
    path: Path
    text: str
    tree: ast.Module

    @property
    def command(self) -> str:
        """The name in `python -m NAME`."""
        return self.name.removesuffix(".__main__")

    @property
    def can_be_run(self) -> bool:
        guards = (ast.unparse(node.test) for node in self.tree.body if isinstance(node, ast.If))
        return any("__main__" in guard for guard in guards)

    @property
    def has_config(self) -> bool:
        """Whether `main(config)` takes the settings that nanochat.config reads from the command line."""
        mains = [node for node in self.tree.body if isinstance(node, Function) and node.name == "main"]
        return any([argument.arg for argument in main.args.args] == ["config"] for main in mains)

    @property
    def is_benchmark(self) -> bool:
        return self.name.startswith("bench.")

    def load(self) -> ModuleType | None:
        """Return the imported file; None if it needs a track whose folder is not there."""
        try:
            return importlib.import_module(self.name)
        except ModuleNotFoundError as error:
            package, *rest = (error.name or "").split(".")
            if package != "tracks" or not rest or (self.root / "tracks" / rest[0]).is_dir():
                raise
            return None

    def functions(self) -> list[Function]:
        return [node for node in ast.walk(self.tree) if isinstance(node, Function)]


@dataclass
class Tree:
    """The files of a checkout. docs: README, pages and shell scripts."""

    root: Path
    modules: list[Module] = field(default_factory=list)
    shells: list[Path] = field(default_factory=list)
    docs: str = ""

    @classmethod
    def read(cls, root: Path) -> "Tree":
        found = cls(root)
        for folder in FOLDERS:
            for path in sorted((root / folder).rglob("*.py")):
                parts = path.relative_to(root).with_suffix("").parts
                if "tests" in parts:  # a track has its own
                    continue
                name, text = ".".join(parts).removesuffix(".__init__"), path.read_text(encoding="utf-8")
                found.modules.append(Module(name, root, path, text, ast.parse(text)))
        found.shells = found.files("*.sh", "runs/*.sh", "bench/*.sh", "tracks/**/*.sh")
        texts = [path.read_text(encoding="utf-8") for path in [*found.pages(), *found.shells]]
        found.docs = "\n".join(text for text in texts if not text.startswith(CARD))
        return found

    def files(self, *patterns: str) -> list[Path]:
        return sorted({path for pattern in patterns for path in self.root.glob(pattern) if path.is_file()})

    def pages(self) -> list[Path]:
        """Return all Markdown files but the list of changes, which has names of the past."""
        pages = self.files("*.md", "docs/**/*.md", "bench/*.md", "report/*.md", "tracks/**/*.md")
        return [page for page in pages if page.name != "CHANGELOG.md"]

    def name_of(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()


def texts_of(node: ast.AST | None, known: Texts) -> list[str]:
    """Return the texts that an expression can be, with * for parts that are filled in; none for other expressions."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.JoinedStr):
        text = ""
        for part in node.values:
            found = texts_of(part.value if isinstance(part, ast.FormattedValue) else part, known)
            text += found[0] if len(found) == 1 else "*"
        return [text]
    if isinstance(node, ast.Name):
        return list(known.get(node.id, []))
    if isinstance(node, ast.IfExp):
        return texts_of(node.body, known) + texts_of(node.orelse, known)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = texts_of(node.left, known) or ["*"], texts_of(node.right, known) or ["*"]
        return [one + other for one in left for other in right]
    return []


def constants_of(body: list[ast.stmt], known: Texts | None = None) -> dict[str, list[str]]:
    """Return the names that statements give texts, and those that they give dictionaries, with their texts."""
    found = dict(known or {})
    for node in body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            values = node.value.values if isinstance(node.value, ast.Dict) else [node.value]
            texts = [text for value in values for text in texts_of(value, found)]
            if texts:
                found[node.targets[0].id] = texts
    return found


def is_named(node: ast.AST | None, *names: str) -> bool:
    """Whether a node is a name or an attribute with one of these names."""
    return getattr(node, "id", getattr(node, "attr", None)) in names


def git(root: Path, *words: str) -> str | None:
    """Return what git prints; None without git, or if it fails."""
    command = ["git", "-c", "safe.directory=*", "-C", str(root), *words]
    if not (root / ".git").exists():
        return None
    try:
        done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8")
    except FileNotFoundError:
        return None
    return done.stdout if done.returncode == 0 else None


def committed(root: Path, path: Path) -> str:
    """Return a file as it is staged or committed: each run of the main job writes report.md anew."""
    text = git(root, "show", f":./{path.relative_to(root).as_posix()}")
    return path.read_text(encoding="utf-8") if text is None else text
