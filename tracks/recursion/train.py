"""Pretrain a recursive base model: the same layers run several times, with a loss at every exit.

python -m tracks.recursion.train --recursion=aggressive --depth=8
torchrun --standalone --nproc_per_node=8 -m tracks.recursion.train -- --recursion=extreme --depth=12
"""

from functools import partial
from typing import TYPE_CHECKING

from nanochat.config import options, run_script
from nanochat.settings import given
from scripts import base_train
from tracks.recursion.settings import RecursionSettings, with_preset

if TYPE_CHECKING:
    from nanochat.data.corpus import Corpus
    from nanochat.run import Trainer
    from nanochat.train import Evaluation
    from tracks.recursion.carry import CarriedText


@options()
class Config(RecursionSettings, base_train.Config):
    """Pretrain a recursive model on a corpus. The checkpoint is a base model, from which all later stages start."""


def main(config: Config) -> None:
    from tracks.recursion.alarms import refinement_alarms
    from tracks.recursion.carry import CarriedSupervision
    from tracks.recursion.exits import exit_validation
    from tracks.recursion.objective import Curriculum, DeepSupervision

    def validation(trainer: "Trainer", corpus: "Corpus") -> "list[Evaluation]":
        return [*exit_validation(trainer, corpus), *refinement_alarms(trainer)]

    config = with_preset(config)
    if config.carry:
        base_train.pretrain(config, CarriedSupervision(), validation, open_carried)
        return
    objective = DeepSupervision(given(config.supervision_base), given(config.improvement_reward))
    base_train.pretrain(config, Curriculum(objective, config.parts) if config.parts else objective, validation)


def open_carried(trainer: "Trainer") -> "CarriedText":
    """Return the source of text of which each batch comes once for each exit."""
    from nanochat.dataloader import open_text_as
    from tracks.recursion.carry import CarriedText

    return open_text_as(partial(CarriedText, model=trainer.model), trainer)


if __name__ == "__main__":
    run_script(main)
