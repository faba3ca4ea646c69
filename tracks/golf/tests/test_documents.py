"""Documents are scored one by one: together as the scorer does, and two texts have none in common."""

from pathlib import Path

import pytest
import torch
from corpora import text_corpus
from models import model_for

from nanochat.errors import UserError
from nanochat.tokenizer import Tokenizer
from tracks.golf import documents, score

TEXTS = [
    f"Letter {number}: the quick brown fox — 빠른 갈색 여우 — {number**3}\n" * (1 + number % 3) for number in range(12)
]


@pytest.mark.parametrize(("stride", "rows"), [(0, 8), (16, 3), (7, 8)])
def test_documents_add_up_to_the_score(stride: int, rows: int) -> None:
    tokenizer = Tokenizer.train(TEXTS, 300)
    model = model_for(tokenizer, max_seq_len=32).requires_grad_(False).eval()
    ids = score.encode(TEXTS, tokenizer.core)
    lengths = torch.from_numpy(tokenizer.token_lengths()).long()
    owners = (ids == tokenizer.bos).cumsum(0) - 1
    with torch.inference_mode():
        expected, _, _ = score.score(model, ids, lengths, stride or 32, rows)
        found = documents.document_nats(model, ids, lengths, owners, stride, rows)
        last = score.encode(TEXTS[:-1], tokenizer.core)
        without_last, _, _ = score.score(model, last, lengths, stride or 32, rows)
    assert len(found) == len(TEXTS)
    assert found.sum().item() == pytest.approx(expected, rel=1e-9)
    assert found[-1].item() == pytest.approx(expected - without_last, rel=1e-6)
    assert (found > 0).all()


def test_the_reporting_text_is_behind_the_selection_text(tmp_path: Path) -> None:
    texts = ["one " * 10, "two " * 10, "three " * 10, "one " * 10, "four " * 10, "five " * 10, "six " * 10]
    corpus = text_corpus(tmp_path, [["training"], texts], group=2)
    choose = documents.documents_of(corpus, "choose", 130)
    assert choose == [*texts[:2], texts[2][:50]]  # 40 + 40 + 50 bytes
    # The rest of the cut document is left out, and so is what was seen before.
    assert documents.documents_of(corpus, "report", 130) == ["four " * 10, ("five " * 10)[:30]]
    # Also if the cut document comes again, and if the last one, which is cut here, was seen whole.
    texts = [*texts[:3], "three " * 10, "four " * 10, "five " * 10, "two " * 10]
    corpus = text_corpus(tmp_path / "again", [["training"], texts], group=2)
    assert documents.documents_of(corpus, "report", 130) == ["four " * 10, ("five " * 10)[:10]]
    assert documents.documents_of(corpus, "report", 155) == ["four " * 10, "five " * 10]
    with pytest.raises(UserError, match="validation has 0 documents behind the selection text: use more text"):
        documents.documents_of(corpus, "report", 10_000)
    with pytest.raises(UserError, match="validation has 1 documents: use more text, or other --eval-bytes"):
        documents.documents_of(corpus, "choose", 30)


@pytest.mark.parametrize(
    ("strides", "sentence"),
    [("", "--strides=: nothing is not a number of tokens"), ("0,-8", "--strides=0,-8: -8 is not a number of tokens")],
)
def test_strides_are_numbers(strides: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        documents.read_strides(strides)
    assert documents.read_strides("128,0,128") == [128, 0]


def test_an_artifact_that_is_not_there_is_refused(base: Path) -> None:
    with pytest.raises(UserError, match="there is no finished artifact at"):
        documents.main(documents.Config(tag="nobody"))
