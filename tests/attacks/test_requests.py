"""The server against hostile requests and silent connections."""

import socket
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import FILES

from bench.hostile_requests import CHAT, HI, requests, status_of
from nanochat.serve.app import HEAD_BYTES, listen


def test_no_request_is_an_error_of_the_server(server) -> None:
    attacks = list(requests())
    with ThreadPoolExecutor(8) as pool:
        statuses = list(pool.map(lambda attack: status_of(server.address, attack[2]), attacks))
    wrong = [(*attack[:2], status) for attack, status in zip(attacks, statuses, strict=True) if status >= 500]
    assert not wrong
    counts = Counter(statuses)
    assert len(attacks) >= 650
    assert counts[400] > 200
    assert counts[200] > 50
    assert server.becomes_idle()


@pytest.mark.parametrize("setting", [{"temperature": 1e-45}, {"temperature": 1e-38}, {"top_p": 1e-46}])
def test_next_to_nothing_is_greedy(setting, server) -> None:
    body = {"prompt": "What", "max_tokens": 20}
    greedy = server.http.post("/v1/completions", json=body | {"temperature": 0}).json()
    assert server.http.post("/v1/completions", json=body | setting).json()["choices"] == greedy["choices"]


PREFLIGHT = "Origin: http://example.com\r\nAccess-Control-Request-Method: POST"


@pytest.mark.parametrize(
    ("method", "host", "more"),
    [("POST", "localhost", ""), ("POST", "example.com", ""), ("OPTIONS", "localhost", PREFLIGHT), ("GET", "", "X: y")],
    ids=["usual", "another host", "a preflight", "no host"],
)
def test_a_request_with_two_lengths_is_the_last_one(method, host, more, server) -> None:
    """A proxy that goes by the other length would take the rest for another client's request."""
    rest = b"0\r\n\r\nGET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    head = f"{method} {CHAT} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(rest)}\r\nTransfer-Encoding: chunked\r\n"
    head += f"{more}\r\n\r\n" if more else "\r\n"
    with socket.create_connection(server.address, timeout=30) as connection:
        connection.sendall(head.encode() + rest)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1") == 1


def test_an_error_quotes_little(server) -> None:
    body = {"messages": [{"role": "x" * 900_000, "content": "hi"}]}
    answer = server.http.post(CHAT, json=body)
    assert (answer.status_code, len(answer.content) < 2000) == (400, True)


@pytest.mark.parametrize("count", [1000, 20_000])
def test_headers_without_end_are_refused_and_many_are_not(count, server) -> None:
    head = "GET /health HTTP/1.1\r\nHost: localhost\r\n" + "X: x\r\n" * count + "\r\n"
    assert status_of(server.address, head.encode()) == (200 if len(head) < HEAD_BYTES else 400)


def test_silent_connections_keep_nobody_out(server) -> None:
    """More than the server may have open files: the oldest ones are closed, and the log stays short."""
    lines = len(server.log)
    silent = [socket.create_connection(server.address, timeout=30) for _ in range(FILES)]
    try:
        assert server.http.get("/health").status_code == 200
        assert server.http.post(CHAT, json=HI).status_code == 200
        assert silent[0].recv(1) == b""  # closed
        silent[-1].setblocking(False)
        with pytest.raises(BlockingIOError):
            silent[-1].recv(1)
    finally:
        for connection in silent:
            connection.close()
    for _ in range(20):
        head = "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"
        assert status_of(server.address, head.encode()) == 200
    assert len(server.log) - lines < 10


def test_packets_are_not_held_back() -> None:
    """Else each answer on a kept connection would wait for the client's confirmation of its head, some 40 ms."""
    with listen("127.0.0.1", 0) as bound, socket.create_connection(bound.getsockname()):
        accepted, _ = bound.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
