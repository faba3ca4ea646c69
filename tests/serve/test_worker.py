"""Engines in threads: events come back, admission, and clients that leave, and failures."""

import asyncio
import gc
import json
import os
import re
import resource
import socket
import subprocess
import sys
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from conftest import ROOT
from engines import NEVER, TOKENIZER, collected, model_of
from starlette.applications import Starlette
from terminals import NEEDS_SETSID, start_in_terminal

from bench.served import serving, write_model
from nanochat.engine import Engine, Request, samples_of
from nanochat.serve.app import Service
from nanochat.serve.requests import ApiError
from nanochat.serve.worker import MAX_FAILURES, Worker, engine_failed

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
        await worker.begin()
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


async def refusal(asked):
    """Return the error of a request whose engine has failed; nothing follows it."""
    while await asyncio.wait_for(asked.queue.get(), 30) is not None:
        pass
    assert asked.queue.empty()
    return engine_failed().body["error"]["code"]


async def test_an_engine_that_fails_is_replaced(capsys) -> None:
    async with working(slots=2) as service:
        [worker] = service.workers
        with pytest.raises(RuntimeError, match="out of bounds"):  # only this client's
            await worker.score([65, 1 << 20], 1)
        expected = await result(Asked(service, LONG))
        assert (worker.state, worker.failures) == ("ok", [])
        old = weakref.ref(worker.engine.decoder)
        for number in range(1, MAX_FAILURES):
            running = Asked(service, LONG, LONG, LONG)
            await until(lambda asked=running: not asked.queue.empty())
            # From here on each row's state has one number too few.
            worker._call(lambda: worker.engine.decoder.state.clear())
            late = Asked(service, LONG)  # which the thread sees after the failure, or before
            assert {await refusal(running), await refusal(late)} == {"engine_failed"}
            assert worker.load == 0
            running.close()
            waiting = Asked(service, LONG)  # for the new engine
            assert await result(waiting) == expected
            assert (worker.state, len(worker.failures)) == ("ok", number)
        assert old() is None
        worker._call(lambda: worker.engine.decoder.state.clear())
        await refusal(Asked(service, LONG))
        assert worker.state == "failed"
        with pytest.raises(ApiError, match="failed too often") as caught:
            Asked(service, LONG)
        assert caught.value.status_code == 503
        with pytest.raises(ApiError, match="send it again"):
            await worker.score([65, 66], 1)
    log = capsys.readouterr().out
    assert log.count("KeyError") == log.count("Traceback") == MAX_FAILURES
    assert log.count("a new one has taken the place") == MAX_FAILURES - 1
    assert log.count("it is not replaced any more") == 1


async def test_an_engine_whose_memory_cannot_be_given_back_fails_once_more_and_no_further(capsys) -> None:
    """As after a CUDA error that stays: each call to the GPU raises, `empty_cache` too."""
    async with working() as service:
        [worker] = service.workers

        def release() -> None:
            raise RuntimeError("CUDA error: it stays")

        worker._release = release
        worker._call(lambda: worker.engine.decoder.state.clear())
        await refusal(Asked(service, LONG))
        await until(worker.given_up.is_set)
        await asyncio.sleep(0.5)
        assert (worker.state, len(worker.failures)) == ("failed", MAX_FAILURES)
    assert capsys.readouterr().out.count("it is not replaced any more") == 1


async def test_failures_that_lie_far_apart_do_not_add_up(monkeypatch) -> None:
    monkeypatch.setattr("nanochat.serve.worker.FAILURE_SECONDS", 0.0)
    async with working() as service:
        [worker] = service.workers
        for _ in range(MAX_FAILURES + 1):
            worker._call(lambda: worker.engine.decoder.state.clear())
            await refusal(Asked(service, LONG))
        assert len((await result(Asked(service, LONG)))[0, 0][0]) == 150


async def test_other_engines_go_on_while_one_is_replaced_or_has_failed() -> None:
    async with working(count=2) as service:
        first, second = service.workers
        first.state = "replacing"
        assert [Asked(service, LONG).worker for _ in range(2)] == [second, second]
        first.state = "failed"
        assert Asked(service, LONG).worker is second
        with pytest.raises(ApiError, match="there is room for 12"):
            Asked(service, replace(LONG, n=13))


async def test_the_garbage_collector_leaves_out_what_is_there_from_the_start() -> None:
    """Else all requests would wait for it now and then, a tenth of a second."""
    async with Service(None, [], 8).lifespan(Starlette()):
        assert gc.get_freeze_count() > 100_000
    assert gc.get_freeze_count() == 0


async def test_an_error_at_the_start_is_raised() -> None:
    worker = Worker(Engine(MODEL, TOKENIZER, slots=1))
    worker.engine.decoder.make_room = None
    with pytest.raises(TypeError, match="not callable"):
        await worker.begin()
    worker.stop()


BAD_START = """
from nanochat.engine import Engine
from nanochat.config import run_script
from scripts.chat_web import main

Engine.reserve = lambda engine: 1 / 0
run_script(main)
"""


FAILS_ONCE = """
from nanochat.engine import Engine
from nanochat.config import run_script
from scripts.chat_web import main

step, failed = Engine.step, []

def fails_once(engine):
    if not failed:
        failed.append(True)
        raise ZeroDivisionError
    step(engine)

Engine.step = fails_once
run_script(main)
"""


def test_a_server_whose_engine_cannot_start_ends_with_status_1(twin) -> None:
    flags = ("--source=sft", "--tag=mine", "--port=0", "--device-type=cpu", "--dtype=fp32")
    env = os.environ | {"NANOCHAT_BASE_DIR": str(twin.base), "PYTHONPATH": str(ROOT)}
    (twin.base / "bad_start.py").write_text(BAD_START)
    command = [sys.executable, twin.base / "bad_start.py", *flags]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr


@NEEDS_SETSID
def test_a_server_outlives_its_terminal(twin) -> None:
    """An engine that fails prints: that must not be its end, nor the server's."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    flags = ("--source=sft", "--tag=mine", f"--port={port}", "--device-type=cpu", "--dtype=fp32")
    env = os.environ | {"NANOCHAT_BASE_DIR": str(twin.base), "PYTHONPATH": str(ROOT)}
    (twin.base / "failing.py").write_text(FAILS_ONCE)
    process = start_in_terminal([sys.executable, twin.base / "failing.py", *flags], "nohup", ROOT, env, "server: http")
    asked = {"prompt": "The dog", "max_tokens": 5}
    statuses = [httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=asked, timeout=60) for _ in range(2)]
    assert [answer.status_code for answer in statuses] == [503, 200]
    process.terminate()
    assert process.wait(60) == 0


# ---- a server that runs out of memory ----

MARGIN = 64 << 20  # bytes that the process may still allocate: enough for short prompts
# One activation of the MLP for a whole context takes 67 MB, and the cache 134 MB: a new one needs the old one's memory.
WIDE = {"endless": True, "depth": 1, "width": 512, "heads": 4, "max_seq_len": 8192}


@pytest.mark.skipif(sys.platform != "linux", reason="prlimit")
def test_a_server_without_memory_replaces_its_engine_until_it_fails_too_often(tmp_path) -> None:
    write_model(tmp_path, **WIDE)
    short = {"prompt": "The dog", "temperature": 0, "max_tokens": 9}
    long = {"prompt": [[65] * 8100], "max_tokens": 9}

    def stream():
        with server.http.stream(
            "POST", "/v1/completions", json={"prompt": "x", "max_tokens": 8000, "temperature": 0, "stream": True}
        ) as r:
            return [line for line in r.iter_lines() if line]

    with serving(tmp_path, "--slots=8") as server, ThreadPoolExecutor(8) as threads:
        # Before the limit, the process starts the threads that it will need.
        warm = [threads.submit(server.http.post, "/v1/completions", json=short) for _ in range(8)]
        [expected] = {post.result().json()["choices"][0]["text"] for post in warm}
        size = int(re.search(r"VmSize:\s+(\d+)", Path(f"/proc/{server.process.pid}/status").read_text())[1]) << 10
        resource.prlimit(server.process.pid, resource.RLIMIT_AS, (size + MARGIN, resource.RLIM_INFINITY))
        for number in range(1, MAX_FAILURES + 1):
            running = threads.submit(stream)
            end = time.monotonic() + 60
            while not server.running() and time.monotonic() < end:
                time.sleep(0.01)
            found = server.http.post("/v1/completions", json=long)
            assert (found.status_code, found.json()["error"]["code"]) == (503, "engine_failed")
            assert found.headers["retry-after"] == "1"
            *_, last = running.result(60)
            assert json.loads(last.removeprefix("data: "))["error"]["message"].startswith("the engine failed while")
            if number < MAX_FAILURES:
                # It waits for the new engine.
                [choice] = server.http.post("/v1/completions", json=short).json()["choices"]
                assert choice["text"] == expected
                health = server.http.get("/health")
                assert (health.status_code, health.json()["status"]) == (200, "ok")
                assert (health.json()["engine_failures"], health.json()["samples"]) == (number, 0)
        health = server.http.get("/health")
        assert (health.status_code, health.json()["status"]) == (503, "failed")
        found = server.http.post("/v1/completions", json=short)
        assert (found.status_code, found.json()["error"]["code"]) == (503, "engine_failed")
        assert "has failed too often" in found.json()["error"]["message"]
        assert server.process.wait(60) == 1  # by itself
    # PyTorch, oneDNN, C++ or Python, whichever asked for more.
    reasons = ("can't allocate memory", "could not create a primitive", "bad_alloc", "MemoryError")
    assert any(reason in line for line in server.log for reason in reasons), server.log
