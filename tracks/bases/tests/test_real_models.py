"""Real models, from the folder in NANOCHAT_PUBLIC_MODELS: GGUF files, and folders as `transformers` writes them.

NANOCHAT_PUBLIC_MODELS=FOLDER pytest -m slow tracks/bases/tests/test_real_models.py
"""

import os
from collections.abc import Iterator
from pathlib import Path
from unicodedata import normalize

import pytest
import torch
import transformers

from nanochat.engine import Engine, Request
from tracks.bases.sources import FoundModel, open_source
from tracks.bases.tests.public_models import model_of, texts
from tracks.bases.tests.test_bring import Home
from tracks.bases.tokenizer import PublicTokenizer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
CONTEXT = 1024


def models() -> Iterator[Path]:
    folder = os.environ.get("NANOCHAT_PUBLIC_MODELS", "")
    for path in sorted(Path(folder).iterdir() if folder else ()):
        if path.suffix == ".gguf" or (path / "config.json").is_file():
            yield path


PLACES = [*models()] or [pytest.param(None, marks=pytest.mark.skip("NANOCHAT_PUBLIC_MODELS names no models"))]
each_model = pytest.mark.parametrize("place", PLACES, ids=lambda place: getattr(place, "name", "none"))


@pytest.fixture
def source(place: Path) -> FoundModel:
    return open_source(str(place), CONTEXT)


def their_model(place: Path) -> transformers.PreTrainedModel:
    if place.is_dir():
        return transformers.AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32).eval()
    pytest.importorskip("accelerate", reason="transformers needs it for GGUF files")
    return transformers.AutoModelForCausalLM.from_pretrained(
        place.parent, gguf_file=place.name, dtype=torch.float32
    ).eval()


@each_model
@torch.no_grad()
def test_logits(place: Path, source: FoundModel) -> None:
    ours, theirs = model_of(source), their_model(place)
    ids = torch.randint(source.config.vocab_size, (2, CONTEXT), generator=torch.Generator().manual_seed(3))
    expected = theirs(ids).logits
    assert (ours(ids) - expected).abs().max() <= 1e-4 * (expected.max() - expected.min())


@each_model
def test_it_knows_something(source: FoundModel) -> None:
    tokenizer = PublicTokenizer(source.definition)
    engine = Engine(model_of(source), tokenizer, slots=2)
    prompts = {"The capital of France is": "Paris", "1, 2, 3, 4, 5, 6,": "7"}
    requests = [Request(tokenizer.begin(prompt), 8) for prompt in prompts]
    for [answer], expected in zip(engine.generate(requests), prompts.values(), strict=True):
        assert expected in tokenizer.decode(answer.tokens)


@each_model
def test_texts_survive(source: FoundModel) -> None:
    tokenizer = PublicTokenizer(source.definition)
    for text in texts(500):
        found = tokenizer.decode(tokenizer.encode(text)).removeprefix(" ")
        assert normalize("NFC", found) == normalize("NFC", text.removeprefix(" "))


@each_model
def test_in_and_out(place: Path, tmp_path: Path) -> None:
    """Export compares what it wrote with what was brought in; what it wrote can be brought in again."""
    home = Home(tmp_path)
    stage = "sft" if open_source(str(place)).templates else "base"
    home.run("tracks.bases.bring", f"--from={place}", "--tag=first", f"--context={CONTEXT}").done()
    home.run("tracks.export.export", f"--source={stage}", "--tag=first", f"--out={tmp_path / 'folder'}").done()
    home.run("tracks.bases.bring", f"--from={tmp_path / 'folder'}", "--tag=again", f"--source={stage}").done()
    run = {"base": "base_train", "sft": "chat_sft"}[stage]
    assert home.weights(run, "first", 0) == home.weights(run, "again", 0)
