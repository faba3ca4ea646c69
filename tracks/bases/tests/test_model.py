"""The kind of model beside `transformers`: logits, gradients, generation, for each family."""

import random
from pathlib import Path

import pytest
import torch
from model_checks import gradients
from torch import Tensor
from torch.nn import functional

from nanochat.engine import Engine, Request
from nanochat.fp8 import convert
from nanochat.models import config_of, record_of
from tracks.bases.families import names_of
from tracks.bases.model import PublicConfig
from tracks.bases.sources import open_source
from tracks.bases.tests.public_models import CASES, CONTEXT, VOCABULARY, brought, model_of, save_folder
from tracks.bases.tokenizer import PublicTokenizer

LENGTHS = (1, 7, 60, CONTEXT)  # within the window, beyond it, and the whole context
each_case = pytest.mark.parametrize("case", CASES)


def some_ids(rows: int, length: int) -> Tensor:
    return torch.randint(0, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(length))


@each_case
@torch.no_grad()
def test_logits(case: str, tmp_path: Path) -> None:
    ours, theirs = brought(case, tmp_path)
    for length in LENGTHS:
        ids = some_ids(2, length)
        expected = theirs(ids).logits
        spread = expected.max() - expected.min()
        assert spread > 1
        assert (ours(ids) - expected).abs().max() <= 1e-4 * spread


@each_case
def test_loss_and_gradients(case: str, tmp_path: Path) -> None:
    ours, theirs = brought(case, tmp_path)
    ids = some_ids(3, 50)
    found = gradients(ours, ids)
    logits = theirs(ids).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten(), reduction="sum")
    torch.testing.assert_close(found["loss"], loss.detach(), rtol=1e-5, atol=0)
    (loss / ids.numel()).backward()
    named = dict(theirs.named_parameters())
    for names in names_of(ours.config):
        gradient = named[names.theirs].grad
        got = found[names.ours][: len(gradient)]  # without rows that pad our vocabulary
        assert (got - gradient).norm() <= 1e-4 * gradient.norm(), names
    assert {names.ours for names in names_of(ours.config)} == {name for name, _ in ours.named_parameters()}


@each_case
def test_training_in_fp8(case: str, tmp_path: Path) -> None:
    """The trunk's rule picks the layers, all products of the blocks; the loss and the gradient stay near."""
    ours, _ = brought(case, tmp_path)
    ids = some_ids(2, 48)
    exact = gradients(ours, ids)
    converted = convert(ours, min_dim=16, emulated=True)
    assert len(converted) == 7 * ours.config.depth
    rounded = gradients(ours, ids)
    torch.testing.assert_close(rounded["loss"], exact["loss"], rtol=0.02, atol=0)
    expected, found = (
        torch.cat([values[f"{name}.weight"].flatten() for name in converted]) for values in (exact, rounded)
    )
    assert not torch.equal(found, expected)
    # Attention of random weights without norms is steep: what is rounded before it counts for more.
    assert functional.cosine_similarity(found, expected, dim=0) > 0.8


@each_case
def test_checkpointing_changes_nothing(case: str, tmp_path: Path) -> None:
    ours, _ = brought(case, tmp_path)
    ids = some_ids(2, 40)
    plain = {name: value.clone() for name, value in gradients(ours, ids).items()}
    ours.checkpointing = True
    for name, value in gradients(ours, ids).items():
        torch.testing.assert_close(value, plain[name], rtol=1e-5, atol=1e-6)


@each_case
def test_greedy_tokens(case: str, tmp_path: Path) -> None:
    """Prompts of unequal lengths at once, past the window, as `transformers` continues each alone."""
    theirs = save_folder(case, tmp_path)
    source = open_source(str(tmp_path))
    ours = model_of(source).eval()
    theirs.generation_config.eos_token_id = None  # nothing ends a text
    dice = random.Random(3)
    prompts = [[dice.randrange(VOCABULARY) for _ in range(size)] for size in (1, 3, 20, 33, 90)]
    requests = [Request(prompt, 40, temperature=0.0, stop=frozenset()) for prompt in prompts]
    found = Engine(ours, PublicTokenizer(source.definition)).generate(requests)
    for prompt, [completion] in zip(prompts, found, strict=True):
        ids = torch.tensor([prompt])
        expected = theirs.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=40, do_sample=False)
        assert completion.tokens == expected[0, len(prompt) :].tolist()


@each_case
def test_its_config_is_in_the_manifest(case: str, tmp_path: Path) -> None:
    ours, _ = brought(case, tmp_path)
    record = record_of(ours.config)
    assert record["kind"] == "public"
    assert config_of({"model": record}) == ours.config


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"activation": "relu"}, "activation=relu is not known"),
        ({"rope_kind": "yarn"}, "rope_kind=yarn is not known"),
        ({"window_pattern": "SL", "depth": 3}, "needs one letter, or depth=3 of them"),
        ({"window_pattern": "S"}, "needs a window"),
    ],
)
def test_a_config_that_cannot_be_is_refused(fields: dict, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        PublicConfig(**fields)
