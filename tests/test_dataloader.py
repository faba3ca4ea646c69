"""The stream of batches: the same on any number of ranks, from any place, of text and of token shards."""

import hashlib
import json
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from corpora import counted_shard, damaged, text_corpus, tolerant
from dataloader_rank import main as one_of_them
from forks import Forked
from hypothesis import given, settings
from hypothesis import strategies as st

from nanochat.data.corpus import Corpus, Source
from nanochat.dataloader import TextLoader, merge_states, token_path, tokenize
from nanochat.tokenizer import Tokenizer

BATCH, LENGTH, LANES = 8, 32, 8


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(["the quick brown fox jumps over the lazy dog 빠른 갈색 여우 " * 20], 320)


def texts_of(count: int, seed: int = 0) -> list[str]:
    chance = np.random.default_rng(seed)
    words = "the quick brown fox jumps over the lazy dog 빠른 갈색 여우".split()
    lengths = np.minimum(chance.lognormal(3, 1.2, count).astype(int), 400)
    return [f"{i}: " + " ".join(chance.choice(words, length)) for i, length in enumerate(lengths)]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Corpus:
    texts = texts_of(400)
    return text_corpus(tmp_path_factory.mktemp("letters"), [texts[:150], texts[150:300], texts[300:]], 32)


@pytest.fixture(scope="module")
def stream(corpus, tokenizer) -> np.ndarray:
    """The first rows of the stream, as one rank gets them."""
    with loader_of(corpus, tokenizer) as loader:
        return rows_of([loader], 60)


def loader_of(corpus: Corpus, tokenizer: Tokenizer, **options) -> TextLoader:
    settings = {"batch_size": BATCH, "seq_len": LENGTH, "lanes": LANES, "seed": 3} | options
    return TextLoader(corpus, tokenizer, **settings)


def ranks_of(corpus: Corpus, tokenizer: Tokenizer, ranks: int, **options) -> list[TextLoader]:
    return [loader_of(corpus, tokenizer, rank=rank, world_size=ranks, **options) for rank in range(ranks)]


def rows_of(loaders: list[TextLoader], batches: int) -> np.ndarray:
    """(rows, LENGTH + 1) of the stream, put together from what the ranks get."""
    found = []
    for _ in range(batches):
        batch = np.empty((loaders[0].batch_size, loaders[0].seq_len + 1), np.int64)
        for loader in loaders:
            inputs, targets = next(loader)
            assert inputs.dtype == targets.dtype == torch.int64
            assert torch.equal(inputs[:, 1:], targets[:, :-1])
            batch[loader.rank :: loader.world_size] = torch.cat([inputs, targets[:, -1:]], dim=1).numpy()
        found.append(batch)
    return np.concatenate(found)


def state_of(loaders: list[TextLoader]) -> dict:
    """As a checkpoint would give it back."""
    return json.loads(json.dumps(merge_states([loader.state_dict() for loader in loaders])))


def close(loaders: list[TextLoader]) -> None:
    for loader in loaders:
        loader.close()


# ---- one stream ----


def test_rows_begin_with_bos_and_are_text(stream, corpus, tokenizer):
    bos = tokenizer.special_tokens["<|bos|>"]
    assert (stream[:, 0] == bos).all()
    texts = set(texts_of(400)[:300])
    documents = [ids for row in stream for ids in np.split(row, np.flatnonzero(row == bos))]
    whole = [text for ids in documents if (text := tokenizer.decode(ids[1:])) in texts]
    assert len(whole) > 100
    everything = "\n".join(texts)
    assert all(tokenizer.decode(ids[1:]).strip("\ufffd") in everything for ids in documents[:200])


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_ranks_share_the_stream_of_one(corpus, tokenizer, stream, ranks):
    loaders = ranks_of(corpus, tokenizer, ranks)
    assert np.array_equal(rows_of(loaders, 60), stream)
    close(loaders)


def test_the_batch_size_only_cuts_the_stream(corpus, tokenizer, stream):
    for batch_size, threads in ((1, 1), (20, 2)):
        with loader_of(corpus, tokenizer, batch_size=batch_size, threads=threads) as loader:
            assert np.array_equal(rows_of([loader], 240 // batch_size), stream[:240])


def test_what_the_stream_depends_on(corpus, tokenizer, stream):
    for other in ({"seed": 4}, {"lanes": 4}, {"overflow": "crop"}, {"split": "val"}):
        with loader_of(corpus, tokenizer, **other) as loader:
            assert not np.array_equal(rows_of([loader], 30), stream[: 30 * BATCH]), other


def test_the_stream_is_that_of_earlier_versions(tmp_path, tokenizer):
    """Or runs that were begun with those cannot go on. On every machine, and with every version of numpy."""
    lengths = np.arange(400) * 7919 % 211
    corpus = counted(tmp_path, tokenizer, (lengths[:200].tolist(), 20, 2), (lengths[200:].tolist(), 50, 1))
    with loader_of(corpus, tokenizer, lanes=16, overflow="crop", tokens=tmp_path) as loader:
        rows = rows_of([loader], 200)
    bos = tokenizer.special_tokens["<|bos|>"]
    digest = hashlib.sha256(np.where(rows == bos, 0, rows).astype("<i4").tobytes()).hexdigest()
    assert digest == "26ea921282f36b142313fe4c0afb4d2b0b45832044c653446bf10d9579df0c70"


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([1, 2, 4]), st.sampled_from([4, 8, 12]), st.integers(0, 9)), max_size=6))
def test_a_stop_anywhere_changes_nothing(corpus, tokenizer, stream, legs):
    """legs: number of ranks, batch size, and batches until the next stop."""
    state, row = None, 0
    for ranks, batch_size, batches in [*legs, (1, 4, 3)]:
        loaders = ranks_of(corpus, tokenizer, ranks, batch_size=batch_size)
        for loader in loaders if state else []:
            loader.load_state_dict(state)
        assert loaders[0].tokens_seen == row * LENGTH
        if batches:
            found = rows_of(loaders, batches)
            assert np.array_equal(found, stream[row : row + len(found)])
            row += len(found)
        state = state_of(loaders)
        close(loaders)


def test_ranks_go_on_from_a_row_that_is_not_a_multiple_of_them(corpus, tokenizer, stream):
    with loader_of(corpus, tokenizer, batch_size=1) as one:
        rows_of([one], 3)
        state = state_of([one])
    for loader in ranks_of(corpus, tokenizer, 2, batch_size=4):
        loader.load_state_dict(state)
        inputs, _ = next(loader)
        assert np.array_equal(inputs, [stream[row, :-1] for row in range(3, 7) if row % 2 == loader.rank])
        loader.close()


def test_a_state_is_what_the_consumer_has_seen_and_small(corpus, tokenizer, stream):
    loader = loader_of(corpus, tokenizer)
    rows_of([loader], 3)
    before = state_of([loader])
    while loader._ahead._ready.qsize() < 4:  # the thread is ahead now
        pass
    assert state_of([loader]) == before
    loader.close()
    assert np.array_equal(rows_of([loader], 2), stream[3 * BATCH : 5 * BATCH])  # closed and begun again
    loader.load_state_dict(before)
    assert np.array_equal(rows_of([loader], 2), stream[3 * BATCH : 5 * BATCH])
    assert len(json.dumps(before)) < 1000 + 300 * LANES
    loader.close()


def test_a_state_of_something_else_is_refused(corpus, tokenizer):
    two = ranks_of(corpus, tokenizer, 2)
    with pytest.raises(ValueError, match="lacks lanes"):
        two[1].load_state_dict(two[0].state_dict())
    other = loader_of(corpus, tokenizer, seed=4, overflow="crop")
    with pytest.raises(ValueError, match=r"seed=3 and not 4, overflow='carry' and not 'crop'"):
        other.load_state_dict(state_of(two))
    source, weight = corpus.parts[0]
    fewer = Corpus(((replace(source, train=source.train[:1]), weight),))
    with pytest.raises(ValueError, match="data="):
        loader_of(fewer, tokenizer).load_state_dict(state_of(two))


def test_numbers_that_do_not_divide(corpus, tokenizer):
    with pytest.raises(ValueError, match="8 lanes cannot be shared by 3 ranks: take 6 or 9"):
        loader_of(corpus, tokenizer, world_size=3)
    with pytest.raises(ValueError, match="3 rows of a batch cannot be shared by 4 ranks: take 4 or 8"):
        loader_of(corpus, tokenizer, world_size=4, batch_size=3)
    with pytest.raises(ValueError, match="'carry' or 'crop'"):
        loader_of(corpus, tokenizer, overflow="pad")
    with pytest.raises(ValueError, match="seed"):
        loader_of(corpus, tokenizer, seed=-1)


def test_processes(corpus, tokenizer, stream, tmp_path):
    tokenizer.save(tmp_path / "tokenizer.json")
    shards = corpus.parts[0][0].train[0].path.parent
    said = Forked(tmp_path / "out", one_of_them, shards, tmp_path / "tokenizer.json", ranks=2).done()
    assert said.split() == ["digest", hashlib.sha256(stream[: 20 * BATCH].tobytes()).hexdigest()]


# ---- which documents ----


def counted(folder: Path, tokenizer: Tokenizer, *parts: tuple[list[int], int, float]) -> Corpus:
    """Parts of (lengths, documents of a row group, weight); ids count on from 1000 over all of them."""
    made, first = [], 1000
    for number, (lengths, group, weight) in enumerate(parts):
        shard = counted_shard(folder, f"part{number}", lengths, group, first, tokenizer)
        made.append((Source(f"part{number}", (shard,), ()), weight))
        first += len(lengths)
    return Corpus(tuple(made))


@pytest.mark.parametrize("lanes", [1, 4, 64])
def test_documents_are_given_once_an_epoch(tmp_path, tokenizer, lanes):
    lengths = np.random.default_rng(5).integers(1, 200, 600).tolist()
    corpus = counted(tmp_path, tokenizer, (lengths, 50, 1))
    with loader_of(corpus, tokenizer, lanes=lanes, batch_size=64, tokens=tmp_path) as loader:
        given = Counter()
        while loader.epoch < 3:
            given.update(rows_of([loader], 1).ravel().tolist())
        times = np.array([given[1000 + i] / length for i, length in enumerate(lengths)])
        assert loader.dropped_share == 0
    # Lanes are not at the same place of an epoch, the less so the fewer documents each has.
    assert 1 < times.min() <= times.max() < 5
    assert np.quantile(times, 0.05) >= 2
    assert abs(times.mean() - 3) < 0.1


def test_three_documents_are_enough(tmp_path, tokenizer):
    corpus = text_corpus(tmp_path, [["one two", "three", "four " * 30]], 2)
    with loader_of(corpus, tokenizer, lanes=64, batch_size=64) as loader:
        rows = rows_of([loader], 6)
        assert (rows[:, 0] == tokenizer.special_tokens["<|bos|>"]).all()
        assert loader.epoch > 64
        state = state_of([loader])
        after = rows_of([loader], 6)
        loader.load_state_dict(state)
        assert np.array_equal(rows_of([loader], 6), after)


def test_one_document_longer_than_all_buffers(tmp_path, tokenizer):
    text = " ".join(map(str, range(60_000)))
    corpus = text_corpus(tmp_path, [["short", text, "brief"]], 1024)
    ids = tokenizer.encode(text)
    with loader_of(corpus, tokenizer, lanes=1, batch_size=100) as loader:
        rows = rows_of([loader], len(ids) // LENGTH // 100 + 20)
    bodies = {row[1:].tobytes() for row in rows}
    pieces = [
        np.array(ids[start : start + LENGTH], np.int64).tobytes() for start in range(0, len(ids) - LENGTH, LENGTH)
    ]
    assert sum(piece in bodies for piece in pieces) > 0.99 * len(pieces)


def test_text_of_nothing_is_an_error_and_no_endless_loop(tmp_path, tokenizer):
    corpus = text_corpus(tmp_path, [["", "", ""]], 2)
    with loader_of(corpus, tokenizer) as loader, pytest.raises(ValueError, match="no document with text"):
        next(loader)
    source, weight = corpus.parts[0]
    with pytest.raises(ValueError, match="letters has no document for val"):
        loader_of(Corpus(((replace(source, val=()), weight),)), tokenizer, split="val")


def test_the_shares_of_a_mix_hold(tmp_path, tokenizer):
    chance = np.random.default_rng(6)
    long, short = chance.integers(200, 900, 100).tolist(), chance.integers(1, 30, 900).tolist()
    corpus = counted(tmp_path, tokenizer, (long, 10, 0.7), (short, 100, 0.3))
    loaders = ranks_of(corpus, tokenizer, 2, lanes=64, batch_size=32, tokens=tmp_path)
    rows = rows_of(loaders, 60)
    is_long = ((rows >= 1000) & (rows < 1100)).any(axis=1)
    is_short = (rows >= 1100).any(axis=1)
    assert not (is_long & is_short).any()
    assert abs(is_long.mean() - 0.7) < 0.005
    first = [is_long[start : start + 64].mean() for start in range(0, len(rows), 64)]
    assert max(abs(share - 0.7) for share in first) < 0.1
    state, after = state_of(loaders), rows_of(loaders, 5)
    close(loaders)
    assert loaders[0].epochs.keys() == {"part0", "part1"}
    with loader_of(corpus, tokenizer, lanes=64, batch_size=32, tokens=tmp_path) as one:
        one.load_state_dict(state)
        assert np.array_equal(rows_of([one], 5), after)


def test_cropping_drops_and_says_how_much(tmp_path, tokenizer):
    corpus = counted(tmp_path, tokenizer, ([20] * 1000, 100, 1))  # a row of 33 holds one and a half
    with loader_of(corpus, tokenizer, overflow="crop", tokens=tmp_path) as loader:
        while loader.epoch < 3:
            rows = rows_of([loader], 1)
        assert abs(loader.dropped_share - 9 / 42) < 0.01
        assert ((rows == tokenizer.special_tokens["<|bos|>"]).sum(axis=1) == 2).all()


# ---- what can go wrong ----


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_damaged_shard_ends_it_with_its_name(tmp_path, tokenizer, ranks, capsys):
    corpus = damaged(text_corpus(tmp_path, [texts_of(300)] * 3, 32), 1)
    for loader in ranks_of(corpus, tokenizer, ranks):
        for _ in range(2):  # and again, when asked again
            with pytest.raises(ValueError, match=r"01\.parquet"):
                rows_of([loader], 2000)
        loader.close()
    with loader_of(tolerant(corpus), tokenizer, lanes=1) as loader:  # which keeps no row group
        while loader.epoch < 3:
            next(loader)
    left_out = [line for line in capsys.readouterr().out.splitlines() if "left out" in line]
    assert left_out
    assert len(set(left_out)) == len(left_out)  # once, not once an epoch


def test_a_rank_tells_where_its_last_batch_comes_from(tmp_path, tokenizer):
    corpus = text_corpus(tmp_path, [texts_of(100, 1), texts_of(100, 2), texts_of(9)], 10)
    shards = {str(shard.path): shard for shard in corpus.parts[0][0].train}
    loaders = ranks_of(corpus, tokenizer, 2, batch_size=2, lanes=2)
    assert loaders[0].place() == []
    told = set()
    for _ in range(300):
        rows = rows_of(loaders, 1)
        for loader in loaders:
            lines = [line.split(", row groups ") for line in loader.place()]
            named = [(shards[path], int(group)) for path, groups in lines for group in groups.split(", ")]
            told.update(named)
            there = "\n".join(text for shard, group in named for text in shard.read(group).to_pylist())
            first = tokenizer.decode(rows[loader.rank][1:]).partition("<|bos|>")[0]
            assert first.strip("\ufffd") in there
    close(loaders)
    assert len(told) == 20


def test_nulls_are_named_with_their_file(tmp_path, tokenizer):
    corpus = text_corpus(tmp_path, [["a", None, "b"]], 10)
    with loader_of(corpus, tokenizer) as loader, pytest.raises(ValueError, match=r"00\.parquet.*null"):
        next(loader)


def test_closing_ends_the_thread(corpus, tokenizer):
    before = threading.active_count()
    loader = loader_of(corpus, tokenizer)
    assert threading.active_count() == before
    next(loader)
    assert threading.active_count() == before + 1
    loader.close()
    assert threading.active_count() == before
    assert loader.wait_seconds > 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_batches_on_a_gpu_are_those_on_the_cpu(corpus, tokenizer, stream):
    with loader_of(corpus, tokenizer, device="cuda") as loader:
        rows = torch.cat(
            [torch.cat([inputs, targets[:, -1:]], dim=1) for inputs, targets in (next(loader) for _ in range(60))]
        )
        assert np.array_equal(rows.cpu().numpy(), stream)


# ---- token shards ----


def test_token_shards_give_the_same_stream(corpus, tokenizer, stream, tmp_path):
    assert tokenize(corpus, tokenizer, tmp_path) == 3
    assert tokenize(corpus, tokenizer, tmp_path) == 0
    with loader_of(corpus, tokenizer, tokens=tmp_path) as loader:
        assert np.array_equal(rows_of([loader], 30), stream[: 30 * BATCH])
        state = state_of([loader])
    with loader_of(corpus, tokenizer) as loader:  # and go on with the text
        loader.load_state_dict(state)
        assert np.array_equal(rows_of([loader], 30), stream[30 * BATCH :])


def test_token_shards_of_damaged_text(corpus, tokenizer, tmp_path):
    strict = damaged(text_corpus(tmp_path / "text", [texts_of(300)] * 2, 32), 0)
    with pytest.raises(ValueError, match=r"00\.parquet"):
        tokenize(strict, tokenizer, tmp_path / "ids")
    assert not (tmp_path / "ids").exists()
    lax = tolerant(strict)
    assert tokenize(lax, tokenizer, tmp_path / "ids") == 2
    with loader_of(lax, tokenizer) as text, loader_of(lax, tokenizer, tokens=tmp_path / "ids") as ids:
        assert np.array_equal(rows_of([text], 30), rows_of([ids], 30))


def test_token_shards_of_another_tokenizer_are_refused(corpus, tokenizer, tmp_path):
    tokenize(corpus, Tokenizer.train(["abc" * 100], 268), tmp_path)
    with loader_of(corpus, tokenizer, tokens=tmp_path) as loader, pytest.raises(ValueError, match="another tokenizer"):
        next(loader)
    shard = corpus.parts[0][0].train[0]
    for path in tmp_path.iterdir():
        path.unlink()
    with loader_of(corpus, tokenizer, tokens=tmp_path) as loader, pytest.raises(ValueError, match="there is no"):
        next(loader)
    assert not token_path(tmp_path, shard.path, shard.hash).exists()
