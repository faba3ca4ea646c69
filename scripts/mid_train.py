"""Midtraining: learn the form of conversations and tasks, from all of their tokens.

python -m scripts.mid_train --tag=d8
torchrun --standalone --nproc_per_node=8 -m scripts.mid_train -- --tag=d24
"""

from nanochat.config import options, run_script
from nanochat.settings import ChatTuneSettings
from tasks import open_mixture, open_tasks, scored_kinds
from tasks.mixing import row_counts

# Conversations, choices by letter, AQUA's rationales, and calls of the calculator; small sets are repeated.
MIXTURE = "SmolTalk,Identity:2,MMLU:3,GSM8K:4,AQUA@20000,SimpleSpelling,SpellingBee,Multi-Turn"


@options()
class Config(ChatTuneSettings):
    """Train on all tokens of conversations and tasks. Settings that default to None are inherited from the parent."""


def main(config: Config) -> None:
    from nanochat.evals.chat import chat_validation, task_scores
    from nanochat.objectives import next_token
    from nanochat.packing import chat_metrics, open_chats
    from nanochat.run import tuning

    if config.dry_run:
        from nanochat.timing import MID_TOKENS
        from nanochat.tuning_plan import print_chat_plan

        print_chat_plan(
            config,
            lambda tokenizer: open_mixture(config, MIXTURE, tokenizer),
            MID_TOKENS,
            lambda tokenizer: scored_kinds(config.eval_metrics_tasks, tokenizer),
            supervise="all",
        )
        return
    with tuning("mid_train", config) as trainer:
        chats = open_mixture(config, MIXTURE, trainer.tokenizer_tag)
        new_chats = open_mixture(config, MIXTURE, trainer.tokenizer_tag, "validation")
        source = open_chats(trainer, chats, supervise="all")
        evaluations = chat_validation(trainer, new_chats, "all")
        evaluations += task_scores(trainer, open_tasks)
        state = trainer.fit(source, next_token, evaluations)
        trainer.finish(state, row_counts(chats, new_chats) | chat_metrics(state, source))


if __name__ == "__main__":
    run_script(main)
