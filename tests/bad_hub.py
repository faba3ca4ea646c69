"""A local hub: the part of its HTTP interface that a download needs."""

import hashlib
import json
import re
from collections.abc import Callable

from local_server import Handler, LocalServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class BadHub(LocalServer):
    """files: path in the data set or model `some/set`, or owner/name/path → content. Any other file is a 404."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.requests = 0
        self.listed: list[str] = []  # revision of each listing
        self.starts: list[int] = []  # first byte of each download
        self.cuts: list[int] = []  # bytes after which the next downloads break off
        self.halfway: Callable[[], None] | None = None  # called when half of a download was sent
        self.has_xet = False  # files come from Xet's storage, which calls `halfway` and answers nothing
        self.etag = ""  # in place of the content's hash
        self.gated = False  # every file needs a token
        self.hangs_up = False  # when it is asked for a listing
        self.retries: list[str] = []  # waiting times that the next answers ask for
        super().__init__(Answers)


class Answers(Handler):
    protocol_version = "HTTP/1.1"
    server: BadHub

    def do_HEAD(self) -> None:
        self.answer(head=True)

    def do_GET(self) -> None:
        self.answer(head=False)

    def answer(self, head: bool) -> None:
        self.server.requests += 1
        if self.server.retries:
            self.respond(429, {"Retry-After": self.server.retries.pop(), "Content-Length": "0"})
            return
        if self.server.gated:
            self.respond(401, {"X-Error-Code": "GatedRepo", "Content-Length": "0"})
            return
        if self.path == "/xet-token":
            facts = {"Cas-Url": f"{self.server.address}/xet", "Access-Token": "one", "Token-Expiration": str(1 << 40)}
            self.respond(200, {f"X-Xet-{name}": fact for name, fact in facts.items()} | {"Content-Length": "0"})
            return
        if self.path.startswith("/xet/"):
            if self.server.halfway:
                self.server.halfway()
            self.close_connection = True
            return
        path = re.sub(r"^(?:/datasets)?/([^/]+/[^/]+)/resolve/[^/]+", r"\1", self.path).removeprefix("some/set/")
        content = self.server.files.get(path)
        if tree := re.match(r"/api/(?:datasets|models)/some/set/tree/([^/?]+)", self.path):
            self.server.listed.append(tree[1])
            if self.server.hangs_up:
                self.close_connection = True
                return
            listed = [{"type": "file", "path": name, "size": 1, "oid": "0"} for name in self.server.files]
            content = json.dumps(listed).encode()
        start = int(self.headers.get("Range", "bytes=0-")[6:-1])
        headers = {"X-Repo-Commit": COMMIT}
        if content is None:
            headers["X-Error-Code"] = "EntryNotFound"
        status, content = 200 if content else 404, content or b""
        if self.server.has_xet:
            headers |= {"X-Xet-Hash": "0" * 64, "X-Xet-Refresh-Route": f"{self.server.address}/xet-token"}
        headers["ETag"] = f'"{self.server.etag or hashlib.sha256(content).hexdigest()}"'
        headers["Content-Length"] = str(len(content) - start)
        if start:
            status, headers["Content-Range"] = 206, f"bytes {start}-{len(content) - 1}/{len(content)}"
        self.respond(status, headers)
        if not head:
            self.server.starts.append(start)
            end = len(content)
            if self.server.cuts:
                end = start + self.server.cuts.pop(0)
                self.close_connection = True
            middle = (start + end) // 2
            self.wfile.write(content[start:middle])
            if self.server.halfway and content:  # not of what is not there
                self.server.halfway()
            self.wfile.write(content[middle:end])
