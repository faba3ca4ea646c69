"""The original update: against a plain loop written out, in parts, after a stop, and what a step costs."""

import re
import signal

import pyarrow as pa
import pytest
import torch
import torch.nn.functional as F
from base_runs import Base, SignalAfter, files_of
from corpora import text_corpus
from loop_parts import furthest, train
from models import model_for
from torch import Tensor

from nanochat.gpt import GPT
from nanochat.optim import Group, Optimizer
from nanochat.param_groups import build_groups, group_rates
from nanochat.settings import OptimizerSettings
from nanochat.tokenizer import Tokenizer
from tracks.recursion.carry import CarriedSupervision, CarriedText
from tracks.recursion.tests.recursive_models import RECURSIVE
from tracks.recursion.tests.written_out import exit_written_out

ROWS, LENGTH, EXITS = 4, 24, 3
TEXTS = [f"{i}: the quick brown fox — 빠른 갈색 여우 {i**3:x} " * (1 + i % 3) for i in range(60)]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train([pa.array(TEXTS)], 300)


@pytest.fixture
def model(tokenizer: Tokenizer) -> GPT:
    return model_for(tokenizer, RECURSIVE["recursive"], max_seq_len=LENGTH)


@pytest.fixture
def text(model, tokenizer, tmp_path) -> CarriedText:
    corpus = text_corpus(tmp_path / "text", [TEXTS[:40], TEXTS[40:]], 10)
    return CarriedText(corpus, tokenizer, ROWS, LENGTH, lanes=4, model=model)


def groups_of(model: GPT) -> list[Group]:
    return build_groups(model, group_rates(OptimizerSettings(), model.config.width, 0.05, 0.0))


def plain_updates(model: GPT, batches: list[tuple[Tensor, Tensor]]) -> list[float]:
    """The original's loop: for each batch a step for each exit, from the states of the exit before, detached."""
    optimizer = Optimizer(groups_of(model))
    losses = []
    for inputs, targets in batches:
        states = None
        for _ in range(EXITS):
            y, z, logits = exit_written_out(model, inputs, states)
            loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            states = y.detach(), z.detach()
            losses.append(loss.item())
    return losses


@pytest.mark.parametrize("rows", [ROWS, 1])
def test_the_updates_are_those_of_the_original(text, model, tokenizer, rows, tmp_path) -> None:
    twin = model_for(tokenizer, RECURSIVE["recursive"], max_seq_len=LENGTH)
    with text:
        batches = []
        for number in range(2 * EXITS):
            batch = next(text)
            assert batch.exit == number % EXITS
            assert text.may_be_saved == (batch.exit == EXITS - 1)
            if batch.exit == 0:
                batches.append((batch.inputs, batch.targets))
        assert text.state_dict()["rows"] == 2 * ROWS
        text.close()
    expected = plain_updates(twin, batches)
    again = CarriedText(text.data, tokenizer, ROWS, LENGTH, lanes=4, model=model)
    options = {"device_batch": rows, "steps": 2 * EXITS, "schedules": {}, "groups": groups_of(model)}
    with again:
        trained = train(tmp_path / "run", model=model, source=again, objective=CarriedSupervision(), **options)
    assert [record["train/loss"] for record in trained.records] == pytest.approx(expected, rel=1e-4)
    expected = {name: parameter.detach() for name, parameter in twin.named_parameters()}
    # Its gradient is rounding.
    del expected["backout_lambda"], trained.parameters["backout_lambda"]
    assert furthest(trained.parameters, expected) < 1e-4
    for number, record in enumerate(trained.records):
        assert record[f"train/exit_{number % EXITS}"] == pytest.approx(record["train/loss"])


def test_a_step_that_starts_again_has_the_same_states(text, model) -> None:
    objective = CarriedSupervision()
    with text:
        for _ in range(EXITS):
            batch = next(text)
            first, _, _ = objective(model, batch)
            kept = [state.clone() for state in batch.after]
            parts = [objective(model, part).total for part in text.split(batch, 3)]
            torch.testing.assert_close(sum(parts), first)
            torch.testing.assert_close(list(batch.after), kept)


def test_a_batch_as_for_compiling_is_at_its_first_exit(model) -> None:
    ids = torch.zeros(2, LENGTH, dtype=torch.int64)
    loss, count, metrics = CarriedSupervision()(model, (ids, ids))
    assert list(metrics) == ["train/exit_0"]
    assert int(count) == ids.numel()
    model.steps = 1
    torch.testing.assert_close(loss, model(ids, ids))


def test_a_stopped_run_ends_its_batch_and_goes_on_exactly(tmp_path) -> None:
    base = Base(tmp_path)
    flags = ("--recursion=aggressive", "--depth=1", "--carry", "--supervision=3", "--num-iterations=12")
    script = "tracks.recursion.train"
    said = base.run("whole", *flags, script=script)
    assert "| exit: 2" in said
    base.run("stopped", *flags, script=script, before=SignalAfter(4, signal.SIGTERM))
    assert max(base.series("stopped", "train/loss")) == 6  # asked at step 4, in the middle of a batch
    base.run("stopped", *flags, script=script)
    assert base.losses("stopped") == base.losses("whole")
    assert files_of(base.of("stopped"), 12) == files_of(base.of("whole"), 12)
    # A batch of 8 rows comes three times, and a step costs a third of all exits.
    assert base.series("whole", "train/exit_1").keys() == {2, 5, 8, 11}
    # A clock ends it between two batches too, and a horizon that follows from a ratio or FLOPs is one of whole batches.
    clock = [flag for flag in flags if not flag.startswith("--num-iterations")]
    base.run("clock", *clock, "--num-iterations=-1", "--target-seconds=1e-9", script=script)
    assert max(base.series("clock", "train/loss")) == 3
    said = base.refused("flops", *clock, "--num-iterations=-1", "--target-flops=1e8", script=script)
    assert "--target-flops=1e+08 is below 3 steps, which belong together and have " in said
    least = float(re.findall(r"and have (\S+) FLOPs", said)[0])
    budget = ("--num-iterations=-1", f"--target-flops={1.4 * least:g}", "--eval-every=250")
    said = base.run("flops", *clock, *budget, script=script)
    assert re.search(r"num_iterations 3 = \S+ FLOPs / those of a step", said)
    assert "carry: validation after whole batches, every 252 steps" in said
    assert max(base.series("flops", "train/loss")) == 3
    together = base.run("together", *flags[:2], "--supervision=3", "--num-iterations=1", script=script)
    assert "exits: " in together
    carried, whole = (
        base.outcome(tag)["metrics"]["Number of FLOPs per token"]["value"] for tag in ("whole", "together")
    )
    assert carried == pytest.approx(whole / 3, abs=1)
