"""Midtraining: learn the form of conversations and tasks, from all of their tokens.

python -m scripts.mid_train --tag=d8
torchrun --standalone --nproc_per_node=8 -m scripts.mid_train -- --tag=d24
"""

from dataclasses import dataclass

from nanochat.config import changed, run
from nanochat.settings import ChatTuneSettings
from tasks import mixture, open_tasks

# Conversations, choices by letter, and calls of the calculator; small sets are repeated.
MIXTURE = "SmolTalk,Identity:2,MMLU:3,GSM8K:4,AQUA@20000,SimpleSpelling,SpellingBee"


@dataclass(frozen=True)
class Config(ChatTuneSettings):
    """Train on all tokens of conversations and tasks. Settings that are None are the parent's."""

    mixture: str = changed(ChatTuneSettings, "mixture", MIXTURE)


def main(config: Config) -> None:
    # Slow imports stay out of --help.
    from nanochat.evals.bpb import chat_validation
    from nanochat.evals.chat import task_scores
    from nanochat.objectives import next_token
    from nanochat.outcome import chat_tuning_metrics
    from nanochat.packing import ChatLoader
    from nanochat.run import training

    with training("mid_train", config) as trainer:
        vocabulary = trainer.tokenizer_tag  # for the spelling tasks
        chats = mixture(config.mixture, "train", config.seed, MIXTURE, tokenizer=vocabulary)
        new_chats = mixture(config.mixture, "validation", config.seed, MIXTURE, tokenizer=vocabulary)
        tasks = {}
        if config.eval_metrics_every >= 0:
            tasks = open_tasks(config.eval_metrics_tasks, tokenizer=vocabulary)
        source = ChatLoader(
            chats,
            trainer.tokenizer,
            trainer.rows,
            trainer.config.max_seq_len,
            supervise="all",
            epochs=config.epochs,
            seed=config.seed,
            rank=trainer.runtime.rank,
            world_size=trainer.runtime.world_size,
            device=trainer.runtime.device,
        )
        evaluations = chat_validation(trainer, new_chats, "all") + task_scores(trainer, tasks)
        state = trainer.fit(source, next_token, evaluations, tasks=chats.origin)
        rows = {"Training rows": len(chats), "Validation rows": len(new_chats)}
        trainer.finish(state, rows | chat_tuning_metrics(state, source))


if __name__ == "__main__":
    run(main, Config)
