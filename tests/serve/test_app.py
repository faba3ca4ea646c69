"""The server as clients meet it: access and limits in this process, OpenAI's client and plain HTTP at a real one."""

import asyncio
import ctypes
import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import httpx
import openai
import pytest
import torch
from conftest import each_row
from engines import TOKENIZER, model_of, text_of
from starlette.testclient import TestClient

from bench.served import CONTEXT
from nanochat.engine import Engine
from nanochat.runtime import Runtime
from nanochat.serve import app as serve_app
from nanochat.serve.app import HEADERS, Service, application, listen
from nanochat.serve.requests import ServedModel, parse_chat, parse_completion
from nanochat.serve.worker import Worker
from nanochat.settings import ModelChoice

HI = [{"role": "system", "content": "be brief"}, {"role": "user", "content": [{"type": "text", "text": "hi"}]}]
MODEL = "nanochat-mine-sft"
SERVICE = Service(ServedModel(MODEL, TOKENIZER, 64), [], 0)


# Threads that allocate, and what glibc says of its heaps.
HEAPS = """
import ctypes, sys, threading
from nanochat.serve.app import share_one_heap
if sys.argv[1] == "one":
    share_one_heap()
library = ctypes.CDLL(None)
wait = threading.Barrier(8)
def work():
    wait.wait()
    for _ in range(1000):
        library.malloc(1000)
threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
library.malloc_stats()
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_stats"), reason="glibc alone has several heaps")
def test_threads_share_a_heap() -> None:
    """What a thread gives back can be used by the others, and by the system."""

    def heaps(how: str) -> int:
        command = [sys.executable, "-c", HEAPS, how]
        return subprocess.run(command, check=True, capture_output=True, text=True).stderr.count("Arena")

    assert heaps("one") < heaps("several")
    assert heaps("one") == 1


def test_engines_begin_with_one_heap(monkeypatch) -> None:
    began = []
    monkeypatch.setattr(serve_app, "share_one_heap", lambda: began.append("one heap"))
    monkeypatch.setattr(serve_app, "load_chosen", lambda *_: sys.exit("loaded"))
    with pytest.raises(SystemExit, match="loaded"):
        serve_app.open_engines(ModelChoice(), Runtime(torch.device("cpu"), torch.float32, "sdpa"), 1)
    assert began == ["one heap"]


def ask(path="/v1/models", method="GET", content=None, headers=(), host="127.0.0.1", key=""):
    """Return the response of an application in this process that has no engine."""

    async def request():
        transport = httpx.ASGITransport(application(SERVICE, host, key, ["good.example"], ["https://good.example"]))
        async with httpx.AsyncClient(transport=transport) as client:
            lines = {"host": "localhost:8000", **dict(headers)}
            return await client.request(method, f"http://server{path}", headers=lines, content=content)

    return asyncio.run(request())


# Host: of the request, the server's address, status. The key, which a server on 0.0.0.0 needs, protects it.
HOSTS = """
LOCALHOST:8000 127.0.0.1 200
[::1]:8000 127.0.0.1 200
[::1]:8000 ::1 200
192.168.1.5:8000 192.168.1.5 200
192.168.1.6:8000 192.168.1.5 400
evil.example:8000 127.0.0.1 400
localhost@evil.example 127.0.0.1 400
 127.0.0.1 400
good.example:80 127.0.0.1 200
192.168.1.6:8000 0.0.0.0 200
"""


@each_row("host address status", HOSTS, " ")
def test_the_server_answers_to_its_own_names_only(host, address, status) -> None:
    assert ask(headers={"host": host}, host=address).status_code == int(status)


def test_pages_of_other_sites_may_not_use_the_server_unless_they_are_allowed() -> None:
    for case in ("http://localhost:8000 200", "http://localhost:8001 403", "null 403", " 403"):
        origin, status = case.split(" ")
        found = ask(headers={"origin": origin})
        assert found.status_code == int(status)
        assert "access-control-allow-origin" not in found.headers
    page = {"origin": "https://good.example"}
    found = ask(headers=page)
    assert (found.status_code, found.headers["access-control-allow-origin"]) == (200, page["origin"])
    wish = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,content-type"}
    before = ask("/v1/completions", "OPTIONS", headers=page | wish, key="secret")  # a browser asks without the key
    assert (before.status_code, before.headers["access-control-allow-origin"]) == (200, page["origin"])
    assert ask(headers=page, key="secret").status_code == 401


@pytest.mark.parametrize("given", ["", "Bearer", "Bearer schlüssell", "Bearer schlüssel"])
def test_keys(given) -> None:
    found = ask(key="schlüssel", headers={"authorization": given.encode()} if given else {})
    assert found.status_code == (200 if given == "Bearer schlüssel" else 401)
    if found.status_code == 401:
        assert found.json()["error"]["code"] == "invalid_api_key"
        assert found.headers["www-authenticate"] == "Bearer"
        assert [ask(path, key="secret").status_code for path in ("/", "/health", "//health")] == [200, 200, 401]


async def endless_body():
    while True:
        await asyncio.sleep(0.01)
        yield b" "


def test_bodies_that_are_too_long_or_too_slow(monkeypatch) -> None:
    post = {"path": "/v1/completions", "method": "POST"}
    assert ask(**post, content=b" " * (1 << 20)).status_code == 400  # not JSON
    found = ask(**post, content=b" " * ((1 << 20) + 1))
    assert (found.status_code, found.json()["error"]["message"]) == (413, "the body has more than 1,048,576 bytes")
    monkeypatch.setattr(serve_app, "BODY_SECONDS", 0.1)
    found = ask(**post, content=endless_body())
    assert (found.status_code, found.json()["error"]["type"]) == (408, "invalid_request_error")


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def alone(twin, parse_body, body):
    """Return (text, reason, tokens) of each sample, from Engine.generate."""
    request = parse_body(json.dumps(body).encode(), ServedModel(MODEL, twin.tokenizer, CONTEXT))
    return [
        (text_of(one.tokens, twin.tokenizer, not request.is_chat), one.reason, len(one.tokens))
        for one in chain.from_iterable(twin.generate(request.prompts))
    ]


SETTINGS = [
    {"temperature": 0, "max_tokens": 20},
    {"seed": 1, "n": 3, "max_tokens": 30},
    {"seed": 2, "temperature": 0.7, "top_k": 5, "max_tokens": 30},
    {"seed": 3, "temperature": 1.3, "top_p": 0.8, "n": 2},
]


def test_answers_are_those_of_an_engine_alone(server, twin) -> None:
    calls = []
    for i in range(8):
        chat = {"messages": [{"role": "user", "content": f"hi {i}"}], **SETTINGS[i % 4]}
        text = {"prompt": ["The dog", f"{i}"], "max_tokens": 9, **SETTINGS[i % 4]}
        calls += [("chat/completions", parse_chat, chat), ("completions", parse_completion, text)]
    with ThreadPoolExecutor(16) as threads:
        posts = [threads.submit(server.http.post, f"/v1/{path}", json=body) for path, _, body in calls]
    for post, (_, parse_body, body) in zip(posts, calls, strict=True):
        found, expected = post.result().json(), alone(twin, parse_body, body)
        assert [choice["index"] for choice in found["choices"]] == list(range(len(expected)))
        texts = [choice["text"] if "text" in choice else choice["message"]["content"] for choice in found["choices"]]
        reasons = [choice["finish_reason"] for choice in found["choices"]]
        assert list(zip(texts, reasons, strict=True)) == [(text, reason) for text, reason, _ in expected]
        assert found["usage"]["completion_tokens"] == sum(count for *_, count in expected)
    assert server.running() == 0


def test_the_clients_answers_and_their_streams(client) -> None:
    settings = {"model": MODEL, "messages": HI, "seed": 4, "n": 2, "max_completion_tokens": 25}
    settings |= {"logprobs": True, "top_logprobs": 2}
    whole = client.chat.completions.create(**settings)
    chunks = list(client.chat.completions.create(**settings, stream=True, stream_options={"include_usage": True}))
    assert {chunk.id for chunk in chunks} == {chunks[0].id}
    assert chunks[0].id.startswith("chatcmpl-")
    assert (chunks[-1].choices, chunks[-1].usage) == ([], whole.usage)
    for choice in whole.choices:
        own = [one.delta for chunk in chunks for one in chunk.choices if one.index == choice.index]
        assert "".join(delta.content or "" for delta in own) == choice.message.content
        logprobs = [one.logprobs for chunk in chunks for one in chunk.choices if one.index == choice.index]
        streamed = [entry for part in logprobs if part for entry in part.content]
        assert streamed == choice.logprobs.content
        assert {len(entry.top_logprobs) for entry in streamed} == {2}
        assert all(entry.logprob <= entry.top_logprobs[0].logprob < 0 for entry in streamed)
    settings = {"model": MODEL, "prompt": "The dog", "seed": 6, "max_tokens": 12}
    whole = client.completions.create(**settings)
    chunks = list(client.completions.create(**settings, stream=True, echo=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == "The dog" + whole.choices[0].text
    assert whole.id.startswith("cmpl-")
    [model] = client.models.list().data
    assert (model.id, model.max_model_len) == (MODEL, CONTEXT)
    assert (model.temperature, model.is_base, model.suggestions) == (0.25, False, ["Who is there?"])  # the page's


def test_addresses_headers_and_the_policy_of_the_page(server) -> None:
    for method, path, status in [("GET", "/v1/nothing", 404), ("GET", "/v1/chat/completions", 405)]:
        found = server.http.request(method, path)
        assert (found.status_code, found.json()["error"]["code"]) == (status, "unknown_url")
    for host, number in [server.address, ("203.0.113.7", 0), ("no such name.example", 0)]:
        with pytest.raises(ValueError, match=re.escape(f"--host={host} --port={number}: ")):
            listen(host, number)
    for path in ("/", "/health", "/nothing"):
        found = server.http.get(path)
        assert all(found.headers.get_list(name) == [value] for name, value in HEADERS)
    policy = server.http.get("/").headers["content-security-policy"]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == rules["base-uri"] == rules["frame-ancestors"] == "'none'"
    assert rules["connect-src"] == "'self'"
    for kind in ("script-src", "style-src"):
        assert re.fullmatch(r"'sha256-[\w+/]+='", rules[kind])


class Broken(Engine):
    """An engine whose calculator fails in a row of four tokens."""

    def _answer(self, sequence, token) -> None:
        if sequence.length == 4:
            raise LookupError("a row's own error")


def test_an_error_ends_a_row_and_not_the_server(capsys) -> None:
    worker = Worker(Broken(model_of(), TOKENIZER, slots=1))
    app = application(Service(ServedModel("broken", TOKENIZER, 192), [worker], 8), "127.0.0.1", "", [], [])
    with TestClient(app, "http://localhost") as http:
        answer = http.post("/v1/completions", json={"prompt": "hi", "temperature": 0}).json()
        assert answer["choices"][0]["finish_reason"] == "error"
        assert http.get("/health").json()["samples"] == 0
        answer = http.post("/v1/completions", json={"prompt": "a longer one", "temperature": 0, "n": 2}).json()
        assert answer["choices"][1]["finish_reason"] == "length"
    assert "LookupError: a row's own error" in capsys.readouterr().out
