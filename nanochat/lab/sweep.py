"""A lab's spec, its runs as steps of a job, its plan, and the ledger of looks at held-out benchmarks.

- read_spec(path, tag) -> Spec: a TOML file, checked; `mistakes(spec)` adds those that need the disk.
- Spec.runs, Spec.tag_of(run): an *arm* is a base, a mix and a rate; a *run* is an arm with a seed.
- run_chains(spec, runs): for each base an evaluation of `stable` benchmarks, and for each run training and evaluation;
  held_out_chains(spec, runs); add_round(spec, points): the next runs of the search for a rate.
- check_disk(spec): a ValueError if the checkpoints have no room.
- plan_lines(spec, questions): runs, time, disk, and the smallest difference that each benchmark can show.
- add_look(spec, path, tags) -> int: a line in the ledger; `looks(spec)` checks and counts the lines.
"""

import difflib
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Literal, NamedTuple

import tomllib
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from nanochat.config import flag_of
from nanochat.jobs.runner import Step, read_record
from nanochat.lab import significance
from nanochat.lab.rates import Points, next_rates
from nanochat.lab.results import HELD_OUT
from nanochat.log import duration
from nanochat.outcome import Outcome
from nanochat.paths import base_dir, read_jsonl, read_sha256, stage_dir, text_sha256
from nanochat.report.card import hourly_rate
from nanochat.settings import AnswerTuneSettings, FineTuneSettings
from nanochat.stages import MODELS, STAGES

EVALUATED = {stage.parent: stage.name for stage in STAGES if stage.source}  # training stage -> its evaluation
SOURCES = {stage.parent: stage.source for stage in STAGES if stage.source}
# The flag that a mix is a value of, and the default of --source.
MIX_FLAGS = {"chat_sft": "--mixture", "mid_train": "--mixture", "chat_rl": "--task"}
DEFAULT_SOURCES = {"chat_sft": "mid", "mid_train": "base", "chat_rl": "sft"}
RATE_SETTINGS = {"chat_sft": FineTuneSettings, "mid_train": FineTuneSettings, "chat_rl": AnswerTuneSettings}
EQUAL = ("num_iterations", "tokens")  # budgets with which all arms learn from as many tokens
FIRST = "0" * 64  # stands for the line before the first one in a ledger


class Arm(NamedTuple):
    """A base, a mix, and a factor of the stage's learning rates."""

    base: str
    mix: str
    rate: float


class Run(NamedTuple):
    """An arm with a seed."""

    arm: Arm
    seed: int


class Table(BaseModel):
    """A table of the spec: unknown keys are mistakes."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Benchmarks(Table):
    """Tasks: for the recommendation, for --final alone, and those that must not fall."""

    dev: list[str] = Field(min_length=1)
    held_out: list[str] = []
    stable: list[str] = []


class Sampling(Table):
    """Flags of scripts.chat_eval."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    max_new_tokens: int | None = None
    max_problems: int | None = None


class Spec(Table):
    """A lab, as its file describes it."""

    name: str
    path: Path
    question: str = ""
    stage: Literal["chat_sft", "mid_train", "chat_rl"]
    source: str = ""
    bases: list[str] = Field(min_length=1)
    common: str = ""  # words in front of every mix
    minimal: list[str] = []  # tasks that every arm must have
    mixes: dict[str, str] = Field(min_length=1)
    reference: str = ""
    rates: list[float] = [1.0]
    seeds: list[int] = Field(min_length=1)
    budget: dict[Literal["num_iterations", "tokens", "num_epochs", "target_seconds"], float] = Field(
        min_length=1, max_length=1
    )
    flags: dict[str, bool | int | float | str] = {}
    repeats: int = Field(1, ge=1)
    benchmarks: Benchmarks
    sampling: Sampling = Sampling()
    least_gain: float = 0.0
    scaled: bool = False

    @property
    def dev(self) -> list[str]:
        return self.benchmarks.dev

    @property
    def held_out(self) -> list[str]:
        return self.benchmarks.held_out

    @property
    def stable(self) -> list[str]:
        return self.benchmarks.stable

    @property
    def runs(self) -> list[Run]:
        """All runs; those of one seed stand together, so that each arm has a result early."""
        arms = [Arm(*words) for words in product(self.bases, self.mixes, self.rates)]
        return [Run(arm, seed) for seed, arm in product(self.seeds, arms)]

    def tag_of(self, run: Run) -> str:
        """Return the tag of a run, which names its folders."""
        words = f"{self.name}-{run.arm.base}-{run.arm.mix}-{run.arm.rate:g}-{run.seed}"
        return re.sub(r"[^\w.+-]", "-", words)

    def words_of(self, mix: str) -> str:
        """Return a mix with the common part before it, as the stage's flag has it."""
        return ",".join(filter(None, (self.common, self.mixes[mix])))

    def parent_of(self, base: str) -> str:
        """Return the stage and the tag of a base, as STAGE/TAG."""
        return f"{MODELS[self.source]}/{base}"


# ---- reading and checking ----


def read_spec(path: Path, tag: str = "") -> Spec:
    """Return the lab that a file describes; a ValueError names all mistakes that show without the tasks."""
    text = path.read_text(encoding="utf-8")
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path}: {error}") from None
    values.setdefault("source", DEFAULT_SOURCES.get(str(values.get("stage")), ""))
    if isinstance(values.get("mixes"), dict):
        values.setdefault("reference", next(iter(values["mixes"]), ""))
    try:
        spec = Spec(name=tag or path.stem, path=path, **values)
    except ValidationError as error:
        raise ValueError("\n".join([f"{path}:", *map(_sentence, error.errors())])) from None
    return spec


def _sentence(error: Mapping) -> str:
    """Return a mistake that pydantic has found, with a known key for one that is not."""
    place = ".".join(map(str, error["loc"]))
    if error["type"] != "extra_forbidden":
        return f"  {place}: {error['msg']}"
    tables = {"benchmarks": Benchmarks, "sampling": Sampling}
    known = tables.get(error["loc"][0], Spec).model_fields
    near = difflib.get_close_matches(str(error["loc"][-1]), known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
    return f"  {place} is no key, {hint}"


def mistakes(spec: Spec) -> list[str]:
    """Return the mistakes of a spec that show without the tasks."""
    found = []
    if MODELS.get(spec.source) is None:
        found.append(f"source = {spec.source} is no stage, take one of {', '.join(MODELS)}")
    else:
        for base in spec.bases:
            if not any((base_dir() / spec.parent_of(base)).glob("step_*/manifest.json")):
                found.append(
                    f"the base {base} has no checkpoint in {base_dir() / spec.parent_of(base)}: train it first"
                )
    if spec.reference not in spec.mixes:
        found.append(f"reference = {spec.reference} is no mix, take one of {', '.join(spec.mixes)}")
    for mix in spec.mixes:
        words = re.split(r"[,~@%:|]", spec.words_of(mix))
        found += [f"the mix {mix} has nothing of {task}" for task in spec.minimal if task not in words]
    for name, values in (("bases", spec.bases), ("rates", spec.rates), ("seeds", spec.seeds)):
        if len(set(values)) < len(values):
            found.append(f"{name} has a value twice")
    if min(spec.rates) <= 0:
        found.append("rates have to be above 0")
    asked = [*spec.dev, *spec.held_out, *spec.stable]
    found += [f"{name} stands in two lists of benchmarks" for name in dict.fromkeys(asked) if asked.count(name) > 1]
    if spec.repeats > 1 and not spec.sampling.temperature:
        found.append("repeats would all be the same: set a temperature in [sampling]")
    if "tokens" in spec.budget and "total-batch-size" not in spec.flags:
        found.append("a budget in tokens needs total-batch-size in flags")
    return found


# ---- the job ----


def run_chains(spec: Spec, runs: Sequence[Run]) -> list[list[Step]]:
    """Return the steps of a lab; those in a list follow one another."""
    # Alarms compare a run with its base.
    chains = [[_evaluation_step(spec, spec.source, base, f"{spec.name}-{base}", spec.stable)] for base in spec.bases]
    if not spec.stable:
        chains = []
    for run in runs:
        tag = spec.tag_of(run)
        evaluation = _evaluation_step(spec, SOURCES[spec.stage], tag, tag, [*spec.dev, *spec.stable])
        chains.append([_training_step(spec, run), evaluation])
    return chains


def held_out_chains(spec: Spec, runs: Sequence[Run]) -> list[list[Step]]:
    """Return the evaluations of runs on the held-out benchmarks."""
    tags = [spec.tag_of(run) for run in runs]
    return [[_evaluation_step(spec, SOURCES[spec.stage], tag, tag + HELD_OUT, spec.held_out)] for tag in tags]


def add_round(spec: Spec, points: Mapping[tuple[str, str], Points]) -> tuple[Spec, list[Run]]:
    """Return the lab with the rates of the next rounds of the search, and their runs; none at the end of it."""
    runs = []
    for base, mix in product(spec.bases, spec.mixes):
        coming = next_rates(points.get((base, mix), {}), len(spec.seeds))
        # The last round has the best rate, and nothing to run.
        for rate, seed in product(coming.rates if coming.number else [], spec.seeds[: coming.seeds]):
            runs.append(Run(Arm(base, mix, rate), seed))
    rates = sorted({*spec.rates, *(run.arm.rate for run in runs)})
    return spec.model_copy(update={"rates": rates}), runs


def _training_step(spec: Spec, run: Run) -> Step:
    [(budget, amount)] = spec.budget.items()
    if budget == "tokens":
        budget, amount = "num_iterations", amount // int(spec.flags["total-batch-size"])
    tag, arm = spec.tag_of(run), run.arm
    flags = {
        "--tag": tag,
        "--model-tag": arm.base,
        "--source": spec.source,
        MIX_FLAGS[spec.stage]: spec.words_of(arm.mix),
        "--seed": run.seed,
        flag_of(budget): f"{amount:.15g}",
    }
    flags |= {flag_of(name): value for name, value in spec.flags.items()}
    # A rate is a factor of the stage's own, or of that in the flags.
    usual = RATE_SETTINGS[spec.stage].__dataclass_fields__["init_lr_frac"].default
    flags["--init-lr-frac"] = f"{arm.rate * float(spec.flags.get('init-lr-frac', usual)):g}"
    return Step(
        f"{tag}-train",
        [f"scripts.{spec.stage}", *(_flag_word(flag, value) for flag, value in flags.items())],
        output=f"{spec.stage}/{tag}",
        parent=spec.parent_of(arm.base),
        local=_files(spec.words_of(arm.mix)),
        quiet=True,
    )


def _flag_word(flag: str, value: bool | float | str) -> str:
    """Return a flag with its value; a switch is on or off by its name alone."""
    if isinstance(value, bool):
        return flag if value else flag.replace("--", "--no-", 1)
    return f"{flag}={value}"


def _files(words: str) -> list[str]:
    """Return the files that a mixture names."""
    found = []
    for place in re.findall(r"json:([^,@%~]+?)(?:[,@%~]|:\d|$)", words):
        path = Path(place).expanduser().resolve()
        found += [str(file) for file in sorted(path.parent.glob(path.name)) if file.is_file()]
    return found


def _evaluation_step(spec: Spec, source: str, tag: str, out_tag: str, tasks: Sequence[str]) -> Step:
    """Return the evaluation of a model. out_tag: names its folder."""
    sampling = {name: value for name, value in spec.sampling if value is not None}
    stage = MODELS[source]
    return Step(
        f"{out_tag}-eval",
        [
            "scripts.chat_eval",
            f"--source={source}",
            f"--tag={tag}",
            f"--out-tag={out_tag}",
            f"--tasks={'|'.join(tasks)}",
            f"--repeats={spec.repeats}",
            *(f"{flag_of(name)}={value}" for name, value in sampling.items()),
        ],
        output=f"{EVALUATED[stage]}/{out_tag}",
        parent=f"{stage}/{tag}",
        quiet=True,
    )


# ---- the plan ----


def plan_lines(spec: Spec, questions: Mapping[str, int]) -> list[str]:
    """Return the plan in words. questions: number of each development benchmark."""
    count = len(spec.runs)
    steps = [step for chain in run_chains(spec, spec.runs) for step in chain]
    records = [read_record(stage_dir("lab", spec.name) / f"{step.name}.json") for step in steps]
    done = [record["seconds"] for record in records if record.get("finished")]
    lines = [
        f"{count} runs: {len(spec.bases)} bases x {len(spec.mixes)} mixes x {len(spec.rates)} rates x "
        f"{len(spec.seeds)} seeds, stage {spec.stage}, reference {spec.reference}",
        f"{len(done)} of {len(steps)} steps are finished",
    ]
    if not set(EQUAL) & set(spec.budget):
        lines.append("the arms do not learn from as many tokens: their horizon is no number of steps or tokens")
    if done:
        # Training and evaluation steps finish in pairs.
        seconds = sum(done) / len(done) * (len(records) - len(done))
        price = hourly_rate(_gpus(spec))
        dollars = "" if price is None else f", ${price * seconds / 3600:,.2f}"
        lines.append(f"about {duration(seconds)} left, one run after the other{dollars}")
    else:
        lines.append("time and dollars are not known before the first run has finished")
    lines.append(f"{_checkpoint_bytes(spec) / 1e9:.1f} GB of checkpoints, before --keep removes some")
    tests = len(spec.bases) * len(spec.rates) * (len(spec.mixes) - 1) * len(spec.dev)
    for name, number in questions.items():
        least = significance.smallest_difference(number, len(spec.seeds), spec.repeats, len(spec.mixes), max(tests, 1))
        shown = "none, it needs two seeds" if least == float("inf") else f"{100 * least:.1f} points"
        lines.append(f"{name}: {number:,} questions; smallest difference that can be shown: {shown}")
    return [*lines, f"({significance.ASSUMED})"]


def check_disk(spec: Spec) -> None:
    """Raise a ValueError if the checkpoints of the runs that have none yet have no room on the disk."""
    needed, free = _checkpoint_bytes(spec, is_all=False), shutil.disk_usage(base_dir()).free
    if needed > free:
        sizes = f"{needed / 1e9:.1f} GB are needed, {free / 1e9:.1f} are free"
        raise ValueError(f"{base_dir()} has too little room: {sizes}; see scripts.runs --list")


def _checkpoint_bytes(spec: Spec, is_all: bool = True) -> int:
    """Return the size of the last checkpoints, as large as those of the bases. is_all: also of runs that have one."""
    total = 0
    for run in spec.runs:
        own = (base_dir() / spec.stage / spec.tag_of(run)).glob("step_*/manifest.json")
        if is_all or not any(own):
            total += max(map(_size, (base_dir() / spec.parent_of(run.arm.base)).glob("step_*")))
    return total


def _gpus(spec: Spec) -> str:
    """Return the GPUs on which a run of the lab has been trained, as an outcome names them."""
    paths = (stage_dir(spec.stage, spec.tag_of(run)) / "outcome.json" for run in spec.runs)
    return next((Outcome.load(path).environment["Hardware"]["GPUs"] for path in paths if path.exists()), "none")


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


# ---- looks at held-out benchmarks ----


def _ledger(spec: Spec) -> Path:
    return spec.path.with_name(f"{spec.name}.looks.jsonl")


def looks(spec: Spec) -> int:
    """Return the number of looks so far; a ValueError if the ledger was edited."""
    path, before = _ledger(spec), FIRST
    lines = list(read_jsonl(path, dict)) if path.exists() else []
    for number, line in enumerate(lines, 1):
        digest = line.pop("hash", "")
        if line.get("before") != before or digest != text_sha256(json.dumps(line, sort_keys=True)):
            raise ValueError(f"{path}:{number} was edited: the looks at held-out benchmarks can no longer be counted")
        before = digest
    return len(lines)


def add_look(spec: Spec, recommendation: Path, runs: Sequence[Run]) -> int:
    """Add a look to the ledger, unless the last one had the same models; return the number of looks."""
    count, path = looks(spec), _ledger(spec)
    last = list(read_jsonl(path, dict))[-1] if count else {"hash": FIRST}
    models = {}
    for run in runs:
        outcome = Outcome.load(stage_dir(spec.stage, spec.tag_of(run)) / "outcome.json")
        models[spec.tag_of(run)] = outcome.timestamp
    line = {"spec": read_sha256(spec.path), "models": models, "before": last["hash"]}
    line["recommendation"] = read_sha256(recommendation)
    if count and all(line[name] == last[name] for name in ("spec", "models", "recommendation")):
        return count
    line["hash"] = text_sha256(json.dumps(line, sort_keys=True))
    with open(path, "a", encoding="utf-8") as ledger:
        ledger.write(json.dumps(line) + "\n")
    return count + 1
