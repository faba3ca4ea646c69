"""scripts.chat_rl as a user runs it, forked; rewards are for a letter, as nothing is learned."""

import re
import shutil
import signal
from typing import Any

import pytest
import torch
from base_runs import SignalAfter, change_manifest, files_of
from tune_runs import FromParent

from nanochat.checkpoint import load
from nanochat.log import harmless, read_metrics
from nanochat.models import weights_hash
from nanochat.paths import saved_steps

STEPS = 4
SMALL = [
    *("--device-batch-size=2", f"--num-iterations={STEPS}", "--examples-per-step=4", "--num-samples=4"),
    *("--max-new-tokens=8", "--temperature=1", "--init-lr-frac=0.5"),
    *("--eval-every=2", "--eval-examples=6", "--save-every=1", "--keep-last=0"),
]


class Rewarded:
    """What is done to a process before its run: every task rewards an answer with the letter e."""

    def __init__(self, then: Any = None) -> None:
        self.then = then

    def __call__(self) -> None:
        from tasks.common import Task

        Task.reward = lambda task, conversation, completion: float("e" in completion)
        if self.then:
            self.then()


class Runs(FromParent):
    def start(self, tag: str, *flags: str, before: Any = None, **options: Any):
        return super().start(tag, *flags, before=Rewarded(before), **options)

    def samples(self, tag: str):
        return read_metrics(self.of(tag) / "samples.jsonl")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return Runs(tmp_path_factory.mktemp("rl"), "chat_rl", SMALL)


@pytest.fixture(scope="module")
def whole(runs):
    return runs.run("whole")


def rewards(records: list[dict]):
    found: dict[int, list[float]] = {}
    for record in records:
        found.setdefault(record["step"], []).extend(sample["reward"] for sample in record["samples"])
    return found


def test_a_run_and_its_record(runs, whole) -> None:
    told = [record for record in runs.metrics("whole") if "rl/reward" in record]
    earned = rewards(runs.samples("whole"))
    assert [record["step"] for record in told] == list(earned) == [1, 2, 3, 4]
    for record in told:
        assert record["rl/reward"] == pytest.approx(sum(earned[record["step"]]) / 16)
        assert 0 <= record["rl/logprob_gap"] < 1e-4
    assert any(record["rl/groups_that_teach"] > 0 for record in told)
    assert len({record["example"] for record in runs.samples("whole")}) == 16
    scores = runs.series("whole", "eval/pass@1")
    assert [*scores] == [0, 2, 4]
    assert saved_steps(runs.of("whole")) == [1, 2, 3, 4]
    manifest = load(runs.of("whole"), 4).manifest
    sha256 = weights_hash(load(runs.of("parent"), 3).manifest)
    assert manifest["parent"] == {"stage": "base_train", "tag": "parent", "step": 3, "sha256": sha256}
    assert manifest["config"]["chat_temperature"] == 0.6  # a base model has none
    record = runs.outcome("whole")
    assert (record["metrics"]["Task"], record["metrics"]["Number of iterations"]) == ("GSM8K", STEPS)
    assert record["metrics"]["GSM8K pass@1 before"]["value"] == scores[0]
    assert record["metrics"]["GSM8K pass@1 after"]["value"] == scores[4]
    reward = record["curves"][1]
    assert (reward["title"], reward["x"], reward["series"]["train"][0]) == ("Reward", "step", [1, 2, 3, 4])
    assert re.search(r"^step 00004 \| rl/reward \S+ \|", whole, re.MULTILINE)


def test_samples_are_readable(runs, whole, here) -> None:
    done = here("scripts.rollouts", "--tag=whole", "--show", "2", NANOCHAT_BASE_DIR=str(runs.folder))
    last = [record for record in runs.samples("whole") if record["step"] == STEPS][:2]
    shown = re.findall(r"^== step 4, question (\d+)$", done.stdout, re.MULTILINE)
    assert shown == [str(record["example"]) for record in last]
    for record in last:
        assert record["prompt"] in done.stdout
        for sample in record["samples"]:
            about = f"-- reward {sample['reward']:g}, advantage {sample['advantage']:+.3g}, {sample['tokens']} tokens"
            assert f"{about}:\n{harmless(sample['text'])}" in done.stdout
    done = here("scripts.rollouts", "--tag=none", code=2, NANOCHAT_BASE_DIR=str(runs.folder))
    assert "there are no samples in " in done.stderr


def same_run(runs: Runs, one: str, other: str) -> None:
    assert files_of(runs.of(one), STEPS) == files_of(runs.of(other), STEPS)
    assert runs.metrics(one) == runs.metrics(other)
    assert runs.samples(one) == runs.samples(other)
    facts = [runs.outcome(tag)["metrics"] for tag in (one, other)]
    for name in ("GSM8K pass@1 before", "GSM8K pass@1 after", "Reward, a moving average", "Tokens seen"):
        assert facts[0][name] == facts[1][name]


def test_a_signal_stops_it_and_it_goes_on_bit_for_bit(runs, whole) -> None:
    """From a step in its midst, where samples of later steps were not to be; the optimizer's states are saved too."""
    said = runs.run("stopped", before=SignalAfter(1, signal.SIGTERM))
    assert "stopped by a signal after step 2" in said
    shutil.copy(runs.of("whole") / "samples.jsonl", runs.of("stopped"))  # of steps that are to come
    for _ in range(2):  # the second time nothing is left to train
        runs.run("stopped")
        same_run(runs, "whole", "stopped")


def test_the_mathematics_do_not_depend_on_how_it_is_cut(runs, whole) -> None:
    """Loss and gradient are divided once, by all tokens of the step: over micro-batches and ranks."""
    for tag, flag in {"rows-8": "--device-batch-size=8", "sharded": "--shard-weights"}.items():
        runs.run(tag, flag, ranks=2)
        assert runs.losses(tag) == pytest.approx(runs.losses("whole"), abs=1e-5)
        norms = runs.series("whole", "train/grad_norm")
        assert runs.series(tag, "train/grad_norm") == pytest.approx(norms, rel=1e-3)
        one, other = (
            {r["example"]: [s["text"] for s in r["samples"]] for r in runs.samples(t)} for t in (tag, "whole")
        )
        assert one == other


def test_the_entries_of_the_tables(runs, whole) -> None:
    entries = ("--advantage=std", "--policy-loss=clip", "--kl=0.5")
    runs.run("other", *entries, "--eval-samples=2", "--eval-every=0", "--top-k=0")
    metrics = runs.outcome("other")["metrics"]
    for when in ("before", "after"):
        assert metrics[f"GSM8K pass@1 {when}"]["value"] <= metrics[f"GSM8K pass@2 {when}"]["value"]
    assert [*runs.series("other", "eval/pass@2")] == [0, 4]
    assert runs.losses("other") != runs.losses("whole")
    # --kl goes back to the parent: if it is trained again, a run that goes on says so.
    path = runs.of("other") / "step_000004/manifest.json"
    change_manifest(path, lambda manifest: manifest["parent"].update(sha256="0" * 64))
    words = ("other", *entries, "--eval-samples=2", "--eval-every=0", "--top-k=0", "--num-iterations=6")
    assert "parent/step_000003 have changed since another model was trained from them" in runs.start(*words).refused()
    change_manifest(path, lambda manifest: manifest["parent"].pop("sha256"))  # as earlier versions wrote it
    runs.start(*words).done()
    assert load(runs.of("other"), 6).manifest["parent"]["sha256"] == ""
    epoch = ("--num-iterations=-1", "--num-epochs=0.1", "--examples-per-step=8")
    runs.run("letters", "--task=arc-easy", "--eval-every=-1", *epoch)
    facts = runs.outcome("letters")["metrics"]
    assert facts["Task"] == "ARC-Easy"
    assert facts["Number of iterations"] == int(facts["Training questions"] // 8 * 0.1) > 0


REPLAY = ("--replay-rows=4", "--replay-weight=0.5")


@pytest.fixture(scope="module")
def replayed(runs):
    return runs.run("replayed", *REPLAY)


def test_replay_is_part_of_a_step(runs, whole, replayed) -> None:
    """Of the default mixture of SFT, as far as its files are here, or of one that is named."""
    losses = runs.series("replayed", "rl/replay_loss")
    teaching = [record for record in runs.metrics("replayed") if record.get("rl/groups_that_teach")]
    assert [*losses] == [record["step"] for record in teaching]
    assert all(value > 0 for value in losses.values())
    assert not runs.series("whole", "rl/replay_loss")
    assert runs.losses("replayed") != runs.losses("whole")
    # The answers of the first step are sampled before anything is learned.
    first = [
        [record["samples"] for record in runs.samples(tag) if record["step"] == 1] for tag in ("whole", "replayed")
    ]
    assert first[0] == first[1]
    replay = load(runs.of("replayed"), STEPS).manifest["data"]["replay"]
    assert {"GSM8K", "SmolTalk"} <= replay.keys()
    runs.run("named", "--replay-rows=2", "--replay=gsm8k@8", "--eval-every=-1")
    assert load(runs.of("named"), STEPS).manifest["data"]["replay"].keys() == {"GSM8K"}


def test_a_run_with_replay_goes_on_bit_for_bit(runs, replayed) -> None:
    said = runs.run("replay-stopped", *REPLAY, before=SignalAfter(1, signal.SIGTERM))
    assert "stopped by a signal after step 2" in said
    runs.run("replay-stopped", *REPLAY)
    same_run(runs, "replayed", "replay-stopped")


def test_ranks_share_what_is_replayed(runs, replayed) -> None:
    runs.run("replay-ranks", *REPLAY, "--device-batch-size=8", ranks=2)
    assert runs.losses("replay-ranks") == pytest.approx(runs.losses("replayed"), abs=1e-5)
    for figure in ("train/grad_norm", "rl/replay_loss"):
        assert runs.series("replay-ranks", figure) == pytest.approx(runs.series("replayed", figure), rel=1e-3)


def test_where_all_answers_are_alike_nothing_is_learned(runs) -> None:
    """Also on ranks that hear only from each other that there is nothing to learn."""
    said = runs.run("alike", "--top-p=0.001", "--eval-every=-1", ranks=2)
    assert "nan" not in said
    assert [*map(float, re.findall(r"rl/groups_that_teach (\S+)", said))] == [0] * STEPS
    weights = (load(runs.of(name), step).model_tensors() for name, step in (("parent", 3), ("alike", STEPS)))
    assert all(torch.equal(*pair) for pair in zip(*(map(one.get, sorted(one)) for one in weights), strict=True))
    assert runs.losses("alike") == [0] * STEPS
