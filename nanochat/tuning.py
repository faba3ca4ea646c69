"""Fine-tuning: training on conversations, and the dry run of a fine-tuning stage.

A dry run prints the inherited settings, the rows, the steps and the cost; nothing is trained.
"""

import math
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext, redirect_stdout
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from nanochat.chat import render_conversation
from nanochat.checkpoint import tokenizer_of, verified
from nanochat.log import Record, print0
from nanochat.models import config_of, new_model
from nanochat.objectives import next_token
from nanochat.outcome import kept_figures, measured, validation_metrics
from nanochat.packing import ChatLoader
from nanochat.param_groups import parameter_counts, state_bytes
from nanochat.run import inherit
from nanochat.scaling import RunPlan, dry_run
from nanochat.settings import FineTuneSettings
from nanochat.stages import MODELS
from nanochat.train import Evaluation

if TYPE_CHECKING:
    from nanochat.run import Trainer

Mixture = Any  # tasks.mixing.Mixture, which nanochat/ does not import

OpenRows = Callable[[str], Sequence[dict]]  # from the tag of a tokenizer to conversations

FEW_STEPS = 100  # below, the learning rate falls in large jumps, and few evaluations are made
SAMPLED = 200  # conversations that are tokenized to estimate the length of all


def print_plan(config: FineTuneSettings, open_rows: OpenRows, answers: int = 0, longest: int = 0) -> None:
    """Print the plan of a fine-tuning run.

    open_rows: returns the conversations to learn from. answers: to learn from for each of them, of at most `longest`
    tokens (0: as long as the context); 0 for training on the conversations themselves.
    """
    # For programs: nothing else on stdout.
    with redirect_stdout(sys.stderr) if config.json else nullcontext():
        config, plan = _plan(config, open_rows, answers, longest)
        # Its speed is that of a finished base training of this depth, if there is one.
        like_base = SimpleNamespace(**asdict(config), depth=plan.model.depth, fp8=False)
        lines = dry_run(plan, like_base)
    if not config.json:
        print0(*plan.notes, sep="\n")
    print0(*lines, sep="\n")


def _plan(
    config: FineTuneSettings, open_rows: OpenRows, answers: int, longest: int
) -> tuple[FineTuneSettings, RunPlan]:
    """Return the settings with the values of the parent, and the plan."""
    parent = MODELS[config.source], config.model_tag or config.tag
    checkpoint = verified(*parent)
    rows = open_rows(checkpoint.manifest["tokenizer"]["tag"])
    config = inherit(config, checkpoint.manifest)
    notes = [f"Parent: {' '.join(parent)}, step {checkpoint.step:,}", f"Training rows: {len(rows):,}"]
    rows_read = config.epochs * len(rows)
    if answers:
        prompts = config.examples_per_step
        config = replace(config, total_batch_size=answers * prompts * config.max_seq_len)
        steps = math.floor(rows_read / prompts)
        longest = longest or config.max_seq_len
        notes.append(f"A step: {prompts} prompts, {answers * prompts} answers of at most {longest} tokens")
        notes.append("The time is that of training on answers as long as the context, without sampling them")
    else:
        tokenizer = tokenizer_of(checkpoint)
        sample = [len(render_conversation(rows[number], tokenizer)[0]) for number in range(min(SAMPLED, len(rows)))]
        # A longer conversation is shortened, or left out.
        length = sum(min(count, config.max_seq_len) for count in sample) / len(sample)
        steps = rows_read * length / config.total_batch_size
        notes.append(f"Tokens of a row: about {length:.0f} ({len(sample)} were counted)")
        notes.append(f"A step: {config.total_batch_size:,} tokens")
    # Steps or seconds end the run before the epochs do.
    steps = config.num_iterations if config.num_iterations != -1 else max(1, math.ceil(steps))
    if config.target_seconds != -1:
        steps = None
    until = f"{steps:,}" if steps else f"as many as {config.target_seconds:g} seconds allow"
    notes.append(f"Steps: {until}")
    if steps and steps < FEW_STEPS and config.num_iterations == -1:
        flag = "--examples-per-step" if answers else "--total-batch-size"
        notes.append(f"Warning: only {steps} steps: a smaller {flag} gives more")
    rates = f"x {config.init_lr_frac:g} at the start, x {config.final_lr_frac:g} of that at the end"
    notes.append(f"Learning rates: {rates}")
    model = new_model(config_of(checkpoint.manifest))
    plan = RunPlan(
        model=model.config,
        counts=parameter_counts(model),
        state_bytes=state_bytes(model),
        flops_per_token=model.flops_per_token(),
        total_batch_size=config.total_batch_size,
        decay_scale=1.0,
        steps=steps,
        seconds=None if steps else config.target_seconds,
        notes=notes,
    )
    return config, plan


def tune_on_chats(
    trainer: "Trainer",
    chats: Mixture,
    new_chats: Mixture,
    supervise: str,
    evaluations: Sequence[Evaluation],
    metrics: Record,
) -> None:
    """Train on conversations and write the outcome; the config is ChatTuneSettings.

    new_chats: for validation; they are counted, and asked for questions to suggest. supervise: as in ChatLoader.
    metrics: further ones.
    """
    config, runtime = trainer.config, trainer.runtime
    trainer.start.record["suggestions"] = new_chats.questions()
    source = ChatLoader(
        chats,
        trainer.tokenizer,
        trainer.rows,
        config.max_seq_len,
        supervise=supervise,
        epochs=config.epochs,
        seed=config.seed,
        rank=runtime.rank,
        world_size=runtime.world_size,
        device=runtime.device,
    )
    state = trainer.fit(source, next_token, evaluations, tasks=chats.origin)
    mixture = ", ".join(f"{name} {rows:,}" for name, rows in chats.rows.items())
    rows = {"Rows by task": mixture, "Training rows": len(chats), "Validation rows": len(new_chats)}
    counts = source.describe()
    found = {
        "Number of iterations": state.step,
        "Training loss": measured(state.loss),
        **validation_metrics(state, "loss", "Validation loss"),
        **validation_metrics(state, "bpb", "Final validation bpb"),
        **kept_figures(state, "last", "chat/"),
        "Epochs": measured(source.epoch, spec=".2f"),
        "Conversations read": counts["conversations"],
        "Shortened, being too long": counts["shortened"],
        "Left out, being too long": counts["left out"],
        "Padding": measured(100 * counts["padding"], spec=".2f", unit="%"),
    }
    trainer.finish(state, rows | metrics | found)
