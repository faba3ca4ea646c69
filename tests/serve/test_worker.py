"""Engines in threads: events come back, admission, and clients that leave, and failures."""

import asyncio
import os
import time
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from engines import NEVER, TOKENIZER, collected, model_of

from nanochat.engine import Engine, Request, samples_of
from nanochat.serve.app import Service
from nanochat.serve.requests import ApiError
from nanochat.serve.worker import Worker

pytestmark = pytest.mark.anyio
MODEL = model_of()
LONG = Request([65], 150, stop=NEVER)


@pytest.fixture
def anyio_backend():
    return "asyncio"


@asynccontextmanager
async def working(count=1, slots=4, queue=8):
    workers = [Worker(Engine(MODEL, TOKENIZER, slots)) for _ in range(count)]
    for worker in workers:
        worker.begin()
    try:
        yield Service(None, workers, queue)
    finally:
        for worker in workers:
            worker.stop()


class Asked:
    """The samples of some requests, with a queue of events, as a response has them."""

    def __init__(self, service, *requests) -> None:
        self.samples = samples_of(requests)
        self.worker = service.admit(len(self.samples))
        self.queue = self.worker.submit(self.samples)

    def close(self) -> None:
        self.worker.cancel(self.samples)


async def result(asked, leaving=()):
    """Return (tokens, reason) of all samples; `leaving` have no end."""
    events = []
    left = len(asked.samples) - len(leaving)
    while left:
        events.append(await asyncio.wait_for(asked.queue.get(), 30))
        left -= events[-1].token is None
    assert asked.queue.empty()
    return collected(events)


async def until(holds) -> None:
    end = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end
        await asyncio.sleep(0.002)


async def test_a_client_that_leaves_frees_its_slots_at_once() -> None:
    async with working(slots=2) as service:
        [worker] = service.workers
        first = Asked(service, LONG)
        await until(lambda: not first.queue.empty())
        second, third, fourth = (Asked(service, LONG) for _ in range(3))
        await until(lambda: not second.queue.empty())
        assert worker.load == 4  # the second joins while the first runs
        first.close()  # runs
        fourth.close()  # waits
        fourth.close()
        assert worker.load == 2
        await until(lambda: not third.queue.empty())  # has the slot of the first
        both = await asyncio.gather(result(second), result(third))
        assert [len(found[0, 0][0]) for found in both] == [150, 150]
        assert worker.load == 0
        Asked(service, LONG).close()  # before the thread has seen it
        assert len((await result(Asked(service, LONG)))[0, 0][0]) == 150


async def test_one_sample_may_end_while_others_run_on() -> None:
    async with working() as service:
        [worker] = service.workers
        asked = Asked(service, replace(LONG, n=3, temperature=1.0))
        await until(lambda: not asked.queue.empty())
        worker.cancel([asked.samples[1]])
        assert worker.load == 2
        found = await result(asked, leaving=[1])
        assert [len(found[0, sample][0]) for sample in (0, 2)] == [150, 150]
        assert len(found.get((0, 1), ([],))[0]) < 150
        assert worker.load == 0


async def test_admission() -> None:
    async with working(count=2, slots=2, queue=3) as service:
        first, second = service.workers
        with pytest.raises(ApiError, match="asks for 8 samples, there is room for 7") as caught:
            Asked(service, replace(LONG, n=8))
        assert caught.value.status_code == 400
        asked = Asked(service, LONG, LONG)
        Asked(service, replace(LONG, n=5))
        assert (first.load, second.load) == (2, 5)
        with pytest.raises(ApiError, match="busy") as caught:
            Asked(service, LONG)
        assert (caught.value.status_code, caught.value.headers) == (429, {"retry-after": "1"})
        asked.close()
        Asked(service, LONG)
        assert (first.load, second.load) == (1, 5)


def test_an_engine_that_fails_ends_the_process(monkeypatch, capsys) -> None:
    statuses = []
    monkeypatch.setattr(os, "_exit", statuses.append)

    async def ask() -> None:
        async with working() as service:
            [worker] = service.workers
            with pytest.raises(RuntimeError, match="out of bounds"):  # only this client's
                await worker.score([65, 1 << 20], 1)
            assert len((await result(Asked(service, LONG)))[0, 0][0]) == 150
            assert statuses == []
            monkeypatch.setattr(worker.engine, "step", lambda: 1 / 0)
            Asked(service, LONG)
            await until(lambda: statuses)

    asyncio.run(ask())
    assert statuses == [1]
    assert "ZeroDivisionError" in capsys.readouterr().out
