"""The training loop: next batch, gradients, update, figures, evaluations, checkpoints.

Warm-up and the search for the largest device batch run before the loop. On a GPU a step's figures are read while
the next one computes: the host waits inside no step.
"""

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from nanochat import fp8, schedules
from nanochat.dataloader import Batch, BatchSource
from nanochat.errors import UserError
from nanochat.gpt import GPT
from nanochat.log import MetricLog, Progress, Record, print0, print_line, step_line
from nanochat.objectives import (
    REDUCTIONS,
    ChangingObjective,
    DescribingObjective,
    Metric,
    Moment,
    Objective,
    Reduction,
    objective_at,
)
from nanochat.optim import Optimizer
from nanochat.runtime import Runtime, free_memory, without_garbage_collection
from nanochat.scaling import CPU_TOKENS
from nanochat.schedules import Schedules

ENDED = "ended"  # among a state's notes: an evaluation has ended the run; the text says why
LOSS = "train/loss"  # the metric that is minimized, in the log
SMOOTHING = 0.9  # fraction that the old value keeps in the loss's moving average
STEADY_AFTER = 10  # steps in this process before speed is measured
COLLECT_EVERY = 5_000  # steps between garbage collections
MAX_LOSS_SCALE = 2.0**10  # powers of two: scaling rounds nothing
MIN_LOSS_SCALE = 2.0**-30
GROW_LOSS_SCALE_EVERY = 1_000  # steps; an overflow halves the scale at once
LEAST_KEPT = 15  # values that a layer keeps for the backward, at least, per token and width (rehearsed: 15.8 in fp8)
MEMORY_MARGIN = 0.03  # fraction of the free memory that the search for a micro-batch leaves alone


def is_multiple(step: int, every: int) -> bool:
    """Return True for step `every`, twice `every` …; never for 0 or -1."""
    return step > 0 and every > 0 and step % every == 0


@dataclass
class State:
    """The progress of a run: JSON-able, saved in the manifest of a checkpoint, restored on resume."""

    step: int = 0  # launched so far, idle ones included
    progress: float = 0.0  # 0..1
    tokens: int = 0  # read on all ranks, padding included; of prompts and answers without padding
    seconds: float = 0.0  # in training steps: no evaluations, no checkpoints
    waited: float = 0.0  # seconds among these, waiting for data
    communicating: float = 0.0  # seconds among these, waiting for other ranks' gradients or weights
    flops: float = 0.0  # by formula, not measured
    loss: float = math.nan  # of the last step
    smooth_loss: float = 0.0  # a moving average, to be divided by 1 - SMOOTHING ** step
    device_batch: int = 0  # rows in this rank's micro-batch; smaller than asked once memory ran out
    loss_scale: float = 1.0
    steady_seconds: float = 0.0  # without the first steps, which compile and warm up
    steady_flops: float = 0.0
    evaluated: int = -1  # the last step whose evaluations are complete
    # Of all ranks' GPUs: joules, seconds computing, seconds; None: not known. Evaluations and checkpoints count.
    gpu_use: list[float] | None = field(default_factory=lambda: [0.0, 0.0, 0.0])
    # Of evaluations, by name: before the first step, the lowest, and the last (metrics.keep_figures).
    figures: Record = field(default_factory=lambda: {"first": {}, "lowest": {}, "last": {}})
    # Moving averages, alarms, counters: the place for anything new, as a checkpoint with other fields is refused.
    notes: Record = field(default_factory=dict)
    stop: str = ""  # interrupted, by a signal: the run is to be resumed, and has no outcome; ENDED is the other way


Action = Callable[[State], None]  # between two steps


@dataclass(frozen=True)
class Evaluation:
    """Runs `evaluate(state)` every `every` steps and after the last one (0: only then; -1: never).

    All ranks run it between two steps, with the model in evaluation mode. With a note ENDED it ends the run: the last
    evaluations and a checkpoint follow, as at the horizon.
    """

    every: int
    evaluate: Action
    at_start: bool = False  # also before the first step

    def is_due(self, state: State, finished: bool) -> bool:
        if finished or (state.step == 0 and self.at_start):
            return self.every >= 0
        return is_multiple(state.step, self.every)


# ---- a step's figures ----


@dataclass(frozen=True)
class ReadFigures:
    """A step's figures, over all ranks, once they have arrived on the host."""

    metrics: dict[str, float]  # reduced, LOSS among them
    stop_requests: float  # ranks that were asked to stop, counted
    clock: float  # rank 0's seconds of training before the step
    norm: float  # of the gradient

    @property
    def loss(self) -> float:
        return self.metrics[LOSS]


@dataclass(frozen=True)
class _StepFigures:
    """A step's figures on the device, in one tensor, which one collective and one copy carry; maxima have another.

    sums: total and count of each metric that is a sum, then stop requests, clock, and the gradient's norm once it is
    known.
    """

    reductions: dict[str, Reduction]  # of all metrics, in the order of `sums` and of `maxima`
    sums: Tensor
    maxima: Tensor | None  # None: no metric is a maximum, in a run where none ever is

    @classmethod
    def pack(cls, metrics: Mapping[str, Metric], stop_requests: int, clock: float) -> "_StepFigures":
        """Pack this rank's figures. clock: only of rank 0, so that the sum over ranks is rank 0's."""
        pairs = [torch.stack([one.total, one.count]) for one in metrics.values() if one.reduction != "maximum"]
        largest = [one.total for one in metrics.values() if one.reduction == "maximum"]
        sums = torch.cat(pairs)
        precise = torch.float32 if sums.device.type == "mps" else torch.float64  # MPS lacks fp64
        # From pinned memory: a copy from elsewhere may make the host wait for the device.
        on_host = torch.tensor([stop_requests, clock], dtype=precise, pin_memory=sums.is_cuda)
        from_host = on_host.to(sums.device, non_blocking=True)
        return cls(
            reductions={name: one.reduction for name, one in metrics.items()},
            sums=torch.cat([sums.to(precise), from_host]),
            maxima=torch.stack(largest) if largest else None,
        )

    def over_ranks(self, runtime: Runtime) -> "_StepFigures":
        """Return the figures of all ranks: a collective."""
        maxima = None if self.maxima is None else runtime.all_reduce_maxima(self.maxima)
        return replace(self, sums=runtime.all_reduce(self.sums), maxima=maxima)

    @property
    def loss_count(self) -> Tensor:
        """What divides the loss, 0-d: for most objectives the number of targets."""
        summed = [name for name, reduction in self.reductions.items() if reduction != "maximum"]
        return self.sums[2 * summed.index(LOSS) + 1]

    def with_norm(self, norm: Tensor) -> "_StepFigures":
        return replace(self, sums=torch.cat([self.sums, norm.to(self.sums.dtype).view(1)]))

    def to_host(self) -> "_StepFigures":
        """Queue the copy to the host behind the update."""
        maxima = None if self.maxima is None else self.maxima.to("cpu", non_blocking=True)
        return replace(self, sums=self.sums.to("cpu", non_blocking=True), maxima=maxima)

    def read(self) -> ReadFigures:
        *pairs, stop_requests, clock, norm = self.sums.tolist()
        sums = zip(pairs[::2], pairs[1::2], strict=True)
        largest = iter([] if self.maxima is None else self.maxima.tolist())
        metrics = {}
        for name, reduction in self.reductions.items():
            total, count = (next(largest), 1.0) if reduction == "maximum" else next(sums)
            metrics[name] = REDUCTIONS[reduction](total, count)
        return ReadFigures(metrics, stop_requests, clock, norm)


@dataclass
class _LaunchedStep:
    """A step that was handed to the device."""

    number: int  # the first one has 1
    start: float
    figures: _StepFigures
    ready: torch.cuda.Event | None  # when `figures` have arrived on the host
    known: Record  # figures that the host has already
    tokens: int  # on all ranks, as in the throughput
    wait: float  # seconds until the batch was there


# ---- the loop ----


@dataclass(frozen=True)
class LoopSettings:
    """How a loop trains, and until when: `steps`, `seconds`, or else the source's progress."""

    device_batch: int  # rows in a micro-batch, as the source's `split` takes them
    steps: int | None = None
    seconds: float | None = None
    schedules: Schedules = field(default_factory=dict)  # field of Group -> schedule
    grad_clip: float = 0.0  # 0: no clipping
    save_every: int = -1  # steps; -1: only at the end
    flops_per_token: float = 0.0  # for the figures of speed


def new_loop(
    model: GPT,
    optimizer: Optimizer,
    source: BatchSource,
    objective: Objective | ChangingObjective,
    runtime: Runtime,
    log: MetricLog,
    settings: LoopSettings,
    state: State | None = None,
    after_step: Sequence[Action] = (),
) -> "TrainingLoop":
    """Return a loop; every loop is made here. state: where a resumed run goes on; None begins.

    after_step: called in order when the weights have changed.
    """
    return TrainingLoop(
        model=model,
        optimizer=optimizer,
        source=source,
        objective=objective,
        runtime=runtime,
        log=log,
        settings=settings,
        state=state or State(),
        after_step=[lambda state: fp8.requantize(model), *after_step],
    )


@dataclass
class TrainingLoop:
    """Trains a model from `state` to the horizon, or until a signal asks to stop. `new_loop` makes it."""

    model: GPT
    optimizer: Optimizer
    source: BatchSource
    objective: Objective | ChangingObjective
    runtime: Runtime
    log: MetricLog
    settings: LoopSettings
    state: State
    after_step: Sequence[Action]

    def __post_init__(self) -> None:
        self.state.device_batch = self.settings.device_batch
        self.state.stop = ""
        self._first_step = self.state.step  # where this process begins
        self._progress_line = Progress()
        self._is_fp16 = self.runtime.dtype == torch.float16
        self._seconds = self.state.seconds  # by this rank's clock; `state.seconds` is rank 0's, so that all ranks agree
        self._settled_at = 0.0
        self._save_is_due = False
        self._under_way: _LaunchedStep | None = None  # on a GPU, the launched step that the host has not read

    def train(self, evaluations: Sequence[Evaluation], save: Action, requests: Sequence[int]) -> None:
        """Train. Evaluations run between two steps; a checkpoint that is due gets their figures.

        requests: gets an entry when this process is asked to stop. A stop postpones evaluations to the resumed run. A
        loss or gradient that is not finite on one rank is a FloatingPointError on all, before the step is saved.
        """
        state = self.state
        with without_garbage_collection() as collect:
            while True:
                finished = self._is_finished()
                due = [evaluation for evaluation in evaluations if evaluation.is_due(state, finished)]
                # A source may ask to wait for some steps with a checkpoint, and with a stop, which leaves one.
                self._save_is_due = self._save_is_due or is_multiple(state.step, self.settings.save_every)
                saves = finished or (self._save_is_due and self.source.may_be_saved)
                if due or saves or (state.stop and self.source.may_be_saved):
                    ends = self._pause(due, saves, finished, save)
                    if saves:
                        self._save_is_due = False
                    if ends:
                        return
                    if ENDED in state.notes and self.source.may_be_saved:
                        continue
                launched = self.launch(requests)
                # On a GPU the host reads a step's figures while the device computes the next.
                self._settle()
                self._under_way = launched
                if self.runtime.device.type != "cuda":
                    self._settle()
                if state.step == self._first_step + 1:
                    print_graph_breaks()
                if state.step == self._first_step + 1 or state.step % COLLECT_EVERY == 0:
                    collect()  # compiling leaves much garbage

    def _pause(self, due: Sequence[Evaluation], saves: bool, finished: bool, save: Action) -> bool:
        """Evaluate and save between two steps; return True if the run ends here."""
        state = self.state
        self._settle()  # figures from the step under way; they may bring a request to stop
        was_finished = state.progress >= 1  # also by the checkpoint that this process began with
        if finished:
            state.stop = ""  # by the clock of the last step, if a clock ends the run
            state.progress = 1.0
        ends = finished or (bool(state.stop) and self.source.may_be_saved)
        if ends:
            self._progress_line.close()
        has_trained = state.step > self._first_step  # in this process
        is_evaluated = state.step > 0 and state.evaluated == state.step and (was_finished or not finished)
        if is_evaluated and not has_trained:
            return ends  # the checkpoint was restored just now, with complete evaluations: nothing is new
        self._seconds = state.seconds = self.runtime.all_gather(self._seconds)[0]  # rank 0's clock
        if finished or not ends:
            if due and saves and has_trained:
                # An evaluation of this step may have ended the run. Until those of the end are complete, none counts.
                state.evaluated = -1
                save(state)  # an evaluation that fails must not cost the steps before it
            self._evaluate(due)
        if saves or ends:
            save(state)
        return ends

    def _evaluate(self, due: Sequence[Evaluation]) -> None:
        self.model.eval()
        with self.model.whole():
            for evaluation in due:
                evaluation.evaluate(self.state)
        self.model.train()
        self.state.evaluated = self.state.step  # not repeated after a resume

    def _progress(self) -> float:
        """Return how much is finished, at the last launched step; 1: all, above 1 beyond the horizon."""
        if ENDED in self.state.notes:
            return 1.0
        if self.settings.steps is not None:
            return self.state.step / self.settings.steps
        if self.settings.seconds is not None:
            return self.state.seconds / self.settings.seconds
        return self.source.progress

    def _is_finished(self) -> bool:
        """Return True at the end. A number of steps is met exactly; any other end waits for the source, as a save."""
        if self.settings.steps is not None and self.state.step >= self.settings.steps:
            return True
        return self._progress() >= 1 and self.source.may_be_saved

    # ---- a step ----

    def launch(self, requests: Sequence[int]) -> _LaunchedStep:
        """Hand a step to the device: forward, backward, update. Only fp16 waits for a result.

        An idle step leaves the weights alone: with momentum, a zero gradient would still be an update.
        """
        state = self.state
        start = time.perf_counter()
        groups = self.optimizer.groups
        progress = self._progress()
        schedules.apply(groups, self.settings.schedules, progress, state.step)
        objective = objective_at(self.objective, Moment(state.step, min(progress, 1.0)))
        asked = time.perf_counter()
        batch = next(self.source)  # may wait for the loader, or for sampling
        wait = time.perf_counter() - asked

        idle = self.source.idle
        if idle:
            zero = torch.zeros((), device=batch[0].device)
            metrics = {LOSS: Metric(zero, zero)}
        else:
            metrics = self._gradients(batch, objective)
            self.optimizer.finish_reducing()  # first: all ranks need one order of collectives
        clock = self._seconds if self.runtime.rank == 0 else 0.0
        figures = _StepFigures.pack(metrics, len(requests), clock).over_ranks(self.runtime)
        if idle:
            norm = figures.sums.new_zeros(())
        else:
            targets = figures.loss_count.float().clamp(min=1)  # on all ranks; a batch may have none
            norm = self.optimizer.step(1 / (targets * state.loss_scale), self.settings.grad_clip)
            self.optimizer.zero_grad()
        state.step += 1
        state.progress = min(self._progress(), 1.0)
        for act in self.after_step:
            act(state)

        figures = figures.with_norm(norm)
        ready = None
        if figures.sums.device.type == "cuda":
            figures = figures.to_host()
            ready = torch.cuda.current_stream().record_event()
        # As a multiple of the initial rate.
        rate = next((group.lr / group.initial_lr for group in groups if group.initial_lr), 0.0)
        return _LaunchedStep(
            number=state.step,
            start=start,
            figures=figures,
            ready=ready,
            known={"train/lrm": rate, **self.source.metrics},
            tokens=self.source.computed(batch, self.runtime.world_size),
            wait=wait,
        )

    def _gradients(self, batch: Batch, objective: Objective) -> dict[str, Metric]:
        """Compute gradients for the sum over this rank's losses; returns what `_accumulate` does.

        Out of memory, the step starts again in smaller parts; an fp16 overflow, with half the scale.
        """
        state = self.state
        # fp16's factor for the loss keeps small gradients from vanishing: it doubles now and then.
        if self._is_fp16 and is_multiple(state.step, GROW_LOSS_SCALE_EVERY):
            state.loss_scale = min(2 * state.loss_scale, MAX_LOSS_SCALE)
        while True:
            try:
                metrics = self._accumulate(batch, objective)
            except torch.OutOfMemoryError:
                where = f"step {state.step + 1}, rank {self.runtime.rank}: out of memory"
                state.device_batch = min(state.device_batch, len(batch[0])) // 2
                if self.model.shards:  # the other ranks wait for this one to gather
                    raise UserError(f"{where}: use a smaller --device-batch-size") from None
                if not state.device_batch:
                    raise UserError(
                        f"{where} with one row at once: use --checkpointing or a shorter --max-seq-len"
                    ) from None
                print_line(f"{where}, the step starts again with --device-batch-size={state.device_batch}")
            else:
                if not (self._is_fp16 and self._halve_loss_scale()):
                    return metrics
            self.optimizer.restart()  # gradients already sent are complete, and stay
            torch.cuda.empty_cache()  # by now no traceback holds tensors from the failed step

    def _halve_loss_scale(self) -> bool:
        """Return True if fp16 gradients overflowed on some rank; the scale is halved for another try."""
        state = self.state
        norm = nn.utils.get_total_norm(
            [p.grad for group in self.optimizer.groups for _, p in group.params if p.grad is not None]
        )
        # All ranks decide alike. At the lowest scale the step counts, and its norm ends the run.
        if self.runtime.all_reduce(norm).isfinite() or state.loss_scale <= MIN_LOSS_SCALE:
            return False
        state.loss_scale /= 2  # exact
        return True

    def _accumulate(self, batch: Batch, objective: Objective) -> dict[str, Metric]:
        """Add up gradients over the micro-batches; returns this rank's metrics, LOSS among them."""
        found: dict[str, Metric] = {}
        micro_batches = self.source.split(batch, self.state.device_batch)
        # With sharded weights a rank takes part in the gathers of ranks that have more micro-batches. To ask for their
        # number waits for the device.
        is_uneven = self.model.shards and not self.source.splits_alike
        most = max(self.runtime.all_gather(len(micro_batches))) if is_uneven else 0
        for number, micro_batch in enumerate(micro_batches, 1):
            # The last backward sends the gradients, layer by layer. fp16 has to check them before.
            sends = number == len(micro_batches) and not self._is_fp16
            with self.optimizer.reduce_in_backward() if sends else nullcontext():
                loss = objective(self.model, micro_batch)
                (loss.total * self.state.loss_scale).backward()  # adds up in `.grad` over micro-batches
            if LOSS in loss.metrics:
                raise ValueError(f"{LOSS} is the sum itself: give this metric of the objective another name")
            for name, metric in {LOSS: Metric(loss.total, loss.count), **loss.metrics}.items():
                part = metric.detached()
                found[name] = found[name].joined(part) if name in found else part
        for _ in range(len(micro_batches), most):
            (0 * objective(self.model, micro_batches[-1]).total).backward()
        return found

    # ---- a step's figures ----

    def _settle(self) -> None:
        """Read and log the figures of the step under way."""
        step, self._under_way = self._under_way, None
        if step is None:
            return
        if step.ready is not None:
            step.ready.synchronize()  # for this copy; a later step computes on
        read = step.figures.read()
        if not (math.isfinite(read.loss) and math.isfinite(read.norm)):
            self.log.write("diverged", step.number)
            raise FloatingPointError(f"step {step.number}: the loss is {read.loss}, the gradient's norm is {read.norm}")
        self.state.stop = "a signal" if read.stop_requests else ""
        figures = read.metrics | {"train/grad_norm": read.norm} | step.known | self._count(step, read.loss, read.clock)
        self.log.write("train", step.number, **figures)
        smooth = self.state.smooth_loss / (1 - SMOOTHING**step.number)  # removes the pull toward 0 at the start
        figures["step"] = step.number
        # An objective may put its metrics into words.
        details = self.objective.describe(figures) if isinstance(self.objective, DescribingObjective) else ""
        self._progress_line.update(step_line(figures, smooth, self.settings.steps, details), figures["progress"])

    def _count(self, step: _LaunchedStep, loss: float, clock: float) -> Record:
        """Add a step to the state's clocks and totals; returns figures for the log."""
        state = self.state
        now = time.perf_counter()
        seconds = now - max(self._settled_at, step.start)  # steps overlap on a GPU
        self._settled_at = now
        number = step.number - self._first_step  # in this process
        self._seconds += seconds
        state.seconds = clock if self.runtime.world_size > 1 else self._seconds
        flops = step.tokens * self.settings.flops_per_token
        if number > STEADY_AFTER:
            state.steady_seconds += seconds
            state.steady_flops += flops
        state.waited += step.wait
        state.communicating += self.optimizer.waiting.take()
        state.tokens += step.tokens
        state.flops += flops
        state.loss = loss
        state.smooth_loss = SMOOTHING * state.smooth_loss + (1 - SMOOTHING) * loss
        # For this step: a later one may be launched.
        progress = step.number / self.settings.steps if self.settings.steps else self._progress()
        peak = self.runtime.peak_flops
        return {
            "progress": min(progress, 1.0),
            "train/dt": seconds,
            "train/tok_per_sec": step.tokens / seconds,
            "train/mfu": flops / seconds / (peak * self.runtime.world_size) if peak else None,  # share, 0..1
            "train/wait": step.wait / seconds,
            "total_training_tokens": state.tokens,
            "total_training_flops": state.flops,
            "total_training_time": self._seconds,
        }


def print_graph_breaks() -> None:
    """Print the reasons for which the compiler has split a graph, if any. Nothing else shows them."""
    dynamo = sys.modules.get("torch._dynamo.utils")  # loaded where something was compiled
    breaks: dict[str, int] = dynamo.counters["graph_break"] if dynamo else {}
    for reason, count in breaks.items():
        first_line = reason.strip().partition("\n")[0]
        print0(f"compiler: {count} graph breaks, which make steps slower: {first_line}")


# ---- before the loop ----


def warm_up(
    model: GPT, objective: Objective | ChangingObjective, optimizer: Optimizer, rows: int, length: int, count: int
) -> None:
    """Compile a step by training on dummy tokens `count` times; weights and states are restored."""
    ids = torch.zeros(rows, length, dtype=torch.int64, device=model.device)
    first = objective_at(objective, Moment(0, 0.0))
    with optimizer.restoring():
        for _ in range(count):
            first(model, (ids, ids)).total.backward()
            optimizer.step()
            optimizer.zero_grad()


def largest_device_batch(model: GPT, length: int, sizes: Sequence[int], runtime: Runtime) -> int:
    """Return the largest size, in rows, whose forward and backward fit into memory, the same on all ranks.

    length: of a row. sizes: to choose from, in order. A GPU tries, from the largest size that the kept activations
    alone allow; elsewhere a size with at most CPU_TOKENS fits. The model is as it will train: compiled, in fp8, its
    optimizer's states allocated. Its gradients are undefined afterwards.
    """
    if runtime.device.type == "cuda":
        room = free_memory(runtime.device)
        # A lower bound for a row's activations: no size far too large is compiled, which takes a minute.
        kept = 1 if model.checkpointing else LEAST_KEPT
        row = model.compute_dtype.itemsize * length * model.config.width * model.config.depth * kept
        fitting = (rows for rows in reversed(sizes) if rows * row < room and _fits(model, rows, length, room))
    else:
        fitting = (rows for rows in reversed(sizes) if rows * length <= CPU_TOKENS)
    size = min(runtime.all_gather(next(fitting, sizes[0])))  # the rank with least memory decides
    if runtime.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(runtime.device)  # of training, not of sizes that were tried
    return size


def _fits(model: GPT, rows: int, length: int, room: int) -> bool:
    try:
        # For fragments, buffers of collectives and the update's temporary values.
        reserved = torch.empty(int(MEMORY_MARGIN * room), dtype=torch.uint8, device=model.device)
        ids = torch.zeros(rows, length, dtype=torch.int64, device=model.device)  # any tokens will do
        model(ids, ids).backward()
        del reserved  # frees the memory before the next try
        return True
    except torch.OutOfMemoryError:
        return False
    finally:
        torch.cuda.empty_cache()
