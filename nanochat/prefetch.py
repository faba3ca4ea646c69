"""Made ahead of the consumer: items by a thread in the background, copies to a CUDA device by a stream of their own."""

import queue
import threading
from collections.abc import Iterator
from typing import Any

import torch


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
