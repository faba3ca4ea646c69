"""Files of token ids: they give back what was written, and say what is wrong with them."""

from pathlib import Path

import numpy as np
import pytest

from nanochat.data.token_shards import read_token_group, token_path, token_shard_is, write_token_shard

ABOUT = {"tokenizer": "t" * 64, "shard": "s" * 64, "column": "text"}


def group_of(*documents: list[int], dtype: type = np.uint16) -> tuple[np.ndarray, np.ndarray]:
    ids = np.array([id for document in documents for id in document], dtype)
    return ids, np.cumsum([0] + [len(document) for document in documents]).astype(np.uint64)


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
def test_what_was_written_is_read(tmp_path, dtype):
    groups = [group_of([0, 1, 2], [0], [0, 65_535], dtype=dtype), group_of(dtype=dtype), group_of([0, 9], dtype=dtype)]
    path = tmp_path / "new" / "a.safetensors"
    write_token_shard(path, iter(groups), ABOUT)
    assert list(path.parent.iterdir()) == [path]
    assert token_shard_is(path, ABOUT)
    for number, (ids, offsets) in enumerate(groups):
        read_ids, read_offsets = read_token_group(path, number, ABOUT)
        assert read_ids.dtype == dtype
        assert np.array_equal(read_ids, ids)
        assert np.array_equal(read_offsets, offsets)


def test_a_shard_of_something_else_is_refused(tmp_path):
    path = tmp_path / "a.safetensors"
    write_token_shard(path, [group_of([0, 1])], ABOUT)
    for name, words in [("tokenizer", "another tokenizer"), ("shard", "another shard"), ("column", "another column")]:
        other = ABOUT | {name: "x"}
        assert not token_shard_is(path, other)
        with pytest.raises(ValueError, match=rf"a\.safetensors was made with {words}; .*--tokenize"):
            read_token_group(path, 0, other)


def test_absence_and_damage_are_named(tmp_path):
    path = tmp_path / "a.safetensors"
    with pytest.raises(ValueError, match=r"there is no .*a\.safetensors; .*--tokenize"):
        read_token_group(path, 0, ABOUT)
    write_token_shard(path, [group_of([0, *range(1000)])], ABOUT)
    whole = path.read_bytes()
    for cut in (0, 4, 100, len(whole) - 1):
        path.write_bytes(whole[:cut])
        assert not token_shard_is(path, ABOUT)
        with pytest.raises(ValueError, match=r"a\.safetensors is damaged"):
            read_token_group(path, 0, ABOUT)


def test_a_write_that_breaks_off_leaves_nothing(tmp_path):
    def groups():
        yield group_of([0, 1])
        raise OSError("the disk of the text is gone")

    with pytest.raises(OSError, match="is gone"):
        write_token_shard(tmp_path / "a.safetensors", groups(), ABOUT)
    assert not list(tmp_path.iterdir())


def test_a_path_has_the_name_and_the_hash_of_the_text():
    assert token_path(Path("ids"), Path("/data/shard_7.parquet"), "0123456789abcdef").name == (
        "shard_7-0123456789ab.safetensors"
    )
