"""Fine-tuning on what the assistant says in conversations and tasks.

python -m scripts.chat_sft --tag=d8
python -m scripts.chat_sft --tag=d8 --mixture=json:my_chats.jsonl --num-epochs=3
"""

from dataclasses import dataclass

from nanochat.config import option, run
from nanochat.inherit import MIXED, ChatTraining
from nanochat.stages import MODELS
from tasks import mixture, open_tasks

# Little of much: what the model can do by now is to come out in the right form.
MIXTURE = "ARC-Easy,ARC-Challenge,GSM8K,AQUA@20000,SmolTalk@10000,Identity,SimpleSpelling@300,SpellingBee@300"


@dataclass(frozen=True)
class Config(ChatTraining):
    """Fine-tune on what the assistant says. Settings that are None are the parent's."""

    source: str = option("mid", f"stage whose model to take: {', '.join(MODELS)}", group="run")
    mixture: str = option(MIXTURE, MIXED, group="data")
    warmdown_ratio: float = option(1.0, "share of the run in which the learning rate falls", group="optimizer", least=0)


def main(config: Config) -> None:
    # Slow imports stay out of --help.
    from nanochat.finetune import fine_tuning
    from nanochat.objectives import next_token

    with fine_tuning("chat_sft", MODELS[config.source], config) as tuning:
        words = {"tokenizer": tuning.about["tokenizer"]["tag"]}  # to spell
        about = config.seed, MIXTURE
        chats, new_chats = (mixture(config.mixture, split, *about, **words) for split in ("train", "validation"))
        tasks = open_tasks(config.eval_metrics_tasks, **words) if config.eval_metrics_every >= 0 else {}
        source = tuning.chats(chats, "assistant")
        hooks = tuning.validating(new_chats, "assistant") + tuning.scoring(tasks)
        state = tuning.train(source, next_token, hooks, chats.origin)
        rows = {"Training rows": len(chats), "Validation rows": len(new_chats)}
        of_aqua = [name for name in ("AQUA", "AQUA-Rationale") if name in chats.examples]
        aqua = (sum(found.examples.get(name, 0) for name in of_aqua) for found in (chats, new_chats))
        rows |= dict(zip(("aqua_train_examples", "aqua_val_examples"), aqua, strict=True))
        tuning.finish(state, rows | tuning.told(state, source))


if __name__ == "__main__":
    run(main, Config)
