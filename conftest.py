"""What the tests of stages share: real processes in an environment of their own."""

import atexit
import importlib
import multiprocessing.util
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from browsers import NAMES, Browser, installed
from bundles import world_tasks, write_bundle
from copies import BEING_COMPILED
from corpora import write_letters
from fake_hub import write_hub
from forks import forking
from huggingface_hub import constants
from mistakes import words_of, write_files
from quick import fork_for_commands, write_program

from nanochat import config, runtime
from nanochat.paths import write_text
from nanochat.world.writer import write_world

ROOT = Path(__file__).resolve().parent

FILES = 600  # limit on open files for the server of the tests

# What a shell starts in the background takes no notice of Ctrl-C, and hands that down: tests of it would wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)


# The files that take longest, the very longest first: begun late, one of them would be all that is left for many cores.
LONGEST = (
    "tracks/test_deletion.py",
    "tests/test_end_to_end.py",
    "tests/scripts/test_trial.py",
    "tests/test_committed_cards.py",
    "tracks/recursion/tests/test_eval.py",
    "tracks/recursion/tests/test_model.py",
    "tracks/test_pages.py",
    "tests/test_changing.py",
    "tests/test_bench.py",
    "tests/test_run.py",
    "tracks/recursion/tests/test_study.py",
    "tracks/scale/tests/test_nodes.py",
    "tests/test_sharding.py",
    "tests/test_speedrun.py",
    "tests/test_docs.py",
    "tracks/recursion/tests/test_train.py",
    "tracks/golf/tests/test_run.py",
    "tests/test_train.py",
)


# Programs that look these up under HOME, and would install or compile again in an empty one.
TOOLS = {"CARGO_HOME": ".cargo", "RUSTUP_HOME": ".rustup", "UV_CACHE_DIR": ".cache/uv"}
# Settings of the person who runs the tests; a test that needs one sets it.
PERSONAL = ("NANOCHAT_BASE_DIR", "NANOCHAT_HUB", "HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME", "WANDB_DIR")


def separate(environment: pytest.MonkeyPatch, home: Path, temporary: Path) -> None:
    """Give this process, and those that it starts, a home and a temporary folder of their own."""
    for variable, place in TOOLS.items():
        environment.setenv(variable, os.environ.get(variable) or str(Path.home() / place))
    for variable in PERSONAL:
        environment.delenv(variable, raising=False)
    for variable, folder in {"HOME": home, "TMPDIR": temporary}.items():
        folder.mkdir()
        environment.setenv(variable, str(folder))
    environment.setattr(tempfile, "tempdir", None)  # tempfile keeps the first answer
    environment.setenv("NO_PROXY", "127.0.0.1")
    environment.setenv("HF_HUB_OFFLINE", "1")  # a test with a server of its own switches downloads on
    environment.setattr(constants, "HF_HUB_OFFLINE", True)  # read when the library was imported


@pytest.fixture(scope="session")
def short_folder() -> Iterator[Path]:
    """A folder for sockets, whose address may have 107 bytes; that of tmp_path may be too long by itself."""
    if len(tempfile.gettempdir()) > 40:
        tempfile.tempdir = "/tmp"
    multiprocessing.util.get_temp_dir()  # made here, as it outlives the folder below
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        yield Path(name)


@pytest.fixture(scope="session", autouse=True)
def session_home(short_folder: Path, tmp_path_factory: pytest.TempPathFactory, compiled: dict[str, str]):
    """Fixtures that several tests share see neither this machine's runs nor its caches."""
    with pytest.MonkeyPatch.context() as environment:
        for variable, place in compiled.items():
            environment.setenv(variable, place)
        runtime.avoid_broken_amx()
        runtime.keep_tile_stores()
        separate(environment, tmp_path_factory.mktemp("session") / "home", short_folder / "session")
        yield


@pytest.fixture(autouse=True)
def own_home(session_home: None, short_folder: Path, tmp_path_factory: pytest.TempPathFactory):
    """Each test has its own HOME, and with it base directory and hub cache, and its own temporary folder."""
    own = tmp_path_factory.mktemp("own")
    with pytest.MonkeyPatch.context() as environment:
        separate(environment, own / "home", short_folder / own.name)
        yield


def checked(done: subprocess.CompletedProcess, code: int):
    """Return the result of a process that ended with the expected code; a refusal, code 2, is one sentence."""
    assert done.returncode == code, done.stdout + done.stderr
    assert code != 2 or re.fullmatch("error: .*\n", done.stderr), done.stderr
    return done


def cells(table: str, between: str = " | "):
    """The lines of a text, each split into its cells."""
    return [line.split(between) for line in table.strip("\n").splitlines()]


def each_row(names: str, table: str, between: str = " | "):
    """Run a test with each line of a text, which has a cell for each name."""
    return pytest.mark.parametrize(names.split(), cells(table, between))


def plant_world(base: Path, world: Path):
    """Let the base folder have a world, which would take ten seconds to write; returns the folder."""
    base.mkdir(exist_ok=True)
    (base / "world").symlink_to(world)
    return base


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.set_blocked("logging-plugin")  # it would keep thousands of the compiler's records


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    place = {ROOT / name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path, len(place)))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("no GPU")
        # A run of an earlier test allowed TF32 in this process, in which a sampled token may be another one.
        torch.set_float32_matmul_precision("highest")


@pytest.fixture
def seed():
    """A new seed in each run; pytest shows it where a test fails."""
    number = random.randrange(2**32)
    print(f"seed {number}")
    return number


@pytest.fixture(scope="session")
def chromium(tmp_path_factory):
    """A browser that runs; a test of pages skips where none is installed."""
    if not installed():
        pytest.skip(f"no browser on this machine: install one of {', '.join(NAMES)}")
    running = Browser(installed(), tmp_path_factory.mktemp("browser") / "profile")
    yield running
    running.close()


@pytest.fixture
def serve():
    """Starts scripted servers, which end with the test."""
    from scripted import Scripted  # which imports torch

    with ExitStack() as servers:
        yield lambda answers=None, **options: servers.enter_context(Scripted(answers or {}, **options))


@pytest.fixture(scope="session")
def twin(tmp_path_factory):
    """An engine in this process with the server's weights, which are in `twin.base`."""
    from bench.served import write_model  # which imports torch

    base = tmp_path_factory.mktemp("serve") / "base"
    engine = write_model(base)
    engine.base = base
    return engine


@pytest.fixture(scope="session")
def server(twin):
    """One server for all tests that do not end or overload it; it may open FILES files."""
    from bench.served import serving

    with serving(twin.base, "--slots=4", files=FILES) as server:
        yield server


@pytest.fixture
def visit(chromium):
    """Opens a page of its own at a server; at the end none has complained."""
    pages = []

    def start(address: str, *look, **options):
        pages.append(chromium.page(*look, **options))
        pages[-1].goto(address)
        return pages[-1]

    yield start
    for page in pages:
        page.js("0")  # events come before its answer
        page.close()
    assert [page.errors for page in pages] == [[] for _ in pages]


@pytest.fixture
def base(tmp_path: Path, monkeypatch):
    """The folder where this process, and those of `python`, leave their artifacts."""
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(tmp_path / "base"))
    return tmp_path / "base"


@pytest.fixture(scope="session")
def compiled(tmp_path_factory):
    """The variable with which processes find what others have compiled before them, those of other workers too."""
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    return {"TORCHINDUCTOR_CACHE_DIR": str(shared / "compiled")}


@pytest.fixture
def python(base: Path, compiled: dict[str, str]):
    """Run `python ARGUMENTS` in the repository's root, without this machine's settings; `variables` are added."""

    def run(*arguments: str, cwd: Path = ROOT, code: int = 0, **variables: str):
        ours = ("NANOCHAT_", "HF_", "TIKTOKEN_", "WANDB_", "RANK", "COLUMNS", "PYTHONPATH")
        env = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        env |= {"NANOCHAT_BASE_DIR": str(base), "HF_HUB_OFFLINE": "1", **compiled, **variables}
        command = [sys.executable, *arguments]
        return checked(subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=300), code)

    return run


@pytest.fixture
def without_heavy(python, tmp_path: Path):
    """`python` where importing a package that takes a tenth of a second or more ends the process."""
    for heavy in ("torch", "pyarrow", "numpy", "scipy", "pydantic", "transformers", "wandb", "tiktoken", "openai"):
        (tmp_path / f"{heavy}.py").write_text(f"raise SystemExit('{heavy} was imported')")
    return partial(python, PYTHONPATH=str(tmp_path))


@pytest.fixture(scope="session")
def quick(session_home: None, short_folder: Path):
    """The path of a program that does what python does with -m and -c, without importing the code anew."""
    (short_folder / "quick").mkdir()
    program, address = write_program(short_folder / "quick")
    server = forking().Process(target=fork_for_commands, args=(address, program))
    server.start()
    atexit.register(server.kill)  # should this process end by an error, before multiprocessing waits for the server
    while not Path(address).exists():
        assert server.is_alive()
        time.sleep(0.01)
    yield program
    server.kill()


@pytest.fixture
def series(tmp_path: Path, base: Path, text_folder: Path, quick: str):
    """A function that runs a command of a series in the folder that has `letters`."""

    def run(module: str, *flags: str, code: int = 0):
        environment = os.environ | {"NANOCHAT_BASE_DIR": str(base), "OMP_NUM_THREADS": "1", "COLUMNS": "100"}
        words = [quick, "-m", module, *flags]
        return checked(subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True), code)

    return run


class Reader:
    """Somebody who runs what the pages show, in a folder that has a user's text, a world and a hub."""

    def __init__(self, python: str, folder: Path, base: Path, world: Path, hub: Path) -> None:
        self.python, self.folder, self.base = python, folder, base
        write_letters(folder / "my-text", 60)
        plant_world(base, world)
        self.variables = {"NANOCHAT_HUB": str(hub), "NANOCHAT_BASE_DIR": str(base)}

    def run(self, *words: str, code: int = 0):
        """`python WORDS`."""
        environment = os.environ | self.variables
        command = [self.python, *words]
        done = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True)
        return checked(done, code)


@pytest.fixture
def reader(base: Path, tmp_path: Path, tiny_world: Path, fake_hub: Path, quick: str):
    write_letters(tmp_path / "letters", 60)
    return Reader(quick, tmp_path, base, tiny_world, fake_hub)


@pytest.fixture
def here(base: Path, monkeypatch, capsys):
    """Call a script in this process, with the result of a process: faster, for scripts without a model."""

    def call(module: str, *flags: str, code: int = 0, **variables: str):
        script = importlib.import_module(f"{module}.__main__" if module == "nanochat.report" else module)
        status = 0
        with monkeypatch.context() as patch:
            for name in ("NANOCHAT_HUB", "NANOCHAT_API_KEY", "TIKTOKEN_CACHE_DIR"):
                patch.delenv(name, raising=False)
            for name, value in variables.items():
                patch.setenv(name, value)
            patch.setattr(sys, "argv", [module, *flags])
            capsys.readouterr()
            try:
                config.run_script(script.main)
            except SystemExit as end:
                status = end.code
        return checked(subprocess.CompletedProcess(flags, status, *capsys.readouterr()), code)

    return call


@pytest.fixture
def refused(here, base: Path, tiny_world: Path, tmp_path: Path, monkeypatch):
    """A function that calls a command with a mistake, in a folder with files for it: the sentence with which it ends.

    No model is there, but a tokenizer and a world. No file of a run is left.
    """
    from made_chats import small_tokenizer

    small_tokenizer().save(plant_world(base, tiny_world) / "tok_train/default/tokenizer.json")
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)

    def run(command: str):
        module, *flags = words_of(command)
        sentence = here(module, *flags, code=2).stderr
        assert not [found for name in ("chats/*/*.json*", "speedrun/*/plan.json") for found in base.glob(name)]
        return sentence

    return run


@pytest.fixture
def text_folder(tmp_path: Path):
    """A little text of several kinds in a folder named `letters`."""
    return write_letters(tmp_path / "letters", 60)


def copy_runs(home: Path, programs: dict[str, str]) -> None:
    """Copy runs/ to another home, with these programs, and a setup that does nothing."""
    shutil.copytree(ROOT / "runs", home / "runs")
    for name, text in {"runs/setup.sh": "exit 0", **programs}.items():
        write_text(home / name, text)
        (home / name).chmod(0o755)


class Speedrun:
    """The main job in a copy of its own, where the environment is this one and the hub a small mirror."""

    def __init__(self, home: Path, variables: dict[str, str]) -> None:
        self.home, self.env, self.command = home, os.environ | variables, ["bash", str(home / "speedrun.sh")]

    def start(self, *words: str, cwd: Path = ROOT):
        """In a process group of its own, stdout and stderr as one text."""
        about = {"cwd": cwd, "env": self.env, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return subprocess.Popen([*self.command, *words], **about, text=True, start_new_session=True)

    def run(self, *words: str, cwd: Path = ROOT, code: int = 0):
        command = [*self.command, *words]
        return checked(subprocess.run(command, cwd=cwd, env=self.env, capture_output=True, text=True), code)


@pytest.fixture
def speedrun(tmp_path: Path, base: Path, compiled: dict[str, str], fake_hub: Path, tiny_world: Path):
    home, hub, nowhere = tmp_path / "a path with spaces", tmp_path / "hub", "http://127.0.0.1:9"
    plant_world(base, tiny_world)
    shutil.copytree(fake_hub, hub)
    write_bundle(hub, world_tasks(6))  # for base_eval
    for folder in ("nanochat", "scripts", "tasks", "tracks"):
        shutil.copytree(ROOT / folder, home / folder, ignore=BEING_COMPILED)
    plan = home / "nanochat/jobs/plan.py"
    plan.write_text(plan.read_text().replace("--size=small", "--size=tiny"))
    shutil.copy(ROOT / "speedrun.sh", home)
    copy_runs(home, {".venv/bin/python": f'#!/bin/sh\nexec "{sys.executable}" "$@"'})
    variables = {"NANOCHAT_BASE_DIR": str(base), "NANOCHAT_HUB": str(hub), **compiled}
    variables |= {"TIKTOKEN_CACHE_DIR": str(tmp_path / "no cache"), "https_proxy": nowhere, "HTTPS_PROXY": nowhere}
    return Speedrun(home, variables)


@pytest.fixture(scope="session")
def tiny_world(tmp_path_factory: pytest.TempPathFactory):
    """The folder of a tiny embedded world, for tests that only read it."""
    folder = tmp_path_factory.mktemp("worlds") / "tiny"
    write_world(folder, 1, "tiny")
    return folder


@pytest.fixture(scope="session")
def fake_hub(tmp_path_factory: pytest.TempPathFactory):
    """A mirror of the hub for tests that only read it."""
    folder = tmp_path_factory.mktemp("hubs") / "fake"
    write_hub(folder)
    return folder
