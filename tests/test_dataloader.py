"""The stream of batches: the same on any number of ranks, and from any position."""

import hashlib
import json
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from corpora import CountedTokenizer, counted_corpus, text_corpus
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nanochat.data.corpus import Corpus
from nanochat.dataloader import BATCHES_AHEAD, TextLoader
from nanochat.tokenizer import Tokenizer

BATCH, LENGTH, LANES = 8, 32, 8


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train(["the quick brown fox jumps over the lazy dog 빠른 갈색 여우 " * 20], 320)


def texts_of(count: int, seed: int = 0):
    chance = np.random.default_rng(seed)
    words = "the quick brown fox jumps over the lazy dog 빠른 갈색 여우".split()
    lengths = np.minimum(chance.lognormal(3, 1.2, count).astype(int), 400)
    return [f"{i}: " + " ".join(chance.choice(words, length)) for i, length in enumerate(lengths)]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A mix of two sources."""
    texts = texts_of(600)
    shards = {"letters": [texts[:150], texts[150:300], texts[300:350]], "more": [texts[350:500], texts[500:]]}
    parts = [text_corpus(tmp_path_factory.mktemp(name), shards[name], 32).sources[0] for name in shards]
    return Corpus((replace(parts[0], share=0.7), replace(parts[1], name="more", share=0.3)))


@pytest.fixture(scope="module")
def stream(corpus, tokenizer):
    """The first rows of the stream, as one rank gets them."""
    with loader_of(corpus, tokenizer) as loader:
        return rows_of([loader], 60)


def loader_of(corpus: Corpus, tokenizer: Tokenizer | CountedTokenizer, **options):
    options = {"batch_size": BATCH, "seq_len": LENGTH, "lanes": LANES, "seed": 3} | options
    return TextLoader(corpus, tokenizer, **options)


def ranks_of(corpus: Corpus, tokenizer: Tokenizer | CountedTokenizer, ranks: int, **options):
    return [loader_of(corpus, tokenizer, rank=rank, world_size=ranks, **options) for rank in range(ranks)]


def rows_of(loaders: list[TextLoader], batches: int):
    """(rows, LENGTH + 1) of the stream, put together from the batches of all ranks."""
    found = []
    for _ in range(batches):
        batch = np.empty((loaders[0].batch_size, loaders[0].seq_len + 1), np.int64)
        numbers = loaders[0]._row + np.arange(len(batch))  # in the stream
        for loader in loaders:
            inputs, targets = next(loader)
            assert inputs.dtype == targets.dtype == torch.int64
            assert torch.equal(inputs[:, 1:], targets[:, :-1])
            batch[numbers % loader.world_size == loader.rank] = torch.cat([inputs, targets[:, -1:]], dim=1).numpy()
        found.append(batch)
    return np.concatenate(found)


def state_of(loaders: list[TextLoader]):
    """The joined state, as a checkpoint gives it back."""
    return json.loads(json.dumps(loaders[0].merge([loader.state_dict() for loader in loaders])))


def close(loaders: list[TextLoader]) -> None:
    for loader in loaders:
        loader.close()


def test_the_stream_is_that_of_earlier_versions(tmp_path) -> None:
    """Otherwise their runs could not resume. On every machine, and with every version of numpy."""
    lengths = np.arange(400) * 7919 % 211
    corpus = counted_corpus(tmp_path, (lengths[:200].tolist(), 20, 2 / 3), (lengths[200:].tolist(), 50, 1 / 3))
    with loader_of(corpus, CountedTokenizer(), lanes=16) as loader:
        rows = rows_of([loader], 200)
    digest = hashlib.sha256(rows.astype("<i4").tobytes()).hexdigest()
    assert digest == "215150dccdc5f011dff93587296d71be6a766f8354af74f80b6b0d810a547bb7"


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([1, 2, 4]), st.integers(1, 3), st.integers(0, 6)), max_size=6))
@example([(1, 3, 1), (2, 2, 1)])  # ranks resume from a row that is not a multiple of them
def test_a_stop_anywhere_changes_nothing(corpus, tokenizer, stream, legs) -> None:
    """Nor do ranks and batch sizes. legs: number of ranks, rows of each, and batches until the next stop."""
    state, row = None, 0
    for ranks, rows, batches in [*legs, (1, 4, 3)]:
        loaders = ranks_of(corpus, tokenizer, ranks, batch_size=ranks * rows)
        for loader in loaders if state else []:
            loader.load_state_dict(state)
        assert loaders[0].state_dict()["rows"] == row
        if batches:
            found = rows_of(loaders, batches)
            assert np.array_equal(found, stream[row : row + len(found)])
            row += len(found)
        state = state_of(loaders)
        close(loaders)


@pytest.mark.parametrize("ranks", [1, 2])
def test_passes_are_the_tokens_of_a_source_that_were_seen(corpus, tokenizer, ranks) -> None:
    loaders = ranks_of(corpus, tokenizer, ranks)
    assert loaders[0].epochs == {"letters": 0, "more": 0}
    tokens = len(rows_of(loaders, 150).ravel())
    for source in corpus.sources:
        size = 0
        for shard in source.shards["train"]:
            for group in range(shard.row_groups):
                size += len(tokenizer.core.encode_arrow(shard.read_row_group(group), tokenizer.bos)[0])
        passes = [loader.epochs[source.name] for loader in loaders]  # each knows its own lanes
        assert np.mean(passes) == pytest.approx(source.share * tokens / size, rel=0.05)
        assert passes == pytest.approx([np.mean(passes)] * ranks, rel=0.2)
    close(loaders)


def test_sources_of_one_name_have_passes_of_their_own(corpus, tokenizer) -> None:
    sources = [replace(source, name="letters") for source in corpus.sources]
    with loader_of(Corpus((*sources, replace(sources[0], name="letters-2"))), tokenizer) as loader:
        assert list(loader.epochs) == ["letters", "letters-2", "letters-2-2"]


def test_a_state_is_the_position_of_the_consumer_and_small(corpus, tokenizer, stream) -> None:
    loader = loader_of(corpus, tokenizer)
    rows_of([loader], 3)
    before = state_of([loader])
    loader._ahead[-1].result(timeout=60)  # the thread is ahead now
    assert len(loader._ahead) == BATCHES_AHEAD
    assert state_of([loader]) == before
    loader.close()
    assert np.array_equal(rows_of([loader], 2), stream[3 * BATCH : 5 * BATCH])  # closed and started again
    loader.load_state_dict(before)
    assert np.array_equal(rows_of([loader], 2), stream[3 * BATCH : 5 * BATCH])
    assert len(json.dumps(before)) < 1000 + 300 * LANES
    loader.close()


def test_numbers_that_do_not_divide_and_the_end_of_the_thread(corpus, tokenizer) -> None:
    with pytest.raises(ValueError, match="8 lanes cannot be shared by 3 ranks: use a multiple of 3"):
        loader_of(corpus, tokenizer, world_size=3)
    with pytest.raises(ValueError, match="3 rows of a batch cannot be shared by 4 ranks: use a multiple of 4"):
        loader_of(corpus, tokenizer, world_size=4, batch_size=3)
    before = threads()
    loader = loader_of(corpus, tokenizer)
    assert threads() == before
    next(loader)
    assert threads() == before + 1
    loader.close()
    loader.close()
    assert threads() == before


def threads():
    return sum(thread.name.startswith("nanochat-data") for thread in threading.enumerate())


@pytest.mark.gpu
def test_batches_on_a_gpu_are_those_on_the_cpu(corpus, tokenizer, stream) -> None:
    with loader_of(corpus, tokenizer, device="cuda") as loader:
        rows = []
        for _ in range(60):
            inputs, targets = next(loader)
            # While this is computed, the thread writes and uploads the next batches.
            torch.mm(torch.ones(4096, 4096, device="cuda"), torch.ones(4096, 4096, device="cuda"))
            rows.append(torch.cat([inputs, targets[:, -1:]], dim=1))
        assert np.array_equal(torch.cat(rows).cpu().numpy(), stream)
