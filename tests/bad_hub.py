"""A hub that misbehaves: the part of its HTTP interface that a download needs, with faults to order."""

import hashlib
import re
import socket
import struct
import sys
import threading
import time
from collections import defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class BadHub(ThreadingHTTPServer):
    """files: path in the data set `some/set`, or owner/name/path → content. faults: (method, path) → one a request.

    Faults: "500" and other statuses; of a GET also "reset" and "break" half-way through the body, "short" (less than
    HEAD has announced), "wrong" (other content of the same length), "drip" (slowly), "silence" half-way.
    """

    daemon_threads = True

    def __init__(self, files: dict[str, bytes]):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = files
        self.faults: dict[tuple[str, str], list[str]] = defaultdict(list)
        self.seen: list[tuple[str, str, str]] = []  # (method, path, its Range) of every request
        self.drip_seconds = 2.0
        threading.Thread(target=self.serve_forever, args=[0.05], daemon=True).start()

    def shutdown_request(self, request) -> None:
        """Without the polite goodbye that would make a break of every reset."""
        self.close_request(request)

    def handle_error(self, request, client_address) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):  # that a client goes away is no news
            super().handle_error(request, client_address)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def count(self, method: str, path: str = "") -> int:
        return sum(seen[0] == method and path in seen[1] for seen in self.seen)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: BadHub

    def do_HEAD(self):
        self.answer(head=True)

    def do_GET(self):
        self.answer(head=False)

    def answer(self, head: bool) -> None:
        path = re.sub(r"^/datasets/([^/]+/[^/]+)/resolve/[^/]+", r"\1", self.path).removeprefix("some/set/")
        asked = self.headers.get("Range", "")
        if path == self.path:  # what else a library asks of its hub
            self.send_error(404)
            return
        self.server.seen.append((self.command, path, asked))
        faults = self.server.faults[self.command, path]
        fault = faults.pop(0) if faults else ""
        content = self.server.files.get(path)
        if content is None or fault.isdigit():
            self.send_response(int(fault) if fault else 404)
            self.send_header("X-Repo-Commit", COMMIT)
            if fault == "429":
                self.send_header("Retry-After", "2")
            if not fault:
                self.send_header("X-Error-Code", "EntryNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        first = int(re.fullmatch(r"bytes=(\d+)-", asked)[1]) if asked else 0
        body = content[first:]
        if fault == "wrong":
            body = bytes(byte ^ 1 for byte in body)
        if fault == "short":
            body = body[: len(body) // 2]
        self.send_response(206 if asked else 200)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("Content-Length", str(len(body)))
        if asked:
            self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        if not head:
            self.send_body(body, fault)

    def send_body(self, body: bytes, fault: str) -> None:
        half = len(body) // 2
        if fault == "drip":
            for start in range(0, len(body), len(body) // 20 + 1):
                self.wfile.write(body[start : start + len(body) // 20 + 1])
                time.sleep(self.server.drip_seconds / 20)
        elif fault in ("reset", "break", "silence"):
            self.wfile.write(body[:half])
            self.wfile.flush()
            # Closing now is a break, with this option it is a reset.
            if fault == "reset":
                time.sleep(0.2)  # a reset overtakes what has been sent
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            if fault == "silence":
                time.sleep(5)
            self.close_connection = True
        else:
            self.wfile.write(body)

    def log_message(self, *arguments) -> None:
        pass
