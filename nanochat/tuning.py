"""Fine-tuning: training on conversations, and the dry run of a fine-tuning stage."""

from collections.abc import Callable, Sequence
from statistics import fmean

from nanochat.chat import render_conversation
from nanochat.checkpoint import tokenizer_of, verified
from nanochat.log import Record, print0
from nanochat.objectives import next_token
from nanochat.outcome import kept_figures, measured, validation_metrics
from nanochat.packing import ChatLoader
from nanochat.protocols import Conversations, Mixture
from nanochat.run import Trainer, inherit
from nanochat.settings import FineTuneSettings
from nanochat.stages import MODELS
from nanochat.train import Evaluation

SAMPLED = 200  # conversations that are tokenized to estimate the length of all


def print_plan(config: FineTuneSettings, open_rows: Callable[[str], Conversations], rows_per_step: int = 0) -> None:
    """Print the parent, rows, steps and rates of a fine-tuning run; nothing is trained.

    open_rows: returns the conversations to learn from, given a tokenizer's tag. rows_per_step: of a step; 0 if it has
    total_batch_size tokens.
    """
    parent = MODELS[config.source], config.model_tag or config.tag
    checkpoint = verified(*parent)
    rows = open_rows(checkpoint.manifest["tokenizer"]["tag"])
    config = inherit(config, checkpoint.manifest)
    if not rows_per_step:
        tokenizer = tokenizer_of(checkpoint)
        sample = [len(render_conversation(rows[number], tokenizer)[0]) for number in range(min(SAMPLED, len(rows)))]
        # A longer conversation is shortened, or left out.
        rows_per_step = config.total_batch_size / fmean(min(count, config.max_seq_len) for count in sample)
    steps = config.num_iterations if config.num_iterations != -1 else int(config.epochs * len(rows) / rows_per_step)
    until = f"about {max(steps, 1):,}"
    if config.target_seconds != -1:
        until = f"as many as {config.target_seconds:g} seconds allow"
    print0(
        f"Parent: {' '.join(parent)}, step {checkpoint.step:,}",
        f"Training rows: {len(rows):,}",
        f"Steps: {until}",
        f"Learning rates: x {config.init_lr_frac:g} at the start, x {config.final_lr_frac:g} of that at the end",
        sep="\n",
    )


def tune_on_chats(
    trainer: Trainer,
    chats: Mixture,
    new_chats: Mixture,
    supervise: str,
    evaluations: Sequence[Evaluation],
    metrics: Record,
) -> None:
    """Train on conversations and write the outcome; the config is ChatTuneSettings.

    new_chats: for validation; they are counted. supervise: as in ChatLoader. metrics: further ones.
    """
    config, runtime = trainer.config, trainer.runtime
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
