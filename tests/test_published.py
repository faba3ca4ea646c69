"""bench.golden and bench.published: error rates by simulation, runs that are judged, questions without an answer."""

import json
import math
import os
import random
import re
import statistics
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from conftest import ROOT, checked, each_row

from bench import golden
from bench.golden import verdict
from bench.published import (
    Judged,
    Key,
    Published,
    Run,
    check_run,
    check_seeds,
    equal_runs,
    figure_names,
    judge,
    load,
    overall,
    publish,
    read_run,
)
from nanochat.errors import UserError
from nanochat.paths import read_json, write_json

Figures = dict[Key, float]
BPB = [("stage", f"{number} bpb") for number in range(4)]


# ---- the interval, by simulation ----


def alone(dice: random.Random) -> Figures:
    """Figures that do not depend on each other: what the levels are exact for."""
    return {key: dice.gauss(1, 0.01) for key in BPB}


def together(dice: random.Random) -> Figures:
    """Figures of one run, which are good or bad together."""
    luck = dice.gauss(0, 0.9)
    return {key: 1 + 0.01 * (luck + dice.gauss(0, math.sqrt(1 - 0.9**2))) for key in BPB}


def scores(dice: random.Random) -> Figures:
    """Means of three tasks near the top, of 200, 200 and 100 questions: steps, and not symmetric."""
    right = {"mid": (0.96, 0.945, 0.92), "sft": (0.985, 0.96, 0.98), "rl": (0.98, 0.955, 0.995)}
    counts = (200, 200, 100)
    return {
        (stage, "World mean"): sum(
            sum(dice.random() < one for _ in range(count)) / count for one, count in zip(chances, counts, strict=True)
        )
        / 3
        for stage, chances in right.items()
    }


def share_outside(
    draw: Callable[[random.Random], Figures], trials: int, published: int = 8, runs: int = 3, shift: float = 0.0
) -> float:
    """Return how often new runs do not get the published figures. shift: of the first one."""
    dice = random.Random(1)
    found = 0
    for _ in range(trials):
        before = [draw(dice) for _ in range(published)]
        new = [draw(dice) for _ in range(runs)]
        for run in new:
            run[next(iter(run))] += shift
        values = {key: [run[key] for run in before] for key in before[0]}
        found += overall(judge(values, new)) != "published"
    return found / trials


def test_a_right_fork_fails_once_in_twenty_times() -> None:
    """The standard error of a share of 5 % in 1,000 is 0.7 %; dice with the same seed give the same shares."""
    assert 0.03 < share_outside(alone, 1000) < 0.065
    assert share_outside(together, 500) < 0.065
    assert share_outside(alone, 500, published=3, runs=1) < 0.07
    assert share_outside(scores, 200) < 0.09


def test_a_shift_of_a_few_deviations_is_found() -> None:
    assert share_outside(alone, 300, shift=4 * 0.01) > 0.9
    assert share_outside(alone, 300, shift=-4 * 0.01) > 0.9
    assert share_outside(alone, 300, published=16, shift=3 * 0.01) > 0.85


def test_the_interval_is_that_of_a_prediction() -> None:
    """Student's t from a table: 12.706 for one figure of two runs, two-sided, 5 %."""
    values = [1.0, 2.0]
    [judged] = judge({BPB[0]: values}, [{BPB[0]: 1.5}])
    assert judged.half == pytest.approx(12.706 * statistics.stdev(values) * math.sqrt(1 / 2 + 1), rel=1e-4)
    assert (judged.published, judged.difference, judged.answer) == (1.5, 0.0, "published")


# ---- answers ----


@each_row(
    "name here words",
    """
0 bpb | 1.01 | as published
0 bpb | 1.2 | worse by 0.2000
0 bpb | 0.8 | better by 0.2000
World mean | 1.2 | better by 0.2000
World mean | 0.8 | worse by 0.2000
Validation loss | 1.2 | worse by 0.2000
0 bpb | nan | worse: it is no number
World mean | inf | worse: it is no number
""",
)
def test_the_answer_knows_what_is_better(name, here, words) -> None:
    assert Judged(("stage", name), 1.0, 0.1, float(here)).words == words


def test_a_figure_without_a_spread_is_not_judged_and_takes_nothing_from_others() -> None:
    values = {BPB[0]: [1.0, 1.1, 0.9], BPB[1]: [1.0, 1.0, 1.0]}
    first, same = judge(values, [dict.fromkeys(BPB, 1.0)])
    assert first.half == judge({BPB[0]: values[BPB[0]]}, [{BPB[0]: 1.0}])[0].half
    assert same.words == "as published"
    _, other = judge(values, [{BPB[0]: 1.0, BPB[1]: 0.9}])
    assert other.words == "not judged: the published runs do not differ"
    assert overall([first, other]) == "published"
    assert verdict([first, other]) == "as published: every figure that can be judged is within its interval"


def test_worse_counts_more_than_better() -> None:
    worse, better = Judged(BPB[0], 1.0, 0.1, 2.0), Judged(BPB[1], 1.0, 0.1, 0.0)
    assert [overall(found) for found in ([better, worse], [better], [])] == ["worse", "better", "published"]
    assert verdict([better, worse]) == (
        "not as published: stage: 1 bpb is better by 1.0000; stage: 0 bpb is worse by 1.0000"
    )


def test_means_and_losses_are_judged_and_single_tasks_are_not() -> None:
    assert figure_names("base_loss") == ["train bpb", "val bpb"]
    assert figure_names("base_eval") == ["CORE metric", "World CORE metric"]
    assert figure_names("chat_eval_rl") == ["ChatCORE", "World mean"]
    assert figure_names("mid_train") == ["Minimum validation bpb"]


# ---- runs ----

FLAGS = {"base_train": {"num_iterations": 100, "depth": 2}}


def a_run(seed: int, bpb: float = 1.0, text: str = "abc", conditions: Mapping[str, dict] = FLAGS) -> Run:
    return Run(f"seed-{seed}", seed, text, "the text", "fp32", conditions, {BPB[0]: bpb})


def some_published(values: Sequence[float] = (1.0, 1.1, 1.2)) -> Published:
    return publish([a_run(seed, value) for seed, value in enumerate(values, 1)], "abc1234", "2026-11-28")


def test_runs_that_are_not_of_the_kind_are_refused() -> None:
    published = some_published()
    check_run(published, a_run(7))
    check_run(published, a_run(7, conditions={"base_train": {"depth": 2}}))  # an option that other code does not have
    shorter = {"base_train": {"num_iterations": 50, "depth": 2}}
    sentence = (
        "the run seed-7 is of another kind: base_train had --num-iterations=50, and --num-iterations=100 in the"
        " published runs"
    )
    with pytest.raises(UserError, match=f"^{sentence}$"):
        check_run(published, a_run(7, conditions=shorter))
    with pytest.raises(UserError, match=r"^the run seed-7 has other validation text: xyz of the text, not abc of the"):
        check_run(published, a_run(7, text="xyz"))
    without = Run("seed-7", 7, "abc", "the text", "fp32", FLAGS, {})
    with pytest.raises(UserError, match=r"^the run seed-7 has no 0 bpb in stage: files of its tasks may"):
        check_run(published, without)
    with pytest.raises(UserError, match=r"^the runs seed-1 and seed-1 have the same --seed=1: name one of them$"):
        check_seeds([a_run(1), a_run(2), a_run(1)])
    with pytest.raises(UserError, match=r"^the runs seed-1 and seed-2 differ in more than their seed$"):
        publish([a_run(1), a_run(2, text="xyz")], "abc1234", "2026-11-28")


def test_runs_that_are_equal_to_the_last_digit_are_counted() -> None:
    published = some_published()
    assert equal_runs(published, [a_run(1, 1.0), a_run(2, math.nextafter(1.1, 2)), a_run(9, 1.2)]) == 1


def test_another_precision_and_torch_are_named() -> None:
    run = Run("mine", 9, "abc", "the text", "bf16", FLAGS, {BPB[0]: 1.0}, {"torch": "9.9"})
    assert golden.notes_of(some_published(), [run]) == [
        "these runs are in bf16, the published ones in fp32",
        "these runs have torch 9.9, the published ones None",
    ]


# ---- the file ----


def test_the_file_comes_back_and_its_faults_are_named(tmp_path: Path) -> None:
    path = tmp_path / "golden.json"
    published = some_published()
    with pytest.raises(
        UserError, match=r"^the scale tiny has no published figures yet: python -m bench.golden --scale="
    ):
        load(path, "tiny")
    write_json(path, {"tiny": published.record()})
    assert load(path, "tiny") == published
    with pytest.raises(
        UserError, match=r"^the scale embedded has no published figures yet: python -m bench.golden --sc"
    ):
        load(path, "embedded")
    damaged = published.record()
    del damaged["commit"]
    write_json(path, {"tiny": damaged})
    with pytest.raises(UserError, match=r"the figures of the scale tiny are not of this version: measure them again$"):
        load(path, "tiny")
    path.write_text("{")
    with pytest.raises(UserError, match="is no file of published figures"):
        load(path, "tiny")


def test_the_committed_figures_are_whole() -> None:
    for name, record in read_json(golden.FILE).items():
        published = load(golden.FILE, name)
        assert name in golden.SCALES
        assert published.record() == record  # mean and deviation are those of the values
        assert len(set(published.seeds)) == len(published.seeds)
        assert re.fullmatch(r"[0-9a-f]{7,}", published.commit)
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", published.date)
        assert all(len(values) == len(published.seeds) for values in published.figures.values())


# ---- the command ----

REFUSALS = """
--scale=huge | invalid choice 'huge' for argument '--scale'
--scale=8xh100 | the scale 8xh100 has no published figures yet: python -m bench.golden --scale=8xh100 --write
--flags=--num_iterations=7 | --flags: --num-iterations makes it another run, which no published figure is of
--flags=--seed=7 | --flags: --seed makes it another run, which no published figure is of
--flags=--matrix-lrr=7 | unknown argument --matrix-lrr, did you mean --matrix-lr?
--flags=7 | --flags: 7 is no flag, write flags as --name=value
--write --flags=--matrix-lr=7 | --flags is for new runs that are judged: leave out --write
--write --seeds=2 | --seeds=2: published figures have 3 runs or more
--write --run=mine | --run trains nothing: leave out --write
--run=mine --seeds=2 | --run trains nothing: leave out --seeds
--run=mine | there is no run mine of bash speedrun.sh below
--run=mine --scale=tiny | the run mine has not finished: there is no
--run=../mine --scale=tiny | the tag ../mine cannot name a folder
"""


@each_row("flags sentence", REFUSALS)
def test_a_question_that_cannot_be_asked_ends_with_a_sentence(here, base: Path, flags, sentence) -> None:
    assert here("bench.golden", *flags.split(), code=2).stderr.startswith(f"error: {sentence}")
    assert not base.exists()


class Fork:
    """Whoever asks, with runs in a folder of their own."""

    def __init__(self, python: str, folder: Path) -> None:
        self.python = python
        self.folder = folder
        self.file = folder / "golden.json"

    def run(self, *words: str, base: Path | None = None) -> subprocess.CompletedProcess:
        environment = os.environ | {"NANOCHAT_BASE_DIR": str(base or self.folder / "base"), "OMP_NUM_THREADS": "1"}
        command = [self.python, *words]
        return subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=200)

    def ask(self, *flags: str, code: int = 0, base: Path | None = None) -> subprocess.CompletedProcess:
        return checked(self.run("-m", "bench.golden", *flags, base=base), code)

    def runs(self) -> Path:
        """Return the base folder of the runs without flags."""
        [found] = [path for path in self.folder.glob("base/golden/tiny-*") if (path / "base_loss/seed-3").exists()]
        return found


@pytest.fixture(scope="module")
def fork(quick: str, tmp_path_factory: pytest.TempPathFactory) -> Fork:
    """Three runs of the scale tiny, which are published in a file of their own."""
    fork = Fork(quick, tmp_path_factory.mktemp("fork"))
    checked(fork.run("-c", "from bench.golden import train; train('tiny', 3, [])"), 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NANOCHAT_BASE_DIR", str(fork.runs()))
        runs = [read_run(f"seed-{seed}") for seed in (1, 2, 3)]
    write_json(fork.file, {"tiny": publish(runs, "abc1234", "2026-11-28").record()})
    return fork


@pytest.mark.timeout(300)
def test_this_machine_is_near_the_committed_figures(fork) -> None:
    """Whether it gets them is the machine's affair: it may be the one in twenty, or have another precision."""
    done = fork.run("-m", "bench.golden", "--json=committed.json")
    assert done.returncode in (0, 10), done.stdout + done.stderr
    found = read_json(fork.folder / "committed.json")
    assert (found["scale"], found["answer"] == "published") == ("tiny", done.returncode == 0)
    for row in found["rows"]:
        assert abs(row["difference"]) < 5 * row["interval"]


@pytest.mark.timeout(300)
def test_the_same_code_is_as_published_and_nothing_is_trained_again(fork) -> None:
    done = fork.ask(f"--golden={fork.file}")
    assert "== base_train: already finished" in done.stdout
    assert "note: 3 of 3 runs have every figure of the published run of their seed, to the last digit" in done.stdout
    assert "as published: every figure is within its interval\nMETRIC " in done.stdout
    assert done.stdout.endswith("METRIC runs=3\nMETRIC answer=published\n")
    assert not list(fork.runs().glob("*/*/step_*"))  # checkpoints are not kept


@pytest.mark.timeout(300)
def test_a_harm_is_found(fork) -> None:
    done = fork.ask(f"--golden={fork.file}", "--seeds=1", "--flags=--matrix-lr=1", "--json", code=10)
    found = json.loads(done.stdout)
    assert found["answer"] == "worse"
    assert [row["answer"] for row in found["rows"]] == ["worse", "worse"]
    assert "not as published: base_loss: train bpb is worse by " in done.stderr
    assert re.search(r"^METRIC base_loss_val_bpb_answer=worse$", done.stderr, re.MULTILINE)


@pytest.mark.timeout(300)
def test_finished_runs_are_judged_by_their_tags(fork) -> None:
    found = fork.ask(f"--golden={fork.file}", "--scale=tiny", "--run=seed-2,seed-3", base=fork.runs())
    assert "scale tiny: 2 runs here, 3 published ones of commit abc1234" in found.stdout
    assert "==" not in found.stdout
    record = read_json(fork.file)
    record["tiny"]["conditions"]["base_train"]["num_iterations"] = 59
    write_json(fork.folder / "other.json", record)
    refused = fork.ask("--golden=other.json", "--scale=tiny", "--run=seed-2", base=fork.runs(), code=2)
    assert "base_train had --num-iterations=60, and --num-iterations=59 in the published runs" in refused.stderr
    outcome = read_json(fork.runs() / "base_loss/seed-2/outcome.json")
    earlier = outcome | {"tag": "early", "started": "2020-01-01T00:00:00.000+00:00"}
    write_json(fork.runs() / "base_loss/early/outcome.json", earlier)
    trained = read_json(fork.runs() / "base_train/seed-2/outcome.json")
    write_json(fork.runs() / "base_train/early/outcome.json", trained)
    write_json(fork.runs() / "tok_train/early/outcome.json", read_json(fork.runs() / "tok_train/seed-2/outcome.json"))
    refused = fork.ask(f"--golden={fork.file}", "--scale=tiny", "--run=early", base=fork.runs(), code=2)
    assert refused.stderr == "error: the run early has not finished: its base_loss is older than its base_train\n"


@pytest.mark.timeout(300)
def test_the_runs_are_published_of_a_commit(fork) -> None:
    command = ["git", "-c", "safe.directory=*", "status", "--porcelain", "--", *golden.CODE]
    status = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    path = fork.folder / "new.json"
    if status.returncode or status.stdout:
        refused = fork.ask("--write", "--seeds=3", f"--golden={path}", code=2)
        assert refused.stderr.startswith("error: published figures are of a commit: ")
        assert not path.exists()
        return
    done = fork.ask("--write", "--seeds=3", f"--golden={path}")
    assert "== base_train: already finished" in done.stdout
    assert load(path, "tiny").figures == load(fork.file, "tiny").figures
    assert load(path, "tiny").commit != "abc1234"


def test_the_scales_have_plans_of_the_main_job(base) -> None:
    """Each run of a scale differs in its seed alone, and no step writes the report card of the repository."""
    for name in ("tiny", "embedded"):
        one, other = (golden.steps_of(name, "seed-7", seed, []) for seed in (7, 8))
        assert not {"report", "tok_eval"} & {step.name for step in one}
        for step, twin in zip(one, other, strict=True):
            differing = set(step.command) ^ set(twin.command)
            assert differing <= {"--seed=7", "--seed=8"}, step.name
    trained = next(step for step in golden.steps_of("embedded", "a", 1, ["--matrix-lr=1"]) if step.name == "base_train")
    assert {"--matrix-lr=1", "--num-iterations=560", "--data=world"} <= set(trained.command)
