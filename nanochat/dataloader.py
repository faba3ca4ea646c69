"""Batches of token ids for pretraining, in an order that does not depend on the number of ranks.

The stream is a sequence of rows: row i comes from lane i % lanes (see `lanes.py`), and a batch is the next rows of it.
Rank r of n makes the rows with i % n == r, which are those of its lanes r, r + n, …; the batch size only says where the
stream is cut.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from os import cpu_count
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nanochat.data.corpus import Corpus
from nanochat.data.documents import Bad
from nanochat.data.lanes import Deal, Group, Lane, Mix, Window
from nanochat.data.shards import Shard
from nanochat.data.token_shards import read_token_group, token_path, token_shard_is, write_token_shard
from nanochat.log import Progress
from nanochat.prefetch import Loader, share
from nanochat.tokenizer import Tokenizer

MOST_THREADS = 4  # that tokenize, unless more are asked for: other ranks may run on these cores


class TextLoader(Loader):
    """Batches of a corpus.

    overflow: what is too long for the rest of a row is cut there, and the remainder goes into another row ("carry") or
    is dropped ("crop"). tokens: a folder that `tokenize` filled, read in place of the text. What cannot be read is told
    to `corpus.bad`, and left out where that returns. Nothing is read before the first batch is asked for.
    """

    def __init__(
        self,
        corpus: Corpus,
        tokenizer: Tokenizer,
        batch_size: int,
        seq_len: int,
        *,
        split: str = "train",
        seed: int = 0,
        lanes: int = 64,
        overflow: str = "carry",
        rank: int = 0,
        world_size: int = 1,
        device: str | torch.device = "cpu",
        threads: int = 0,
        tokens: Path | str | None = None,
    ):
        assert split in ("train", "val"), split
        if overflow not in ("carry", "crop"):
            raise ValueError(f"overflow is {overflow!r}: it has to be 'carry' or 'crop'")
        if seed < 0 or seq_len < 1:
            raise ValueError(f"seed={seed} and seq_len={seq_len}: the seed has to be 0 or more, the length 1 or more")
        share("lanes", lanes, world_size)
        setting = {"data": corpus.describe()["fingerprint"], "tokenizer": tokenizer.content_hash, "split": split}
        setting |= {"seed": seed, "lanes": lanes, "seq_len": seq_len, "overflow": overflow}
        super().__init__(setting, batch_size, seq_len, rank, world_size, device)
        self.lanes, self.overflow = lanes, overflow
        self._corpus, self._tokenizer, self._threads = corpus, tokenizer, threads
        self._tokens = Path(tokens) if tokens else None
        self._mix = Mix([weight for _, weight in corpus.parts], lanes)
        self._groups: list[list[tuple[Shard, int]]] = []  # of each part, its row groups: shard, and number in it
        self._deals: list[Deal] = []
        for part, (source, _) in enumerate(corpus.parts):
            shards = getattr(source, split)
            if not (documents := sum(shard.rows for shard in shards)):
                raise ValueError(f"{source.name} has no document for {split}: give it more text")
            groups = [(shard, number) for shard in shards for number in range(shard.row_groups)]
            self._groups.append(groups)
            self._deals.append(Deal(partial(self._read, part), len(groups), documents, lanes, (seed, part)))
        self._row = 0  # rows of the stream that all ranks have been given
        self._windows = {(lane, part): Window() for lane in self._my_lanes for part in range(len(self._deals))}
        self._given: dict[tuple[int, int], Window] = {}  # those that the batch given last is of

    # ---- the batches ----

    def _arrive(self, marks: list[tuple[tuple[int, int], Window]]) -> None:
        self._given = dict(marks)
        self._windows.update(self._given)
        self._row += self.batch_size

    def _rows(self) -> Iterator[tuple[np.ndarray, np.ndarray, tuple]]:
        """Each marked by the window it is in."""
        fixed = self.seq_len + 1, self._tokenizer.special_tokens["<|bos|>"], self.overflow == "carry"
        lanes = {
            (lane, part): Lane(self._deals[part], lane, *fixed, window, self._rows_of(lane)[part])
            for (lane, part), window in self._windows.items()
        }
        row = self._row + (self.rank - self._row) % self.world_size
        while True:
            turn, lane = divmod(row, self.lanes)
            key = lane, self._mix.part(lane, turn)
            ids = lanes[key].take()
            row += self.world_size
            yield ids[:-1], ids[1:], (key, lanes[key].window)

    # ---- where the consumer is ----

    @property
    def tokens_seen(self) -> int:
        """Inputs that all ranks have been given since the beginning of the stream."""
        return self._row * self.seq_len

    @property
    def epochs(self) -> dict[str, float]:
        """How often each part has been read, by name, measured on this rank's lanes."""
        units = np.zeros(len(self._deals))
        for (lane, part), window in self._windows.items():
            done = (self._rows_of(lane)[part] - window.row) / max(window.rows, 1)
            units[part] += window.unit + window.units * done
        passes = units * self.world_size / [deal.units for deal in self._deals]
        return {source.name: float(count) for (source, _), count in zip(self._corpus.parts, passes, strict=True)}

    @property
    def epoch(self) -> float:
        """Passes over the part that has been read most often."""
        return max(self.epochs.values())

    @property
    def dropped_share(self) -> float:
        """Of the text that was packed so far for this rank's lanes, what found no room."""
        dropped = sum(window.dropped + window.lost for window in self._windows.values())
        packed = sum(window.row + window.rows for window in self._windows.values()) * (self.seq_len + 1)
        return dropped / max(dropped + packed, 1)

    def place(self) -> list[str]:
        """The shards and row groups that this rank's last batch is of, to be told where a loss is not finite."""
        found: dict[Path, set[int]] = {}
        for (lane, part), window in self._given.items():
            units = {*range(window.unit, window.unit + window.units), *(unit for unit, *_ in window.left)}
            for unit in units:
                shard, group = self._groups[part][self._deals[part].place(lane, unit)[1]]
                found.setdefault(shard.path, set()).add(group)
        return [f"{path}, row groups {', '.join(map(str, sorted(found[path])))}" for path in sorted(found)]

    def state_dict(self) -> dict[str, Any]:
        """Where the consumer is, as small JSON; of this rank's lanes, so ranks have theirs joined by `merge_states`."""
        parts = range(len(self._deals))
        lanes = {str(lane): [asdict(self._windows[lane, part]) for part in parts] for lane in self._my_lanes}
        return {"setting": dict(self._setting), "rows": self._row, "lanes": lanes}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where a loader of the same setting was, on whatever number of ranks and with whatever batch size."""
        self.check_setting(state)
        if missing := [lane for lane in self._my_lanes if str(lane) not in state["lanes"]]:
            raise ValueError(f"the saved place lacks lanes {missing}: join the states of all ranks with merge_states")
        self.close()
        self._row, self._given = state["rows"], {}
        for lane, part in self._windows:
            window = state["lanes"][str(lane)][part]
            self._windows[lane, part] = Window(**{**window, "left": tuple(map(tuple, window["left"]))})

    @property
    def _my_lanes(self) -> range:
        return range(self.rank, self.lanes, self.world_size)

    def _rows_of(self, lane: int) -> list[int]:
        """Rows of each part that a lane has given to the consumer."""
        return self._mix.rows_before(lane, (self._row - lane - 1) // self.lanes + 1)

    # ---- reading ----

    def _read(self, part: int, group: int) -> Group:
        shard, number = self._groups[part][group]
        if self._tokens is None:
            return encode_group(shard, number, self._tokenizer, self._threads, self._corpus.bad)
        path, about = _made_of(self._tokens, shard, self._setting["tokenizer"])
        return read_token_group(path, number, about)


def merge_states(states: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The state of all ranks' loaders as one, of which any number of ranks can go on."""
    assert all((state["rows"], state["setting"]) == (states[0]["rows"], states[0]["setting"]) for state in states)
    return states[0] | {"lanes": {lane: windows for state in states for lane, windows in state["lanes"].items()}}


def encode_group(shard: Shard, group: int, tokenizer: Tokenizer, threads: int, bad: Bad) -> Group:
    """The ids of a row group of text; none if it cannot be read, and `bad`, which is told so, does not raise."""
    with bad.caught():
        threads = threads or min(MOST_THREADS, cpu_count() or 1)
        return tokenizer.encode_arrow(shard.read(group), tokenizer.special_tokens["<|bos|>"], threads)
    return np.array([], np.uint16), np.array([0])


def tokenize(corpus: Corpus, tokenizer: Tokenizer, folder: Path, threads: int = 0) -> int:
    """Make the token shards of both splits of a corpus that are not there yet; returns how many that were.

    A row group that cannot be read, if `corpus.bad` lets that pass, has no documents there.
    """
    shards = [shard for source, _ in corpus.parts for shard in (*source.train, *source.val)]
    total = sum(shard.row_groups for shard in shards)
    progress, content_hash = Progress("tokenize", "row groups"), tokenizer.content_hash
    done = made = 0

    def groups(shard: Shard) -> Iterator[Group]:
        for group in range(shard.row_groups):
            yield encode_group(shard, group, tokenizer, threads, corpus.bad)
            progress.update(done + group + 1, total, shard.path.name)

    for shard in shards:
        path, about = _made_of(folder, shard, content_hash)
        if not token_shard_is(path, about):
            write_token_shard(path, groups(shard), about)
            made += 1
        done += shard.row_groups
    progress.close()
    return made


def _made_of(folder: Path, shard: Shard, content_hash: str) -> tuple[Path, dict[str, str]]:
    """Where the ids of a shard are kept, and what the file says that they were made of."""
    about = {"tokenizer": content_hash, "shard": shard.hash, "column": shard.column}
    return token_path(folder, shard.path, shard.hash), about
