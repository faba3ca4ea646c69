"""The one trainer: opens a run, finds its checkpoint, builds model and optimizer, trains, saves, writes the outcome.

with training("chat_sft", config) as trainer:
    source = ChatLoader(conversations, trainer.tokenizer, …)
    state = trainer.fit(source, next_token, evaluations)
    trainer.finish(state, {"Training rows": len(conversations)})
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import NoReturn

import torch

from nanochat import fp8, schedules
from nanochat.checkpoint import (
    MANIFEST,
    Checkpoint,
    Saver,
    build_model,
    check_free_space,
    empty_model,
    find_model,
    hold,
    learned_from,
    newest,
    set_aside,
    steps,
    tokenizer_of,
)
from nanochat.config import fixed_settings, flag_of
from nanochat.data.corpus import open_corpus, shards_for
from nanochat.dataloader import BatchSource, TextLoader, require_multiple
from nanochat.gpt import GPT, GPTConfig
from nanochat.log import MetricLog, Record, format_value, print0
from nanochat.models import config_of, record_of
from nanochat.objectives import Objective
from nanochat.optim import Optimizer
from nanochat.outcome import Outcome, run_metrics, training_curves
from nanochat.param_groups import build_groups
from nanochat.paths import stage_dir
from nanochat.runtime import COMPILING_SECONDS, DTYPES, Runtime, setup, stop_requests, watch_gpu
from nanochat.scaling import RunPlan, dry_run, flops_per_token, plan_run, rate_scale, row_choices
from nanochat.settings import CHAT_TEMPERATURE, FineTuneSettings, PretrainSettings, TrainingSettings
from nanochat.sharding import Shards
from nanochat.stages import MODELS
from nanochat.tokenizer import Tokenizer
from nanochat.train import Action, Evaluation, State, TrainingLoop, largest_device_batch

Data = list[Record] | Record  # describes a run's data in its manifest

# Bytes in a checkpoint for each parameter: the fp32 weight, and at most two fp32 optimizer states.
CHECKPOINT_BYTES = 12

# ---- model and optimizer ----


def build(start: "_Start", runtime: Runtime, resumed: Checkpoint | None = None) -> tuple[GPT, Optimizer, int]:
    """Return a model, its optimizer, and the rows in a micro-batch."""
    config = start.config
    model = _build_model(start, runtime)
    if config.compile and _is_long_enough(start, model, runtime):
        model.compile_parts()
    optimizer = Optimizer(
        build_groups(model, config, rate_scale(start.batch), start.weight_decay),
        runtime.rank,
        runtime.world_size,
        polar_dtype=torch.bfloat16 if runtime.dtype == torch.bfloat16 else torch.float32,
        compile=runtime.device.type == "cuda",  # on a CPU it gains too little
        shards=model.shards,
    )
    length = config.max_seq_len
    choices = row_choices(config, start.batch, runtime.world_size)
    rows = choices[0]
    before = resumed.manifest["loop"]["device_batch"] if resumed else None
    if before in choices:
        # Free memory may differ by now, and another size would change the rounding.
        rows = before
    elif len(choices) > 1 and model.shards and runtime.device.type == "cuda":
        raise ValueError("--shard-weights needs a --device-batch-size: a rank that runs out of memory stops the others")
    elif len(choices) > 1:
        # Last, so that the search runs the step that will be trained, beside all states.
        rows = largest_device_batch(model, length, choices, runtime)
    optimizer.zero_grad()  # a search leaves gradients behind
    parts = start.batch // (rows * length * runtime.world_size)
    print0(f"device batch: {rows} rows of {length:,} tokens, {parts} of them in a step on each rank")
    return model, optimizer, rows


def _build_model(start: "_Start", runtime: Runtime) -> GPT:
    config = start.config
    if not config.shard_weights:
        model = build_model(start.shape, runtime, start.weights, config.checkpointing)
        if start.in_fp8:
            print0(f"fp8: {len(fp8.convert(model))} layers")
        return model
    if runtime.world_size == 1 or runtime.dtype == torch.float16:
        raise ValueError("--shard-weights needs several ranks (torchrun starts them), and bf16 or fp32: leave it out")
    model = empty_model(start.shape, runtime, config.checkpointing)
    if start.in_fp8:
        print0(f"fp8: {len(fp8.convert(model, device=runtime.device))} layers")
    is_saved = isinstance(start.weights, Checkpoint)
    with start.weights.reading_weights() if is_saved else nullcontext(partial(model.initial, start.weights)) as read:
        shards = Shards(model, read, runtime)
    shares = sum(len(piece.mine) for unit in shards.units.values() for piece in unit.pieces)
    print0(f"sharded weights: {shares:,} on each rank")
    return model


def _is_long_enough(start: "_Start", model: GPT, runtime: Runtime) -> bool:
    """Return True if a compiler pays in the whole run; an unknown length is long enough."""
    if start.steps is not None:
        return runtime.compiling_pays(flops_per_token(model) * start.batch * start.steps)
    is_short = start.seconds is not None and start.seconds <= COMPILING_SECONDS
    return not (is_short and runtime.device.type == "cpu")


# ---- resuming ----


def checkpoint_to_resume(folder: Path, config: TrainingSettings, tokenizer: Tokenizer | None) -> Checkpoint | None:
    """Return the checkpoint that a run resumes from; None for a new run.

    config.resume: auto (the newest that is intact, if its settings are the same) or never. A setting that is None stays
    as it was, and so does a tokenizer that is None.
    """
    if config.resume == "never":
        set_aside(folder)
    if not steps(folder):
        return None
    checkpoint = newest(folder)
    if checkpoint is None:
        raise ValueError(f"{folder} has checkpoints, but none is intact: --resume=never starts again")
    if "merge" in checkpoint.manifest:
        raise ValueError(f"{folder} holds a merge, which does not train on: start from it with --model-tag")
    differences = _differences(checkpoint, config, tokenizer)
    if differences:
        found = "; ".join(differences)
        raise ValueError(f"{folder} holds another run: {found}. Take another --tag, or start again: --resume=never")
    return checkpoint


def _differences(checkpoint: Checkpoint, config: TrainingSettings, tokenizer: Tokenizer | None) -> list[str]:
    """Return a phrase for each fixed setting that the run did not have when it was saved."""
    saved = checkpoint.manifest["config"]
    longer = _is_longer(checkpoint, config)
    differences = []
    for name, value in fixed_settings(config).items():
        if longer and config.__dataclass_fields__[name].metadata["group"] == "horizon":
            continue
        if value is not None and value != saved.get(name, value):
            differences.append(f"{flag_of(name)} was {saved[name]} and is {value}")
    if tokenizer and checkpoint.manifest["tokenizer"]["hash"] != tokenizer.content_hash:
        differences.append(f"the tokenizer {checkpoint.manifest['tokenizer']['tag']} was trained again")
    return differences


def _is_longer(checkpoint: Checkpoint, config: TrainingSettings) -> bool:
    """Return True if a finished run is given more steps."""
    return checkpoint.manifest["loop"]["progress"] >= 1 and config.num_iterations > checkpoint.step


def refuse_another_model(resumed: Checkpoint, model: GPTConfig) -> NoReturn:
    """Raise a ValueError that names the differences between a saved model and the one that a command line asks for."""
    saved, asked = ({"kind": config.kind, **asdict(config)} for config in (config_of(resumed.manifest), model))
    found = [
        f"{name} {saved.get(name)} and not {asked.get(name)}"
        for name in saved | asked
        if saved.get(name) != asked.get(name)
    ]
    folder = resumed.path.parent
    raise ValueError(
        f"{folder} holds another run: its model has {', '.join(found)}. Use another --tag, or --resume=never"
    )


# ---- the start of a run ----


def plan_with_tokenizer(config: PretrainSettings) -> tuple[RunPlan, Tokenizer | None]:
    """Return the plan of a new model, and its tokenizer; prints the plan, and for a dry run its cost too.

    A dry run needs shapes alone, so no GPU, corpus or tokenizer has to be there.
    """
    vocabulary = stage_dir("tok_train", config.tokenizer_tag) / "tokenizer.json"
    if config.dry_run and not vocabulary.exists():
        tokenizer = None
        plan = plan_run(config, None)  # assumes a size of the vocabulary
    else:
        tokenizer = Tokenizer.load(vocabulary)
        plan = plan_run(config, tokenizer.vocab_size, tokenizer.bos)
    if not config.json:  # for programs: nothing else on stdout
        print0(*plan.notes, *(f"{name}: {format_value(value)}" for name, value in plan.summary.items()), sep="\n")
    if config.dry_run:
        print0(*dry_run(plan, config), sep="\n")
    return plan, tokenizer


@dataclass(frozen=True)
class _Start:
    """Everything that training needs to know about a model before it is built."""

    config: TrainingSettings  # without None
    shape: GPTConfig
    weights: Checkpoint | int  # a checkpoint's, or the seed of new ones
    tokenizer: Tokenizer
    record: Record  # for manifests: parent and tokenizer
    batch: int  # tokens in a step
    steps: int | None
    seconds: float | None
    weight_decay: float
    schedules: schedules.Table
    in_fp8: bool = False


def _start_new(
    config: TrainingSettings,
    plan: RunPlan,
    tokenizer: Tokenizer,
    resumed: Checkpoint | None,
) -> _Start:
    """Return the start for a run with a new model."""
    if resumed and config_of(resumed.manifest) != plan.model:
        refuse_another_model(resumed, plan.model)
    return _Start(
        config=config,
        shape=plan.model,
        weights=resumed or config.seed,  # saved weights win over new ones
        tokenizer=tokenizer,
        record={"parent": None, "tokenizer": {"tag": config.tokenizer_tag, "hash": tokenizer.content_hash}},
        batch=plan.total_batch_size,
        steps=plan.steps,
        seconds=plan.seconds,
        weight_decay=config.weight_decay * plan.decay_scale,  # for this batch and horizon
        schedules=schedules.pretraining(config, plan.steps),
        in_fp8=config.fp8,
    )


def _start_from_parent(config: FineTuneSettings, rows: int, resumed: Checkpoint | None, runtime: Runtime) -> _Start:
    """Return the start for a run with another stage's model; a resumed run needs no parent any more."""
    parent = {"stage": MODELS[config.source], "tag": config.model_tag or config.tag}
    # A resumed run has everything that the parent gave.
    origin = resumed or find_model(parent["stage"], parent["tag"], -1, runtime)
    manifest = origin.manifest
    if rows:
        require_multiple("answers of a step (--examples-per-step x --num-samples)", rows, runtime.world_size)
    if config.warm_start and not manifest["optimizer"]:  # an imported model
        raise ValueError(f"{origin.path} has no optimizer state to start with: give --no-warm-start")
    config = inherit(config, manifest)  # no field is None from here on
    # Rollouts count rows, at most as long as the context.
    batch = rows * config.max_seq_len if rows else config.total_batch_size
    return _Start(
        config=replace(config, total_batch_size=batch),
        shape=config_of(manifest),
        weights=origin,
        tokenizer=tokenizer_of(origin),
        record={
            "parent": manifest["parent"] if resumed else parent | {"step": origin.step},
            "tokenizer": manifest["tokenizer"],
            "learned": manifest.get("learned", []) if resumed else learned_from(manifest),  # by the models before
        },
        batch=batch,
        steps=None if config.num_iterations < 0 else config.num_iterations,
        seconds=None if config.target_seconds < 0 else config.target_seconds,
        weight_decay=config.weight_decay,
        schedules=schedules.finetuning(config),
    )


def inherit(config: FineTuneSettings, manifest: Record) -> FineTuneSettings:
    """Return the config with every None replaced by the value in a checkpoint's manifest; prints the values found."""
    # A base model, or one of an earlier version, has no temperature for chats.
    parent, loop = {"chat_temperature": CHAT_TEMPERATURE} | manifest["config"], manifest["loop"]
    if parent["total_batch_size"] == -1:  # the parent chose the batch for its horizon
        parent = parent | {"total_batch_size": loop["tokens"] // loop["step"]}  # exact: all steps were equally large
    found = {name: parent[name] for name, value in asdict(config).items() if value is None}
    print0("inherited:", *(f"{name}={value}" for name, value in found.items()))
    config = replace(config, **found)
    limit = manifest["model"]["max_seq_len"]  # positions beyond were never trained
    if config.max_seq_len > limit:
        raise ValueError(f"--max-seq-len={config.max_seq_len} is longer than the model's context, take at most {limit}")
    return config


# ---- the trainer ----


@contextmanager
def training(
    stage: str,
    config: TrainingSettings,
    plan: RunPlan | None = None,
    tokenizer: Tokenizer | None = None,
    rows: int = 0,
) -> Iterator["Trainer"]:
    """Open a run of a stage: lock its folder, find its checkpoint or its parent's, build model and optimizer.

    plan, tokenizer: for a new model; without them `config` is FineTuneSettings and names a parent. rows: in a step, for
    a batch that is not counted in tokens.
    """
    folder = stage_dir(stage, config.tag)
    outcome = Outcome.begin(stage, config.tag, config)  # the clock of the stage starts
    with setup(config.device_type, config.dtype, config.attention) as runtime, ExitStack() as stack:
        runtime.broadcast(lambda: stack.enter_context(hold(folder)))  # no other run may use the folder
        resumed = runtime.broadcast(lambda: checkpoint_to_resume(folder, config, tokenizer))  # one rank reads the files
        if plan:
            start = _start_new(config, plan, tokenizer, resumed)
        else:
            start = _start_from_parent(config, rows, resumed, runtime)
        if resumed:
            runtime = replace(runtime, dtype=DTYPES[resumed.manifest["dtype"]])  # `auto` may differ on another machine
        model, optimizer, device_rows = build(start, runtime, resumed)
        if not plan:
            # Schedules multiply the initial rate.
            for group in optimizer.groups:
                group.initial_lr *= config.init_lr_frac
            # A run that resumes loads its own states later, in `fit`.
            if config.warm_start and not resumed:
                optimizer.load_state_tensors(start.weights.optimizer_state)
        log = stack.enter_context(MetricLog(folder, config.run, asdict(start.config)))
        yield Trainer(stage, folder, start, outcome, runtime, log, resumed, model, optimizer, device_rows)


@dataclass
class Trainer:
    """An open run: its folder is locked, model and optimizer are built."""

    stage: str
    folder: Path
    start: _Start
    outcome: Outcome
    runtime: Runtime
    log: MetricLog
    resumed: Checkpoint | None
    model: GPT
    optimizer: Optimizer
    device_rows: int  # in a micro-batch

    @property
    def config(self) -> TrainingSettings:
        """The settings, with the values inherited from the parent."""
        return self.start.config

    @property
    def tokenizer(self) -> Tokenizer:
        return self.start.tokenizer

    @property
    def tokenizer_tag(self) -> str:
        return self.start.record["tokenizer"]["tag"]

    @property
    def rows(self) -> int:
        """Rows in a step, over all ranks."""
        return self.start.batch // self.config.max_seq_len  # tokens -> rows

    def text_loader(self) -> TextLoader:
        """Return the source of a new model's batches: rows of a corpus with enough text for the run."""
        # A resumed run keeps its shards, also with a longer horizon.
        kept = self.resumed.manifest["num_shards"] if self.resumed else 0
        # A clock gives no number of tokens: 0 leaves the choice to the corpus.
        tokens = (self.start.steps or 0) * self.start.batch
        shards = self.config.num_shards or kept or shards_for(self.config.data, tokens)
        self.start.record["num_shards"] = shards
        return TextLoader(
            open_corpus(self.config.data, shards),
            self.tokenizer,
            self.rows,
            self.config.max_seq_len,
            seed=self.config.seed,
            lanes=self.config.lanes,
            rank=self.runtime.rank,
            world_size=self.runtime.world_size,
            device=self.runtime.device,
        )

    def fit(
        self,
        source: BatchSource,
        objective: Objective,
        evaluations: Sequence[Evaluation] = (),
        *,
        data: Data | None = None,
        tasks: Callable[[], Record] = dict,
        after_step: Sequence[Action] = (),
    ) -> State:
        """Train to the end of the horizon, from the start or from the checkpoint; returns the state.

        source: a context manager too. data: describes it in the manifest, or else `tasks`, which returns rows and file
        hashes of each task. after_step: as in TrainingLoop.
        """
        if data is None:  # one rank reads the files and hashes
            data = source.state_dict()["setting"] | {"tasks": self.runtime.broadcast(tasks)}
        # The last save ends inside `stop_requests`: a second signal ends it too.
        with stop_requests() as requests, source, self._saving(source, data) as save:
            loop = TrainingLoop(
                model=self.model,
                source=source,
                objective=objective,
                optimizer=self.optimizer,
                runtime=self.runtime,
                log=self.log,
                config=self.config,
                state=self._restore(source, data),
                schedules=self.start.schedules,
                device_batch=self.device_rows,
                flops_per_token=flops_per_token(self.model),
                steps=self.start.steps,
                seconds=self.start.seconds,
                after_step=[lambda state: fp8.requantize(self.model), *after_step],
            )
            loop.run(evaluations, save, requests)
        return loop.state

    def finish(self, state: State, metrics: Record) -> None:
        """Write the outcome of a run that has ended; print why there is none otherwise."""
        if state.stop:
            print0(f"stopped by {state.stop} after step {state.step:,}: run the same command again to resume")
            return
        is_old = self.resumed is not None and self.resumed.step == state.step
        if is_old and (self.folder / "outcome.json").exists():  # else a crash came before writing
            print0(f"the run ended at step {state.step:,}: nothing is left to train")
            return
        if self.runtime.rank > 0:  # one writer is enough
            return
        self.outcome.config = asdict(self.config)
        self.outcome.metrics = {**metrics, **run_metrics(state, self.runtime)}
        self.outcome.curves = training_curves(self.log.path)  # also from before a resume
        # The manifest has the hashes for all other files.
        self.outcome.add_artifact(self.folder / f"step_{state.step:06d}" / MANIFEST)
        self.outcome.write()

    def _restore(self, source: BatchSource, data: Data) -> State:
        """Return the state to train from; optimizer and source are as they were saved.

        Random generators are not: all of them start from a seed and a position.
        """
        if self.resumed is None:
            self.log.resume(-1)  # marks old records as another run's
            return State()
        manifest = self.resumed.manifest
        if manifest["loop"].keys() != State.__dataclass_fields__.keys():
            raise ValueError(
                f"{self.folder}: another version of this code has begun the run: start it again with --resume=never"
            )
        before = manifest["data"], manifest["source"]["setting"]
        if before != (data, source.state_dict()["setting"]):
            raise ValueError(f"{self.folder}: the data is not what the run began with: put it back, or --resume=never")
        # The model has its weights since it was built.
        self.optimizer.load_state_tensors(self.resumed.optimizer_state)
        source.load_state_dict(manifest["source"])  # even in the middle of an epoch
        self.log.resume(self.resumed.step)
        if _is_longer(self.resumed, self.config):
            # The learning rate of the finished run has fallen already, and rises again.
            step, steps = self.resumed.step, self.config.num_iterations
            rate = self.start.schedules["lr"]
            # A step has the rate of its start; the end of a schedule does not depend on its length.
            old, new = rate(1 - 1 / step, step - 1), rate(step / steps, step)
            print0(f"horizon: {step:,} -> {steps:,} steps; learning rate x {old:.4g} -> x {new:.4g}, then as planned")
            self.log.write("horizon", step, steps_before=step, steps_after=steps, lrm_before=old, lrm_after=new)
            (self.folder / "outcome.json").unlink(missing_ok=True)  # of the shorter run
        return State(**manifest["loop"])

    @contextmanager
    def _saving(self, source: BatchSource, data: Data) -> Iterator[Action]:
        """Yield a function that saves a checkpoint: a collective. The last one is on disk when the block ends."""
        # Refuse to start without room for the checkpoints of this run: one is written before an old one goes.
        copies = max(1, self.config.keep_last + 1 - len(steps(self.folder)))
        parameters = sum(parameter.numel() for parameter in self.model.parameters())
        check_free_space(self.folder, copies * CHECKPOINT_BYTES * parameters)
        # Manifest entries shared by all checkpoints.
        record = self.start.record | {
            "stage": self.stage,
            "data": data,
            "config": fixed_settings(self.config),
            "dtype": self.runtime.dtype_name,
            "model": record_of(self.model.config),
        }
        runtime = self.runtime
        saver = Saver(self.folder, runtime.rank, runtime.world_size, self.config.keep_last, runtime.store)

        def save(state: State) -> None:
            uses = [state.gpu_use, *runtime.all_gather(take_gpu_use())]
            # A part would look like the whole.
            state.gpu_use = None if None in uses else [sum(figures) for figures in zip(*uses, strict=True)]
            # The optimizer's states are gathered a parameter at a time, while they are copied.
            merged = source.merge(runtime.all_gather(source.state_dict()))  # works for another number of ranks too
            progress = {"loop": asdict(state), "source": merged}
            weights = self.model.shards or self.model.state_dict()  # both have `items`
            saver.save(state.step, weights, self.optimizer.state_tensors(), record | progress)

        with saver, watch_gpu(runtime.device) as take_gpu_use:
            yield save
