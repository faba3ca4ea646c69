"""What a stage takes from the one before it, and what is refused."""

import dataclasses
from typing import get_args

import pytest
from conftest import cells

from nanochat.config import parse
from nanochat.gpt import MLP_KINDS, MLPName
from nanochat.jobs.plan import STEPS, StepName
from nanochat.jobs.scales import SCALES, ScaleName
from nanochat.settings import AnswerTuneSettings, ChatTuneSettings, FineTuneSettings, ModelChoice
from nanochat.stages import MODELS, Source
from nanochat.start import inherit
from nanochat.world.writer import SIZES, Size

LITERALS = [
    (Source, MODELS),
    (Size, SIZES),
    (ScaleName, SCALES),
    (StepName, STEPS),
    (MLPName, MLP_KINDS),
]


@pytest.mark.parametrize(("names", "table"), LITERALS)
def test_a_flags_type_names_the_keys_of_its_table(names, table) -> None:
    assert get_args(names) == tuple(table)


RATES = {"embedding_lr": 0.3, "unembedding_lr": 0.008, "matrix_lr": 0.02, "scalar_lr": 0.5}
BASE = {
    "config": {"max_seq_len": 64, "total_batch_size": -1, "grad_clip": 1.0, "weight_decay": 0.28, "seed": 7, **RATES},
    "loop": {"tokens": 2560, "step": 10},
    "model": {"max_seq_len": 64},
}


def test_what_is_not_given_is_the_parents(capsys) -> None:
    asked = parse(ChatTuneSettings, ["--matrix-lr=0.1", "--max-seq-len=32"])
    given = inherit(asked, BASE)
    assert (given.matrix_lr, given.max_seq_len) == (0.1, 32)
    assert (given.embedding_lr, given.grad_clip) == (0.3, 1.0)
    assert given.total_batch_size == 256  # the tokens of its steps, where the horizon decided
    assert (given.weight_decay, given.seed) == (0.0, 42)  # these are the stage's own
    assert "total_batch_size=256" in capsys.readouterr().out
    assert None not in dataclasses.asdict(given).values()
    child = BASE | {"config": dataclasses.asdict(inherit(parse(ChatTuneSettings, ["--total-batch-size=128"]), BASE))}
    assert inherit(ChatTuneSettings(), child).total_batch_size == 128
    assert inherit(ChatTuneSettings(matrix_lr=1.0), child).matrix_lr == 1.0
    with pytest.raises(ValueError, match="--max-seq-len=65 is longer than the model's context, use at most 64"):
        inherit(ChatTuneSettings(max_seq_len=65), BASE)


def test_answers_begin_at_a_fraction_that_fits_the_parents_rates() -> None:
    """A child has recorded its own fraction, which says nothing about another stage's."""
    tuned = BASE | {"config": BASE["config"] | {"init_lr_frac": 0.8}}
    public = tuned | {"public": {"from": "hub:someone/small"}}
    asked = parse(AnswerTuneSettings, [])
    assert inherit(asked, tuned).init_lr_frac == 0.015
    assert inherit(asked, public).init_lr_frac == 0.3
    assert inherit(parse(AnswerTuneSettings, ["--init-lr-frac=2"]), public).init_lr_frac == 2
    assert inherit(parse(ChatTuneSettings, []), public).init_lr_frac == 0.8
    # A run that resumes has its own manifest.
    assert inherit(asked, tuned, is_own=True).init_lr_frac == 0.8


HORIZONS = """
--num-iterations=0 | --num-iterations has to be more than 0, not 0
--num-epochs=nan | --num-epochs has to be more than 0, not nan
--target-supervised-tokens=0 | --target-supervised-tokens has to be more than 0, not 0
--target-supervised-tokens=9 --num-epochs=2 | --num-epochs and --target-supervised-tokens both set the length
--num-epochs=0.5 --num-iterations=5 | --num-iterations and --num-epochs both set the length of the run: keep one
"""


def test_an_evaluation_with_fewer_exits_or_rounded_weights_has_a_place_of_its_own() -> None:
    asked = [
        ModelChoice(tag="d4", exits=exits, quant=quant).evaluation_tag() for exits in (0, 2) for quant in ("", "a=b")
    ]
    assert asked == ["d4", "d4-a-b", "d4-exits-2", "d4-exits-2-a-b"]
    assert ModelChoice(tag="d4", exits=2).evaluation_tag("mine") == "mine-exits-2"


def test_there_is_one_horizon_and_unasked_it_is_one_epoch() -> None:
    for flags, sentence in cells(HORIZONS):
        with pytest.raises(ValueError, match=sentence):
            parse(ChatTuneSettings, flags.split())
    assert (parse(FineTuneSettings, []).epochs, parse(FineTuneSettings, ["--num-epochs=2.5"]).epochs) == (1.0, 2.5)
