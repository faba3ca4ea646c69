"""Test-time depth: the choice sees validation text alone, and the test text is scored once, with the choice made."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
import torch
from base_runs import Base
from bundles import one_process
from corpora import text_corpus
from models import model_for

from nanochat.evals.bpb import EvalText, read_text, text_bpb
from nanochat.paths import read_json
from nanochat.statistics import Estimate
from nanochat.tokenizer import Tokenizer
from tracks.recursion import depth
from tracks.recursion.depth import choose_exits, depth_figures, depth_table, measure_depth, two_texts
from tracks.recursion.model import RecursiveGPT
from tracks.recursion.tests.recursive_models import RECURSIVE

DOCUMENTS = [f"{i}: the quick brown fox — 빠른 갈색 여우 {i**3:x}\n" * 3 for i in range(40)]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train([pa.array(DOCUMENTS)], 300)


@pytest.fixture
def model(tokenizer) -> RecursiveGPT:
    return model_for(tokenizer, RECURSIVE["recursive"], max_seq_len=24).eval().requires_grad_(False)


def read(tokenizer: Tokenizer, documents: list[str]) -> EvalText:
    return read_text([pa.array(documents)], tokenizer, 10**6)


def test_the_fewest_bits_are_chosen_and_the_smaller_of_equals() -> None:
    found = [Estimate(value, 0.1) for value in (3.0, 1.0, 2.0, 1.0)]
    assert choose_exits(found) == 2


def test_the_texts_have_no_document_in_common(tokenizer, tmp_path) -> None:
    # The first documents come again at the end.
    held_out = [*DOCUMENTS[:10], *DOCUMENTS[20:25], *DOCUMENTS[:3]]
    corpus = text_corpus(tmp_path, [DOCUMENTS, held_out], 4)
    size = sum(len(text.encode()) for text in DOCUMENTS[:6]) - 10  # ends within a document
    validation, test = two_texts(corpus, tokenizer, size, 24)
    expected = read_text(corpus.batches("val"), tokenizer, size)
    assert torch.equal(validation.ids, expected.ids)
    assert validation.bytes == expected.bytes == size
    others = [*DOCUMENTS[6:10], *DOCUMENTS[20:25]]  # without the rest of the sixth
    expected = read_text([pa.array(others)], tokenizer, size)
    assert torch.equal(test.ids, expected.ids)
    assert test.bytes == expected.bytes
    assert two_texts(corpus, tokenizer, 10**6, 24)[1] is None


def test_a_test_text_has_two_rows(tokenizer, tmp_path) -> None:
    """One row has no error."""
    corpus = text_corpus(tmp_path, [DOCUMENTS, DOCUMENTS[:2]], 4)
    size = len(DOCUMENTS[0].encode())
    tokens = len(read(tokenizer, DOCUMENTS[1:2]).ids)
    assert two_texts(corpus, tokenizer, size, (tokens - 1) // 2)[1] is not None
    assert two_texts(corpus, tokenizer, size, (tokens - 1) // 2 + 1)[1] is None


@torch.inference_mode()
def test_the_choice_is_scored_on_the_other_text(model, tokenizer) -> None:
    validation, test = read(tokenizer, DOCUMENTS[:10]), read(tokenizer, DOCUMENTS[10:30])
    found = measure_depth(model, validation, test, 6, 4, one_process())
    assert model.steps == 3
    assert len(found.validation) == 6
    assert found.chosen == choose_exits(found.validation)
    for exits, expected in enumerate(found.validation, 1):
        model.steps = exits
        assert text_bpb(model, validation, 24, 4, one_process()) == expected
    for exits, expected in ((3, found.test_trained), (found.chosen, found.test_chosen)):
        model.steps = exits
        assert text_bpb(model, test, 24, 4, one_process()).value == pytest.approx(expected.value, rel=1e-9)
    assert found.gain.value == pytest.approx(found.test_trained.value - found.test_chosen.value)
    assert (found.gain.stderr > 0) == (found.chosen != found.trained)


@torch.inference_mode()
def test_the_choice_does_not_depend_on_the_test_text(model, tokenizer, monkeypatch) -> None:
    """Another test text changes its own figures alone; and nothing reads it before the choice is made."""
    validation = read(tokenizer, DOCUMENTS[:10])
    found = [
        measure_depth(model, validation, read(tokenizer, texts), 6, 4, one_process())
        for texts in (DOCUMENTS[10:30], ["a" * 500])
    ]
    assert found[0].validation == found[1].validation
    assert found[0].chosen == found[1].chosen
    assert found[0].test_chosen != found[1].test_chosen
    seen = []

    class Watched:
        """A text that knows when it is read."""

        def __getattr__(self, name: str) -> Any:
            seen.append("test")
            return getattr(test, name)

    def choose(estimates: Sequence[Estimate]) -> int:
        seen.append("choice")
        return choose_exits(estimates)

    test = read(tokenizer, DOCUMENTS[10:30])
    monkeypatch.setattr(depth, "choose_exits", choose)
    measure_depth(model, validation, Watched(), 6, 4, one_process())
    assert seen[0] == "choice"
    assert seen.count("choice") == 1
    assert "test" in seen


def test_tables_and_figures_of_one_model_and_of_several(model, tokenizer) -> None:
    one = measure_depth(model, read(tokenizer, DOCUMENTS[:10]), read(tokenizer, DOCUMENTS[10:]), 4, 4, one_process())
    table = depth_table([one])
    assert table["title"] == "Exits of one checkpoint on validation text, ± standard error over rows"
    assert [row[:2] for row in table["rows"]] == [[1, "yes"], [2, "yes"], [3, "yes"], [4, "no"]]
    assert [row[2:] for row in table["rows"]] == [[*bpb] for bpb in one.validation]
    figures = depth_figures([one])
    assert figures["Exits chosen on validation text"] == str(one.chosen)
    assert figures["Test bpb that the choice saves"]["stderr"] == one.gain.stderr
    other = replace(one, chosen=4, gain=Estimate(one.gain.value + 0.2, 0.1))
    both = depth_figures([one, other])
    assert both["Exits chosen on validation text"] == f"{one.chosen}, 4"
    assert both["Test bpb that the choice saves"]["value"] == pytest.approx(one.gain.value + 0.1)
    assert depth_table([one, other])["title"].endswith("± 95 % over seeds")


def test_the_command(tmp_path, monkeypatch, capsys) -> None:
    base = Base(tmp_path, files=300)  # several are for validation
    flags = ("--depth=1", "--num-iterations=4", "--save-every=-1")
    base.run("deep", *flags, "--supervision=2", script="tracks.recursion.train")
    base.run("plain", *flags)
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(base.folder))
    depth.main(depth.Config(tag="deep", most=5, eval_bytes=2000, dtype="fp32"))
    record = read_json(base.folder / "recursion_depth/deep/outcome.json")
    [table] = record["tables"]
    assert [row[:2] for row in table["rows"]] == [[1, "yes"], [2, "yes"], [3, "no"], [4, "no"], [5, "no"]]
    last = base.outcome("deep")["metrics"]["Final validation bpb"]["value"]
    assert table["rows"][1][2] == pytest.approx(last, rel=1e-6)
    assert "Exits chosen on validation text: " in capsys.readouterr().out
    assert record["metrics"]["Looks at test text"] == 1
    for most, looks in ((5, 1), (4, 2), (5, 2)):  # the same again is no other choice
        depth.main(depth.Config(tag="deep", most=most, eval_bytes=2000, dtype="fp32"))
        assert read_json(base.folder / "recursion_depth/deep/outcome.json")["metrics"]["Looks at test text"] == looks
    for options, sentence in (
        ({"tag": "plain"}, "plain is not a recursive model: train one with tracks.recursion.train"),
        ({"tag": "deep", "eval_bytes": 10**9}, "leaves less than two rows of 32 tokens for a test"),
    ):
        with pytest.raises(ValueError, match=sentence):
            depth.main(depth.Config(dtype="fp32", **options))
