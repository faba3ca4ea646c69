"""The one trainer: opens a run, builds model and optimizer as its start says, trains, saves, writes the outcome.

with tuning("chat_sft", config) as trainer:
    source = open_chats(trainer, conversations, supervise="assistant")
    state = trainer.fit(source, next_token, evaluations)
    trainer.finish(state, {"Training rows": len(conversations)})
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Generic

import torch

from nanochat import registry
from nanochat.checkpoint import MANIFEST, Checkpoint, Saver, check_free_space, hold, set_aside, to_resume
from nanochat.config import fixed_settings, flag_of
from nanochat.dataloader import BatchSource, DataRecord
from nanochat.errors import UserError
from nanochat.flash_packages import kernel_note
from nanochat.gpt import GPT
from nanochat.log import MetricLog, Record, print0
from nanochat.metrics import run_metrics, training_curves
from nanochat.models import build_model, record_of
from nanochat.objectives import ChangingObjective, Objective
from nanochat.optim import Optimizer
from nanochat.outcome import Outcome
from nanochat.param_groups import build_groups
from nanochat.paths import saved_steps
from nanochat.runtime import Runtime, keep_freed_memory, setup, stop_requests
from nanochat.scaling import RunPlan
from nanochat.settings import TrainingSettings
from nanochat.start import Config, FineTuning, Pretraining, Start, start_from_parent, start_new
from nanochat.statistics import Metrics
from nanochat.tokenizer import Tokenizer
from nanochat.train import ENDED, Action, Evaluation, LoopSettings, State, largest_device_batch, new_loop

# Bytes in a checkpoint for each parameter: the fp32 weight, and at most two fp32 optimizer states.
CHECKPOINT_BYTES = 12


@contextmanager
def training(stage: str, config: Pretraining, plan: RunPlan, tokenizer: Tokenizer) -> "Iterator[Trainer[Pretraining]]":
    """Open a run with a new model: lock its folder, find its checkpoint, build model and optimizer."""
    with _opened(stage, config) as (outcome, runtime, saved):
        start = start_new(outcome.folder, config, plan, tokenizer, saved, runtime)
        with _built(start, outcome, runtime) as trainer:
            yield trainer


@contextmanager
def tuning(stage: str, config: FineTuning, rows: int = 0) -> "Iterator[Trainer[FineTuning]]":
    """Open a run with another stage's model, as `training` does. rows: in a step, if it is not counted in tokens."""
    with _opened(stage, config) as (outcome, runtime, saved):
        start = start_from_parent(outcome.folder, config, rows, saved, runtime)
        with _built(start, outcome, runtime) as trainer:
            yield trainer


@contextmanager
def _opened(stage: str, config: TrainingSettings) -> Iterator[tuple[Outcome, Runtime, Checkpoint | None]]:
    """Start the clock of a stage, join the ranks, and keep other runs out of the folder.

    Yields the checkpoint to resume from, too.
    """
    outcome = Outcome.begin(stage, config.tag, config)
    with setup(config.device_type, config.dtype, config.attention) as runtime, ExitStack() as stack:
        if runtime.device.type == "cpu":
            keep_freed_memory()
        runtime.broadcast(lambda: stack.enter_context(hold(outcome.folder)))
        # One rank reads the files.
        saved = runtime.broadcast(lambda: to_resume(outcome.folder, config.resume))
        yield outcome, runtime, saved


@contextmanager
def _built(start: Start[Config], outcome: Outcome, runtime: Runtime) -> "Iterator[Trainer[Config]]":
    """Build what a start says, and open the log."""
    runtime = replace(runtime, dtype=start.dtype)
    model, optimizer, device_rows = build(start, runtime)
    config = start.config
    with MetricLog(start.folder, config.run, asdict(config), tracker=config.tracker) as log:
        yield Trainer(start, outcome, runtime, log, model, optimizer, device_rows)


def build(start: Start, runtime: Runtime) -> tuple[GPT, Optimizer, int]:
    """Return a run's model, its optimizer, and the rows in a micro-batch."""
    config = start.config
    model = build_model(
        start.shape,
        runtime,
        start.weights,
        checkpointing=config.checkpointing,
        in_fp8=start.in_fp8,
        shard_weights=config.shard_weights,
        row_length=start.row_length,
    )
    if config.attention == "auto" and (note := kernel_note(model.attention, runtime)):
        print0(note)
    if start.compiled:
        model.compile_parts()
    optimizer = Optimizer(
        build_groups(model, start.rates),
        runtime.rank,
        runtime.world_size,
        polar_dtype=torch.bfloat16 if runtime.dtype == torch.bfloat16 else torch.float32,
        compile=runtime.device.type == "cuda",  # on a CPU it gains too little
        stacking=model.shards,
    )
    length = start.row_length
    rows = start.row_choices[0]
    if len(start.row_choices) > 1:
        if model.shards and runtime.device.type == "cuda":
            raise UserError(
                "--shard-weights needs a --device-batch-size: a rank that runs out of memory stops the others"
            )
        # Last, so that the search runs the step that will be trained, beside all states.
        rows = largest_device_batch(model, length, start.row_choices, runtime)
    optimizer.zero_grad()  # a search leaves gradients behind
    parts = start.batch // (rows * length * runtime.world_size)
    print0(f"device batch: {rows} rows of {length:,} tokens, {parts} of them in a step on each rank")
    if start.warm:
        assert isinstance(start.weights, Checkpoint)
        optimizer.load_state_tensors(start.weights.optimizer_state)
    return model, optimizer, rows


SAME_FILES = "let each machine have the same files, and name them the same (--data, --mixture, --task, --pairs)"


def _contents(origin: DataRecord) -> DataRecord:
    """Return where data come from without the names of tasks' files, which may lie elsewhere on another machine."""
    if isinstance(origin, list):
        return origin
    found = dict(origin)
    for part in ("tasks", "replay"):
        tasks = origin.get(part, {}).items()
        found[part] = {name: [task["rows"], sorted(task["files"].values())] for name, task in tasks}
    return found


@dataclass(frozen=True)
class Trainer(Generic[Config]):
    """An open run: its folder is locked, model and optimizer are built."""

    start: Start[Config]
    outcome: Outcome
    runtime: Runtime
    log: MetricLog
    model: GPT
    optimizer: Optimizer
    device_rows: int  # in a micro-batch

    @property
    def config(self) -> Config:
        """The settings, with the values inherited from the parent."""
        return self.start.config

    @property
    def folder(self) -> Path:
        return self.start.folder

    @property
    def resumed(self) -> Checkpoint | None:
        """The checkpoint that the run goes on from."""
        return self.start.resumed.checkpoint if self.start.resumed else None

    @property
    def tokenizer(self) -> Tokenizer:
        return self.start.tokenizer

    @property
    def tokenizer_tag(self) -> str:
        return self.start.tokenizer_record["tag"]

    def fit(
        self,
        source: BatchSource,
        objective: Objective | ChangingObjective,
        evaluations: Sequence[Evaluation] = (),
        after_step: Sequence[Action] = (),
        record: Record | None = None,
    ) -> State:
        """Train to the end of the horizon, from the start or from the checkpoint; returns the state.

        source: a context manager too. after_step: called in order when the weights have changed. record: further
        entries of the manifests.
        """
        self.compare_ranks(source)
        data, *others = self.runtime.on_each_machine(source.origin)  # one rank reads files and hashes
        if any(_contents(other) != _contents(data) for other in others):
            raise UserError(f"machines find other data than that of rank 0: {SAME_FILES}")
        try:
            return self._train(source, objective, evaluations, after_step, data, record or {})
        except FloatingPointError as error:
            saved = saved_steps(self.folder)
            again = f"go on with --resume={saved[-1]} and lower rates" if saved else "start again with lower rates"
            raise FloatingPointError(f"{error}: {again}, see docs/base_training.md") from None

    def compare_ranks(self, source: BatchSource) -> None:
        """Refuse data that differ between ranks: each finds its own, in the files of its machine."""
        settings = self.runtime.all_gather(source.state_dict()["setting"])
        for rank, setting in enumerate(settings):
            if setting != settings[0]:
                keys = ", ".join(key for key in {**settings[0], **setting} if setting.get(key) != settings[0].get(key))
                raise UserError(f"rank {rank} finds other data than rank 0, they differ in {keys}: {SAME_FILES}")

    def _train(
        self,
        source: BatchSource,
        objective: Objective | ChangingObjective,
        evaluations: Sequence[Evaluation],
        after_step: Sequence[Action],
        data: DataRecord,
        more: Record,
    ) -> State:
        # The last save ends inside `stop_requests`: a second signal ends it too.
        with stop_requests() as requests, source, self._saving(source, data, more) as save:
            start = self.start
            settings = LoopSettings(
                device_batch=self.device_rows,
                steps=start.steps,
                seconds=start.seconds,
                schedules=start.schedules,
                grad_clip=start.grad_clip,
                save_every=self.config.save_every,
                flops_per_token=start.flops_per_token,
            )
            loop = new_loop(
                self.model,
                self.optimizer,
                source,
                objective,
                self.runtime,
                self.log,
                settings,
                state=self._restore(source, data),
                after_step=after_step,
            )
            loop.train(evaluations, save, requests)
        return loop.state

    def finish(self, state: State, metrics: Record) -> None:
        """Write the outcome of a run that has ended; print why there is none otherwise."""
        if state.stop:
            again = "run the same command again"
            if isinstance(self.config.resume, int):  # which would go back to the step
                again += " with --resume=auto"
            print0(f"stopped by {state.stop} after step {state.step:,}: {again} to resume")
            return
        is_old = self.resumed is not None and self.resumed.step == state.step
        if is_old and (self.folder / "outcome.json").exists():  # else a crash came before writing
            print0(f"the run ended at step {state.step:,}: nothing is left to train")
            return
        if self.runtime.rank > 0:  # one writer is enough
            return
        self.outcome.config = asdict(self.config)
        self.outcome.metrics = {**metrics, **run_metrics(state, self.runtime), **self._changed_settings()}
        if ENDED in state.notes:
            self.outcome.metrics["Ended early"] = f"step {state.step:,}: {state.notes[ENDED]}"
        self.outcome.curves = training_curves(self.log.path)  # also from before a resume
        # The manifest has the hashes for all other files.
        self.outcome.add_artifact(self.folder / f"step_{state.step:06d}" / MANIFEST)
        self.outcome.write(self._earlier)

    @property
    def _earlier(self) -> float:
        """The seconds that the processes before have spent on this run, up to the checkpoint."""
        resumed = self.start.resumed
        return resumed.checkpoint.manifest.get("wall_seconds", 0.0) if resumed else 0.0

    def _changed_settings(self) -> Metrics:
        """Return the metric about settings that were changed while the run trained; none for most runs."""
        changed = self.start.changed_settings
        if not changed:
            return {}
        return {
            "Changed while training": "; ".join(f"step {one['step']:,}: {_phrase(one['settings'])}" for one in changed)
        }

    def _restore(self, source: BatchSource, data: DataRecord) -> State:
        """Return the state to train from; optimizer and source are as they were saved.

        Random generators are not: all of them start from a seed and a position.
        """
        resumed = self.start.resumed
        if resumed is None:
            if self.config.resume == "never":
                self.runtime.broadcast(lambda: set_aside(self.folder))
            self.log.resume(-1)  # marks old records as another run's
            return State()
        saved = resumed.checkpoint
        manifest = saved.manifest
        if manifest["loop"].keys() != State.__dataclass_fields__.keys():
            raise UserError(
                f"{self.folder}: another version of this code has begun the run: start it again with --resume=never"
            )
        before = manifest["data"], manifest["source"]["setting"]
        if before != (data, source.state_dict()["setting"]):
            raise UserError(f"{self.folder}: the data is not what the run began with: put it back, or --resume=never")
        # The model has its weights since it was built.
        self.optimizer.load_state_tensors(saved.optimizer_state)
        source.load_state_dict(manifest["source"])  # even in the middle of an epoch
        self.log.resume(saved.step)
        if isinstance(self.config.resume, int):
            # Later steps belong to a run that is given up, and must not be found by the next resume.
            self.runtime.broadcast(lambda: set_aside(self.folder, after=saved.step))
        if resumed.changes:
            self._log_changes(saved.step, resumed.changes)
        elif self.start.changed_settings:
            print0("changed while training:", *self._changed_settings().values())
        state = State(**manifest["loop"])
        if resumed.extended:
            self._log_horizon(saved.step)
            state.notes.pop(ENDED, None)
        return state

    def _log_changes(self, step: int, changes: Mapping[str, tuple[Any, Any]]) -> None:
        """Print and log the settings that --resume=STEP has changed."""
        print0(f"resumed at step {step:,}: {_phrase(changes)}")
        figures: Record = {}
        for name, (before, now) in changes.items():
            figures |= {f"{name}_before": before, f"{name}_after": now}
        self.log.write("settings", step, **figures)

    def _log_horizon(self, step: int) -> None:
        """Print and log the longer horizon of a run that had finished."""
        # The learning rate of the finished run has fallen already, and rises again.
        steps = self.config.num_iterations
        rate = self.start.schedules["lr"]
        # A step has the rate of its start; the end of a schedule does not depend on its length.
        old = rate(1 - 1 / step, step - 1)
        new = rate(step / steps, step)
        print0(f"horizon: {step:,} -> {steps:,} steps; learning rate x {old:.4g} -> x {new:.4g}, then as planned")
        self.log.write("horizon", step, steps_before=step, steps_after=steps, lrm_before=old, lrm_after=new)
        (self.folder / "outcome.json").unlink(missing_ok=True)  # of the shorter run

    @contextmanager
    def _saving(self, source: BatchSource, data: DataRecord, more: Record) -> Iterator[Callable[[State], None]]:
        """Yield a function that saves a checkpoint: a collective. The last one is on disk when the block ends."""
        # Refuse to start without room for the checkpoints of this run: one is written before an old one goes.
        copies = max(1, self.config.keep_last + 1 - len(saved_steps(self.folder)))
        parameters = sum(parameter.numel() for parameter in self.model.parameters())
        check_free_space(self.folder, copies * CHECKPOINT_BYTES * parameters)
        # Manifest entries shared by all checkpoints.
        record: Record = {
            **self.start.record,
            **more,
            "stage": self.outcome.stage,
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
            merged = source.merge(runtime.all_gather(source.state_dict()))  # works for another number of ranks too
            passed = self._earlier + self.outcome.passed()
            progress = {"loop": asdict(state), "source": merged, "wall_seconds": passed}
            if state.step == saver.step:  # saved before its evaluations, whose figures are new
                try:
                    saver.amend(record | progress, wait=state.progress >= 1)  # the last step is to be on disk
                    return
                except OSError:  # printed when it happened; the whole step is saved again, and there may be room now
                    print0(f"checkpoint: saving step {state.step:,} again")
            # The optimizer's states are gathered a parameter at a time, while they are copied.
            weights = self.model.shards or self.model.state_dict()  # both have `items`
            saver.save(state.step, weights, self.optimizer.state_tensors(), record | progress)

        with saver, gpu_meter(runtime.device) as take_gpu_use:
            yield save


def gpu_meter(device: torch.device) -> AbstractContextManager[Callable[[], list[float] | None]]:
    """Return a meter of the energy and work of a GPU: joules, seconds computing and seconds since the call before."""
    if registry.is_here(registry.METERS, "gpu"):
        return registry.load(registry.METERS, "gpu")(device)
    return nullcontext(lambda: None)


def _phrase(changes: Mapping[str, Sequence[Any]]) -> str:
    """Return changed settings in words: --matrix-lr 0.02 -> 0.01."""
    return ", ".join(f"{flag_of(name)} {before} -> {now}" for name, (before, now) in changes.items())
