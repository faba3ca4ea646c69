"""Is this change better? Train the code as it is now beside a commit, in pairs, and let a frozen copy judge.

python -m scripts.trial                                                     the working tree against HEAD
python -m scripts.trial --candidate="--model=reference,backout=false"       flags of scripts.base_train
python -m scripts.trial --candidate=my-branch --incumbent=main --pairs=3    two commits

Ends with 0 for "keep", 10 for "discard", 11 for "not distinguishable yet", 2 for a question that cannot be asked. Run
the same command again to resume; docs/trials.md says what an answer means.
"""

from nanochat.config import Count, option, options, run_script
from nanochat.trial.settings import BudgetName, ScaleName


@options("trial")
class Config:
    """Compare a candidate with an incumbent on seeds and text that neither has seen."""

    candidate: str = option("", "a commit, or flags of scripts.base_train in quotes (default: the working tree)")
    incumbent: str = option("HEAD", "the commit that the candidate is compared with")
    flags: str = option("", "flags of scripts.base_train for both sides, in quotes")
    series: str = option("default", "name of the series: its trials share texts, a ledger and their chance of errors")
    scale: ScaleName = option("embedded", "length of the runs, and the text")
    budget: BudgetName = option("flops", "what both sides have the same of")
    data: str = option("", "text of the series, as scripts.base_train takes it (default: the scale's)")
    pairs: Count = option(2, "pairs of runs, with the same seeds", least=1)
    confirm: bool = option(True, "keep only what other seeds confirm, and say whether a second depth does")
    least: float = option(0.001, "gains below this, in bits per byte, are not worth keeping")
    metric: str = option("seconds,cpu_seconds,memory", "what else is told of both sides")
    json: bool = option(False, "print the answer as JSON alone")
    list: bool = option(False, "list what the series has asked, and ask nothing")
    verify: bool = option(False, "check the ledger of the series, and ask nothing")
    head: str = option("", "with --verify: a hash that an answer has named, which the ledger has to have")
    holdout: bool = option(False, "score what the series has kept on its holdout, which is opened once")
    unsafe_exec: bool = option(False, "run both sides without the sandbox where it does not work")


def main(config: Config) -> None:
    from nanochat.trial.decision import Plan, confirming_pairs
    from nanochat.trial.holdout import open_holdout
    from nanochat.trial.listing import list_series, verify_series
    from nanochat.trial.referee import run_trial
    from nanochat.trial.series import Question, begin, hand_over

    if config.list:
        hand_over(config.series)
        list_series(config.series, config.json)
        return
    if config.verify:
        hand_over(config.series)
        verify_series(config.series, config.head, config.json)
        return
    if config.holdout:
        hand_over(config.series)
        open_holdout(config.series, config.json)
        return
    confirming = confirming_pairs(config.pairs) if config.confirm else 0
    question = Question(
        candidate=config.candidate,
        incumbent=config.incumbent,
        flags=config.flags,
        series=config.series,
        scale=config.scale,
        budget=config.budget,
        data=config.data,
        plan=Plan(config.pairs, confirming, max(config.pairs, 2) if config.confirm else 0, config.least),
        metrics=[name for name in config.metric.split(",") if name],
        unsafe=config.unsafe_exec,
        json=config.json,
    )
    begin(question)
    hand_over(config.series)
    raise SystemExit(run_trial(question))


if __name__ == "__main__":
    run_script(main)
