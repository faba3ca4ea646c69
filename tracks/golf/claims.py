"""The claims of golf's seed, each on and off on its row, at 1 MB and ten minutes: a table with errors and verdicts.

python -m tracks.golf.claims --plan                  what would run, and the hours
python -m tracks.golf.claims --data=FOLDER
python -m tracks.golf.claims --scale=embedded        200 kB and a minute a run; no network

The baseline is the seed's row. It has all seeds, each arm the first one. Then there is an interim look: a claim that
one seed rejects, because it shows a loss, gets no more; all others get all seeds. Then the reporting text is opened
once, and the card is written. Run the same command again to resume.

Runs end by the clock, so a machine that becomes slower changes scores. The order spreads the baseline's runs: the row
with seed 1, all arms with seed 1, the row with its other seeds, the interim look, then the arms that go on, seed by
seed. The card has the seconds per step of each arm and names those that differ from the row's.
"""

from collections.abc import Container, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

from nanochat.config import Count, option, options, run_script
from nanochat.errors import UserError
from nanochat.jobs.runner import Step, difference, saved_record
from nanochat.jobs.scales import flag_words, read_flags
from nanochat.jobs.series import (
    SeriesSettings,
    check_flags,
    refuse_own,
    report_step,
    run_series,
    source_of,
    tokenizer_step,
    training_step,
    words_of,
)
from nanochat.log import Record, print0, table_of, terminal_table
from nanochat.paths import read_json, stage_dir, write_json
from nanochat.settings import LEAST_VOCABULARY
from tracks.golf.arms import SEED_NAME, STRIDE, Arm, arm_flags, arms_of, strides_of, trained
from tracks.golf.documents import TextName
from tracks.golf.entries import SCALES
from tracks.golf.verdicts import read_study, seed_counts

KIND = "claims"  # of the job
# Seconds of a run beside the steps of training, on two cores: starting, compiling, validation, packing, checks, scores.
# The checks of one text take 2 of them at the scale embedded and 4 to 6 at cpu, on one busy core.
BESIDE = {"embedded": 45.0, "cpu": 160.0}
RESCORED = {"embedded": 120.0, "cpu": 500.0}  # more for a run of the row, for the other strides of both texts
OWN = {"--seed": "--seeds", "--without": "--arms", "--tag": "--tag of this command"}


@options("claims")
class Config(SeriesSettings):
    """Train the seed's row and an arm for each of its claims, and say which of them hold."""

    tag = option("", "name of the study, and of its folders (default: claims-SCALE)")
    vocab_size = option(0, "size of the vocabulary (0: the scale's)", least=LEAST_VOCABULARY)
    flags = option("", "flags for all training runs, in quotes; unknown flags are passed on as well")
    scale: Literal["cpu", "embedded"] = option("cpu", "budget of bytes and of seconds")
    arms: str = option("", "some of the arms of tracks/golf/arms.py, with commas between them (default: all)")
    seeds: Count = option(3, "seeds 1 to N of the row, and of the arms that one seed does not reject", least=1)
    eval_bytes: Count = option(0, "bytes of each of the two texts (0: the scale's)")
    plan: bool = option(False, "print the runs and the hours, and stop", in_card=False)


# ---- runs ----


def validation_bytes(given: str, most: int) -> str:
    """Return --eval-bytes of training: as given for the training runs, but no more than the selection text has."""
    try:
        size = int(float(given))
    except (ValueError, OverflowError):
        size = 0
    if size < 1:
        raise UserError(f"--eval-bytes={given} in --flags: write a number of bytes, 1 or more, or leave it out")
    return str(min(size, most))


def settle(config: Config) -> Config:
    """Return the config with everything chosen that was left open; a UserError for what cannot be."""
    words = words_of(config)
    refuse_own(words, OWN)
    arms = arms_of(config.arms)
    flags = arm_flags(config.scale, None, read_flags(words))
    scale = SCALES[config.scale]
    config = replace(
        config,
        tag=config.tag or f"claims-{config.scale}",
        vocab_size=config.vocab_size or scale.vocabulary,
        data=source_of(config, flags["--data"]),
        eval_bytes=config.eval_bytes or scale.eval_bytes,
    )
    check_training(config)
    longest = max(strides_of(arms))
    if longest > int(flags["--max-seq-len"]):
        raise UserError(f"the row is scored with stride {longest}: --max-seq-len has to be {longest} or more")
    return config


def check_training(config: Config) -> None:
    """Raise a UserError for flags with which the row cannot be trained."""
    flags = run_flags(config, None)
    del flags["--plan"]
    own = [f"--tokenizer-tag={config.tag}", f"--vocab-size={config.vocab_size}", f"--data={config.data}"]
    check_flags("tracks.golf.train", [*own, *flag_words(flags)])


def run_flags(config: Config, arm: Arm | None) -> dict[str, str]:
    """Return the flags of the runs of an arm, or of the row."""
    flags = arm_flags(config.scale, arm, read_flags(words_of(config)))
    flags["--eval-bytes"] = validation_bytes(flags["--eval-bytes"], config.eval_bytes)
    del flags["--data"]
    return flags


def run_name(arm: Arm | None, seed: int) -> str:
    """Return the name of a run of an arm, or of the row."""
    return f"{arm.name if arm else SEED_NAME}-{seed}"


def score_step(config: Config, run: str, text: TextName, strides: list[int]) -> Step:
    """Return the step that scores a run on a text."""
    tag = f"{config.tag}-{run}"
    command = ["tracks.golf.documents", f"--tag={tag}", f"--text={text}", f"--eval-bytes={config.eval_bytes}"]
    command.append(f"--strides={','.join(map(str, strides))}")
    return Step(f"{run}-{text}", command, output=f"golf_documents/{tag}-{text}", parent=f"golf_pack/{tag}")


def run_steps(config: Config, arm: Arm | None, seed: int, strides: list[int]) -> Iterator[Step]:
    """Yield the steps that train and pack a run, and score it on the selection text."""
    flags = run_flags(config, arm)
    plan = flags.pop("--plan")
    run = run_name(arm, seed)
    tag = f"{config.tag}-{run}"
    words = [*flag_words(flags), f"--seed={seed}"]
    train = f"{run}-train"
    yield training_step(train, "tracks.golf.train", words, tag, tokenizer_tag=config.tag, data=config.data)
    pack = ["tracks.golf.pack", f"--scale={config.scale}", f"--tag={tag}", f"--plan={plan}"]
    pack.append(f"--eval-bytes={config.eval_bytes}")
    yield Step(f"{run}-pack", pack, output=f"golf_pack/{tag}", parent=f"base_train/{tag}")
    yield score_step(config, run, "choose", strides)


def steps(config: Config) -> Iterator[Step]:
    """Yield all steps of the study, in an order that spreads the row's runs (see the top of this file)."""
    arms = arms_of(config.arms)
    strides = strides_of(arms)
    yield tokenizer_step(config, config.data)
    yield from run_steps(config, None, 1, strides)
    for arm in trained(arms):
        yield from run_steps(config, arm, 1, [STRIDE])
    # The row's seeds show the noise of a run, beside which the first seed of an arm is seen.
    for seed in range(2, config.seeds + 1):
        yield from run_steps(config, None, seed, strides)
    counts = seed_counts(config.tag, arms, config.seeds)
    for seed in range(2, config.seeds + 1):
        for arm in trained(arms):
            if seed <= counts[arm.name]:
                yield from run_steps(config, arm, seed, [STRIDE])
    open_report(config, counts)
    for name, count in counts.items():
        for seed in range(1, count + 1):
            yield score_step(config, f"{name}-{seed}", "report", strides if name == SEED_NAME else [STRIDE])
    words = [f"--tag={config.tag}", f"--seeds={config.seeds}"]
    if config.arms:
        words.append(f"--arms={config.arms}")
    yield Step("verdicts", ["tracks.golf.verdicts", *words])
    yield report_step(config.tag, config.out)


def open_report(config: Config, counts: Mapping[str, int]) -> None:
    """Write down the verdicts before the reporting text is opened; UserError if it was opened with other ones.

    Runs are identified by the SHA-256 of their artifacts and of the selection text, by which they were judged.
    """
    study = read_study(config.tag, arms_of(config.arms), counts, "choose")
    chosen = {
        "eval_bytes": config.eval_bytes,
        "text": study.outcomes[SEED_NAME][0].figure("SHA-256 of the text"),
        "artifacts": {
            name: [run.figure("SHA-256 of the artifact") for run in runs] for name, runs in study.outcomes.items()
        },
        "verdicts": {name: [one.verdict, one.seeds] for name, one in study.verdicts().items()},
    }
    path = chosen_file(config)
    if path.exists() and read_json(path) != chosen:
        raise opened_before(config)
    write_json(path, chosen)


def chosen_file(config: Config) -> Path:
    """Return the file that `open_report` writes."""
    return stage_dir(KIND, config.tag) / "chosen.json"


def opened_before(config: Config) -> UserError:
    return UserError(
        f"the reporting text was opened when --tag={config.tag} had other runs or another selection text, whose SHA-256"
        f" are in {chosen_file(config)}: use another --tag"
    )


def require_unopened(config: Config, finished: Container[str]) -> None:
    """Raise a UserError if the reporting text was opened, and these flags ask for other runs than were judged by then.

    Hours before `open_report` would say so. finished: names of the runs that have ended with these flags.
    """
    path = chosen_file(config)
    if not path.exists():
        return
    judged = {name: len(artifacts) for name, artifacts in read_json(path)["artifacts"].items()}
    runs = [f"{name}-{seed}" for name, count in judged.items() for seed in range(1, count + 1)]
    asked = {SEED_NAME, *(arm.name for arm in trained(arms_of(config.arms)))}
    if judged.keys() != asked or judged[SEED_NAME] != config.seeds or not all(run in finished for run in runs):
        raise opened_before(config)


# ---- the plan ----


def seconds_of_runs(config: Config) -> dict[str, float]:
    """Return the seconds that each finished run has taken, all attempts, by its name."""
    folder = stage_dir(KIND, config.tag)
    arms = arms_of(config.arms)
    found = {}
    for arm in (None, *trained(arms)):
        for seed in range(1, config.seeds + 1):
            own = list(run_steps(config, arm, seed, [STRIDE] if arm else strides_of(arms)))
            records = [saved_record(folder / f"{step.name}.json") for step in own]
            pairs = zip(records, own, strict=True)
            # With other flags it would run again.
            if all(record.get("finished") and not difference(record, step, {}) for record, step in pairs):
                found[run_name(arm, seed)] = sum(record["seconds"] for record in records)
    return found


def expected_seconds(config: Config, finished: Mapping[str, float], arm: Arm | None) -> float | None:
    """Return the seconds of a run of an arm, or of the row: as measured, else by the flags, or None."""
    of_row = [seconds for name, seconds in finished.items() if name.startswith(f"{SEED_NAME}-")]
    of_arms = [seconds for name, seconds in finished.items() if not name.startswith(f"{SEED_NAME}-")]
    measured = of_arms if arm else of_row
    if measured:
        return sum(measured) / len(measured)
    trains = run_flags(config, arm).get("--target-seconds")
    if trains is None:
        return None
    asks_more = arm is None and len(strides_of(arms_of(config.arms))) > 1
    return float(trains) + BESIDE[config.scale] + (RESCORED[config.scale] if asks_more else 0)


def plan_table(config: Config, finished: Mapping[str, float]) -> Record:
    """Return the runs of the study, and the hours from now on: at least, and if one seed rejects nothing.

    finished: as of `seconds_of_runs`.
    """
    rows = []
    left = [0, 0]  # runs at least, and at most
    seconds: list[float | None] = [0.0, 0.0]  # of these
    for arm in (None, *arms_of(config.arms)):
        name = arm.name if arm else SEED_NAME
        if arm and arm.stride is not None:
            rows.append([name, arm.claim, arm.instead, "the row's runs", None])
            continue
        done = sum(run_name(arm, seed) in finished for seed in range(1, config.seeds + 1))
        least = config.seeds if arm is None else 1
        each = expected_seconds(config, finished, arm)
        for place, count in enumerate((max(least - done, 0), config.seeds - done)):
            left[place] += count
            so_far = seconds[place]
            seconds[place] = None if so_far is None or each is None else so_far + count * each
        runs = str(config.seeds) if least == config.seeds else f"{least} or {config.seeds}"
        rows.append([name, arm.claim if arm else "the seed's row", arm.instead if arm else "", runs, done])
    hours = "hours are not known before the first run has finished"
    low, high = seconds
    if low is not None and high is not None:
        hours = f"{low / 3600:.1f} to {high / 3600:.1f} hours on two quiet cores"
    note = f"{left[0]} to {left[1]} runs are left: {hours}"
    return table_of(
        f"Plan of {config.tag}, --scale={config.scale}", "Arm | Claim | Instead | Seeds | Finished", rows, note
    )


def main(config: Config) -> None:
    config = settle(config)
    finished = seconds_of_runs(config)
    require_unopened(config, finished)
    print0(terminal_table(plan_table(config, finished)))
    if config.plan:
        return
    run_series(KIND, config.tag, steps(config))


if __name__ == "__main__":
    run_script(main)
