"""WebSocket, as far as a tunnel that passes it on unchanged needs it (RFC 6455): the handshake, and where frames end.

Knows: what a client's upgrade must look like and what an upstream's 101 must (§4), where each frame ends, the code in a
Close frame, and the one frame that Velox sends itself (§5.2). Does not know: which paths may be upgraded, whose keys
are whose, payloads, extensions, whether a frame is allowed: the two endpoints judge each other.

Each side's fields are read into plain values, and what goes on is built from these.
"""

from __future__ import annotations

import base64
import hashlib
import re
from typing import Final

from velox.errors import Reason, VeloxError
from velox.heads import Headers, WebSocketOffer
from velox.protocol.heads.fields import HOP_BY_HOP, TOKEN, connection_members, field_values

__all__ = [
    "GOING_AWAY",
    "NO_CODE",
    "POLICY",
    "TOO_LARGE",
    "TRY_LATER",
    "FrameScanner",
    "HandshakeError",
    "accept_value",
    "check_accepted",
    "close_frame",
    "head_bytes",
    "offer_fields",
    "payload_bytes",
    "read_offer",
]

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

# RFC 6455 §7.4.1.
GOING_AWAY: Final = 1001
POLICY: Final = 1008  # a message that may not pass
TOO_LARGE: Final = 1009
TRY_LATER: Final = 1013  # IANA's registry of WebSocket close codes
NO_CODE: Final = 1005  # stands for a Close frame that gives none; never on a wire

_CLOSE: Final = 0x8
_FIN: Final = 0x80
_MASKED: Final = 0x80
_LENGTH: Final = 0x7F
_LENGTH_16: Final = 126
_LENGTH_64: Final = 127
_MAX_HEAD_BYTES: Final = 14
_MAX_CONTROL_BYTES: Final = 125  # §5.5, what a control frame may carry


class HandshakeError(Exception):
    """The upstream's 101 is none. The message says why, and repeats nothing that it sent."""


def read_offer(method: bytes, values: dict[bytes, bytes], *, http_1_0: bool, has_body: bool) -> WebSocketOffer | None:
    """Return the WebSocket that a client's upgrade offers. None: it offers none, and is ignored (RFC 9110 §7.8).

    values: name -> value of its fields, joined where there are several. Raises VeloxError(BAD_REQUEST) with close=True
    for an upgrade that names WebSocket and is not as §4.2.1 has it: a server that reads names more loosely than we do
    could take it for one.
    """
    if b"websocket" not in values[b"upgrade"].lower():
        return None
    if values[b"upgrade"].lower() != b"websocket":
        raise _bad("a WebSocket begins with Upgrade: websocket, and nothing beside it")
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


class FrameScanner:
    """Follows one direction of a WebSocket: does it stand between two frames, has it been closed, and why?

    However the bytes are cut into pieces, the answers are the same. It keeps at most 13 bytes. A length that no frame
    may have (above 2^63) is believed: such a direction comes to no end of a frame, and nothing is put into it.
    close_code: of the first Close frame that was whole; None before.
    """

    __slots__ = ("_code", "_head", "_is_close", "_left", "_mask", "close_code")

    def __init__(self) -> None:
        self._head = b""  # of a frame, as far as it has come
        self._left = 0  # bytes of the open frame's payload still to come
        self._is_close = False
        self._code = b""
        self._mask = b""
        self.close_code: int | None = None

    def __repr__(self) -> str:
        return f"<FrameScanner {'between' if self.between else 'in a frame'} close={self.close_code}>"

    @property
    def between(self) -> bool:
        """True when a frame may be put in here without touching another one."""
        return not self._left and not self._head

    def feed(self, data: bytes) -> None:
        """Follow bytes that were passed on."""
        at, n_bytes = 0, len(data)
        while at < n_bytes:
            at = self.feed_frame(data, at)

    def feed_frame(self, data: bytes, at: int = 0) -> int:
        """Follow bytes, from `at` to the end of the frame that is open there or begins there.

        Return where that is; where the data ends, if the frame goes on.
        """
        if not self._left:
            at = self._read_head(data, at)
            if self._head:
                return at
        n_taken = min(self._left, len(data) - at)
        if self._is_close:
            self._code += data[at : at + min(n_taken, 2 - len(self._code))]
        self._left -= n_taken
        if not self._left:
            self._end_frame()
        return at + n_taken

    def _read_head(self, data: bytes, at: int) -> int:
        n_known = len(self._head)
        head = self._head + data[at : at + _MAX_HEAD_BYTES - n_known]
        n_bytes = head_bytes(head)
        if len(head) < n_bytes:
            self._head = head
            return len(data)
        self._head = b""
        self._left = payload_bytes(head)
        self._is_close = head[0] & 0xF == _CLOSE
        if self._is_close:
            self._code = b""
            self._mask = head[n_bytes - 4 : n_bytes] if head[1] & _MASKED else b""
        return at + n_bytes - n_known

    def _end_frame(self) -> None:
        if self._is_close:
            self._is_close = False
            if self.close_code is None:
                code = _masked(self._code, self._mask)
                self.close_code = int.from_bytes(code) if len(code) == 2 else NO_CODE


def close_frame(code: int, text: str, mask: bytes = b"") -> bytes:
    """Return a Close frame. text: why, for people; short. mask: 4 unpredictable bytes towards a server, else none."""
    payload = code.to_bytes(2) + text.encode()
    assert len(payload) <= _MAX_CONTROL_BYTES, "the texts are Velox's own"
    head = bytes((_FIN | _CLOSE, (_MASKED if mask else 0) | len(payload)))
    return head + mask + _masked(payload, mask)


def head_bytes(head: bytes) -> int:
    """Return how long a frame's head is, as far as what has come of it tells."""
    if len(head) < 2:
        return 2
    length = head[1] & _LENGTH
    n_bytes = 2 + (2 if length == _LENGTH_16 else 8 if length == _LENGTH_64 else 0)
    return n_bytes + 4 if head[1] & _MASKED else n_bytes


def payload_bytes(head: bytes) -> int:
    """Return the length of a frame's payload. head: whole."""
    length = head[1] & _LENGTH
    if length == _LENGTH_16:
        return int.from_bytes(head[2:4])
    return int.from_bytes(head[2:10]) if length == _LENGTH_64 else length


def _masked(payload: bytes, mask: bytes) -> bytes:
    """Return the payload masked, or unmasked, which is the same (§5.3)."""
    return bytes(byte ^ mask[index % 4] for index, byte in enumerate(payload)) if mask else payload
