"""Supervised fine-tuning: learn the assistant's part of conversations and tasks.

python -m scripts.chat_sft --tag=d8
python -m scripts.chat_sft --tag=d8 --mixture=json:my_chats.jsonl --num-epochs=3
"""

import re

from nanochat.config import options, run
from nanochat.log import Record
from nanochat.settings import ChatTuneSettings
from tasks import train_on_chats
from tasks.mixing import Mixture

# A little of each task: the model has the abilities by now, and learns the form of an answer.
MIXTURE = (
    "ARC-Easy,ARC-Challenge,GSM8K,AQUA@20000,SmolTalk|Multi-Turn@10000,Identity,SimpleSpelling@300,SpellingBee@300"
)


@options()
class Config(ChatTuneSettings):
    """Fine-tune on the assistant's part of conversations. Settings that are None are the parent's."""

    source = "mid"
    warmdown_ratio = 1.0


def count_aqua(chats: Mixture, new_chats: Mixture) -> Record:
    """Return the number of conversations from AQUA, as metrics; none for a mixture without it."""
    metrics = {}
    for split, found in (("train", chats), ("val", new_chats)):
        # Augmented ones too, such as AQUA~styles:2.
        counts = [rows for name, rows in found.examples.items() if re.match("AQUA(~|$)", name)]
        if counts:
            metrics[f"aqua_{split}_examples"] = sum(counts)
    return metrics


def main(config: Config) -> None:
    train_on_chats("chat_sft", config, MIXTURE, supervise="assistant", count=count_aqua)


if __name__ == "__main__":
    run(main, Config)
