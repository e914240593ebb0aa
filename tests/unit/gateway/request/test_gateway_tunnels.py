"""A request for a WebSocket in the gateway: what goes up of it, what it names, which place it takes."""

from __future__ import annotations

import asyncio

import pytest

from velox.errors import Reason, VeloxError
from velox.gateway.access.endpoints import Routes
from velox.gateway.auth import Authenticator
from velox.gateway.request.tunnels import Tunnels
from velox.gateway.translation.forward import Forwarder
from velox.gateway.websocket.tunnel import model_of
from velox.heads import Header, RequestHead, WebSocketOffer
from velox.net.tunnel import Tunnel
from velox.net.upstream.connection_budget import ConnectionBudget
from velox.providers.rows import OPENAI
from velox.settings.callers.keys import parse_key
from velox.types import Endpoint

KEY = b"dGhlIHNhbXBsZSBub25jZQ=="
PROTOCOLS = (b"realtime", b"openai-insecure-api-key.sk-page", b"openai-organization.org-1", b"openai-project.p1", b"v1")


def head(
    path: bytes = b"/v1/realtime", *headers: Header, protocols: tuple[bytes, ...] = (), extensions: bytes = b""
) -> RequestHead:
    """Return the head of a request for a WebSocket."""
    offer = WebSocketOffer(KEY, protocols, extensions)
    return RequestHead.of(b"GET", path + b"?model=m", headers, keep_alive=False, offer=offer)


def forwarder(key: str | None, *, ours: bool = False, account: bool = False) -> Forwarder:
    """Return one for an origin with a path."""
    return Forwarder(
        OPENAI,
        base_path="/base",
        root_path="/v1/responses",
        key=key,
        client_keys_are_ours=ours,
        account_headers_pass=account,
    )


def test_upgrade_goes_up_below_the_origins_path_with_its_own_fields() -> None:
    """Built from the offer; the target as it came."""
    request = forwarder("sk-ours").build_upgrade(head(protocols=(b"a", b"b"), extensions=b"x; y=1"))

    assert (request.method, request.target, request.body) == (b"GET", b"/base/v1/realtime?model=m", None)
    assert request.lines.decode().splitlines() == [
        "authorization: Bearer sk-ours",
        "connection: Upgrade",
        "upgrade: websocket",
        "sec-websocket-version: 13",
        f"sec-websocket-key: {KEY.decode()}",
        "sec-websocket-protocol: a, b",
        "sec-websocket-extensions: x; y=1",
    ]
    assert request.offer == WebSocketOffer(KEY, (b"a", b"b"), b"x; y=1")


@pytest.mark.parametrize(
    ("key", "ours", "account", "left"),
    [
        ("sk-ours", False, False, (b"realtime", b"v1")),
        (None, True, False, (b"realtime", b"v1")),
        ("sk-ours", True, False, (b"realtime", b"v1")),
        ("sk-ours", True, True, (b"realtime", b"openai-organization.org-1", b"openai-project.p1", b"v1")),
        (None, False, False, PROTOCOLS),
    ],
)
def test_key_of_a_browser_goes_where_a_key_in_a_header_goes(
    key: str | None, ours: bool, account: bool, left: tuple[bytes, ...]
) -> None:
    """Out where Velox has a key of its own or asks for keys; else it is the client's own, and passes."""
    request = forwarder(key, ours=ours, account=account).build_upgrade(head(protocols=PROTOCOLS))

    assert request.offer is not None
    assert request.offer.protocols == left
    assert (b"sk-page" in request.lines) == (left == PROTOCOLS)


def test_offer_of_a_key_alone_leaves_no_protocol() -> None:
    """An empty list would be malformed."""
    request = forwarder("sk-ours").build_upgrade(head(protocols=(b"openai-insecure-api-key.sk-page",)))

    assert b"sec-websocket-protocol" not in request.lines


def test_key_in_a_protocol_is_a_key() -> None:
    """Alone, or the same as in the header; another one beside it is one too many."""
    auth = Authenticator((parse_key("vk-page"), parse_key("vk-other")))
    protocols = (b"realtime", b"openai-insecure-api-key.vk-page")

    assert auth.check(head(protocols=protocols)).name
    assert auth.check(head(b"/v1/realtime", (b"authorization", b"Bearer vk-page"), protocols=protocols)).name
    with pytest.raises(VeloxError) as two:
        auth.check(head(b"/v1/realtime", (b"authorization", b"Bearer vk-other"), protocols=protocols))
    assert two.value.reason is Reason.BAD_REQUEST
    for wrong in ((b"realtime",), (b"openai-insecure-api-key.",), (b"openai-insecure-api-key.vk-pag",), (b"vk-page",)):
        with pytest.raises(VeloxError) as refused:
            auth.check(head(protocols=wrong))
        assert refused.value.reason is Reason.AUTH_INVALID


@pytest.mark.parametrize(
    ("path", "upgrades"),
    [
        (b"/v1/realtime", True),
        (b"/v1/realtime/", True),
        (b"/openai/v1/realtime", True),
        (b"/realtime", True),
        (b"/v1/realtime/translations", True),
        (b"/v1/translations", False),
        (b"/v1/realtime/sessions", False),
        (b"/v1/realtime/calls/rtc_1/realtime2", False),
        (b"/v1/realtimes", False),
        (b"/v1/responses", True),
        (b"/openai/v1/responses", True),
        (b"/v1/responses/resp_1", False),
        (b"/v1/responses/resp_1/cancel", False),
        (b"/v1/live/sessions", True),
        (b"/v1/live/sessions/s_1", False),
        (b"/v1/live/sessions/s_1/attach", True),
        (b"/v1/live/sessions/s_1/fork", True),
        (b"/v1/live/sessions//fork", False),
        (b"/v1/live/sessions/s_1/s_2/fork", False),
        (b"/v1/live/sessions/s_1/kill", False),
        (b"/v1/sessions", False),
        (b"/v1/chat/completions", False),
        (b"/", False),
    ],
)
def test_paths_that_take_a_websocket(path: bytes, upgrades: bool) -> None:
    """B-21: on every other path an Upgrade is refused, and the connection closes."""
    routes = Routes(("*",))

    assert routes.facts(path).upgrades is upgrades
    if b"realtime" in path.split(b"/"):
        assert routes.facts(path).endpoint is Endpoint.REALTIME
    if upgrades:
        routes.check(head(path))
    else:
        with pytest.raises(VeloxError) as refused:
            routes.check(head(path))
        assert (refused.value.status, refused.value.close) == (400, True)


@pytest.mark.parametrize(
    ("more", "path", "upgrades"),
    [
        (("/voice/stream",), b"/voice/stream", True),
        (("/voice/stream",), b"/voice/stream/", True),
        (("/voice/stream",), b"/v1/voice/stream", False),
        (("/voice/stream",), b"/voice/stream/x", False),
        (("/agents/*/socket", "/x"), b"/agents/a%2Fb/socket", False),
        (("/agents/*/socket", "/x"), b"/agents/a/socket", True),
        (("/agents/*/socket", "/x"), b"/agents/socket", False),
        (("*",), b"/any/thing", True),
        (("*",), b"/metrics", False),
        (("/voice/stream",), b"/v1/realtime", True),
    ],
)
def test_settings_allow_more_websockets(more: tuple[str, ...], path: bytes, upgrades: bool) -> None:
    """VELOX_WEBSOCKET_PATHS: whole paths, and those of the API all the same; what never passes stays out."""
    routes = Routes(("*",), more)

    if upgrades:
        assert routes.check(head(path)).upgrades
        assert routes.facts(path).endpoint is Endpoint.REALTIME
    else:
        with pytest.raises(VeloxError):
            routes.check(head(path))


@pytest.mark.parametrize(
    ("query", "model"),
    [
        (b"", None),
        (b"model=gpt-realtime", "gpt-realtime"),
        (b"a=b&model=ft%3Agpt%2Fx&c", "ft:gpt/x"),
        (b"mod%65l=m", "m"),
        (b"model=", ""),
        (b"model", ""),
        (b"models=a", None),
        (b"model=%E2%98%83", "☃"),
        (b"call_id=rtc_1", None),
    ],
)
def test_model_is_what_the_query_names(query: bytes, model: str | None) -> None:
    """As a server reads it."""
    assert model_of(query) == model


@pytest.mark.parametrize("query", [b"model=a&model=a", b"model=a&mod%65l=b", b"model=%ff", b"&".join([b"a=b"] * 101)])
def test_query_that_can_be_read_in_two_ways_is_refused(query: bytes) -> None:
    """Two models: some take the first, others the last."""
    with pytest.raises(VeloxError) as refused:
        model_of(query)
    assert (refused.value.reason, refused.value.close) == (Reason.BAD_REQUEST, True)


def test_places_are_taken_once_and_given_back_once() -> None:
    """The limit's edge, and that giving back twice frees nothing more."""
    tunnels, first, second, third = Tunnels(2), object(), object(), object()
    tunnels.take(first)
    tunnels.take(second)
    with pytest.raises(VeloxError) as refused:
        tunnels.take(third)
    assert (refused.value.reason, refused.value.status) == (Reason.CONN_LIMIT, 503)

    tunnels.give(first)
    tunnels.give(first)
    tunnels.give(third)
    tunnels.take(third)
    with pytest.raises(VeloxError):
        tunnels.take(first)


def test_room_for_a_connection_is_taken_once_and_goes_back_with_the_place() -> None:
    """A retry has it already; one that finds none is refused, which says nothing of the upstream."""
    connections = ConnectionBudget(1)
    tunnels, first, second = Tunnels(2, connections=connections), object(), object()
    for holder in (first, second):
        tunnels.take(holder)
    for _ in range(2):
        tunnels.connect(first, 1.0)
    with pytest.raises(VeloxError) as refused:
        tunnels.connect(second, 2.0)
    assert (refused.value.reason, refused.value.status) == (Reason.CONN_LIMIT, 503)

    tunnels.give(first)
    tunnels.connect(second, 3.0)
    tunnels.give(second)
    tunnels.give(second)
    assert repr(connections) == "<ConnectionBudget 0 of 1>"


def test_bytes_are_told_once() -> None:
    """Of open tunnels as they grow, and of one that ended."""
    loop = asyncio.new_event_loop()
    try:
        tunnels = Tunnels()
        tunnel = Tunnel(tunnels.buffer, tunnels.limits, loop, lambda _error: None)
        tunnels.opened(tunnel)
        tunnel.client.n_bytes, tunnel.upstream.n_bytes = 10, 20
        assert (tunnels.n_open, tunnels.moved(), tunnels.moved()) == (1, (10, 20), (0, 0))
        tunnel.client.n_bytes = 15
        tunnels.ended(tunnel)
        tunnels.ended(tunnel)
        assert (tunnels.n_open, tunnels.moved(), tunnels.moved()) == (0, (5, 0), (0, 0))
    finally:
        loop.close()
