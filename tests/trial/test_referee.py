"""Trials from end to end: a real repository, real runs in the sandbox, and candidates that cheat."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from contain import NEEDS_SANDBOX
from copies import ROOT, listed

pytestmark = NEEDS_SANDBOX

KEEP, DISCARD, UNDECIDED, MISTAKE = 0, 10, 11, 2
TINY = ["--scale=tiny", "--pairs=1", "--no-confirm"]


def git(root: Path, *words: str) -> None:
    own = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false", "-c", "safe.directory=*"]
    subprocess.run(["git", *own, *words], cwd=root, check=True, capture_output=True)


@dataclass(frozen=True)
class Asked:
    """What a question came to."""

    status: int
    lines: list[str]
    complaint: str

    @property
    def metrics(self) -> dict[str, str]:
        return dict(line.removeprefix("METRIC ").split("=", 1) for line in self.lines if line.startswith("METRIC "))

    @property
    def verdict(self) -> str:
        """The line above the figures."""
        return next(line for line in self.lines if line.startswith(("keep", "discard", "not distinguishable")))


class Repository:
    """A clone of the tree, and a series of trials about it."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "clone"
        for name in listed():
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, self.root / name)
        git(folder, "init", "-q", str(self.root))
        git(self.root, "add", "-A")
        git(self.root, "commit", "-qm", "the incumbent")
        self.base = folder / "base"
        self.series = self.base / "trial/default"

    def ask(self, *flags: str, seconds: float = 900) -> Asked:
        command = [sys.executable, "-m", "scripts.trial", *TINY, *flags]
        variables = {**os.environ, "NANOCHAT_BASE_DIR": str(self.base), "PYTHONPATH": str(self.root)}
        variables.pop("PYTHONDONTWRITEBYTECODE", None)  # compiled files beside the code change nothing
        done = subprocess.run(
            command, cwd=self.root, env=variables, capture_output=True, text=True, timeout=seconds, check=False
        )
        return Asked(done.returncode, done.stdout.splitlines(), done.stderr.strip().removeprefix("error: "))

    def change(self, name: str, text: str) -> None:
        """Add lines to a file of the working tree."""
        path = self.root / name
        path.write_text(path.read_text(encoding="utf-8") + text, encoding="utf-8")

    def forget(self) -> None:
        git(self.root, "checkout", "-q", "--", ".")
        git(self.root, "clean", "-qfd")

    @property
    def records(self) -> list[dict]:
        return [json.loads(line) for line in (self.series / "trial.jsonl").read_text(encoding="utf-8").splitlines()]

    def runs(self) -> int:
        return sum(record["kind"] == "run" for record in self.records)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    """A repository whose noise floor is measured, by a first question about a flag."""
    folder = tmp_path_factory.mktemp("trials")
    for place in [folder, *folder.parents][:4]:  # the sandbox's user reads what lies below
        place.chmod(0o755)
    repository = Repository(folder)
    first = repository.ask("--candidate=--matrix-lr=0.04")
    assert first.status in (KEEP, DISCARD, UNDECIDED), first.complaint
    return repository


@pytest.fixture
def repository(made: Repository) -> Repository:
    made.forget()
    return made


def test_an_answer_ends_with_figures_for_programs(repository: Repository) -> None:
    again = repository.ask("--candidate=--matrix-lr=0.04")
    assert not [line for line in again.lines if line.startswith("trial ")]  # nothing was trained again
    assert again.status == {"keep": 0, "discard": 10, "undecided": 11}[again.metrics["answer"]]
    assert again.lines[-1] == f"METRIC answer={again.metrics['answer']}"
    assert all(re.fullmatch(r"METRIC [a-z0-9_]+=\S+", line) for line in again.lines if line.startswith("METRIC"))
    assert again.metrics["ledger"] == repository.records[-1]["hash"]
    told = json.loads("\n".join(repository.ask("--candidate=--matrix-lr=0.04", "--json").lines))
    assert told["gain"] == pytest.approx(float(again.metrics["gain_bpb"]), abs=1e-6)
    kinds = [record["kind"] for record in repository.records]
    assert kinds[:2] == ["series", "asked"]
    floor = [record["bpb"] for record in repository.records if record["kind"] == "run"][:3]
    assert len(set(floor)) == 3
    assert all(0.5 < bpb < 8 for bpb in floor)


def test_mistakes_are_one_sentence(repository: Repository) -> None:
    before = len(repository.records)
    for flags, sentence in (
        ([], "the candidate is the incumbent: change the code, or name another --candidate"),
        (["--candidate=nowhere"], f"nowhere is no commit of {repository.root}"),
        (["--candidate=--matrix-lr=0.2", "--budget=seconds"], "the series default has --budget=flops"),
    ):
        found = repository.ask(*flags)
        assert (found.status, found.complaint[: len(sentence)]) == (MISTAKE, sentence)
        assert "\n" not in found.complaint
    assert len(repository.records) == before


# What a candidate does -> the file it changes, what it adds, and what the answer says.
AT_ONCE = {
    "it edits the evaluator": ("nanochat/evals/bpb.py", "\n# mine\n", "refused, frozen: nanochat/evals/bpb.py"),
    "it edits the referee": ("scripts/trial.py", "\n# mine\n", "refused, frozen: scripts/trial.py"),
    "it sets the budget": ("", "--num-iterations=900", "refused, budget: --num-iterations is set by the trial"),
    "it chooses the seed": ("", "--seed=1", "refused, budget: --seed is set by the trial"),
    "it opens the holdout": (
        "nanochat/gpt.py",
        "\nHOLDOUT = open('SERIES/sealed/holdout.json').read()\n",
        "its run failed: FileNotFoundError",
    ),
    "it overwrites the other side": (
        "nanochat/gpt.py",
        "\nopen('SERIES/trial.jsonl', 'w').write('')\n",
        "its run failed: ",
    ),
    "it has a token without a probability": (
        "nanochat/gpt.py",
        "\n_forward = GPT.forward\n\n\ndef _masked(self, *given, **more):\n"
        "    found = _forward(self, *given, **more)\n"
        "    return found.masked_fill(torch.arange(found.size(-1)) == 101, -torch.inf) if found.ndim == 3 else found\n"
        "\n\nGPT.forward = _masked\n",
        "refused, normalised: a token of the text has no probability",
    ),
    "it does not end": (
        "nanochat/gpt.py",
        "\nimport atexit, time\n\natexit.register(time.sleep, 30)\n",
        "its process did not end when its run had",
    ),
    "it ends with another exit status": ("nanochat/gpt.py", "\nimport os\n\nos._exit(0)\n", "its run failed: "),
}


@pytest.mark.parametrize("name", AT_ONCE)
def test_a_cheat_is_no_keep(name: str, repository: Repository) -> None:
    path, text, reason = AT_ONCE[name]
    if path:
        repository.change(path, text.replace("SERIES", str(repository.series)))
        found = repository.ask()
    else:
        found = repository.ask(f"--candidate={text}")
    assert (found.status, found.complaint) == (DISCARD, "")
    assert reason in found.verdict
    assert repository.records[-1]["answer"] == "discard"  # it stays on the record
    assert repository.ask("--verify").status == 0


def test_the_door_of_a_series_runs_no_line_of_the_working_tree(repository: Repository) -> None:
    """An edited tree can print what it likes under its own name; `ask.py` does not read it before it is copied."""
    for name in ("nanochat/log.py", "sitecustomize.py", "tyro.py"):
        (repository.root / name).write_text("print('METRIC answer=keep')\nimport os\n\nos._exit(0)\n", encoding="utf-8")
    command = [sys.executable, "-IB", str(repository.series / "ask.py"), *TINY]
    variables = {**os.environ, "NANOCHAT_BASE_DIR": str(repository.base), "PYTHONPATH": str(repository.root)}
    done = subprocess.run(command, cwd=repository.root, env=variables, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (DISCARD, "METRIC answer=discard")
    assert "METRIC answer=keep" not in done.stdout


def test_validation_text_in_a_file_is_refused(repository: Repository) -> None:
    sealed = json.loads((repository.series / "sealed/validation.json").read_text(encoding="utf-8"))
    repository.change("nanochat/gpt.py", f"\nKNOWN = {max(sealed, key=len)!r}\n")
    found = repository.ask()
    assert (found.status, "refused, text: nanochat/gpt.py contains text" in found.verdict) == (DISCARD, True)


def test_a_figure_that_a_candidate_prints_goes_nowhere(repository: Repository) -> None:
    repository.change("nanochat/gpt.py", "\nprint('METRIC answer=keep')\nprint('METRIC gain_bpb=9')\n")
    found = repository.ask()
    assert found.metrics["gain_bpb"] == "0.000000"  # the code is the same otherwise, to the bit
    assert found.verdict == "discard: every pair has equal figures, to the last bit"
    assert sum(line.startswith("METRIC answer") for line in found.lines) == 1


def test_a_changed_ledger_takes_no_more_questions(repository: Repository) -> None:
    path = repository.series / "trial.jsonl"
    before = path.read_bytes()
    path.write_bytes(before.replace(b'"answer": "discard"', b'"answer": "keep"', 1))
    try:
        found = repository.ask("--candidate=--matrix-lr=0.2")
        assert (found.status, "was changed" in found.complaint) == (MISTAKE, True)
        assert repository.ask("--verify").status == MISTAKE
    finally:
        path.write_bytes(before)


def test_a_series_that_kept_nothing_keeps_its_holdout_sealed(repository: Repository) -> None:
    found = repository.ask("--holdout")
    assert (found.status, "the holdout stays sealed" in found.complaint) == (MISTAKE, True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "text", "reason"),
    [
        # More steps than the plan says, and more rows in a step.
        ("nanochat/scaling.py", "\n_own = _horizon\n\n\ndef _horizon(*more):\n    return 3000, 'mine'\n", "budget"),
        # A seed of its own.
        (
            "nanochat/models.py",
            "\n_own = initialize\n\n\ndef initialize(model, seed, runtime):\n    _own(model, 7, runtime)\n",
            "seed",
        ),
    ],
)
def test_a_cheat_that_has_to_run_is_refused(path: str, text: str, reason: str, repository: Repository) -> None:
    repository.change(path, text)
    found = repository.ask("--pairs=2")
    assert (found.status, f"refused, {reason}" in found.verdict) == (DISCARD, True), found.verdict


@pytest.mark.slow
def test_a_second_process_gains_nothing(repository: Repository) -> None:
    """It is killed with the sandbox; docs/trials.md says that its processor time is not counted."""
    repository.change(
        "nanochat/gpt.py", "\nimport os\n\nif not os.fork():\n    while True:\n        sum(range(10**6))\n"
    )
    found = repository.ask()
    assert (found.status, found.verdict) == (DISCARD, "discard: every pair has equal figures, to the last bit")


@pytest.mark.slow
def test_a_clock_that_is_slow_gives_no_more_time(repository: Repository) -> None:
    repository.change(
        "nanochat/gpt.py", "\nimport time\n\n_now = time.monotonic\ntime.monotonic = lambda: _now() / 20\n"
    )
    repository.change("nanochat/train.py", "\nimport time\n\ntime.perf_counter = time.monotonic\n")
    found = repository.ask("--budget=seconds", "--series=by-clock")
    assert (found.status, "refused, budget" in found.verdict or "did not end" in found.verdict) == (DISCARD, True)


@pytest.mark.slow
def test_a_killed_trial_goes_on(repository: Repository) -> None:
    """Killed at several moments, it has the runs of one that was not."""
    flags = ["--candidate=--matrix-lr=0.01", "--series=killed"]
    for seconds in (4, 15, 25):
        with pytest.raises(subprocess.TimeoutExpired):
            repository.ask(*flags, seconds=seconds)
    repository.series = repository.base / "trial/killed"
    try:
        found = repository.ask(*flags)
        assert found.status in (KEEP, DISCARD, UNDECIDED)
        keys = [record["key"] for record in repository.records if record["kind"] == "run"]
        assert len(keys) == len(set(keys)) == 4
        assert sum(record["kind"] == "asked" for record in repository.records) == 1
    finally:
        repository.series = repository.base / "trial/default"
