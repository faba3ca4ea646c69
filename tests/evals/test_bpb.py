"""Bits per byte against sums written out, and against what must not change it."""

import math
from types import SimpleNamespace

import pyarrow as pa
import pytest
import torch
from bundles import one_process
from models import limit_memory, model_for

from nanochat.evals.bpb import PROMPTS, log_validation, read_text, sample_writing, text_bpb
from nanochat.log import MetricLog, read_metrics
from nanochat.statistics import Estimate
from nanochat.tokenizer import Tokenizer
from nanochat.train import State

DOCUMENTS = ["the quick brown fox — 빠른 갈색 여우\n" * 9, "", "a" * 50, "여우 and fox, fox and 여우. " * 20]


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train([pa.array(DOCUMENTS)], 300)


def test_the_text_ends_at_a_whole_character(tokenizer) -> None:
    everything = read_text([pa.array(DOCUMENTS)], tokenizer, 10**6)
    assert everything.bytes == sum(len(text.encode()) for text in DOCUMENTS)
    korean = read_text([pa.array(["빠른"])], tokenizer, 5)  # of six bytes
    assert korean.bytes == 3
    assert korean.ids.tolist() == [tokenizer.special_tokens["<|bos|>"], *tokenizer.encode("빠")]
    two = read_text([pa.array(["abc"]), pa.array(["de", "never"])], tokenizer, 5)
    assert (two.bytes, (two.ids == tokenizer.special_tokens["<|bos|>"]).sum()) == (5, 2)


def small_model(tokenizer: Tokenizer):
    """What it says of a token depends on all of its context."""
    return model_for(tokenizer, depth=2, max_seq_len=24).requires_grad_(False)


def test_the_standard_error_is_that_of_rows_drawn_again(tokenizer) -> None:
    text = read_text([pa.array(DOCUMENTS)], tokenizer, 10**6)
    model = small_model(tokenizer)
    got = text_bpb(model, text, 16, 8, one_process())
    rows = [text.ids[i : i + 17] for i in range(0, len(text.ids) - 1, 16)]
    pairs = []
    for row in rows:
        sizes = text.lengths[row[1:]]
        losses = model(row[None, :-1], row[None, 1:], reduction="none") * (sizes > 0)
        pairs.append((float(losses.sum()) / math.log(2), int(sizes.sum())))
    torch.manual_seed(0)
    drawn = torch.tensor(pairs)[torch.randint(len(pairs), (2000, len(pairs)))].sum(1)
    assert got.stderr == pytest.approx(float((drawn[:, 0] / drawn[:, 1]).std()), rel=0.15)


def test_the_bytes_are_the_texts_whatever_tokens_stand_for(tokenizer) -> None:
    """A public tokenizer may write a blank before a text, or join an accent to its letter."""
    text = read_text([pa.array(DOCUMENTS)], tokenizer, 10**6)
    model = small_model(tokenizer)
    exact = text_bpb(model, text, 16, 8, one_process())
    other = text_bpb(model, text._replace(bytes=2 * text.bytes), 16, 8, one_process())
    assert other == pytest.approx((exact.value / 2, exact.stderr / 2))


def token_by_token(model, text, seq_len, stride, bos):
    """Each token alone, behind what stands before it in the first row that it is in."""
    nats, ids = 0.0, text.ids.tolist()
    for at in range(1, len(ids)):
        start = 0
        while at > start + seq_len:
            start += stride or seq_len
        if ids[at] != bos:
            nats -= float(model(torch.tensor([ids[start:at]]))[0, -1].log_softmax(0)[ids[at]])
    return nats / math.log(2) / text.bytes


@pytest.mark.parametrize(("seq_len", "stride"), [(24, 0), (5, 0), (24, 7), (24, 23), (24, 24), (9, 1)])
@pytest.mark.parametrize("size", [700, 10])
def test_rows_predict_every_token_once_from_the_longest_context(tokenizer, size, seq_len, stride) -> None:
    model, bos = small_model(tokenizer), tokenizer.special_tokens["<|bos|>"]
    text = read_text([pa.array(DOCUMENTS)], tokenizer, size)
    expected = token_by_token(model, text, seq_len, stride, bos)
    for batch_size in (1, 5, 100):
        got = text_bpb(model, text, seq_len, batch_size, one_process(), stride)
        assert got.value == pytest.approx(expected, rel=1e-5), batch_size
        assert math.isnan(got.stderr) == (len(text.ids) <= seq_len + 1)  # one row


def test_out_of_memory_a_batch_is_halved_and_a_stride_beyond_the_context_is_refused(
    tokenizer, monkeypatch, capsys
) -> None:
    model, text = small_model(tokenizer), read_text([pa.array(DOCUMENTS)], tokenizer, 700)
    whole = text_bpb(model, text, 24, 7, one_process(), 5)
    limit_memory(monkeypatch, model, 2)
    assert text_bpb(model, text, 24, 7, one_process(), 5) == pytest.approx(whole, rel=1e-6)
    assert "out of memory with 7 rows at once, trying 3" in capsys.readouterr().out
    limit_memory(monkeypatch, model, 0)
    with pytest.raises(torch.OutOfMemoryError):
        text_bpb(model, text, 24, 7, one_process(), 5)
    for stride in (-1, 25):
        with pytest.raises(ValueError, match=rf"--stride={stride} .*, use 1 to 24, the context's length"):
            text_bpb(model, text, 24, 4, one_process(), stride)


def test_validation_on_a_cpu_runs_uncompiled(tokenizer, tmp_path) -> None:
    model, ids = small_model(tokenizer), torch.arange(9)[None]
    for block in model.blocks:
        block.compile(backend=lambda graph, inputs: pytest.fail("a block is compiled"))
    model.compiled = True
    with MetricLog(tmp_path) as log:
        about = {"model": model, "runtime": one_process(), "log": log, "config": SimpleNamespace(eval_every=10)}
        measure = lambda: {"val/bpb": Estimate(float(model(ids, ids)), 0.1)}  # noqa: E731
        log_validation(SimpleNamespace(**about), measure).evaluate(State(step=0))
    [record] = read_metrics(log.path)
    assert record["val/bpb"] == float(small_model(tokenizer)(ids, ids))


def test_samples_are_written_by_one_rank_in_any_context(capsys) -> None:
    """The continuations are the engine's, whose tests have a plain twin."""
    tokenizer = Tokenizer.train([*PROMPTS], 300)
    for longest in (64, 20):  # of which the second is shorter than prompts are
        model = model_for(tokenizer, max_seq_len=longest).eval()
        for rank in (0, 1):
            trainer = SimpleNamespace(model=model, tokenizer=tokenizer, runtime=SimpleNamespace(rank=rank))
            sample_writing(trainer, 0).evaluate(None)
            said = capsys.readouterr().out
            assert all((f"sample: {prompt} ... " in said) == (rank == 0) for prompt in PROMPTS)
