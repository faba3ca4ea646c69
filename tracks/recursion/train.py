"""Pretrain a recursive base model: the same layers run several times, with a loss at every exit.

python -m tracks.recursion.train --recursion=aggressive --depth=8
torchrun --standalone --nproc_per_node=8 -m tracks.recursion.train -- --recursion=extreme --depth=12
"""

from functools import partial
from typing import TYPE_CHECKING

from nanochat.config import options, run_script
from nanochat.errors import UserError
from nanochat.settings import given
from scripts import base_train
from tracks.recursion.settings import RecursionSettings, require_whole_batches, with_preset

if TYPE_CHECKING:
    from nanochat.data.corpus import Corpus
    from nanochat.dataloader import TextLoader
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
    if config.parts:
        base_train.pretrain(config, Curriculum(objective, config.parts), validation, open_for_curriculum)
        return
    base_train.pretrain(config, objective, validation)


def open_carried(trainer: "Trainer") -> "CarriedText":
    """Return the source of text of which each batch comes once for each exit."""
    from nanochat.dataloader import open_text_as
    from tracks.recursion.carry import CarriedText

    # Of a run that is resumed as well: its exits may be others.
    require_whole_batches(trainer.start.steps or -1, given(trainer.config.supervision))
    return open_text_as(partial(CarriedText, model=trainer.model), trainer)


def open_for_curriculum(trainer: "Trainer") -> "TextLoader":
    """Return the usual source of text; a UserError if a finished run is to go on with more steps."""
    from nanochat.dataloader import open_text

    resumed = trainer.start.resumed
    if resumed is not None and resumed.extended:
        raise UserError(
            f"{trainer.config.tag} has finished with --curriculum={trainer.config.curriculum}, and with more steps it"
            " would go back to fewer exits: train the longer run with another --tag"
        )
    return open_text(trainer)


if __name__ == "__main__":
    run_script(main)
