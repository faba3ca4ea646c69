"""The chat server: routes, who may use them, the engines behind them, and how the server starts and ends."""

import asyncio
import base64
import hashlib
import hmac
import ipaddress
import re
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib.resources import files
from typing import TypeVar

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
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nanochat.checkpoint import Checkpoint, build_model, find_model, tokenizer_of
from nanochat.engine import Engine
from nanochat.log import print0
from nanochat.models import config_of
from nanochat.runtime import Runtime
from nanochat.serve.requests import ApiError, ApiRequest, ServedModel, parse_chat, parse_completion
from nanochat.serve.responses import ApiResponse
from nanochat.serve.worker import Pool, Worker
from nanochat.stages import MODELS

CLIENT_SECONDS = 30.0  # limit for a client to send a body, and to read a piece from the response
LAST_RESPONSES_SECONDS = 3  # limit for the last responses at a shutdown
OPEN_PATHS = ("/", "/health")  # need no key: the page asks for the key, and monitors have none
HEADERS = {  # for every response
    "x-content-type-options": "nosniff",  # browsers do not guess types
    "x-frame-options": "DENY",  # no other page shows ours in a frame
    "referrer-policy": "no-referrer",  # other sites do not learn our address
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",  # caches keep no conversations
}

SIGNALS = (signal.SIGINT, signal.SIGTERM)

Result = TypeVar("Result")


# ---- who may use the server, and how long ----


@dataclass(frozen=True)
class Access:
    """Clients that may use the server. hosts, origins: names and sites besides the server's own."""

    host: str = "127.0.0.1"
    key: str = ""
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()

    def all_hosts(self) -> list[str]:
        """Return the server's own names: a foreign name may point here, too (DNS rebinding).

        A server on all addresses cannot know all names. The key protects this server.
        """
        address = self.host.strip("[]").lower()
        if address in ("0.0.0.0", "::", "") and not self.hosts:
            return ["*"]
        return ["localhost", "127.0.0.1", "[::1]", f"[{address}]" if ":" in address else address, *self.hosts]


class AccessMiddleware:
    """Refuses pages of other sites and, if there is a key, clients without it.

    CORS alone keeps a foreign page from reading a response, but not from making the model work.
    """

    def __init__(self, app: ASGIApp, access: Access):
        self.app = app
        self.key = access.key.encode()
        self.origins = access.origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                headers = Headers(scope=scope)
                self._check_origin(headers.get("origin"), headers.get("host", ""))
                if self.key and scope["path"] not in OPEN_PATHS:
                    self._check_key(headers.get("authorization", ""))
            except ApiError as error:
                await error_response(error)(scope, receive, send)
                return
        await self.app(scope, receive, send)

    def _check_origin(self, origin: str | None, host: str) -> None:
        # Programs send no origin. Our own page sends the server's host.
        if origin is None or origin in self.origins or origin.partition("://")[2] == host:
            return
        sentence = f"pages of {origin[:100]!r} may not use this server: --allow-origin allows them"
        raise ApiError(403, sentence, code="origin_not_allowed")

    def _check_key(self, authorization: str) -> None:
        scheme, _, key = authorization.partition(" ")
        headers = {"www-authenticate": "Bearer"}  # required with status 401
        if scheme.lower() != "bearer":
            sentence = "this server needs a key: send `Authorization: Bearer KEY`"
            raise ApiError(401, sentence, code="missing_api_key", headers=headers)
        given = key.strip(" \t").encode("latin-1")  # headers are bytes: a key may be UTF-8
        if not hmac.compare_digest(given, self.key):  # takes equally long for every wrong key
            raise ApiError(401, "the key is wrong", code="invalid_api_key", headers=headers)


class SlowReader(Exception):
    """A client does not read the response."""


class LimitMiddleware:
    """Limits a body in bytes and seconds, and the seconds for a client to read a piece."""

    def __init__(self, app: ASGIApp, body_bytes: int):
        self.app = app
        self.body_bytes = body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        deadline = anyio.current_time() + CLIENT_SECONDS
        size = 0  # body bytes
        is_complete = False  # the body

        async def limited_receive() -> Message:
            nonlocal size, is_complete
            if is_complete:  # the next message is the client's leaving
                return await receive()
            try:
                with anyio.fail_after(deadline - anyio.current_time()):
                    message = await receive()
            except TimeoutError:
                raise ApiError(408, f"the body did not arrive within {CLIENT_SECONDS:.0f} seconds") from None
            size += len(message.get("body", b""))
            if size > self.body_bytes:
                raise ApiError(413, f"the body has more than {self.body_bytes:,} bytes")
            is_complete = not message.get("more_body", False)
            return message

        async def limited_send(message: Message) -> None:
            try:
                with anyio.fail_after(CLIENT_SECONDS):
                    await send(message)
            except TimeoutError:
                raise SlowReader from None

        with suppress(SlowReader):  # uvicorn closes a connection whose response is not complete
            await self.app(scope, limited_receive, limited_send)


def is_loopback(host: str) -> bool:
    """Return True if only this machine can reach a server on this address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


# ---- routes ----


class EventStream(StreamingResponse):
    """A stream of server-sent events. Calls `close` at the end, also after an error or without a client."""

    def __init__(self, events: AsyncIterator[bytes], close: Callable[[], None]):
        super().__init__(events, headers={"x-accel-buffering": "no"}, media_type="text/event-stream")
        self.close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.close()


async def unless_disconnected(request: Request, work: Awaitable[Result]) -> Result:
    """Return the result of `work`, or cancel `work` if the client leaves first. Needs a body that was read."""

    async def disconnected() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass  # the rest of an empty body

    # Both wait at once; the one that is late is cancelled.
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(disconnected())
    try:
        await asyncio.wait([working, leaving], return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()


class Service:
    """The routes, and their shared data."""

    def __init__(self, served: ServedModel, pool: Pool):
        self.served = served
        self.pool = pool
        self.page_content, self.page_headers = chat_page()

    def routes(self) -> list[Route]:
        return [
            Route("/", self.page),
            Route("/health", self.health),
            Route("/v1/models", self.models),
            Route("/v1/models/{name:path}", self.models),
            Route("/v1/chat/completions", partial(self.answer, parse_chat), methods=["POST"]),
            Route("/v1/completions", partial(self.answer, parse_completion), methods=["POST"]),
        ]

    async def page(self, request: Request) -> Response:
        return Response(self.page_content, headers=self.page_headers)

    async def health(self, request: Request) -> Response:
        # Monitors send no more clients to a server with status 503.
        status = self.pool.closing or "ok"
        if self.pool.failures:
            status = "failed"
        about = {"status": status, "model": self.served.name}
        # Samples in slots, and samples without one.
        about |= {"running": self.pool.running, "waiting": self.pool.waiting}
        return JSONResponse(about, 200 if status == "ok" else 503)

    async def models(self, request: Request) -> Response:
        served = self.served
        # OpenAI's fields, and the context under vLLM's name.
        model = {"id": served.name, "object": "model", "created": served.created, "owned_by": "nanochat"}
        model["max_model_len"] = served.context
        name = request.path_params.get("name")
        if name is None:
            return JSONResponse({"object": "list", "data": [model]})
        if name != served.name:
            raise ApiError(404, f"the only model here is {served.name!r}", "model", "model_not_found")
        return JSONResponse(model)

    async def answer(self, parse: Callable[[bytes, ServedModel], ApiRequest], request: Request) -> Response:
        body = await request.body()
        api_request = await asyncio.to_thread(parse, body, self.served)  # encoding a long text takes a while
        generation = self.pool.submit(api_request)
        response = ApiResponse(api_request, self.served, generation)
        if api_request.fields.stream:
            return EventStream(response.stream(), generation.close)
        try:
            content = await unless_disconnected(request, response.whole())
        finally:
            generation.close()  # frees the slots, also if the client has left
        return Response(content, media_type="application/json")


def chat_page() -> tuple[bytes, dict[str, str]]:
    """Return the page and headers with a policy: the browser runs only the page's script and style."""
    content = (files("nanochat.serve") / "ui.html").read_bytes()
    sources = {}  # kind -> hashes of the parts in the page
    for kind in ("script", "style"):
        texts = re.findall(rf"<{kind}>(.*?)</{kind}>".encode(), content, re.DOTALL)
        digests = [base64.b64encode(hashlib.sha256(text).digest()).decode() for text in texts]
        sources[kind] = " ".join(f"'sha256-{digest}'" for digest in digests)
    policy = (
        f"default-src 'none'; script-src {sources['script']}; style-src {sources['style']}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"  # not even the page makes markup from text
    )
    return content, {"content-type": "text/html; charset=utf-8", "content-security-policy": policy}


def error_response(error: ApiError) -> Response:
    return JSONResponse(error.body, error.status, error.headers)


async def _refused(request: Request, error: ApiError) -> Response:
    return error_response(error)


async def _unknown_url(request: Request, error: HTTPException) -> Response:
    sentence = f"{request.method} {request.url.path}: {error.detail.lower()}"
    return error_response(ApiError(error.status_code, sentence, code="unknown_url", headers=error.headers))


async def _client_left(request: Request, error: ClientDisconnect) -> Response:
    return Response(status_code=499)  # nobody receives this response


async def _broken(request: Request, error: Exception) -> Response:
    return error_response(ApiError(500, "internal error, see the server's log"))


def application(service: Service, access: Access, lifespan: Callable | None = None) -> Starlette:
    """Return the ASGI application. The first middleware is the outermost."""
    middleware = [
        Middleware(TrustedHostMiddleware, allowed_hosts=access.all_hosts(), www_redirect=False),
        # Before the check of the key: a browser asks for permission without a key.
        Middleware(
            CORSMiddleware,
            allow_origins=access.origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["Retry-After"],
        ),
        Middleware(AccessMiddleware, access=access),
        Middleware(LimitMiddleware, body_bytes=service.served.limits.body_bytes),
    ]
    handlers = {ApiError: _refused, HTTPException: _unknown_url, ClientDisconnect: _client_left, Exception: _broken}
    return Starlette(routes=service.routes(), middleware=middleware, exception_handlers=handlers, lifespan=lifespan)


# ---- start and end ----


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0: any free port. No other server gets the port while the model loads."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a restart need not wait
    try:
        bound.bind((host.strip("[]"), port))
        bound.listen()
    except OSError as error:
        bound.close()
        raise ValueError(f"--host={host} --port={port}: {error.strerror or error}, take another") from None
    return bound


def open_engines(
    source: str, tag: str, step: int | None, runtime: Runtime, count: int, slots: int
) -> tuple[list[Worker], Checkpoint]:
    """Load a model into `count` engines, 0: one on each GPU, or one on the CPU."""
    checkpoint = find_model(MODELS[source], tag, step, runtime)
    tokenizer = tokenizer_of(checkpoint)
    config = config_of(checkpoint.manifest)
    devices = [runtime.device]
    if runtime.device.type == "cuda":
        devices = [torch.device("cuda", number) for number in range(torch.cuda.device_count())]
    models = {}  # device -> model
    workers = []
    for number in range(count or len(devices)):
        device = devices[number % len(devices)]
        if device not in models:  # engines on one device share a model for scores
            model = build_model(config, replace(runtime, device=device), checkpoint).eval().requires_grad_(False)
            # Rows to be scored have any length: take a path without compilation.
            model.attention = "chunks" if device.type == "cpu" else "sdpa"
            models[device] = model
        workers.append(Worker(Engine(models[device], tokenizer, slots), models[device]))
    return workers, checkpoint


def serve(bound: socket.socket, service: Service, access: Access, drain: float) -> None:
    """Serve until SIGINT or SIGTERM. drain: seconds to finish open requests; a second signal ends the process."""
    pool = service.pool

    async def finish_requests() -> None:
        deadline = anyio.current_time() + drain
        while pool.is_busy and anyio.current_time() < deadline:
            await asyncio.sleep(0.05)
        for worker in pool.workers:
            worker.refuse(ApiError(503, "the server has shut down"))
        server.should_exit = True  # uvicorn closes idle connections and waits for the last responses

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        tasks = []  # a task without a reference may be collected

        def shut_down() -> None:
            pool.closing = "shutting down"
            for number in SIGNALS:
                loop.remove_signal_handler(number)
                signal.signal(number, signal.SIG_DFL)
            tasks.append(loop.create_task(finish_requests()))
            # Printed last: from here on a second signal does end the process.
            print0("server: shutting down, open requests are finished first; a second signal ends it at once")

        for worker in pool.workers:
            worker.begin(loop)
        for number in SIGNALS:  # replaces uvicorn's handlers: these would end open requests
            loop.add_signal_handler(number, shut_down)
        print0(_greeting(bound, service))
        yield
        for worker in pool.workers:
            worker.stop()

    config = uvicorn.Config(
        application(service, access, lifespan),
        headers=list(HEADERS.items()),
        http="h11",  # also if httptools is installed: the limits are tested with this parser
        lifespan="on",  # an error at the start ends the server
        log_level="warning",
        access_log=False,
        server_header=False,  # tells nobody about versions
        timeout_graceful_shutdown=LAST_RESPONSES_SECONDS,
    )
    server = uvicorn.Server(config)
    server.run(sockets=[bound])


def _greeting(bound: socket.socket, service: Service) -> str:
    host, port = bound.getsockname()[:2]
    if ":" in host:
        host = f"[{host}]"
    workers = service.pool.workers
    slots = sum(worker.engine.slots for worker in workers)
    about = f"{service.served.name}, engines: {len(workers)}, slots: {slots}, queue: {service.pool.queue}"
    return f"server: http://{host}:{port}/ ({about})"
