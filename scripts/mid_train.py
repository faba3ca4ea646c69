"""Midtraining: learn the form of conversations and tasks, from all of their tokens.

python -m scripts.mid_train --tag=d8
torchrun --standalone --nproc_per_node=8 -m scripts.mid_train -- --tag=d24
"""

from dataclasses import dataclass

from nanochat.config import run
from nanochat.settings import ChatTuneSettings
from tasks import chat_data, chat_mixture

# Conversations, choices by letter, and calls of the calculator; small sets are repeated.
MIXTURE = "SmolTalk|Multi-Turn,Identity:2,MMLU:3,GSM8K:4,AQUA@20000,SimpleSpelling,SpellingBee"


@dataclass(frozen=True)
class Config(ChatTuneSettings):
    """Train on all tokens of conversations and tasks. Settings that are None are the parent's."""


def main(config: Config) -> None:
    # Slow imports stay out of --help.
    from nanochat.evals.chat import chat_validation, task_scores
    from nanochat.run import training
    from nanochat.tuning import print_plan, tune_on_chats

    if config.plan_only:
        print_plan(config, lambda tokenizer: chat_mixture(config, MIXTURE, tokenizer))
        return
    with training("mid_train", config) as trainer:
        chats, new_chats, tasks = chat_data(config, MIXTURE, trainer.tokenizer_tag)
        evaluations = chat_validation(trainer, new_chats, "all") + task_scores(trainer, tasks)
        tune_on_chats(trainer, chats, new_chats, "all", evaluations, {})


if __name__ == "__main__":
    run(main, Config)
