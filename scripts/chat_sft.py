"""Supervised fine-tuning: learn the assistant's part of conversations and tasks.

python -m scripts.chat_sft --tag=d8
python -m scripts.chat_sft --tag=d8 --mixture=json:my_chats.jsonl --num-epochs=3
"""

from nanochat.config import options, run_script
from nanochat.settings import ChatTuneSettings
from tasks import open_mixture, open_tasks
from tasks.mixing import row_counts

# A little of each task: the model has the abilities by now, and learns the form of an answer. AQUA's are rationales.
MIXTURE = (
    "ARC-Easy,ARC-Challenge,GSM8K,AQUA@20000,SmolTalk@10000,Identity,SimpleSpelling@300,SpellingBee@300,"
    "Multi-Turn@10000"
)


@options()
class Config(ChatTuneSettings):
    """Fine-tune on the assistant's messages. Settings that default to None are inherited from the parent."""

    source = "mid"
    warmdown_ratio = 1.0


def main(config: Config) -> None:
    from nanochat.evals.chat import chat_validation, task_scores
    from nanochat.objectives import next_token
    from nanochat.packing import chat_metrics, open_chats
    from nanochat.run import tuning
    from nanochat.start import print_plan

    if config.dry_run:
        print_plan(config, lambda tokenizer: open_mixture(config, MIXTURE, tokenizer))
        return
    with tuning("chat_sft", config) as trainer:
        chats = open_mixture(config, MIXTURE, trainer.tokenizer_tag)
        new_chats = open_mixture(config, MIXTURE, trainer.tokenizer_tag, "validation")
        source = open_chats(trainer, chats, supervise="assistant")
        evaluations = chat_validation(trainer, new_chats, "assistant")
        evaluations += task_scores(trainer, open_tasks)
        state = trainer.fit(source, next_token, evaluations)
        trainer.finish(state, row_counts(chats, new_chats) | chat_metrics(state, source))


if __name__ == "__main__":
    run_script(main)
