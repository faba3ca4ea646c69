"""Fine-tuning: from another stage's checkpoint, or from where the run was left, to the end of training and its record.

with fine_tuning("chat_sft", "mid_train", config) as tuning:
    source = tuning.chats(conversations, "assistant")
    state = tuning.train(source, next_token, hooks, conversations.origin)
    tuning.finish(state, {"Training rows": len(conversations)})
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from nanochat import schedules
from nanochat import train as loop
from nanochat.blueprint import build
from nanochat.card import curves, run_facts, validation_facts
from nanochat.checkpoint import MANIFEST, Checkpoint
from nanochat.engine import Engine
from nanochat.evals.bpb import ratio, sums_of_rows, validation
from nanochat.evals.chat import Options, core_of, evaluate
from nanochat.gpt import GPT, config_of
from nanochat.inherit import FineTune, inherit
from nanochat.log import MetricLog, print0
from nanochat.optim import Optimizer
from nanochat.outcome import Outcome
from nanochat.packing import ChatLoader
from nanochat.paths import stage_dir
from nanochat.restore import find_model, has_news, hold_for_all, keeping, put_back, run_to_go_on_with, tokenizer_of
from nanochat.runtime import Runtime, setup
from nanochat.tokenizer import Tokenizer
from nanochat.train import every

BYTES_PER_TOKEN = 4  # about: validation is to take as long as that of pretraining


@dataclass
class FineTuning:
    """A run under way.

    settings: the config with what it inherited. begun: where it goes on. about: what its checkpoints say of it: stage,
    parent, tokenizer, data. rows: of a micro-batch.
    """

    outcome: Outcome
    folder: Path
    settings: Any
    runtime: Runtime
    log: MetricLog
    begun: Checkpoint | None
    about: dict[str, Any]
    tokenizer: Tokenizer
    model: GPT
    optimizer: Optimizer
    rows: int

    def train(
        self, source: Any, objective: loop.Objective, hooks: Sequence[every] = (), origin=dict, **options: Any
    ) -> loop.State:
        """To the steps, or seconds, of the settings, or else to the end of the source; from where the run was left.

        source: one that closes, and whose state is the same on all ranks. origin: gives of each task its rows and the
        hashes of its files, which have to be what the run was begun with. options: of the loop's plan.
        """
        settings, tasks = self.settings, self.runtime.broadcast(origin)
        before = self.begun.manifest["data"].get("tasks", {}) if self.begun else tasks
        if changed := [name for name in before | tasks if before.get(name) != tasks.get(name)]:
            changed = f"the data of {', '.join(changed)} has changed since it was begun"
            raise ValueError(
                f"{self.folder}: {changed}. Put it back, take another --tag, or start anew: --resume=never"
            )
        self.about["data"] = source.state_dict()["setting"] | {"tasks": tasks}
        parts = self.folder, settings, self.runtime, self.model, self.optimizer, source
        with source, keeping(*parts, lambda states: states[0], **self.about) as save:
            state = loop.State(**put_back(self.begun, self.optimizer, source)) if self.begun else loop.State()
            self.log.resume(state.step if self.begun else -1)
            moves = schedules.finetuning(settings.warmup_steps, settings.warmdown_ratio, settings.final_lr_frac)
            given = {"steps": settings.num_iterations, "seconds": settings.target_seconds}
            horizon = {name: None if value == -1 else value for name, value in given.items()}
            options |= {**horizon, "clip": settings.grad_clip}
            plan = loop.Plan(self.rows, self.model.flops_per_token(), moves, **options)
            # Saved last, so that a checkpoint knows what was found before it.
            hooks = [*hooks, every(settings.save_every, save, at_stop=True)]
            loop.train(self.model, source, objective, self.optimizer, plan, hooks, self.runtime, self.log, state)
        return state

    def finish(self, state: loop.State, metrics: Mapping[str, Any]) -> None:
        """The record of a run that has come to its end; of any other, why there is none."""
        if has_news(state, self.begun, self.folder) and self.runtime.rank == 0:
            self.outcome.config = asdict(self.settings)
            self.outcome.metrics = {**metrics, **run_facts(state, self.runtime)}
            self.outcome.curves = curves(self.log)
            self.outcome.tables += [learned_from(tasks)] if (tasks := self.about["data"]["tasks"]) else []
            self.outcome.add_artifact(self.folder / "latest" / MANIFEST)
            self.outcome.write()

    # ---- training on conversations: settings are a ChatTraining ----

    def chats(self, conversations: Sequence[dict], supervise: str) -> ChatLoader:
        """A source of batches of them."""
        settings, runtime = self.settings, self.runtime
        length = settings.max_seq_len
        place = {"rank": runtime.rank, "world_size": runtime.world_size, "device": runtime.device}
        options = {"supervise": supervise, "epochs": settings.epochs, "seed": settings.seed}
        return ChatLoader(
            conversations, self.tokenizer, settings.total_batch_size // length, length, **options, **place
        )

    def validating(self, conversations: Sequence[dict], supervise: str) -> list[every]:
        """A hook: the loss of each supervised token, and bits per byte, of rows that are the same for any ranks."""
        settings, length = self.settings, self.settings.max_seq_len
        if settings.eval_every < 0:
            return []
        tokens = self.runtime.validation_bytes // BYTES_PER_TOKEN if settings.eval_tokens < 0 else settings.eval_tokens
        inputs, targets = first_rows(conversations, self.tokenizer, supervise, length, max(1, tokens // length))
        lengths = torch.from_numpy(self.tokenizer.token_lengths()).to(torch.int64)
        weights = torch.stack([torch.ones_like(lengths), lengths])
        row = lambda numbers: (inputs[numbers], targets[numbers])  # noqa: E731

        def measure() -> dict[str, tuple[float, float]]:
            losses, bits = sums_of_rows(self.model, row, len(inputs), length, weights, self.rows, self.runtime)
            return {"loss": ratio(losses), "bpb": ratio(bits / torch.tensor([math.log(2), 1]))}

        validate = validation(measure, inputs.numel(), settings.eval_every, self.model, self.runtime, self.log)
        return [every(settings.eval_every, validate, at_start=True)]

    def scoring(self, tasks: Mapping[str, Any]) -> list[every]:
        """A hook: how many problems are solved of each task; unasked, of those that are answered by a letter."""
        settings = self.settings
        quick = {
            name: task for name, task in tasks.items() if settings.eval_metrics_tasks or task.kind == "categorical"
        }
        if settings.eval_metrics_every < 0 or not quick:
            return []
        options = Options(max_problems=settings.eval_metrics_max_problems)

        def score(state: loop.State) -> None:
            writes = any(task.kind != "categorical" for task in quick.values())
            engine = Engine(self.model, self.tokenizer) if writes else None  # its memory is for training otherwise
            about = engine, self.tokenizer, self.runtime, options
            with self.model.as_written():
                scores = {name: evaluate(task, self.model, *about, label=name) for name, task in quick.items()}
            found = {name: score.accuracy for name, score in scores.items()}
            found |= core_of(scores)
            state.notes["scores"] = {name: list(estimate) for name, estimate in found.items()}
            said = ", ".join(f"{name} {estimate.value:.4f}" for name, estimate in found.items())
            print0(f"step {state.step:05d} | {said}")
            self.log.write("tasks", state.step, **{f"chat/{name}": estimate.value for name, estimate in found.items()})

        return [every(settings.eval_metrics_every, score)]

    def told(self, state: loop.State, source: ChatLoader) -> dict[str, Any]:
        """What the card shows of training on conversations."""
        counts, scores = source.describe(), state.notes.get("scores", {})
        shown = {name: {"value": value, "stderr": stderr, "format": ".4f"} for name, (value, stderr) in scores.items()}
        return {
            "Number of iterations": state.step,
            "Training loss": {"value": state.loss, "format": ".4f"},
            **validation_facts(state.notes, "loss", "Validation loss"),
            **validation_facts(state.notes, "bpb", "Final validation bpb"),
            **shown,
            "Epochs": {"value": source.epoch, "format": ".2f"},
            "Conversations read": counts["conversations"],
            "Shortened, being too long": counts["shortened"],
            "Left out, being too long": counts["left out"],
            "Padding": {"value": 100 * counts["padding"], "format": ".2f", "unit": "%"},
        }


@contextmanager
def fine_tuning(stage: str, parent: str, config: FineTune, rows: int = 0) -> Iterator[FineTuning]:
    """A run of a stage, from the newest checkpoint in its own folder, or else from that of a run of the parent.

    rows: of a step, where they follow from something else than a batch size in tokens.
    """
    outcome, folder = Outcome.begin(stage, config.tag, config), stage_dir(stage, config.tag)
    with (
        setup(config.device_type, config.dtype, config.attention) as runtime,
        hold_for_all(folder, runtime),
    ):
        begun = run_to_go_on_with(folder, config, None, runtime)
        step = None if config.model_step < 0 else config.model_step
        origin = begun or find_model(parent, config.model_tag or config.tag, step, runtime)
        manifest = origin.manifest
        if config.warm_start and not begun and not manifest["optimizer"]:
            raise ValueError(f"{origin.path} has no optimizer's state to begin with, give --no-warm-start")
        settings, shape = inherit(config, manifest), config_of(manifest)
        came_from = {"stage": parent, "tag": config.model_tag or config.tag, "step": origin.step}
        about = {"stage": stage, "parent": manifest["parent"] if begun else came_from}
        about["tokenizer"] = manifest["tokenizer"]
        runtime = runtime.with_dtype(manifest["dtype"]) if begun else runtime
        batch = rows * settings.max_seq_len or settings.total_batch_size
        settings = replace(settings, total_batch_size=batch)
        steps = None if settings.num_iterations < 0 else settings.num_iterations
        model, optimizer, rows = build(shape, settings, batch, steps, settings.weight_decay, origin, runtime)
        for group in optimizer.groups:
            group.initial_lr *= settings.init_lr_frac
        if settings.warm_start and not begun:
            optimizer.load_state_tensors(origin.optimizer_state)
        with MetricLog(folder, config.run, asdict(settings)) as log:
            made = tokenizer_of(origin), model, optimizer, rows
            yield FineTuning(outcome, folder, settings, runtime, log, begun, about, *made)


def learned_from(tasks: Mapping[str, dict]) -> dict[str, Any]:
    """A table of the card: rows and files of each task."""
    rows = [[name, one["rows"], *file] for name, one in tasks.items() for file in one["files"].items()]
    columns = [["Task", ""], ["Rows", ",d"], ["File", ""], ["SHA-256", ""]]
    return {"title": "Learned from", "columns": columns, "rows": rows}


def first_rows(
    conversations: Sequence[dict], tokenizer: Tokenizer, supervise: str, length: int, most: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets (rows, length) of the first rows of one epoch, at most so many."""
    rows = []
    with ChatLoader(conversations, tokenizer, 1, length, supervise=supervise) as source:
        while len(rows) < most and source.epoch < 1:
            rows.append(next(source))
    inputs, targets = (torch.cat(part) for part in zip(*rows, strict=True))
    if not (targets >= 0).any():
        raise ValueError(f"the first conversations to validate on do not fit into {length} tokens: take more")
    return inputs, targets
