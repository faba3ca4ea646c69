"""Batches of token ids for pretraining, prefetched in the background; their order does not depend on the world size.

`Loader` is the base class for batch sources that read data: prefetch, upload, waiting time. `TextLoader` reads a
corpus: a stream of rows, where row i comes from lane i % lanes (see `nanochat/data/lanes.py`), and a batch is the next
rows in the stream. Rank r of n makes the rows with i % n == r, from the lanes r, r + n, … So batch size and number of
ranks only decide how the stream is cut.
"""

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, asdict, dataclass
from itertools import product
from typing import Any, Generic, TypeVar

import numpy as np
import torch

from nanochat.data.corpus import Corpus, open_corpus
from nanochat.data.lanes import Chunk, Deal, Lane, Mix
from nanochat.errors import UserError
from nanochat.log import Record
from nanochat.protocols import Conversations
from nanochat.scaling import require_multiple
from nanochat.settings import PretrainSettings
from nanochat.start import OpenRun
from nanochat.tokenizer import Tokenizer

BATCHES_AHEAD = 4


# ---- prefetch ----


Batch = tuple[torch.Tensor, ...]  # first axis: this rank's rows
DataRecord = list[Record] | Record  # what a run learns from, in its manifest


class BatchSource(Iterator, AbstractContextManager):
    """An iterator over batches with a position that a checkpoint can store: `state_dict`, `load_state_dict`."""

    idle = False  # no rank learns from the last batch: the update is skipped; known without waiting for the device

    metrics: Mapping[str, float] = {}  # figures of the last batch, for the log

    splits_alike = False  # True: all ranks have as many micro-batches, which need not be counted

    may_be_saved = True  # False: the next batches need something of the last one that no checkpoint holds

    @property
    def progress(self) -> float:
        """The share of the run that is done, of a source that has an end; may go beyond 1."""
        raise NotImplementedError  # a text never ends: its runs have a number of steps

    def origin(self) -> DataRecord:
        """Return where the examples come from, for the manifest: a run resumes only with the same."""
        return self.state_dict()["setting"] | {"tasks": {}}

    @abstractmethod
    def state_dict(self) -> Record:
        """Return the position as small JSON; its "setting" decides the order, and has to be equal on resume."""

    @abstractmethod
    def load_state_dict(self, state: Record) -> None:
        """Continue from a position that a source with the same setting has saved."""

    def split(self, batch: Any, rows: int) -> list[Any]:
        """Return the micro-batches of a batch; rows: as many as fit into memory."""
        columns = [tensor.split(rows) for tensor in batch]  # views, nothing is copied
        return list(zip(*columns, strict=True))

    def computed(self, batch: Any, ranks: int) -> int:
        """Return the tokens that all ranks together compute for a batch, padding included."""
        return batch[0].numel() * ranks

    def merge(self, states: Sequence[Record]) -> Record:
        """Join the states from all ranks; any number of ranks can load the result."""
        return states[0]

    def __exit__(self, *exception: object) -> None:
        pass


Data = TypeVar("Data", Corpus, Conversations)


@dataclass(eq=False)
class Loader(BatchSource, Generic[Data]):
    """Endless source of (inputs, targets), each (batch_size / world_size, seq_len) int64 on `device`.

    data: gives the rows. batch_size: rows for all ranks together. A subclass adds to `_setting` everything that decides
    the row order; a saved state is valid for the same setting only.
    """

    splits_alike = True

    data: Data
    tokenizer: Tokenizer
    batch_size: int
    seq_len: int
    _: KW_ONLY
    seed: int = 0
    rank: int = 0
    world_size: int = 1
    device: torch.device | str = "cpu"

    def __post_init__(self) -> None:
        require_multiple("rows of a batch", self.batch_size, self.world_size)
        self.device = torch.device(self.device)
        self._batches = self._take_batches()  # nothing runs before the first batch
        # Saved in checkpoints, as what subclasses add: names and values must not change.
        self._setting: Record = {"tokenizer": self.tokenizer.content_hash, "seed": self.seed, "seq_len": self.seq_len}

    def __next__(self) -> Batch:
        return next(self._batches)

    @abstractmethod
    def _rows(self) -> Iterator[tuple[Any, Any, Any]]:
        """Yield (inputs, targets, mark) for the rows of this rank, from the position of the consumer."""

    @abstractmethod
    def _consumed(self, marks: list[Any]) -> None:
        """Record that the loop has received a batch, by the marks of its rows."""

    def _take_batches(self) -> Generator[Batch, None, None]:
        """Yield the batches from the position of the consumer on, on the device; a thread makes the next ones."""
        pool = ThreadPoolExecutor(1, thread_name_prefix="nanochat-data")  # one thread: the batches have an order
        made = self._make_batches()
        self._ahead: deque[Future[tuple[torch.Tensor, list[Any]]]] = deque(
            pool.submit(made.__next__) for _ in range(BATCHES_AHEAD)
        )
        try:
            while True:
                batch, marks = self._ahead.popleft().result()
                self._ahead.append(pool.submit(made.__next__))
                # The computation, not this thread, waits for the copy; torch reuses pinned memory only after it.
                batch = batch.to(self.device, non_blocking=True)
                # Only now is the batch part of a saved state: batches made ahead are not.
                self._consumed(marks)
                yield batch.unbind()
        finally:
            pool.shutdown(cancel_futures=True)

    def _make_batches(self) -> Iterator[tuple[torch.Tensor, list[Any]]]:
        """Yield inputs and targets as one tensor, and the marks of their rows; runs in the thread."""
        shape = (2, self.batch_size // self.world_size, self.seq_len)
        rows = self._rows()
        pinned = torch.device(self.device).type == "cuda"
        while True:
            batch = torch.empty(shape, dtype=torch.int64, pin_memory=pinned)
            marks = []
            for inputs, targets in zip(*batch.numpy(), strict=True):
                inputs[:], targets[:], mark = next(rows)
                marks.append(mark)
            yield batch, marks

    def close(self) -> None:
        """End the background thread; the next batch starts a new one at the position of the consumer."""
        self._batches.close()
        self._batches = self._take_batches()

    def __exit__(self, *exception: object) -> None:
        self.close()


# ---- text ----

Place = tuple[int, int]  # (lane, number of the source)


@dataclass(eq=False, kw_only=True)
class TextLoader(Loader[Corpus]):
    """Batches of a corpus; nothing is read before the first batch."""

    lanes: int = 64

    def __post_init__(self) -> None:
        require_multiple("lanes", self.lanes, self.world_size)
        super().__post_init__()
        self._setting |= {
            "data": self.data.describe()["fingerprint"],
            "split": "train",
            "lanes": self.lanes,
            "overflow": "carry",  # earlier versions could also drop the rest of a cut document
        }
        sources = self.data.sources
        self._mix = Mix([source.share for source in sources], self.lanes)
        # One for each source.
        self._deals = [
            Deal(source.shards["train"], self.tokenizer, self.lanes, (self.seed, number))
            for number, source in enumerate(sources)
        ]
        # The position of the consumer: rows taken by all ranks, and for each lane of this rank the chunk with the last
        # row taken.
        self._row = 0
        lanes = range(self.rank, self.lanes, self.world_size)
        self._chunks = dict.fromkeys(product(lanes, range(len(sources))), Chunk())  # by Place

    def _consumed(self, marks: list[tuple[Place, Chunk]]) -> None:
        self._chunks.update(marks)
        self._row += self.batch_size

    def _rows(self) -> Iterator[tuple[np.ndarray, np.ndarray, tuple[Place, Chunk]]]:
        """Yield the rows for this rank, each marked with place and chunk."""
        lanes = {}
        for (number, source), chunk in self._chunks.items():
            lane = Lane(self._deals[source], number, self.seq_len + 1)
            # Of the lane's rows number, number + lanes, number + 2 * lanes, … those below self._row were taken.
            taken = self._mix.rows_before(number, (self._row - number - 1) // self.lanes + 1)
            lanes[number, source] = lane.rows(chunk, taken[source])
        # The first row for this rank: another number of ranks may have stopped anywhere.
        row = self._row + (self.rank - self._row) % self.world_size
        while True:
            turn, number = divmod(row, self.lanes)
            place = number, self._mix.source(number, turn)
            ids, chunk = next(lanes[place])
            # A row has one token more than inputs: targets are the inputs shifted by one.
            yield ids[:-1], ids[1:], (place, chunk)
            row += self.world_size

    def origin(self) -> DataRecord:
        return self.data.manifest()

    # ---- position of the consumer ----

    @property
    def epochs(self) -> dict[str, float]:
        """Passes over each source so far, by name, measured on the lanes of this rank.

        The second source of one name, like a folder text in another place, is text-2.
        """
        units = [0.0] * len(self._deals)
        for (lane, source), chunk in self._chunks.items():
            taken = self._mix.rows_before(lane, (self._row - lane - 1) // self.lanes + 1)[source]
            units[source] += chunk.unit
            if chunk.rows:
                units[source] += chunk.units * (taken - chunk.row) / chunk.rows
        passes: dict[str, float] = {}
        for number, source in enumerate(self.data.sources):
            name = source.name
            copies = 1
            while name in passes:
                copies += 1
                name = f"{source.name}-{copies}"
            # Units of an epoch are dealt to all lanes, and this rank has 1 / world_size of them.
            passes[name] = self.world_size * units[number] / self._deals[number].units
        return passes

    def state_dict(self) -> Record:
        """Return the position as small JSON, only for the lanes of this rank: see `merge`."""
        lanes = {}
        for (lane, _), chunk in self._chunks.items():  # the sources of a lane in order
            lanes.setdefault(str(lane), []).append(asdict(chunk))
        return {"setting": self._setting, "rows": self._row, "lanes": lanes}

    def merge(self, states: Sequence[Record]) -> Record:
        lanes = {}
        for state in states:
            lanes |= state["lanes"]
        return states[0] | {"lanes": lanes}

    def load_state_dict(self, state: Record) -> None:
        """Continue at the position of a loader with the same setting; ranks and batch size may differ."""
        self.close()
        self._row = state["rows"]
        for lane, source in self._chunks:
            self._chunks[lane, source] = Chunk(**state["lanes"][str(lane)][source])


Text = TypeVar("Text", bound=TextLoader)


def corpus_of(manifest: Record, num_shards: int = 0, name: str = "the model") -> Corpus:
    """Return the text that a base model learned from; UserError if what --data named is another text now.

    num_shards: 0 for as many as then; with another number the held-out text is the same. name: the model's, for errors.
    """
    if "num_shards" not in manifest:
        raise UserError("the model was imported, and nobody knows its text: name one with --data")
    data = manifest["config"]["data"]
    corpus = open_corpus(data, num_shards or manifest["num_shards"])

    def hashes(files: Sequence[Record]) -> list[str]:
        return [file["sha256"] for file in files if not num_shards or file["split"] == "val"]

    if hashes(corpus.manifest()) != hashes(manifest["data"]):
        learned = " and ".join(dict.fromkeys(file["source"] for file in manifest["data"]))
        before = manifest["source"]["setting"]["data"]
        now = corpus.describe()["fingerprint"]
        raise UserError(
            f"the text has changed since {name} was trained: put it back, or name a text with --data. It learned from"
            f" {learned} with the fingerprint {before:.12}; --data={data} is {corpus.name} with {now:.12}"
        )
    return corpus


def open_text(trainer: OpenRun[PretrainSettings]) -> TextLoader:
    """Return the source of a new model's batches: rows of a corpus with enough text for the run."""
    return open_text_as(TextLoader, trainer)


def open_text_as(kind: Callable[..., Text], trainer: OpenRun[PretrainSettings]) -> Text:
    """Return the source of `open_text` as a subclass of TextLoader; kind: the class, or a function that calls it."""
    start = trainer.start
    runtime = trainer.runtime
    config = start.config
    return kind(
        open_corpus(config.data, start.num_shards or 0),
        start.tokenizer,
        start.rows,
        start.row_length,
        seed=config.seed,
        lanes=config.lanes,
        rank=runtime.rank,
        world_size=runtime.world_size,
        device=runtime.device,
    )
