"""Supervised fine-tuning: learn the assistant's part of conversations and tasks.

python -m scripts.chat_sft --tag=d8
python -m scripts.chat_sft --tag=d8 --mixture=json:my_chats.jsonl --num-epochs=3
"""

from dataclasses import dataclass

from nanochat.config import changed, run
from nanochat.settings import ChatTuneSettings, FineTuneSettings
from nanochat.stages import Source
from tasks import chat_data, chat_mixture

# A little of each task: the model has the abilities by now, and learns the form of an answer.
MIXTURE = (
    "ARC-Easy,ARC-Challenge,GSM8K,AQUA@20000,SmolTalk|Multi-Turn@10000,Identity,SimpleSpelling@300,SpellingBee@300"
)


@dataclass(frozen=True)
class Config(ChatTuneSettings):
    """Fine-tune on the assistant's part of conversations. Settings that are None are the parent's."""

    source: Source = changed(FineTuneSettings, "source", "mid")
    warmdown_ratio: float = changed(FineTuneSettings, "warmdown_ratio", 1.0)


def main(config: Config) -> None:
    # Slow imports stay out of --help.
    from nanochat.evals.chat import chat_validation, task_scores
    from nanochat.run import training
    from nanochat.tuning import print_plan, tune_on_chats

    if config.plan_only:
        print_plan(config, lambda tokenizer: chat_mixture(config, MIXTURE, tokenizer))
        return
    with training("chat_sft", config) as trainer:
        chats, new_chats, tasks = chat_data(config, MIXTURE, trainer.tokenizer_tag)
        evaluations = chat_validation(trainer, new_chats, "assistant") + task_scores(trainer, tasks)
        metrics = {}
        for split, found in (("train", chats), ("val", new_chats)):
            counts = [found.examples[name] for name in ("AQUA", "AQUA-Rationale") if name in found.examples]
            if counts:
                metrics[f"aqua_{split}_examples"] = sum(counts)
        tune_on_chats(trainer, chats, new_chats, "assistant", evaluations, metrics)


if __name__ == "__main__":
    run(main, Config)
