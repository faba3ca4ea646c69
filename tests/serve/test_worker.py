"""Engines in threads: events come back, admission, clients that leave, and failures."""

import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from engines import NEVER, SETTINGS, TOKENIZER, mixed, model_of

from nanochat.engine import Completion, Engine, Request
from nanochat.serve.requests import ApiError
from nanochat.serve.worker import Pool, Worker, score

MODEL = model_of()
LONG = Request([65], 150, stop=NEVER)


@asynccontextmanager
async def working(count=1, slots=4, queue=8, kind=Engine):
    workers = [Worker(kind(MODEL, TOKENIZER, slots), MODEL) for _ in range(count)]
    for worker in workers:
        worker.begin(asyncio.get_running_loop())
    yield Pool(workers, queue)
    for worker in workers:
        worker.stop()
        assert not worker.is_alive()


async def result(generation):
    """Return (tokens, reason) of all samples that end."""
    found = {}
    try:
        while generation.open or not generation.news.empty():
            for number, sample, token, _, reason, _ in await asyncio.wait_for(generation.next_events(), 30):
                completion = found.setdefault((number, sample), Completion())
                completion.reason = reason
                if token is not None:
                    completion.tokens.append(token)
    finally:
        generation.close()
    return {sample: (completion.tokens, completion.reason) for sample, completion in sorted(found.items())}


async def until(holds):
    end = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end
        await asyncio.sleep(0.002)


def test_all_are_answered_as_if_alone():
    requests = [replace(request, **SETTINGS[i % 5], n=1 + i % 2) for i, request in enumerate(mixed(10, seed=4))]
    alone = Engine(MODEL, TOKENIZER).generate(requests)

    async def ask():
        async with working(count=2, queue=100) as pool:
            generations = [pool.choose(request.n).submit([request], False) for request in requests]
            assert all(worker.load for worker in pool.workers)
            found = await asyncio.gather(*map(result, generations))
            assert [worker.load for worker in pool.workers] == [0, 0]
            assert not pool.is_busy
            return found

    for found, samples in zip(asyncio.run(ask()), alone, strict=True):
        assert found == {(0, i): (one.tokens, one.reason) for i, one in enumerate(samples)}


def test_a_client_that_leaves_frees_its_slots_at_once():
    async def ask():
        async with working(slots=2) as pool:
            [worker] = pool.workers
            first, second, third, fourth = (worker.submit([LONG], False) for _ in range(4))
            await until(lambda: not second.news.empty())
            assert (pool.running, pool.waiting, worker.load) == (2, 2, 4)
            first.close()  # runs
            fourth.close()  # waits
            fourth.close()
            assert worker.load == 2
            await until(lambda: not third.news.empty())  # has the slot of the first
            both = await asyncio.gather(result(second), result(third))
            assert [len(found[0, 0][0]) for found in both] == [150, 150]
            assert (pool.running, pool.waiting, worker.load) == (0, 0, 0)
            worker.submit([LONG], False).close()  # before the thread has seen it
            await until(lambda: pool.waiting == 0)
            assert pool.running == 0

    asyncio.run(ask())


def test_one_sample_may_end_while_others_go_on():
    async def ask():
        async with working() as pool:
            [worker] = pool.workers
            generation = worker.submit([replace(LONG, n=3, temperature=1.0)], False)
            await until(lambda: not generation.news.empty())
            generation.cancel({(0, 1)})
            assert worker.load == 2
            found = await result(generation)
            assert [len(found[0, sample][0]) for sample in (0, 2)] == [150, 150]
            assert len(found.get((0, 1), ([],))[0]) < 150
            assert worker.load == pool.running == 0

    asyncio.run(ask())


def test_admission():
    async def ask():
        async with working(count=2, slots=2, queue=3) as pool:
            first, second = pool.workers
            with pytest.raises(ApiError, match="asks for 8 samples, the server has room for 7") as caught:
                pool.choose(8)
            assert caught.value.status == 400
            assert pool.choose(2) is first
            generation = first.submit([replace(LONG, n=2)], False)
            assert pool.choose(5) is second
            other = second.submit([replace(LONG, n=5)], False)
            with pytest.raises(ApiError, match="busy") as caught:
                pool.choose(1)
            assert (caught.value.status, caught.value.headers) == (429, {"retry-after": "1"})
            generation.close()
            assert pool.choose(2) is first
            pool.closing = "shutting down"
            with pytest.raises(ApiError, match="shutting down") as caught:
                pool.choose(1)
            assert caught.value.status == 503
            second.refuse(ApiError(503, "over"))
            with pytest.raises(ApiError, match="over"):
                await result(other)
            assert (first.load, second.load) == (0, 0)

    asyncio.run(ask())


def test_a_thread_survives_requests_that_the_engine_refuses():
    async def ask():
        async with working() as pool:
            [worker] = pool.workers
            with pytest.raises(ApiError, match="request 0 has 0 tokens"):
                await result(worker.submit([Request([], 5)], False))
            assert len((await result(worker.submit([LONG], False)))[0, 0][0]) == 150
            rows = [[65, 66, 67], [65, 70]]
            assert await worker.submit([], False).score(rows, 2) == [score(MODEL, row, 2) for row in rows]
            assert (worker.load, pool.failures) == (0, [])

    asyncio.run(ask())


class Broken(Engine):
    def step(self):
        if any(len(row.request.tokens) == 3 for row in (*self.rows, *self.waiting)):
            raise RuntimeError("the device is gone")
        super().step()


def test_nobody_waits_for_an_engine_that_has_failed(capsys):
    async def ask():
        async with working(count=2, kind=Broken) as pool:
            first, second = pool.workers
            generations = [first.submit([LONG], False), first.submit([Request([65, 66, 67], 5)], False)]
            scoring = asyncio.ensure_future(first.submit([], False).score([[65] * 190], 1))
            for generation in generations:
                with pytest.raises(ApiError, match="the engine has failed") as caught:
                    await result(generation)
                assert caught.value.status == 503
            await asyncio.wait([scoring], timeout=30)  # scored before the failure, or refused
            assert scoring.done()
            assert pool.failures == ["RuntimeError: the device is gone"]
            with pytest.raises(ApiError, match="the engine has failed"):  # at once
                await first.submit([], False).score([[65]], 1)
            assert pool.choose(1) is second  # the other engine goes on
            assert len((await result(second.submit([LONG], False)))[0, 0][0]) == 150
            second.submit([Request([65, 66, 67], 5)], False)
            await until(lambda: len(pool.failures) == 2)
            with pytest.raises(ApiError, match="restart the server"):
                pool.choose(1)

    asyncio.run(ask())
    assert "RuntimeError: the device is gone" in capsys.readouterr().out
