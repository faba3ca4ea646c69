"""A server that is treated badly: it refuses what it must, forgets nobody's slot, and keeps answering /health."""

import json
import random
import socket
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import chain, repeat

import httpx
import pytest
from served import serving, write_model

KEY = "schlüssel"
SAID = [{"role": "user", "content": "hi"}]
LONG = {"messages": SAID, "max_tokens": 150, "temperature": 0, "stop": "never said"}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """With a key, four slots and room for eight to wait; what /health took meanwhile is told at the end."""
    base = tmp_path_factory.mktemp("abuse") / "base"
    write_model(base)
    with serving(base, "--slots=4", "--queue=8", "--max-body=100000", NANOCHAT_API_KEY=KEY) as server:
        headers = {"authorization": f"Bearer {KEY}".encode()}
        server.http = httpx.Client(base_url=server.url, headers=headers, timeout=60)
        over, server.waits = threading.Event(), []

        def watch():
            with httpx.Client(base_url=server.url, timeout=60) as client:
                while not over.wait(0.02):
                    began = time.perf_counter()
                    assert client.get("/health").status_code == 200
                    server.waits.append(time.perf_counter() - began)

        watching = ThreadPoolExecutor(1).submit(watch)
        yield server
        over.set()
        watching.result()


def connect(server):
    url = httpx.URL(server.url)
    return socket.create_connection((url.host, url.port), timeout=30)


def request(body, path="/v1/chat/completions", more="", length=None):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n{more}"
    return head.encode() + f"Content-Length: {length or len(content)}\r\n\r\n".encode() + content


def is_idle(server):
    """Whether nobody runs or waits, soon."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if server.metric("running") == server.metric("waiting") == 0:
            return True
        time.sleep(0.05)
    return False


def test_keys(server):
    for given in ("", "Bearer", "Bearer wrong", f"Bearer {KEY}x", f"Basic {KEY}"):
        for method, path in [("POST", "/v1/chat/completions"), ("GET", "/v1/models"), ("GET", "/metrics")]:
            found = httpx.request(method, server.url + path, headers={"authorization": given.encode()}, json=LONG)
            assert found.status_code == 401
            assert found.json()["error"]["type"] == "authentication_error"
    assert server.http.get("/v1/models").status_code == 200


def test_names_and_origins(server):
    for headers in ({"host": "evil.example"}, {"origin": "https://evil.example"}, {"origin": "null"}):
        found = server.http.post("/v1/chat/completions", json=LONG, headers=headers)
        assert found.status_code == 403
        assert not any(name.startswith("access-control") for name in found.headers)


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_of_ten_megabytes(server, chunked):
    content = b'{"messages": [{"role": "user", "content": "' + b"x" * 10_000_000 + b'"}]}'
    pieces = (content[i : i + 50_000] for i in range(0, len(content), 50_000))
    found = server.http.post("/v1/chat/completions", content=pieces if chunked else content)
    assert found.status_code == 413
    assert found.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 90_000,
        b'{"messages":' + b"[" * 40_000 + b"]" * 40_000 + b"}",
        b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}',
        rb'{"messages": [{"role": "user", "content": "\ud800"}], "prompt": "\ud800"}',
        b'{"messages": [{"role": "user", "content": "hi"}], "temperature": NaN}',
        b'{"messages": [{"role": "user", "content": "hi"}], "temperature": 1e999}',
        b'{"messages": [{"role": "user", "content": "hi"}], "seed": ' + b"9" * 5000 + b"}",
        b'{"messages": [{"role": "user", "content": [{"type": [], "text": "x"}]}], "prompt": [{}]}',
        b"\x00" * 1000,
        b"",
    ],
)
def test_bodies_that_are_none(server, content):
    for path in ("/v1/chat/completions", "/v1/completions"):
        found = server.http.post(path, content=content)
        assert found.status_code == 400, found.text
        assert found.json()["error"]["message"]


def test_what_is_no_http(server):
    for sent in (
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET / HTTP/9.9\r\n\r\n",
        b"A" * 100_000,
        b"GET /\xff HTTP/1.1\r\n\r\n",
    ):
        with connect(server) as connection, suppress(ConnectionError):
            connection.sendall(sent)
            assert connection.recv(1000).startswith(b"HTTP/1.1 4")


def test_the_queue_has_an_end(server):
    with ThreadPoolExecutor(40) as threads:
        posts = [threads.submit(server.http.post, "/v1/chat/completions", json=LONG) for _ in range(40)]
    found = [post.result() for post in posts]
    assert {answer.status_code for answer in found} == {200, 429}
    for answer in found:
        if answer.status_code == 429:
            assert answer.headers["retry-after"] == "1"
            assert answer.json()["error"]["code"] == "queue_full"
    assert len({answer.text for answer in found if answer.status_code == 429}) == 1
    assert len({json.dumps(answer.json()["choices"]) for answer in found if answer.status_code == 200}) == 1
    assert is_idle(server)


def test_a_thousand_clients_leave(server):
    """Before, while and after they are answered: in the queue or in a slot, with a stream or without."""
    dice = random.Random(3)
    kinds = [{**LONG, "stream": True}, LONG, {**LONG, "n": 3}, {**LONG, "n": 2, "logprobs": True, "top_logprobs": 1}]

    def leave(number):
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
    assert is_idle(server)
    assert server.http.post("/v1/chat/completions", json=LONG).status_code == 200
    assert server.process.poll() is None


def test_slow_readers_and_halves_keep_nobody_waiting(server):
    """Who reads a byte now and then, who reads nothing, who sends half of a request and stays."""
    whole, halves = request({**LONG, "stream": True}), []
    for sent in chain(repeat(whole, 8), repeat(whole[:40], 20), repeat(request(LONG, length=5000), 20)):
        connection = connect(server)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        connection.sendall(sent)
        halves.append(connection)
    end = time.monotonic() + 60
    while (found := server.http.post("/v1/chat/completions", json=LONG)).status_code == 429 and time.monotonic() < end:
        for connection in halves[:4]:
            connection.recv(1)
    assert found.status_code == 200
    for connection in halves:
        connection.close()
    assert is_idle(server)


def test_health_was_answered_all_the_while(server):
    """How fast is the benchmark's to say, on a machine that does nothing else: here it is printed."""
    end = time.monotonic() + 60
    while len(server.waits) < 20 and time.monotonic() < end:
        time.sleep(0.05)
    waits = sorted(server.waits)
    assert len(waits) >= 20
    median, worst = statistics.median(waits), waits[-1]
    told = f"median {1e3 * median:.1f} ms, 99% {1e3 * waits[len(waits) * 99 // 100]:.1f}, worst {1e3 * worst:.1f}"
    print(f"/health, asked {len(waits):,} times: {told}")
