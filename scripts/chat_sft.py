"""Supervised fine-tuning: learn the assistant's part of conversations and tasks.

python -m scripts.chat_sft --tag=d8
python -m scripts.chat_sft --tag=d8 --mixture=json:my_chats.jsonl --num-epochs=3
"""

from dataclasses import dataclass

from nanochat.config import changed, run
from nanochat.settings import ChatTuneSettings, FineTuneSettings
from tasks import mixture, open_tasks

# A little of each task: the model has the abilities by now, and learns the form of an answer.
MIXTURE = "ARC-Easy,ARC-Challenge,GSM8K,AQUA@20000,SmolTalk@10000,Identity,SimpleSpelling@300,SpellingBee@300"


@dataclass(frozen=True)
class Config(ChatTuneSettings):
    """Fine-tune on the assistant's part of conversations. Settings that are None are the parent's."""

    source: str = changed(FineTuneSettings, "source", "mid")
    mixture: str = changed(ChatTuneSettings, "mixture", MIXTURE)
    warmdown_ratio: float = changed(FineTuneSettings, "warmdown_ratio", 1.0)


def main(config: Config) -> None:
    # Slow imports stay out of --help.
    from nanochat.evals.bpb import chat_validation
    from nanochat.evals.chat import task_scores
    from nanochat.objectives import next_token
    from nanochat.outcome import chat_tuning_metrics
    from nanochat.packing import ChatLoader
    from nanochat.run import training

    with training("chat_sft", config) as trainer:
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
            supervise="assistant",
            epochs=config.epochs,
            seed=config.seed,
            rank=trainer.runtime.rank,
            world_size=trainer.runtime.world_size,
            device=trainer.runtime.device,
        )
        evaluations = chat_validation(trainer, new_chats, "assistant") + task_scores(trainer, tasks)
        state = trainer.fit(source, next_token, evaluations, tasks=chats.origin)
        metrics = {"Training rows": len(chats), "Validation rows": len(new_chats)}
        for split, found in (("train", chats), ("val", new_chats)):
            counts = [found.examples.get(name, 0) for name in ("AQUA", "AQUA-Rationale")]
            metrics[f"aqua_{split}_examples"] = sum(counts)
        trainer.finish(state, metrics | chat_tuning_metrics(state, source))


if __name__ == "__main__":
    run(main, Config)
