"""The chat server: an interface that OpenAI's clients speak, a page to chat on, and engines that all requests share."""

import asyncio
import base64
import hashlib
import json
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from importlib.resources import files
from typing import Any, TypeVar

import torch
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from nanochat.engine import Engine
from nanochat.gpt import config_of
from nanochat.restore import build_model, find_model, tokenizer_of
from nanochat.serve.gate import Fault, Gate
from nanochat.serve.meter import Meter
from nanochat.serve.port import PATIENCE, keep_port
from nanochat.serve.requests import Asked, Served, read_chat, read_completion, read_json
from nanochat.serve.responses import Answer
from nanochat.serve.worker import Pool, Ticket, Worker
from nanochat.stages import MODELS

KEEP_ALIVE = 15.0  # seconds of silence in a stream, after which a comment says that it lasts
Result = TypeVar("Result")


class Gone(Exception):
    """The client has left: nobody waits for an answer."""


# ---- one request ----


async def unless_gone(receive: Callable, work: Awaitable[Result]) -> Result:
    """What the work gives; Gone, and the work is dropped, where the client leaves before. The body has been read."""

    async def leaves() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    tasks = [asyncio.ensure_future(work), asyncio.ensure_future(leaves())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not tasks[0].done():
            raise Gone
        return tasks[0].result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def read_body(request: Request, most: int) -> bytes:
    async def read() -> bytes:
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > most:
                raise Fault(413, f"the body has more than {most:,} bytes")
        return bytes(body)

    told = request.headers.get("content-length", "0")
    if told.isdecimal() and int(told) > most:
        raise Fault(413, f"the body has {int(told):,} bytes, {most:,} are allowed")
    try:
        return await asyncio.wait_for(read(), PATIENCE)
    except asyncio.TimeoutError:
        raise Fault(408, f"the body has not come within {PATIENCE:.0f} seconds") from None
    except ClientDisconnect:
        raise Gone from None


class Stream:
    """A response of server-sent events. release: called at its end, whichever it is."""

    def __init__(self, events: AsyncIterator[bytes], release: Callable[[], None]):
        self.events, self.release = events, release

    async def __call__(self, scope: dict, receive: Callable, send: Callable) -> None:
        async def pump() -> None:
            headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            async for part in self.events:
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b""})

        try:
            await unless_gone(receive, pump())
        except Gone:
            pass
        finally:
            self.release()


def event(body: Any) -> bytes:
    return f"data: {json.dumps(body)}\n\n".encode()  # in ASCII: no client takes a letter for the end of a line


class Service:
    """What the routes share."""

    def __init__(self, served: Served, pool: Pool):
        self.served, self.pool = served, pool
        self.meter = Meter(["/", "/health", "/metrics", "/v1/models", "/v1/chat/completions", "/v1/completions"])

    def routes(self) -> list[Route]:
        return [
            Route("/", self.page),
            Route("/health", self.health),
            Route("/metrics", self.metrics),
            Route("/v1/models", self.models),
            Route("/v1/models/{name:path}", self.models),
            Route("/v1/chat/completions", partial(self.answer, read_chat), methods=["POST"]),
            Route("/v1/completions", partial(self.answer, read_completion), methods=["POST"]),
        ]

    async def page(self, request: Request) -> Response:
        return Response(*page())

    async def health(self, request: Request) -> Response:
        about = {"status": "failed" if self.pool.failures else self.pool.closing or "ok", "model": self.served.name}
        return JSONResponse(about, 200 if about["status"] == "ok" else 503)

    async def metrics(self, request: Request) -> Response:
        now = {"running": self.pool.running, "waiting": self.pool.waiting, "failed_engines": len(self.pool.failures)}
        return PlainTextResponse(self.meter.text(**now), media_type="text/plain; version=0.0.4")

    async def models(self, request: Request) -> Response:
        served = self.served
        model = {"id": served.name, "object": "model", "created": served.created, "owned_by": "nanochat"}
        model["max_model_len"] = served.context
        if "name" not in request.path_params:
            return JSONResponse({"object": "list", "data": [model]})
        if request.path_params["name"] != served.name:
            raise Fault(404, f"the only model here is {served.name!r}", "model", "model_not_found")
        return JSONResponse(model)

    async def answer(self, read: Callable[[dict, Served], Asked], request: Request) -> Response | Stream:
        body = await read_body(request, self.served.limits.body_bytes)
        # In a thread of its own, for long texts take a while to become tokens.
        asked = await asyncio.to_thread(lambda: read(read_json(body), self.served))
        worker = self.pool.enter(asked.samples)
        answer = Answer(asked, self.served)
        ticket = worker.submit(asked.requests if asked.writes else [], asked.top >= 0)
        self.meter.tokens["prompt"] += answer.usage()["prompt_tokens"]

        def release() -> None:
            worker.cancel(ticket)
            self.meter.tokens["completion"] += answer.usage()["completion_tokens"]

        if asked.stream:
            return Stream(streamed(answer, worker, ticket), release)
        try:
            found = await unless_gone(request.receive, whole(answer, worker, ticket))
            return await asyncio.to_thread(JSONResponse, found)  # what is told of many tokens is long
        finally:
            release()


def follow(answer: Answer, worker: Worker, ticket: Ticket) -> None:
    """Let the choices take what has come; of those that a stop has ended no more is wanted."""
    for news in ticket.take():
        where = news.request, news.sample
        choice = answer.choices[where]
        choice.add(news)
        if choice.reason and where in ticket.open:
            worker.cancel(ticket, where)


async def whole(answer: Answer, worker: Worker, ticket: Ticket) -> dict[str, Any]:
    while ticket.open or ticket.events or ticket.fault:
        await ticket.news.wait()
        follow(answer, worker, ticket)
    if not answer.asked.scored:
        return answer.whole({})
    rows = {where: tuple(answer.row(where)) for where in answer.choices}
    different = list(dict.fromkeys(rows.values()))  # where nothing is written, samples are alike
    scores = dict(zip(different, await worker.score(different, answer.asked.top), strict=True))
    return await asyncio.to_thread(answer.whole, {where: scores[row] for where, row in rows.items()})


async def streamed(answer: Answer, worker: Worker, ticket: Ticket) -> AsyncIterator[bytes]:
    """A fault in the midst of it is an event too."""
    try:
        while True:
            follow(answer, worker, ticket)
            if chunks := answer.chunks():
                yield b"".join(map(event, chunks))
            if all(choice.told for choice in answer.choices.values()):
                break
            try:
                await asyncio.wait_for(ticket.news.wait(), KEEP_ALIVE)
            except asyncio.TimeoutError:
                yield b": still at it\n\n"
    except Fault as fault:
        yield event(fault.body)
        return
    yield (event(answer.last_chunk()) if answer.asked.usage else b"") + b"data: [DONE]\n\n"


def page() -> tuple[bytes, int, dict[str, str]]:
    """The page, the status, and headers that let nothing run but the script and the style that stand in it."""
    content, allowed = (files("nanochat.serve") / "ui.html").read_bytes(), {}
    for kind in ("script", "style"):
        own = re.findall(rf"<{kind}>(.*?)</{kind}>".encode(), content, re.DOTALL)
        hashes = [base64.b64encode(hashlib.sha256(text).digest()).decode() for text in own]
        allowed[kind] = " ".join(f"'sha256-{digest}'" for digest in hashes) or "'none'"
    policy = (
        f"default-src 'none'; script-src {allowed['script']}; style-src {allowed['style']}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"  # the page may not even make any out of text
    )
    return content, 200, {"content-type": "text/html; charset=utf-8", "content-security-policy": policy}


# ---- the application and its server ----


def application(service: Service, host: str, key: str, hosts: Collection[str], origins: Collection[str]) -> Gate:
    async def refuse(request: Request, fault: Fault) -> Response:
        return fault.response()

    async def not_here(request: Request, error: HTTPException) -> Response:
        sentence = f"{request.method} {request.url.path}: {error.detail.lower()}"
        answer = Fault(error.status_code, sentence, code="unknown_url").response()
        answer.headers.update(error.headers or {})
        return answer

    async def gone(request: Request, error: Gone) -> Response:
        return Response(status_code=499)  # which nobody hears but the meter

    async def broken(request: Request, error: Exception) -> Response:
        return Fault(500, "the server has made a mistake, its log has more").response()

    @asynccontextmanager
    async def working(app: Starlette) -> AsyncIterator[None]:
        for worker in service.pool.workers:
            worker.begin(asyncio.get_running_loop())
        yield
        for worker in service.pool.workers:
            worker.stop()

    handlers = {Fault: refuse, HTTPException: not_here, Gone: gone, Exception: broken}
    app = Starlette(routes=service.routes(), exception_handlers=handlers, lifespan=working)
    return Gate(app, host, key, hosts, origins, service.meter.request)


def open_engines(
    source: str, tag: str, step: int | None, runtime: Any, count: int, slots: int
) -> tuple[list, Any, Any]:
    """Workers, the tokenizer and the checkpoint. count: engines, 0: one a GPU, or one."""
    checkpoint = find_model(MODELS[source], tag, step, runtime)
    tokenizer, config = tokenizer_of(checkpoint), config_of(checkpoint.manifest)
    devices = [runtime.device]
    if runtime.device.type == "cuda":
        devices = [torch.device("cuda", number) for number in range(torch.cuda.device_count())]
    models = {}
    for device in devices[: count or None]:
        models[device] = build_model(config, replace(runtime, device=device), checkpoint).eval().requires_grad_(False)
        # A path that takes rows of any length as they come.
        models[device].attention = "chunks" if device.type == "cpu" else "sdpa"
    homes = [list(models)[number % len(models)] for number in range(count or len(devices))]
    return [Worker(Engine(models[home], tokenizer, slots), models[home]) for home in homes], tokenizer, checkpoint


def serve(bound: socket.socket, served: Served, workers: Sequence[Worker], config: Any, key: str) -> None:
    """Until a signal ends it. bound: where it listens. config: host, queue, drain, allow_host, allow_origin."""
    pool = Pool(workers, config.queue)
    service = Service(served, pool)
    app = application(service, config.host, key, config.allow_host.split(), config.allow_origin.split())
    slots = sum(worker.engine.slots for worker in workers)
    about = f"{served.name}, {len(workers)} engine{'s' * (len(workers) > 1)}, {slots} slots, {config.queue} may wait"
    keep_port(app, bound, pool, config.drain, about)
