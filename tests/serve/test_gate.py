"""The gate around a small application, asked through real requests: names, origins, keys, headers."""

import asyncio

import httpx
import pytest
from starlette.responses import PlainTextResponse

from nanochat.serve.gate import HEADERS, OPEN, Fault, Gate, is_loopback

APP = PlainTextResponse("in", headers={"referrer-policy": "same-origin"})


def ask(
    path="/v1/models", method="GET", host="localhost:8000", bound="127.0.0.1", key="", seen=None, gate=(), **headers
):
    """gate: names and origins allowed besides."""
    hosts, origins = gate or ((), ())
    watched = [] if seen is None else seen
    app = Gate(APP, bound, key, hosts, origins, lambda *about: watched.append(about))

    async def request():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app)) as client:
            lines = [("host", host), *((name.replace("_", "-"), value) for name, value in headers.items())]
            return await client.request(method, f"http://server{path}", headers=lines)

    return asyncio.run(request())


@pytest.mark.parametrize(
    ("host", "bound", "status"),
    [
        ("localhost", "127.0.0.1", 200),
        ("localhost:8000", "127.0.0.1", 200),
        ("LOCALHOST:8000", "127.0.0.1", 200),
        ("127.0.0.1:8000", "127.0.0.1", 200),
        ("[::1]:8000", "127.0.0.1", 200),
        ("192.168.1.5:8000", "192.168.1.5", 200),
        ("192.168.1.6:8000", "192.168.1.5", 403),
        ("192.168.1.6:8000", "0.0.0.0", 200),
        ("[fe80::1]:8000", "::", 200),
        ("evil.example", "0.0.0.0", 403),
        ("evil.example:8000", "127.0.0.1", 403),
        ("localhost.evil.example", "127.0.0.1", 403),
        ("localhost@evil.example", "127.0.0.1", 403),
        ("", "127.0.0.1", 403),
        ("[::1", "127.0.0.1", 403),
        ("[", "127.0.0.1", 403),
        ("good.example:80", "127.0.0.1", 200),
    ],
)
def test_it_answers_to_its_own_names_alone(host, bound, status):
    found = ask(host=host, bound=bound, gate=(["Good.example"], []))
    assert found.status_code == status
    if status == 403:
        assert found.json()["error"]["code"] == "host_not_allowed"


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost:8000", 200),
        ("http://localhost:8001", 403),
        ("http://evil.example", 403),
        ("null", 403),
        ("", 403),
        ("http://[", 403),
        ("https://good.example", 200),
    ],
)
def test_pages_of_other_sites_may_not_use_it(origin, status):
    found = ask(origin=origin, gate=([], ["https://good.example"]))
    assert found.status_code == status
    shared = [name for name in found.headers if name.startswith("access-control")]
    assert bool(shared) == (origin == "https://good.example")


def test_a_browser_asks_before_it_posts():
    origin = {"origin": "https://good.example", "access_control_request_method": "POST"}
    found = ask(method="OPTIONS", key="secret", gate=([], ["https://good.example"]), **origin)
    assert found.status_code == 204
    assert found.headers["access-control-allow-origin"] == "https://good.example"
    assert "authorization" in found.headers["access-control-allow-headers"]
    assert ask(method="OPTIONS", key="secret", **origin).status_code == 403


@pytest.mark.parametrize(
    ("given", "code"),
    [
        (None, "missing_api_key"),
        ("Basic c2VjcmV0", "missing_api_key"),
        ("Bearer", "invalid_api_key"),
        ("Bearer wrong", "invalid_api_key"),
        ("Bearer schlüsse", "invalid_api_key"),
        ("Bearer schlüssell", "invalid_api_key"),
        ("Bearer schlüssel", None),
        ("bearer  schlüssel ", None),
    ],
)
def test_keys(given, code):
    found = ask(key="schlüssel", **({"authorization": given.encode()} if given else {}))
    assert found.status_code == (401 if code else 200)
    if code:
        assert found.json()["error"]["code"] == code
        assert found.headers["www-authenticate"] == "Bearer"


def test_the_page_and_health_need_no_key():
    assert {path: ask(path, key="secret").status_code for path in OPEN} == dict.fromkeys(OPEN, 200)
    assert ask("/metrics", key="secret").status_code == 401
    assert ask("//health", key="secret").status_code == 401


def test_every_answer_has_the_headers_of_safety():
    for found in (ask(), ask(host="evil.example")):
        for name, value in HEADERS.items():
            own = "same-origin" if name == "referrer-policy" and found.status_code == 200 else value
            assert found.headers[name] == own
            assert len(found.headers.get_list(name)) == 1


def test_every_request_is_watched():
    seen = []
    ask(seen=seen)
    ask(host="evil.example", seen=seen)
    assert [about[:2] for about in seen] == [("/v1/models", 200), ("/v1/models", 403)]
    assert all(0 <= about[2] < 60 for about in seen)


def test_a_fault_is_what_clients_expect():
    fault = Fault(429, "later", code="queue_full", retry_after="1").response()
    assert fault.status_code == 429
    assert fault.headers["retry-after"] == "1"
    body = b'{"error":{"message":"later","type":"rate_limit_error","param":null,"code":"queue_full"}}'
    assert fault.body == body


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "[::1]", "localhost"])
def test_loopback(host):
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.1", "example.com", ""])
def test_not_loopback(host):
    assert not is_loopback(host)
