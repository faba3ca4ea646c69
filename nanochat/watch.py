"""Join the ranks of a run, and watch them: when one fails or dies, the others say why and end."""

import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist

from nanochat.config import last_words
from nanochat.errors import UserError
from nanochat.log import print_line

Value = TypeVar("Value")

BEAT_SECONDS = 2.0
SILENT_BEATS = 20  # a rank that misses so many is lost: it was killed, or its machine is gone
# The same with a second sign: a connection to it has broken, or its process is on this machine, and stopped.
SUSPECT_BEATS = 4
LEAVING_BEATS = 4  # a rank that fails waits so long for the others to read why
STORE_TRIES = 3  # the machine that holds the store may be busy for longer than a call waits
NOBODY = "nobody"


class Watch:
    """Shows the other ranks that this one is alive, and ends this process when another one has failed or is lost.

    Its messages go through torch's store on a connection of its own, so that no collective holds it up.
    """

    def __init__(self, store: dist.Store, rank: int, world_size: int) -> None:
        self._rank = rank
        self._world_size = world_size
        self._store = store.clone()
        self._store.set_timeout(timedelta(seconds=10))
        self._beats = [f"beat {other}" for other in range(world_size)]
        self._processes = [f"process {other}" for other in range(world_size)]
        self._ended = threading.Event()
        self._failing = threading.Event()
        self._speaking = threading.Lock()  # the watch keeps it: the reason is the last line of this rank's log
        # In a thread, so that a rank may evaluate or compile for as long as it needs.
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop watching: all ranks have come to the end."""
        self._ended.set()

    def fail(self, error: BaseException) -> None:
        """Print why this rank fails, tell the others, and end the process.

        It ends without `destroy_process_group`, which waits under NCCL for ranks that wait for this one.
        """
        text, code = last_words(error)
        # A broken connection is often the work of a rank that has died; the heartbeat tells which.
        is_connection = isinstance(error, RuntimeError) and re.search("gloo|NCCL", str(error)) is not None
        with self._speaking:
            if not is_connection:
                self._failing.set()
            if text:
                print_line(text.rstrip("\n"), file=sys.stderr)
                _tell_torchrun(text.rstrip("\n"))
        reason = text.strip().rpartition("\n")[2].removeprefix("error: ") or f"exit code {code}"
        try:
            if is_connection:
                self._post("broken", f"1 rank {self._rank} has failed: {reason}")
                self._thread.join(BEAT_SECONDS * (SUSPECT_BEATS + LEAVING_BEATS))
            self._failing.set()
            self._post("failed", f"{code} rank {self._rank} has failed: {reason}")
            self._wait_for_all()
        except RuntimeError:  # the store is gone, which the thread says in a moment
            self._failing.clear()
            self._thread.join(2 * BEAT_SECONDS)
        _leave(code)

    def _post(self, key: str, message: str) -> None:
        """Write a message for all ranks, if no other rank has written one under that key."""
        self._ask(lambda: self._store.compare_set(key, NOBODY, message))

    def _wake_stopped(self) -> None:
        """Let ranks of this machine that were stopped go on, so that they read why the run ends, and end too.

        torchrun would wait for them for minutes.
        """
        for rank in range(self._world_size):
            if process := self._stopped_process(rank):
                with suppress(OSError):  # it has ended meanwhile
                    os.kill(process, signal.SIGCONT)

    def _wait_for_all(self) -> None:
        """Count this rank as ending, and wait until all are: rank 0 may hold the store, and torchrun ends the rest."""
        self._wake_stopped()
        self._ask(lambda: self._store.add("ending", 1))
        end = time.monotonic() + BEAT_SECONDS * LEAVING_BEATS
        while time.monotonic() < end and self._ask(lambda: self._store.add("ending", 0)) < self._world_size:
            time.sleep(BEAT_SECONDS / 20)

    def _ask(self, call: Callable[[], Value]) -> Value:
        """Return the store's answer, tried again after a call that has run out of time."""
        for _ in range(STORE_TRIES - 1):
            with suppress(dist.DistStoreError):
                return call()
        return call()

    def _run(self) -> None:
        code, sentence = 1, "the store of the ranks does not answer: rank 0, its machine or its torchrun has failed"
        with suppress(RuntimeError):
            code, sentence = self._wait_for_failure()
            if self._failing.is_set():  # this rank says its own reason
                return
        # The last barrier may be over on rank 0 alone, which then takes the store away; or this rank is failing too.
        if self._ended.wait(BEAT_SECONDS) or self._failing.is_set():
            return
        with self._speaking:
            if self._failing.is_set():  # meanwhile
                return
            print_line(f"error: {sentence}", file=sys.stderr)
            _tell_torchrun(f"error: {sentence}")
            with suppress(RuntimeError):
                self._wake_stopped()
                self._ask(lambda: self._store.add("ending", 1))
            _leave(code)  # the main thread may wait in a collective for ever, or fail as others leave

    def _wait_for_failure(self) -> tuple[int, str]:
        """Beat until another rank has failed or is lost; return the exit code and the sentence for it."""
        for other, key in enumerate(self._beats):
            self._store.compare_set(key, "", f"1 rank {other} has not started")  # nothing once that rank has written
        for key in ("failed", "broken", *self._processes):
            self._store.compare_set(key, "", NOBODY)
        own = os.getpid()
        self._store.set(self._processes[self._rank], f"{own} {_read_process(own)[1]} {os.uname().nodename}")
        missed: dict[bytes, int] = {}  # beat -> checks that have found it
        checks_broken = 0  # checks since a connection has broken
        count = 1
        while not self._ended.wait(BEAT_SECONDS):
            count += 1
            beat = f"{count} rank {self._rank} on {os.uname().nodename} has not answered since {time.ctime()}"
            self._ask(lambda beat=beat: self._store.set(self._beats[self._rank], beat))
            keys = ["failed", "broken", *self._beats]
            failed, broken, *beats = self._ask(lambda keys=keys: self._store.multi_get(keys))
            if failed != NOBODY.encode() and not self._failing.is_set():
                return _read_message(failed)
            # Checks are counted, not seconds: after a stop of all ranks at once, as by Ctrl-Z, nobody is lost.
            missed = {beat: missed.get(beat, 0) + 1 for beat in beats}
            lost = max(missed, key=missed.__getitem__)
            is_broken = broken != NOBODY.encode()
            if missed[lost] > (SUSPECT_BEATS if is_broken else SILENT_BEATS):
                return 1, _read_message(lost)[1]
            for rank, beat in enumerate(beats):
                if missed[beat] > SUSPECT_BEATS and self._stopped_process(rank):
                    sentence = f"{_read_message(beat)[1]}: its process was stopped"
                    self._post("failed", f"1 {sentence}")
                    return 1, sentence
            checks_broken += is_broken
            if checks_broken > SUSPECT_BEATS + 1:  # and nobody is silent
                return _read_message(broken)
        return 0, ""

    def _stopped_process(self, rank: int) -> int:
        """Return a rank's process if it is on this machine, and stopped as by SIGSTOP; else 0."""
        written = self._ask(lambda: self._store.get(self._processes[rank])).decode()
        if written == NOBODY:
            return 0
        number, begun, node = written.split(" ", 2)
        # Another container may have another process of that number.
        is_it = node == os.uname().nodename and _read_process(int(number)) == ("T", begun)
        return int(number) if is_it else 0


def _read_process(number: int) -> tuple[str, str]:
    """Return the state of a process, as a letter, and when it began; Linux only, else no state."""
    try:
        fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "", "-"
    return fields[0], fields[19]


def _tell_torchrun(text: str) -> None:
    """Let torchrun's own last lines, which name the rank that ended first, have the reason."""
    if path := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        with suppress(OSError):  # it only repeats what is printed
            Path(path).write_text(json.dumps({"message": text, "timestamp": int(time.time())}), encoding="utf-8")


def _read_message(message: bytes) -> tuple[int, str]:
    """Return the number and the sentence of a message: an exit code, or a count that makes beats differ."""
    code, _, sentence = message.decode().partition(" ")
    return int(code), sentence


def _leave(code: int) -> None:
    """End the process at once, with what was printed."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


@contextmanager
def joined(rank: int, world_size: int) -> Iterator[dist.Store]:
    """Join the ranks' store and watch the ranks until the block ends; yields the store.

    An exception in the block ends the process, and soon those of the other ranks, which print its reason.
    """
    # A client tries to connect for twice the time given here.
    patience = timedelta(seconds=BEAT_SECONDS * SILENT_BEATS / 2)
    try:
        # world_size=1: the store does not wait for the other ranks here. The watch names those that do not start.
        store, _, _ = next(dist.rendezvous("env://?world_size=1", timeout=patience))
    except RuntimeError:
        raise UserError("rank 0 has not started, or its port is in use or cannot be reached") from None
    watch = Watch(store, rank, world_size)
    try:
        yield store
    except BaseException as error:
        watch.fail(error)
    finally:
        watch.end()


@contextmanager
def process_group(store: dist.Store, device: torch.device, rank: int, world_size: int) -> Iterator[None]:
    """Let collectives run between the ranks of a store until the block ends."""
    limit = timedelta(minutes=30)  # of a collective: one rank may evaluate or compile for long
    store.set_timeout(limit)
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=dist.PrefixStore("process group", store),
        rank=rank,
        world_size=world_size,
        timeout=limit,
        device_id=device if device.type == "cuda" else None,
    )
    yield
    dist.barrier()  # rank 0 may hold the store, and takes it away
    # Not after an exception: under NCCL it waits for ranks that wait for this one.
    dist.destroy_process_group()
