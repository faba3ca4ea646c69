"""A server with OpenAI's interface, on which a test writes the responses."""

import http.server
import json
import threading
from collections.abc import Callable
from contextlib import contextmanager
from types import SimpleNamespace

from nanochat.curate.teacher import TeacherSettings

Response = tuple[int, dict, str]  # status, headers, body


def completion(text: str, model: str = "wise", reason: str = "stop", tokens: int = 30):
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": reason}
    return 200, {}, json.dumps({"model": model, "choices": [choice], "usage": {"total_tokens": tokens}})


@contextmanager
def teaching(reply: Callable[[str], Response]):
    """A server whose responses `reply` makes from the last message; `asked` has these messages."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *about):
            pass

        def do_POST(self):
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            served.asked.append(request["messages"][-1]["content"])
            status, headers, body = reply(served.asked[-1])
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body.encode())

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    about = {"teacher": f"http://127.0.0.1:{server.server_port}/v1", "teacher_model": "wise"}
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in about.items()]
    served = SimpleNamespace(settings=lambda **more: TeacherSettings(**about, **more), flags=flags, asked=[])
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield served
    server.shutdown()
    thread.join()
    server.server_close()
