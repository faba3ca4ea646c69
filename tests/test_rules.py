"""The rules of the code, each a function from a tree to its breaches ("file:line: what is wrong").

Every rule is tried on this repository, where it must find nothing, and on small planted breaches, which it must see.
"""

import ast
import json
import re
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import pytest
from conftest import cells, each_row

ROOT = Path(__file__).resolve().parent.parent

# Lowest first; a module imports from lower layers and from what stands to its left. A package is one entry.
LAYERS = [
    "errors extras cores registry tables paths log protocols foreign config hardware timing statistics multiplier"
    " environment waiting watch",
    "runtime outcome ladder metrics stages settings tokenizer chat calculator checkpoint kernel_builds",
    "attention flash_packages cross_entropy fp8 quantized quant muon optim schedules",
    "gpt induction int8 sharding models param_groups scaling cost",
    "world data start tuning_plan dataloader objectives packing",
    "fused decoder engine",
    "train rollouts run",
    "evals",
    "report serve",
    "jobs trial",
]
PLACE = {room: (layer, left) for layer, rooms in enumerate(LAYERS) for left, room in enumerate(rooms.split())}
HIGHEST_LAYER_FOR_TASKS = LAYERS.index("evals")
OUR_CODE = ("nanochat", "scripts", "tasks", "tracks")

# What may be called at import beside constructors (capitalised): it builds a value and touches nothing.
PURE_CALLS = set(
    "fromkeys values items fields uniform constant _line with_rows _orthogonal_or parse_rows parse_table "
    "dataclass field option options arg compile frozenset set dict tuple list range len sorted sum min max zip "
    "enumerate chr ord int float str bytes split join format strip replace lru_cache wraps no_grad inference_mode "
    "contextmanager dataclass_transform".split()
)
# What starts fast, and so its imports: these, and every command with a `Config`.
FAST = re.compile(r"scripts(\.|$)|nanochat\.(jobs|settings|config|stages|outcome)\b|bench\.(attacks|serve)$")
COMMAND = re.compile(r"^ *run_script\(main\)", re.MULTILINE)
SLOW = ("torch", "pyarrow", "scipy", "transformers")  # packages that take a tenth of a second and more to import

# In pieces, so that this file does not name what no file may name.
PACKAGE_HOSTS = "pypi~.org python~hosted crates~.io npm~js. pytorch~.org/whl ana~conda.".replace("~", "").split()


# ---- reading a tree ----


def files(root: Path):
    """Paths of what is or could be committed; in a tree without git, all of it but hidden folders."""
    if (root / ".git").exists():
        command = ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout.split("\0")
        return sorted(path for path in listed if (root / path).is_file())
    paths = (path.relative_to(root) for path in root.rglob("*") if path.is_file())
    return sorted(path.as_posix() for path in paths if not {".venv", "target", "__pycache__"} & set(path.parts))


def python_files(root: Path, *folders: str):
    """(path, tree) of the Python files in these folders; a track's tests are part of "tests"."""
    for path in files(root):
        is_test = path.startswith("tracks/") and re.search(r"/(tests/|test_\w+\.py)", path)
        top = "tests" if is_test else path.split("/")[0]
        if path.endswith(".py") and (not folders or top in folders):
            yield path, parsed((root / path).read_text(encoding="utf-8"))


@lru_cache(maxsize=2000)
def parsed(text: str) -> ast.Module:
    """The tree of a file, which every rule reads."""
    return ast.parse(text)


@lru_cache(maxsize=4000)
def imports(path: str, tree: ast.Module) -> list[tuple[str, int]]:
    """(dotted name, line) of every import, lazy ones too; `from a import b` counts as a.b."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            package = ".".join(filter(None, [path.split("/")[0] if node.level else "", node.module]))
            found += [(f"{package}.{alias.name}", node.lineno) for alias in node.names]
    return found


def module_name(path: str):
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def declared(root: Path):
    """Distribution → its line in pyproject.toml, over the dependencies and all extras."""
    found, table = {}, ""
    for number, line in enumerate((root / "pyproject.toml").read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("["):
            table = line
        elif table.startswith("[project") and (name := re.match(r' {4}"([\w.-]+)', line)):
            found[name[1].replace("-", "_")] = number
    return found


# ---- the rules ----


def rule_1_a_script_is_a_recipe(root: Path):
    """Rule 4 too: one frozen dataclass is the command line, the record and the card."""
    for path, tree in python_files(root, "scripts"):
        if path.endswith("__init__.py") or path.startswith("scripts/moved/"):
            continue
        mains = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "main"]
        if not mains or [argument.arg for argument in mains[0].args.args] != ["config"]:
            yield f"{path}:1: a script has one main(config)"
        first, *others = [node for node in tree.body if isinstance(node, ast.ClassDef)] or [None]
        if not first or not ast.unparse(first).startswith("@options("):
            yield f"{path}:1: a script has one class with @options, its config"
        for extra in others:
            yield f"{path}:{extra.lineno}: class {extra.name}: a script has no class but its config"
        for name, line in imports(path, tree):
            if name.split(".")[0] in {"argparse", "click", "tyro"}:
                yield f"{path}:{line}: the command line is read by nanochat.config, from the dataclass"


@lru_cache(maxsize=4000)
def for_type_checkers(tree: ast.Module):
    """Line numbers of imports that run for type checkers alone."""
    guards = [node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)]
    guarded = [inner for guard in guards for statement in guard.body for inner in ast.walk(statement)]
    return {node.lineno for node in guarded if hasattr(node, "lineno")}


def rule_2_imports_go_down(root: Path):
    forbidden = {
        "nanochat": ("scripts", "tasks", "tracks"),
        "tasks": ("scripts", "tracks"),
        "scripts": ("scripts", "tracks"),
        "tests": ("tracks",),
    }
    for path, tree in python_files(root, *forbidden):
        folder = path.split("/")[0]
        if folder == "tracks":
            continue  # rule_2_a_track_hangs_on_the_trunk_alone
        if folder == "tests":
            yield from (
                f"{path}:{line}: {folder}/ does not import tracks/"
                for name, line in imports(path, tree)
                if name.startswith("tracks.")
            )
            continue
        room = path.removesuffix(".py").split("/")[1]
        if folder == "nanochat" and room != "__init__" and room not in PLACE:
            yield f"{path}:1: {room} has no layer; add it to LAYERS"
            continue
        unchecked = for_type_checkers(tree)
        for name, line in imports(path, tree):
            package, target = [*name.split("."), ""][:2]
            if package in forbidden[folder]:
                yield f"{path}:{line}: {folder}/ does not import {package}/"
            if package != "nanochat" or target not in PLACE or line in unchecked or folder == "scripts":
                continue
            if folder == "tasks" and PLACE[target][0] > HIGHEST_LAYER_FOR_TASKS:
                yield f"{path}:{line}: tasks/ imports at most evals, not {target}"
            if folder == "nanochat" and room != target and room in PLACE and PLACE[target] > PLACE[room]:
                yield f"{path}:{line}: {target} is above {room}; pass in what is needed from it"


def rule_2_a_track_hangs_on_the_trunk_alone(root: Path):
    """A track imports another one only if its README names that folder, like `tracks/chatdata`."""
    for path, tree in python_files(root, "tracks"):
        if path.count("/") < 2:
            continue
        own = path.split("/")[1]
        readme = root / "tracks" / own / "README.md"
        named = readme.read_text(encoding="utf-8") if readme.exists() else ""
        for name, line in imports(path, tree):
            package, other = [*name.split("."), ""][:2]
            if package == "tracks" and other != own and f"tracks/{other}" not in named:
                yield f"{path}:{line}: tracks/{own}/README.md does not name tracks/{other}, which it imports"


def rule_2_a_package_has_one_door(root: Path):
    """Names that other packages import stand in the docstring of the package's __init__.py."""
    doors = {}
    for path, tree in python_files(root, "nanochat"):
        if path.endswith("/__init__.py") and path.count("/") == 2:
            doors[path.split("/")[1]] = ast.get_docstring(tree) or ""
    for path, tree in python_files(root, *OUR_CODE):
        unchecked = for_type_checkers(tree)
        for name, line in imports(path, tree):
            parts = name.split(".")
            inside = len(parts) > 1 and path.startswith(f"nanochat/{parts[1]}/")
            if len(parts) < 3 or parts[0] != "nanochat" or parts[1] not in doors or inside or line in unchecked:
                continue
            if not re.search(rf"\b{parts[-1]}\b", doors[parts[1]]):
                yield f"{path}:{line}: nanochat/{parts[1]}/__init__.py does not list {parts[-1]}"


def rule_3_one_training_loop(root: Path):
    for path, tree in python_files(root, *OUR_CODE):
        calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute))
        for call in calls:
            steps = call.func.attr == "step" and "opt" in ast.unparse(call.func.value).lower()
            if path != "nanochat/train.py" and (steps or call.func.attr == "backward"):
                yield f"{path}:{call.lineno}: {ast.unparse(call.func)}() belongs in nanochat/train.py alone"


def at_import(body: list[ast.AST]):
    """Every node that runs when a module is imported: not what stands inside functions or under `if __name__`."""
    for node in body:
        if isinstance(node, ast.If) and re.search("__name__|TYPE_CHECKING", ast.unparse(node.test)):
            continue
        yield node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            defaults = [default for default in node.args.defaults + node.args.kw_defaults if default]
            yield from at_import(defaults + getattr(node, "decorator_list", []))
        else:
            yield from at_import(list(ast.iter_child_nodes(node)))


def rule_8_nothing_is_done_at_import(root: Path):
    statements = (ast.For, ast.While, ast.With, ast.Try, ast.If, ast.Delete, ast.Raise)
    for path, tree in python_files(root, *OUR_CODE):
        for node in at_import(tree.body):
            is_call = isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant)
            if is_call or isinstance(node, statements):
                yield f"{path}:{node.lineno}: this statement runs at import; move it into a function"
            elif isinstance(node, ast.Call):
                called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                if called not in PURE_CALLS and not called.lstrip("_")[:1].isupper():
                    yield f"{path}:{node.lineno}: {ast.unparse(node.func)}() is called at import"
            elif isinstance(node, ast.Attribute) and node.attr in ("environ", "argv"):
                yield f"{path}:{node.lineno}: {ast.unparse(node)} is read at import"


# Imports the modules named on its command line in order; prints (module, what it did) for all beyond importing.
WATCHER = """
import importlib, json, os, sys
seen, current = [], ""
def watch(event, args):
    wrote = event == "open" and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    if current and (wrote or event.startswith(("socket.", "subprocess.", "os.mkdir"))):
        frame = sys._getframe()
        while frame and frame.f_globals.get("__name__") != "torch":
            frame = frame.f_back
        if not frame:  # what torch does while it is imported is its own affair
            seen.append((current, f"{event} {args[0]}"))
sys.addaudithook(watch)
slow = sys.argv[1].split()
for current in sys.argv[2:]:
    before = set(sys.modules)
    importlib.import_module(current)
    seen += [(current, f"imports {name}") for name in slow if name in sys.modules.keys() - before]
current = ""
print(json.dumps(seen))
"""


# Only copied: transformers, which makes a folder then, imports it.
NOT_IMPORTED = "tracks.export.modeling_nanochat"


def importable(root: Path) -> dict[str, str]:
    """Return module -> path of what can be imported: in a copy without a track, the tracks that use it cannot."""
    files = {module_name(path): (path, tree) for path, tree in python_files(root, *OUR_CODE)}
    gone = tuple(f"tracks.{name}." for name in absent_tracks(root))
    users = {
        name.split(".")[1]
        for name, (path, tree) in files.items()
        if name.startswith("tracks.") and any(other.startswith(gone) for other, _ in imports(path, tree))
    }
    return {
        name: path
        for name, (path, _) in files.items()
        if name != NOT_IMPORTED and not (name.startswith("tracks.") and name.split(".")[1] in users)
    }


def rule_8_importing_is_quiet(root: Path):
    """In a fresh process: no file, socket or process is made; what must start fast is without SLOW packages."""
    paths = importable(root)
    fast = {
        name
        for name, path in paths.items()
        if FAST.match(name) or COMMAND.search((root / path).read_text(encoding="utf-8"))
    }
    modules = [*sorted(fast), *sorted(paths.keys() - fast)]
    command = [sys.executable, "-B", "-c", WATCHER, " ".join(SLOW), *modules]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for name, act in json.loads(done.stdout):
        if name in fast or not act.startswith("imports "):
            yield f"{paths[name]}:1: importing it: {act}"


def rule_11_every_module_and_stage_is_tested(root: Path):
    """nanochat/a/b.py has tests/a/test_b.py, tracks/a/b.py has tracks/a/tests/test_b.py.

    A test in tests/scripts or test_end_to_end.py runs each script.
    """
    end_to_end = root / "tests" / "test_end_to_end.py"
    commands = end_to_end.read_text(encoding="utf-8") if end_to_end.exists() else ""
    for path, _ in python_files(root, "nanochat", "scripts", "tracks"):
        folder, *inner, module = path.removesuffix(".py").split("/")
        if module == "__init__" or path.startswith("scripts/moved/"):
            continue
        test = root.joinpath("tests", *inner, f"test_{module.strip('_')}.py")
        if folder == "tracks":
            test = root.joinpath(folder, *inner, "tests", f"test_{module}.py")
            tests = "".join(path.read_text(encoding="utf-8") for path in test.parent.glob("test_*.py"))
            if f"{folder}.{inner[0]}.{module}" in tests or f"from {folder}.{inner[0]} import {module}" in tests:
                continue
        if folder != "scripts" and not (test.exists() and "\ndef test_" in test.read_text(encoding="utf-8")):
            yield f"{path}:1: no test in {test.relative_to(root)}"
        own_test = root / f"tests/scripts/test_{module}.py"
        if folder == "scripts" and not (own_test.exists() or re.search(rf"\b{module}\b", commands)):
            yield f"{path}:1: neither tests/test_end_to_end.py nor a test in tests/scripts runs it"


def absent_tracks(root: Path):
    """Tracks that the index has, and the tree has not: it is a copy to test that tracks can be deleted."""
    index = root / "tracks/README.md"
    listed = re.findall(r"\]\((\w+)/README\.md\)", index.read_text(encoding="utf-8")) if index.exists() else []
    return [name for name in listed if not (root / "tracks" / name).exists()]


def rule_12_imported_is_declared_is_used(root: Path):
    """bench/ is left out: it drives peers out of environments of their own. Absent tracks may use what is declared."""
    found, used = declared(root), {}
    ours = {*OUR_CODE, "bench", "conftest", "tests", *(path.stem for path in (root / "tests").glob("*"))}
    for path, tree in python_files(root, *OUR_CODE, "tests"):
        for name, line in imports(path, tree):
            used.setdefault(name.split(".")[0], f"{path}:{line}")
    used.pop("tiktoken_ext", None)  # part of tiktoken
    # Their distributions have other names.
    distributions = {"yaml": "pyyaml", "markdown_it": "markdown_it_py", "rustbpe": "nanochat_rustbpe"}
    for name, distribution in distributions.items():
        if name in used:
            used[distribution] = used.pop(name)
    for name, where in used.items():
        if name not in found and name not in ours and name not in sys.stdlib_module_names:
            yield f"{where}: {name} is imported but not declared in pyproject.toml"
    if absent_tracks(root):
        return
    commands = (root / "pyproject.toml").read_text(encoding="utf-8").partition("[project]")[0]  # the build system
    commands += "\n".join((root / path).read_text(encoding="utf-8") for path in files(root) if path.endswith(".sh"))
    for name, line in found.items():
        if not (name in used or re.search(rf"\b{name}\b", commands.replace("-", "_"))):
            yield f"pyproject.toml:{line}: {name} is declared but neither imported nor run by a script"


def rule_12_the_lock_pins_everything(root: Path):
    text = (root / "requirements.lock").read_text(encoding="utf-8")
    locked = {name.replace("-", "_") for name in re.findall(r"^([\w.-]+)==", text, re.MULTILINE)}
    lines = (root / "pyproject.toml").read_text(encoding="utf-8").splitlines()
    for name, line in declared(root).items():
        if name not in locked and not lines[line - 1].endswith("; not locked"):
            yield f"pyproject.toml:{line}: {name} is not locked: run runs/lock.sh"
    for number, line in enumerate(text.splitlines(), 1):
        if not re.match(r"#|[\w.-]+==\S+ .*\\$|    --hash=sha256:[0-9a-f]{64}( \\)?$", line):
            yield f"requirements.lock:{number}: not a pinned, hashed requirement: {line[:80]}"


def rule_no_package_host_is_named(root: Path):
    for path in files(root):
        if path == "uv.lock":
            yield f"{path}:1: it names package hosts, so it is made locally and never committed"
        for number, line in enumerate((root / path).read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            found = [host for host in PACKAGE_HOSTS if host in line.lower()]
            yield from (f"{path}:{number}: names a package host, {host}" for host in found)


def rule_shell_scripts_parse(root: Path):
    for path in files(root):
        if path.endswith(".sh") or path == ".ci/run":
            done = subprocess.run(["bash", "-n", path], cwd=root, capture_output=True, text=True)
            line = re.search(r"line (\d+)", done.stderr)
            if done.returncode:
                yield f"{path}:{line[1] if line else 1}: {done.stderr.strip()}"


# ---- every rule on the repository and on planted breaches ----

# rule | file and the line at which the breach must be seen | text of the file; around it stands an empty repository.
PLANTS = r"""
rule_1_a_script_is_a_recipe | scripts/a.py:1 | def run(config): ...\n
rule_1_a_script_is_a_recipe | scripts/a.py:4 | @options()\nclass C: ...\ndef main(config): ...\nclass Helper: ...\n
rule_1_a_script_is_a_recipe | scripts/a.py:1 | @dataclass(frozen=True)\nclass C: ...\n
rule_1_a_script_is_a_recipe | scripts/a.py:3 | @options()\nclass C: ...\nimport argparse\n
rule_2_imports_go_down | nanochat/config.py:2 | import os\nimport tasks.common\n
rule_2_imports_go_down | nanochat/config.py:2 | def f():\n    from nanochat import runtime\n
rule_2_imports_go_down | nanochat/gpt.py:1 | from .train import train\n
rule_2_imports_go_down | nanochat/log.py:2 | import os\nfrom nanochat import config\n
rule_2_imports_go_down | nanochat/data/hub.py:1 | from nanochat.dataloader import TextLoader\n
rule_2_imports_go_down | nanochat/novelty.py:1 | \n
rule_2_imports_go_down | scripts/a.py:1 | from scripts.b import main\n
rule_2_imports_go_down | tasks/a.py:1 | import nanochat.serve.app\n
rule_2_imports_go_down | nanochat/gpt.py:1 | from tracks.golf import score\n
rule_2_imports_go_down | tests/test_a.py:1 | from tracks.golf.score import load\n
rule_2_a_track_hangs_on_the_trunk_alone | tracks/golf/a.py:1 | from tracks.lab.run import main\n
rule_2_a_package_has_one_door | scripts/a.py:1 | from nanochat.data.hub import fetch\n
rule_2_a_package_has_one_door | nanochat/gpt.py:2 | import os\nfrom nanochat.data import hub\n
rule_3_one_training_loop | scripts/a.py:2 | def f(loss):\n    loss.backward()\n
rule_3_one_training_loop | nanochat/gpt.py:2 | def f(self):\n    self.optimizer.step()\n
rule_8_nothing_is_done_at_import | nanochat/a.py:2 | import os\nHERE = os.getcwd()\n
rule_8_nothing_is_done_at_import | nanochat/a.py:2 | import os\nHOME = os.environ['HOME']\n
rule_8_nothing_is_done_at_import | scripts/a.py:1 | def main(config=load()): ...\n
rule_8_nothing_is_done_at_import | tasks/a.py:2 | class T:\n    rows = fetch()\n
rule_8_nothing_is_done_at_import | tasks/a.py:1 | for name in ('a', 'b'):\n    T[name] = 1\n
rule_8_importing_is_quiet | nanochat/gpt.py:1 | import os\nos.mkdir(__file__ + '.d')\n
rule_8_importing_is_quiet | nanochat/paths.py:1 | open(__file__ + '.txt', 'w').close()\n
rule_8_importing_is_quiet | scripts/a.py:1 | import sys, types\nsys.modules['torch'] = types.ModuleType('torch')\n
rule_11_every_module_and_stage_is_tested | nanochat/gpt.py:1 | \n
rule_11_every_module_and_stage_is_tested | scripts/a.py:1 | \n
rule_11_every_module_and_stage_is_tested | tracks/golf/a.py:1 | \n
rule_12_imported_is_declared_is_used | nanochat/a.py:3 | import numpy\ndef f():\n    import requests\n
rule_12_imported_is_declared_is_used | pyproject.toml:3 | [project]\ndependencies = [\n    "numpy>=2",\n]\n
rule_12_the_lock_pins_everything | pyproject.toml:3 | [project]\ndependencies = [\n    "numpy>=2",\n]\n
rule_12_the_lock_pins_everything | requirements.lock:3 | numpy==2.0 \\\n    --hash=sha256:ZEROS\n-e file:///tmp/x\n
rule_12_the_lock_pins_everything | requirements.lock:1 | numpy==2.0\n
rule_no_package_host_is_named | README.md:2 | see\nhttps://HOST/\n
rule_no_package_host_is_named | uv.lock:1 | \n
rule_shell_scripts_parse | runs/a.sh:3 | echo a\nif true; then\n
"""
FILLED = {
    "ZEROS": "0" * 64,
    "HOST": PACKAGE_HOSTS[0],
}
RULES = {name: value for name, value in globals().items() if name.startswith("rule_")}


@pytest.mark.parametrize("rule", RULES)
def test_the_repository_keeps(rule) -> None:
    faults = list(RULES[rule](ROOT))
    assert not faults, "\n".join(faults)


@each_row("rule place text", PLANTS)
def test_a_planted_breach_is_seen(rule, place, text, tmp_path) -> None:
    text = re.sub("|".join(FILLED), lambda name: FILLED[name[0]], text.replace(r"\n", "\n"))
    packages = {f"{folder}/__init__.py": "" for folder in (*OUR_CODE, "nanochat/data", "nanochat/serve")}
    files = {"pyproject.toml": "[project]\n", "requirements.lock": "", **packages, place.partition(":")[0]: text}
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content, encoding="utf-8")
    assert [breach for breach in RULES[rule](tmp_path) if breach.startswith(f"{place}: ")]


def test_every_rule_has_its_plants() -> None:
    assert {rule for rule, *_ in cells(PLANTS)} == RULES.keys()
