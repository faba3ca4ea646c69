"""Fine-tune a model on what the assistant says in conversations.

python -m scripts.chat_sft --tag=d8
python -m scripts.chat_sft --tag=d8 --source=base --mixture=json:my_chats.jsonl --num-epochs=3
"""

from dataclasses import dataclass

from nanochat.config import option, run
from nanochat.inherit import ChatTraining
from nanochat.stages import MODELS
from tasks import mixture, open_tasks

MIXTURE = "ARC-Easy,ARC-Challenge,GSM8K,AQUA:0.2,SmolTalk:0.02"


@dataclass(frozen=True)
class Config(ChatTraining):
    """Fine-tune a model on what the assistant says in conversations. Settings not given are the parent's."""

    source: str = option("mid", f"stage whose model to take: {', '.join(MODELS)}", group="run")


def main(config: Config) -> None:
    # Slow imports stay out of --help.
    from nanochat.finetune import fine_tuning
    from nanochat.objectives import next_token

    with fine_tuning("chat_sft", MODELS[config.source], config) as run:
        chats, new_chats = (mixture(config.mixture, split, config.seed) for split in ("train", "validation"))
        tasks = open_tasks(config.eval_metrics_tasks)
        source = run.chats(chats, "assistant")
        hooks = run.validating(new_chats, "assistant") + run.scoring(tasks)
        state = run.train(source, next_token, config.num_iterations, hooks)
        run.finish(state, {"Training rows": len(chats)} | run.told(state, source))


if __name__ == "__main__":
    run(main, Config)
