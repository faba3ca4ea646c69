"""Trials from end to end: a real repository, real runs in the sandbox, and candidates that cheat."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random, randrange

import pytest
from contain import NEEDS_SANDBOX
from copies import ROOT, listed
from trials import Asked

from nanochat.config import parse
from nanochat.errors import UserError
from nanochat.trial.decision import confirming_pairs
from scripts.trial import Config, main

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


def test_defaults_are_a_night_on_a_laptop() -> None:
    config = parse(Config, [])
    assert (config.scale, config.budget, config.pairs, config.confirm) == ("embedded", "flops", 2, True)
    assert confirming_pairs(config.pairs) == 6


@pytest.mark.parametrize("flag", ["--verify", "--holdout"])
def test_a_series_that_is_not_there_is_one_sentence(flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(tmp_path))
    with pytest.raises(UserError, match="there is no series default below"):
        main(parse(Config, [flag]))


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
    """Killed at moments that chance chooses, it has the runs, their scores and the answer of one that was not."""
    flags = ["--candidate=--matrix-lr=0.01"]
    moment = Random(seed := randrange(10**6))
    print(f"moments of seed {seed}")
    found = {}
    whole = repository.base / "trial/whole"
    try:
        for name in ("whole", "killed"):
            repository.series = repository.base / "trial" / name
            kills = 0
            if name == "killed":  # a series has seeds and texts of its own: those of the whole one
                repository.series.mkdir()
                shutil.copy(whole / "referee.json", repository.series)
                shutil.copytree(whole / "code", repository.series / "code")
            while name == "killed" and kills < 12:
                try:
                    repository.ask(*flags, f"--series={name}", seconds=moment.uniform(0.2, 8))
                    break  # it has ended before
                except subprocess.TimeoutExpired:
                    kills += 1
            answer = repository.ask(*flags, f"--series={name}")
            assert answer.status in (KEEP, DISCARD, UNDECIDED), answer.complaint
            runs = [record for record in repository.records if record["kind"] == "run"]
            found[name] = [answer.status, answer.metrics["gain_bpb"], *sorted((run["key"], run["bpb"]) for run in runs)]
            assert len({run["key"] for run in runs}) == len(runs) == 4
            assert sum(record["kind"] == "asked" for record in repository.records) == 1
    finally:
        repository.series = repository.base / "trial/default"
    assert kills >= 2
    assert found["killed"] == found["whole"]


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
