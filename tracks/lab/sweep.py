"""A lab: its spec, its runs as steps of a job, its plan, and the ledger of looks at held-out benchmarks.

- read_spec(path, tag) -> Spec: from a TOML file; mistakes(spec): all that is wrong with it, apart from names of tasks.
- A *run* is a base, a mix, a rate and a seed; an *arm* is all runs that differ in the seed alone.
- base_chains(spec), chains_of(spec, runs): the steps of a lab. run_steps, base_step, prune_step: those of one run.
- spec.merged_runs: runs that are merges of others, with the name of the merge and the method (both:ties) as their mix.
- expectations(spec, questions, planned): runs, time, disk, and the smallest difference that each benchmark can show.
- looks(spec): those in the ledger; add_look(spec, recommendation, runs) adds one.
"""

import difflib
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import import_module
from itertools import product, starmap
from pathlib import Path
from statistics import fmean
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, ValidationError

from nanochat import registry
from nanochat.config import check_names, flag_of
from nanochat.data.corpus import absolute_data
from nanochat.errors import UserError
from nanochat.jobs.runner import TORCHRUN, Chain, Step, parent_hashes, reason_to_repeat, saved_record
from nanochat.jobs.scales import flag_words, read_flags
from nanochat.jobs.series import check_flags
from nanochat.log import Record, duration
from nanochat.outcome import Outcome
from nanochat.paths import (
    base_dir,
    newest_manifest,
    read_sha256,
    read_toml,
    saved_steps,
    stage_dir,
    step_dir,
    text_sha256,
    tokenizer_file,
    write_jsonl,
)
from nanochat.report.card import cost
from nanochat.settings import AnswerTuneSettings, FineTuneSettings, PretrainSettings, Rate
from nanochat.stages import MODELS, Source, core_stage, loss_stage
from tasks import JUDGED, TASKS, find_task
from tasks.mixing import MEMBER, absolute_mixture
from tracks.lab import significance
from tracks.lab.related import decided, overlap

SOURCES = {MODELS[source]: source for source in MODELS}


@dataclass(frozen=True)
class Trained:
    """A stage that a lab can repeat."""

    source: Source | Literal[""]  # of its bases, unless the spec says another; empty: they are tokenizers
    mix: str  # the flag that takes the words of a mix; empty: these are flags
    rates: Mapping[str, Rate]  # flags of the learning rates, and what they are by default; None: it depends on the base
    measure: str  # by which rates are compared
    figure: str  # its name in the metric log
    higher_is_better: bool = False
    scores_tasks: bool = True  # now and then during training; it must not ask those that are held out
    caution: str = ""  # what a reader of the figure should know


TUNED_RATES = {"--init-lr-frac": FineTuneSettings.init_lr_frac}
ANSWER_RATES = {"--init-lr-frac": AnswerTuneSettings.init_lr_frac}
STAGES = {
    "base_train": Trained(
        "",
        "",
        {
            "--embedding-lr": PretrainSettings.embedding_lr,
            "--unembedding-lr": PretrainSettings.unembedding_lr,
            "--matrix-lr": PretrainSettings.matrix_lr,
            "--scalar-lr": PretrainSettings.scalar_lr,
        },
        "validation bits per byte",
        "val/bpb",
        scores_tasks=False,
    ),
    "chat_sft": Trained("mid", "--mixture", TUNED_RATES, "validation loss", "val/loss"),
    "mid_train": Trained("base", "--mixture", TUNED_RATES, "validation loss", "val/loss"),
    "chat_rl": Trained(
        "sft", "--task", ANSWER_RATES, "pass@1", "eval/pass@1", higher_is_better=True, scores_tasks=False
    ),
    "chat_dpo": Trained(
        "sft",
        "--pairs",
        ANSWER_RATES,
        "pair accuracy",
        "eval/Pair accuracy",
        higher_is_better=True,
        caution="Pair accuracy does not fall where a model loses its answers: ask the runs a benchmark, too.",
    ),
}
BPB = "bpb"  # among the benchmarks: bits per byte of a text
TEXT_SPLIT = "all"  # --splits of a lab of chats, which learn no text; base models are measured on the validation part
# Which the lab sets itself, or which are for a budget: of base training, and of the stages after it.
LAB_FLAGS = ("--tag", "--seed", "--tokenizer-tag", "--num-iterations", "--target-seconds", "--target-flops")
LAB_FLAGS += ("--target-param-data-ratio", "--num-epochs", "--target-supervised-tokens")
PARENT_FLAGS = ("--source", "--model-tag")
SCORE_FLAG = "--eval-metrics-every"
BUDGETS = {
    "num_iterations": "--num-iterations",
    "tokens": "--num-iterations",
    "supervised": "--target-supervised-tokens",
    "flops": "--target-flops",
}
CHAT_STAGES = ("chat_sft", "mid_train")  # they learn from conversations
HELD_OUT = "-held-out"  # end of the tag of an evaluation of --final

# Fields of a spec that this code fills in; the others are the keys of the file.
FILLED_IN = {"name", "path", "unknown", "files", "gpus", "devices"}

Budget = Literal["num_iterations", "tokens", "supervised", "flops"]  # the keys of BUDGETS
Sampling = Literal["temperature", "top_p", "top_k", "max_new_tokens", "max_problems"]  # flags of scripts.chat_eval


@dataclass(frozen=True)
class Run:
    """A base, a mix, a factor of the stage's learning rates, and a seed."""

    base: str  # its tag, or that of another training of it
    mix: str
    rate: float
    seed: int


class Spec(BaseModel):
    """A lab, as its file describes it; keys of [benchmarks] are among the others."""

    model_config = ConfigDict(frozen=True)

    name: str
    path: Path
    unknown: list[str] = []  # sentences about keys that are none of these
    files: dict[str, list[str]] = {}  # mix -> files of conversations that it reads, if known
    gpus: int = 0  # of each run
    devices: dict[str, str] = {}  # variables of a run on this machine, which select its GPUs
    question: str = ""
    stage: Literal["base_train", "chat_sft", "mid_train", "chat_rl", "chat_dpo"]  # the keys of STAGES
    source: Literal["", Source] = ""
    bases: list[str] = Field(min_length=1)
    minimal: list[str] = []  # tasks that every arm must have
    mixes: dict[str, str] = Field(min_length=1)
    reference: str = ""
    rates: list[PositiveFloat] = Field([1.0], min_length=1)
    seeds: list[int] = Field(min_length=1)
    more_seeds: list[int] = []  # of mixes that are not distinguishable from the reference after the others
    confirm_seeds: list[int] = []  # of mixes that are to be kept: they count for nothing but the confirmation
    replicas: dict[str, list[str]] = {}  # base -> tags of further trainings of it, with other seeds
    budget: dict[Budget, PositiveInt] = Field(min_length=1, max_length=1)  # of each run
    flags: str = ""  # of the stage, as on its command line
    text: str = ""  # as in --data: bits per byte are those of its validation part; of chats, that and then the rest
    text_bytes: PositiveInt | None = None  # how much of it; base_train has a flag for that
    repeats: PositiveInt = 1
    dev: list[str] = Field(min_length=1)  # benchmarks for the recommendation
    held_out: list[str] = []  # for --final alone
    stable: list[str] = []  # those that must not fall
    sampling: dict[Sampling, int | float] = {}
    scaled: bool = False
    merges: dict[str, dict[str, float]] = {}  # name -> weights of the mixes whose models are merged
    methods: list[str] = ["linear", "slerp", "task", "ties"]  # of tracks.lab.merge
    slots: list[PositiveInt] = []  # rows of the engine, for the noise of evaluations

    @property
    def is_pretraining(self) -> bool:
        """True if runs make new models: the "bases" are tokenizers, and the mixes are flags."""
        return self.stage == "base_train"

    @property
    def trainings(self) -> dict[str, str]:
        """The tags of all models that runs begin with, those of a base one after the other, and the base of each."""
        return {tag: base for base in self.bases for tag in (base, *self.replicas.get(base, ()))}

    @property
    def fewest_trainings(self) -> int:
        """Of the bases; above 1, differences are over trainings and not over seeds."""
        return min(1 + len(self.replicas.get(base, ())) for base in self.bases)

    @property
    def samples(self) -> int:
        """How often a difference is measured: two are needed to show one."""
        return self.fewest_trainings if self.fewest_trainings > 1 else len(self.seeds)

    @property
    def runs(self) -> list[Run]:
        """All runs; those of an arm follow each other."""
        return list(starmap(Run, product(self.trainings, self.mixes, self.rates, self.seeds)))

    @property
    def more_runs(self) -> list[Run]:
        """The runs with more seeds, of all mixes: a lab needs some of them."""
        return list(starmap(Run, product(self.trainings, self.mixes, self.rates, self.more_seeds)))

    @property
    def confirming_runs(self) -> list[Run]:
        """The runs that may confirm a mix, of all mixes: a lab needs those of the reference and of mixes to be kept."""
        return list(starmap(Run, product(self.trainings, self.mixes, self.rates, self.confirm_seeds)))

    @property
    def verdict_rounds(self) -> int:
        """How often the lab may find a difference: p is corrected for it."""
        return 2 if self.more_seeds else 1

    @property
    def merged_runs(self) -> list[Run]:
        """All merges: of runs with the same base, rate and seed."""
        names = map(":".join, product(self.merges, self.methods))
        return list(starmap(Run, product(self.trainings, names, self.rates, self.seeds)))

    @property
    def core_tasks(self) -> list[str]:
        """The benchmarks that are tasks of CORE, scored by likelihood: all those of base models but bits per byte."""
        tasks = [name for name in self.tasks if name != BPB]
        return tasks if self.is_pretraining else [name for name in tasks if not is_chat_task(name)]

    @property
    def open_tasks(self) -> list[str]:
        """All benchmarks but those that are held out."""
        return [*self.dev, *self.stable]

    @property
    def tasks(self) -> list[str]:
        """All benchmarks."""
        return [*self.open_tasks, *self.held_out]

    def tag_of(self, run: Run) -> str:
        """Return the tag of a run, which names its folders."""
        words = [self.name, run.base, run.mix, f"{run.rate:g}", str(run.seed)]
        return re.sub(r"[^\w.+-]", "-", "-".join(words))

    def outcome_of(self, run: Run) -> Path:
        """Return the place for the outcome of training."""
        return stage_dir(self.stage, self.tag_of(run)) / "outcome.json"

    def base_of(self, run: Run) -> str:
        """Return the name of a run's base in tables: with the rate, if there are several."""
        base = self.trainings[run.base]
        return base if len(self.rates) == 1 else f"{base}*{run.rate:g}"

    def words_of(self, mix: str) -> str:
        """Return the words of a mix for the stage's flag; files with their whole paths, as runs need them."""
        if self.stage != "chat_dpo":
            return absolute_mixture(self.mixes[mix])
        return ",".join(str(Path(name).expanduser().absolute()) for name in self.mixes[mix].split(","))

    @property
    def answering(self) -> dict[str, str]:
        """The flags about answers, of an evaluation and of a soup."""
        return {flag_of(name): str(value) for name, value in self.sampling.items()} | {"--repeats": str(self.repeats)}

    @property
    def own_flags(self) -> dict[str, str]:
        """The flags that the file gives to the stage, with their values."""
        return flags_in(self.flags)

    def flags_of(self, mix: str) -> dict[str, str]:
        """Return the flags of the stage that the file gives to the runs of a mix, with their values."""
        if not self.is_pretraining:
            flags = self.own_flags
            return flags | {name: absolute_mixture(flags[name]) for name in {"--replay"} & flags.keys()}
        flags = self.own_flags | flags_in(self.mixes[mix])
        if "--data" in flags:  # runs work in another folder
            flags["--data"] = _text_of(flags["--data"])
        return flags

    def parent_of(self, base: str) -> str:
        """Return the stage and the tag of a base, as STAGE/TAG."""
        if self.is_pretraining:
            return f"tok_train/{base}"
        return f"{MODELS[self.source]}/{base}"


def is_chat_task(name: str) -> bool:
    """Return True for the name of a task that is put as a conversation; tasks of CORE have other names."""
    try:
        find_task(name, JUDGED)
    except UserError:
        return False
    return True


def flags_in(text: str) -> dict[str, str]:
    """Return the flags of a command line with their values; both spellings of a flag are allowed."""
    return {flag.replace("_", "-"): value for flag, value in read_flags(text.split()).items()}


def _text_of(data: str) -> str:
    """Return --data with absolute folders."""
    return data if data == "auto" else absolute_data(data)


# ---- reading and checking ----


def read_spec(path: Path, tag: str = "") -> Spec:
    """Return the lab that a file describes; a UserError names all missing keys and wrong values."""
    values = read_toml(path)
    if isinstance(values.get("benchmarks"), dict):
        values |= values.pop("benchmarks")
    known = [key for key in Spec.model_fields if key not in FILLED_IN]
    unknown = []
    for key in sorted(values.keys() - known):
        [nearest] = difflib.get_close_matches(key, known, n=1, cutoff=0)
        unknown.append(f"{key} is not a key, did you mean {nearest}?")
    given = {key: value for key, value in values.items() if key in known}
    try:
        spec = Spec.model_validate(given | {"name": tag or path.stem, "path": path, "unknown": unknown})
    except ValidationError as error:
        found = [".".join(map(str, one["loc"])) + f": {one['msg']}" for one in error.errors()]
        raise UserError("\n  ".join([f"{path}:", *unknown, *found])) from None
    source = spec.source or STAGES[spec.stage].source
    return spec.model_copy(update={"source": source, "reference": spec.reference or next(iter(spec.mixes))})


def with_bases(spec: Spec, names: str) -> Spec:
    """Return the lab on some of its bases, separated by commas; empty: all."""
    chosen = list(filter(None, names.split(",")))
    check_names("the base", chosen, spec.bases)
    if not chosen:
        return spec
    others = set(spec.bases) - set(chosen)
    replicas = {base: tags for base, tags in spec.replicas.items() if base not in others}
    return spec.model_copy(update={"bases": chosen, "replicas": replicas})


def mistakes(spec: Spec) -> list[str]:
    """Return the mistakes of a spec, apart from names of tasks, and from those that the scripts find in their flags."""
    found = list(spec.unknown)
    for base in spec.trainings:
        folder = base_dir() / spec.parent_of(base)
        if spec.is_pretraining:
            if not tokenizer_file(base).exists():
                found.append(f"the tokenizer {base} is not in {folder}: train it first")
        elif not any(folder.glob("step_*/manifest.json")):
            found.append(f"the base {base} has no checkpoint in {folder}: train it first")
    for name, weights in spec.merges.items():
        found += [f"the merge {name} has {mix}, which is not a mix" for mix in weights if mix not in spec.mixes]
    found += [f"replicas has {base}, which is not a base" for base in spec.replicas if base not in spec.bases]
    models = Counter(tag for base in spec.bases for tag in (base, *spec.replicas.get(base, ())))
    found += [f"bases and replicas have {tag} {count} times" for tag, count in models.items() if count > 1]
    used = {*spec.seeds, *spec.more_seeds} & {*spec.confirm_seeds}
    found += [f"confirm_seeds has {seed}, which is used to find a difference" for seed in sorted(used)]
    if len(spec.confirm_seeds) == 1 and spec.fewest_trainings == 1:
        found.append("confirm_seeds needs two seeds: with one nothing is confirmed")
    runs = [*spec.runs, *spec.more_runs, *spec.confirming_runs, *spec.merged_runs]
    tags = [spec.tag_of(run) for run in runs] if models.total() == len(models) else []
    names = Counter(tags + spec.tasks)
    found += [f"two runs, or two lists of benchmarks, have {name}" for name, count in names.items() if count > 1]
    if spec.reference not in spec.mixes:
        found.append(f"reference = {spec.reference} is not a mix, use one of {', '.join(spec.mixes)}")
    if spec.more_seeds and spec.merges:
        found.append("more_seeds and merges do not go together: a merge needs its mixes at equal seeds")
    if spec.more_seeds and spec.samples == 1:
        found.append("more_seeds needs two seeds before: with one nothing is decided")
    if spec.scaled and spec.samples == 1:
        found.append("with one seed nothing is shown, and scaled = true would drop every mix")
    if spec.minimal and spec.stage in ("chat_rl", "chat_dpo", "base_train"):
        found.append(f"minimal is for mixes of conversations, which {spec.stage} has not")
    if STAGES[spec.stage].mix in ("--mixture", "--task"):  # files of pairs have no names
        learned = dict.fromkeys(task for words in spec.mixes.values() for task in _tasks_in(words))
        asks_tests = spec.stage == "chat_rl"  # now and then while it trains
        said = [overlap(learned, task, _plain_task(task), asks_tests=asks_tests) for task in spec.held_out]
        found += filter(None, said)
    for dev, held_out in product(spec.dev, spec.held_out):
        if dev != held_out:  # another sentence names benchmarks that stand there twice
            found += filter(None, [decided(dev, held_out, (_plain_task(dev), _plain_task(held_out)))])
    words = {"flags": spec.flags}
    if spec.is_pretraining:
        words |= {f"the mix {mix}": text for mix, text in spec.mixes.items()}
    own = set_by_lab(spec.stage)
    for place, text in words.items():
        found += [f"{place} has {flag}, which the lab sets itself" for flag in flags_in(text) if flag in own]
    if "supervised" in spec.budget and spec.stage not in CHAT_STAGES:
        found.append(f"a budget in supervised tokens is for {' and '.join(CHAT_STAGES)}: use num_iterations")
    if BPB in spec.held_out:
        found.append(f"{BPB} cannot be held out: it is measured after each training")
    if spec.text:
        try:
            _text_of(spec.text)
        except UserError as error:
            found.append(f"text: {error}")
    if spec.text and BPB not in spec.dev:
        found.append(f"text is that of {BPB}, which is not in dev")
    if spec.is_pretraining:
        return found + _pretraining_mistakes(spec)
    if BPB in spec.dev and not spec.text:
        found.append(f"{BPB} needs text: the one on which it is measured, after training on conversations")
    if BPB in spec.stable:
        found.append(f"{BPB} cannot be stable, which is for answers that become wrong: use dev")
    if BPB in spec.dev and spec.replicas:
        found.append(f"{BPB} is compared seed by seed, and replicas between trainings of a base: leave one of them out")
    if spec.text_bytes and BPB not in spec.dev:
        found.append(f"text_bytes is for {BPB}, which is not in dev")
    if "soup" in spec.methods and spec.merges and not any(map(is_chat_task, spec.dev)):
        found.append("soup chooses by benchmarks that are conversations, and dev has none")
    if "flops" in spec.budget:
        found.append("a budget in flops is for base_train: use num_iterations or tokens")
    if spec.stage in ("chat_rl", "chat_dpo"):
        if "tokens" in spec.budget:
            found.append(
                f"a budget in tokens is for stages with a batch of tokens, {spec.stage} has prompts: use num_iterations"
            )
        if "--total-batch-size" in spec.own_flags:
            found.append(f"flags has --total-batch-size, {spec.stage} has prompts: use --examples-per-step")
    elif "tokens" in spec.budget and "--total-batch-size" not in spec.own_flags:
        found.append("a budget in tokens needs --total-batch-size in flags")
    return found


def set_by_lab(stage: str) -> tuple[str, ...]:
    """Return the flags of a stage that a file of a lab cannot give: the lab would replace them without a word."""
    trained = STAGES[stage]
    if not trained.mix:
        return LAB_FLAGS
    return (*LAB_FLAGS, *PARENT_FLAGS, trained.mix, *([SCORE_FLAG] if trained.scores_tasks else []))


def _tasks_in(words: str) -> list[str]:
    """Return the tasks that the words of a mix name, also those of which the first is read; no files."""
    members = [MEMBER.fullmatch(word.strip()) for word in words.split(",")]  # another sentence names a wrong word
    names = [match[1] for match in members if match and not match[1].startswith("json:")]
    return [_plain_task(name.strip()) for choices in names for name in choices.split("|")]


def _plain_task(name: str) -> str:
    """Return the name of a task as it is known, without an augmentation; of an unknown one the name itself."""
    with suppress(UserError):  # another sentence says so
        name = find_task(name, TASKS)
    return name.partition("~")[0]


def _pretraining_mistakes(spec: Spec) -> list[str]:
    """Return what makes no sense in a lab of base models, or is missing."""
    found = []
    if spec.source:
        found.append("source is the stage of models, and the bases of base_train are tags of tokenizers: leave it out")
    if spec.replicas:
        found.append("replicas are further trainings of a base, and base_train trains the bases: use more seeds")
    if spec.merges:
        found.append("merges need models with one parent, which runs of base_train have not")
    if spec.stable:
        found.append("stable compares a run with the model it begins with, which base_train has not: use dev")
    if spec.repeats > 1 or spec.slots:
        found.append("repeats and slots are for sampled answers, and base models are scored without sampling")
    if spec.sampling.keys() - {"max_problems"}:
        found.append("base models are scored without sampling: of [sampling] keep max_problems alone")
    if spec.text_bytes:
        found.append("text_bytes is --eval-bytes in the flags of base_train: set it there")
    if BPB in spec.dev:
        found += [
            f"the mix {mix} has --eval-bytes, but {BPB} of all mixes is measured on the same bytes: set it in flags"
            for mix, text in spec.mixes.items()
            if "--eval-bytes" in flags_in(text)
        ]
    texts = {flags_in(f"{spec.flags} {text}").get("--data", "auto") for text in spec.mixes.values()}
    if BPB in spec.dev and len(texts) > 1 and not spec.text:
        found.append(f"mixes with other --data need text: the one on which {BPB} of all is measured")
    if "tokens" in spec.budget:
        own = {mix: flags_in(f"{spec.flags} {text}") for mix, text in spec.mixes.items()}
        lacking = [mix for mix, flags in own.items() if "--total-batch-size" not in flags]
        found += [f"a budget in tokens needs --total-batch-size in flags, or in the mix {mix}" for mix in lacking]
    return found


# ---- the job ----


def base_chains(spec: Spec) -> list[Chain]:
    """Return the evaluations of the models that runs begin with: alarms compare a run with its base."""
    if spec.is_pretraining:
        return []
    return [base_steps(spec, base) for base in spec.trainings]


def chains_of(spec: Spec, runs: Sequence[Run], prunes: bool = False) -> list[Chain]:
    """Return the steps of some runs. prunes: the last one deletes the checkpoints of a run."""
    last = [[prune_step(spec, run)] if prunes else [] for run in runs]
    return [[*run_steps(spec, run), *end] for run, end in zip(runs, last, strict=True)]


def prune_step(spec: Spec, run: Run) -> Step:
    """Return the step that deletes the checkpoints of a run."""
    return Step(f"{spec.tag_of(run)}-prune", ["tracks.lab.prune", f"--run={spec.stage}/{spec.tag_of(run)}"], quiet=True)


def merge_chains(spec: Spec) -> list[Chain]:
    """Return the steps of all merges of finished runs."""
    chains = [run_steps(spec, run) for run in spec.merged_runs]
    return [steps for steps in chains if all(map(os.path.exists, steps[0].local))]


def base_step(spec: Spec, base: str, slots: int = 0) -> Step:
    """Return the evaluation of a base. slots: rows that the engine generates at once, 0: chosen."""
    flags = {"--source": spec.source, "--tag": base, "--out-tag": f"{spec.name}-{base}"}
    if slots:
        flags |= {"--slots": str(slots), "--out-tag": f"{flags['--out-tag']}-slots-{slots}"}
    return _evaluation_step(spec, spec.parent_of(base), flags, spec.open_tasks)


def base_steps(spec: Spec, base: str) -> list[Step]:
    """Return all evaluations of a base: as a chat, of bits per byte, and on tasks of CORE."""
    core = [name for name in spec.core_tasks if name in spec.open_tasks]
    steps = [base_step(spec, base)] if any(map(is_chat_task, spec.open_tasks)) else []
    parent, out_tag = spec.parent_of(base), f"{spec.name}-{base}"
    steps += _loss_evaluation(spec, parent, spec.source, base, out_tag)
    return steps + _core_evaluation(spec, parent, spec.source, base, out_tag, core)


def run_steps(spec: Spec, run: Run, is_held_out: bool = False) -> list[Step]:
    """Return training, or merging, and evaluation of a run. is_held_out: on the held-out benchmarks.

    There are up to three evaluations: of tasks that are conversations, which base models cannot answer, of bits per
    byte, and of tasks of CORE.
    """
    tag = spec.tag_of(run)
    first = _training_step(spec, run) if run.mix in spec.mixes else _merge_step(spec, run)
    source = SOURCES[spec.stage]
    out_tag = f"{tag}{HELD_OUT}" if is_held_out else tag
    flags = {"--source": source, "--tag": tag, "--out-tag": out_tag}
    tasks = spec.held_out if is_held_out else spec.open_tasks
    core = [name for name in tasks if name in spec.core_tasks]
    steps = [first]
    if not spec.is_pretraining and any(map(is_chat_task, tasks)):
        steps.append(_evaluation_step(spec, first.output, flags, tasks))
    if not is_held_out:
        steps += _loss_evaluation(spec, first.output, source, tag, tag)
    return steps + _core_evaluation(spec, first.output, source, tag, out_tag, core)


def _training_step(spec: Spec, run: Run) -> Step:
    """Return the training of a run."""
    flags = spec.flags_of(run.mix)
    [(budget, amount)] = spec.budget.items()
    if budget == "tokens":
        amount //= int(flags["--total-batch-size"])
    tag = spec.tag_of(run)
    trained = STAGES[spec.stage]
    own = {"--tag": tag, "--seed": str(run.seed), BUDGETS[budget]: str(amount)}  # the seed may be 0
    # A rate is a factor of the stage's own, or of that in the flags.
    for flag, usual in trained.rates.items():
        fraction = flags.get(flag, usual)
        if fraction is None:
            fraction = _answer_lr_frac(spec, run.base)
        own[flag] = str(round(run.rate * float(fraction), 10))
    if spec.is_pretraining:
        own["--tokenizer-tag"] = run.base
    else:
        own |= {"--model-tag": run.base, "--source": spec.source, trained.mix: spec.words_of(run.mix)}
    if trained.scores_tasks:
        own[SCORE_FLAG] = "-1"
    return Step(
        f"{tag}-train",
        [_module_of(spec.stage), *flag_words(flags | own)],
        output=f"{spec.stage}/{tag}",
        parent=spec.parent_of(run.base),
        data=flags.get("--data", "auto") if spec.is_pretraining else "",
        local=spec.files.get(run.mix, ()),
        launch=[*TORCHRUN, f"--nproc_per_node={spec.gpus}"] if spec.gpus > 1 else (),
        quiet=True,
    )


def _answer_lr_frac(spec: Spec, base: str) -> float:
    """Return what a stage of answers multiplies its parent's rates by, if no flag says it."""
    settings: type[AnswerTuneSettings] = import_module(_module_of(spec.stage)).Config
    folder = base_dir() / spec.parent_of(base)
    is_public = saved_steps(folder) and newest_manifest(folder).get("public")
    return settings.public_lr_frac if is_public else settings.usual_lr_frac


def _module_of(stage: str) -> str:
    """Return the module of a stage's script."""
    return registry.STAGES.get(stage, f"scripts.{stage}")


def _merge_step(spec: Spec, run: Run) -> Step:
    """Return the merge of the runs of several mixes."""
    name, _, method = run.mix.rpartition(":")
    tag = spec.tag_of(run)
    weights = spec.merges[name]
    runs = [replace(run, mix=mix) for mix in weights]
    models = [spec.tag_of(one) for one in runs]
    if method != "soup":  # which chooses the weights itself
        models = [f"{spec.tag_of(one)}:{weights[one.mix]:g}" for one in runs]
    flags = {"--tag": tag, "--source": SOURCES[spec.stage], "--models": ",".join(models), "--method": method}
    if method == "task":
        flags["--scale"] = str(len(models))  # the sum of the changes, not their mean
    if method == "soup":
        flags |= {"--dev": "|".join(filter(is_chat_task, spec.dev))} | spec.answering
    return Step(
        f"{tag}-merge",
        ["tracks.lab.merge", *flag_words(flags)],
        output=f"merge/{tag}",
        parent=f"{spec.stage}/{spec.tag_of(runs[0])}",
        local=[str(spec.outcome_of(one)) for one in runs],
        quiet=True,
    )


def _evaluation_step(spec: Spec, parent: str, flags: Mapping[str, str], tasks: Sequence[str]) -> Step:
    """Return the evaluation of a model. parent: the stage with its outcome. flags: which one, and the folder."""
    out_tag = flags["--out-tag"]
    return Step(
        f"{out_tag}-eval",
        [
            "scripts.chat_eval",
            *flag_words({**flags, "--tasks": "|".join(filter(is_chat_task, tasks))} | spec.answering),
        ],
        output=f"chat_eval_{flags['--source']}/{out_tag}",
        parent=parent,
        quiet=True,
    )


def _loss_evaluation(spec: Spec, parent: str, source: str, tag: str, out_tag: str) -> list[Step]:
    """Return the evaluation of a model in bits per byte, if the lab asks for it. parent: stage with its outcome."""
    if BPB not in spec.dev:
        return []
    flags = {"--tag": tag}
    if not spec.is_pretraining:
        flags |= {"--source": source, "--out-tag": out_tag, "--splits": TEXT_SPLIT}
        if "--max-seq-len" in spec.own_flags:  # the context of a public model is much longer
            flags["--max-seq-len"] = spec.own_flags["--max-seq-len"]
    if spec.text:  # else that of the model
        flags["--data"] = _text_of(spec.text)
    size = spec.own_flags.get("--eval-bytes") if spec.is_pretraining else spec.text_bytes
    if size:
        flags["--eval-bytes"] = str(size)
    command = ["scripts.base_loss", *flag_words(flags)]
    output = f"{loss_stage(source)}/{out_tag}"
    return [Step(f"{out_tag}-loss", command, output=output, parent=parent, data=flags.get("--data", ""), quiet=True)]


def _core_evaluation(spec: Spec, parent: str, source: str, tag: str, out_tag: str, tasks: Sequence[str]) -> list[Step]:
    """Return the evaluation of a model on tasks of CORE; none without tasks. parent: the stage with its outcome."""
    if not tasks:
        return []
    flags = {"--tag": tag, "--source": source, "--tasks": ",".join(tasks), "--out-tag": out_tag}
    if "max_problems" in spec.sampling:
        flags["--max-per-task"] = str(spec.sampling["max_problems"])
    name = f"{out_tag}-eval" if spec.is_pretraining else f"{out_tag}-core"
    command = ["scripts.base_eval", *flag_words(flags)]
    return [Step(name, command, output=f"{core_stage(source)}/{out_tag}", parent=parent, quiet=True)]


# ---- the plan ----


def has_result(spec: Spec, step: Step) -> bool:
    """Return True if a step of the lab has an outcome of its command, and of its model, as they are now.

    The lab repeats the others, but for two: answers to held-out questions, which only --final asks for, and a merge one
    of whose runs was trained again and failed.
    """
    record = saved_record(stage_dir("lab", spec.name) / f"{step.name}.json")
    if not step.outcome.exists() or reason_to_repeat(record, step, parent_hashes(step)):
        return False
    return not step.output.startswith("merge/") or all(map(os.path.exists, step.local))


def expectations(
    spec: Spec, questions: Mapping[str, int], planned: Callable[[Sequence[Run]], float | None]
) -> list[str]:
    """Return the plan in words.

    questions: number of each development benchmark. planned: the seconds that runs train, as `planned_training`.
    """
    steps = {run: run_steps(spec, run) for run in spec.runs}
    finished = [run for run in spec.runs if all(has_result(spec, step) for step in steps[run])]
    waiting = [run for run in spec.runs if run not in finished]
    if finished:
        done = [[Outcome.load(step.outcome) for step in steps[run]] for run in finished]
        training = sum(trained.seconds for trained, *_ in done)
        evaluation = sum(scored.seconds for _, *scores in done for scored in scores) / len(finished)
        # The others train as much longer or shorter than these as is planned, if a plan knows.
        here, there = planned(finished), planned(waiting)
        ratio = there / here if here and there is not None else len(waiting) / len(finished)
        seconds = training * ratio + evaluation * len(waiting)
        total = training + evaluation * len(finished)
        of_one = (total + seconds) / len(spec.runs)
        spent = cost([outcome for outcomes in done for outcome in outcomes])
        dollars = "" if spent is None else f", ${spent * seconds / total:,.2f}"
        left = f"about {duration(seconds)} left, one run after the other{dollars}"
    else:
        training = planned(spec.runs)
        evaluation = _seconds_of_evaluation(spec)
        left = "the time of training is not known; "
        if training is not None:
            left = f"about {duration(training)} of training, one run after the other, as --dry-run estimates; "
        if evaluation is None:
            left += "evaluations are not included"
        else:
            left += f"and about {duration(len(spec.runs) * evaluation)} of evaluations, as those of the bases took"
        of_one = None if training is None else training / len(spec.runs) + (evaluation or 0.0)
    size = disk_needed(spec, [*spec.runs, *spec.more_runs, *spec.confirming_runs, *spec.merged_runs])
    lines = [
        f"{len(finished)} of {len(spec.runs)} runs are finished",
        left,
        f"{size / 1e9:.1f} GB of checkpoints are to come",
    ]
    if spec.more_seeds:
        count = len(spec.more_runs)
        most = _at_most(count, of_one)
        lines.append(f"up to {count} more runs follow, for mixes that are not distinguishable by then: {most}")
    if spec.confirm_seeds:
        count = len(spec.confirming_runs)
        most = _at_most(count, of_one)
        lines.append(f"up to {count} more confirm mixes that are to be kept, on seeds of their own: {most}")
    if spec.merges:
        lines.append(f"{len(spec.merged_runs)} merges follow, whose time is not included")
    tests = len(spec.bases) * len(spec.rates) * (len(spec.mixes) - 1) * len(spec.dev) * spec.verdict_rounds
    if BPB in spec.dev:
        shown = "none, it needs two seeds"
        if spec.samples > 1:
            least = significance.smallest_of_pairs(spec.samples, max(tests, 1))
            shown = f"{least:.1f} times the deviation of a difference between seeds, which is measured"
        lines.append(f"{BPB}: smallest difference that can be shown: {shown}")
    for name, number in questions.items():
        is_chosen = name in spec.core_tasks or TASKS[name.partition("~")[0]].task.kind == "categorical"
        repeats = 1 if is_chosen else spec.repeats  # the likeliest choice is the same again
        # Seeds are pooled over all arms that are alike, if more than two are; the differences of trainings are not.
        alone, pooled = (
            significance.smallest_difference(number, spec.samples, repeats, arms, max(tests, 1))
            for arms in (2, max(len(spec.mixes), 2))
        )
        shown = f"{alone:.1f} points"
        if spec.fewest_trainings == 1 and pooled < alone:
            shown = f"{pooled:.1f} points, or {alone:.1f} where the seeds of no other mix vary like those of the two"
        if number < 2 or spec.samples < 2:
            shown = f"none, it needs two {'seeds' if spec.samples < 2 else 'questions'}"
        lines.append(f"{name}: {number:,.0f} questions; smallest difference that can be shown: {shown}")
    return [*lines, f"({significance.ASSUMED})"]


def _at_most(runs: int, seconds: float | None) -> str:
    """Return the time of some runs in words. seconds: of one, None if it is not known."""
    return "their time is not known" if seconds is None else f"at most about {duration(runs * seconds)}"


def _seconds_of_evaluation(spec: Spec) -> float | None:
    """Return the mean seconds of the bases' evaluations, which ask what a run's asks; None before they have ended."""
    if spec.is_pretraining:
        return None
    bases = [[step.outcome for step in base_steps(spec, base)] for base in spec.trainings]
    seconds = [
        sum(Outcome.load(path).seconds for path in paths) for paths in bases if all(path.exists() for path in paths)
    ]
    return fmean(seconds) if seconds else None


def planned_training(spec: Spec, runs: Sequence[Run]) -> float | None:
    """Return the seconds that some runs will train, as the script itself plans them; None if it does not know.

    Arms with as many steps are alike, so one of a base is planned; base models differ in size and data, and mixes in
    the steps for as many supervised tokens.
    """
    by_mix = spec.is_pretraining or "supervised" in spec.budget
    first = next(iter(spec.mixes))
    planned = [plan_of(spec, run if by_mix else replace(run, mix=first)) for run in runs]
    seconds = [plan["estimate"]["seconds"] for plan in planned]
    return None if None in seconds else sum(seconds)


def plan_of(spec: Spec, run: Run) -> Record:
    """Return the plan of a run's training, as the script itself makes it; those of an arm are alike."""
    # The tag and the seed change nothing, so the plan of an arm is made once.
    alike = replace(run, rate=1.0, seed=0)
    script, *flags = run_steps(spec, alike)[0].command
    return json.loads(_dry_run(script, tuple(flags), tuple(spec.devices.items())))


@lru_cache
def _dry_run(script: str, flags: tuple[str, ...], devices: tuple[tuple[str, str], ...]) -> str:
    """Return what a script prints of its plan, as JSON."""
    return check_flags(script, ["--json", *flags], dict(devices))


def disk_needed(spec: Spec, runs: Sequence[Run]) -> int:
    """Return the bytes of the checkpoints of those runs that are not trained."""
    return sum(disk_of(spec, run) for run in runs if not has_result(spec, run_steps(spec, run)[0]))


def disk_of(spec: Spec, run: Run) -> int:
    """Return the bytes of a run's checkpoint: as large as one of its base, of a public one with an optimizer's state.

    A merge has no such state.

    A base model itself: its weights in fp32, and the optimizer's state.
    """
    if spec.is_pretraining:
        plan = plan_of(spec, run)["plan"]
        return 4 * plan["counts"]["total"] + plan["state_bytes"]
    base = base_dir() / spec.parent_of(run.base)
    folders = [step_dir(base, step) for step in saved_steps(base)]
    size = max(sum(path.stat().st_size for path in folder.iterdir()) for folder in folders)
    is_trained = run.mix in spec.mixes
    lacks_state = newest_manifest(base).get("public")
    return size + (plan_of(spec, run)["plan"]["state_bytes"] if is_trained and lacks_state else 0)


# ---- looks at held-out benchmarks ----


def _ledger(spec: Spec) -> tuple[Path, Path]:
    """Return the paths of the ledger and of a copy that reveals tampering."""
    copy = base_dir() / "lab" / f"looks-{text_sha256(str(spec.path))[:16]}"
    return spec.path.with_suffix(".looks.txt"), copy


def looks(spec: Spec) -> list[Record]:
    """Return the looks in the ledger, a line each; a UserError if it is not as its copy.

    One of the two may be a line ahead, which a crash between the two writes leaves. That line counts, whichever has it.
    """
    path, copy = _ledger(spec)
    written, kept = (file.read_text().splitlines(keepends=True) if file.exists() else [] for file in (path, copy))
    found, other = (kept, written) if len(kept) > len(written) else (written, kept)
    if not copy.exists() or (found[: len(other)] == other and len(found) <= len(other) + 1):
        with suppress(json.JSONDecodeError):  # an edit too
            return list(map(json.loads, found))
    raise UserError(
        f"{path} was edited, or lacks several looks: the looks at held-out benchmarks can no longer be counted, so"
        " use other benchmarks, in a separate spec"
    )


def _write_looks(spec: Spec, found: Sequence[Record]) -> None:
    """Write the copy first: what is only in the ledger could be taken out of it again."""
    path, copy = _ledger(spec)
    write_jsonl(copy, found)
    write_jsonl(path, found)


def add_look(spec: Spec, recommendation: Path, runs: Sequence[Run]) -> int:
    """Add a look to the ledger, unless the last one had the same models; return the number of looks."""
    found = looks(spec)
    look = {
        "spec": read_sha256(spec.path),
        "recommendation": read_sha256(recommendation),
        "models": {spec.tag_of(run): Outcome.load(spec.outcome_of(run)).timestamp for run in runs},
    }
    path, copy = _ledger(spec)
    if copy.exists() and not (path.exists() and path.read_text() == copy.read_text()):
        _write_looks(spec, found)  # after a crash one of the two lacks the last look
    if look not in found[-1:]:
        found.append(look)
        _write_looks(spec, found)
    return len(found)
