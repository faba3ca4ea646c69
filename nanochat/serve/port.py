"""A port of this machine: what listens there, parts with clients that stall, and ends in good order."""

import asyncio
import socket
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol, h11

from nanochat.log import print0
from nanochat.serve.gate import Fault

PATIENCE = 30.0  # seconds that a client has for a request once it is begun, and to take what it is sent
AHEAD = 1 << 16  # bytes of its next request that a client may send while it is answered
LAST_WORDS = 3  # seconds for those that are told that nothing comes any more


def listen(host: str, port: int) -> socket.socket:
    """A socket bound to an address of this machine, port 0: any that is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host.strip("[]"), port))
        bound.listen()  # from now on no other server gets the port, however long the model takes to load
    except OSError as error:
        bound.close()
        raise ValueError(f"--host={host} --port={port}: {error.strerror or error}, take another") from None
    return bound


class Protocol(H11Protocol):
    """Parts with clients that begin a request and do not end it, or do not take what they asked for."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._watch("request", True)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        state = self.conn.their_state
        if state is h11.DONE and self.cycle and not self.cycle.response_complete:  # it sends more than its turn
            if len(self.conn.trailing_data[0]) > AHEAD:
                self.transport.abort()
            else:
                self.flow.resume_reading()  # uvicorn reads no further, and would not see that it leaves
        answered = self.cycle is None or self.cycle.response_complete  # a body that comes after that is nobody's
        self._watch("request", state is h11.IDLE or (answered and state is h11.SEND_BODY))

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch("answer", True)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._watch("answer", False)

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        for what in list(self._timers):
            self._watch(what, False)

    def _watch(self, what: str, is_owed: bool) -> None:
        if not is_owed and what in self._timers:
            self._timers.pop(what).cancel()
        elif is_owed and what not in self._timers:
            self._timers[what] = self.loop.call_later(PATIENCE, self.transport.abort)


class Server(uvicorn.Server):
    """The first signal lets it end what it has begun, for some seconds; the second one ends it."""

    def __init__(self, config: uvicorn.Config, pool: Any, patience: float, greeting: str):
        super().__init__(config)
        self.pool, self.patience, self.greeting, self.end = pool, patience, greeting, 0.0

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        print0(self.greeting)

    def handle_exit(self, number: int, frame: Any) -> None:
        if self.pool.closing:
            super().handle_exit(number, frame)
        self.pool.closing = "shutting down"

    async def on_tick(self, counter: int) -> bool:
        now = asyncio.get_running_loop().time()
        if self.pool.closing and not self.end:
            self.end = now + self.patience
            print0("server: shutting down, what it has begun it ends; once more ends it at once")
        elif self.end and (now > self.end or not self.server_state.tasks):
            for worker in self.pool.workers:
                worker.refuse(Fault(503, "the server is shut down"))
            self.should_exit = True
        return await super().on_tick(counter)


def keep_port(app: Any, bound: socket.socket, pool: Any, patience: float, about: str) -> None:
    """Serve the application until a signal ends it. patience: seconds for what is begun by then."""
    host, port = bound.getsockname()[:2]
    greeting = f"server: http://{f'[{host}]' if ':' in host else host}:{port}/ ({about})"
    options = {"http": Protocol, "ws": "none", "loop": "asyncio", "lifespan": "on", "backlog": 1024}
    options |= {"log_level": "warning", "access_log": False, "server_header": False, "proxy_headers": False}
    config = uvicorn.Config(app, timeout_graceful_shutdown=LAST_WORDS, **options)
    Server(config, pool, patience, greeting).run(sockets=[bound])
