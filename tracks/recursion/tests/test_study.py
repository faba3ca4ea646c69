"""The verdict on recursion, on made figures; and a model whose first exit is merely bad, which must not look good."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from base_runs import Base
from outcomes import ENVIRONMENT, RECORD
from torch import Tensor

from nanochat.checkpoint import Checkpoint
from nanochat.decoder import Cache
from nanochat.errors import UserError
from nanochat.log import MetricLog
from nanochat.outcome import Outcome
from nanochat.runtime import setup
from tracks.recursion.model import MODELS, RecursiveGPT
from tracks.recursion.settings import PRESET_FIELDS
from tracks.recursion.shapes import BPB
from tracks.recursion.study import FREE, SECONDS, ArmRun, SeedResult, applications, figures, refit_exits, verdict

GOOD, NOTHING, BAD = [0.20, 0.21, 0.22], [0.01, -0.01, 0.0], [-0.20, -0.21, -0.22]


UNSURE = [0.2, 0.9, -0.5]  # 20 % in the mean
# refinement as it is, and with both exits refitted; gains over P and F; the verdict
VERDICTS = """
GOOD, GOOD, GOOD, GOOD, "better than its compute"
GOOD, GOOD, GOOD, NOTHING, "depth only"
GOOD, GOOD, NOTHING, GOOD, "none"
GOOD, NOTHING, GOOD, GOOD, "a poor first exit"
NOTHING, NOTHING, GOOD, GOOD, "none"
NOTHING, GOOD, GOOD, GOOD, "better than its compute"
UNSURE, UNSURE, GOOD, GOOD, "a poor first exit"
[0.5], [0.5], [0.5], [0.5], "no verdict: one seed"
"""


@pytest.mark.parametrize("case", VERDICTS.strip().splitlines())
def test_verdicts(case) -> None:
    own, both, plain, deep, expected = eval(case)
    assert verdict(own, both, {"P": plain, "F": deep}) == expected


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_recursion_against_itself_is_never_better(seeds) -> None:
    """200 comparisons of runs that differ by their seeds alone: at most 5 % in favour, and some for chance."""
    draw = np.random.default_rng(seeds)
    found = []
    for _ in range(200):
        bits = draw.normal(1.5, 0.01, (4, seeds))  # R, P, F, and the refitted first exit
        gains = {"P": bits[1] - bits[0], "F": bits[2] - bits[0]}
        found.append(verdict(draw.normal(0.3, 0.01, seeds), 1 - bits[0] / bits[3], gains))
    assert sum(one in ("better than its compute", "depth only") for one in found) <= 0.05 * 200 + 4
    assert found.count("better than its compute") <= 0.05 * 200


def made(exits: list[float], first: float, last: float) -> SeedResult:
    """A seed of R with these exits and refits, and of P and F, which are worse."""
    config = dict.fromkeys((*PRESET_FIELDS, "recursion", "matrix_lr", "embedding_lr"), 1)
    manifest = {"model": {"supervision": 2, "passes": 1, "loops": 1}, "source": {"setting": {}, "rows": 1}}
    manifest["dtype"] = "bf16"
    validation = {f"val/bpb at exit {i}": bits for i, bits in enumerate(exits)}
    records = [{"kind": "train", "step": 9, "train/grad_norm": 1.0}, {"kind": "validation", "step": 9, **validation}]
    arms = {}
    for arm, bits in {"R": exits[-1], "P": exits[-1] + 0.1, "F": exits[-1] + 0.1}.items():
        record = {"stage": "base_train", "tag": arm, "environment": ENVIRONMENT, "metrics": {BPB: bits, SECONDS: 60.0}}
        outcome = Outcome(**RECORD | record | {"config": config})
        arms[arm] = ArmRun(outcome, Checkpoint(Path(arm), 9, manifest), records)
    return SeedResult(arms, first, last, 1000)


def test_the_verdict_is_on_equal_terms() -> None:
    """The last exit beats a first exit that was refitted alone, as it happens, and not where both were refitted."""
    results = [made([0.8, 0.6 + shift], 0.65, 0.65 + shift) for shift in (-0.001, 0.0, 0.001)]
    own, refitted, both = zip(*(result.refinements for result in results), strict=True)
    gains = {arm: [result.gain(arm) for result in results] for arm in "PF"}
    assert verdict(own, refitted, gains) == "better than its compute"
    assert verdict(own, both, gains) == figures(results)["Verdict"] == "a poor first exit"


def test_a_single_exit_is_not_in_order_and_not_out_of_it() -> None:
    """A curriculum may begin with one."""
    result = made([0.8, 0.6], 0.65, 0.65)
    [step, validation] = result.arms["R"].records
    result.arms["R"].records[:] = [step, validation | {"train/exits": 1}, validation | {"train/exits": 2}]
    assert figures([result])["Exits in order"] == "1 of 1 validations"


def test_the_card_says_how_its_arms_were_trained() -> None:
    results = [made([0.8, 0.6], 0.65, 0.65) for _ in range(2)]
    results[1].arms["P"].outcome.environment = ENVIRONMENT | {"Git Information": {"Commit": "abc (clean)"}}
    found = figures(results)
    assert (found["Precision"], found["Training of all arms"]) == ("bf16", "6m00s")  # three arms of two seeds
    first = ENVIRONMENT["Git Information"]["Commit"]
    assert found["Commits of the arms"] == f"{first}, abc (clean)"


def test_an_arm_of_another_precision_is_refused() -> None:
    """`--dtype=auto` may find another one where a series goes on on another machine."""
    recursion, plain = (made([0.8, 0.6], 0.65, 0.65).arms[arm] for arm in "RP")
    for run in (recursion, plain):
        run.manifest["config"] = {}
    plain.require_equal(recursion, FREE["P"])
    plain.manifest["dtype"] = "fp32"
    with pytest.raises(UserError, match="P has precision = fp32, and R bf16: train one of them again"):
        plain.require_equal(recursion, FREE["P"])


def test_applications_are_those_that_training_runs() -> None:
    """An arm L for all exits is too long for a curriculum that trains fewer of them."""
    recursive = {"supervision": 4, "passes": 1, "loops": 2}
    assert applications(recursive, {}) == applications(recursive, {"curriculum": ""}) == 12
    assert applications(recursive, {"curriculum": "2,3,4"}) == applications({"sweeps": 9}, {}) == 9
    assert applications(recursive, {"curriculum": "3,4"}) == 10.5
    assert applications({"depth": 2}, {}) == 1


@pytest.mark.parametrize("name", ["grad_clip", "warmup_steps"])
def test_an_arm_that_clips_or_warms_up_in_another_way_is_refused(name: str) -> None:
    """They change what the optimizer does, and not what recursion is."""

    def run(tag: str, value: float) -> ArmRun:
        outcome = Outcome(**RECORD | {"stage": "base_train", "tag": tag, "environment": ENVIRONMENT})
        source = {"setting": {}, "rows": 1}
        config = {name: value, "loops": value}
        return ArmRun(outcome, Checkpoint(Path(tag), 9, {"config": config, "source": source}), [])

    recursion, plain = run("recursion-R-1", 1.0), run("recursion-P-1", 0.0)
    with pytest.raises(UserError, match=f"recursion-P-1 has {name} = 0.0, and recursion-R-1 1.0: train one of them"):
        plain.require_equal(recursion, FREE["P"])
    run("recursion-P-1", 1.0).require_equal(recursion, FREE["P"])


class PoorFirstExit(RecursiveGPT):
    """A plain model with one more exit: the same state, with the channels in reverse order, which no loss trains."""

    def exits(self, ids: Tensor, cache: Cache | None = None) -> Iterator[Tensor]:
        context = self.context(ids, cache)
        last = self.sweep(context.x0, context)
        yield last.flip(-1)
        if self.steps > 1:
            yield last


def plant() -> None:
    from tracks.recursion import model

    model.MODELS["recursive"] = PoorFirstExit


def test_an_untrained_first_exit_is_found_out(tmp_path, monkeypatch) -> None:
    base = Base(tmp_path)
    flags = ["--recursion=aggressive", "--supervision=2", "--supervision-base=1e9", "--improvement-reward=0"]
    flags += ["--num-iterations=100", "--matrix-lr=0.02", "--embedding-lr=0.3", "--unembedding-lr=0.03"]
    flags += ["--save-every=-1", "--eval-every=50", "--total-batch-size=512", "--device-batch-size=16"]
    options = {"before": plant, "script": "tracks.recursion.train"}
    jobs = [base.start(f"toy-{seed}", *flags, f"--seed={seed}", **options) for seed in (1, 2)]
    for job in jobs:
        job.done()
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(base.folder))
    monkeypatch.setitem(MODELS, "recursive", PoorFirstExit)
    monkeypatch.setattr("tracks.recursion.study.REFIT_STEPS", 25)
    monkeypatch.setattr("tracks.recursion.study.REFIT_RATES", (1.0, 0.25))
    results = []
    for seed in (1, 2):
        run = ArmRun.read(f"toy-{seed}")
        with setup("cpu", "fp32") as runtime, MetricLog(tmp_path / "log", name=f"{seed}") as log:
            results.append(SeedResult({"R": run}, *refit_exits(run, runtime, log)))
    own, refitted, both = zip(*(result.refinements for result in results), strict=True)
    assert min(own) > 0.5
    assert max(refitted) < 0.05
    assert max(map(abs, both)) < 0.1  # both heads have learned as long, and the two exits are one; the text is short
    assert verdict(own, both, {"P": [0.0, 0.0], "F": [0.0, 0.0]}) == "a poor first exit"
