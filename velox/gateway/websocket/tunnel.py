"""A request for a WebSocket, and the tunnel that it becomes: the same way as any request up to the upstream's 101.

    read()       read     the model, from the query; a place among the tunnels (VELOX_MAX_TUNNELS)
    gate, wait   gate     a request, and slots until its end; no tokens, which nobody counts in it
    lease()      forward  a connection of its own, HTTP/1.1, never pooled
    on_reply()            the upstream refuses: a reply like any other, tried again where that is safe
    on_switch()           its 101 is checked; the client gets one; from here on bytes pass (net/tunnel.py)
    _end()       account  when both connections are closed

Knows: what differs from other requests (exchange.py), and from other replies (reply.py). Does not know: frames.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl

from velox.errors import Reason, VeloxError
from velox.gateway.access.access import Guard
from velox.gateway.access.ownership import nowhere
from velox.gateway.cluster.group import Attempt
from velox.gateway.reply.headers import (
    DROPPED,
    OWN,
    REQUEST_ID,
    HeaderRuleFilter,
    RateHeaders,
    ReplyFields,
    changed,
    client_id,
)
from velox.gateway.reply.outcome import COMPLETE, Failed
from velox.gateway.reply.reply import Reply
from velox.gateway.request.exchange import Exchange
from velox.gateway.request.parts import GatewayLimits
from velox.gateway.request.tunnels import Tunnels
from velox.gateway.translation.prepared import LocalAnswer, Prepared
from velox.gateway.upstreams.member import Member
from velox.heads import Header, Headers, ReplyHead, RequestHead, WebSocketOffer
from velox.net.application import Client
from velox.net.tunnel import Asking, Tunnel
from velox.net.upstream.interface import LoneOwner, UpstreamConnection, UpstreamFailure, UpstreamRequest
from velox.outcomes import Phase
from velox.policy.routes.entries import HeaderRules
from velox.protocol.slices import finished
from velox.protocol.websocket.handshake import HandshakeError, check_accepted
from velox.types import BodyFields

if TYPE_CHECKING:  # few gateways export content
    from velox.observe.traces.record import ContentRecord
    from velox.observe.traces.socket_capture import SocketCapture

__all__ = ["TunnelExchange", "TunnelReply", "model_of"]

_SWITCHED: Final = 101
_MAX_FIELDS: Final = 100  # of a query


class TunnelExchange(Exchange):
    """One request for a WebSocket."""

    __slots__ = ()

    is_tunnel = True

    # -- what the client does meanwhile ---------------------------------------------------------

    def client_gone(self, *, stalled: bool = False) -> None:
        """The client left; once there is a tunnel, that tells of its ends."""
        if self.tunnel is None:
            super().client_gone(stalled=stalled)

    def content(self) -> ContentRecord | None:
        """See RequestContext."""
        reply = self.reply
        return reply.capture.record() if isinstance(reply, TunnelReply) and reply.capture is not None else None

    @property
    def tunnel(self) -> Tunnel | None:
        """What it has become."""
        return self.reply.tunnel if isinstance(self.reply, TunnelReply) else None

    # -- the steps --------------------------------------------------------------------------------

    def read(self) -> None:
        """Look at the query, and take a place. Raises VeloxError."""
        parts = self.gateway.parts
        if self.gateway.draining:
            # It would be cut in some seconds; another worker, or another gateway, has a whole one.
            raise VeloxError(Reason.DRAINING, "the gateway is shutting down", close=True)
        named = self.plan.path_model
        model = model_of(self.head.query) if named is None else named
        self.fields = BodyFields(model=model, stream=True, is_model_in_path=named is not None)
        guard = self.plan.guard
        if guard is not None:
            finished(self._check_objects(guard))  # the query may name a call to join
        parts.tunnels.take(self)

    def check_deadlines(self, now_s: float, limits: GatewayLimits) -> None:
        """End what takes too long."""
        if self.tunnel is None:
            super().check_deadlines(now_s, limits)
        else:
            self.tunnel.check(now_s)

    def refuse(self, error: VeloxError) -> None:
        """Answer instead of starting."""
        self.gateway.parts.tunnels.give(self)
        super().refuse(error)

    def _end(self, error: VeloxError | None) -> None:
        try:
            super()._end(error)
        finally:
            reply = self.reply
            if isinstance(reply, TunnelReply) and reply.capture is not None:
                reply.capture.end()
            parts = self.gateway.parts
            parts.tunnels.give(self)
            parts.recorder.tunnels(parts.tunnels.n_open, parts.tunnels.moved())

    def _make_reply(self) -> Reply:
        self.release_routing()  # it uses no pool, and may last for hours
        assert self._route is not None, "a tunnel has a route"
        parts = self.gateway.parts
        rules = self._route.parts.entry.response_headers or None
        place = nowhere if self._placement is None else self._placement.place
        captures = parts.tunnels.capture if self.span_ids() is not None else None
        return TunnelReply(
            self.client,
            self.head,
            self.id,
            self.loop,
            parts.reply_fields,
            self._reservation.limits.headers,
            tunnels=parts.tunnels,
            rules=rules,
            guard=self.plan.guard,
            learn=parts.access.learn,
            place=place,
            capture=None if captures is None else captures(self._route.parts.entry.name),
        )

    def prepare(self, attempt: Attempt) -> UpstreamRequest | Prepared | LocalAnswer:
        """Return the request for a WebSocket."""
        assert isinstance(self.reply, TunnelReply), "_make_reply() made it"
        is_read = self.plan.guard is not None or self.reply.capture is not None
        head = _without_extensions(self.head) if is_read else self.head
        request = attempt.build_upgrade(head, None if self.fields.is_model_in_path else self.fields.model)
        self.reply.offer = request.offer
        return request

    async def lease(self, member: Member) -> UpstreamConnection:
        """Dial: the connection serves nothing else, before or after."""
        assert member.websockets is not None, "the composition root gives one"
        self.phase = "connect"
        self.gateway.parts.tunnels.connect(self, self.loop.time())
        began_ns = time.monotonic_ns()
        connection = await member.websockets.dial(LoneOwner())
        self.gateway.parts.recorder.overhead[Phase.CONNECT].observe(time.monotonic_ns() - began_ns)
        return connection


class TunnelReply(Reply):
    """The answer to a request for a WebSocket: a tunnel, or a refusal like any other reply.

    place: returns where the upstream keeps what it tells of. learn: asks other gateways for what messages name.
    capture: reads messages for a trace; None: nobody does.
    offer: what went up, which is less than what came where a browser's key was taken out. tunnel: None up to the 101.
    """

    __slots__ = ("_guard", "_learn", "_place", "_rules", "_tunnels", "capture", "offer", "tunnel")

    def __init__(
        self,
        client: Client,
        request: RequestHead,
        request_id: bytes,
        loop: asyncio.AbstractEventLoop,
        fields: ReplyFields,
        rates: RateHeaders | None = None,
        *,
        tunnels: Tunnels,
        rules: HeaderRules | None = None,
        guard: Guard | None = None,
        learn: Asking | None = None,
        place: Callable[[], int] = nowhere,
        capture: SocketCapture | None = None,
    ) -> None:
        filters = () if rules is None else (HeaderRuleFilter(rules),)
        super().__init__(client, request, request_id, loop, fields, rates, filters=filters)
        self._guard: Final = guard
        self._learn: Final = learn
        self._place: Final = place
        self.capture: Final = capture
        self._rules: Final = rules
        self.offer: WebSocketOffer | None = None
        self.tunnel: Tunnel | None = None
        self._tunnels: Final = tunnels

    # -- UpgradeSink ------------------------------------------------------------------------------

    def on_reply(self, head: ReplyHead | None, data: bytes, end: bool) -> None:
        """Pass a refusal on. A reply that is none says that the upstream has not understood."""
        if head is not None and head.status < 300:
            message = f"the upstream answered the request for a WebSocket with {head.status}"
            self.on_failure(UpstreamFailure(Reason.UPSTREAM_PROTOCOL, message))
        else:
            super().on_reply(head, data, end)

    def on_switch(self, fields: Headers, transport: asyncio.Transport, rest: bytes) -> None:
        """Check the 101; then both connections are the tunnel's."""
        self._stream = None  # the connection knows of it no more
        if self.ended.done():
            transport.abort()
            return
        try:
            headers = self._check(fields)
            tunnel = Tunnel(self._tunnels.buffer, self._tunnels.limits, self._loop, self._on_end)
            if self._guard is not None:
                tunnels = self._tunnels
                gate = self._guard.gate(tunnels.limits.body_bytes)
                tunnel.guard(gate, self._guard.watch(self._place()), tunnels.bodies, self._learn)
            tunnel.upstream.take(transport, rest)
            self._client.switch(headers, tunnel.client)
        except (HandshakeError, ValueError) as exc:  # ValueError: a field with CR, LF or NUL
            transport.abort()
            why = str(exc) if isinstance(exc, HandshakeError) else "it has a bad header"
            message = f"the upstream's 101 is no answer to this request: {why}"
            self.on_failure(UpstreamFailure(Reason.UPSTREAM_PROTOCOL, message))
            return
        self.tunnel = tunnel
        if self.capture is not None:
            self.capture.begin()
            tunnel.tap(self.capture.up, self.capture.down)
        self._tunnels.opened(tunnel)
        self.first_byte_ns = time.monotonic_ns()
        self.started = True
        self.status = _SWITCHED
        tunnel.start()

    def on_failure(self, failure: VeloxError) -> None:
        """Fail the attempt; a tunnel is closed, and ends it when that is done."""
        if self.tunnel is None:
            super().on_failure(failure)
        else:
            self.tunnel.close(failure, failure.message)

    def cut(self, error: VeloxError) -> None:
        """End a tunnel that is still open: its task was cancelled."""
        if self.tunnel is not None:
            self.tunnel.abort()
        else:
            super().cut(error)

    # -- inside -----------------------------------------------------------------------------------

    def _check(self, fields: Headers) -> Headers:
        """Return the fields of the client's 101. Raises HandshakeError."""
        assert self.offer is not None, "set with the request"
        switched, others = check_accepted(fields, self.offer)
        if self._listener is not None:
            self._listener.on_head(ReplyHead.of(_SWITCHED, others, None))  # its health hears that it answers
        fields = [field for field in others if self._may_pass(field)]
        headers = [*switched, *(fields if self._rules is None else changed(fields, self._rules))]
        given = client_id(self._request)
        if given is not None and not any(name == REQUEST_ID for name, _ in fields):
            headers.append((REQUEST_ID, given))
        headers.append((b"x-velox-request-id", self._request_id))
        headers += self._told.headers
        if self._rates is not None:
            headers += self._rates.headers(time.monotonic_ns())
        return headers

    def _may_pass(self, field: Header) -> bool:
        dropped = DROPPED if self._rates is None else self._rates.dropped
        secret = None if self._listener is None else self._listener.secret
        if field[0] in dropped or field[0].startswith(OWN):
            return False
        return not (secret and secret in field[1])

    def _on_end(self, error: VeloxError | None) -> None:
        assert self.tunnel is not None, "it has ended"
        self.bytes_in, self.bytes_out = self.tunnel.client.n_bytes, self.tunnel.upstream.n_bytes
        self.close_code = self.tunnel.close_code
        self._tunnels.ended(self.tunnel)
        self._end(COMPLETE if error is None else Failed(error))


def _without_extensions(head: RequestHead) -> RequestHead:
    """Return a head that offers none: messages that are compressed could not be looked at."""
    offer = head.offer
    assert offer is not None, "asked for heads that offer one"
    shape = replace(
        head.shape, fields=tuple(head.headers), offer=replace(offer, extensions=b""), is_shared=False, credential_at=-1
    )
    return RequestHead(shape, (), head.content_length)


def model_of(query: bytes) -> str | None:
    """Return the model that a query names; None if it names none. Raises VeloxError.

    Two of them would be read by some servers as the first and by others as the last.
    """
    try:
        fields = parse_qsl(query.decode("ascii"), keep_blank_values=True, max_num_fields=_MAX_FIELDS, errors="strict")
    except ValueError:  # too many, or no UTF-8
        raise VeloxError(Reason.BAD_REQUEST, "the query can't be read", close=True) from None
    models = [value for name, value in fields if name == "model"]
    if len(models) > 1:
        raise VeloxError(Reason.BAD_REQUEST, "the query names more than one model", param="model", close=True)
    return models[0] if models else None
