"""The server as clients meet it: a process of its own, asked by OpenAI's client and by plain HTTP."""

import json
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest
import torch
from served import CONTEXT, serving, write_model

from nanochat.chat import Reply
from nanochat.serve.requests import Limits, Served, read_chat, read_completion

HI = [{"role": "system", "content": "be brief"}, {"role": "user", "content": [{"type": "text", "text": "hi"}]}]


@pytest.fixture(scope="module")
def twin(tmp_path_factory):
    """An engine in this process with the same weights; `twin.base` has them."""
    base = tmp_path_factory.mktemp("serve") / "base"
    engine = write_model(base)
    engine.base = base
    return engine


@pytest.fixture(scope="module")
def server(twin):
    with serving(twin.base, "--engines=2", "--slots=4") as server:
        yield server


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def alone(twin, read, body):
    """(text, reason, tokens) of each sample, by Engine.generate."""
    asked = read(body, Served("nanochat-mine-base", twin.tokenizer, CONTEXT, Limits()))
    found = []
    for completion in (one for samples in twin.generate(asked.requests) for one in samples):
        reply = Reply(twin.tokenizer)
        pieces = [piece for token in completion.tokens for piece in reply.add(token)] + reply.close()
        kept = [piece.text for piece in pieces if piece.kind == "text" or not asked.chat]
        found.append(("".join(kept), completion.reason, len(completion.tokens)))
    return found


SETTINGS = [
    {"temperature": 0, "max_tokens": 20},
    {"seed": 1, "n": 3, "max_tokens": 30},
    {"seed": 2, "temperature": 0.7, "top_k": 5, "max_tokens": 30},
    {"seed": 3, "temperature": 1.3, "top_p": 0.8, "n": 2},
]


def test_answers_are_those_of_an_engine_alone(server, twin):
    """All at once, on two engines of four slots each."""
    chats = [{"messages": [{"role": "user", "content": f"hi {i}"}], **SETTINGS[i % 4]} for i in range(8)]
    texts = [{"prompt": ["The dog", f"{i}"], "max_tokens": 9, **SETTINGS[i % 4]} for i in range(8)]
    asked = [("chat/completions", read_chat, body) for body in chats]
    asked += [("completions", read_completion, body) for body in texts]
    with ThreadPoolExecutor(16) as threads:
        posts = [threads.submit(server.http.post, f"/v1/{path}", json=body) for path, _, body in asked]
    for post, (_, read, body) in zip(posts, asked, strict=True):
        found, expected = post.result().json(), alone(twin, read, body)
        assert [choice["index"] for choice in found["choices"]] == list(range(len(expected)))
        told = [(c.get("text", c.get("message", {}).get("content")), c["finish_reason"]) for c in found["choices"]]
        assert told == [(text, reason) for text, reason, _ in expected]
        assert found["usage"]["completion_tokens"] == sum(count for *_, count in expected)
    assert server.metric("running") == server.metric("waiting") == 0


def test_the_clients_chat_and_its_stream(client):
    about = {"model": "nanochat-mine-base", "messages": HI, "seed": 4, "n": 2, "max_completion_tokens": 25}
    whole = client.chat.completions.create(**about, logprobs=True)
    chunks = list(client.chat.completions.create(**about, stream=True, stream_options={"include_usage": True}))
    assert {chunk.id for chunk in chunks} == {chunks[0].id}
    assert chunks[0].id.startswith("chatcmpl-")
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    for choice in whole.choices:
        own = [c for chunk in chunks for c in chunk.choices if c.index == choice.index]
        assert own[0].delta.role == "assistant"
        assert "".join(c.delta.content or "" for c in own) == choice.message.content
        assert [c.finish_reason for c in own] == [None] * (len(own) - 1) + [choice.finish_reason]
        assert all(token.logprob < 0 for token in choice.logprobs.content)
        spelled = b"".join(bytes(token.bytes) for token in choice.logprobs.content if not token.token.startswith("<|"))
        assert spelled.decode(errors="replace") == choice.message.content
    likeliest = client.chat.completions.create(**about, logprobs=True, top_logprobs=3)
    for choice, other in zip(whole.choices, likeliest.choices, strict=True):
        assert choice.message.content == other.message.content
        for token, scored in zip(choice.logprobs.content, other.logprobs.content, strict=True):
            assert (token.token, len(scored.top_logprobs)) == (scored.token, 3)
            assert token.logprob == pytest.approx(scored.logprob, abs=1e-4)
            assert scored.logprob <= scored.top_logprobs[0].logprob


def test_the_clients_completion_and_its_stream(client):
    about = {"model": "nanochat-mine-base", "prompt": "The dog", "seed": 6, "max_tokens": 12}
    whole = client.completions.create(**about, logprobs=0)
    chunks = list(client.completions.create(**about, stream=True, echo=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == "The dog" + whole.choices[0].text
    assert whole.id.startswith("cmpl-")
    assert len(whole.choices[0].logprobs.token_logprobs) == 12


def test_stops(client, twin):
    about = {"model": "nanochat-mine-base", "messages": HI, "seed": 9, "max_tokens": 60}
    [text] = [choice.message.content for choice in client.chat.completions.create(**about).choices]
    stop = text[10:13]
    cut = client.chat.completions.create(**about, stop=["\x00\x00", stop])
    assert cut.choices[0].message.content == text[: text.index(stop)]
    assert cut.choices[0].finish_reason == "stop"
    stream = client.chat.completions.create(**about, stop=stop, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == text[: text.index(stop)]


def test_the_clients_errors(client):
    about = {"model": "nanochat-mine-base", "messages": HI}
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**about, tools=[{"type": "function", "function": {"name": "f"}}])
    assert caught.value.param == "tools"
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**{**about, "messages": [{"role": "user", "content": "x" * 400}]})
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(**{**about, "model": "gpt-4"})
    assert caught.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4")
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(**about, n=1000)


def test_the_clients_errors_at_the_door(tmp_path):
    """Of a server with a key, one slot and room for fifteen to wait."""
    write_model(tmp_path, endless=True)
    words = ("--slots=1", "--queue=15", "--max-body=2000", "--drain=0")
    with serving(tmp_path, *words, NANOCHAT_API_KEY="right") as server:
        ask = {
            key: openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0) for key in ("right", "wrong")
        }
        about = {"model": "nanochat-mine-base", "messages": HI, "temperature": 0}
        with pytest.raises(openai.AuthenticationError) as caught:
            ask["wrong"].chat.completions.create(**about)
        assert caught.value.code == "invalid_api_key"
        with pytest.raises(openai.APIStatusError) as caught:
            ask["right"].chat.completions.create(**{**about, "messages": [{"role": "user", "content": "x" * 2000}]})
        assert caught.value.status_code == 413
        with ThreadPoolExecutor(40) as threads:
            posts = [threads.submit(ask["right"].chat.completions.create, **about, max_tokens=100) for _ in range(40)]
        busy = [post.exception() for post in posts if post.exception()]
        assert busy, [post.result().usage for post in posts]
        assert {type(error) for error in busy} == {openai.RateLimitError}
        assert (busy[0].code, busy[0].response.headers["retry-after"]) == ("queue_full", "1")
        # It retries by itself, after as long as it was told to.
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="right", max_retries=20) as patient:
            with ThreadPoolExecutor(24) as threads:
                posts = [threads.submit(patient.chat.completions.create, **about, max_tokens=20) for _ in range(24)]
            assert all(post.result().choices for post in posts)
        # And what a shutdown leaves no time for.
        server.http.headers["authorization"] = "Bearer right"
        with ThreadPoolExecutor(1) as threads:
            post = threads.submit(ask["right"].chat.completions.create, **about, n=16, max_tokens=100)
            while not server.metric("running"):
                assert not post.done(), post.exception()
                time.sleep(0.01)
            server.process.send_signal(signal.SIGTERM)
            with pytest.raises(openai.InternalServerError) as caught:
                post.result()
        assert caught.value.status_code == 503


def test_models(client):
    [model] = client.models.list().data
    assert model.id == "nanochat-mine-base"
    assert client.models.retrieve(model.id) == model


def test_the_bytes_of_a_stream(server):
    body = {"messages": HI, "seed": 3, "max_tokens": 5, "stream": True, "stream_options": {"include_usage": True}}
    with server.http.stream("POST", "/v1/chat/completions", json=body) as response:
        content = response.read()
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-store"
    assert response.headers["x-accel-buffering"] == "no"
    *events, last = content.decode("ascii").split("\n\n")
    assert last == ""
    assert all(event.startswith("data: ") and "\n" not in event for event in events)
    assert events[-1] == "data: [DONE]"
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-1]]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chunks[-2]["choices"][0]["finish_reason"] == "length"
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 5
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert all(chunk.keys() == {"id", "object", "created", "model", "choices", "usage"} for chunk in chunks)


def test_an_echo_is_scored_by_a_plain_forward(server, twin):
    text = "It is 46, said the quick"
    body = {"prompt": [text, "The"], "max_tokens": 0, "echo": True, "logprobs": 1}
    first, second = server.http.post("/v1/completions", json=body).json()["choices"]
    assert (first["text"], second["text"]) == (text, "The")
    tokens = [twin.tokenizer.special_tokens["<|bos|>"], *twin.tokenizer.encode(text)]
    assert first["logprobs"]["tokens"] == [twin.tokenizer.decode([token]) for token in tokens[1:]]
    found = first["logprobs"]["token_logprobs"]
    expected = twin.plain(torch.tensor([tokens]))[0, :-1].log_softmax(-1)
    chosen = expected.gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(found), chosen, atol=1e-5, rtol=1e-5)
    best = [max(top.values()) for top in first["logprobs"]["top_logprobs"]]
    torch.testing.assert_close(torch.tensor(best), expected.amax(-1), atol=1e-5, rtol=1e-5)


def test_ways_that_lead_nowhere(server):
    for method, path, status in [
        ("GET", "/v1/nothing", 404),
        ("GET", "/v1/chat/completions", 405),
        ("POST", "/health", 405),
        ("PUT", "/v1/completions", 405),
        ("GET", "/../etc/passwd", 404),
    ]:
        found = server.http.request(method, path)
        assert (found.status_code, found.json()["error"]["code"]) == (status, "unknown_url")


def test_the_page_runs_nothing_but_its_own(server):
    found = server.http.get("/")
    assert found.status_code == 200
    policy = dict(part.strip().split(" ", 1) for part in found.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == policy["base-uri"] == policy["frame-ancestors"] == "'none'"
    assert policy["connect-src"] == "'self'"
    for kind in ("script-src", "style-src"):
        assert "unsafe" not in policy[kind]
        assert "*" not in policy[kind]


def test_health_and_metrics(server):
    assert server.http.get("/health").json() == {"status": "ok", "model": "nanochat-mine-base"}
    before = server.metric("completion_tokens_total")
    body = {"messages": HI, "max_tokens": 7, "temperature": 0}
    written = server.http.post("/v1/chat/completions", json=body).json()["usage"]["completion_tokens"]
    assert server.metric("completion_tokens_total") == before + written
    assert server.metric('requests_total{path="/health",status="200"}'.replace("{", r"\{")) >= 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--host=0.0.0.0"], "--host=0.0.0.0 lets others in: set NANOCHAT_API_KEY"),
        (["--port=70000"], "--port=70000 is none"),
        (["--source=best"], "--source=best is not one of base, mid, sft, rl"),
        (["--source=base", "--tag=none", "--port=0"], "there is no model in "),
    ],
)
def test_mistakes_end_with_one_sentence(words, sentence, python):
    done = python("-m", "scripts.chat_web", *words, "--device-type=cpu", "--dtype=fp32")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1, done.stderr
    assert sentence in done.stderr


def test_a_port_that_is_taken(server, python):
    number = httpx.URL(server.url).port
    done = python("-m", "scripts.chat_web", f"--port={number}")
    assert done.returncode == 2
    assert f"--port={number}: Address already in use, take another" in done.stderr


def test_a_stream_without_anything_to_write_ends(server):
    body = {"prompt": "What", "max_tokens": 0, "echo": True, "stream": True}
    lines = server.http.post("/v1/completions", json=body).text.split()
    assert lines[-1] == "[DONE]"
    assert '"What"' in "".join(lines)
    assert server.metric("running") == 0


def test_what_has_begun_is_ended_before_the_server_is(server):
    """The last test of this server."""
    body = {"messages": HI, "stream": True, "n": 4, "temperature": 1.0, "seed": 5}
    with server.http.stream("POST", "/v1/chat/completions", json=body) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("data: {")
        server.process.send_signal(signal.SIGTERM)
        *_, last, _ = lines
    assert last == "data: [DONE]"
    assert server.process.wait(60) == 0
