"""Pretrain the base model: predict the next token of a corpus.

python -m scripts.base_train --depth=8
torchrun --standalone --nproc_per_node=8 -m scripts.base_train -- --depth=24 --fp8
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from nanochat.config import Count, option, options, run_script
from nanochat.metrics import pretraining_metrics, scale_metrics
from nanochat.settings import PretrainSettings

if TYPE_CHECKING:
    from nanochat.data.corpus import Corpus
    from nanochat.dataloader import TextLoader
    from nanochat.objectives import ChangingObjective, Objective
    from nanochat.run import Trainer
    from nanochat.train import Evaluation


@options("evaluation")
class Config(PretrainSettings):
    """Pretrain the base model on a corpus. Everything that is not given follows from --depth."""

    core_metric_every: Count = option(
        -1, "estimate the CORE metric every N steps (0: only after training; -1: never)", least=-1, may_change=True
    )
    # 500 items of each task keep the estimate cheap; scripts.base_eval scores all.
    core_metric_max_per_task: Count = option(
        500, "items of each task for that estimate (-1: all)", least=-1, may_change=True
    )
    sample_every: Count = option(
        2000, "print samples every N steps (0: only after training; -1: never)", least=-1, may_change=True
    )


def main(config: Config) -> None:
    from nanochat.evals.bpb import text_validation
    from nanochat.objectives import next_token

    pretrain(config, next_token, text_validation)


def pretrain(
    config: Config,
    objective: "Objective | ChangingObjective",
    validation: "Callable[[Trainer[Config], Corpus], list[Evaluation]]",
    open_source: "Callable[[Trainer[Config]], TextLoader] | None" = None,
) -> None:
    """Train a base model, or print its plan. Tracks call it with their own objective, validation and batches."""
    from nanochat.data.corpus import suggestions
    from nanochat.dataloader import open_text
    from nanochat.evals.bpb import sample_writing
    from nanochat.evals.core import core_scores
    from nanochat.run import training
    from nanochat.scaling import plan_with_tokenizer

    config = replace(config, tag=config.tag or f"d{config.depth}")
    plan, tokenizer = plan_with_tokenizer(config)
    if config.dry_run:
        from nanochat.cost import print_cost
        from nanochat.timing import core_pause, samples_pause

        core = core_pause(config.core_metric_every, config.core_metric_max_per_task)
        print_cost(plan, config, [core, samples_pause(config.sample_every)])
        return

    assert tokenizer is not None  # only a dry run does without
    # From here on the folder is locked, and the model is built.
    with training("base_train", config, plan, tokenizer) as trainer:
        source = open_text(trainer) if open_source is None else open_source(trainer)
        corpus = source.data
        # Due evaluations run in this order.
        evaluations = validation(trainer, corpus)
        evaluations += core_scores(trainer, config.core_metric_every, config.core_metric_max_per_task)
        evaluations.append(sample_writing(trainer, config.sample_every))
        state = trainer.fit(source, objective, evaluations, record={"suggestions": suggestions(corpus)})
        metrics = plan.summary | pretraining_metrics(state, corpus, source.epochs)
        metrics |= scale_metrics(state, trainer.runtime)
        trainer.finish(state, {"model_tag": config.tag} | metrics)


if __name__ == "__main__":
    run_script(main)
