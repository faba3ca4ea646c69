"""A server under abuse: it refuses bad requests, frees every slot and answers /health, until it is shut down."""

import json
import random
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import chain, repeat

import httpx
import pytest

from bench.served import serving, write_model

KEY = "right"
HEADERS = {"authorization": f"Bearer {KEY}"}
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HI = [{"role": "user", "content": "hi"}]
SETTINGS = {"max_tokens": 150, "temperature": 0, "stop": "no such text"}
LONG = {"messages": HI, **SETTINGS}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server with a key, four slots and room for eight to wait; /health is asked all the while."""
    base = tmp_path_factory.mktemp("abuse") / "base"
    write_model(base, endless=True)
    with serving(base, "--slots=4", "--queue=8", NANOCHAT_API_KEY=f"{KEY}\n") as server:
        server.http = httpx.Client(base_url=server.url, headers=HEADERS, timeout=60)
        server.over = threading.Event()

        def watch():
            answers = 0
            with httpx.Client(base_url=server.url, timeout=60) as client:
                while not server.over.wait(0.02):
                    assert client.get("/health").status_code == 200
                    answers += 1
            return answers

        with ThreadPoolExecutor(1) as threads:
            server.watching = threads.submit(watch)
            yield server
            server.over.set()


def connect(server):
    return socket.create_connection(server.address, timeout=30)


def request(body, length=None):
    """Return the bytes of a request. length: of the body, as the header claims."""
    content = json.dumps(body).encode()
    path = TEXT if "prompt" in body else CHAT
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n"
    return head.encode() + f"Content-Length: {length or len(content)}\r\n\r\n".encode() + content


def test_a_thousand_clients_leave(server) -> None:
    """Before, while and after they are answered: in the queue or in a slot, with a stream or without."""
    dice = random.Random(3)
    kinds = [{**LONG, "stream": True}, LONG, {**LONG, "n": 3}]
    kinds.append({"prompt": "hi", **SETTINGS, "n": 2, "logprobs": 0})

    def leave(number) -> None:
        kind, patience = kinds[number % 4], dice.choice([0, 0, 0, 0.001, 0.01])
        sent = request(kind)
        with connect(server) as connection:
            connection.sendall(sent[: dice.randrange(len(sent))] if number % 7 == 0 else sent)
            if patience:
                connection.settimeout(patience)
                with suppress(TimeoutError):
                    connection.recv(100)
            if number % 3 == 0:  # a reset and not an end
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    with ThreadPoolExecutor(16) as threads:
        list(threads.map(leave, range(1000)))
    assert server.becomes_idle()
    assert server.http.post(CHAT, json=LONG).status_code == 200
    assert server.process.poll() is None


def test_slow_readers_and_halves_keep_nobody_waiting(server) -> None:
    """Clients that read a byte now and then, read nothing, or send half of a request and stay."""
    whole, connections = request({**LONG, "stream": True}), []
    for sent in chain(repeat(whole, 8), repeat(whole[:40], 20), repeat(request(LONG, length=5000), 20)):
        connection = connect(server)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        connection.sendall(sent)
        connections.append(connection)
    end = time.monotonic() + 60
    while (found := server.http.post(CHAT, json=LONG)).status_code == 429 and time.monotonic() < end:
        for connection in connections[:4]:
            connection.recv(1)
    assert found.status_code == 200
    for connection in connections:
        connection.close()
    assert server.becomes_idle()


def test_health_was_answered_and_open_requests_are_finished_before_the_server_ends(server) -> None:
    """The last test of this server."""
    server.over.set()
    assert server.watching.result(60) >= 20
    body = {"messages": HI, "stream": True, "n": 12, "temperature": 1.0, "seed": 5}
    with server.http.stream("POST", CHAT, json=body) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("data: {")
        server.process.send_signal(signal.SIGTERM)
        *_, last, _ = lines
    assert last == "data: [DONE]"
    assert server.process.wait(60) == 0
