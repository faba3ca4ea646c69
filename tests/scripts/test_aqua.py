"""AQUA from SFT to reinforcement learning: rationales are learned, sampled, and rewarded for their letter."""

import shutil
from pathlib import Path

import pytest
from data_sets import MIRROR
from tune_runs import FromParent

from nanochat.log import read_metrics
from tasks import TASKS

PARENT = ["--depth=1", "--max-seq-len=320", "--total-batch-size=640", "--num-iterations=2", "--save-every=-1"]
SFT = ["--no-compile", "--eval-every=-1", "--eval-metrics-every=-1", "--save-every=-1", "--mixture=aqua"]
# Rates with which the tiny model learns the form of the answers in a second.
SFT += ["--init-lr-frac=1", "--matrix-lr=0.02", "--embedding-lr=0.3", "--unembedding-lr=0.02"]
RL = ["--no-compile", "--source=sft", "--model-tag=sft", "--task=AQUA", "--device-batch-size=2", "--num-iterations=3"]
RL += ["--examples-per-step=4", "--num-samples=4", "--max-new-tokens=40", "--temperature=1", "--save-every=-1"]
RL += ["--eval-every=0", "--eval-examples=6"]


class Aqua(FromParent):
    """A tiny base model, one that learned from AQUA's rationales for some steps, and what is run with it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "chat_sft", SFT, [*PARENT, "--eval-every=-1"])

    def after(self, stage: str, tag: str, *flags: str):
        """Run a later stage; return its metrics."""
        self.script, self.own_flags = stage, ["--dtype=fp32"]
        self.run(tag, *flags)
        return self.outcome(tag)["metrics"]


def rewarded(aqua: Aqua, tag: str):
    """The samples of a run, each of which was rewarded as the task judges its text."""
    found = []
    for record in read_metrics(aqua.of(tag) / "samples.jsonl"):
        question, answer = record["messages"][0]["content"], record["answer"]
        assert question.endswith("like this: The answer is X.")
        conversation = {"messages": [{}, {"content": answer}], "letters": "ABCDE"}
        for sample in record["samples"]:
            assert sample["reward"] == TASKS["AQUA-Rationale"].task.evaluate(None, conversation, sample["text"])
            found.append(sample)
    assert len(found) == 3 * 4 * 4
    return found


def test_rationales_are_learned_sampled_and_rewarded(tmp_path: Path) -> None:
    """After a second of SFT the model writes in the form of the rows, and it is luck which letter it names."""
    aqua = Aqua(tmp_path)
    aqua.run("sft", "--num-iterations=60")
    assert aqua.outcome("sft")["metrics"]["aqua_train_examples"] == 100
    metrics = aqua.after("chat_rl", "rl", *RL)
    assert (metrics["Task"], metrics["Number of iterations"]) == ("AQUA", 3)
    assert {"AQUA pass@1 before", "AQUA pass@1 after"} <= metrics.keys()
    samples = rewarded(aqua, "rl")
    assert {sample["reward"] for sample in samples} == {0, 1}
    assert any(sample["text"].startswith("Count.\nThe") for sample in samples)
    assert any(aqua.losses("rl"))
    # Both ways to ask: the likeliest letter, and a written answer.
    scores = aqua.after(
        "chat_eval_sft",
        "sft",
        "--source=sft",
        "--tasks=AQUA|AQUA-Rationale",
        "--max-problems=6",
        "--max-new-tokens=40",
    )
    assert {"AQUA", "AQUA-Rationale"} <= scores.keys()


@pytest.mark.skipif(not MIRROR.is_dir(), reason="no mirror of real data on this machine")
def test_real_problems_go_the_same_way(tmp_path: Path) -> None:
    """The mirror has no train split, so the validation split is in its place."""
    aqua = Aqua(tmp_path)
    data = TASKS["AQUA"]
    for split, source in (("train", "validation"), ("validation", "validation"), ("test", "test")):
        [to], [real] = data.files(split), data.files(source)
        shutil.copyfile(MIRROR / str(real), aqua.folder / "hub" / str(to))
    aqua.run("sft", "--num-iterations=5")
    assert aqua.outcome("sft")["metrics"]["aqua_train_examples"] == 254
    assert aqua.after("chat_rl", "rl", *RL)["Training questions"] == 254
    assert len({record["answer"] for record in read_metrics(aqua.of("rl") / "samples.jsonl")}) == 12
    rewarded(aqua, "rl")
