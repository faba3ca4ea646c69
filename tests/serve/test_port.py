"""Connections that stall, over real sockets, and how a server ends; with a small application behind the port."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading

import pytest
import uvicorn
from conftest import ROOT

from nanochat.serve import port

HERE, LEFT = threading.Event(), threading.Event()


async def application(scope, receive, send):
    """Reads the body where the path says so, or waits for the end, then answers with much."""
    if scope["path"] == "/read":
        while (await receive()).get("more_body"):
            pass
    if scope["path"] == "/stay":
        await receive()
        HERE.set()
        await receive()
        LEFT.set()
        return
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"30000000")]})
    for _ in range(300):
        await send({"type": "http.response.body", "body": b"x" * 100_000, "more_body": True})
    await send({"type": "http.response.body"})


@pytest.fixture
def address(monkeypatch):
    """Where a server listens whose patience is short, in this process."""
    monkeypatch.setattr(port, "PATIENCE", 0.3)
    bound = port.listen("127.0.0.1", 0)
    address = bound.getsockname()
    options = {"http": port.Protocol, "ws": "none", "lifespan": "off", "log_level": "error"}
    server = uvicorn.Server(uvicorn.Config(application, timeout_graceful_shutdown=1, **options))
    thread = threading.Thread(target=lambda: server.run(sockets=[bound]))
    thread.start()
    while not server.started:
        threading.Event().wait(0.01)
    yield address
    server.should_exit = True
    thread.join()


def end_of(connection):
    """All that comes until the server ends the connection, however it does."""
    connection.settimeout(20)
    found = b""
    try:
        while part := connection.recv(1 << 20):
            found += part
    except ConnectionError:
        pass
    return found


@pytest.mark.parametrize("said", [b"", b"GE", b"GET / HTTP/1.1\r\nHost: localhost\r\n"])
def test_half_a_request_is_not_waited_for(address, said):
    with socket.create_connection(address) as connection:
        connection.sendall(said)
        assert end_of(connection) == b""


def test_a_body_beyond_the_answer_is_not_waited_for(address):
    with socket.create_connection(address) as connection:
        connection.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nhalf")
        found = end_of(connection)
        assert found.startswith(b"HTTP/1.1 200 OK")
        assert len(found) > 30_000_000


@pytest.mark.parametrize("more", [b"", b"G", b"\r\n"])
def test_who_leaves_is_missed_whatever_else_it_sent(address, more):
    HERE.clear(), LEFT.clear()
    with socket.create_connection(address) as connection:
        connection.sendall(b"GET /stay HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert HERE.wait(20)
        connection.sendall(more)
        assert not LEFT.wait(0.2)
    assert LEFT.wait(20)


def test_who_sends_on_and_on_is_left(address):
    HERE.clear(), LEFT.clear()
    with socket.create_connection(address) as connection:
        connection.sendall(b"GET /stay HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert HERE.wait(20)
        with contextlib.suppress(ConnectionError):
            connection.sendall(b"G" * (4 * port.AHEAD))
        assert end_of(connection) == b""
    assert LEFT.wait(20)


def test_who_takes_nothing_is_left(address):
    with socket.create_connection(address) as connection, socket.create_connection(address) as other:
        for one in (connection, other):
            one.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert len(end_of(other)) > 30_000_000  # who reads gets all of it
        threading.Event().wait(1.0)
        assert len(end_of(connection)) < 30_000_000


def test_an_address_that_cannot_be_had(address):
    for host, number in [address, ("203.0.113.7", 0), ("no such name.example", 0)]:
        with pytest.raises(ValueError, match=re.escape(f"--host={host} --port={number}: ")):
            port.listen(host, number)


SERVER = """
import asyncio, sys
from types import SimpleNamespace
from nanochat.serve import port
from nanochat.serve.gate import Fault
pool = SimpleNamespace(closing="", workers=[SimpleNamespace(refuse=lambda fault: over.set())])
over = asyncio.Event()

async def application(scope, receive, send):
    if scope["type"] == "lifespan":
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        print("closed in good order", flush=True)
        return await send({"type": "lifespan.shutdown.complete"})
    answer = pool.closing.encode() or b"open"
    if scope["path"] == "/wait":
        await asyncio.sleep(1.5)
        answer = b"done"
    if scope["path"] == "/forever":
        await over.wait()
        answer = b"refused"
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": answer})

port.keep_port(application, port.listen("127.0.0.1", 0), pool, float(sys.argv[1]), "test")
"""


def begin(patience):
    command = [sys.executable, "-c", SERVER, str(patience)]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    greeting = process.stdout.readline()
    return process, int(re.match(r"server: http://127\.0\.0\.1:(\d+)/ \(test\)\n", greeting)[1])


def ask(number, path):
    connection = socket.create_connection(("127.0.0.1", number))
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    return connection


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_what_is_begun_is_ended(sent):
    process, number = begin(30)
    waiting = ask(number, "/wait")
    assert b"open" in end_of(ask(number, "/"))
    process.send_signal(sent)
    while b"shutting down" not in end_of(ask(number, "/")):  # new ones are answered meanwhile
        pass
    assert b"done" in end_of(waiting)
    assert process.wait(20) == 0
    assert process.stdout.read().endswith("closed in good order\n")


def test_but_not_for_ever():
    process, number = begin(0.5)
    waiting = ask(number, "/forever")
    assert b"open" in end_of(ask(number, "/"))
    process.send_signal(signal.SIGTERM)
    assert b"refused" in end_of(waiting)
    assert process.wait(20) == 0


def test_a_second_signal_ends_it_at_once():
    process, number = begin(1000)
    stalled = ask(number, "/forever")
    assert b"open" in end_of(ask(number, "/"))
    process.send_signal(signal.SIGTERM)
    assert "once more ends it at once" in process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == -signal.SIGTERM
    stalled.close()
