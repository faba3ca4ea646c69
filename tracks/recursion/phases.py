"""Two phases of a recursive model on 8 H100, as the guide to recursion has them.

python -m tracks.recursion.phases --phase=fast      1,000 steps with the preset aggressive
python -m tracks.recursion.phases --phase=extreme   5,000 steps of 256 rows with the preset extreme

The second one starts if the first one meets four criteria: exits in order, refinement, gradient norms, a falling loss;
and if it was the first phase of this one: with its settings and text, and preset, batch and steps of --phase=fast.
`--anyway` starts it in any case, and says what is not met. A report card ends the run. Other flags go to
tracks.recursion.train. Run the same command again to resume.
"""

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Literal

from nanochat.config import flag_of, option, options, parse, run_script
from nanochat.errors import UserError
from nanochat.jobs.runner import Step
from nanochat.jobs.series import (
    SeriesSettings,
    check_flags,
    flags_among,
    launch_on_all_gpus,
    report_step,
    run_series,
    source_of,
    tokenizer_step,
    training_step,
    words_of,
)
from nanochat.log import Record, print0, read_metrics, table_of, terminal_table
from nanochat.outcome import Outcome
from nanochat.paths import stage_dir
from tracks.recursion.settings import with_preset
from tracks.recursion.train import Config as TrainConfig

# Phase → flags. Nothing here was measured on a GPU yet.
PhaseName = Literal["fast", "extreme"]  # the keys
PHASES = {
    "fast": f"--recursion=aggressive --depth=12 --total-batch-size={512 * 2048} --num-iterations=1000 --eval-every=50",
    "extreme": f"--recursion=extreme --depth=12 --total-batch-size={256 * 2048} --num-iterations=5000 --eval-every=250",
}
MODULE = "tracks.recursion.train"
# With them the loss of a step is of other exits from part to part, so that it says nothing of a criterion.
OTHER_LOSS = ("--curriculum", "--carry")


@options("phases")
class Config(SeriesSettings):
    """Train one of two phases of a recursive model."""

    tag = option("h100", "name of the tokenizer, and the beginning of the run's tag")
    phase: PhaseName = option("fast", "fast: does refinement work? extreme: worth its cost if it does")
    anyway: bool = option(False, "start the phase extreme whatever the phase fast has shown", in_card=False)
    out = option("", "file for the report card (default: TAG-PHASE.md in the current folder)")


def other_settings(first: Record, config: Config, data: str) -> list[str]:
    """Return in which settings a run is not the first phase of the one that is asked for.

    first: the config of the run's record. What differs between the phases is that of --phase=fast; all else is as in
    the phase that is asked for, with its flags. Not compared is what may change while a run trains, and how often it
    validates, which changes nothing in it.
    """
    # A first phase has none of these, see `main`.
    _, words = flags_among(words_of(config), OTHER_LOSS)
    fast, extreme = (with_preset(parse(TrainConfig, PHASES[phase].split())) for phase in ("fast", "extreme"))
    asked = with_preset(parse(TrainConfig, [*PHASES["extreme"].split(), *words]))
    asked = replace(asked, data=data, tokenizer_tag=config.tag)
    found = []
    for one in fields(asked):
        if one.metadata["may_change"] or one.name == "eval_every":
            continue
        own = getattr(fast, one.name)
        value = getattr(asked, one.name) if own == getattr(extreme, one.name) else own
        before = first.get(one.name, one.default)  # a flag that is newer than the run had its default
        if before != value:
            found.append(f"{flag_of(one.name)}={before}, not {value}")
    return found


def check_first_phase(config: Config, data: str) -> None:
    """Print what the first phase has shown beside the criteria; a UserError if one is not met, without --anyway.

    The same for a run of that name which was not the first phase of this one.
    """
    from tracks.recursion.criteria import criteria  # torch, by way of the alarms

    run = stage_dir("base_train", f"{config.tag}-fast")
    if not (run / "outcome.json").exists():
        sentence = f"{run.name} has not finished: run --phase=fast first"
        if not config.anyway:
            raise UserError(f"{sentence}, or start this phase with --anyway")
        print0(f"phases: {sentence} was the advice")
        return
    other = other_settings(Outcome.load(run / "outcome.json").config, config, data)
    if other and not config.anyway:
        raise UserError(
            f"{run.name} is not the first phase of this one, it has {'; '.join(other)}: run --phase=fast with another"
            " --tag, or start this phase with --anyway"
        )
    if other:
        print0(f"phases: {run.name} is not the first phase of this one, it has {'; '.join(other)}")
    found = criteria(read_metrics(run / "metrics.jsonl"))
    rows = [[one.name, "yes" if one.is_met else "no", one.shown] for one in found]
    print0(terminal_table(table_of(f"What {run.name} has shown", "Criterion | Met | Shown", rows)))
    unmet = [f"{one.name} ({one.shown})" for one in found if not one.is_met]
    if unmet and not config.anyway:
        raise UserError(f"{run.name} does not meet: {'; '.join(unmet)}. --anyway starts this phase in any case")
    if unmet:
        print0(f"phases: started anyway, without {'; '.join(unmet)}")


def steps(config: Config, data: str, flags: list[str]) -> Iterator[Step]:
    """Yield the steps of the series."""
    yield tokenizer_step(config, data)
    tag = f"{config.tag}-{config.phase}"
    launch = launch_on_all_gpus()
    yield training_step(config.phase, MODULE, flags, tag, tokenizer_tag=config.tag, data=data, launch=launch)
    yield report_step(tag, config.out)


def main(config: Config) -> None:
    data = source_of(config, "auto")
    words = words_of(config)
    other = [word for word in words if word.partition("=")[0] in OTHER_LOSS]
    if config.phase == "fast" and other:
        raise UserError(
            f"{other[0]} changes which exits the loss of a step is of, and whether that loss falls decides about the"
            " phase extreme: leave it out of --phase=fast"
        )
    flags = [*PHASES[config.phase].split(), *words]
    own = [f"--data={data}", f"--tokenizer-tag={config.tag}", f"--vocab-size={config.vocab_size}"]
    print0(check_flags(MODULE, [*own, *flags]))
    if "--dry-run" not in flags:
        if config.phase == "extreme":
            check_first_phase(config, data)
        run_series("phases", config.tag, steps(config, data, flags))


if __name__ == "__main__":
    run_script(main)
