"""tracks.lab.merge as a user runs it, on two short runs from one parent, and what can be done with the result."""

from pathlib import Path

import pytest
import torch
from forks import Forked, run_module
from torch.testing import assert_close
from tune_runs import Tunes

from nanochat.checkpoint import Saver, learned_from, load
from nanochat.models import weights_hash

FEW = ("--num-iterations=2", "--eval-every=-1", "--eval-metrics-every=-1")


class Merges(Tunes):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        for job in [self.tune(tag, *FEW, f"--seed={seed}") for seed, tag in enumerate(("one", "two"), 1)]:
            job.done()

    def start(self, tag: str, *flags: str, before: None = None, **variables: str) -> Forked:
        if tag == "parent":
            return super().start(tag, *flags)
        return self.fork(run_module, before, "tracks.lab.merge", f"--tag={tag}", *flags, **variables)


@pytest.fixture(scope="module")
def merges(tmp_path_factory) -> Merges:
    return Merges(tmp_path_factory.mktemp("merges"))


def test_a_merge_is_a_checkpoint_like_any(merges) -> None:
    merges.start("sum", "--models=one,two", "--method=task", "--scale=2").done()
    one, two, both = (load(merges.of(tag), 2) for tag in ("one", "two", "sum"))
    parent = load(merges.of("parent"), 6)
    facts = both.manifest["merge"]
    assert (facts["method"], facts["weights"]) == ("task", [1, 1])
    named = [(model["tag"], model["sha256"]) for model in [*facts["models"], facts["parent"]]]
    checkpoints = {"one": one, "two": two, "parent": parent}.items()
    assert named == [(tag, each.manifest["files"]["model.safetensors"]["sha256"]) for tag, each in checkpoints]
    start, first, second, merged = (each.model_tensors() for each in (parent, one, two, both))
    for name, value in merged.items():
        assert_close(value, first[name] + second[name] - start[name])
    merges.tune("child", *FEW, "--source=sft", "--model-tag=sum", "--no-warm-start").done()
    child = load(merges.of("child"), 2).manifest
    assert child["parent"] == {"stage": "chat_sft", "tag": "sum", "step": 2, "sha256": weights_hash(both.manifest)}
    of_models = [learned_from(model.manifest) for model in (one, two)]
    assert child["learned"] == of_models[0] + of_models[1]
    assert of_models[0][-1] == ["base_train", "letters"]
    said = merges.tune("sum", *FEW, "--seed=1").refused()  # the settings of the first model
    assert "holds a merge, which does not train on: start from it with --model-tag" in said
    assert "holds a run, use another --tag" in merges.refused("one", "--models=sum,two")
    assert "a merge needs a weight above 0" in merges.refused("never", "--models=one:0,two:0")
    assert "--method=slerp merges two models" in merges.refused("never", "--models=one", "--method=slerp")
    assert "give it with --method=soup alone" in merges.refused("never", "--models=one,two", "--method=soup")
    # Models that answer alike: all stay.
    merges.start("soup", "--models=one,two", "--method=soup", "--dev=ARC-Easy", "--max-problems=4").done()
    soup = load(merges.of("soup"), 2).manifest["merge"]
    assert soup["method"] == "soup"
    assert soup["weights"] == [1, 1]
    # A merge is made again in place of the earlier one.
    merges.start("soup", "--models=one").done()
    assert [model["tag"] for model in load(merges.of("soup"), 2).manifest["merge"]["models"]] == ["one"]
    # A merge has the parent of its models, and can be merged with them.
    merges.start("again", "--models=sum,one:0").done()
    assert all(torch.equal(value, merged[name]) for name, value in load(merges.of("again"), 2).model_tensors().items())


def test_weights_that_are_not_finite_are_refused(merges) -> None:
    one = load(merges.of("one"), 2)
    weights = one.model_tensors()
    name = next(iter(weights))
    weights[name].view(-1)[0] = torch.nan
    own = ("files", "sha256", "optimizer", "versions", "step")
    with Saver(merges.of("broken")) as saver:
        saver.save(2, weights, [], {key: value for key, value in one.manifest.items() if key not in own})
    said = merges.refused("never", "--models=one,broken")
    assert f"--models: broken has weights that are not finite, such as {name}" in said
