"""Supervised fine-tuning: learn the assistant's part of conversations and tasks.

python -m scripts.chat_sft --tag=d8
python -m scripts.chat_sft --tag=d8 --mixture=json:my_chats.jsonl --num-epochs=3
"""

from nanochat.config import options, run_script
from nanochat.settings import ChatTuneSettings
from tasks import SFT_MIXTURE, open_mixture, open_tasks, scored_kinds
from tasks.mixing import row_counts


@options()
class Config(ChatTuneSettings):
    """Fine-tune on the assistant's messages. Settings that default to None are inherited from the parent."""

    source = "mid"
    warmdown_ratio = 1.0


def main(config: Config) -> None:
    from nanochat.evals.chat import chat_validation, task_scores
    from nanochat.packing import answer_tokens, chat_metrics, open_chats
    from nanochat.run import tuning

    if config.dry_run:
        from nanochat.timing import SFT_TOKENS
        from nanochat.tuning_plan import print_chat_plan

        print_chat_plan(
            config,
            lambda tokenizer: open_mixture(config, SFT_MIXTURE, tokenizer),
            SFT_TOKENS,
            lambda tokenizer: scored_kinds(config.eval_metrics_tasks, tokenizer),
        )
        return
    with tuning("chat_sft", config) as trainer:
        chats = open_mixture(config, SFT_MIXTURE, trainer.tokenizer_tag)
        new_chats = open_mixture(config, SFT_MIXTURE, trainer.tokenizer_tag, "validation")
        source = open_chats(trainer, chats, supervise="assistant")
        evaluations = chat_validation(trainer, new_chats, "assistant")
        evaluations += task_scores(trainer, open_tasks)
        state = trainer.fit(source, answer_tokens, evaluations)
        trainer.finish(state, row_counts(chats, new_chats) | chat_metrics(state, source))


if __name__ == "__main__":
    run_script(main)
