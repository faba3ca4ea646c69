"""Bits per byte at each exit; test_train.py has validation in a run, and the table of scripts.base_loss."""

from types import SimpleNamespace

import pyarrow as pa
import pytest
import torch
from bundles import one_process
from models import model_for

from nanochat.evals.bpb import read_text, text_bpb
from nanochat.tokenizer import Tokenizer
from tracks.recursion.exits import bits_by_exit, compare_exits, exit_validation, loss_table
from tracks.recursion.model import RecursiveGPT
from tracks.recursion.tests.recursive_models import RECURSIVE

DOCUMENTS = ["the quick brown fox — 빠른 갈색 여우\n" * 9, "a" * 50, "여우 and fox, fox and 여우. " * 20]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train([pa.array(DOCUMENTS)], 300)


def small_model(tokenizer: Tokenizer) -> RecursiveGPT:
    return model_for(tokenizer, RECURSIVE["recursive"], max_seq_len=24).eval().requires_grad_(False)


@pytest.mark.parametrize("stride", [0, 7])
@torch.inference_mode()
def test_each_exit_has_the_figure_of_a_model_that_ends_there(tokenizer, stride) -> None:
    model, text = small_model(tokenizer), read_text([pa.array(DOCUMENTS)], tokenizer, 10**6)
    found = bits_by_exit(model, text, 24, 7, one_process(), stride)
    assert len(found) == 3
    for exits, bpb in enumerate(found, 1):
        model.steps = exits
        assert text_bpb(model, text, 24, 7, one_process(), stride) == bpb
    assert len({bpb.value for bpb in found}) == 3


def test_the_table_has_twice_as_many_exits_as_were_trained(tokenizer) -> None:
    model, text = small_model(tokenizer), read_text([pa.array(DOCUMENTS)], tokenizer, 10**6)
    expected = bits_by_exit(model, text, 24, 8, one_process())
    table = loss_table(model, text, 24, 8, one_process())
    assert [row[:2] for row in table["rows"]] == [[i, "yes" if i < 3 else "no"] for i in range(6)]
    assert [row[2:] for row in table["rows"][:3]] == [[*bpb] for bpb in expected]
    model.steps = 3
    expected = bits_by_exit(model, text, 12, 8, one_process())
    shorter = loss_table(model, text, 12, 8, one_process())  # as the other figures of --max-seq-len
    assert [row[2:] for row in shorter["rows"][:3]] == [[*bpb] for bpb in expected]


def test_a_comparison_that_fails_leaves_the_model_as_it_was(tokenizer, monkeypatch) -> None:
    model, text = small_model(tokenizer), read_text([pa.array(DOCUMENTS)], tokenizer, 10**6)

    def fail(*given) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr("tracks.recursion.exits.sum_rows", fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        compare_exits(model, text, 3, 5, 24, 8, one_process())
    assert model.steps == 3


def test_validation_is_off_for_minus_one() -> None:
    assert exit_validation(SimpleNamespace(config=SimpleNamespace(eval_every=-1)), None) == []
