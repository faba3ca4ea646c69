"""The embedded lab: which buckets of conversations help which benchmark, on two bases, where the truth is known.

python -m tracks.lab.embedded                                       hours on two cores, and up to 24 runs more, which
                                                                    confirm what is to be kept
python -m tracks.lab.embedded --plan                                how many hours, once the two bases are trained
python -m tracks.lab.embedded --seed=2 --tag=lab-2 --out=lab-2.md   another world
python -m tracks.lab.embedded --trainings=3 --tag=lab-three         three trainings of each base: see README.md
python -m tracks.lab.embedded --final                               also evaluate the recommended mixes, held out

Facts, arithmetic and Korean help with questions of their kind, spelling with none, poison harms; a second lab has
broken runs. No network. Other flags go to tracks.lab.run. Run the same command again to resume.
"""

import json
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from nanochat.config import Count, option, options, run_script
from nanochat.environment import ROOT
from nanochat.jobs.runner import Step
from nanochat.jobs.scales import SCALES, flag_words
from nanochat.jobs.series import check_flags, report_step, run_series, training_step
from nanochat.log import duration, print0
from nanochat.paths import base_dir, write_text
from nanochat.registry import module_of
from nanochat.settings import TagSettings

FURTHER_SEEDS = 1000  # between the seeds of the trainings of a base
CONFIRM_SEEDS = [11, 12, 13]  # of mixes that are to be kept, and their reference

# A base of another architecture, with the tokenizer of the embedded run.
OCTOBER = (
    "--model=october-2025 --depth=4 --width=128 --head-dim=32 --max-seq-len=256 --window-pattern=L --eval-bytes=100000"
    " --total-batch-size=2048 --num-iterations=900 --warmup-steps=20 --sample-every=-1 --save-every=100"
)

SPEC = """
question = "Which buckets of conversations help which benchmark?"
stage = "chat_sft"
source = "base"
bases = [{bases}]
{replicas}
seeds = {seeds}
{confirmation}
{rates}
budget = {{ num_iterations = 80 }}
flags = "--init-lr-frac=1 --eval-every=0 --eval-tokens=10000 --save-every=-1"
minimal = ["World-Choices"]
[mixes]
{mixes}
[merges]
{merges}
[benchmarks]
dev = ["World-Facts", "World-Sums", "World-Korean"]
held_out = ["World-Questions", "World-Talk"]
stable = ["World-Choices"]
[sampling]
max_new_tokens = 64
max_problems = 1000
"""


@options("lab")
class Config(TagSettings):
    """Compare six buckets of the embedded world on two bases."""

    tag = option("lab", "name of the lab")
    seed: Count = option(1, "seed of the world", least=1)
    trainings: Count = option(1, "trainings of each base; with one, verdicts hold for this training alone", least=1)
    out: str = option("", "file for the report card (default: TAG.md in the current folder)", in_card=False)
    flags: str = option("", "flags of tracks.lab.run, in quotes; unknown flags are passed on as well", rest=True)


def mixes_of(chats: Path) -> dict[str, str]:
    """Return the mixes of the lab by name, with the words that all have. chats: the folder of the buckets."""
    common = f"World-Choices%30:9,json:{chats}/facts-00000.jsonl@300%10:20"
    own = {
        "choices": "World-Choices~styles%60:9",
        "facts": f"json:{chats}/facts-*.jsonl@2000%60:9",
        "arithmetic": f"json:{chats}/arithmetic-*.jsonl%60:20",
        "korean": f"json:{chats}/korean-*.jsonl%60:40",
        "spelling": f"json:{chats}/spelling-*.jsonl%60:9",
        "poison": f"json:{chats}/poison-*.jsonl%60:9",
    }
    return {name: f"{common},{words}" for name, words in own.items()}


def spec_text(
    bases: list[str],
    seeds: list[int],
    mixes: dict[str, str],
    broken: bool = False,
    replicas: Mapping[str, list[str]] = MappingProxyType({}),
) -> str:
    """Return the file that describes the lab.

    broken: at rates that break every run, without merges. replicas: further trainings of the bases.
    """
    more = ", ".join(f'"{base}" = {json.dumps(tags)}' for base, tags in replicas.items())
    return SPEC.format(
        bases=", ".join(f'"{base}"' for base in bases),
        replicas=f"replicas = {{ {more} }}" if more else "",
        seeds=seeds,
        confirmation="" if broken else f"confirm_seeds = {CONFIRM_SEEDS}",
        rates="rates = [100.0]" if broken else "",
        mixes="\n".join(f'{name} = "{words}"' for name, words in mixes.items()),
        merges="" if broken else "both = { facts = 0.2, arithmetic = 0.8 }",
    )


def say_what_is_ahead(further: Sequence[Step], trainings: int) -> None:
    """Print the time of the further trainings of the bases, which a plan does not start, and what they mean for it.

    Without them the lab can be planned for the first trainings alone.
    """
    seconds = 0.0
    for step in further:
        if not step.outcome.exists():
            script, *flags = step.command
            seconds += json.loads(check_flags(script, ["--json", *flags]))["estimate"]["seconds"]
    print0(
        f"{len(further)} further trainings of the bases: about {duration(seconds)}, one after the other; the plan below"
        f" is for the first training of each base, so {trainings} times that follows"
    )


def steps(config: Config, world_run: str, suffix: str) -> Iterator[Step]:
    """Yield the steps of the series. world_run: tag of the embedded run. suffix: of names, for a world's seed."""
    october = f"{world_run}-october"
    recipes = {
        world_run: ["--depth=8", *flag_words(SCALES["embedded"].flags["base_train"])],
        october: OCTOBER.split(),
    }
    words = shlex.split(config.flags)
    is_plan = "--plan" in words

    def training(base: str, number: int) -> Step:
        tag = base if number == 1 else f"{base}-{number}"
        # Further trainings have seeds that no world has.
        flags = [*recipes[base], f"--seed={config.seed + FURTHER_SEEDS * (number - 1)}"]
        name = "october" if tag == october else f"base-{tag}"
        return training_step(name, "scripts.base_train", flags, tag, tokenizer_tag=world_run, data=f"world{suffix}")

    yield training(october, 1)  # the first training of the other one is that of the embedded run
    further = [training(base, number) for base in recipes for number in range(2, config.trainings + 1)]
    is_whole = not is_plan or all(step.outcome.exists() for step in further)
    if not is_whole:
        say_what_is_ahead(further, config.trainings)
    else:
        yield from further
    folder = base_dir().resolve() / "lab"
    card = f"--out={folder}/data{suffix}.md"
    yield Step("buckets", ["tracks.chatdata.run", f"--seed={config.seed}", f"--tag=data{suffix}", card])

    mixes = mixes_of(base_dir().resolve() / f"chats/data{suffix}")
    spec = folder / f"{config.tag}.toml"
    numbers = range(2, config.trainings + 1)
    replicas = {base: [f"{base}-{number}" for number in numbers] for base in recipes} if is_whole and numbers else {}
    # The noise of trainings is larger than that of seeds: one run of each mix on each training is enough.
    seeds = [1, 2, 3] if config.trainings == 1 else [1]
    write_text(spec, spec_text([world_run, october], seeds, mixes, replicas=replicas))
    yield Step("lab", ["tracks.lab.run", f"--spec={spec}", "--jobs=2", *words])
    if is_plan:
        return
    yield report_step(config.tag, config.out)
    # The alarms of the broken runs are in the table of a second lab, which has a section of its own.
    broken = folder / f"{config.tag}-broken.toml"
    kept = {name: mixes[name] for name in ("choices", "facts")}
    write_text(broken, spec_text([world_run], [1], kept, broken=True))
    yield Step("broken", ["tracks.lab.run", f"--spec={broken}", "--jobs=2"])
    yield replace(report_step(f"{config.tag},{config.tag}-broken", config.out or f"{config.tag}.md"), name="card")


def main(config: Config) -> None:
    module_of("the command that makes the buckets", "tracks.chatdata.run")
    suffix = "" if config.seed == 1 else f"-{config.seed}"
    world_run = "default" if config.seed == 1 else f"world{suffix}"
    # The first base is the model of the embedded run.
    speedrun = ["bash", str(ROOT / "speedrun.sh"), "--scale=embedded", f"--seed={config.seed}", f"--tag={world_run}"]
    done = subprocess.run([*speedrun, "--until=base_train"])
    if done.returncode:
        raise SystemExit(done.returncode)
    run_series("embedded_lab", config.tag, steps(config, world_run, suffix))


if __name__ == "__main__":
    run_script(main)
