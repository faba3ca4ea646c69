"""Train on a small Sudoku, which needs several steps of thought, and score 200 problems with boards of their own.

python -m tracks.recursion.sudoku                                    one layer of width 64, three seeds, 50 minutes
python -m tracks.recursion.sudoku --steps=400 --depth=2 --width=128 --seeds=1 --tag=wide

Three arms for each seed. R: recursion. P: the same parameters without a loop, equal steps. W: as P, for the same
seconds. A table and a report card end the run. No network is needed. Other flags go to base training, for all arms. Run
the same command again to resume.
"""

import statistics
from collections.abc import Iterator

from nanochat.config import Count, option, options, run_script
from nanochat.errors import UserError
from nanochat.jobs.runner import Step
from nanochat.jobs.series import (
    SeriesSettings,
    check_flags,
    figure,
    launch_on_all_gpus,
    refuse_own,
    report_step,
    run_series,
    source_of,
    tokenizer_step,
    training_seconds,
    training_step,
    words_of,
)
from nanochat.log import Record, duration, print0, table_of
from nanochat.outcome import Outcome
from nanochat.paths import stage_dir
from nanochat.statistics import interval

OWN = {
    "--seed": "--seeds",
    "--num-iterations": "--steps",
    "--target-seconds": "--steps",
    "--recursion": "tracks.recursion.run",
}
# Two steps on text make a model; the conversations of the Sudoku train it, prompts masked, clipped as the base model.
BASE = (
    "--head-dim=32 --max-seq-len=256 --window-pattern=L --total-batch-size=4096 --num-iterations=2 --eval-every=-1"
    " --sample-every=-1 --grad-clip=1"
)
CHATS = (
    "--source=base --mixture=Sudoku-4:1000 --init-lr-frac=1 --warmup-steps=20 --eval-every=0 --eval-metrics-every=-1"
    " --save-every=100"
)
ANSWERS = "--source=sft --tasks=Sudoku-4 --max-problems=200 --max-new-tokens=64"


@options("puzzles")
class Config(SeriesSettings):
    """Train recursion and plain models on a small Sudoku, and compare them."""

    tag = option("puzzles", "name of the series, and the beginning of its runs' tags")
    data = option("world", "folder of text, name of a corpus, or a mix of them")
    vocab_size = 300
    seeds: Count = option(3, "seeds 1 to N", least=1)
    steps: Count = option(800, "steps on the Sudoku", least=1)
    depth: Count = option(1, "layers of every arm", least=1)
    width: Count = option(64, "channels of every arm", least=1)


def base_flags(config: Config, arm: str) -> list[str]:
    """Return the flags of an arm's base model."""
    recursion = ["--recursion=aggressive"] if arm == "R" else []
    return [f"--depth={config.depth}", f"--width={config.width}", *BASE.split(), *recursion, *words_of(config)]


def module_of(arm: str) -> str:
    """Return the module that trains an arm's base model."""
    return "tracks.recursion.train" if arm == "R" else "scripts.base_train"


def arm_steps(config: Config, data: str, launch: list[str], arm: str, seed: int, horizon: str) -> Iterator[Step]:
    """Yield the steps of one arm: a base model, training on the Sudoku until the horizon, its score."""
    tag = f"{config.tag}-{arm}-{seed}"
    name = f"{arm}-{seed}"
    words = [*base_flags(config, arm), f"--seed={seed}"]
    yield training_step(f"{name}-base", module_of(arm), words, tag, tokenizer_tag=config.tag, data=data, launch=launch)
    words = [*CHATS.split(), horizon, f"--seed={seed}"]
    yield training_step(
        f"{name}-sft", "scripts.chat_sft", words, tag, stage="chat_sft", parent=f"base_train/{tag}", launch=launch
    )
    score = ["scripts.chat_eval", *ANSWERS.split(), f"--tag={tag}"]
    yield Step(f"{name}-score", score, output=f"chat_eval_sft/{tag}", parent=f"chat_sft/{tag}")


def steps(config: Config, data: str) -> Iterator[Step]:
    """Yield the steps of the series."""
    yield tokenizer_step(config, data)
    launch = launch_on_all_gpus()
    for seed in range(1, config.seeds + 1):
        for arm in "RP":
            yield from arm_steps(config, data, launch, arm, seed, f"--num-iterations={config.steps}")
        seconds = training_seconds("chat_sft", f"{config.tag}-R-{seed}")
        yield from arm_steps(config, data, launch, "W", seed, f"--target-seconds={seconds}")
    outcome = Outcome.begin("recursion_eval", config.tag, config)
    outcome.metrics = {"Training on the Sudoku, all arms": duration(training_time(config))}
    outcome.tables = [comparison(config)]
    outcome.finish()
    yield report_step(config.tag, config.out)


def training_time(config: Config) -> float:
    """Return the seconds that all arms have trained on the Sudoku."""
    tags = [f"{config.tag}-{arm}-{seed}" for arm in "RPW" for seed in range(1, config.seeds + 1)]
    return sum(training_seconds("chat_sft", tag) for tag in tags)


def require_alike(config: Config, arm: str) -> None:
    """Raise a UserError if a run of an arm is not of the series' depth, width and steps; W ends by the clock."""
    for seed in range(1, config.seeds + 1):
        tag = f"{config.tag}-{arm}-{seed}"
        made = Outcome.load(stage_dir("base_train", tag) / "outcome.json").config
        found = {"--depth": made["depth"], "--width": made["width"]}
        asked = {"--depth": config.depth, "--width": config.width}
        if arm != "W":
            found["--steps"] = int(figure("chat_sft", tag, "Number of iterations"))
            asked["--steps"] = config.steps
        other = [f"{flag}={found[flag]}, not {asked[flag]}" for flag in asked if found[flag] != asked[flag]]
        if other:
            raise UserError(f"the run {tag} has {', '.join(other)}, and cannot be compared: use another --tag")


def comparison(config: Config) -> Record:
    """Return the table of solved boards, steps and seconds of each arm, with the differences to R by seed."""
    solved = {}
    rows = []
    for arm in "RPW":
        require_alike(config, arm)
        tags = [f"{config.tag}-{arm}-{seed}" for seed in range(1, config.seeds + 1)]
        exact = solved[arm] = [figure("chat_eval_sft", tag, "Sudoku-4") for tag in tags]
        behind = [None, None]
        if arm != "R":
            behind = interval([r - own for r, own in zip(solved["R"], exact, strict=True)])
        taken = statistics.fmean(figure("chat_sft", tag, "Number of iterations") for tag in tags)
        seconds = statistics.fmean(training_seconds("chat_sft", tag) for tag in tags)
        rows.append([arm, *interval(exact), *behind, taken, seconds, " ".join(map(str, exact))])
    columns = "Arm | Exact:.3f | ± 95 %:.3f | R minus it:+.3f | ± 95 %:.3f | Steps:,.0f | Seconds:,.0f | Each seed"
    return table_of("Sudoku-4: 200 held-out problems", columns, rows)


def main(config: Config) -> None:
    data = source_of(config, "world")
    words = words_of(config)
    refuse_own(words, OWN)
    common = [f"--data={data}", f"--tokenizer-tag={config.tag}", f"--vocab-size={config.vocab_size}"]
    plans = [check_flags(module_of(arm), [*common, *base_flags(config, arm)]) for arm in "RP"]
    if "--dry-run" in words:
        print0(*plans, sep="\n\n")
        return
    run_series("puzzles", config.tag, steps(config, data))


if __name__ == "__main__":
    run_script(main)
