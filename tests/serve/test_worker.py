"""Engines in threads of their own: what comes back, who is let in, who leaves, and what a failure does."""

import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from engines import NEVER, SETTINGS, TOKENIZER, mixed, model_of

from nanochat.engine import Completion, Engine, Request
from nanochat.serve.gate import Fault
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


async def result(ticket):
    found = {}
    while ticket.open or ticket.events or ticket.fault:
        await ticket.news.wait()
        for number, sample, token, _, reason, _ in ticket.take():
            completion = found.setdefault((number, sample), Completion())
            completion.reason = reason
            if token is not None:
                completion.tokens.append(token)
    return {where: (completion.tokens, completion.reason) for where, completion in sorted(found.items())}


async def until(holds):
    end = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end
        await asyncio.sleep(0.002)


def test_all_are_answered_as_if_alone():
    requests = [replace(request, **SETTINGS[i % 5], n=1 + i % 2) for i, request in enumerate(mixed(12, seed=4))]
    alone = Engine(MODEL, TOKENIZER).generate(requests)

    async def ask():
        async with working(count=2, queue=100) as pool:
            tickets = [pool.enter(request.n).submit([request], False) for request in requests]
            assert all(worker.load for worker in pool.workers)
            found = await asyncio.gather(*map(result, tickets))
            assert [worker.load for worker in pool.workers] == [0, 0]
            assert [len(worker.tickets) for worker in pool.workers] == [0, 0]
            return found

    for found, samples in zip(asyncio.run(ask()), alone, strict=True):
        assert found == {(0, i): (one.tokens, one.reason) for i, one in enumerate(samples)}


def test_who_leaves_frees_the_slot_at_once():
    async def ask():
        async with working(slots=2) as pool:
            [worker] = pool.workers
            tickets = [worker.submit([LONG], False) for _ in range(4)]
            await until(lambda: tickets[1].events)
            assert (pool.running, pool.waiting, worker.load) == (2, 2, 4)
            worker.cancel(tickets[0])  # runs
            worker.cancel(tickets[3])  # waits
            worker.cancel(tickets[3])
            assert worker.load == 2
            await until(lambda: tickets[2].events)  # has the slot of the first
            both = await asyncio.gather(*map(result, tickets[1:3]))
            assert [len(found[0, 0][0]) for found in both] == [150, 150]
            assert (pool.running, pool.waiting, worker.load) == (0, 0, 0)
            assert worker.submit([LONG], False).open
            worker.cancel(*worker.tickets)  # before the thread has looked at it
            await until(lambda: pool.waiting == 0)
            assert pool.running == 0

    asyncio.run(ask())


def test_one_sample_may_leave_while_others_stay():
    async def ask():
        async with working() as pool:
            [worker] = pool.workers
            ticket = worker.submit([replace(LONG, n=3, temperature=1.0)], False)
            await until(lambda: ticket.events)
            worker.cancel(ticket, (0, 1))
            assert worker.load == 2
            found = await result(ticket)
            assert [len(found[0, sample][0]) for sample in (0, 2)] == [150, 150]
            assert len(found.get((0, 1), ([],))[0]) < 150
            assert worker.load == pool.running == 0

    asyncio.run(ask())


def test_the_door():
    async def ask():
        async with working(count=2, slots=2, queue=3) as pool:
            first, second = pool.workers
            with pytest.raises(Fault, match="asks for 8 answers, the server has room for 7") as caught:
                pool.enter(8)
            assert caught.value.status == 400
            assert pool.enter(2) is first
            tickets = [first.submit([replace(LONG, n=2)], False)]
            assert pool.enter(5) is second
            tickets.append(second.submit([replace(LONG, n=5)], False))
            with pytest.raises(Fault, match="busy") as caught:
                pool.enter(1)
            assert (caught.value.status, caught.value.headers) == (429, {"retry-after": "1"})
            first.cancel(tickets[0])
            assert pool.enter(2) is first
            pool.closing = "shutting down"
            with pytest.raises(Fault, match="shutting down") as caught:
                pool.enter(1)
            assert caught.value.status == 503
            second.refuse(Fault(503, "over"))
            with pytest.raises(Fault, match="over"):
                await result(tickets[1])
            assert (first.load, second.load) == (0, 0)

    asyncio.run(ask())


def test_what_the_engine_refuses_its_thread_survives():
    async def ask():
        async with working() as pool:
            [worker] = pool.workers
            with pytest.raises(Fault, match="request 0 has ids beyond the vocabulary"):
                await result(worker.submit([Request([9999], 5)], False))
            assert len((await result(worker.submit([LONG], False)))[0, 0][0]) == 150
            rows = [[65, 66, 67], [65, 70]]
            assert await worker.score(rows, 2) == [score(MODEL, row, 2) for row in rows]
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
            tickets = [first.submit([LONG], False), first.submit([Request([65, 66, 67], 5)], False)]
            scored = asyncio.ensure_future(first.score([[65] * 190], 1))
            for ticket in tickets:
                with pytest.raises(Fault, match="the engine has failed") as caught:
                    await asyncio.wait_for(result(ticket), 30)
                assert caught.value.status == 503
            await asyncio.wait([scored], timeout=30)  # before the failure or never
            assert scored.done()
            assert pool.failures == ["RuntimeError: the device is gone"]
            with pytest.raises(Fault, match="the engine has failed"):  # at once
                await first.score([[65]], 1)
            assert pool.enter(1) is second  # the other goes on
            assert len((await result(second.submit([LONG], False)))[0, 0][0]) == 150
            second.submit([Request([65, 66, 67], 5)], False)
            await until(lambda: len(pool.failures) == 2)
            with pytest.raises(Fault, match="has to be started anew"):
                pool.enter(1)

    asyncio.run(ask())
    assert "RuntimeError: the device is gone" in capsys.readouterr().out
