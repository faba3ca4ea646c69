"""An HTTP server that speaks as ours does, but says what a test wants said: what no small model says on demand."""

import http.server
import json
import threading
from typing import Any

from nanochat.serve.app import chat_page

CUT = "cut"  # as a step: the connection is closed, in the middle of it all


class Scripted:
    """answers: the last message's text → steps, or several lists of steps, one for each time it is asked.

    A step is a text, a delta, an Event to wait for, CUT, or (status, headers, error), which then stands alone.
    about: further fields of each model. asked: the requests, as JSON. gone: set once a reader has gone away.
    """

    def __init__(self, answers: dict[str, list], models: list[str] | None = None, key="", port=0, about=()):
        self.answers, self.models, self.key, self.about = answers, models or ["tiny"], key, dict(about)
        self.asked, self.gone = [], threading.Event()
        handler = type("Handler", (_Handler,), {"script": self})
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", port), handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}/"
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def steps(self, text: str):
        known = self.answers.get(text, [f"You said: {text}"])
        if not isinstance(known[0], list):
            return known
        return known.pop(0) if len(known) > 1 else known[0]

    def close(self):
        self.server.shutdown()
        self._thread.join()
        self.server.server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
    script: Scripted

    def log_message(self, *about: Any):
        pass

    def do_GET(self):
        if self.path == "/":
            page = chat_page()
            self._send(200, page.headers, page.body.decode())
        elif self._allowed():
            models = [{"id": name, "object": "model", **self.script.about} for name in self.script.models]
            self._send(200, {}, json.dumps({"object": "list", "data": models}))

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self._allowed():
            return
        self.script.asked.append(asked)
        steps = self.script.steps(asked["messages"][-1]["content"])
        if isinstance(steps[0], tuple):
            status, headers, error = steps[0]
            self._send(status, headers, json.dumps({"error": error}))
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        try:
            self._stream(steps)
        except (BrokenPipeError, ConnectionResetError):
            self.script.gone.set()

    def _stream(self, steps: list):
        self._delta({"role": "assistant", "content": ""})
        for step in steps:
            if step == CUT:
                return
            if isinstance(step, threading.Event):
                while not step.wait(0.01):  # a comment, as servers send them to see who is still there
                    self.wfile.write(b": waiting\n\n")
            else:
                self._delta({"content": step} if isinstance(step, str) else step)
        self._delta({}, "stop")
        self.wfile.write(b"data: [DONE]\n\n")

    def _delta(self, delta: dict, reason: str | None = None):
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        chunk = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [choice]}
        self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")

    def _allowed(self):
        given = (self.headers["Authorization"] or "").encode("latin-1")  # the bytes, which are UTF-8
        if self.script.key and given != f"Bearer {self.script.key}".encode():
            self._send(401, {}, json.dumps({"error": {"message": "wrong key"}}))
            return False
        return True

    def _send(self, status: int, headers: dict[str, str], text: str):
        self.send_response(status)
        for name, value in {"content-type": "application/json", **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text.encode())
