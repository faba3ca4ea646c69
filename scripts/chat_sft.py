"""Supervised fine-tuning: learn the assistant's part of conversations and tasks.

python -m scripts.chat_sft --tag=d8
python -m scripts.chat_sft --tag=d8 --mixture=json:my_chats.jsonl --num-epochs=3
"""

from nanochat.config import options, run
from nanochat.settings import ChatTuneSettings
from tasks import train_on_chats

# A little of each task: the model has the abilities by now, and learns the form of an answer.
MIXTURE = (
    "ARC-Easy,ARC-Challenge,GSM8K,AQUA@20000,SmolTalk@10000,Identity,SimpleSpelling@300,SpellingBee@300,"
    "Multi-Turn@10000"
)


@options()
class Config(ChatTuneSettings):
    """Fine-tune on the assistant's part of conversations. Settings that are None are the parent's."""

    source = "mid"
    warmdown_ratio = 1.0


def main(config: Config) -> None:
    train_on_chats("chat_sft", config, MIXTURE, supervise="assistant")


if __name__ == "__main__":
    run(main)
