"""Fine-tuning from a base model: what it takes over, that it goes on as if nothing had been, and what it finds."""

import math
import signal
import string
from itertools import pairwise
from random import Random

import pytest
import torch
import tune_runs
from base_runs import Base, OwnFolders, SignalAfter, files_of
from chat_files import write_lines
from loop_parts import ALONE
from made_chats import chat
from tune_runs import STEPS, Tunes, sums

from nanochat.checkpoint import load
from nanochat.evals.chat import first_rows
from nanochat.models import load_model, weights_hash
from nanochat.paths import saved_steps


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return Tunes(tmp_path_factory.mktemp("tunes"))


@pytest.fixture(scope="module")
def straight(base):
    return base.tune("straight").done()


def test_machines_with_other_conversations_say_so(base) -> None:
    """As many, by the same name: their contents are compared."""
    places = [base.folder / f"machine-{number}" for number in range(2)]
    for number, place in enumerate(places):
        place.mkdir()
        write_lines(place / "my.jsonl", *(chat(f"{number} of {row}?", "2") for row in range(40)))
    flags = ("--mixture=json:my.jsonl", "--eval-metrics-every=-1")
    said = base.refused("apart", *flags, ranks=2, before=OwnFolders(*places))
    assert said.startswith("machines find other data than that of rank 0: let each machine have the same files")
    assert not saved_steps(base.of("apart"))


def test_five_and_seven_steps_are_twelve_bit_for_bit(base, straight) -> None:
    said = base.tune("parts", before=SignalAfter(4, signal.SIGTERM)).done()
    assert said.splitlines()[-1] == "stopped by a signal after step 5: run the same command again to resume"
    assert saved_steps(base.of("parts")) == [5]
    assert not (base.of("parts") / "outcome.json").exists()
    said = base.tune("parts", "--num-iterations=20").refused()
    assert "and is 20. Use another --tag" in said  # a run that has not ended keeps its horizon
    base.of("parent").rename(base.folder / "elsewhere")  # a run that was begun needs its parent no more
    base.tune("parts").done()
    (base.folder / "elsewhere").rename(base.of("parent"))
    assert files_of(base.of("parts"), STEPS) == files_of(base.of("straight"), STEPS)
    assert base.metrics("parts") == base.metrics("straight")
    manifests = [load(base.of(tag), STEPS).manifest for tag in ("parts", "straight")]
    assert manifests[0]["source"] == manifests[1]["source"]
    sha256 = weights_hash(load(base.of("parent"), 6).manifest)
    parent = {"stage": "base_train", "tag": "parent", "step": 6, "sha256": sha256}
    assert manifests[0]["parent"] == manifests[1]["parent"] == parent
    assert manifests[0]["learned"] == manifests[1]["learned"] == [["base_train", "letters"]]
    said = base.tune("parts").done()
    assert said.splitlines()[-1] == f"the run ended at step {STEPS}: nothing is left to train"


def test_a_finished_run_goes_on_to_a_longer_horizon(base, straight) -> None:
    """The steps so far stay; those that follow have the rates of the new schedule, as logged."""
    base.copy("straight", "longer")
    longer = "--num-iterations=20"
    said = base.tune("longer", longer, before=SignalAfter(STEPS + 2, signal.SIGTERM)).done()
    assert "horizon: 12 -> 20 steps; learning rate x 0.1667 -> x 0.8, then as planned" in said
    assert not (base.of("longer") / "outcome.json").exists()  # that of the shorter run
    said = base.tune("longer", longer).done()  # from its middle, as any run
    assert "horizon:" not in said
    change = {"steps_before": STEPS, "steps_after": 20, "lrm_before": pytest.approx(1 / 6), "lrm_after": 0.8}
    logged = [record for record in base.metrics("longer") if record["kind"] == "horizon"]
    assert logged == [{"kind": "horizon", "step": STEPS, **change}]
    rates = base.series("longer", "train/lrm")
    assert list(rates) == list(range(1, 21))
    assert rates[STEPS] == pytest.approx(1 / 6)
    assert [rates[step] for step in range(STEPS + 1, 21)] == pytest.approx([0.8 - 0.1 * step for step in range(8)])
    assert base.losses("longer")[:STEPS] == base.losses("straight")
    assert base.outcome("longer")["metrics"]["Number of iterations"] == 20
    said = base.tune("longer", "--num-iterations=19").refused()
    assert "and is 19. Use another --tag" in said  # no horizon becomes shorter


def test_ranks_and_micro_batches_find_the_same(base, straight) -> None:
    cuts = {"one-row": "--device-batch-size=1", "sharded": "--shard-weights"}
    jobs = {tag: base.tune(tag, flag, ranks=2) for tag, flag in cuts.items()}
    for tag, job in jobs.items():
        job.done()
        assert base.losses(tag) == pytest.approx(base.losses("straight"), abs=1e-4)
        for name in ("val/loss", "val/loss_stderr", "val/bpb", "chat/Letters"):
            assert base.series(tag, name) == pytest.approx(base.series("straight", name), abs=1e-4)


def test_the_learning_rate_falls_to_nothing_at_the_end_of_an_epoch(base) -> None:
    base.tune("epoch", "--num-iterations=-1", "--warmdown-ratio=1", "--eval-every=-1").done()
    assert base.outcome("epoch")["metrics"]["Epochs"]["value"] >= 1
    rates = list(base.series("epoch", "train/lrm").values())
    assert rates[0] == 1
    assert all(a - b == pytest.approx(1 / len(rates), abs=0.1) for a, b in pairwise(rates))
    assert base.outcome("epoch")["metrics"]["Validation loss"] == "n/a"


def test_a_run_ends_after_so_many_tokens_with_a_loss(base) -> None:
    flags = ("--num-iterations=-1", "--warmdown-ratio=1", "--eval-every=-1", "--eval-metrics-every=-1")
    flags += ("--target-supervised-tokens=500",)
    base.tune("tokens", *flags, before=SignalAfter(2, signal.SIGTERM)).done()
    base.tune("tokens", *flags).done()
    metrics = base.outcome("tokens")["metrics"]
    steps, found = metrics["Number of iterations"], metrics["Supervised tokens"]
    assert 500 <= found < 500 * steps / (steps - 1)
    rates = list(base.series("tokens", "train/lrm").values())
    assert len(rates) == steps > 2
    assert rates[0] == 1
    assert all(a - b == pytest.approx(1 / steps, abs=0.1) for a, b in pairwise(rates))
    # Longer, by steps.
    base.tune("tokens", *flags[1:-1], f"--num-iterations={steps + 2}").done()
    metrics = base.outcome("tokens")["metrics"]
    assert (metrics["Number of iterations"], "Supervised tokens" in metrics) == (steps + 2, False)


def test_the_record(base, straight) -> None:
    record = base.outcome("straight")
    metrics = record["metrics"]
    assert (metrics["Training rows"], metrics["Number of iterations"]) == (90, STEPS)
    assert metrics["Training loss"]["value"] == base.losses("straight")[-1] < base.losses("straight")[0]
    loss = base.series("straight", "val/loss")
    assert list(loss) == [0, 5, 10, STEPS]
    assert metrics["Validation loss"]["value"] == loss[STEPS] < loss[0]
    assert metrics["Minimum validation bpb"]["stderr"] > 0
    assert metrics["Minimum validation bpb"]["value"] == min(base.series("straight", "val/bpb").values())
    assert list(base.series("straight", "chat/Letters")) == [6, STEPS]
    assert metrics["Letters"]["value"] == base.series("straight", "chat/Letters")[STEPS]
    # Of each epoch ten are longer than a row.
    assert metrics["Conversations read"] == 180 == 18 * metrics["Left out, being too long"] / 2
    assert metrics["Tokens seen"] == STEPS * 256
    assert list(record["curves"][0]["series"]) == ["train", "validation"]
    bpb = base.series("straight", "val/bpb")
    assert record["curves"][1]["series"] == {"validation": [[256 * step for step in bpb], list(bpb.values())]}


def pairs() -> None:
    """Let the conversations be a sign and one of ten letters, which does not follow from it."""
    random = Random(7)
    made = [chat(string.printable[number], random.choice("abcdefghij")) for number in range(90)]
    tune_runs.sums = lambda count, first=0: made


def test_repeated_rows_are_remembered(base) -> None:
    """Five epochs: whoever remembers nothing is at ln 10 for the letter and 0 for the end."""
    rates = ("--matrix-lr=0.02", "--embedding-lr=0.3", "--eval-every=-1", "--save-every=-1")
    Base.start(base, "wide", "--depth=2", "--width=128", "--num-iterations=30", *rates).done()
    flags = ("--model-tag=wide", "--num-iterations=-1", "--total-batch-size=32", "--device-batch-size=1")
    flags += ("--warmdown-ratio=0", "--init-lr-frac=5", "--eval-every=-1", "--eval-metrics-every=-1")
    base.tune("repeated", *flags, "--num-epochs=5", before=pairs).done()
    metrics = base.outcome("repeated")["metrics"]
    assert (metrics["Epochs"]["value"] >= 5, metrics["Validation loss"]) == (True, "n/a")
    losses = base.losses("repeated")
    assert base.series("repeated", "train/epoch")[len(losses)] >= 5
    assert sum(losses[-5:]) / 5 < 0.5 * math.log(10) / 2


class Compare:
    """Whether model and optimizer are as the parent left them, printed."""

    def __call__(self, tuning) -> None:
        parent = load(tuning.folder.parent.parent / "base_train/parent", 6)
        states = dict(tuning.optimizer.state_tensors())
        same = [torch.equal(tensor, tuning.model.state_dict()[name]) for name, tensor in parent.model_tensors().items()]
        theirs = [
            (state[key], parent.optimizer_state(name)[key])
            for name, state in states.items()
            for key in parent.optimizer_state(name)
        ]
        moments = [torch.equal(mine.cpu(), its) for mine, its in theirs]
        print("weights", all(same), "momenta", all(moments), any(bool(mine.any()) for mine, _ in theirs))
        print("rates", {group.name: round(group.initial_lr, 6) for group in tuning.optimizer.groups})


def test_weights_and_momenta_are_the_parents(base) -> None:
    few = ("--num-iterations=2", "--eval-metrics-every=-1")
    jobs = {"warm": ("--eval-every=-1",), "cold": ("--no-warm-start",)}
    jobs = [base.tune(tag, *few, *flags, inspect=Compare()) for tag, flags in jobs.items()]
    warm, cold = (job.done() for job in jobs)
    assert "weights True momenta True True" in warm
    assert "weights True momenta False False" in cold
    scale = 0.8 * 0.25  # for a small batch
    assert f"'matrices': {round(0.03 * scale, 6)}" in warm
    assert f"'smear': {round(0.2 * 0.8, 6)}" in warm


def test_validation_is_the_mean_over_supervised_tokens(base, straight, monkeypatch) -> None:
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(base.folder))
    model, tokenizer, _ = load_model("base_train", "parent", -1, ALONE)
    inputs, targets = first_rows(sums(30, 100), tokenizer, "assistant", 32, 400 // 32)
    assert inputs.shape == targets.shape == (12, 32)
    kept = targets >= 0
    losses = -model(inputs).log_softmax(-1).gather(-1, targets.clamp(min=0)[..., None])[..., 0] * kept
    assert base.series("straight", "val/loss")[0] == pytest.approx(float(losses.sum() / kept.sum()), rel=1e-5)
    lengths = torch.from_numpy(tokenizer.token_lengths()).long()[targets.clamp(min=0)] * kept
    bits = float((losses * (lengths > 0)).sum()) / math.log(2)
    assert base.series("straight", "val/bpb")[0] == pytest.approx(bits / int(lengths.sum()), rel=1e-5)
    assert (first_rows(sums(30, 100), tokenizer, "all", 32, 12)[1] >= 0).sum() > 2 * kept.sum()
