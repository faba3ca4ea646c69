"""What a candidate may take to train and to be scored, beside the incumbent."""

import statistics
from collections.abc import Sequence

from nanochat.evals import sandbox
from nanochat.log import Record
from nanochat.trial import decision
from nanochat.trial.scorer import Refused

MORE_SCORING = 20.0  # seconds of processor time beyond the bound
WORDS = {
    "cpu_seconds": "processor time for what it counts as the same work",
    "seconds": "time",
    "cores": "processor time in the same seconds",
    "scoring_cpu_seconds": "processor time to be scored",
    "bytes": "bytes of files",
}
ADVICE = {
    "cpu_seconds": "ask with --budget=seconds, in another series",
    "seconds": "both end by the clock",
    "cores": "it works with more processes",
    "scoring_cpu_seconds": "it does more than to score",
    "bytes": "a checkpoint has weights and states of an optimizer",
}


def work_of(runs: Sequence[Record], beside: Sequence[Record], kind: str = "") -> list[float]:
    """Return the processor time of a side's runs, with what processes may hide that the runs beside it do not have.

    kind: "scoring_" for that of scoring.
    """
    seconds, processes = f"{kind}cpu_seconds", f"{kind}processes"
    usual = statistics.median(run[processes] for run in beside)
    return [run[seconds] + sandbox.UNSEEN * max(0, run[processes] - usual) for run in runs]


def more_cores(floor: Sequence[Record], found: dict[str, list[Record]]) -> float:
    """Return how many times the incumbent's processor time a candidate has in the same seconds; 0.0 if in bounds.

    floor: runs of the noise floor. The incumbent's largest counts, of which other work has taken least. Threads that
    use the cores better are no second process.
    """
    beside = [*floor, *found["incumbent"]]
    most = max(run["cpu_seconds"] for run in beside)
    other = statistics.median_low(work_of(found["candidate"], found["incumbent"]))
    processes = statistics.median_low(run["processes"] for run in found["candidate"])
    if processes <= max(run["processes"] for run in beside):
        return 0.0
    return other / most if other > decision.SLOWER[1] * most else 0.0


def scored_longer(incumbent: Sequence[Record], candidate: Sequence[Record]) -> float:
    """Return how many times the incumbent's processor time it takes to score the candidate; 0.0 if that is in bounds.

    Of two pairs both have to be beyond them. Loading counts, which takes seconds even for a small model.
    """
    one = statistics.median(run["scoring_cpu_seconds"] for run in incumbent)
    other = statistics.median_low(work_of(candidate, incumbent, "scoring_"))
    return other / one if other > decision.SLOWER[1] * one + MORE_SCORING else 0.0


def over_budget(name: str, times: float) -> Refused:
    return Refused("budget", f"it has {times:.2f} times the incumbent's {WORDS[name]}: {ADVICE[name]}")
