"""The request as it goes up: built from what may pass, never copied (R-H1-11).

Knows: which of the client's headers go up, which credential, which path. Does not know: connections.
"""

from __future__ import annotations

import re
from typing import Final, TypeAlias

from velox.memo import Memo
from velox.net.upstream.interface import UpstreamRequest
from velox.policy.routes import NO_RULES, HeaderRules
from velox.protocol.http1_write import field_lines
from velox.protocol.model_rewrite import with_query_model
from velox.protocol.websocket_handshake import offer_fields
from velox.providers.openai import Provider
from velox.types import BodyFields, Header, Headers, RequestHead, WebSocketOffer

__all__ = ["Forwarder"]

# R-SEC-1: never passed from client to upstream. Host, framing and hop-by-hop headers are gone before (protocol/http1).
_NEVER: Final = frozenset(
    {b"cookie", b"proxy-authorization", b"forwarded", b"via", b"x-real-ip", b"content-encoding", b"expect"}
)
_CREDENTIALS: Final = frozenset({b"authorization", b"x-api-key", b"api-key", b"x-goog-api-key"})
# RFC 9110 §8.6: a request of these methods states its length though it is 0; without it some servers answer 411.
_WITH_CONTENT: Final = frozenset({b"POST", b"PUT", b"PATCH"})
_KEPT_HEADS: Final = 512
_DEADLINE: Final = b"x-request-timeout-ms"  # the client's, for Velox; the upstream's time is part of it
_Key: TypeAlias = tuple[bytes, bool, HeaderRules | None]
_Built: TypeAlias = tuple[bytes, Headers, bytes]  # target, headers, and these as lines
_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9_-]{1,64}")


class Forwarder:
    """Builds upstream requests for one upstream.

    base_path: "" or "/x". key: the upstream's credential; without it the client's own passes, unless
    client_keys_are_ours (clients present keys of Velox, which no upstream may see). account_headers_pass: those of the
    provider, also where the client's own key does not pass. added: to every request, in place of the client's.
    kept_heads: of clients, with what became of them.
    """

    def __init__(
        self,
        provider: Provider,
        *,
        base_path: str,
        root_path: str,
        key: str | None,
        client_keys_are_ours: bool,
        account_headers_pass: bool = False,
        added: tuple[Header, ...] = (),
        kept_heads: int = _KEPT_HEADS,
    ) -> None:
        self._base_path: Final = base_path.encode("ascii")
        self._root_path: Final = root_path.encode("ascii")
        # What no reply may show; None where the client's own key passes.
        self.secret: Final = None if key is None else key.encode("latin-1")
        self._credential: Final[tuple[Header, ...]] = () if key is None else (provider.credential(key),)
        self._added: Final = added
        dropped = _NEVER | {name for name, _ in added}
        dropped_protocols: tuple[bytes, ...] = ()
        if key is not None or client_keys_are_ours:
            dropped |= _CREDENTIALS if account_headers_pass else _CREDENTIALS | provider.account_headers
            dropped_protocols = (provider.key_protocol, *(() if account_headers_pass else provider.account_protocols))
        self._dropped: Final = dropped
        self._dropped_protocols: Final = dropped_protocols
        self._built: Final[Memo[_Key | None, _Built]] = Memo(kept_heads)

    def build(
        self,
        head: RequestHead,
        peek: BodyFields,
        body: bytes | bytearray | None,
        *,
        to_be_read: bool = False,
        rules: HeaderRules = NO_RULES,
    ) -> UpstreamRequest:
        """Return the request to send. to_be_read: Velox reads the reply, which must not be compressed then.

        rules: for the client's headers.
        """
        # Equal heads, which have equal keys, go up as equal headers, whatever their bodies.
        is_plain = peek.stream or to_be_read
        key = None if head.key is None else (head.key, is_plain, None if rules is NO_RULES else rules)
        target, headers, lines = self._built.get(key) or self._keep(key, head, rules, is_plain=is_plain)
        if body is None and head.method in _WITH_CONTENT:
            body = b""
        return UpstreamRequest(head.method, target, headers, lines, body)

    def build_upgrade(
        self, head: RequestHead, model: str | None = None, rules: HeaderRules = NO_RULES
    ) -> UpstreamRequest:
        """Return the request to send for a WebSocket. model: in place of the one that the query names."""
        assert head.offer is not None, "asked for heads that offer one"
        protocols = tuple(each for each in head.offer.protocols if not each.startswith(self._dropped_protocols))
        offer = WebSocketOffer(head.offer.key, protocols, head.offer.extensions)
        headers = [*self._headers(head, rules, is_plain=False), *offer_fields(offer)]
        target = self._target(head)
        if model is not None and head.query:
            path, _, query = target.partition(b"?")
            target = path + b"?" + with_query_model(query, model)
        return UpstreamRequest(head.method, target, headers, field_lines(headers), None, offer)

    def _keep(self, key: _Key | None, head: RequestHead, rules: HeaderRules, *, is_plain: bool) -> _Built:
        headers = self._headers(head, rules, is_plain=is_plain)
        built = self._target(head), headers, field_lines(headers)
        return built if key is None else self._built.put(key, built)

    def _headers(self, head: RequestHead, rules: HeaderRules, *, is_plain: bool) -> Headers:
        """Choose what goes up of the client's headers, and add our own. is_plain: no compressed reply may come."""
        headers: Headers = []
        replaced = rules.names
        ours = [*rules.set, *(field for field in self._added if field[0] not in replaced)]
        for header in head.headers:
            name = header[0]
            if name in self._dropped or (name == b"accept-encoding" and is_plain) or name in replaced:
                continue
            if name.startswith(b"x-") and not _passes_x(header):
                continue
            headers.append(header)
        if is_plain:
            # R-BODY-3: a compressed stream could not be watched for its end, and would be held up by its compressor.
            headers.append((b"accept-encoding", b"identity"))
        headers.extend(field for field in ours if not is_plain or field[0] != b"accept-encoding")
        headers.extend(self._credential)
        return headers

    def warmup(self, path: str) -> UpstreamRequest:
        """Return the HEAD that warms a connection."""
        target = self._base_path + path.encode("ascii")
        headers = [(b"user-agent", b"velox"), *self._credential]
        return UpstreamRequest(b"HEAD", target, headers, field_lines(headers), None)

    def _target(self, head: RequestHead) -> bytes:
        if head.path == b"/" and head.method == b"POST":
            query = b"?" + head.query if head.query else b""
            return self._base_path + self._root_path + query
        return self._base_path + head.target


def _passes_x(header: Header) -> bool:
    """Look at an `x-` header: forwarding claims and what is for Velox are not taken from a client (B-26)."""
    name, value = header
    if name == _DEADLINE or name.startswith((b"x-forwarded-", b"x-velox-")):
        return False
    return name != b"x-request-id" or _REQUEST_ID.fullmatch(value) is not None
