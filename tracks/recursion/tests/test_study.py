"""The verdict on recursion, on made figures; and a model whose first exit is merely bad, which must not look good."""

import numpy as np
import pytest
from base_runs import Base

from nanochat.log import MetricLog
from nanochat.runtime import setup
from tracks.recursion.model import MODELS, RecursiveGPT
from tracks.recursion.study import ArmRun, SeedResult, refit_exits, verdict

GOOD, NOTHING, BAD = [0.20, 0.21, 0.22], [0.01, -0.01, 0.0], [-0.20, -0.21, -0.22]


UNSURE = [0.2, 0.9, -0.5]  # 20 % in the mean
# refinement as it is, and of the refitted exit; gains over P and F; the verdict
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
    own, refitted, plain, deep, expected = eval(case)
    assert verdict(own, refitted, {"P": plain, "F": deep}) == expected


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


class PoorFirstExit(RecursiveGPT):
    """A plain model with one more exit: the same state, with the channels in reverse order, which no loss trains."""

    def exits(self, ids, cache=None):
        context = self.context(ids, cache)
        last = self.sweep(context.x0, context)
        yield last.flip(-1)
        if self.steps > 1:
            yield last


def plant():
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
    assert verdict(own, refitted, {"P": [0.0, 0.0], "F": [0.0, 0.0]}) == "a poor first exit"
