"""Merging: the arithmetic on small tensors beside plain formulas, and the models that cannot be merged."""

from dataclasses import asdict

import pytest
import torch
from torch import Tensor

from nanochat.checkpoint import Saver, load
from nanochat.errors import UserError
from nanochat.models import weights_hash
from nanochat.train import State
from tracks.lab.merging import METHODS, greedy_soup, merge, read_models, read_parent, write_merge


def weights(seed: int) -> dict[str, Tensor]:
    """Parameters of many sizes, some of them 0, subnormal, or the same in every model."""
    random = torch.Generator().manual_seed(seed)
    values = torch.randn(40, 10, generator=random) * 10.0 ** torch.randint(-42, 3, (40, 10), generator=random)
    return {"a": values, "b": torch.zeros(7), "c": torch.full((3,), 0.1), "d": torch.randn(2, 2, generator=random)}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("method", METHODS)
def test_a_model_with_itself_and_a_model_alone(method) -> None:
    first, second, parent = map(weights, range(3))
    assert same(merge([first, first], [0.3, 0.7], method, parent), first)
    assert same(merge([first, second], [1, 0], method, parent), first)
    assert not same(merge([first, second], [1, 1], method, parent), first)


def test_the_methods_are_their_formulas(monkeypatch) -> None:
    start, one, other = (torch.tensor(values) for values in ([1.0, 1, 1, 1], [3.0, 1, 0, 1.5], [2.0, 5, 1.5, 0]))

    def merged(*arguments: float | str) -> list[float]:
        *shares, method, scale = arguments
        return merge([{"a": one}, {"a": other}], shares, method, {"a": start}, scale)["a"].tolist()

    assert merged(3, 1, "linear", 1.0) == (0.75 * one + 0.25 * other).tolist()
    # A third of a right angle, and vectors without an angle.
    corner = [{"a": torch.tensor([1.0, 0])}, {"a": torch.tensor([0.0, 1])}]
    assert merge(corner, [2, 1], "slerp")["a"].tolist() == pytest.approx([3**0.5 / 2, 0.5])
    assert merge([{"a": one}, {"a": 3 * one}], [1, 1], "slerp")["a"].tolist() == (2 * one).tolist()
    # The sum of both changes: 2 and 1, 0 and 4, …
    assert merged(1, 1, "task", 2.0) == [4, 5, 0.5, 0.5]
    # The largest two changes of each, (2, 0, -1, 0) and (1, 4, 0, 0) or (0, 4, 0, -1), whose signs do not conflict.
    monkeypatch.setattr("tracks.lab.merging.KEPT", 0.5)
    assert merged(1, 1, "ties", 1.0)[1:3] == [5, 0]
    # All changes: the third is -1 against 0.5, the fourth 0.5 against -1.
    monkeypatch.setattr("tracks.lab.merging.KEPT", 1)
    assert merged(1, 1, "ties", 1.0) == [2.5, 5, 0, 0]


def test_a_soup_keeps_the_models_that_help() -> None:
    models = {name: {"a": torch.tensor([value])} for name, value in {"far": 9.0, "low": 0.8, "high": 1.1}.items()}
    assert greedy_soup(models, lambda found: -abs(float(found["a"]) - 1)) == {"far": 0, "low": 1, "high": 1}


def save(
    folder, tag: str, parent: str = "p", width: int = 2, tokenizer: str = "t", step: int = 5, version: str = ""
) -> dict[str, Tensor]:
    """A checkpoint with a manifest as training writes it, but for the parts that merging does not read."""
    tensors = weights(sum(tag.encode()))
    known = {"sha256": version} if version else {}  # earlier versions wrote none
    record = {
        "stage": "chat_sft",
        "parent": {"stage": "chat_sft", "tag": parent, "step": 5} | known if parent else None,
        "config": {},
        "data": None,
        "source": None,
        "tokenizer": {"tag": "default", "hash": tokenizer},
        "loop": asdict(State(step=step, tokens=1280)),
        "dtype": "fp32",
        "model": {"width": width},
    }
    with Saver(folder / "chat_sft" / tag) as saver:
        saver.save(step, tensors, [], record)
    return tensors


def test_checkpoints(base) -> None:
    save(base, "p", parent="")
    tensors = {tag: save(base, tag) for tag in ("one", "two")}
    found = read_models("chat_sft", "one:0.25,two@5")
    models, shares = zip(*found.values(), strict=True)
    assert (list(found), shares) == (["one", "two@5"], (0.25, 1.0))
    assert [same(model.model_tensors(), tensors[tag]) for model, tag in zip(models, tensors, strict=True)] == [True] * 2
    assert read_parent(models[0]).path.parent.name == "p"
    folder = write_merge("both", models, tensors["one"], {"method": "linear"})
    manifest = load(folder, 5).manifest
    assert manifest["loop"]["tokens"] == 1280
    save(base, "p", parent="", step=6)
    assert len(read_models("chat_sft", "p@5,p@6")) == 2  # checkpoints of one run
    for tag, other in {"wide": {"width": 4}, "words": {"tokenizer": "u"}, "child": {"parent": "q"}}.items():
        save(base, tag, **other)
        with pytest.raises(ValueError, match=f"^--models: {tag} has another [a-z_]+ than the models before it, "):
            read_models("chat_sft", f"one,{tag}")
    for text, sentence in {
        "one,two@x": "two@x is not a model like",
        "": " is not a model like d8",
        "one,one": "one is named twice",
        "none": "there is no model in ",
        "one,p": "p has another parent than the models before it, p",
    }.items():
        with pytest.raises(ValueError, match=sentence):
            read_models("chat_sft", text)
    with pytest.raises(ValueError, match="has no parent to compute changes from"):
        read_parent(read_models("chat_sft", "p")["p"][0])


def test_a_parent_that_was_trained_again_is_another_one(base) -> None:
    save(base, "p", parent="")
    version = weights_hash(load(base / "chat_sft/p", 5).manifest)
    for tag, of in {"old": "", "one": version, "two": version, "later": "0" * 64}.items():
        save(base, tag, version=of)
    models = [model for model, _ in read_models("chat_sft", "old,one,two").values()]
    assert read_parent(*models).path.parent.name == "p"
    merged = load(write_merge("both", models, models[0].model_tensors(), {}), 5)
    assert merged.manifest["parent"]["sha256"] == version
    with pytest.raises(UserError, match="later has another version of the parent than the models before it"):
        read_models("chat_sft", "one,later")
    with pytest.raises(UserError, match=r"p/step_0+5 have changed since another model was trained from them"):
        read_parent(*(load(base / "chat_sft" / tag, 5) for tag in ("old", "later")))
