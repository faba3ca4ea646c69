"""Who may speak to the server, and what a refusal looks like: names it answers to, origins, the key, headers."""

import hmac
import ipaddress
import time
from collections.abc import Callable, Collection
from typing import Any
from urllib.parse import urlsplit

from starlette.responses import JSONResponse, Response

TYPES = {  # of errors, as clients of this interface know them
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
}
OPEN = {"/", "/health"}  # need no key: the page asks for it, and who watches over the server has none
HEADERS = {  # of every answer; the page brings a policy of its own
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}


class Fault(Exception):
    """What a client is told in place of an answer. param: the field it is about; code: what programs look at."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None, **headers: str):
        super().__init__(message)
        self.status, self.headers = status, {name.replace("_", "-"): value for name, value in headers.items()}
        kind = TYPES.get(status, "invalid_request_error")
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": code}}

    def response(self) -> Response:
        return JSONResponse(self.body, self.status, self.headers)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what listens there."""
    address = _address(host)
    return host == "localhost" if address is None else address.is_loopback


def _address(host: str) -> Any:
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None


class Gate:
    """Around the application `app`. host: where it listens; hosts, origins: names and origins allowed besides.

    A page of another site must not reach a server behind a name that its owner lets point here (DNS rebinding): the
    name has to be one of ours. Nor may it use the browser's own access: its origin has to be ours. watch: called with
    path, status and seconds of every request.
    """

    def __init__(
        self, app: Any, host: str, key: str, hosts: Collection[str], origins: Collection[str], watch: Callable
    ):
        self.app, self.key, self.origins, self.watch = app, key.encode(), set(origins), watch
        self.hosts = {"localhost", "127.0.0.1", "::1", host.strip("[]").lower(), *(name.lower() for name in hosts)}
        bound = _address(host)
        self.any_address = bound is not None and bound.is_unspecified  # one of this machine's: no name can rebind it

    async def __call__(self, scope: dict, receive: Callable, send: Callable) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        shared = {}
        if headers.get("origin") in self.origins:
            shared = {"access-control-allow-origin": headers["origin"], "vary": "Origin"}
            shared |= {"access-control-expose-headers": "Retry-After", "cross-origin-resource-policy": "cross-origin"}
        began, status = time.monotonic(), 499  # if the client leaves before there is an answer

        async def dressed(message: dict) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                own = {name for name, _ in message["headers"]}
                added = ((name.encode(), value.encode()) for name, value in (HEADERS | shared).items())
                message["headers"] = [*message["headers"], *(pair for pair in added if pair[0] not in own)]
            await send(message)

        try:
            answer = self._answer(scope, headers)
            await (answer or self.app)(scope, receive, dressed)
        finally:
            self.watch(scope["path"], status, time.monotonic() - began)

    def _answer(self, scope: dict, headers: dict[str, str]) -> Response | None:
        """What is said in the application's place, if anything is."""
        try:
            host, origin = headers.get("host", ""), headers.get("origin")
            if not self._is_ours(host):
                sentence = f"this server does not answer to the name {host!r}: --allow-host adds one"
                raise Fault(403, sentence, code="host_not_allowed")
            if origin is not None and origin not in self.origins and origin.partition("://")[2] != host:
                sentence = f"pages of {origin!r} may not use this server: --allow-origin lets them"
                raise Fault(403, sentence, code="origin_not_allowed")
            if scope["method"] == "OPTIONS" and origin in self.origins:
                allowed = {"access-control-allow-methods": "GET, POST", "access-control-max-age": "600"}
                asked = headers.get("access-control-request-headers", "authorization, content-type")
                return Response(None, 204, allowed | {"access-control-allow-headers": asked})
            if self.key and scope["path"] not in OPEN:
                self._check_key(headers.get("authorization", ""))
        except Fault as fault:
            return fault.response()
        return None

    def _is_ours(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        return name in self.hosts or (self.any_address and _address(name) is not None)

    def _check_key(self, given: str) -> None:
        scheme, _, key = given.partition(" ")
        if scheme.lower() != "bearer":
            sentence = "this server asks for a key: send `Authorization: Bearer KEY`"
            raise Fault(401, sentence, code="missing_api_key", www_authenticate="Bearer")
        if not hmac.compare_digest(
            key.strip(" \t").encode("latin-1"), self.key
        ):  # of bytes: it takes as long for any wrong key
            raise Fault(401, "this is not the server's key", code="invalid_api_key", www_authenticate="Bearer")
