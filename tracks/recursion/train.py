"""Pretrain a recursive base model: the same layers run several times, with a loss at every exit.

python -m tracks.recursion.train --recursion=aggressive --depth=8
torchrun --standalone --nproc_per_node=8 -m tracks.recursion.train -- --recursion=extreme --depth=12
"""

from dataclasses import replace

from nanochat.config import options, run_script
from nanochat.metrics import pretraining_metrics, scale_metrics
from nanochat.settings import given
from scripts import base_train
from tracks.recursion.settings import RecursionSettings, with_preset


@options()
class Config(RecursionSettings, base_train.Config):
    """Pretrain a recursive model on a corpus. The checkpoint is a base model, from which all later stages start."""


def main(config: Config) -> None:
    from nanochat.dataloader import open_text
    from nanochat.evals.bpb import sample_writing
    from nanochat.evals.core import core_scores
    from nanochat.run import training
    from nanochat.scaling import plan_with_tokenizer
    from tracks.recursion.alarms import refinement_alarms
    from tracks.recursion.exits import exit_validation
    from tracks.recursion.objective import DeepSupervision

    config = with_preset(replace(config, tag=config.tag or f"d{config.depth}"))
    objective = DeepSupervision(given(config.supervision_base), given(config.improvement_reward))
    plan, tokenizer = plan_with_tokenizer(config)
    if config.dry_run:
        from nanochat.cost import print_cost

        print_cost(plan, config)
        return

    assert tokenizer is not None  # only a dry run does without
    with training("base_train", config, plan, tokenizer) as trainer:
        source = open_text(trainer)
        corpus = source.data
        # Due evaluations run in this order, before a checkpoint is saved.
        evaluations = exit_validation(trainer, corpus)
        evaluations += refinement_alarms(trainer)
        evaluations += core_scores(trainer, config.core_metric_every)
        evaluations.append(sample_writing(trainer, config.sample_every))
        state = trainer.fit(source, objective, evaluations)
        metrics = plan.summary | pretraining_metrics(state, corpus) | scale_metrics(state, trainer.runtime)
        trainer.finish(state, {"model_tag": config.tag} | metrics)


if __name__ == "__main__":
    run_script(main)
