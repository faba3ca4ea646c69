"""A server with OpenAI's interface, on which a test writes the responses."""

import json
from collections.abc import Callable
from contextlib import contextmanager
from types import SimpleNamespace

from local_server import Handler, LocalServer

from tracks.chatdata.teacher import TeacherSettings

Response = tuple[int, dict, str]  # status, headers, body


def completion(text: str, model: str = "wise", reason: str = "stop", tokens: int = 30):
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": reason}
    return 200, {}, json.dumps({"model": model, "choices": [choice], "usage": {"total_tokens": tokens}})


@contextmanager
def teaching(reply: Callable[[str], Response]):
    """A server whose responses `reply` makes from the last message; `asked` has these messages."""
    asked = []

    class Teaching(Handler):
        def do_POST(self):
            asked.append(self.read_json()["messages"][-1]["content"])
            self.respond(*reply(asked[-1]))

    with LocalServer(Teaching) as server:
        about = {"teacher": f"{server.address}/v1", "teacher_model": "wise"}
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in about.items()]
        yield SimpleNamespace(settings=lambda **more: TeacherSettings(**about, **more), flags=flags, asked=asked)
