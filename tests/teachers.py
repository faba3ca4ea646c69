"""A server with OpenAI's interface, on which a test writes the responses."""

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace

from nanochat.curate.teacher import TeacherSettings


def completion(text: str, model: str = "wise", reason: str = "stop", tokens: int = 30) -> tuple[int, dict, str]:
    """Return status, headers and body of an answer."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": reason}
    return 200, {}, json.dumps({"model": model, "choices": [choice], "usage": {"total_tokens": tokens}})


@contextmanager
def teaching(reply: Callable[[str], tuple[int, dict, str]]) -> Iterator[SimpleNamespace]:
    """A server at `url`, whose responses `reply` makes from the last message. asked: these messages."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *about):
            pass

        def do_POST(self):
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            text = request["messages"][-1]["content"]
            served.asked.append(text)
            status, headers, body = reply(text)
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body.encode())

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    url = f"http://127.0.0.1:{server.server_port}/v1"
    flags = [f"--teacher={url}", "--teacher-model=wise"]
    served = SimpleNamespace(url=url, flags=flags, asked=[])
    served.settings = lambda **more: TeacherSettings(teacher=url, teacher_model="wise", **more)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield served
    server.shutdown()
    thread.join()
    server.server_close()
