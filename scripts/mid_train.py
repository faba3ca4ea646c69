"""Between pretraining and fine-tuning: all tokens of conversations and tasks, so that the model learns their form.

python -m scripts.mid_train --tag=d8
torchrun --standalone --nproc_per_node=8 -m scripts.mid_train -- --tag=d24
"""

from dataclasses import dataclass

from nanochat.config import option, run
from nanochat.inherit import MIXED, ChatTraining
from nanochat.stages import MODELS
from tasks import mixture, open_tasks

# Conversations, choosing by letter, and calling the calculator; the small sets are read more often.
MIXTURE = "SmolTalk,Identity:2,MMLU:3,GSM8K:4,AQUA@20000,SimpleSpelling,SpellingBee"


@dataclass(frozen=True)
class Config(ChatTraining):
    """Train on all tokens of conversations and tasks. Settings that are None are the parent's."""

    mixture: str = option(MIXTURE, MIXED, group="data")


def main(config: Config) -> None:
    # Slow imports stay out of --help.
    from nanochat.finetune import fine_tuning
    from nanochat.objectives import next_token

    with fine_tuning("mid_train", MODELS[config.source], config) as tuning:
        words = {"tokenizer": tuning.about["tokenizer"]["tag"]}  # to spell
        about = config.seed, MIXTURE
        chats, new_chats = (mixture(config.mixture, split, *about, **words) for split in ("train", "validation"))
        tasks = open_tasks(config.eval_metrics_tasks, **words) if config.eval_metrics_every >= 0 else {}
        source = tuning.chats(chats, "all")
        hooks = tuning.validating(new_chats, "all") + tuning.scoring(tasks)
        state = tuning.train(source, next_token, hooks, chats.origin)
        rows = {"Training rows": len(chats), "Validation rows": len(new_chats)}
        tuning.finish(state, rows | tuning.told(state, source))


if __name__ == "__main__":
    run(main, Config)
