"""The training loop, the only one: `train(model, source, objective, optimizer, plan, hooks, …)`.

source: an iterator of batches (tuples of tensors whose first axis is this rank's rows of the step) with `progress`,
`wait_seconds`, `place()`, its own state, and `idle`: whether it knows that no rank's part of the step teaches anything.
objective: (model, batch) -> (sum of losses, count), both tensors; the loop divides by the count of all micro-batches
and ranks, so that the mathematics do not depend on how a batch is cut. Hooks are made by `every(n, fn)`. On a GPU a
step's figures are read while the next one computes: the host waits for nothing inside a step.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from nanochat import schedules
from nanochat.interrupt import signals, without_garbage_collection
from nanochat.log import StepProgress, print0, print_line

Batch = tuple[torch.Tensor, ...]
Objective = Callable[[Any, Batch], tuple[torch.Tensor, torch.Tensor]]

SMOOTHING = 0.9  # of the loss on the console
CPU_TOKENS = 16_384  # of a micro-batch on a CPU, where larger ones are no faster
STEADY_AFTER = 10  # steps of this process
COLLECT_EVERY = 5_000  # steps
MAX_LOSS_SCALE, MIN_LOSS_SCALE, GROW_LOSS_SCALE_EVERY = 2.0**10, 2.0**-30, 1_000  # fp16 alone


def by_rows(batch: Batch, rows: int) -> list[Batch]:
    """Its micro-batches."""
    return list(zip(*(part.split(rows) for part in batch), strict=True))


@dataclass(frozen=True)
class Plan:
    """How long to train, and how a step is cut.

    Horizon: `steps`, or `seconds` of training, or with neither of them the source's own progress. device_batch: rows of
    a micro-batch, if `split` goes by them. schedules: as `schedules.apply` takes them. after_step: called when the
    weights have changed. clip: largest norm of the gradient, 0: any. shown: what a live line has in place of the loss.
    """

    device_batch: int
    flops_per_token: float
    schedules: Mapping[str, Any]
    after_step: Callable[[], None] | None = None
    steps: int | None = None
    seconds: float | None = None
    clip: float = 0.0
    split: Callable[[Batch, int], list[Batch]] = by_rows
    shown: Callable[["State"], str] = lambda state: ""

    def progress(self, state: "State", source: Any) -> float:
        if self.steps is not None:
            return state.step / max(self.steps, 1)
        return state.seconds / self.seconds if self.seconds is not None else source.progress


@dataclass
class State:
    """Where the loop is, JSON-able: saved with a checkpoint, and gone on from.

    seconds: of training steps alone; waited: of these, for data. device_batch: of this rank, smaller than the plan's
    once memory ran out. notes: what hooks keep, like the best evaluation. stop: what ended it early.
    """

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    waited: float = 0.0
    flops: float = 0.0
    loss: float = math.nan  # of the last step
    smooth_loss: float = 0.0  # a moving average, still to be divided by 1 - SMOOTHING ** step
    device_batch: int = 0
    loss_scale: float = 1.0
    loss_scale_step: int = 0  # at which it was last changed
    steady_seconds: float = 0.0  # and the FLOPs in them: without the first steps, which compile and warm up
    steady_flops: float = 0.0
    hooked: int = -1  # the last step whose hooks have all been seen to
    notes: dict[str, Any] = field(default_factory=dict)
    stop: str = ""


@dataclass(frozen=True)
class every:
    """A hook: `act(state)` after each n-th step (0: none), before the first, after the last, before a signal's stop."""

    n: int
    act: Callable[[State], None]
    at_start: bool = False
    at_end: bool = True
    at_stop: bool = False

    def is_due(self, state: State, finished: bool) -> bool:
        if finished:
            return self.at_end
        if state.stop:
            return self.at_stop
        if state.step == 0:
            return self.at_start
        return self.n > 0 and state.step % self.n == 0


def train(
    model, source, objective: Objective, optimizer, plan: Plan, hooks: Sequence[every], runtime, log, state: State
) -> None:
    """Train to the plan's horizon, or until a signal asks to stop, from wherever `state` is.

    Hooks that are due run in their order between two steps; where a saved run goes on they have run before. One that
    fails ends the run, but what comes after it and is there for stops, saving, has its turn first. A loss or gradient
    that is not finite on one rank is a FloatingPointError on all of them, before any hook sees that step.
    """
    loop = _Loop(model, source, objective, optimizer, plan, runtime, log, state)
    start = state.step
    with signals() as asked, without_garbage_collection() as collect, loop.console:
        while True:
            finished = plan.progress(state, source) >= 1
            if finished or state.stop or any(hook.is_due(state, finished) for hook in hooks):
                loop.settle()  # it may ask to stop
            if finished:
                state.stop = ""
            if finished or state.stop:
                loop.console.close()
            done = 0 < start == state.step == state.hooked  # before the run was left
            due = [hook for hook in hooks if hook.is_due(state, finished) and not done]
            hooked, state.hooked = state.hooked, state.hooked if state.stop else state.step
            if due or finished or state.stop:
                loop.agree_on_time()
            for hook in due:
                model.eval()
                try:
                    hook.act(state)
                except Exception:  # whatever it was, the steps before it are not to be lost
                    state.hooked = hooked  # who goes on looks again
                    loop.leave([later for later in hooks[hooks.index(hook) + 1 :] if later.at_stop])
                    raise
                model.train()
            if finished or state.stop:
                return
            loop.launch(asked)
            loop.settle(but=int(runtime.device.type == "cuda"))  # elsewhere nothing runs ahead of the host
            if state.step == start + 1 or state.step % COLLECT_EVERY == 0:
                collect()


@dataclass
class _Step:
    """A step that was handed to the device. figures: of all ranks, own: of this one, once `ready` has come."""

    number: int
    start: float
    figures: torch.Tensor  # loss sum, count, ranks that were asked to stop, rank 0's clock; the gradient's norm
    own: torch.Tensor
    ready: torch.cuda.Event | None
    lr_multiplier: float
    tokens: int
    wait: float
    place: str  # in the data


class _Loop:
    def __init__(self, model, source, objective, optimizer, plan, runtime, log, state):
        self.model, self.source, self.objective, self.optimizer = model, source, objective, optimizer
        self.plan, self.runtime, self.log, self.state = plan, runtime, log, state
        state.device_batch, state.stop = plan.device_batch, ""
        self._half, self._start = runtime.dtype == torch.float16, state.step
        self._trained = state.seconds  # by this rank's clock; `state.seconds` is rank 0's, so that all ranks agree
        self.console, self._settled = StepProgress(plan.steps), 0.0
        self._pending: list[_Step] = []

    # ---- a step ----

    def launch(self, asked: list[str]) -> None:
        """Hand a step to the device: forward, backward, update. Only fp16 waits for anything.

        A step that teaches nothing leaves the weights alone: momentum would make a whole update of a gradient of zeros.
        """
        state, start, waited = self.state, time.perf_counter(), self.source.wait_seconds
        progress = min(self.plan.progress(state, self.source), 1.0)
        schedules.apply(self.optimizer.groups, self.plan.schedules, progress, state.step)
        multiplier = next((group.lr / group.initial_lr for group in self.optimizer.groups if group.initial_lr), 0.0)
        batch = next(self.source)
        wait = self.source.wait_seconds - waited
        idle = self.source.idle
        totals = torch.zeros(2, device=batch[0].device) if idle else self._gradients(batch)
        precise = torch.float32 if totals.device.type == "mps" else torch.float64
        told = torch.tensor([len(asked), self._trained if self.runtime.rank == 0 else 0.0], dtype=precise)
        own = torch.cat([totals.to(precise), told.to(totals.device, non_blocking=True)])
        if not idle:
            self.optimizer.finish_reducing()
        figures = self.runtime.all_reduce(own.clone())
        norm = figures.new_zeros(()) if idle else self._update(figures[1])
        figures, ready = torch.cat([figures, norm.to(precise).view(1)]), None
        if figures.device.type == "cuda":
            figures = figures.to("cpu", non_blocking=True)
            ready = torch.cuda.current_stream().record_event()
        state.step += 1
        tokens = batch[0].numel() * self.runtime.world_size
        place = f"rank {self.runtime.rank}, reading {', '.join(self.source.place())}"
        self._pending.append(_Step(state.step, start, figures, own, ready, multiplier, tokens, wait, place))

    def _update(self, count: torch.Tensor) -> torch.Tensor:
        """Of the weights; the gradient's norm."""
        norm = self.optimizer.step(1 / (count.float().clamp(min=1) * self.state.loss_scale), self.plan.clip)
        self.optimizer.zero_grad()
        if self.plan.after_step:
            self.plan.after_step()
        return norm

    def _gradients(self, batch: Batch) -> torch.Tensor:
        """Gradients of the sum of this rank's losses; that sum, and the count.

        Out of memory: the same step again in smaller parts. fp16 that overflows: again with half the scale.
        """
        state = self.state
        if self._half and state.step - state.loss_scale_step >= GROW_LOSS_SCALE_EVERY:
            state.loss_scale, state.loss_scale_step = min(2 * state.loss_scale, MAX_LOSS_SCALE), state.step
        while True:
            try:
                totals = self._accumulate(batch)
            except torch.OutOfMemoryError:
                self._take_smaller_parts(len(batch[0]))
            else:
                if not self._half or state.loss_scale <= MIN_LOSS_SCALE or self._all_finite():
                    return totals
                state.loss_scale, state.loss_scale_step = state.loss_scale / 2, state.step
            self.optimizer.restart()
            if self.runtime.device.type == "cuda":
                torch.cuda.empty_cache()  # now that no traceback holds what the step had made

    def _take_smaller_parts(self, rows: int) -> None:
        state, where = self.state, f"step {self.state.step + 1}, rank {self.runtime.rank}: out of memory"
        size = min(state.device_batch, rows)
        if size == 1:
            raise ValueError(f"{where} with one row at once: take --checkpointing or a shorter --max-seq-len") from None
        state.device_batch = _largest_divisor(rows, size // 2)
        print_line(f"{where}, the step starts again with --device-batch-size={state.device_batch}")

    def _accumulate(self, batch: Batch) -> torch.Tensor:
        totals = torch.zeros(2, device=batch[0].device)
        micro_batches = self.plan.split(batch, self.state.device_batch)
        for number, micro_batch in enumerate(micro_batches, 1):
            last = number == len(micro_batches) and not self._half  # fp16 looks at the gradients before it gives them
            with self.optimizer.reduce_in_backward() if last else nullcontext():
                loss, count = self.objective(self.model, micro_batch)
                (loss * self.state.loss_scale).backward()
            totals += torch.stack([loss.detach().float(), count.float()])
        return totals

    def _all_finite(self) -> bool:
        grads = [p.grad for group in self.optimizer.groups for _, p in group.params if p.grad is not None]
        bad = sum((~grad.isfinite()).any().float() for grad in grads)
        return not self.runtime.all_reduce(bad)

    # ---- its figures ----

    def settle(self, but: int = 0) -> None:
        """See to the steps that were launched, but the last few."""
        while len(self._pending) > but:
            self._settle(self._pending.pop(0))

    def _settle(self, step: _Step) -> None:
        """Wait for a step's figures, check them, and write them down."""
        if step.ready is not None:
            step.ready.synchronize()
        loss_sum, count, stop, clock, norm = step.figures.tolist()
        loss, state, world_size = loss_sum / max(count, 1), self.state, self.runtime.world_size
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise FloatingPointError(self._not_finite(step, loss, norm))
        now = time.perf_counter()
        seconds = now - max(self._settled, step.start)
        self._settled, self._trained = now, self._trained + seconds
        state.seconds = clock if world_size > 1 else self._trained
        if step.number - self._start > STEADY_AFTER:
            state.steady_seconds += seconds
            state.steady_flops += step.tokens * self.plan.flops_per_token
        state.waited += step.wait
        state.tokens += step.tokens
        state.flops += step.tokens * self.plan.flops_per_token
        state.loss, state.smooth_loss = loss, SMOOTHING * state.smooth_loss + (1 - SMOOTHING) * loss
        state.stop = "a signal" if stop else ""
        peak = self.runtime.peak_flops
        mfu = step.tokens * self.plan.flops_per_token / seconds / (peak * world_size) if peak else None
        progress = self.plan.progress(replace(state, step=step.number), self.source)
        figures = {
            "step": step.number,
            "progress": min(progress, 1.0),
            "train/loss": loss,
            "train/grad_norm": norm,
            "train/lrm": step.lr_multiplier,
            "train/dt": seconds,
            "train/tok_per_sec": step.tokens / seconds,
            "train/mfu": mfu,
            "train/wait": step.wait / seconds,
            "total_training_tokens": state.tokens,
            "total_training_flops": state.flops,
            "total_training_time": self._trained,
        }
        self.log.write("train", **figures)
        smooth = state.smooth_loss / (1 - SMOOTHING**step.number)
        self.console.update(figures, smooth, state.tokens, self.plan.shown(state))

    def agree_on_time(self) -> None:
        """All ranks take rank 0's clock: a collective."""
        self._trained = self.state.seconds = self.runtime.all_gather(self._trained)[0]

    def leave(self, hooks: Sequence[every]) -> None:
        """Do what is to be done before a run that fails ends: on all ranks, or, where only some fail, on none."""
        state = self.state
        if state.step > self._start and hooks and self.runtime.barrier(f"failed, step {state.step}"):
            for hook in hooks:
                hook.act(state)
            print0(f"a look failed after step {state.step:,}: the same command goes on from there, and looks again")

    def _not_finite(self, step: _Step, loss: float, norm: float) -> str:
        """A sentence for every rank; a collective that all of them enter at the same step."""
        ranks = self.runtime.all_gather([bool(step.own.isfinite().all()), step.place])
        # Of the gradients only their sum over ranks is known: any may be at fault.
        culprits = [place for fine, place in ranks if not fine] or [place for _, place in ranks]
        what = f"the gradient's norm is {norm}, all losses are finite" if math.isfinite(loss) else f"the loss is {loss}"
        return f"step {step.number}: {what} ({'; '.join(culprits)})"


def largest_device_batch(model: Any, objective: Objective, batch: Batch, runtime: Any, reserve: int = 0) -> int:
    """The most rows of a step's batch that fit through forward and backward at once, the same on all ranks.

    reserve: bytes that the optimizer will take, not taken yet. On a GPU it is tried; elsewhere what one row saves for
    its backward is counted, and half of the free memory is given to it. The model is not compiled yet.
    """
    size = rows = len(batch[0])
    if runtime.device.type == "cuda":
        while size > 1 and not _fits(model, objective, batch, size, reserve):
            size = _largest_divisor(rows, size - 1)
    else:
        fit = runtime.free_memory() // 2 // max(1, _saved_bytes(model, objective, batch))
        size = min(fit, CPU_TOKENS // batch[0][0].numel())
    return _largest_divisor(rows, min(runtime.all_gather(size)))


def _fits(model: Any, objective: Objective, batch: Batch, size: int, reserve: int) -> bool:
    try:
        room = torch.empty(reserve, dtype=torch.uint8, device=batch[0].device)
        loss, _ = objective(model, tuple(part[:size] for part in batch))
        loss.backward()
        del room, loss
        return True
    except torch.OutOfMemoryError:
        return False
    finally:
        model.zero_grad(set_to_none=True)
        torch.cuda.empty_cache()


def _saved_bytes(model: Any, objective: Objective, batch: Batch) -> int:
    storages: dict[int, int] = {}

    def saved(tensor: torch.Tensor) -> torch.Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(saved, lambda tensor: tensor):
        objective(model, tuple(part[:1] for part in batch))
    there = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *batch)}
    return sum(size for pointer, size in storages.items() if pointer not in there)


def _largest_divisor(number: int, limit: int) -> int:
    return next(size for size in range(max(1, min(number, limit)), 0, -1) if number % size == 0)
