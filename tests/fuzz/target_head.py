"""Fuzz: what a client sends on HTTP/1.1, from its first byte to the request that would go up.

Input: the bytes of a connection. Whatever they are:
- nothing but VeloxError is raised, and it closes the connection;
- how they are cut changes nothing, nor does it matter that other connections sent the same heads before;
- h11 reads the same requests, in the same places: what two servers read differently is refused;
- what goes up is one request, in h11's reading too, without a credential or a hop-by-hop field of the client.
"""

from __future__ import annotations

import re

import h11

from tests.fuzz.wires import Pieces, cuttings
from velox.errors import Reason, VeloxError
from velox.gateway.access.endpoints import Routes
from velox.gateway.translation.forward import Forwarder
from velox.heads import RequestHead
from velox.policy.retries.deadline import client_terms
from velox.protocol.heads.fields import HOP_BY_HOP
from velox.protocol.http1.request import HeadReader, Http1Limits, RequestDecoder
from velox.protocol.http1.write import request_head, request_start
from velox.providers.rows import OPENAI
from velox.types import BodyFields

__all__ = ["check_forwarded", "run"]

# Small, so that small inputs reach them.
_LIMITS = Http1Limits(target_bytes=256, head_bytes=2048, line_bytes=512, header_count=20, body_bytes=4096)
_OF_FRAMING = re.compile("transfer-encoding|content-length", re.IGNORECASE)
_OUR_KEY = b"Bearer sk-ours"
_CREDENTIALS = {b"authorization", b"x-api-key", b"api-key", b"x-goog-api-key", b"cookie", b"proxy-authorization"}

# Whole requests with their bodies; the one that is open; how it was refused.
Seen = tuple[list[tuple[RequestHead, bytes]], RequestHead | None, Reason | None]


def run(data: bytes) -> None:
    """Read a connection. Raises AssertionError, or what a bug raises."""
    heads = HeadReader(_LIMITS)
    requests, opened, refusal = seen = _play([data], heads)
    for _ in range(2):
        assert _play([data], heads) == seen, "what was learnt from a head changes how it is read"
    for pieces in cuttings(data):
        in_pieces = _play(pieces, HeadReader(_LIMITS))
        assert in_pieces[0] == requests, "other requests when the bytes are cut"
        assert (in_pieces[2] is None) == (refusal is None), "refused, or not, by how the bytes are cut"
        assert refusal is not None or in_pieces[1] == opened, "another open request when the bytes are cut"
    ours = [(head.method, head.target, body if head.offer is None else b"") for head, body in requests]
    theirs, refused_trailers = _by_h11(data)
    n_both = min(len(theirs), len(ours)) if refused_trailers else len(ours)
    assert theirs[:n_both] == ours[:n_both], "h11 reads other requests"
    for head, _ in requests:
        check_forwarded(head)
    if opened is not None:
        check_forwarded(opened)


def _play(pieces: Pieces, heads: HeadReader) -> Seen:
    decoder = RequestDecoder(_LIMITS, heads)
    requests: list[tuple[RequestHead, bytes]] = []
    opened: RequestHead | None = None
    body = b""
    try:
        for n, piece in enumerate(pieces, 1):
            decoder.feed(piece)
            while True:
                if opened is None:
                    opened = decoder.read_head()
                    if opened is None:
                        break
                    heads.accept(opened)
                if opened.offer is not None:  # what follows is a WebSocket's
                    requests.append((opened, decoder.take_rest() + b"".join(pieces[n:])))
                    return requests, None, None
                body += decoder.read_body()
                assert len(body) <= _LIMITS.body_bytes, "a body over its limit"
                if not decoder.body_complete:
                    break
                requests.append((opened, body))
                opened, body = None, b""
            assert decoder.buffered <= _LIMITS.head_bytes + sum(map(len, pieces)), repr(decoder)
    except VeloxError as error:
        assert error.close, "a refusal that leaves the connection open"
        decoder.feed(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert decoder.read_head() is None and decoder.buffered == 0, "a byte was read after a refusal"
        return requests, opened, error.reason
    return requests, opened, None


def _by_h11(wire: bytes) -> tuple[list[tuple[bytes, bytes, bytes]], bool]:
    """Return the whole requests that h11 reads, and whether it stopped at trailers.

    It refuses trailers that speak of framing, with their body whole; Velox drops all trailers, and these too (B-11).
    """
    seen: list[tuple[bytes, bytes, bytes]] = []
    while wire:
        server = h11.Connection(h11.SERVER)
        # h11 does not skip the empty line that RFC 9112 §2.2 says to ignore before a request.
        server.receive_data(wire.removeprefix(b"\r\n"))
        method = target = body = b""
        try:
            while not isinstance(event := server.next_event(), h11.EndOfMessage):
                if isinstance(event, h11.Request):
                    method, target = event.method, event.target
                elif isinstance(event, h11.Data):
                    body += bytes(event.data)
                else:
                    return seen, False
        except h11.RemoteProtocolError as exc:
            in_trailers = bool(method) and _OF_FRAMING.search(str(exc)) is not None
            return ([*seen, (method, target, body)], True) if in_trailers else (seen, False)
        seen.append((method, target, body))
        if server.their_state is not h11.DONE:
            break
        wire, _ = server.trailing_data
    return seen, False


def check_forwarded(head: RequestHead) -> None:
    """Build what goes up for a head that was accepted, with a key of our own, and let h11 read it."""
    try:
        facts = Routes(("/",)).check(head)
        client_terms(head.headers)
    except VeloxError:
        return
    assert facts.endpoint is not None
    forwarder = Forwarder(
        OPENAI, base_path="", root_path="/v1/chat/completions", key="sk-ours", client_keys_are_ours=True
    )
    body = b"" if head.has_body else None
    requests = [forwarder.build(head, BodyFields(stream=is_stream), body) for is_stream in (False, True)]
    for request in requests if head.offer is None else [forwarder.build_upgrade(head)]:
        length = None if request.body is None else len(request.body)
        wire = request_head(request_start(request.method, request.target, b"up.test"), request.lines, length)
        server = h11.Connection(h11.SERVER)
        server.receive_data(wire)
        first, second = server.next_event(), server.next_event()
        assert isinstance(first, h11.Request) and isinstance(second, h11.EndOfMessage), "it is not one request"
        assert not server.trailing_data[0], "more than one request goes up"
        assert first.method == head.method and first.target == request.target
        names = [name for name, _ in first.headers]
        hop_by_hop = {b"connection", b"upgrade"} if head.offer is not None else set()
        assert (
            HOP_BY_HOP & set(names) == hop_by_hop and names.count(b"host") == 1 and names.count(b"content-length") <= 1
        )
        shown = [value for name, value in first.headers if name in _CREDENTIALS]
        assert shown == [_OUR_KEY], "a credential of the client goes up"
        assert not any(name.startswith((b"x-forwarded-", b"x-velox-")) for name in names)
