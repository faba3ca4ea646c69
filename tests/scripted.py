"""An HTTP server that speaks as ours does, but says what a test wants said: what no small model says on demand."""

import json
import threading

from local_server import Handler, LocalServer

from nanochat.serve.app import chat_page

CUT = "cut"  # as a step: the connection is closed, in the middle of it all


class Scripted(LocalServer):
    """answers: the last message's text → steps, or several lists of steps, one for each time it is asked.

    A step is a text, a delta, an Event to wait for, CUT, or (status, headers, error), which then stands alone.
    about: further fields of each model. asked: the requests, as JSON. gone: set once a reader has gone away.
    """

    def __init__(self, answers: dict[str, list], models: list[str] | None = None, key="", about=()) -> None:
        self.answers, self.models, self.key, self.about = answers, models or ["tiny"], key, dict(about)
        self.asked, self.gone = [], threading.Event()
        super().__init__(Script)

    def steps(self, text: str):
        known = self.answers.get(text, [f"You said: {text}"])
        if not isinstance(known[0], list):
            return known
        return known.pop(0) if len(known) > 1 else known[0]


class Script(Handler):
    server: Scripted

    def do_GET(self) -> None:
        if self.path == "/":
            page = chat_page()
            self.respond(200, page.headers, page.body.decode())
        elif self._allowed():
            models = [{"id": name, "object": "model", **self.server.about} for name in self.server.models]
            self.respond(200, {}, json.dumps({"object": "list", "data": models}))

    def do_POST(self) -> None:
        asked = self.read_json()
        if not self._allowed():
            return
        self.server.asked.append(asked)
        steps = self.server.steps(asked["messages"][-1]["content"])
        if isinstance(steps[0], tuple):
            status, headers, error = steps[0]
            self.respond(status, headers, json.dumps({"error": error}))
            return
        self.respond(200, {"content-type": "text/event-stream"})
        try:
            self._stream(steps)
        except (BrokenPipeError, ConnectionResetError):
            self.server.gone.set()

    def _stream(self, steps: list) -> None:
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

    def _delta(self, delta: dict, reason: str | None = None) -> None:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        chunk = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [choice]}
        self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")

    def _allowed(self):
        given = (self.headers["Authorization"] or "").encode("latin-1")  # the bytes, which are UTF-8
        if self.server.key and given != f"Bearer {self.server.key}".encode():
            self.respond(401, {}, json.dumps({"error": {"message": "wrong key"}}))
            return False
        return True
