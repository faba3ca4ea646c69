"""Fine-tuning: training on conversations, from the source to the outcome."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nanochat.log import Record
from nanochat.objectives import next_token
from nanochat.outcome import kept_figures, measured, validation_metrics
from nanochat.packing import ChatLoader
from nanochat.train import Evaluation

if TYPE_CHECKING:
    from nanochat.run import Trainer

Mixture = Any  # tasks.mixing.Mixture, which nanochat/ does not import


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
