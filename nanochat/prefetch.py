"""Made ahead of the consumer: items by a thread in the background, copies to a CUDA device by a stream of their own."""

import queue
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch

BATCHES_AHEAD = 4


class Background:
    """The items of an iterator, made ahead in a thread; what it raises is raised here when its turn comes."""

    def __init__(self, items: Iterator[Any], depth: int):
        self._ready: queue.Queue[tuple[Any, BaseException | None]] = queue.Queue(depth)
        self._failure: BaseException | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._run, args=(items,), name="nanochat-data", daemon=True)
        self._thread.start()

    def __next__(self) -> Any:
        if self._failure is None:
            item, self._failure = self._ready.get()
        if self._failure is not None:
            raise self._failure
        return item

    def close(self) -> None:
        """End the thread, at the latest when it has made the item it is at."""
        self._closing = True
        while self._thread.is_alive():
            while not self._ready.empty():  # it may be waiting for room
                self._ready.get()
            self._thread.join(timeout=0.01)

    def _run(self, items: Iterator[Any]) -> None:
        try:
            for item in items:
                self._ready.put((item, None))
                if self._closing:
                    return
        except BaseException as error:  # a panic below Python is no Exception, and the consumer must not wait for ever
            self._ready.put((None, error))


class Upload:
    """Copies batches to a CUDA device, from pinned memory and on a stream of its own, beside what is computed there."""

    def __init__(self, device: torch.device, shape: tuple[int, ...]):
        self._device, self._stream = device, torch.cuda.Stream(device)
        self._pinned = [torch.empty(shape, dtype=torch.int64, pin_memory=True) for _ in range(2)]
        self._copied: list[Any] = [None, None]  # the event after which a buffer is free

    def buffer(self) -> torch.Tensor:
        """Where the next batch is to be written: the buffer that was sent longest ago."""
        self._pinned.reverse()
        self._copied.reverse()
        if self._copied[0] is not None:
            self._copied[0].synchronize()
        return self._pinned[0]

    def send(self) -> tuple[torch.Tensor, Any]:
        """Begin to copy that buffer; the tensor may be used after the event."""
        with torch.cuda.stream(self._stream):
            sent = self._pinned[0].to(self._device, non_blocking=True)
            self._copied[0] = torch.cuda.Event()
            self._copied[0].record()
        return sent, self._copied[0]


class Loader(Iterator, AbstractContextManager):
    """An endless source of (inputs, targets), each (batch_size / world_size, seq_len) int64 on `device`.

    batch_size: rows of all ranks. setting: what a saved place is good for. A subclass gives `_rows`, an iterator of
    this rank's (inputs, targets, mark) from where the consumer is, and `_arrive`, told the marks of a batch taken.
    """

    idle = False  # whether a batch teaches anything is on the device: it is not waited for

    def __init__(self, setting: dict, batch_size: int, seq_len: int, rank: int, world_size: int, device: Any):
        assert 0 <= rank < world_size, (rank, world_size)
        share("rows of a batch", batch_size, world_size)
        self.batch_size, self.seq_len, self.rank, self.world_size = batch_size, seq_len, rank, world_size
        self.device, self._setting = torch.device(device), setting
        if self.device.type == "cuda" and self.device.index is None:
            self.device = torch.device("cuda", torch.cuda.current_device())  # the background thread has another one
        self.wait_seconds = 0.0  # spent in `next`, by this object
        self._ahead: Background | None = None

    def __next__(self) -> tuple[torch.Tensor, torch.Tensor]:
        start = time.perf_counter()
        if self._ahead is None:
            self._ahead = Background(self._batches(), BATCHES_AHEAD)
        batch, copied, marks = next(self._ahead)
        if copied is not None:
            torch.cuda.current_stream(self.device).wait_event(copied)
            batch.record_stream(torch.cuda.current_stream(self.device))
        batch = batch.to(self.device)
        self._arrive(marks)
        self.wait_seconds += time.perf_counter() - start
        return batch[0], batch[1]

    def _batches(self) -> Iterator[tuple[torch.Tensor, Any, list]]:
        """What the thread makes: batches, the event of their copy, and the marks of their rows."""
        shape = (2, self.batch_size // self.world_size, self.seq_len)
        upload = Upload(self.device, shape) if self.device.type == "cuda" else None
        rows = self._rows()
        while True:
            batch, marks = upload.buffer() if upload else torch.empty(shape, dtype=torch.int64), []
            for inputs, targets in zip(*batch.numpy(), strict=True):
                inputs[:], targets[:], mark = next(rows)
                marks.append(mark)
            yield *(upload.send() if upload else (batch, None)), marks

    def close(self) -> None:
        """End the background thread; the next batch starts it again where the consumer is."""
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None

    def __exit__(self, *exception: Any) -> None:
        self.close()

    def check_setting(self, state: dict[str, Any]) -> None:
        """ValueError where a saved state is of other data or another order."""
        pairs = [(name, state["setting"].get(name), value) for name, value in self._setting.items()]
        if wrong := ", ".join(f"{name}={saved!r} and not {value!r}" for name, saved, value in pairs if saved != value):
            raise ValueError(f"the saved place in the data is for {wrong}: go on with the same, or start anew")


def share(what: str, count: int, ranks: int) -> None:
    """ValueError where ranks cannot have as many each."""
    if count < 1 or count % ranks:
        below = max(1, count // ranks) * ranks
        raise ValueError(f"{count} {what} cannot be shared by {ranks} ranks: take {below} or {below + ranks}")
