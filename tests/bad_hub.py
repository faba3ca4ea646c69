"""A local hub: the part of its HTTP interface that a download needs."""

import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class BadHub(ThreadingHTTPServer):
    """files: path in the data set `some/set`, or owner/name/path → content. Any other file is a 404."""

    daemon_threads = True

    def __init__(self, files: dict[str, bytes]):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = files
        self.requests = 0
        self.starts: list[int] = []  # first byte of each download
        self.cuts: list[int] = []  # bytes after which the next downloads break off
        self.etag = ""  # in place of the content's hash
        self.gated = False  # every file needs a token
        self.retries: list[str] = []  # waiting times that the next answers ask for
        threading.Thread(target=self.serve_forever, args=[0.05], daemon=True).start()

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: BadHub

    def do_HEAD(self):
        self.answer(head=True)

    def do_GET(self):
        self.answer(head=False)

    def answer(self, head: bool):
        self.server.requests += 1
        if self.server.retries or self.server.gated:
            self.send_response(429 if self.server.retries else 401)
            self.send_header("Retry-After", self.server.retries.pop() if self.server.retries else "0")
            self.send_header("X-Error-Code", "GatedRepo" if self.server.gated else "")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        path = re.sub(r"^/datasets/([^/]+/[^/]+)/resolve/[^/]+", r"\1", self.path).removeprefix("some/set/")
        content = self.server.files.get(path)
        if self.path.startswith("/api/datasets/some/set/tree/"):
            listed = [{"type": "file", "path": name, "size": 1, "oid": "0"} for name in self.server.files]
            content = json.dumps(listed).encode()
        start = int(self.headers.get("Range", "bytes=0-")[6:-1])
        self.send_response((206 if start else 200) if content else 404)
        self.send_header("X-Repo-Commit", COMMIT)
        if content is None:
            self.send_header("X-Error-Code", "EntryNotFound")
        content = content or b""
        self.send_header("ETag", f'"{self.server.etag or hashlib.sha256(content).hexdigest()}"')
        self.send_header("Content-Length", str(len(content) - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        if not head:
            self.server.starts.append(start)
            end = len(content)
            if self.server.cuts:
                end = start + self.server.cuts.pop(0)
                self.close_connection = True
            self.wfile.write(content[start:end])

    def log_message(self, *arguments):
        pass
