"""Pretrain a recursive base model: the same layers run several times, with a loss at every exit.

python -m tracks.recursion.train --recursion=aggressive --depth=8
torchrun --standalone --nproc_per_node=8 -m tracks.recursion.train -- --recursion=extreme --depth=12
"""

from typing import TYPE_CHECKING

from nanochat.config import options, run_script
from nanochat.settings import given
from scripts import base_train
from tracks.recursion.settings import RecursionSettings, with_preset

if TYPE_CHECKING:
    from nanochat.data.corpus import Corpus
    from nanochat.run import Trainer
    from nanochat.train import Evaluation


@options()
class Config(RecursionSettings, base_train.Config):
    """Pretrain a recursive model on a corpus. The checkpoint is a base model, from which all later stages start."""


def main(config: Config) -> None:
    from tracks.recursion.alarms import refinement_alarms
    from tracks.recursion.exits import exit_validation
    from tracks.recursion.objective import DeepSupervision

    def validation(trainer: "Trainer", corpus: "Corpus") -> "list[Evaluation]":
        return [*exit_validation(trainer, corpus), *refinement_alarms(trainer)]

    config = with_preset(config)
    objective = DeepSupervision(given(config.supervision_base), given(config.improvement_reward))
    base_train.pretrain(config, objective, validation)


if __name__ == "__main__":
    run_script(main)
