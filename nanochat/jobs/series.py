"""Series: several runs with one tokenizer, one step after the other, and their comparison in a report card.

A series is a generator of steps. Each step has run before the generator goes on, so plain Python reads its outcome and
chooses the flags of the next one. `nanochat.jobs.runner` skips steps that have finished, resumes stopped ones, repeats
changed ones, and refuses a second process; that is all a series needs to resume.
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from nanochat.config import Count, collect_signals, option, options, stop_signals
from nanochat.data.corpus import absolute_data
from nanochat.environment import ROOT
from nanochat.errors import UserError
from nanochat.jobs.plan import find_hardware, usable_gpus
from nanochat.jobs.runner import TORCHRUN, Job, Step, run_step
from nanochat.jobs.scales import joined_flags, read_flags
from nanochat.outcome import Outcome
from nanochat.paths import hold_folder, newest_manifest, stage_dir
from nanochat.settings import BEYOND_VOCABULARY, LEAST_VOCABULARY, TagSettings, TextSettings


@options("series")
class SeriesSettings(TextSettings, TagSettings):
    """Several runs with one tokenizer."""

    vocab_size: Count = option(65536, "size of the vocabulary", least=LEAST_VOCABULARY, below=BEYOND_VOCABULARY)
    flags: str = option("", "flags for the training runs, in quotes; unknown flags are passed on as well", rest=True)
    out: str = option("", "file for the report card (default: TAG.md in the current folder)", in_card=False)

    def __post_init__(self) -> None:
        # Before hours of training: the card is the last step.
        if self.out and Path(self.out).suffix != ".md":
            raise UserError(f"--out={self.out} is not a Markdown file, name it like {Path(self.out).stem}.md")


def run_series(kind: str, tag: str, steps: Iterator[Step]) -> None:
    """Run the steps of a series; ends the process with a step's exit status if it fails."""
    command = [sys.executable, "-m", *_command_words()]
    job = Job(kind, tag, [], resume=shlex.join(command))
    with hold_folder(job.folder) as lock, collect_signals(*stop_signals()) as stop:
        for step in steps:
            job.steps.append(step)
            job.save()
            status = run_step(job, step, lock, stop)
            if status:
                raise SystemExit(status)


def _command_words() -> list[str]:
    """Return the module and the flags of this process, to run it again."""
    main = sys.modules["__main__"].__spec__
    return [main.name if main else sys.argv[0], *sys.argv[1:]]


# ---- steps that series share ----


def tokenizer_step(config: SeriesSettings, data: str) -> Step:
    """Return the step that trains the tokenizer of all runs; a UserError if there is one with another vocabulary."""
    made = stage_dir("tok_train", config.tag) / "outcome.json"
    if made.exists():
        before = Outcome.load(made).config["vocab_size"]
        if before != config.vocab_size:
            raise UserError(
                f"the vocabulary of --tag={config.tag} has --vocab-size={before}, not {config.vocab_size}: use another"
                " --tag"
            )
    command = ["scripts.tok_train", f"--vocab-size={config.vocab_size}", "--max-chars=2e9"]
    command += [f"--data={data}", f"--tag={config.tag}"]
    return Step("tok_train", command, output=f"tok_train/{config.tag}", data=data)


def training_step(
    name: str,
    module: str,
    flags: list[str],
    tag: str,
    *,
    stage: str = "base_train",
    tokenizer_tag: str = "",
    data: str = "",
    parent: str = "",
    launch: list[str] | None = None,
) -> Step:
    """Return a step that trains a model. It reads `data` with a tokenizer, or it starts from the model `parent`."""
    command = [module, *flags, f"--tag={tag}"]
    if tokenizer_tag:
        command += [f"--tokenizer-tag={tokenizer_tag}", f"--data={data}"]
        parent = f"tok_train/{tokenizer_tag}"
    return Step(name, command, output=f"{stage}/{tag}", parent=parent, data=data, launch=launch or [])


def report_step(tag: str, out: str) -> Step:
    """Return the step that writes the report card, each time. out: its file, TAG.md by default."""
    path = Path.cwd() / Path(out or f"{tag}.md").expanduser()
    return Step("report", ["nanochat.report", f"--tag={tag}", f"--out={path}"])


def launch_on_all_gpus() -> list[str]:
    """Return the words that start a rank on each usable GPU of this machine; none with one GPU or without."""
    found, _ = find_hardware("", nodes=1)
    count = usable_gpus(found)
    return [*TORCHRUN, f"--nproc_per_node={count}"] if count > 1 else []


# ---- what a generator reads between its steps ----


def figure(stage: str, tag: str, name: str) -> float:
    """Return a figure of a finished stage."""
    return Outcome.load(stage_dir(stage, tag) / "outcome.json").figure(name)


def training_seconds(stage: str, tag: str) -> float:
    """Return the seconds that a finished run has trained, by its last checkpoint."""
    return newest_manifest(stage_dir(stage, tag))["loop"]["seconds"]


# ---- flags ----


def words_of(config: SeriesSettings) -> list[str]:
    """Return the words of --flags in one spelling: dashes in the names of flags, and `--flag=value` in one word."""
    words = []
    for word in joined_flags(shlex.split(config.flags)):
        flag, equals, value = word.partition("=")
        words.append(flag.replace("_", "-") + equals + value if flag.startswith("--") else word)
    return words


def flags_among(words: Sequence[str], names: Collection[str]) -> tuple[list[str], list[str]]:
    """Return the words of `words_of` that are flags with these names, and all others."""
    own = [word for word in words if word.partition("=")[0] in names]
    return own, [word for word in words if word not in own]


def source_of(config: SeriesSettings, default: str) -> str:
    """Return the text of a series with absolute folders, as steps run in another folder."""
    return default if config.data == "auto" else absolute_data(config.data)


def check_flags(module: str, words: list[str], variables: Mapping[str, str] = MappingProxyType({})) -> str:
    """Let a training script plan a run with these flags, and return the plan; a complaint is a UserError.

    variables: more of the environment.
    """
    command = [sys.executable, "-m", module, "--dry-run", *words]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | dict(variables), capture_output=True, text=True)
    if done.returncode:
        raise UserError(done.stderr.strip().removeprefix("error: ") or f"{shlex.join(command)} failed")
    return done.stdout.strip()


def parse_numbers(flag: str, text: str, what: str, least: int = 1) -> list[int]:
    """Return the numbers of a flag, separated by commas. what: their name in a complaint, with an example."""
    numbers = text.split(",")
    if not all(number.isdecimal() and int(number) >= least for number in numbers):
        raise UserError(f"{flag}={text} has to be a list of {what}")
    return [int(number) for number in numbers]


def plan_depths(config: SeriesSettings, data: str, depths: list[int]) -> list[str]:
    """Let scripts.base_train plan the depths of a series, and return the plans; a complaint is a UserError.

    Only a dry run plans all of them: one plan shows a mistake in a flag.
    """
    words = words_of(config)
    planned = depths if "--dry-run" in words else depths[:1]
    own = [f"--data={data}", f"--tokenizer-tag={config.tag}"]
    return [check_flags("scripts.base_train", [*own, f"--depth={depth}", *words]) for depth in planned]


def refuse_equal_flops(words: Sequence[str]) -> None:
    """Raise a UserError for flags with which all depths of a series have the same FLOPs."""
    if read_flags(words).get("--target-flops", "-1") != "-1":
        raise UserError(
            "--target-flops gives all depths the same FLOPs, and this is a curve over them: use"
            " --target-param-data-ratio, or scripts.scaling_laws to compare depths at the same FLOPs"
        )


def refuse_own(words: list[str], own: dict[str, str]) -> None:
    """Raise a UserError for a word of --flags that the series sets itself. own: flag → flag of the series to use."""
    for word in words:
        flag = word.partition("=")[0]
        if flag in own:
            raise UserError(f"{flag} differs between runs: use {own[flag]}")
