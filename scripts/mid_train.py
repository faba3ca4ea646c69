"""Midtraining: learn the form of conversations and tasks, from all of their tokens.

python -m scripts.mid_train --tag=d8
torchrun --standalone --nproc_per_node=8 -m scripts.mid_train -- --tag=d24
"""

from nanochat.config import options, run
from nanochat.settings import ChatTuneSettings
from tasks import train_on_chats

# Conversations, choices by letter, and calls of the calculator; small sets are repeated.
MIXTURE = "SmolTalk,Identity:2,MMLU:3,GSM8K:4,AQUA@20000,SimpleSpelling,SpellingBee,Multi-Turn"


@options()
class Config(ChatTuneSettings):
    """Train on all tokens of conversations and tasks. Settings that are None are the parent's."""


def main(config: Config) -> None:
    train_on_chats("mid_train", config, MIXTURE, supervise="all")


if __name__ == "__main__":
    run(main)
