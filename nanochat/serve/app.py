"""The chat server: who may use it, routes, the engines behind them, and its start."""

import asyncio
import base64
import ctypes
import gc
import hashlib
import hmac
import logging
import re
import resource
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib.resources import files

import anyio
import torch
import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from nanochat.chat import chat_temperature, chat_top_k, chat_top_p, suggestions
from nanochat.config import stop_signals
from nanochat.engine import Engine
from nanochat.errors import UserError
from nanochat.log import print_line
from nanochat.models import load_chosen
from nanochat.runtime import Runtime
from nanochat.serve.requests import ApiError, ApiRequest, ServedModel, parse_chat, parse_completion
from nanochat.serve.responses import ApiResponse
from nanochat.serve.worker import Worker
from nanochat.settings import ModelChoice

BODY_BYTES = 1 << 20  # limit for the body of a request
BODY_SECONDS = 30.0  # limit for a client to send it
# Bytes of a connection that are read at once: many headers or chunks take long, and nobody else is served meanwhile.
READ_BYTES = 8 << 10
HEAD_BYTES = 16 << 10  # headers of so many bytes are read, and those of one more read refused
MAX_CONNECTIONS = 4096
M_ARENA_MAX = -8  # a name in malloc.h: the most heaps of a process
LAST_SECONDS = 3.0  # in which clients learn that no engine is left, before the server ends
LOOPBACK = ("127.0.0.1", "::1", "localhost")  # addresses that only this machine can reach
# For every response: browsers do not guess types, no other page shows ours in a frame, other sites do not learn our
# address, and caches keep no conversations.
HEADERS = [
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cache-control", "no-store"),
]


# ---- who may use the server ----


def in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


@dataclass
class AccessMiddleware:
    """Refuses pages of other sites and, if there is a key, clients without it. origins: sites whose pages may come."""

    app: ASGIApp
    key: str
    origins: Sequence[str]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = self._find_error(Headers(scope=scope), scope["path"]) if scope["type"] == "http" else None
        app = error_response(error) if error else self.app
        await app(scope, receive, send)

    def _find_error(self, headers: Headers, path: str) -> ApiError | None:
        # Programs send no origin. Our own page sends the server's host.
        origin = headers.get("origin")
        if origin is not None and origin not in self.origins and origin.partition("://")[2] != headers.get("host"):
            return ApiError(403, f"pages of {origin!r} may not use this server")
        # The page asks for the key, and monitors have none.
        if not self.key or path in ("/", "/health"):
            return None
        given = headers.get("authorization", "").encode("latin-1")  # headers are bytes: a key may be UTF-8
        if hmac.compare_digest(given, f"Bearer {self.key}".encode()):  # takes equally long for every wrong key
            return None
        sentence = "this server needs a key: send `Authorization: Bearer KEY`"
        # The header is required with this status.
        return ApiError(401, sentence, code="invalid_api_key", headers={"www-authenticate": "Bearer"})


@dataclass
class LengthMiddleware:
    """Refuses requests with two lengths: programs that read one by its other length take its rest for another request.

    Outermost, as the answers of the others leave the connection open.
    """

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self.app
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            if "content-length" in headers and "transfer-encoding" in headers:
                app = error_response(
                    ApiError(400, "a request has one length, not two", headers={"connection": "close"})
                )
        await app(scope, receive, send)


# ---- routes ----


async def read_body(request: Request) -> bytes:
    """Return the body; an ApiError for one that is too large or too slow."""
    body = bytearray()
    try:
        with anyio.fail_after(BODY_SECONDS):
            async for piece in request.stream():
                body += piece
                if len(body) > BODY_BYTES:
                    raise ApiError(413, f"the body has more than {BODY_BYTES:,} bytes")
    except (TimeoutError, ClientDisconnect):  # nobody reads the answer after a disconnection
        raise ApiError(408, f"the body did not arrive within {BODY_SECONDS:.0f} seconds") from None
    return bytes(body)


@dataclass
class Service:
    """The routes, and the engines at work behind them. queue: limit for samples without a slot."""

    served: ServedModel
    workers: Sequence[Worker]
    queue: int

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        for worker in self.workers:
            await worker.begin()
        gc.collect()
        gc.freeze()  # what is here now stays: looking through it would keep everybody waiting, a tenth of a second
        ending = asyncio.create_task(self.end_without_engines(app))
        yield
        gc.unfreeze()
        ending.cancel()
        for worker in self.workers:
            worker.stop()

    async def end_without_engines(self, app: Starlette) -> None:
        """Stop the server once all engines have given up: whoever supervises it starts another process."""
        if not self.workers:
            return
        for worker in self.workers:
            await worker.given_up.wait()
        await asyncio.sleep(LAST_SECONDS)
        print_line("server: no engine is left, the server ends with status 1")
        app.state.failed = True
        signal.raise_signal(signal.SIGTERM)  # open requests are finished first

    async def health(self, request: Request) -> Response:
        states = [worker.state for worker in self.workers]
        # The worst of several engines; while one of them works, clients are served.
        worst = next((state for state in ("failed", "replacing") if state in states), "ok")
        failures = sum(len(worker.failures) for worker in self.workers)
        record = {"status": worst, "model": self.served.name, "samples": self.load, "engine_failures": failures}
        return JSONResponse(record, 503 if states and "ok" not in states else 200)

    async def models(self, request: Request) -> Response:
        model = {
            "id": self.served.name,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "nanochat",
            "max_model_len": self.served.context,  # vLLM's name
            # For the page.
            "temperature": self.served.temperature,
            "is_base": self.served.is_base,
            "suggestions": self.served.suggestions,
        }
        if self.served.top_k is not None:
            model["top_k"] = self.served.top_k
        return JSONResponse({"object": "list", "data": [model]})

    async def answer(self, parse: Callable[[bytes, ServedModel], ApiRequest], request: Request) -> Response:
        body = await read_body(request)
        api_request = await asyncio.to_thread(parse, body, self.served)  # encoding a long text takes a while
        return ApiResponse(api_request, self.served, self.admit(api_request.sample_count))

    @property
    def load(self) -> int:
        """The number of samples in slots and in the queue."""
        return sum(worker.load for worker in self.workers)

    def admit(self, samples: int) -> Worker:
        """Return the worker with the lowest load, for the samples of a request; an ApiError if there is no room."""
        usable = [worker for worker in self.workers if worker.state != "failed"]
        if self.workers and not usable:
            sentence = "the engine has failed too often, and the server ends"
            raise ApiError(503, sentence, code="engine_failed")
        # A request is accepted whole: with slots or places in the queue for all samples.
        places = sum(worker.slots for worker in usable) + self.queue
        if samples > places:
            raise ApiError(400, f"the request asks for {samples} samples, there is room for {places}", "n")
        if self.load + samples > places:
            raise ApiError(429, "the server is busy, try again", code="queue_full", headers={"retry-after": "1"})
        # Samples wait while their engine is replaced.
        return min(usable, key=lambda worker: (worker.state != "ok", worker.load))


def chat_page() -> Response:
    """Return the page with a policy in the headers: the browser runs only the page's script and style."""
    content = (files("nanochat.serve") / "ui.html").read_bytes()
    policy = (
        "default-src 'none'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"  # no markup from any text
    )
    for kind in ("script", "style"):
        [text] = re.findall(rf"<{kind}>(.*?)</{kind}>".encode(), content, re.DOTALL)
        policy += f"; {kind}-src 'sha256-{base64.b64encode(hashlib.sha256(text).digest()).decode()}'"
    return HTMLResponse(content, headers={"content-security-policy": policy})


def error_response(error: ApiError) -> Response:
    return JSONResponse(error.body, error.status_code, error.headers)


async def _handle_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        error = ApiError(500, "internal error, see the server's log")
    elif not isinstance(error, ApiError):
        sentence = f"{request.method} {request.url.path}: {error.detail.lower()}"
        error = ApiError(error.status_code, sentence, code="unknown_url", headers=error.headers)
    return error_response(error)


def application(service: Service, host: str, key: str, hosts: Sequence[str], origins: Sequence[str]) -> Starlette:
    """Return the ASGI application. The first middleware is the outermost."""
    # A foreign name may point here, too (DNS rebinding).
    own_hosts = ["localhost", "127.0.0.1", "[::1]", in_url(host), *hosts]
    if host in ("0.0.0.0", "::", ""):
        own_hosts = ["*"]  # a server on all addresses cannot know all names: the key protects it
    middleware = [
        Middleware(LengthMiddleware),
        Middleware(TrustedHostMiddleware, allowed_hosts=own_hosts, www_redirect=False),
        # Answers a browser's question before a request to another site, which comes without a key.
        Middleware(CORSMiddleware, allow_origins=origins, allow_methods=["GET", "POST"], allow_headers=["*"]),
        Middleware(AccessMiddleware, key=key, origins=origins),
    ]
    routes = [
        Route("/", chat_page(), methods=["GET"]),
        Route("/health", service.health),
        Route("/v1/models", service.models),
        Route("/v1/chat/completions", partial(service.answer, parse_chat), methods=["POST"]),
        Route("/v1/completions", partial(service.answer, parse_completion), methods=["POST"]),
    ]
    return Starlette(
        routes=routes,
        middleware=middleware,
        exception_handlers=dict.fromkeys([HTTPException, Exception], _handle_error),
        lifespan=service.lifespan,
    )


# ---- start and end ----


class Protocol(H11Protocol):
    """uvicorn's protocol; a connection too many closes the oldest one without a request, perhaps itself.

    transport: of asyncio's own loop, which `serve` asks for.
    """

    limit = MAX_CONNECTIONS

    def connection_made(self, transport: asyncio.Transport) -> None:
        transport.max_size = READ_BYTES  # ty: ignore[missing-attribute]  # of asyncio's own transports
        super().connection_made(transport)
        self.opened = time.monotonic()
        if len(self.connections) > self.limit:
            own = [one for one in self.connections if isinstance(one, Protocol)]  # all
            silent = [one for one in own if one.cycle is None or one.cycle.response_complete]
            # Aborted, because a silent client would not answer a farewell; uvicorn forgets it a moment later.
            closing = min(silent, key=lambda one: one.opened)
            self.connections.discard(closing)
            closing.transport.abort()


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0: any free port. No other server gets the port while the model loads."""
    try:
        bound = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        # Connections inherit it: without it, the second packet of an answer waits for the client to confirm the first.
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return bound
    except (OSError, OverflowError) as error:
        raise UserError(f"--host={host} --port={port}: {error}, use another") from None


def share_one_heap() -> None:
    """Limit glibc to one malloc arena for all threads: with one each, the memory grew under load (dev/LOG.md)."""
    with suppress(AttributeError):  # another library
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)


def open_engines(choice: ModelChoice, runtime: Runtime, slots: int) -> tuple[ServedModel, list[Worker]]:
    """Load a model into an engine on each GPU, or into one on the CPU."""
    share_one_heap()  # before there are threads
    gpus = [torch.device("cuda", number) for number in range(torch.cuda.device_count())]
    devices = gpus if runtime.device.type == "cuda" else [runtime.device]
    loaded = [load_chosen(choice, replace(runtime, device=device)) for device in devices]
    workers = [Worker(Engine(model, tokenizer, slots)) for model, tokenizer, _ in loaded]
    model, tokenizer, checkpoint = loaded[0]
    is_base = choice.source == "base"
    served = ServedModel(
        name=f"nanochat-{choice.tag}-{choice.source}",
        tokenizer=tokenizer,
        context=model.config.max_seq_len,
        temperature=chat_temperature(checkpoint.manifest),
        top_k=chat_top_k(checkpoint.manifest),
        top_p=chat_top_p(checkpoint.manifest) or 1.0,
        is_base=is_base,
        suggestions=suggestions(checkpoint.manifest, is_base),
    )
    return served, workers


def serve(bound: socket.socket, app: Starlette) -> None:
    """Serve until a signal asks to stop; open requests are finished first."""
    # As many open files as this process may have, and so many connections that some are left for the rest.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if sys.platform == "linux":  # macOS refuses its own hard limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    Protocol.limit = min(MAX_CONNECTIONS, soft // 3)  # asyncio accepts some before it closes others
    # Warnings are about clients, here and in uvicorn: with them, a client could fill the disk.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    config = uvicorn.Config(
        app,
        headers=HEADERS,
        loop="asyncio",
        http=Protocol,
        h11_max_incomplete_event_size=HEAD_BYTES,
        ws="none",
        backlog=64,  # connections that wait, and that asyncio accepts at once
        lifespan="on",  # an error at the start ends the server
        log_level="error",
        access_log=False,
        server_header=False,  # tells nobody about versions
        timeout_graceful_shutdown=30,  # limit for open requests, in seconds
    )
    server = uvicorn.Server(config)
    # uvicorn raises SIGTERM again at the end: this handler lets a server that has finished its work end with status 0.
    for number in set(stop_signals()) - {signal.SIGINT}:
        signal.signal(number, server.handle_exit)
    try:
        server.run(sockets=[bound])
        if getattr(app.state, "failed", False):
            raise SystemExit(1)
    except SystemExit:  # an engine's error at the start, which uvicorn has printed; it exits with another status
        raise SystemExit(1) from None
