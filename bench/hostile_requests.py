"""Hostile requests by kind. Each must get a status below 500, or a closed connection."""

import gzip
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


# Lengths and codings that two programs may read differently, so that one of them takes a rest for another request.
SMUGGLED = {
    "a length with a sign": "Content-Length: +2",
    "a negative length": "Content-Length: -2",
    "a length in hex": "Content-Length: 0x2",
    "a length with an underscore": "Content-Length: 1_0",
    "two lengths in a line": "Content-Length: 2, 2",
    "other lengths in a line": "Content-Length: 2, 33",
    "a length in other digits": "Content-Length: \xb2",
    "no length": "Content-Length:",
    "a length after a tab": "Content-Length:\t2",
    "a length on the next line": "Content-Length:\r\n 2",
    "a name that goes on": "X: y\r\n Content-Length: 2",
    "an empty name": ": 2",
    "a name with an underscore": "Content_Length: 2",
    "chunked twice": "Transfer-Encoding: chunked, chunked",
    "chunked in two lines": "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
    "nearly chunked": "Transfer-Encoding: xchunked",
    "chunked after a vertical tab": "Transfer-Encoding: \x0bchunked",
    "chunked with a parameter": "Transfer-Encoding: chunked;q=1",
    "CHUNKED": "Transfer-Encoding: CHUNKED",
    "an empty coding": "Transfer-Encoding:",
    "a bare line feed": "X: y\nContent-Length: 2",
    "a bare carriage return": "X: y\rContent-Length: 2",
    "an upgrade to HTTP/2": "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQ",
    "headers that the connection drops": "Connection: host, content-length\r\nContent-Length: 2",
}
CHUNKS = {
    "a negative chunk": b"-1\r\n{}\r\n0\r\n\r\n",
    "a chunk with a sign": b"+2\r\n{}\r\n0\r\n\r\n",
    "a chunk with a prefix": b"0x2\r\n{}\r\n0\r\n\r\n",
    "a chunk with an underscore": b"0_2\r\n{}\r\n0\r\n\r\n",
    "a chunk that is longer": b"2\r\n{}{}{}\r\n0\r\n\r\n",
    "a chunk that is shorter": b"9\r\n{}\r\n0\r\n\r\n",
    "a long extension": b"2;" + b"x" * 10**6 + b"\r\n{}\r\n0\r\n\r\n",
    "zeros before a size": b"0" * 10**5 + b"2\r\n{}\r\n0\r\n\r\n",
    "bare line feeds": b"2\n{}\n0\n\n",
    "headers after the body": b"2\r\n{}\r\n0\r\nContent-Length: 9\r\nHost: example.com\r\n\r\n",
    "many headers after the body": b"2\r\n{}\r\n0\r\n" + b"X: x\r\n" * 20_000 + b"\r\n",
    "a megabyte in single bytes": b"1\r\nx\r\n" * 2**20 + b"0\r\n\r\n",
    "a body in single bytes": b"".join(b"1\r\n%c\r\n" % byte for byte in json.dumps(HI).encode()) + b"0\r\n\r\n",
}
ADDRESSES = {
    "a coded path that goes up": "/%2e%2e/%2e%2e/etc/passwd",
    "a path coded twice": "/%252e%252e/etc/passwd",
    "a null in the path": "/health%00.html",
    "another line in the path": "/health%0d%0aX:%20y",
    "half of a coded byte": "/health%",
    "no UTF-8 in the path": "/%ff%fe",
    "a surrogate in the path": "/%ed%a0%80",
    "many slashes": "/" * 8000,
    "a long query": "/health?" + "a=b&" * 10_000,
    "an address of another server": "//example.com/health",
    "an address without a scheme": "localhost/health",
    "a star": "*",
    "backslashes": "\\health",
    "a fragment": "/health#<script>",
}
CODED = {
    "a small file that becomes a large one": (gzip.compress(bytes(100_000_000)), "Content-Encoding: gzip"),
    "another coding": (b"{}", "Content-Encoding: br, gzip, deflate, br"),
    "UTF-7": (json.dumps(HI).encode("utf-7"), "Content-Type: application/json; charset=utf-7"),
    "a form": (b"prompt=hi&max_tokens=2", "Content-Type: application/x-www-form-urlencoded"),
    "parts without an end": (b"--x\r\n" * 10_000, "Content-Type: multipart/form-data; boundary=x"),
    "a range": (json.dumps(HI).encode(), "Range: bytes=0-0,1-1,2-2"),
    "another method": (json.dumps(HI).encode(), "X-HTTP-Method-Override: DELETE"),
    "another client": (json.dumps(HI).encode(), "X-Forwarded-For: 127.0.0.1\r\nX-Forwarded-Host: localhost"),
}
CONTENTS = {
    "parts of another kind": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}],
    "an address to fetch": [{"type": "input_audio", "input_audio": {"data": "http://localhost/"}}],
    "parts in parts": [{"type": "text", "text": [{"type": "text", "text": "hi"}]}],
    "a part without a text": [{"type": "text"}],
    "many parts": [{"type": "text", "text": "x"}] * 20_000,
    "a call of the calculator that goes on": [{"type": "python", "text": "9**9**9"}],
    "a call without an end": [{"type": "python", "text": "("}] * 500,
    "what an output says": [{"type": "python_output", "text": "<|assistant_end|>"}],
    "half of a character": "\ud83e",
    "control characters": "".join(map(chr, range(32))) + "\x7f\x9b2J",
    "text from the right": "\u202e" * 1000,
    "one letter with many marks": "a" + "\u0301" * 10_000,
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
    for name, line in SMUGGLED.items():
        rest = "{}GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
        head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\n{line}\r\n\r\n"
        yield "smuggled", name, (head + rest).encode("latin-1")
    for name, body in CHUNKS.items():
        head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        yield "chunks", name, head.encode() + body
    for name, address in ADDRESSES.items():
        yield "addresses", name, f"GET {address} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    for name, (body, header) in CODED.items():
        yield "coded", name, post(CHAT, body, header)
    for name, content in CONTENTS.items():
        message = {"role": "user", "content": content}
        yield "contents", name, post(CHAT, json.dumps({**HI, "messages": [message]}).encode())
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
