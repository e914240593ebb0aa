"""Web pages of elsewhere: which are answered before a key is looked for, and what is added to replies."""

from __future__ import annotations

import pytest

from tests.sockets.gateway.core_gateway import FakeClient, request_head
from velox.errors import Reason, VeloxError
from velox.gateway.front.cors import CrossOrigin
from velox.heads import Header, Headers, RequestHead, WebSocketOffer
from velox.net.application import Client, ClientExchange
from velox.policy.web_origins import WebOrigins
from velox.types import ANYONE, Caller

APP = b"https://app.example"


class Inner:
    """The gateway behind: it lets nobody in without a key, and notes what comes to it."""

    def __init__(self) -> None:
        self.submitted: list[Client] = []
        self.refused: list[Client] = []

    def check_head(self, head: RequestHead) -> Caller:
        if head.header(b"authorization") is None:
            raise VeloxError(Reason.AUTH_INVALID, "no key")
        return ANYONE

    def submit(
        self, client: Client, head: RequestHead, body: bytes | bytearray | None, caller: Caller
    ) -> ClientExchange | None:
        self.submitted.append(client)
        return None

    def refuse(self, client: Client, head: RequestHead | None, error: VeloxError) -> None:
        self.refused.append(client)

    def crashed(self, exc: Exception) -> None:
        raise exc


def doors(*origins: str) -> tuple[CrossOrigin, Inner]:
    inner = Inner()
    return CrossOrigin(inner, WebOrigins(origins)), inner


def fields_of(client: FakeClient) -> dict[str, list[str]]:
    """Return what was written, by name."""
    head = client.written.partition(b"\r\n\r\n")[0].decode().split("\r\n")[1:]
    found: dict[str, list[str]] = {}
    for line in head:
        name, _, value = line.partition(": ")
        found.setdefault(name, []).append(value)
    return found


def asking(origin: bytes = APP, *more: Header) -> RequestHead:
    """Return the head by which a browser asks whether a page may send a request."""
    wanted: Headers = [
        (b"origin", origin),
        (b"access-control-request-method", b"POST"),
        (b"access-control-request-headers", b"authorization,content-type,x-stainless-os"),
        *more,
    ]
    return RequestHead.of(b"OPTIONS", b"/v1/chat/completions", wanted)


def test_preflight_is_answered_without_a_key() -> None:
    """C17, RC8: browsers ask without one; nothing goes to the gateway behind, or to an upstream."""
    cors, inner = doors("https://app.example")
    client, head = FakeClient(), asking()

    assert cors.check_head(head) is ANYONE
    assert cors.submit(client, head, None, ANYONE) is None

    assert client.written.startswith(b"HTTP/1.1 200 ") and client.finished.is_set()
    fields = fields_of(client)
    assert fields["access-control-allow-origin"] == ["https://app.example"]
    assert fields["access-control-allow-headers"] == ["authorization,content-type,x-stainless-os"]
    assert fields["access-control-allow-methods"] == ["DELETE, GET, HEAD, PATCH, POST, PUT"]
    assert fields["vary"] == ["origin, access-control-request-method, access-control-request-headers"]
    assert "access-control-allow-credentials" not in fields and "access-control-allow-private-network" not in fields
    assert not inner.submitted and not inner.refused


def test_preflight_for_a_private_network_is_answered() -> None:
    """A page of the internet, and a gateway of the office: Chromium asks for that, too."""
    cors, _ = doors("https://app.example")
    client = FakeClient()
    cors.submit(client, asking(APP, (b"access-control-request-private-network", b"true")), None, ANYONE)
    assert fields_of(client)["access-control-allow-private-network"] == ["true"]


@pytest.mark.parametrize(
    "origin", [b"https://evil.example", b"https://app.example.evil", b"null", b"https://app.exampl"]
)
def test_preflight_of_another_page_is_refused(origin: bytes) -> None:
    """C17: here, and it does not say that it may read anything."""
    cors, _ = doors("https://app.example")
    with pytest.raises(VeloxError) as refused:
        cors.check_head(asking(origin))
    assert (refused.value.reason, refused.value.status) == (Reason.FORBIDDEN, 403)


def test_options_that_is_no_preflight_is_a_request_like_others() -> None:
    """It needs a key, and goes on."""
    cors, inner = doors("*")
    head = RequestHead.of(b"OPTIONS", b"/v1/chat/completions", [(b"origin", APP)])
    with pytest.raises(VeloxError):
        cors.check_head(head)
    cors.submit(FakeClient(), head, None, ANYONE)
    assert len(inner.submitted) == 1


@pytest.mark.parametrize("whole", [True, False])
def test_reply_says_that_the_page_may_read_it(whole: bool) -> None:
    """C17, RC8: also one of Velox's own; what an upstream says of this is not said twice."""
    cors, inner = doors("https://app.example")
    client, head = FakeClient(), request_head(more=[(b"origin", APP)])
    cors.submit(client, head, b"{}", ANYONE)
    cors.refuse(client, head, VeloxError(Reason.AUTH_INVALID, "no"))
    headers: Headers = [
        (b"content-type", b"application/json"),
        (b"access-control-allow-origin", b"*"),
        (b"access-control-expose-headers", b"x-request-id"),
    ]
    (passed,) = inner.submitted
    if whole:
        (passed,) = inner.refused
        passed.answer(401, headers, b"{}", with_body=True, close=False)
    else:
        assert not passed.takes_lines
        passed.begin_reply(200, headers, 2, b"{}", True, has_body=True)
    fields = fields_of(client)
    assert fields["access-control-allow-origin"] == ["https://app.example"]
    assert (fields["access-control-expose-headers"], fields["vary"]) == (["*"], ["origin"])
    assert client.written.endswith(b"\r\n\r\n{}")


def test_page_that_may_not_read_is_told_nothing() -> None:
    """But a cache in between must not give its reply to a page that may."""
    cors, inner = doors("https://app.example")
    client = FakeClient()
    cors.submit(client, request_head(more=[(b"origin", b"https://evil.example")]), b"{}", ANYONE)
    inner.submitted[0].begin_reply(200, [(b"access-control-allow-origin", b"*")], 0, b"", True, has_body=True)
    fields = fields_of(client)
    assert fields["vary"] == ["origin"] and not any(name.startswith("access-control") for name in fields)


def test_client_that_is_no_page_is_passed_on_as_it_is() -> None:
    """So is a WebSocket's: what opens one is not asked for leave."""
    cors, inner = doors("*")
    client = FakeClient()
    cors.submit(client, request_head(), b"{}", ANYONE)
    offer = WebSocketOffer(b"k", (), b"")
    cors.submit(client, request_head(more=[(b"origin", APP)], offer=offer), None, ANYONE)
    cors.refuse(client, None, VeloxError(Reason.BAD_FRAMING, "no"))
    assert inner.submitted == [client, client] and inner.refused == [client]


def test_every_page_is_told_the_same() -> None:
    """Then a reply is every page's, and caches may keep one for all."""
    cors, inner = doors("*")
    client = FakeClient()
    cors.submit(client, request_head(more=[(b"origin", b"null")]), b"{}", ANYONE)
    inner.submitted[0].begin_reply(200, [], 0, b"", True, has_body=True)
    fields = fields_of(client)
    assert fields["access-control-allow-origin"] == ["*"] and "vary" not in fields


@pytest.mark.parametrize(
    ("patterns", "origin", "allowed"),
    [
        (("https://app.example",), b"https://app.example", True),
        (("https://app.example",), b"HTTPS://App.Example", True),
        (("https://app.example",), b"http://app.example", False),
        (("https://app.example",), b"https://app.example:8443", False),
        (("http://localhost:*",), b"http://localhost:5173", True),
        (("http://localhost:*",), b"http://localhost", False),
        (("http://localhost:*",), b"http://localhost:1@evil.example", False),
        (("https://*.app.example",), b"https://a.app.example", True),
        (("https://*.app.example",), b"https://evil.example/.app.example", False),
        (("https://*.app.example",), b"https://app.example", False),
        (("null",), b"null", True),
        (("*",), b"null", True),
        (("https://*",), b"null", False),
        ((), b"https://app.example", False),
    ],
)
def test_origin_is_compared_as_a_whole(patterns: tuple[str, ...], origin: bytes, allowed: bool) -> None:
    """With scheme and port; `*` in a pattern is no path, and no user."""
    assert WebOrigins(patterns).allows(origin) is allowed
    assert bool(WebOrigins(patterns)) is bool(patterns)
