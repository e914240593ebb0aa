"""The opening handshake of a WebSocket, on both sides of a tunnel (RFC 6455 §4).

Knows: what a client's upgrade must look like, what an upstream's 101 must. Does not know: which paths may be upgraded,
whose keys are whose. Each side's fields are read into plain values, and what goes on is built from these.
"""

from __future__ import annotations

import base64
import hashlib
import re
from typing import Final

from velox.errors import Reason, VeloxError
from velox.protocol.http1_fields import HOP_BY_HOP, TOKEN, connection_members, field_values
from velox.types import Headers, WebSocketOffer

__all__ = ["HandshakeError", "accept_value", "check_accepted", "offer_fields", "read_offer"]

_VERSION: Final = b"13"
_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # §1.3
# 16 bytes in base64, and only the one spelling that they have: the last character holds two bits.
_KEY: Final = re.compile(rb"[A-Za-z0-9+/]{21}[AQgw]==")
# RFC 9110 §15.5.22: a 426 names what to upgrade to.
_WRONG_VERSION: Final = (
    (b"sec-websocket-version", _VERSION),
    (b"upgrade", b"websocket"),
    (b"connection", b"upgrade"),
)
_MEMBERS: Final = frozenset({b"upgrade", b"keep-alive"})
_OURS: Final = HOP_BY_HOP | {b"content-length"}


class HandshakeError(Exception):
    """The upstream's 101 is none. The message says why, and repeats nothing that it sent."""


def read_offer(method: bytes, values: dict[bytes, bytes], *, http_1_0: bool, has_body: bool) -> WebSocketOffer:
    """Return what a client's upgrade offers. values: name -> value of its fields, joined where there are several.

    Raises VeloxError(BAD_REQUEST) with close=True for any other upgrade, and for a WebSocket's that is not as §4.2.1
    has it.
    """
    if values[b"upgrade"].lower() != b"websocket":
        raise _bad("Upgrade is not supported but for WebSocket; speak HTTP/1.1")
    if method != b"GET" or http_1_0 or has_body:
        raise _bad("a WebSocket begins with a GET of HTTP/1.1 without a body")
    members = connection_members(values.get(b"connection", b""))
    if b"upgrade" not in members or not members <= _MEMBERS:
        # What else it may name would have to be taken out of a head that is a WebSocket's all the same.
        raise _bad("a WebSocket begins with Connection: Upgrade, which may name keep-alive beside it and nothing else")
    if values.get(b"sec-websocket-version") != _VERSION:
        message = "this gateway speaks version 13 of WebSocket: send Sec-WebSocket-Version: 13"
        raise VeloxError(Reason.BAD_REQUEST, message, status=426, headers=_WRONG_VERSION, close=True)
    key = values.get(b"sec-websocket-key", b"")
    if _KEY.fullmatch(key) is None:
        raise _bad("Sec-WebSocket-Key is not one field of 16 bytes in base64")
    return WebSocketOffer(key, _protocols(values), values.get(b"sec-websocket-extensions", b""))


def _protocols(values: dict[bytes, bytes]) -> tuple[bytes, ...]:
    given = values.get(b"sec-websocket-protocol")
    if given is None:
        return ()
    protocols = tuple(protocol.strip(b" \t") for protocol in given.split(b","))
    if len(set(protocols)) != len(protocols) or not all(TOKEN.fullmatch(protocol) for protocol in protocols):
        raise _bad("Sec-WebSocket-Protocol is not a list of names, each of them once")
    return protocols


def _bad(message: str) -> VeloxError:
    return VeloxError(Reason.BAD_REQUEST, message, close=True)


def offer_fields(offer: WebSocketOffer) -> Headers:
    """Return the fields that ask an upstream for a WebSocket."""
    fields = [
        (b"connection", b"Upgrade"),
        (b"upgrade", b"websocket"),
        (b"sec-websocket-version", _VERSION),
        (b"sec-websocket-key", offer.key),
    ]
    if offer.protocols:
        fields.append((b"sec-websocket-protocol", b", ".join(offer.protocols)))
    if offer.extensions:
        fields.append((b"sec-websocket-extensions", offer.extensions))
    return fields


def accept_value(key: bytes) -> bytes:
    """Return the Sec-WebSocket-Accept that goes with a key (§4.2.2)."""
    return base64.b64encode(hashlib.sha1(key + _GUID, usedforsecurity=False).digest())


def check_accepted(fields: Headers, offer: WebSocketOffer) -> tuple[Headers, Headers]:
    """Check the fields of a 101 against what was offered (§4.1).

    Return those that make the client's 101, and what else the upstream says. Raises HandshakeError.
    """
    values = field_values(fields)
    if values.get(b"upgrade", b"").lower() != b"websocket":
        raise HandshakeError("it does not upgrade to WebSocket")
    if b"upgrade" not in connection_members(values.get(b"connection", b"")):
        raise HandshakeError("its Connection does not name Upgrade")
    accept = accept_value(offer.key)
    if values.get(b"sec-websocket-accept") != accept:
        raise HandshakeError("its Sec-WebSocket-Accept does not belong to the key")
    switched = [(b"upgrade", b"websocket"), (b"connection", b"Upgrade"), (b"sec-websocket-accept", accept)]
    protocol = values.get(b"sec-websocket-protocol")
    if protocol is not None:
        if protocol not in offer.protocols:
            raise HandshakeError("it chose a protocol that was not offered")
        switched.append((b"sec-websocket-protocol", protocol))
    extensions = values.get(b"sec-websocket-extensions")
    if extensions is not None:
        if not _extension_names(extensions) <= _extension_names(offer.extensions):
            raise HandshakeError("it uses an extension that was not offered")
        switched.append((b"sec-websocket-extensions", extensions))
    others = [field for field in fields if field[0] not in _OURS and not field[0].startswith(b"sec-websocket-")]
    return switched, others


def _extension_names(value: bytes) -> frozenset[bytes]:
    """Return the names in a list of extensions: each `name; parameter; ...` (§9.1)."""
    return frozenset(member.partition(b";")[0].strip(b" \t") for member in value.split(b",")) - {b""}
