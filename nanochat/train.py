"""The training loop: next batch, gradients, update, figures, evaluations, checkpoints.

Before the loop stand warming up and the search for the largest device batch. On a GPU a step's figures are read while
the next one computes: the host waits inside no step.
"""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from nanochat import schedules
from nanochat.dataloader import Batch, BatchSource
from nanochat.errors import UserError
from nanochat.gpt import GPT
from nanochat.log import MetricLog, Progress, Record, print_line, step_line
from nanochat.objectives import Objective
from nanochat.optim import Optimizer
from nanochat.runtime import Runtime, free_memory, without_garbage_collection
from nanochat.scaling import CPU_TOKENS
from nanochat.settings import TrainingSettings, given

SMOOTHING = 0.9  # share that the old value keeps in the loss's moving average
STEADY_AFTER = 10  # steps in this process before speed is measured
COLLECT_EVERY = 5_000  # steps between garbage collections
MAX_LOSS_SCALE = 2.0**10  # powers of two: scaling rounds nothing
MIN_LOSS_SCALE = 2.0**-30
GROW_LOSS_SCALE_EVERY = 1_000  # steps; an overflow halves the scale at once
LEAST_KEPT = 15  # values that a layer keeps for the backward, at least, per token and width (rehearsed: 15.8 in fp8)
MEMORY_MARGIN = 0.03  # share of the free memory that the search for a micro-batch leaves alone


def is_multiple(step: int, every: int) -> bool:
    """Return True for step `every`, twice `every` …; never for 0 or -1."""
    return step > 0 and every > 0 and step % every == 0


@dataclass
class State:
    """The progress of a run: JSON-able, saved in the manifest of a checkpoint, restored on resume."""

    step: int = 0  # launched so far, idle ones included
    progress: float = 0.0  # 0..1
    tokens: int = 0  # read on all ranks, padding included
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
    # Of evaluations, by name: before the first step, the lowest, and the last (outcome.keep_figures).
    figures: Record = field(default_factory=lambda: {"first": {}, "lowest": {}, "last": {}})
    notes: Record = field(default_factory=dict)  # moving averages and alarms
    stop: str = ""  # the reason for an early end


Action = Callable[[State], None]  # between two steps


@dataclass(frozen=True)
class Evaluation:
    """Runs `evaluate(state)` every `every` steps and after the last one (0: only then; -1: never).

    All ranks run it between two steps, with the model in evaluation mode.
    """

    every: int
    evaluate: Action
    at_start: bool = False  # also before the first step

    def is_due(self, state: State, finished: bool) -> bool:
        if finished or (state.step == 0 and self.at_start):
            return self.every >= 0
        return is_multiple(state.step, self.every)


@dataclass
class _LaunchedStep:
    """A step that was handed to the device."""

    number: int  # the first one has 1
    start: float
    figures: Tensor  # of all ranks: a sum and a count for each name; stop requests, rank 0's clock; gradient norm
    ready: torch.cuda.Event | None  # when `figures` have arrived on the host
    names: list[str]
    known: Record  # figures that the host has already
    tokens: int  # on all ranks, padding included, as in the throughput
    wait: float  # seconds until the batch was there


@dataclass
class TrainingLoop:
    """Trains a model from `state` to the horizon, or until a signal asks to stop.

    The horizon is `steps`, `seconds`, or else the source's progress.
    """

    model: GPT
    source: BatchSource
    objective: Objective
    optimizer: Optimizer
    runtime: Runtime
    log: MetricLog
    config: TrainingSettings
    state: State
    schedules: schedules.Schedules  # field of Group -> schedule
    device_batch: int  # rows in a micro-batch, as the source's `split` takes them
    flops_per_token: float
    steps: int | None = None
    seconds: float | None = None
    after_step: Sequence[Action] = ()  # called in order when the weights have changed

    def __post_init__(self) -> None:
        self.state.device_batch = self.device_batch
        self.state.stop = ""
        self._first_step = self.state.step  # where this process begins
        self._progress_line = Progress()
        self._is_fp16 = self.runtime.dtype == torch.float16
        self._seconds = self.state.seconds  # by this rank's clock; `state.seconds` is rank 0's, so that all ranks agree
        self._settled_at = 0.0
        self._under_way: _LaunchedStep | None = None  # on a GPU, the launched step that the host has not read

    def run(self, evaluations: Sequence[Evaluation], save: Action, requests: Sequence[int]) -> None:
        """Train. Evaluations run between two steps, then the checkpoint is saved.

        requests: gets an entry when this process is asked to stop. A stop postpones evaluations to the resumed run. A
        loss or gradient that is not finite on one rank is a FloatingPointError on all, before the step is saved.
        """
        state = self.state
        with without_garbage_collection() as collect:
            while True:
                finished = self._progress() >= 1
                due = [evaluation for evaluation in evaluations if evaluation.is_due(state, finished)]
                saves = finished or is_multiple(state.step, self.config.save_every)
                if due or saves or state.stop:
                    self._settle()  # figures from the step under way; they may bring a request to stop
                if finished:
                    state.stop, state.progress = "", 1.0  # by the clock of the last step, if a clock ends the run
                ends = finished or state.stop
                if ends:
                    self._progress_line.close()
                # Right after a checkpoint with complete evaluations was restored, nothing is new.
                if (due or saves or ends) and not 0 < state.step == self._first_step == state.evaluated:
                    self._seconds = state.seconds = self.runtime.all_gather(self._seconds)[0]  # rank 0's clock
                    if due and finished and state.step > self._first_step:
                        save(state)  # an evaluation that fails must not cost the run
                    if not state.stop:
                        self.model.eval()
                        with self.model.whole():
                            for evaluation in due:
                                evaluation.evaluate(state)
                        self.model.train()
                        state.evaluated = state.step  # not repeated after a resume
                    if saves or ends:
                        save(state)
                if ends:
                    return
                launched = self._launch(requests)
                # On a GPU the host reads a step's figures while the device computes the next.
                self._settle()
                self._under_way = launched
                if self.runtime.device.type != "cuda":
                    self._settle()
                if state.step == self._first_step + 1 or state.step % COLLECT_EVERY == 0:
                    collect()  # compiling leaves much garbage

    def _progress(self) -> float:
        """Return the finished share, at the last launched step; above 1 beyond the horizon."""
        if self.steps is not None:
            return self.state.step / self.steps
        if self.seconds is not None:
            return self.state.seconds / self.seconds
        return self.source.progress

    # ---- a step ----

    def _launch(self, requests: Sequence[int]) -> _LaunchedStep:
        """Hand a step to the device: forward, backward, update. Only fp16 waits for a result.

        An idle step leaves the weights alone: with momentum, a zero gradient would still be an update.
        """
        state = self.state
        start = time.perf_counter()
        groups = self.optimizer.groups
        schedules.apply(groups, self.schedules, self._progress(), state.step)
        asked = time.perf_counter()
        batch = next(self.source)  # may wait for the loader, or for sampling
        wait = time.perf_counter() - asked

        idle = self.source.idle
        if idle:
            sums = {"train/loss": torch.zeros(2, device=batch[0].device)}
        else:
            sums = self._gradients(batch)
            self.optimizer.finish_reducing()  # first: all ranks need one order of collectives
        pairs = torch.cat(list(sums.values()))
        precise = torch.float32 if pairs.device.type == "mps" else torch.float64  # MPS lacks fp64
        clock = self._seconds if self.runtime.rank == 0 else 0.0  # the sum over ranks is rank 0's
        from_host = torch.tensor([len(requests), clock], dtype=precise).to(pairs.device, non_blocking=True)
        figures = self.runtime.all_reduce(torch.cat([pairs.to(precise), from_host]))
        if idle:
            norm = figures.new_zeros(())
        else:
            targets = figures[1].float().clamp(min=1)  # on all ranks; a batch may have none
            norm = self.optimizer.step(1 / (targets * state.loss_scale), given(self.config.grad_clip))
            self.optimizer.zero_grad()
        state.step += 1
        state.progress = min(self._progress(), 1.0)
        for act in self.after_step:
            act(state)

        figures = torch.cat([figures, norm.to(figures.dtype).view(1)])
        ready = None
        if figures.device.type == "cuda":
            figures = figures.to("cpu", non_blocking=True)  # queued behind the update
            ready = torch.cuda.current_stream().record_event()
        # As a multiple of the initial rate.
        rate = next((group.lr / group.initial_lr for group in groups if group.initial_lr), 0.0)
        return _LaunchedStep(
            number=state.step,
            start=start,
            figures=figures,
            ready=ready,
            names=list(sums),
            known={"train/lrm": rate, **self.source.metrics},
            tokens=batch[0].numel() * self.runtime.world_size,
            wait=wait,
        )

    def _gradients(self, batch: Batch) -> dict[str, Tensor]:
        """Compute gradients for the sum over this rank's losses; returns what `_accumulate` does.

        Out of memory, the step starts again in smaller parts; an fp16 overflow, with half the scale.
        """
        state = self.state
        # fp16's factor for the loss keeps small gradients from vanishing: it doubles now and then.
        if self._is_fp16 and is_multiple(state.step, GROW_LOSS_SCALE_EVERY):
            state.loss_scale = min(2 * state.loss_scale, MAX_LOSS_SCALE)
        while True:
            try:
                sums = self._accumulate(batch)
            except torch.OutOfMemoryError:
                where = f"step {state.step + 1}, rank {self.runtime.rank}: out of memory"
                state.device_batch = min(state.device_batch, len(batch[0])) // 2
                if self.model.shards:  # the other ranks wait for this one to gather
                    raise UserError(f"{where}: take a smaller --device-batch-size") from None
                if not state.device_batch:
                    raise UserError(
                        f"{where} with one row at once: take --checkpointing or a shorter --max-seq-len"
                    ) from None
                print_line(f"{where}, the step starts again with --device-batch-size={state.device_batch}")
            else:
                if not (self._is_fp16 and self._halve_loss_scale()):
                    return sums
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

    def _accumulate(self, batch: Batch) -> dict[str, Tensor]:
        """Add up gradients over the micro-batches; returns (sum, count) of the loss, which comes first, and metrics."""
        sums = {}
        micro_batches = self.source.split(batch, self.state.device_batch)
        # With sharded weights a rank takes part in the gathers of ranks that have more micro-batches.
        most = max(self.runtime.all_gather(len(micro_batches))) if self.model.shards else 0
        for number, micro_batch in enumerate(micro_batches, 1):
            # The last backward sends the gradients, layer by layer. fp16 has to check them before.
            sends = number == len(micro_batches) and not self._is_fp16
            with self.optimizer.reduce_in_backward() if sends else nullcontext():
                loss, count, metrics = self.objective(self.model, micro_batch)
                (loss * self.state.loss_scale).backward()  # adds up in `.grad` over micro-batches
            for name, (total, number_of) in {"train/loss": (loss, count), **metrics}.items():
                pair = torch.stack([total.detach().float(), number_of.float()])  # stays on the device: no wait
                sums[name] = sums[name] + pair if name in sums else pair
        for _ in range(len(micro_batches), most):
            loss, _, _ = self.objective(self.model, micro_batches[-1])
            (0 * loss).backward()
        return sums

    # ---- a step's figures ----

    def _settle(self) -> None:
        """Read and log the figures of the step under way."""
        step, self._under_way = self._under_way, None
        if step is None:
            return
        if step.ready is not None:
            step.ready.synchronize()  # for this copy; a later step computes on
        *pairs, stop, clock, norm = step.figures.tolist()
        sums = zip(step.names, pairs[::2], pairs[1::2], strict=True)
        means = {name: total / max(count, 1) for name, total, count in sums}
        loss = means["train/loss"]
        if not (math.isfinite(loss) and math.isfinite(norm)):
            self.log.write("diverged", step.number)
            raise FloatingPointError(f"step {step.number}: the loss is {loss}, the gradient's norm is {norm}")
        self.state.stop = "a signal" if stop else ""
        figures = means | {"train/grad_norm": norm} | step.known | self._count(step, loss, clock)
        self.log.write("train", step.number, **figures)
        smooth = self.state.smooth_loss / (1 - SMOOTHING**step.number)  # removes the pull toward 0 at the start
        figures["step"] = step.number
        describe = getattr(self.objective, "describe", None)  # an objective may put its metrics into words
        details = describe(figures) if describe else ""
        self._progress_line.update(step_line(figures, smooth, self.steps, details), figures["progress"])

    def _count(self, step: _LaunchedStep, loss: float, clock: float) -> Record:
        """Add a step to the state's clocks and totals; returns figures for the log."""
        state = self.state
        now = time.perf_counter()
        seconds = now - max(self._settled_at, step.start)  # steps overlap on a GPU
        self._settled_at = now
        number = step.number - self._first_step  # in this process
        self._seconds += seconds
        state.seconds = clock if self.runtime.world_size > 1 else self._seconds
        flops = step.tokens * self.flops_per_token
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
        progress = step.number / self.steps if self.steps else self._progress()
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


# ---- before the loop ----


def warm_up(model: GPT, objective: Objective, optimizer: Optimizer, rows: int, length: int, count: int) -> None:
    """Compile a step by training on dummy tokens `count` times; weights and states are restored."""
    ids = torch.zeros(rows, length, dtype=torch.int64, device=model.device)
    with optimizer.restoring():
        for _ in range(count):
            loss, _, _ = objective(model, (ids, ids))
            loss.backward()
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
    return min(runtime.all_gather(next(fitting, sizes[0])))  # the rank with least memory decides


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
