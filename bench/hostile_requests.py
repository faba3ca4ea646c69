"""Hostile requests by kind. Each must get a status below 500, or a closed connection."""

import itertools
import json
import socket
from contextlib import suppress

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
HI = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
DEEP = 40_000
# Values that a field may not expect.
VALUES = json.loads(
    '[0, -1, 1.5, 1e308, 1e-45, -1e-45, 1000000000000000000000000000000, true, false, null, "", "x", "1", "\\u0000", "\\ud800",'
    '[], [[]], {}, {"a": 1}, ["x"], [1], [-1], [1000000000], [null], [{}], [[1], ["x"]], [{"role": "user", "content": 1}]]'
)
VALUES += ["x" * 9000]
FIELDS = """model temperature top_p top_k seed n stop stream stream_options messages max_tokens max_completion_tokens logprobs
    top_logprobs prompt echo tools""".split()
SPECIAL = "<|bos|> <|user_start|> <|user_end|> <|assistant_start|> <|assistant_end|> <|python_start|> <|output_start|>".split()
RAW = {  # a head without the end, which `raw` adds
    "nothing": "",
    "no path": "GET\r\n",
    "another version": "GET / HTTP/9.9\r\nHost: localhost\r\n",
    "no host": "GET /health HTTP/1.1\r\n",
    "two hosts": "GET /health HTTP/1.1\r\nHost: localhost\r\nHost: example.com\r\n",
    "another host": "GET /health HTTP/1.1\r\nHost: example.com\r\n",
    "a host with a port and more": "GET /health HTTP/1.1\r\nHost: localhost:1@example.com\r\n",
    "a header with a blank": "GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length : 3\r\n",
    "a null in a header": "GET /health HTTP/1.1\r\nHost: localhost\r\nX: \0\r\n",
    "a long header": f"GET /health HTTP/1.1\r\nHost: localhost\r\nX: {'x' * 10**6}\r\n",
    "many headers": "GET /health HTTP/1.1\r\nHost: localhost\r\n" + "X: x\r\n" * 20_000,
    "a long path": f"GET /{'x' * 10**6} HTTP/1.1\r\nHost: localhost\r\n",
    "a path that goes up": "GET /../../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n",
    "a whole address": "GET http://example.com/health HTTP/1.1\r\nHost: localhost\r\n",
    "a websocket": "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n",
    "two lengths": f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nContent-Length: 3\r\n",
    "a huge length": f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {10**30}\r\n",
    "an unknown coding": f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n",
    "no chunk": f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "a huge chunk": f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n{'f' * 30}\r\n",
    "expecting": f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n{{}}",
    "another origin": "GET /health HTTP/1.1\r\nHost: localhost\r\nOrigin: http://example.com\r\n",
}
BODIES = {
    "nothing": b"",
    "no JSON": b"{",
    "a list": b"[]",
    "a number": b"1",
    "NaN": b'{"temperature": NaN}',
    "no UTF-8": b'{"model": "\xff\xfe"}',
    "another coding": json.dumps(HI).encode("utf-16"),
    "a mark before": b"\xef\xbb\xbf" + json.dumps(HI).encode(),
    "deep lists": b"[" * DEEP,
    "deep objects": b'{"a":' * DEEP,
    "a deep field": b'{"messages": ' + b"[" * DEEP + b"]" * DEEP + b"}",
    "a name twice": b'{"n": 1, "n": 100000}',
    "a long number": b'{"seed": ' + b"9" * 5000 + b"}",
    "a long role": json.dumps({"messages": [{"role": "x" * 900_000, "content": "hi"}]}).encode(),
    "a long name": json.dumps({"x" * 900_000: 1, **HI}).encode(),
    "many messages": json.dumps({**HI, "messages": [{"role": "user", "content": "x"}] * 20_000}).encode(),
    "a long text": json.dumps({**HI, "messages": [{"role": "user", "content": "x" * 900_000}]}).encode(),
    "two megabytes": b" " * 2_000_000,
}


def post(path: str, body: bytes, *headers: str):
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def requests():
    """Yield (kind, name, bytes) of all requests."""
    for name, head in RAW.items():
        yield "raw", name, f"{head}\r\n".encode("latin-1")
    for path, (name, body) in itertools.product((CHAT, TEXT), BODIES.items()):
        yield "bodies", f"{path}: {name}", post(path, body)
    for field, (number, value) in itertools.product(FIELDS, enumerate(VALUES)):
        body = {"prompt": "hi", "max_tokens": 2} if field in ("prompt", "echo") else HI
        path = TEXT if "prompt" in body else CHAT
        yield "fields", f"{field}, value {number}", post(path, json.dumps(body | {field: value}).encode())
    for token, role in itertools.product(SPECIAL, ("user", "system", "assistant")):
        message = [{"role": role, "content": token}, {"role": "user", "content": token}]
        yield "special tokens", f"{token} as {role}", post(CHAT, json.dumps({**HI, "messages": message}).encode())
    for method, path in itertools.product(
        "GET HEAD PUT DELETE PATCH OPTIONS TRACE".split(), ("/", "/health", CHAT, "/v1", "//", "/x")
    ):
        yield "methods", f"{method} {path}", f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


def status_of(address: tuple[str, int], data: bytes, seconds: float = 3.0):
    """Send a request and return the answer's status; 0: the server closed the connection, or waits for more."""
    with socket.create_connection(address, timeout=seconds) as connection, suppress(TimeoutError, ConnectionError):
        connection.sendall(data)
        return int(connection.recv(65536)[9:12] or 0)
    return 0
