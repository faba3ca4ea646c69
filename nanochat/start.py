"""The start of a run: everything that is decided before the model is built, complete and final.

`start_new` (from a plan) and `start_from_parent` (from another stage's model) compare a saved run with its command,
fill in the settings that were left open, and return a `Start`: shape, weights, tokenizer, batch, horizon, rates of each
optimizer group, schedules, data. The trainer (run.py) builds what it says; nothing is filled in or multiplied later.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Generic, NoReturn, Protocol, TypeVar

import torch

from nanochat.checkpoint import Checkpoint, learned_from
from nanochat.config import flag_of
from nanochat.data.corpus import Shards, default_shards, shards_for
from nanochat.errors import UserError
from nanochat.gpt import GPTConfig
from nanochat.log import Record, print0
from nanochat.models import config_of, find_model, new_model, tokenizer_of, weights_hash
from nanochat.param_groups import Rates, group_rates
from nanochat.runtime import DTYPES, Runtime
from nanochat.scaling import RunPlan, flops_per_token, plan_run, rate_scale, require_multiple, row_choices
from nanochat.schedules import Schedules, finetuning, pretraining
from nanochat.settings import (
    CHAT_TEMPERATURE,
    AnswerTuneSettings,
    FineTuneSettings,
    PretrainSettings,
    TrainingSettings,
    given,
)
from nanochat.stages import MODELS
from nanochat.tokenizer import Tokenizer

MOST_WARMUP = 0.1  # of a run's progress
Config = TypeVar("Config", bound=TrainingSettings, covariant=True)
Pretraining = TypeVar("Pretraining", bound=PretrainSettings)
FineTuning = TypeVar("FineTuning", bound=FineTuneSettings)


@dataclass(frozen=True)
class Resumed:
    """The checkpoint that a run goes on from, and what is new since."""

    checkpoint: Checkpoint
    changes: Mapping[str, tuple[Any, Any]]  # settings that --resume=STEP changes: name -> before, now
    extended: bool  # the run had finished, and is given more steps


@dataclass(frozen=True)
class Parent:
    """The model that a run begins with, or began with."""

    stage: str
    tag: str
    step: int  # a resumed run compares with the same weights
    sha256: str = ""  # of the weights, as the parent may be trained again; "" in checkpoints of earlier versions


@dataclass(frozen=True)
class Start(Generic[Config]):
    """Everything that training needs to know before the model is built."""

    folder: Path  # of the run
    config: Config  # no setting is None
    resumed: Resumed | None  # None: a new run
    # ---- model ----
    shape: GPTConfig
    weights: Checkpoint | int  # a checkpoint's, or the seed of new ones
    tokenizer: Tokenizer
    dtype: torch.dtype  # of activations
    in_fp8: bool
    compiled: bool  # the blocks are: the run is long enough to gain from it
    # ---- optimizer ----
    rates: Mapping[str, Rates]  # initial ones by group
    schedules: Schedules  # which multiply them
    warm: bool  # begins with the optimizer state in `weights`, a parent's
    grad_clip: float  # largest norm of the gradient; 0: no clipping
    # ---- batch and horizon ----
    batch: int  # tokens in a step, over all ranks
    row_length: int  # tokens
    row_choices: Sequence[int]  # for a micro-batch
    steps: int | None  # in the whole run; None: `seconds`, or else the source's progress ends it
    seconds: float | None
    flops_per_token: int  # in rows of this length
    # ---- for manifests ----
    parent: Parent | None  # None: the model is new
    tokenizer_record: Mapping[str, str]  # its tag and hash
    num_shards: Shards | None  # 0: the default; None: the run reads no text
    # [stage, name] of what the models before learned from; None: there are none.
    learned: Sequence[Sequence[str]] | None
    suggestions: Mapping[str, Sequence[str]]  # of the model before, see `chat.suggestions`; a new model has none
    public: Mapping[str, Any]  # where the first model came from, if it was not trained here
    changed_settings: Sequence[Record]  # by --resume=STEP, with the step

    @property
    def record(self) -> Record:
        """The start's part of a manifest."""
        record: Record = {
            "parent": asdict(self.parent) if self.parent else None,
            "tokenizer": dict(self.tokenizer_record),
        }
        if self.num_shards is not None:
            record["num_shards"] = self.num_shards
        if self.learned is not None:
            record["learned"] = self.learned
        if self.suggestions:
            record["suggestions"] = self.suggestions
        if self.public:
            record["public"] = self.public
        if self.changed_settings:
            record["changed_settings"] = self.changed_settings
        return record

    @property
    def rows(self) -> int:
        """Rows in a step, over all ranks."""
        return self.batch // self.row_length  # tokens -> rows


class OpenRun(Protocol[Config]):
    """What sources of batches use of an open run; run.Trainer is one."""

    @property
    def start(self) -> Start[Config]: ...

    @property
    def runtime(self) -> Runtime: ...


# ---- a new model ----


def start_new(
    folder: Path,
    config: Pretraining,
    plan: RunPlan,
    tokenizer: Tokenizer,
    saved: Checkpoint | None,
    runtime: Runtime,
) -> Start[Pretraining]:
    """Return the start of a run with a new model. folder: the run's, locked. saved: the checkpoint to resume from."""
    asked = config
    config = keep_changes(asked, saved)
    if config != asked:
        plan = plan_run(config, tokenizer.vocab_size, tokenizer.bos)
    row_length = plan.model.max_seq_len
    choices = row_choices(config.device_batch_size, plan.total_batch_size, row_length, runtime.world_size)
    saved_shape = config_of(saved.manifest) if saved else plan.model
    resumed = resume(saved, config, tokenizer)
    if saved_shape != plan.model:
        refuse_another_model(folder, saved_shape, plan.model)
    kept_rows = _kept_rows(saved, choices)
    flops = plan.flops_per_token * plan.total_batch_size
    compiled = config.compile and runtime.compiling_pays(flops, plan.steps, plan.seconds)
    # A resumed run keeps its shards, also with a longer horizon.
    kept = saved.manifest["num_shards"] if saved else 0
    # A clock gives no number of tokens: 0 leaves the choice to the corpus.
    shards = config.num_shards or kept or shards_for(config.data, plan.tokens or 0)
    if not shards and plan.tokens is None and (read := default_shards(config.data)):
        print0(
            f"data: {', '.join(read)}, read again when they end: --num-shards says how many, where a clock ends a run"
        )
    return Start(
        folder=folder,
        config=config,
        resumed=resumed,
        shape=plan.model,
        weights=saved or config.seed,  # saved weights win over new ones
        tokenizer=tokenizer,
        dtype=_saved_dtype(saved, runtime),
        in_fp8=config.fp8,
        compiled=compiled,
        rates=plan.rates,
        schedules=pretraining(config, plan.steps, MOST_WARMUP),
        warm=False,
        grad_clip=config.grad_clip or 0.0,
        batch=plan.total_batch_size,
        row_length=row_length,
        row_choices=kept_rows,
        steps=plan.steps,
        seconds=plan.seconds,
        flops_per_token=plan.flops_per_token,
        parent=None,
        tokenizer_record={"tag": config.tokenizer_tag, "hash": tokenizer.content_hash},
        num_shards=shards,
        learned=None,
        suggestions={},
        public={},
        changed_settings=_changes_so_far(resumed),
    )


# ---- another stage's model ----


def start_from_parent(
    folder: Path, config: FineTuning, rows: int, saved: Checkpoint | None, runtime: Runtime
) -> Start[FineTuning]:
    """Return the start of a run with another stage's model; a collective.

    folder: the run's, locked. rows: in a step, for a batch that is not counted in tokens. saved: the checkpoint to
    resume from; such a run does not need its parent any more.
    """
    config = keep_changes(config, saved)
    resumed = resume(saved, config)
    # A resumed run has everything that the parent gave.
    if saved:
        origin = saved
        parent = Parent(**saved.manifest["parent"])
    else:
        stage = MODELS[config.source]
        tag = config.model_tag or config.tag
        origin = find_model(stage, tag, -1, runtime, optimizer=config.warm_start)
        parent = Parent(stage, tag, origin.step, weights_hash(origin.manifest))
    manifest = origin.manifest
    if rows:
        require_multiple("answers of a step (--examples-per-step x --num-samples)", rows, runtime.world_size)
    if config.warm_start and not manifest["optimizer"]:  # an imported model
        raise UserError(f"{origin.path} has no optimizer state to start with: give --no-warm-start")
    config = inherit(config, manifest, is_own=saved is not None)  # no field is None from here on
    if rows:  # answers have different lengths: a step counts rows, each at most as long as the context
        config = replace(config, total_batch_size=rows * given(config.max_seq_len))
    shape = config_of(manifest)
    batch = given(config.total_batch_size)
    row_length = given(config.max_seq_len)
    flops = flops_per_token(new_model(shape), row_length)
    steps = None if config.num_iterations < 0 else config.num_iterations
    seconds = None if config.target_seconds < 0 else config.target_seconds
    return Start(
        folder=folder,
        config=config,
        resumed=resumed,
        shape=shape,
        weights=origin,
        tokenizer=tokenizer_of(origin),
        dtype=_saved_dtype(saved, runtime),
        in_fp8=False,
        compiled=config.compile and runtime.compiling_pays(flops * batch, steps, seconds),
        rates=group_rates(config, shape.width, rate_scale(batch), config.weight_decay, given(config.init_lr_frac)),
        schedules=finetuning(config, steps, MOST_WARMUP),
        warm=config.warm_start and saved is None,
        grad_clip=given(config.grad_clip),
        batch=batch,
        row_length=row_length,
        row_choices=_kept_rows(saved, row_choices(config.device_batch_size, batch, row_length, runtime.world_size)),
        steps=steps,
        seconds=seconds,
        flops_per_token=flops,
        parent=parent,
        tokenizer_record=manifest["tokenizer"],
        num_shards=None,
        learned=manifest.get("learned", []) if saved else learned_from(manifest),
        suggestions=manifest.get("suggestions", {}),
        public=manifest.get("public", {}),
        changed_settings=_changes_so_far(resumed),
    )


def batch_of(manifest: Record) -> int:
    """Return the tokens in a step of a run; exact, as all its steps were equally large."""
    return manifest["loop"]["tokens"] // manifest["loop"]["step"]


def inherit(config: FineTuning, manifest: Record, *, is_own: bool = False) -> FineTuning:
    """Return the config with every None replaced by the value in a checkpoint's manifest; prints the values found.

    is_own: the checkpoint is one of the run itself, not its parent's.
    """
    # A flag that is newer than the checkpoint had its default; a base model has no temperature for chats.
    usual = {one.name: one.default for one in fields(TrainingSettings)} | {"chat_temperature": CHAT_TEMPERATURE}
    parent = usual | manifest["config"]
    if parent["total_batch_size"] == -1:  # the parent chose the batch for its horizon
        parent = parent | {"total_batch_size": batch_of(manifest)}
    if isinstance(config, AnswerTuneSettings) and not is_own:  # the parent's own was for another objective
        fraction = config.public_lr_frac if manifest.get("public") else config.usual_lr_frac
        parent = parent | {"init_lr_frac": fraction}
    found = {name: parent[name] for name, value in asdict(config).items() if value is None}
    print0("inherited:", *(f"{name}={value}" for name, value in found.items()))
    config = replace(config, **found)
    limit = manifest["model"]["max_seq_len"]  # positions beyond were never trained
    if config.max_seq_len > limit:
        raise UserError(f"--max-seq-len={config.max_seq_len} is longer than the model's context, use at most {limit}")
    return config


# ---- both ----


def _kept_rows(saved: Checkpoint | None, choices: Sequence[int]) -> Sequence[int]:
    """Return the rows that a micro-batch may have; a resumed run keeps its number if it may."""
    if saved is None:
        return choices
    before = saved.manifest["loop"]["device_batch"]
    # Free memory may differ by now, and another size would change the rounding.
    return [before] if before in choices else choices


def _saved_dtype(saved: Checkpoint | None, runtime: Runtime) -> torch.dtype:
    """Return the precision that the run began with: `auto` may differ on another machine."""
    return DTYPES[saved.manifest["dtype"]] if saved else runtime.dtype


# ---- resuming ----


def keep_changes(config: Config, saved: Checkpoint | None) -> Config:
    """Return the config with the settings that --resume=STEP changed before, where it still has the original ones.

    So the command that began the run goes on with the changed settings, without repeating them.
    """
    if saved is None or isinstance(config.resume, int):
        return config
    original = {}
    newest = {}
    for change in saved.manifest.get("changed_settings", []):
        for name, (before, now) in change["settings"].items():
            original.setdefault(name, before)
            newest[name] = now
    kept = {name: value for name, value in newest.items() if getattr(config, name) == original[name]}
    return replace(config, **kept)


def resume(saved: Checkpoint | None, config: TrainingSettings, tokenizer: Tokenizer | None = None) -> Resumed | None:
    """Compare a checkpoint with the settings; UserError for a difference that a run must not have.

    With more steps a finished run goes on, and with --resume=STEP flags of the optimizer may differ. A setting that is
    None stays as it was, and so does a tokenizer that is None.
    """
    if saved is None:
        return None
    manifest = saved.manifest
    # More steps than it made, and than it was given: an evaluation may have ended it early.
    planned = max(saved.step, manifest["config"]["num_iterations"])
    is_longer = manifest["loop"]["progress"] >= 1 and config.num_iterations > planned
    differences = []
    of_optimizer = 0  # among them: settings that may change from a step on
    changes = {}
    for one in fields(config):
        value = getattr(config, one.name)
        # A flag that is newer than the checkpoint had its default.
        before = manifest["config"].get(one.name, one.default)
        if one.metadata["may_change"] or value in (None, before):
            continue
        group = one.metadata["group"]
        if group == "horizon" and is_longer:
            continue
        if group == "optimizer" and isinstance(config.resume, int):
            changes[one.name] = before, value
        else:
            differences.append(f"{flag_of(one.name)} was {before} and is {value}")
            if group == "optimizer":
                of_optimizer += 1
    if tokenizer and manifest["tokenizer"]["hash"] != tokenizer.content_hash:
        differences.append(f"the tokenizer {manifest['tokenizer']['tag']} was trained again")
    if differences:
        found = "; ".join(differences)
        ways = "Use another --tag, or start again: --resume=never"
        if of_optimizer == len(differences):
            ways = (
                f"Use another --tag, change it from this step on: --resume={saved.step}, or start again: --resume=never"
            )
        raise UserError(f"{saved.path.parent} holds another run: {found}. {ways}")
    return Resumed(saved, changes, is_longer)


def refuse_another_model(folder: Path, saved: GPTConfig, asked: GPTConfig) -> NoReturn:
    """Raise a UserError that names the differences between a saved model and the one that a command line asks for."""
    before, now = ({"kind": config.kind, **asdict(config)} for config in (saved, asked))
    found = [f"{name} {value} and not {now[name]}" for name, value in before.items() if now.get(name, value) != value]
    raise UserError(
        f"{folder} holds another run: its model has {', '.join(found)}. Use another --tag, or --resume=never"
    )


def _changes_so_far(resumed: Resumed | None) -> list[Record]:
    """Return all settings that were changed while the run trained, with the steps."""
    if resumed is None:
        return []
    changed = list(resumed.checkpoint.manifest.get("changed_settings", []))
    if resumed.changes:
        now = {name: list(pair) for name, pair in resumed.changes.items()}
        changed.append({"step": resumed.checkpoint.step, "settings": now})
    return changed
