"""Trials from end to end: a real repository, real runs in the sandbox, and candidates that cheat."""

import dataclasses
import errno
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from contain import NEEDS_SANDBOX
from copies import ROOT, listed
from foreign_entries import HONEST

from nanochat import cores
from nanochat.data import corpus
from nanochat.errors import UserError
from nanochat.evals import sandbox
from nanochat.log import Record
from nanochat.paths import hold_folder, read_sha256, write_json
from nanochat.trial import arena, decision, referee
from nanochat.trial.arena import Failure, Killed, Late, Stopped
from nanochat.trial.decision import Plan
from nanochat.trial.judging import Judgement
from nanochat.trial.ledger import Ledger
from nanochat.trial.referee import (
    FIXED,
    Question,
    Series,
    Trial,
    answer_lines,
    begin,
    open_holdout,
    pinned,
    run_trial,
    verify_series,
    work_of,
)
from nanochat.trial.scorer import Broken, Refused
from nanochat.trial.sides import Side, _kept

# The first test waits for the noise floor and a trial: minutes on a machine with other work.
pytestmark = [NEEDS_SANDBOX, pytest.mark.timeout(900)]

KEEP, DISCARD, UNDECIDED, MISTAKE = 0, 10, 11, 2
TINY = ["--scale=tiny", "--pairs=1", "--no-confirm"]
AGENT = ROOT / "tests/agent.py"
# The incumbent's fault: a head that hardly learns. To mend it is a gain that the shortest runs show.
SETTINGS = "nanochat/settings.py"
SOUND = 'option(0.008, "learning rate of the head (AdamW)")'
FAULTY = SOUND.replace("0.008", "0.000008")


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
    """A clone of the tree with a fault, and a series of trials about it."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "clone"
        for name in listed():
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, self.root / name)
        self.replace(SETTINGS, SOUND, FAULTY)
        git(folder, "init", "-q", str(self.root))
        git(self.root, "add", "-A")
        git(self.root, "commit", "-qm", "the incumbent")
        self.base = folder / "base"
        self.series = self.base / "trial/default"

    def ask(self, *flags: str, seconds: float = 900) -> Asked:
        command = [sys.executable, "-m", "scripts.trial", *TINY, *flags]
        done = subprocess.run(
            command, cwd=self.root, env=self.variables, capture_output=True, text=True, timeout=seconds, check=False
        )
        return Asked(done.returncode, done.stdout.splitlines(), done.stderr.strip().removeprefix("error: "))

    @property
    def variables(self) -> dict[str, str]:
        found = {**os.environ, "NANOCHAT_BASE_DIR": str(self.base), "PYTHONPATH": str(self.root)}
        found.pop("PYTHONDONTWRITEBYTECODE", None)  # compiled files beside the code change nothing
        return found

    @contextmanager
    def agent(self, ideas: list[dict[str, str]], series: str, *flags: str) -> Iterator[subprocess.Popen[str]]:
        """Start the agent of a series, whose script has these ideas; it is killed at the end, if it still runs."""
        script = self.base / "ideas.json"
        script.write_text(json.dumps(ideas), encoding="utf-8")
        words = [str(AGENT), str(self.root), str(self.base), series, str(script), *flags]
        with subprocess.Popen(
            [sys.executable, *words],
            env=self.variables,
            cwd=self.root,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as agent:
            try:
                yield agent
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(agent.pid, signal.SIGKILL)

    def replace(self, name: str, old: str, new: str) -> None:
        path = self.root / name
        text = path.read_text(encoding="utf-8")
        assert text.count(old) == 1
        path.write_text(text.replace(old, new), encoding="utf-8")

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
    """A repository whose noise floor is measured, by a first question: is it better without its fault?"""
    folder = tmp_path_factory.mktemp("trials")
    for place in [folder, *folder.parents][:4]:  # the sandbox's user reads what lies below
        place.chmod(place.stat().st_mode | 0o055)
    repository = Repository(folder)
    repository.replace(SETTINGS, FAULTY, SOUND)
    first = repository.ask()
    assert first.status == KEEP, (first.lines, first.complaint)
    return repository


@pytest.fixture
def repository(made: Repository) -> Repository:
    made.forget()
    return made


def test_an_answer_ends_with_figures_for_programs(repository: Repository) -> None:
    repository.replace(SETTINGS, FAULTY, SOUND)
    again = repository.ask()
    assert not [line for line in again.lines if line.startswith("trial ")]  # nothing was trained again
    assert (again.status, again.lines[-1]) == (KEEP, "METRIC answer=keep")
    assert all(re.fullmatch(r"METRIC [a-z0-9_]+=\S+", line) for line in again.lines if line.startswith("METRIC"))
    assert again.metrics["ledger"] == repository.records[-1]["hash"]
    told = json.loads("\n".join(repository.ask("--json").lines))
    assert told["gain"] == pytest.approx(float(again.metrics["gain_bpb"]), abs=1e-6)
    words = {"confirmed": "no", "contained": "yes", "second_depth": "none"}
    assert words.items() <= again.metrics.items()
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
        (["--candidate=--matrix-lrr=0.03"], "unknown argument --matrix-lrr, did you mean --matrix-lr?"),
        (["--candidate=--matrix-lr=0.03", "--flags=--scalar-lr=x"], "--scalar-lr: could not convert string to float"),
        (["--candidate=--matrix-lr=0.03", "--flags=--seed=3"], "--flags: refused, budget: --seed is set by the trial"),
        (["--candidate=--total-batch-size=2000"], "--total-batch-size=2000 is not a multiple of a row"),
        (["--candidate=--total-batch-size=1048576"], "--target-flops=2.5e+10 is below a step, which has "),
        (["--candidate=--matrix-lr=0.2", "--budget=seconds"], "the series default has --budget=flops"),
    ):
        found = repository.ask(*flags)
        assert (found.status, found.complaint[: len(sentence)]) == (MISTAKE, sentence)
        assert "\n" not in found.complaint
    repository.change("nanochat/statistics.py", "\n# merged\n")
    git(repository.root, "commit", "-qam", "merged")
    try:
        found = repository.ask("--candidate=--matrix-lr=0.03")
        sentence = "nanochat/statistics.py of the incumbent "
        assert (found.status, found.complaint[: len(sentence)]) == (MISTAKE, sentence)
        assert "begin another series" in found.complaint
    finally:
        git(repository.root, "reset", "-q", "--hard", "HEAD~1")
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
    "it overwrites the ledger": (
        "nanochat/gpt.py",
        "\nopen('SERIES/trial.jsonl', 'w').write('')\n",
        "its run failed: ",
    ),
    "it overwrites the other side": (
        "nanochat/gpt.py",
        "\nimport glob\nwritten = 0\n"
        "for path in glob.glob('SERIES/code/*/nanochat/*.py'):\n"
        "    try:\n        written += open(path, 'w').write('#')\n    except OSError:\n        pass\n"
        "raise RuntimeError(f'{written} files are overwritten')\n",
        "its run failed: RuntimeError: 0 files are overwritten",
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
    "it kills itself": (
        "nanochat/gpt.py",
        "\nimport os, signal\n\nos.kill(os.getpid(), signal.SIGKILL)\n",
        "its run was killed, as by a machine without memory for it, twice",
    ),
    "it ends with another exit status": ("nanochat/gpt.py", "\nimport os\n\nos._exit(0)\n", "its run failed: "),
}


@pytest.mark.parametrize("name", AT_ONCE)
def test_a_cheat_is_no_keep(name: str, repository: Repository) -> None:
    path, text, reason = AT_ONCE[name]
    before = {path: path.read_bytes() for path in repository.series.glob("code/*/nanochat/*.py")}
    if path:
        repository.change(path, text.replace("SERIES", str(repository.series)))
        found = repository.ask()
    else:
        found = repository.ask(f"--candidate={text}")
    assert (found.status, found.complaint) == (DISCARD, "")
    assert reason in found.verdict
    assert before == {path: path.read_bytes() for path in before}
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


@pytest.mark.parametrize(
    "name", ["sealed/holdout.json", "text/documents.jsonl", "home/tok_train/default/tokenizer.json"]
)
def test_a_text_that_was_changed_ends_a_series(name: str, repository: Repository) -> None:
    path = repository.series / name
    before = path.read_bytes()
    path.write_bytes(before + b" ")
    try:
        found = repository.ask("--candidate=--matrix-lr=0.2")
        assert (found.status, f"{name} was changed after it was made" in found.complaint) == (MISTAKE, True)
    finally:
        path.write_bytes(before)


def test_a_series_is_about_one_repository(repository: Repository, tmp_path: Path) -> None:
    """Whoever looks at it from another one leaves its door as it is."""
    git(tmp_path, "clone", "-q", str(repository.root), "other")
    before = (repository.series / "ask.py").read_bytes()
    other = Repository.__new__(Repository)
    other.root, other.base, other.series = tmp_path / "other", repository.base, repository.series
    found = other.ask("--candidate=--matrix-lr=0.2")
    assert (found.status, found.complaint) == (
        MISTAKE,
        f"the series default is about {repository.root}: begin another one with --series=NAME",
    )
    assert other.ask("--list").metrics["answer"] == "listed"
    assert (repository.series / "ask.py").read_bytes() == before


def idea(name: str, file: str, old: str, new: str) -> dict[str, str]:
    return {"name": name, "file": file, "old": old, "new": new}


# What the agent tries: its script. The third one is asked about after the second was kept.
EASIER_TEXT = idea("an easier text", "nanochat/evals/bpb.py", "import math\n", "import math  # mine\n")
LEARNING_HEAD = idea("a head that learns", SETTINGS, FAULTY, SOUND)
MILDER_JUDGE = idea("a milder judge", "scripts/trial.py", ", run_script\n", ", run_script  # mine\n")


def said_by(agent: subprocess.Popen[str], seconds: float) -> list[str]:
    """Wait for the agent's end, and return its own lines."""
    lines = agent.communicate(timeout=seconds)[0].splitlines()
    return [line.removeprefix("agent: ") for line in lines if line.startswith("agent: ")]


def subjects(root: Path) -> list[str]:
    """The commits of a repository, newest first."""
    command = ["git", "-c", "safe.directory=*", "log", "--format=%s"]
    return subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout.splitlines()


def test_an_agent_spends_a_night_as_its_page_says(repository: Repository) -> None:
    """A keep that is not confirmed; its runs are those of the first question. A second night remembers the first."""
    before = repository.runs()
    ideas = [EASIER_TEXT, LEARNING_HEAD, MILDER_JUDGE]
    git(repository.root, "switch", "-qC", "night")
    try:
        answers = []
        for _ in range(2):
            with repository.agent(ideas, "default", *TINY) as agent:
                answers += said_by(agent, 200)
            assert agent.returncode == MISTAKE  # the holdout stays sealed
        assert subjects(repository.root) == ["a head that learns", "the incumbent"]
    finally:
        git(repository.root, "switch", "-qf", "-")
    assert answers == [
        "an easier text: discard",
        "a head that learns: keep",
        "a milder judge: discard",
        "an easier text: is remembered",
        "a head that learns: is committed",
        "a milder judge: is remembered",
    ]
    trials = [record for record in repository.records if record["kind"] == "trial"]
    [kept] = [record for record in trials if record["answer"] == "keep"]
    last = trials[-1]
    assert last["refused"] == "frozen"
    assert kept["candidate"]["code"] == last["incumbent"]["code"]  # the next question compares with what was kept
    found = repository.ask("--list")
    assert (found.status, found.metrics["answer"], found.metrics["kept"]) == (KEEP, "listed", "1")
    assert any("nanochat/settings.py" in line and "| keep" in line for line in found.lines)
    assert repository.runs() == before


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


QUESTION = Question("", "HEAD", "", "default", "tiny", "flops", "", Plan(1, 0, 0, 0.001), [], True, False)


def opened(folder: Path, **fixed: str) -> Series:
    """A series without texts."""
    folder.mkdir(parents=True, exist_ok=True)
    values = {**dict.fromkeys(FIXED, ""), "scale": "tiny", "budget": "flops", "secret": "s", **fixed}
    return Series(folder, values, Ledger(folder / "trial.jsonl"))


def test_a_fault_of_this_side_is_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is on the record, so the question can be asked again."""
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(tmp_path))
    series = opened(tmp_path / "trial/default")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    sentence = r"trial/default: No space left on device; nothing is decided by that"
    with monkeypatch.context() as patch:
        patch.setattr(referee, "_fix", full)
        with pytest.raises(UserError, match=sentence):
            begin(QUESTION)
        patch.setattr(referee, "open_series", full)
        with pytest.raises(UserError, match=sentence):
            run_trial(QUESTION)
        with pytest.raises(UserError, match=sentence):
            open_holdout("default", False)
    monkeypatch.setattr(referee, "open_series", lambda _: series)
    monkeypatch.setattr(referee, "Trial", full)
    with pytest.raises(UserError, match=sentence):
        run_trial(QUESTION)
    assert not series.ledger.records


class Fake:
    """A trial whose runs are made up: a candidate is better by 0.5, and each run takes about 10 seconds."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, plan: Plan, budget: str = "flops") -> None:
        self.question = dataclasses.replace(QUESTION, plan=plan)
        self.times = 1.0  # the candidate's seconds, in those of the incumbent
        self.same = 99  # from this run on, the candidate's weights are the same
        self.trained: list[tuple[str, str]] = []  # side and seed
        self.code = {}
        for name in ("incumbent", "candidate"):
            (folder / name / "nanochat").mkdir(parents=True)
            (folder / name / "nanochat/gpt.py").write_text(f"# {name}\n", encoding="utf-8")
            self.code[name] = _kept(folder / name, folder / "code")
        self.series = opened(folder, budget=budget, referee=self.code["incumbent"].name)
        self.series.ledger.add("series", **pinned(self.series.fixed), files={})
        self.killed: set[int] = set()  # runs, by number
        self.rows = ""
        self.drawn: set[str] = set()  # sides whose weights are others each time
        self.memory = 1.0
        for name in ("validation", "holdout"):
            write_json(folder / f"sealed/{name}.json", ["a short text"])
        monkeypatch.setattr(arena, "train", self.train)
        monkeypatch.setattr(arena, "score", self.score)
        monkeypatch.setattr(arena, "weights_hash", self.weights_hash)

    def train(self, side: Side, flags: Sequence[str], home: Path, text: Path, folder: Path, *_: object) -> Record:
        folder.mkdir(parents=True, exist_ok=True)
        self.trained.append((side.name, next(flag for flag in flags if flag.startswith("--seed="))))
        if len(self.trained) in self.killed:
            raise Killed("its run was killed")
        seconds = (10 + 0.1 * (len(self.trained) % 3)) * (self.times if side.name == "candidate" else 1.0)
        found = {"seconds": seconds, "cpu_seconds": 10.0, "processes": 1, "memory": self.memory, "bytes": 10}
        return {**found, "initial": "", "rows": self.rows}

    def score(self, side: Side, *_: object) -> Record:
        bpb = (2.0 if side.name == "candidate" else 2.5) + 0.001 * (len(self.trained) % 4)
        used = {"scoring_cpu_seconds": 1.0, "scoring_processes": 9}
        return {"scoring": 1.0, **used, "bpb": bpb, "sum_error": 0.0, "difference": 0.0}

    def weights_hash(self, folder: Path) -> str:
        count = sum(name == "candidate" for name, _ in self.trained)
        if folder.name.endswith("-again") and self.trained[-1][0] in self.drawn:
            return f"{len(self.trained)}"
        own = folder.name.removesuffix("-again")
        return "same" if count >= self.same and self.trained[-1][0] == "candidate" else own

    def record(self) -> Record:
        """Ask as a new process does."""
        trial = Trial.__new__(Trial)
        trial.series, trial.question, trial.machine = self.series, self.question, "machine"
        trial.incumbent = Side("incumbent", "HEAD", self.code["incumbent"])
        trial.candidate = Side("candidate", "HEAD", self.code["candidate"])
        trial.name, trial.number = "name", 1
        return trial.record()

    def parts(self) -> list[str]:
        return [record["part"] for record in self.series.ledger.of_kind("run")]


def test_a_candidate_that_is_refused_in_its_confirmation_leaves_no_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = Fake(tmp_path, monkeypatch, Plan(2, 6, 2, 0.001))
    fake.same = 5  # two in the first part
    found = fake.record()
    assert (found["answer"], found["refused"]) == ("discard", "seed")
    assert fake.parts().count("confirm") == 8
    assert not list((tmp_path / "runs").iterdir())


@pytest.mark.parametrize(
    ("killed", "answer", "tries", "reason"),
    [
        ({5}, "keep", 8, ""),  # and one that repeats
        ({5, 6}, "discard", 6, "its run was killed, twice"),
        ({4, 6}, "discard", 6, "its run was killed, and another one was trained again before"),
        ({2}, "keep", 9, ""),  # of the incumbent, which repeats too
    ],
)
def test_a_run_that_the_machine_kills_is_tried_once_more(
    killed: set[int], answer: str, tries: int, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each side once: a candidate that kills its bad runs draws them anew."""
    fake = Fake(tmp_path, monkeypatch, Plan(3, 0, 0, 0.001))
    fake.killed = killed
    found = fake.record()
    assert (found["answer"], found.get("failed", False)) == (answer, answer == "discard")
    assert len(fake.trained) == tries
    assert [line["reason"] for line in fake.series.ledger.of_kind("crash")] == ([reason] if reason else [])
    assert len(fake.series.ledger.of_kind("killed")) == 1
    if answer == "keep":
        assert found["note"] == "1 run was trained again after a kill"
        [line] = fake.series.ledger.of_kind("killed")
        assert line["key"] in [one["of"] for one in fake.series.ledger.of_kind("repeated")]


@pytest.mark.parametrize("confirming", [0, 6])
@pytest.mark.parametrize(
    ("drawn", "answer", "note"),
    [
        (set(), "keep", ""),
        ({"candidate"}, "discard", ""),
        ({"candidate", "incumbent"}, "keep", "runs of both sides ended with other weights when trained again"),
    ],
)
def test_a_keep_repeats_with_its_seed(
    drawn: set[str], answer: str, note: str, confirming: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = Fake(tmp_path, monkeypatch, Plan(2, confirming, 0, 0.001))
    fake.drawn = drawn
    found = fake.record()
    assert found["answer"] == answer
    if answer == "keep":
        assert found["note"].startswith(note)
        assert bool(found["note"]) == bool(note)
        assert fake.record() == found
    else:
        assert found["refused"] == "seed"
        assert "seed: a run, trained again with its seed, ends with other weights" in found["reason"]
    [*_, last] = fake.series.ledger.of_kind("repeated")
    [first] = [run for run in fake.series.ledger.of_kind("run") if run["key"] == last["of"]]
    assert first["part"] == ("confirm" if confirming else "screen")
    assert not list((tmp_path / "runs").glob("*-again"))
    # By the clock no run is like another one.
    clock = Fake(tmp_path / "clock", monkeypatch, Plan(2, 0, 0, 0.001), "seconds")
    clock.drawn = drawn
    assert clock.record()["answer"] == "keep"
    assert not clock.series.ledger.of_kind("repeated")


def test_the_run_that_was_begun_again_is_the_one_that_has_to_repeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever stops a trial in a bad run would draw it anew."""
    fake = Fake(tmp_path, monkeypatch, Plan(2, 6, 0, 0.001))
    own, stopped = fake.train, []

    def stop(side: Side, flags: Sequence[str], *more: Any) -> Record:
        if side.name == "candidate" and not stopped and fake.parts().count("confirm") >= 5:
            stopped.append(flags)
            raise KeyboardInterrupt
        return own(side, flags, *more)

    monkeypatch.setattr(arena, "train", stop)
    with pytest.raises(KeyboardInterrupt):
        fake.record()
    found = fake.record()
    assert found["note"] == "1 run was begun again"
    [repeated] = fake.series.ledger.of_kind("repeated")
    keys = [line["key"] for line in fake.series.ledger.of_kind("begun")]
    assert keys.count(repeated["of"]) == 2


def test_a_run_that_failed_is_not_drawn_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The referee is killed between the line of the run and that of the answer."""
    for error in (Failure("its run failed: none"), Refused("bytes", "it is too large")):
        fake = Fake(tmp_path / type(error).__name__, monkeypatch, Plan(2, 0, 0, 0.001))
        own = fake.train

        def fail(side: Side, *more: Any, error: Exception = error, own: Any = own) -> Record:
            if side.name == "candidate":
                raise error
            return own(side, *more)

        monkeypatch.setattr(arena, "train", fail)
        with monkeypatch.context() as patch:
            patch.setattr(Series, "check", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                fake.record()
        monkeypatch.setattr(arena, "train", own)
        trained = len(fake.trained)
        found = fake.record()
        assert (found["answer"], found["reason"]) == ("discard", str(error))
        assert len(fake.trained) == trained


@pytest.mark.parametrize("killed", [{6, 7}, {6}])
def test_a_repeat_that_is_killed_is_tried_once_more(
    killed: set[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The floor has three runs and the candidate two; the sixth is the one that repeats."""
    fake = Fake(tmp_path, monkeypatch, Plan(2, 0, 0, 0.001))
    fake.killed = killed
    (tmp_path / "runs/left-again").mkdir(parents=True)  # of a referee that was killed
    found = fake.record()
    assert found["answer"] == ("keep" if len(killed) == 1 else "discard")
    assert found["reason"] == ("on seeds that it was found by" if len(killed) == 1 else "its run was killed, twice")
    assert not list((tmp_path / "runs").glob("*-again*"))


@pytest.mark.parametrize(("used", "processes", "answer"), [(14.0, 3, "keep"), (16.0, 1, "keep"), (16.0, 3, "discard")])
def test_by_the_clock_a_candidate_may_not_work_in_more_processes(
    used: float, processes: int, answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads that use the cores better are none."""
    fake = Fake(tmp_path, monkeypatch, Plan(2, 0, 0, 0.001), "seconds")
    own = fake.train

    def train(side: Side, *more: Any) -> Record:
        found = own(side, *more)
        return found | ({"cpu_seconds": used, "processes": processes} if side.name == "candidate" else {})

    monkeypatch.setattr(arena, "train", train)
    found = fake.record()
    assert found["answer"] == answer
    if answer == "discard":
        assert "1.61 times the incumbent's processor time in the same seconds: it works with more" in found["reason"]


def test_flags_of_both_sides_have_to_do_at_both_depths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A candidate's may be kept at the first one alone."""
    fake = Fake(tmp_path, monkeypatch, Plan(2, 6, 2, 0.001))
    asked = []
    monkeypatch.setattr(arena, "complaint", lambda code, words, *more: asked.append((words[0], words[-2])) or "")
    trial = Trial.__new__(Trial)
    trial.series, trial.question = fake.series, dataclasses.replace(fake.question, candidate="--c=1", flags="--b=1")
    trial.incumbent = Side("incumbent", "HEAD", fake.code["incumbent"], ["--b=1"])
    trial.candidate = Side("candidate", "HEAD", fake.code["incumbent"], ["--b=1", "--c=1"])
    trial._check_flags()
    assert asked == [("--depth=1", "--b=1"), ("--depth=2", "--b=1"), ("--depth=1", "--c=1")]


@pytest.mark.parametrize(
    ("error", "calls", "reason"),
    [
        (Killed, [1], ""),
        (Late, [1], ""),
        (Late, [1, 2], "its model was not scored, twice"),
        (Killed, [1, 3], "its model was not scored, and another one was scored again before"),
    ],
)
def test_of_a_question_one_score_that_the_machine_stops_is_tried_once_more(
    error: type[Stopped], calls: list[int], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is not trained again. calls: of the candidate's scorings, those that are stopped."""
    fake = Fake(tmp_path, monkeypatch, Plan(2, 0, 0, 0.001))
    own, called = fake.score, []

    def score(side: Side, *given: Any) -> Record:
        if side.name == "candidate":
            called.append(side)
            if len(called) in calls:
                raise error("its model was not scored", 7.0)
        return own(side, *given)

    monkeypatch.setattr(arena, "score", score)
    found = fake.record()
    assert found["answer"] == ("discard" if reason else "keep")
    repeated = 0 if reason else 1  # for a keep, the same weights
    assert len({*fake.trained}) == len(fake.trained) - repeated
    [again] = fake.series.ledger.of_kind("again")
    assert (again["reason"], again["cpu_seconds"], again["number"]) == ("its model was not scored", 7.0, 0)
    assert [crash["reason"] for crash in fake.series.ledger.of_kind("crash")] == ([reason] if reason else [])
    if reason:
        assert found["reason"] == reason
    else:
        assert found["note"] == "1 scoring was tried again"
        runs = [run for run in fake.series.ledger.of_kind("run") if run["side"] == again["side"]]
        assert [run["scoring_cpu_seconds"] for run in runs] == [8.0, 1.0]  # both tries count


@pytest.mark.parametrize(
    ("plan", "part", "before"), [(Plan(1, 0, 0, 0.001), "again", 0), (Plan(1, 6, 0, 0.001), "confirm", 2)]
)
def test_a_late_score_is_tried_again_beside_the_incumbents(
    plan: Plan, part: str, before: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The seconds that a candidate has are those of the incumbent, in the hour of the second try.

    before: scorings of the candidate that are in time. The last one is the first of its pair, without the incumbent.
    """
    fake = Fake(tmp_path, monkeypatch, plan)
    own, given = fake.score, []

    def score(side: Side, *rest: Any) -> Record:
        if side.name == "incumbent":
            assert rest[-1] == arena.SCORING
            return own(side, *rest) | {"scoring": 1.0 if len(given) <= before else 100.0}
        given.append(rest[-1])
        if len(given) == before + 1:
            raise Late("its model was not scored within 123 seconds")
        return own(side, *rest)

    monkeypatch.setattr(arena, "score", score)
    assert fake.record()["note"] == "1 scoring was tried again"
    assert given[: before + 2] == [123.0] * (before + 1) + [420.0]
    runs = fake.series.ledger.of_kind("run")
    assert fake.parts()[3 : 3 + before + 3].count(part) >= 1
    assert all(run["scoring"] == 1.0 for run in runs[:3])


def test_a_score_that_is_stopped_on_the_holdout_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake(tmp_path, monkeypatch, Plan(2, 6, 0, 0.001))
    record = fake.record()
    own, called = fake.score, []

    def score(*given: Any) -> Record:
        called.append(given)
        if len(called) == 1:
            raise Killed("the scoring of its model was killed", 7.0)
        return own(*given)

    monkeypatch.setattr(arena, "score", score)
    found = referee._held(fake.series, record)
    assert found["again"] == "1 scoring was tried again"
    lines = referee.holdout_lines({"trials": [found], "later": 0, "hash": "h", "answer": "held"})
    assert lines[0].endswith("; 1 scoring was tried again")


def test_an_order_of_the_text_that_does_not_follow_the_seed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = Fake(tmp_path, monkeypatch, Plan(2, 0, 0, 0.001))
    fake.rows = "the same"
    found = fake.record()
    assert (found["refused"], "the same first rows of text" in found["reason"]) == ("seed", True)


@pytest.mark.parametrize(("missing", "contained"), [("", True), ("no namespaces", False)])
def test_where_the_sandbox_works_runs_are_contained(
    missing: str, contained: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with --unsafe-exec, which is for where it does not."""
    monkeypatch.setattr(sandbox, "missing", lambda: missing)
    fake = Fake(tmp_path, monkeypatch, Plan(2, 0, 0, 0.001))
    fake.series.fixed["unsafe"] = True
    fake.series.ledger.of_kind("series")[0]["unsafe"] = True
    found = fake.record()
    assert found["contained"] == contained
    lines = answer_lines({**found, "hash": "h"})
    assert f"METRIC contained={'yes' if contained else 'no'}" in lines


def test_an_unknown_metric_begins_no_series(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(tmp_path))
    with pytest.raises(UserError, match="--metric=loss is not known, use seconds, cpu_seconds"):
        begin(dataclasses.replace(QUESTION, metrics=["loss"]))
    assert not (tmp_path / "trial").exists()


def test_two_questions_of_one_series_are_told_of_its_flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(tmp_path))
    with hold_folder(tmp_path / "trial/default"), pytest.raises(UserError, match=r"or use another --series$"):
        begin(QUESTION)


def test_what_both_sides_take_has_an_interval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake(tmp_path, monkeypatch, Plan(2, 0, 0, 0.001), "seconds")
    fake.question = dataclasses.replace(fake.question, metrics=["seconds", "bytes", "memory"])
    fake.memory = 0.0  # which a candidate can say
    fake.times = 1.05
    found = fake.record()
    seconds = found["metrics"]["seconds"]
    # The incumbent's runs are of 10.1 and 10.1 s, the candidate's 1.05 times 10.2 and 10 s, in turns.
    assert seconds["change"] == pytest.approx(100 * (1.05 * math.sqrt(10.2 * 10.0) / 10.1 - 1))
    t = 12.706  # of one degree of freedom, for 95 %: the incumbent's do not spread
    half = t * math.sqrt(math.log(10.2 / 10.0) ** 2 / 2 / 2)
    assert seconds["interval"] == pytest.approx(100 * math.expm1(half), rel=1e-3)
    assert found["metrics"]["bytes"] == {"incumbent": 10, "candidate": 10, "change": 0, "interval": 0}
    assert found["metrics"]["memory"] == {"incumbent": 0, "candidate": 0}
    lines = answer_lines({**found, "hash": "h"})
    assert "seconds: 10.1 incumbent, 10.61 candidate, +5.0 ± 13.4 %" in lines
    assert f"METRIC seconds_change={seconds['change']:.6g}" in lines


def test_times_are_compared_where_both_sides_ran_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of the noise floor may be of an hour when the machine was slower."""
    metrics = ["seconds", "bytes"]
    for confirming in (0, 6):
        fake = Fake(tmp_path / str(confirming), monkeypatch, Plan(2, confirming, 0, 0.001))
        fake.question = dataclasses.replace(fake.question, metrics=metrics)
        own = fake.train

        def train(*given: Any, own: Any = own, fake: Fake = fake) -> Record:
            found = own(*given)
            return found | {"seconds": 2 * found["seconds"]} if len(fake.trained) <= 3 else found  # the floor

        monkeypatch.setattr(arena, "train", train)
        found = fake.record()
        lines = "\n".join(answer_lines({**found, "hash": "h"}))
        assert found["metrics"]["bytes"]["change"] == 0
        if confirming:
            assert abs(found["metrics"]["seconds"]["change"]) < 2
            assert "ran earlier" not in lines
        else:
            assert found["metrics"]["seconds"].keys() == {"incumbent", "candidate"}
            assert "candidate; the incumbent ran earlier" in lines


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (Failure("its run failed"), "keep"),
        (Refused("budget", "it has 1.60 times the incumbent's bytes of files"), "keep"),
        (Refused("seed", "two seeds give the candidate the same weights"), "discard"),
    ],
)
def test_what_fails_at_the_second_depth_is_kept_at_the_first(
    error: Exception, answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = Fake(tmp_path, monkeypatch, Plan(2, 6, 2, 0.001))
    own = fake.train

    def train(side: Side, flags: Sequence[str], *given: Any) -> Record:
        if side.name == "candidate" and "--depth=2" in flags:
            raise error
        return own(side, flags, *given)

    monkeypatch.setattr(arena, "train", train)
    found = fake.record()
    assert found["answer"] == answer
    if answer == "keep":
        assert found["holds"] == f"at depth 1 only: at depth 2 {error}"
        assert len(found["confirmed"]) == 6
        lines = answer_lines({**found, "hash": "h"})
        assert "METRIC second_depth=failed" in lines
        assert f"holds: {found['holds']}" in lines


def test_an_answer_names_its_part_and_level(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is stopped by the filter has not come to the level at which a candidate is kept."""
    for bpb, words, part, level in ((2.5, "goes on", "filter", 0.1), (2.0, "is kept", "confirmation", 0.05 / 64)):
        fake = Fake(tmp_path / part, monkeypatch, Plan(2, 6, 0, 0.001))
        own = fake.score

        def score(side: Side, *given: Any, own: Any = own, bpb: float = bpb) -> Record:
            found = own(side, *given)
            return found | {"bpb": found["bpb"] - 2.0 + bpb} if side.name == "candidate" else found

        monkeypatch.setattr(arena, "score", score)
        lines = answer_lines({**fake.record(), "hash": "h"})
        assert f"; it {words} at {level:.2g}" in next(line for line in lines if line.startswith("gain: "))
        assert {f"METRIC part={part}", f"METRIC level={level:.6g}"} <= {*lines}


@pytest.mark.parametrize(
    ("most", "words"), [(256, "256 pairs would not show 0.0001"), (2, "2 pairs have not shown 0.0001")]
)
def test_no_command_is_advised_that_would_show_nothing(
    most: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """most: pairs that an answer advises."""
    monkeypatch.setattr(decision, "MOST_PAIRS", most)
    fake = Fake(tmp_path, monkeypatch, Plan(2, 0, 0, 1e-6))
    own = fake.score

    def score(side: Side, *given: Any) -> Record:
        base = 2.5009 if side.name == "candidate" else 2.5
        return own(side, *given) | {"bpb": base + 0.001 * (len(fake.trained) % 4)}

    monkeypatch.setattr(arena, "score", score)
    found = fake.record()
    assert found["answer"] == "undecided"
    assert "--pairs" not in found["reason"]
    assert found["reason"] == words
    # What the question can show is said before its pairs are trained.
    said = capsys.readouterr().out
    assert said.index(f"this question shows gains of {found['smallest']:.4f}") < said.index("screen 1: candidate")


def test_a_candidate_that_changes_how_a_run_is_counted_has_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = Fake(tmp_path, monkeypatch, Plan(2, 0, 0, 0.001))
    assert not fake.record()["note"]
    again = Fake(tmp_path / "again", monkeypatch, Plan(2, 0, 0, 0.001))
    (tmp_path / "again/candidate/nanochat/scaling.py").write_text("# longer\n", encoding="utf-8")
    again.code["candidate"] = _kept(tmp_path / "again/candidate", tmp_path / "again/code")
    assert "the candidate changes nanochat/scaling.py, by which" in again.record()["note"]


@pytest.mark.parametrize("name", ["root", "commit", "secret"])
def test_what_a_series_keeps_to_is_in_its_ledger(name: str, tmp_path: Path) -> None:
    """Another secret would draw other seeds for the same question."""
    series = opened(tmp_path)
    series.ledger.add("series", **pinned(series.fixed), files={})
    series.check()
    assert series.fixed["secret"] not in series.ledger.of_kind("series")[0].values()
    series.fixed[name] = "another"
    with pytest.raises(UserError, match=f"referee.json has another {name} than the ledger"):
        series.check()


@pytest.mark.parametrize("name", ["root", "secret_sha256"])
def test_a_ledger_whose_first_line_lacks_what_was_fixed_takes_no_question(name: str, tmp_path: Path) -> None:
    """It was edited, or another copy of the code has begun it."""
    series = opened(tmp_path)
    first = pinned(series.fixed)
    del first[name]
    series.ledger.add("series", **first, files={})
    with pytest.raises(UserError, match=f"has no {name} in its first line, .*: begin another series with"):
        series.check()


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ("", "--data=auto finds no text on this machine but an embedded world"),  # of --scale=cpu
        ("world", "--data=world has an embedded world of a known seed"),
        ("climbmix:0.9,world-2:0.1", "has an embedded world of a known seed"),
    ],
)
def test_a_text_that_a_candidate_could_write_is_refused(
    data: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(tmp_path))
    monkeypatch.setattr(corpus, "text_here", lambda: "")
    with pytest.raises(UserError, match=sentence):
        begin(dataclasses.replace(QUESTION, scale="cpu", data=data))
    assert not (tmp_path / "trial/default/referee.json").exists()


@pytest.mark.parametrize("name", ["sealed/validation.json", "code", "referee", "referee.json"])
def test_what_was_changed_during_a_question_leaves_it_without_an_answer(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = Fake(tmp_path, monkeypatch, Plan(2, 0, 0, 0.001))
    path = tmp_path / name if name != "code" else fake.code["incumbent"] / "nanochat/gpt.py"
    [first] = fake.series.ledger.of_kind("series")
    if name == "referee":  # a series has kept other code since
        (tmp_path / "first/nanochat").mkdir(parents=True)
        (tmp_path / "first/nanochat/gpt.py").write_text("# first\n", encoding="utf-8")
        first_copy = _kept(tmp_path / "first", tmp_path / "code")
        fake.series.fixed["referee"] = first["referee"] = first_copy.name
        path = first_copy / "nanochat/gpt.py"
    first["files"] = {"sealed/validation.json": read_sha256(tmp_path / "sealed/validation.json")}
    own = fake.score

    def score(side: Side, *given: Any) -> Record:
        if name == "referee.json":
            fake.series.fixed["scale"] = "embedded"
        else:
            path.write_text("[]", encoding="utf-8")
        return own(side, *given)

    monkeypatch.setattr(arena, "score", score)
    sentence = "begin another series with --series=NAME"
    with pytest.raises(UserError, match=rf"was changed after it was .*{sentence}" if name == "referee" else sentence):
        fake.record()
    assert not fake.series.ledger.of_kind("trial")


def test_other_weights_than_a_run_left_are_not_scored_on_the_holdout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = Fake(tmp_path, monkeypatch, Plan(2, 6, 0, 0.001))
    record = fake.record()
    monkeypatch.setattr(arena, "weights_hash", lambda _: "others")
    with pytest.raises(UserError, match="has other weights than its run left"):
        referee._on_holdout(fake.series, record)


def test_a_machine_is_its_processor_and_what_that_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = set()
    for text in ("model name\t: A\nflags\t\t: avx2\n", "model name\t: A\nflags\t\t: avx2 amx\n", "Features : neon\n"):
        (tmp_path / "cpuinfo").write_text(text * 2, encoding="utf-8")
        monkeypatch.setattr(cores, "CPU_INFO", tmp_path / "cpuinfo")
        found.add(referee.machine_name())
    assert len(found) == 3


def test_what_is_kept_has_its_checkpoints_for_the_holdout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake(tmp_path, monkeypatch, Plan(2, 6, 2, 0.001))
    found = fake.record()
    assert found["answer"] == "keep"
    assert {key for pair in found["confirmed"] for key in pair} == {path.name for path in (tmp_path / "runs").iterdir()}


def test_by_the_clock_the_incumbent_is_trained_beside_each_candidate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow hour hits both: the noise floor may be hours old. A run that is there is not trained again."""
    fake = Fake(tmp_path / "seconds", monkeypatch, Plan(2, 0, 0, 0.001), "seconds")
    own, calls = fake.train, []

    def stopped(*given: Any) -> Record:
        calls.append(given)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return own(*given)

    monkeypatch.setattr(arena, "train", stopped)
    with pytest.raises(KeyboardInterrupt):
        fake.record()
    assert fake.record()["pairs"] == 2
    assert fake.parts() == ["screen"] * 3 + ["beside"] * 4
    sides = [name for name, _ in fake.trained[3:]]
    assert sides == ["incumbent", "candidate", "candidate", "incumbent"]
    seeds = [seed for _, seed in fake.trained]
    assert (seeds[3], seeds[5]) == (seeds[4], seeds[6])
    assert len(set(seeds)) == 3 + 2
    flops = Fake(tmp_path / "flops", monkeypatch, Plan(2, 0, 0, 0.001))
    flops.record()
    assert flops.parts() == ["screen"] * 5  # there the noise floor's runs are the pairs'


@pytest.mark.parametrize(("again", "refused", "asked"), [(50.0, None, 2), (10.0, "budget", 2)])
def test_before_a_slow_score_is_refused_the_incumbent_is_scored_again(
    again: float, refused: str | None, asked: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The noise floor may be of an hour when the machine was less busy."""
    fake = Fake(tmp_path, monkeypatch, Plan(2, 0, 0, 0.001))
    own = fake.score

    def score(side: Side, *given: Any) -> Record:
        late = any(name == "candidate" for name, _ in fake.trained)
        seconds = 60.0 if side.name == "candidate" else again if late else 10.0
        return own(side, *given) | {"scoring_cpu_seconds": seconds}

    monkeypatch.setattr(arena, "score", score)
    assert fake.record().get("refused") == refused
    assert fake.parts().count("again") == asked  # once there are two pairs


@pytest.mark.parametrize(
    ("plan", "slow", "refused"),
    [(Plan(1, 6, 0, 0.001), 1, 0), (Plan(1, 6, 0, 0.001), 9, 2), (Plan(1, 0, 0, 0.001), 9, 1)],
)
def test_a_single_pair_refuses_nobody_by_scoring_before_the_confirmation(
    plan: Plan, slow: int, refused: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """slow: the candidate's first scores. refused: pairs of the last part when it is; 0: it is kept."""
    fake = Fake(tmp_path, monkeypatch, plan)
    fake.question = dataclasses.replace(fake.question, metrics=["scoring_cpu_seconds"])
    own, late = fake.score, []

    def score(side: Side, *given: Any) -> Record:
        if side.name == "candidate" and len(late) < slow:
            late.append(side)
            return own(side, *given) | {"scoring_cpu_seconds": 900.0}
        return own(side, *given)

    monkeypatch.setattr(arena, "score", score)
    found = fake.record()
    if not refused:
        assert found["answer"] == "keep"
        assert found["metrics"]["scoring_cpu_seconds"]["candidate"] == 1.0  # of the confirmation
        return
    assert found["refused"] == "budget"
    assert fake.parts().count("confirm") == (2 * refused if plan.confirming else 0)


@pytest.mark.parametrize("slow", [1, 12])
@pytest.mark.parametrize("part", ["confirm", "depth"])
def test_one_slow_minute_refuses_nobody(part: str, slow: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the candidate's scores in a part, the first ones are slow, by the clock and by processor time."""
    fake = Fake(tmp_path, monkeypatch, Plan(2, 6, 2, 0.001))
    own, late = fake.score, []

    def score(side: Side, *given: Any) -> Record:
        before = 5 if part == "confirm" else 17
        if side.name == "candidate" and len(fake.trained) > before and len(late) < slow:
            late.append(side)
            return own(side, *given) | {"scoring": 900.0, "scoring_cpu_seconds": 900.0}
        return own(side, *given) | {"scoring": 900.0}  # a busy hour for everybody

    monkeypatch.setattr(arena, "score", score)
    found = fake.record()
    assert len(late) == min(slow, 2)
    if slow == 1:
        assert found["answer"] == "keep"
        assert found["second"]["answer"] == "better"
    elif part == "confirm":
        assert found["refused"] == "budget"
    else:
        assert "at depth 2 refused, budget: it has 900.00 times the incumbent's processor time to be" in found["holds"]


@pytest.mark.parametrize(("times", "refused"), [(1.4, "budget"), (1.05, None)])
def test_by_the_clock_a_candidate_has_the_time_that_chance_explains(
    times: float, refused: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = Fake(tmp_path, monkeypatch, Plan(2, 0, 0, 0.001), "seconds")
    fake.times = times
    assert fake.record().get("refused") == refused


def test_the_holdout_says_whether_a_gain_held_in_the_form_of_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(tmp_path))
    fake = Fake(tmp_path / "trial/default", monkeypatch, Plan(2, 6, 0, 0.001))
    fake.record()
    monkeypatch.setattr(referee, "open_series", lambda _: fake.series)
    capsys.readouterr()  # of how far it was
    scores = iter([score for number in range(6) for score in (2.5 + 0.001 * number, 2.0)])
    monkeypatch.setattr(arena, "score", lambda *_: {"bpb": next(scores), "scoring": 1.0})
    open_holdout("default", False)
    lines = capsys.readouterr().out.splitlines()
    assert all(re.fullmatch(r"METRIC [a-z0-9_]+=\S+", line) for line in lines[1:])
    assert re.fullmatch(r"trial 1: candidate: .* on the holdout over 6 pairs, p = \S+: it held", lines[0])
    metrics = Asked(0, lines, "").metrics
    assert (metrics["trial_1_answer"], metrics["trial_1_pairs"], lines[-1]) == ("held", "6", "METRIC answer=held")
    assert float(metrics["trial_1_gain_bpb"]) == pytest.approx(0.5025)
    assert float(metrics["trial_1_p"]) < 0.001
    open_holdout("default", True)
    told = json.loads(capsys.readouterr().out)
    assert (told["answer"], told["trials"][0]["answer"], told["hash"]) == ("held", "held", metrics["ledger"])


def two_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """A series that has kept two trials, of which the first one's runs come first when they are scored."""
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(tmp_path))
    fake = Fake(tmp_path / "trial/default", monkeypatch, Plan(2, 6, 0, 0.001))
    kept = fake.record()
    other = {name: value for name, value in kept.items() if name not in ("kind", "previous", "hash")}
    other["confirmed"] = [["one", "two"] for _ in range(6)]
    for key in ("one", "two"):
        fake.series.ledger.add("run", key=key, weights=key)
    fake.series.ledger.add("trial", **other | {"name": "other", "number": 2})
    monkeypatch.setattr(referee, "open_series", lambda _: fake.series)
    return fake


@pytest.mark.parametrize(
    "error", [Refused("normalised", "a token of the text has no probability"), Failure("its model could not be scored")]
)
def test_a_keep_that_cannot_be_scored_closes_the_holdout_for_no_other(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = two_kept(tmp_path, monkeypatch)
    capsys.readouterr()
    scores = iter([score for number in range(6) for score in (2.5 + 0.001 * number, 2.0)])

    def score(side: Side, home: Path, place: Path, *_: object) -> Record:
        if place.name == "two":
            raise error
        return {"scoring": 1.0, "bpb": 2.5 if place.name == "one" else next(scores)}

    monkeypatch.setattr(arena, "score", score)
    open_holdout("default", False)
    lines = capsys.readouterr().out.splitlines()
    metrics = Asked(0, lines, "").metrics
    assert (metrics["trial_1_answer"], metrics["trial_2_answer"], metrics["answer"]) == ("held", "failed", "failed")
    assert f", and it cannot be scored on the holdout: {error}" in lines[1]
    assert [one["answer"] for one in fake.series.ledger.of_kind("holdout")[0]["trials"]] == ["held", "failed"]


@pytest.mark.parametrize("fault", ["killed", "late", "incumbent", "weights", "code"])
def test_a_fault_of_the_machine_decides_nothing_on_the_holdout(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other trials are scored all the same, and only what is left when it is asked again."""
    fake = two_kept(tmp_path, monkeypatch)
    scored = []
    mended = False
    own = fake.weights_hash

    def score(side: Side, home: Path, place: Path, *_: object) -> Record:
        scored.append((side.name, place.name in ("one", "two")))
        if place.name not in ("one", "two") and not mended:
            if fault in ("killed", "late") and side.name == "candidate":
                raise (Killed if fault == "killed" else Late)("its model was not scored")
            if fault == "incumbent" and side.name == "incumbent":
                raise Failure("its model could not be scored")
        return {"scoring": 1.0, "bpb": (2.5 if side.name == "incumbent" else 2.0) + 0.001 * len(scored)}

    def weights_hash(folder: Path) -> str:
        if fault == "weights" and folder.name not in ("one", "two") and not mended:
            raise Failure("its run left no model")
        return own(folder)

    def check(home: Path) -> None:
        if fault == "code" and not scored and not mended:
            scored.append(("code", False))
            raise UserError(f"{home} was changed after it was copied")

    monkeypatch.setattr(arena, "score", score)
    monkeypatch.setattr(arena, "weights_hash", weights_hash)
    monkeypatch.setattr(referee, "check_unchanged", check)
    with pytest.raises(UserError, match=r"^trial 1 could not be scored .* nothing is decided by that: .*; mend it and"):
        open_holdout("default", False)
    assert not fake.series.ledger.of_kind("holdout")
    assert [line["trial"]["number"] for line in fake.series.ledger.of_kind("holdout-trial")] == [2]
    mended = True
    scored.clear()
    capsys.readouterr()
    open_holdout("default", False)
    metrics = Asked(0, capsys.readouterr().out.splitlines(), "").metrics
    assert (metrics["trial_1_answer"], metrics["trial_2_answer"], metrics["answer"]) == ("held", "held", "held")
    assert scored == [("incumbent", False), ("candidate", False)] * 6
    assert len(fake.series.ledger.of_kind("holdout-opened")) == 1


@pytest.mark.parametrize(
    ("answers", "together"),
    [
        (["held", "held"], "held"),
        (["held", "undecided"], "undecided"),
        (["undecided", "failed", "held"], "failed"),
        (["failed", "lost", "undecided", "held"], "lost"),
    ],
)
def test_the_worst_answer_of_the_holdout_is_that_of_all(answers: list[str], together: str) -> None:
    assert referee._all_held(answers) == together


@pytest.mark.parametrize(("gains", "answer"), [([0.001, -0.001], "undecided"), ([-0.5, -0.5], "lost")])
def test_a_gain_that_the_holdout_does_not_show_is_said(
    gains: list[float], answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = Fake(tmp_path, monkeypatch, Plan(2, 6, 0, 0.001))
    record = fake.record()
    scores = iter(
        [score for number, gain in enumerate(3 * gains) for score in (2 + number / 1000, 2 + number / 1000 - gain)]
    )
    monkeypatch.setattr(arena, "score", lambda *_: {"bpb": next(scores), "scoring": 1.0})
    assert referee._on_holdout(fake.series, record)["answer"] == answer


def test_a_check_of_the_ledger_has_the_form_of_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(tmp_path))
    last = opened(tmp_path / "trial/default").ledger.add("asked")["hash"]
    verify_series("default", last, False)
    metrics = {"lines": "1", "ledger": last, "answer": "unchanged"}
    assert Asked(0, capsys.readouterr().out.splitlines(), "").metrics == metrics
    verify_series("default", last, True)
    assert json.loads(capsys.readouterr().out) == {
        "series": "default",
        "lines": 1,
        "hash": last,
        "answer": "unchanged",
    }


def test_the_reason_why_a_model_cannot_be_scored_is_where_the_answer_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def judge(*_: object) -> None:
        raise UserError("its words")

    monkeypatch.setattr(arena, "judge", judge)
    place = tmp_path / "runs/key"
    place.mkdir(parents=True)
    (tmp_path / "home/tok_train/default").mkdir(parents=True)
    with pytest.raises(Failure, match="its model could not be scored: the reason is in ") as raised:
        arena.score(Side("a", "HEAD", tmp_path), tmp_path / "home", place, [], False)
    shutil.rmtree(place)
    assert Path(str(raised.value).rpartition(" in ")[2]).read_text(encoding="utf-8") == "its words"


def scored(program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float = 300.0) -> Record:
    """Score a sealed sentence by a program in place of a model."""
    monkeypatch.setattr(arena, "MODEL", program)
    place = tmp_path / "runs/key"
    place.mkdir(parents=True)
    for folder in [tmp_path, *tmp_path.parents][:4]:  # the sandbox's user reads what lies below
        folder.chmod(folder.stat().st_mode | 0o055)
    (tmp_path / "code").mkdir()
    (tmp_path / "home/tok_train/default").mkdir(parents=True)
    side = Side("a", "HEAD", tmp_path / "code")
    return arena.score(side, tmp_path / "home", place, ["a sealed sentence"], False, seconds)


@pytest.mark.parametrize(
    ("old", "when"),
    [
        ("return [MARK, *text]", "True"),  # the process that has the text
        ("rows = [self", "first < len(ids)"),  # that which scores
        ("rows = [self", "first == len(ids)"),  # that which is asked without what follows
        ("return Entry()", "True"),  # before any question
    ],
)
def test_a_scoring_that_sleeps_is_late(old: str, when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It uses no processor time, and what it has read decides how long it takes."""
    indent = 4 if "Entry" in old else 8
    sleeping = HONEST.replace(old, f"import time; time.sleep(12 if {when} else 0)\n{' ' * indent}{old}")
    with pytest.raises(Late, match=r"^its model was not scored within 9 seconds$"):
        scored(sleeping, tmp_path, monkeypatch, 9.0)


@pytest.mark.parametrize("kind", ["FileNotFoundError", "ModuleNotFoundError", "PermissionError", "ValueError"])
def test_what_a_scorer_says_of_the_text_is_in_no_answer(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process raises with the text that it is given."""
    with pytest.raises(UserError) as raised:
        scored(HONEST.replace("return [MARK, *text]", f"raise {kind}(text.decode())"), tmp_path, monkeypatch)
    said = str(raised.value)
    assert "sealed" not in said
    if kind != "ValueError":
        assert said.startswith(f"refused, bytes: it needs what is not among its files ({kind}): the reason is in ")
    assert "a sealed sentence" in Path(said.rpartition(" in ")[2]).read_text(encoding="utf-8")


def test_a_scoring_that_ends_with_another_status_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leaving = "import atexit, os\n\natexit.register(os._exit, 3)\n"
    with pytest.raises(Late, match=r"^its process did not end, or not without an error, when its model was scored$"):
        scored(leaving + HONEST, tmp_path, monkeypatch)


def test_a_scoring_that_kills_itself_has_used_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    busy = "import os, time\n        while time.process_time() < 3: pass\n        os.kill(os.getpid(), 9)"
    with pytest.raises(Killed, match=r"^the scoring of its model was killed, as by a machine") as raised:
        scored(HONEST.replace("return [MARK, *text]", busy), tmp_path, monkeypatch)
    assert raised.value.cpu_seconds >= 3


@pytest.mark.parametrize(
    ("stop", "error", "sentence"),
    [
        (Broken("its process has ended", killed=True), Killed, "the scoring of its model was killed, as by a machine"),
        (Refused("time", "it takes longer than 120 s"), Late, "its model was not scored within 1800 seconds$"),
        (Judgement(bytes=1, ended=False), Late, "its process did not end, or not without an error, when"),
    ],
)
def test_what_the_machine_may_have_stopped_is_told_from_other_failures(
    stop: object, error: type[Failure], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def judge(*_: object) -> object:
        if isinstance(stop, Exception):
            raise stop
        return stop

    monkeypatch.setattr(arena, "judge", judge)
    (tmp_path / "home/tok_train/default").mkdir(parents=True)
    (tmp_path / "runs/key").mkdir(parents=True)
    with pytest.raises(error, match=sentence):
        arena.score(Side("a", "HEAD", tmp_path), tmp_path / "home", tmp_path / "runs/key", [], False)


def test_a_run_does_not_begin_without_room_for_its_files(tmp_path: Path) -> None:
    trial = Trial.__new__(Trial)
    trial.series = opened(tmp_path)
    trial._check_space()
    trial.series.ledger.add("run", bytes=2**60)
    with pytest.raises(OSError, match="has no room for the checkpoints of this run"):
        trial._check_space()


def test_short_processes_count_as_what_they_may_hide() -> None:
    own = [{"cpu_seconds": 12.0, "processes": 9}, {"cpu_seconds": 12.0, "processes": 109}]
    assert work_of(own, [{"processes": 9}] * 2) == pytest.approx([12.0, 17.0])
    assert work_of(own, [{"processes": 109}] * 2) == [12.0, 12.0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "text", "reason"),
    [
        # More steps than the plan says.
        ("nanochat/scaling.py", "\n_own = _horizon\n\n\ndef _horizon(*more):\n    return 3000, 'mine'\n", "budget"),
        # More text in a step: each batch has the rows of eight.
        (
            "nanochat/dataloader.py",
            "\n_next = TextLoader.__next__\n\n\ndef _more(self):\n    found = [_next(self) for _ in range(8)]\n"
            "    return tuple(torch.cat(one) for one in zip(*found))\n\n\nTextLoader.__next__ = _more\n",
            "budget",
        ),
        # A seed of its own.
        (
            "nanochat/models.py",
            "\n_own = initialize\n\n\ndef initialize(model, seed, runtime):\n    _own(model, 7, runtime)\n",
            "seed",
        ),
        # An order of the text of its own.
        (
            "nanochat/dataloader.py",
            "\n_own = TextLoader.__post_init__\n\n\ndef _fixed(self):\n    self.seed = 7\n    _own(self)\n"
            "\n\nTextLoader.__post_init__ = _fixed\n",
            "seed",
        ),
    ],
)
def test_a_cheat_that_has_to_run_is_refused(path: str, text: str, reason: str, repository: Repository) -> None:
    repository.change(path, text)
    found = repository.ask("--pairs=2")
    assert (found.status, f"refused, {reason}" in found.verdict) == (DISCARD, True), found.verdict


@pytest.mark.slow
def test_work_in_other_processes_counts(repository: Repository) -> None:
    """Three of them compute while the run trains, and nobody waits for them."""
    repository.change(
        "nanochat/gpt.py",
        "\nimport os\n\nfor _ in range(3):\n    if not os.fork():\n        while True:\n            sum(range(1000))\n",
    )
    found = repository.ask()
    assert (found.status, "incumbent's processor time" in found.verdict) == (DISCARD, True), found.verdict
    assert "refused, budget" in found.verdict


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


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_an_agent_that_is_killed_in_a_run_goes_on_to_the_holdout(repository: Repository) -> None:
    """The whole loop of docs/agents.md, with a keep that other seeds and another depth confirm."""
    broken = idea("a new block", "nanochat/gpt.py", "class GPT(", "class GPT(Missing, ")
    ideas = [EASIER_TEXT, broken, LEARNING_HEAD, MILDER_JUDGE]
    flags = ["--scale=tiny", "--pairs=1"]
    git(repository.root, "switch", "-qC", "night-1")
    repository.series = repository.base / "trial/night-1"
    try:
        with repository.agent(ideas, "night-1", *flags) as agent:
            assert agent.stdout is not None  # a pipe
            assert any(re.search("confirm 2: candidate", line) for line in agent.stdout)
            time.sleep(1)  # the run has begun
            os.killpg(agent.pid, signal.SIGKILL)
        assert agent.returncode == -signal.SIGKILL
        stopped = [record["key"] for record in repository.records if record["kind"] == "run"]
        with repository.agent(ideas, "night-1", *flags) as agent:
            answers = said_by(agent, 3000)
        assert agent.returncode == 0  # of the holdout
        assert subjects(repository.root) == ["a head that learns", "the incumbent"]
        records = repository.records
    finally:
        repository.series = repository.base / "trial/default"
        git(repository.root, "switch", "-qf", "-")
    assert answers == [
        "an easier text: is remembered",
        "a new block: is remembered",
        "a head that learns: keep",
        "a milder judge: discard",
    ]
    runs = [(record["part"], record["key"]) for record in records if record["kind"] == "run"]
    assert [key for _, key in runs[: len(stopped)]] == stopped
    assert len({*runs}) == len(runs)
    parts = [part for part, _ in runs]
    # The noise floor and a candidate; six pairs; two at the second depth: each once.
    assert [parts.count(part) for part in ("screen", "confirm", "depth")] == [4, 12, 4]
    assert len(stopped) == 4 + 2
    trials = [record for record in records if record["kind"] == "trial"]
    assert [record["answer"] for record in trials] == ["discard", "discard", "keep", "discard"]
    assert [record["number"] for record in trials] == [1, 2, 3, 4]
    assert trials[2]["holds"] == "at depths 1 and 2"
    [opened] = [record for record in records if record["kind"] == "holdout"]
    [kept] = opened["trials"]
    assert kept["number"] == 3
    assert kept["gain"] - kept["interval"] > 0
