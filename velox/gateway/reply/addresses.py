"""Addresses in answers lead to this gateway, never past it: results of batches, uploads, operations, next pages.

    UpstreamAddresses  which addresses are an upstream's, and what their path is here
    AddressFilter      puts the gateway's own in their place: in fields of the head, and in JSON
    AddressPass        lets an address of an upload be used without a key, by whom it was given, at its upstream

A client that follows an address of the upstream's would send its key of Velox there, or go out by itself. Only what the
upstream's own origin is the begin of is changed. Addresses of other hosts pass as they are: they are signed already, as
those of pictures and of cloud storage, want no key, and lead to what the upstream has put there for the client.

Knows: addresses. Does not know: who may use what they name (ownership.py), or which calls tell of them (plan.py).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import time
from collections.abc import Callable, Sequence
from typing import ClassVar, Final, NamedTuple
from urllib.parse import urlsplit

from velox.gateway.reply.filters import ReplyFilter
from velox.gateway.reply.pipeline import FilterOrder
from velox.heads import Headers, ReplyHead, RequestHead
from velox.types import Origin

__all__ = [
    "ADDRESS_FIELDS",
    "NO_PASS",
    "AddressFilter",
    "AddressPass",
    "Passed",
    "PublicOrigin",
    "UpstreamAddresses",
]

# Fields of a reply that hold an address, which some client follows.
ADDRESS_FIELDS: Final = frozenset(
    {b"location", b"content-location", b"link", b"refresh", b"operation-location", b"azure-asyncoperation"}
    | {b"x-goog-upload-url", b"x-goog-upload-control-url"}
)
# What an upload goes to, piece by piece: its clients send no key with these.
_UPLOAD_FIELDS: Final = (b"x-goog-upload-url", b"x-goog-upload-control-url")
_LINK: Final = re.compile(rb"<([^<>]*)>")
_NAME: Final = b"velox-pass"
_PASS: Final = re.compile(rb"[?&]velox-pass=([A-Za-z0-9_-]+)$")
_MAC_BYTES: Final = 16
_DIGEST_BYTES: Final = 32
_TIME_BYTES: Final = 5
# Files of Gemini are kept for two days; an upload that takes longer begins again.
_VALID_S: Final = 48 * 3600
_JSON: Final = b"json"
# Google's file in a body, by an address: what stands before its path.
_FILE: Final = re.compile(rb'"(https?:(?:\\?/){2}[^/"\\]{1,255})(?=(?:\\?/)v1(?:alpha|beta)(?:\\?/)files(?:\\?/))')


class PublicOrigin:
    """How clients reach this gateway. url: as it was configured; b"": by the Host that a client names."""

    def __init__(self, url: bytes = b"", *, has_tls: bool = False) -> None:
        self._url: Final = url
        self._scheme: Final = b"https" if has_tls else b"http"

    def here(self, head: RequestHead) -> bytes:
        """Return the begin of the address that a client has used; b"" if it named none."""
        if self._url:
            return self._url
        host = head.shape.host
        return b"%b://%b" % (self._scheme, host) if host else b""


class UpstreamAddresses:
    """Of one upstream. origins: all that its addresses may begin with, the provider's own last. before: what the
    provider's row puts in front of paths that go up as they came.

    name: the upstream's.
    """

    def __init__(self, name: str, origins: Sequence[Origin], before: bytes = b"") -> None:
        self.name: Final = name
        self._own: Final = str(origins[-1]).encode("ascii")
        hosts = {each.host_header.lower() for each in origins} | {
            f"{each.host}:{each.port}".encode("ascii").lower() for each in origins
        }
        self._hosts: Final = frozenset(hosts)
        bases = {each.base_path.encode("ascii") for each in origins}
        ends = {base + end for base in bases for end in (before, b"")} - {b""}
        self._bases: Final[tuple[bytes, ...]] = tuple(sorted(ends, reverse=True))  # "/a/b" before "/a"
        slash = rb"\\?/"
        written = b"|".join(sorted(map(re.escape, hosts), reverse=True))
        ways = b"|".join(re.escape(base).replace(b"/", slash) for base in self._bases)
        below = rb"(?:(?:%b)(?=\\?/))?" % ways if ways else b""
        # A whole origin, and the base of the API, at the begin of a text of JSON.
        self._texts: Final = re.compile(rb'"https?:(?:\\?/){2}(?:%b)%b(?=[\\/?#"])' % (written, below), re.IGNORECASE)
        self._longest: Final = max(map(len, hosts), default=0) + 2 * max(map(len, self._bases), default=0) + 16

    def __repr__(self) -> str:
        return f"<UpstreamAddresses {self.name} {sorted(self._hosts)}>"

    def path_of(self, address: bytes) -> bytes | None:
        """Return the path and query that an address of the upstream's has here; None: it is another host's."""
        if not address.startswith(b"/") or address.startswith(b"//"):
            try:
                parts = urlsplit(address.decode("latin-1"))
            except ValueError:
                return None
            if parts.netloc.rpartition("@")[2].lower().encode("latin-1") not in self._hosts:
                return None
            address = address[address.index(parts.netloc.encode("latin-1")) + len(parts.netloc) :] or b"/"
        for base in self._bases:
            if address.startswith(base + b"/"):
                return address[len(base) :]
        return address

    def rewritten(self, data: bytes, here: bytes, end: bool) -> tuple[bytes, bytes]:
        """Return JSON in which texts that are addresses of the upstream's are the gateway's, and what is left of it.

        end: nothing more comes. Left is what may be the begin of an address, to be given again with what follows.
        """
        found: list[bytes] = []
        at, whole = 0, len(data) if end else len(data) - self._longest
        for match in self._texts.finditer(data):
            if match.start() > whole:
                break  # the base of the API may come yet
            found += (data[at : match.start()], b'"', here)
            at = match.end()
        left = -1 if end else data.find(b'"', max(at, whole))
        if left < 0:
            left = len(data)
        found.append(data[at:left])
        return b"".join(found), data[left:]

    def taken_back(self, body: bytes | bytearray, here: bytes) -> bytes | bytearray:
        """Return a body that names files of Google's as Google knows them, where a client names them as they are here.

        Of other APIs no address is part of a request.
        """
        own = self._own
        if not here or _FILE.search(body) is None:
            return body
        return _FILE.sub(lambda found: b'"' + (own if found[1].replace(b"\\/", b"/") == here else found[1]), body)


class Passed(NamedTuple):
    """What a pass says. target: without it. digest: of the key of whom it was given to."""

    target: bytes
    upstream: str
    digest: bytes


class AddressPass:
    """Makes and reads what is added to the address of an upload. secret: the same in all processes of a gateway."""

    def __init__(self, secret: bytes, wall: Callable[[], float] = time.time) -> None:
        self._secret: Final = hashlib.blake2b(secret, person=b"velox address").digest()
        self._wall: Final = wall

    def __repr__(self) -> str:
        return "<AddressPass>"

    def sealed(self, target: bytes, upstream: str, digest: bytes) -> bytes:
        """Return a path and query that may be used without a key. digest: of the key; empty: none is asked for."""
        until = int(self._wall() + _VALID_S).to_bytes(_TIME_BYTES)
        said = until + digest.rjust(_DIGEST_BYTES, b"\0") + upstream.encode("utf-8")
        sealed = base64.urlsafe_b64encode(self._mac(target, said) + said).rstrip(b"=")
        return b"%b%b%b=%b" % (target, b"&" if b"?" in target else b"?", _NAME, sealed)

    def opened(self, target: bytes) -> Passed | None:
        """Return what the pass of a path and query says; None: there is none that holds."""
        found = _PASS.search(target)
        if found is None:
            return None
        try:
            sealed = base64.urlsafe_b64decode(found[1] + b"=" * (-len(found[1]) % 4))
        except (ValueError, binascii.Error):
            return None
        mac, said, target = sealed[:_MAC_BYTES], sealed[_MAC_BYTES:], target[: found.start()]
        if not hmac.compare_digest(mac, self._mac(target, said)):
            return None
        if int.from_bytes(said[:_TIME_BYTES]) < self._wall():
            return None
        end = _TIME_BYTES + _DIGEST_BYTES
        return Passed(target, said[end:].decode("utf-8", "replace"), said[_TIME_BYTES:end])

    def _mac(self, target: bytes, said: bytes) -> bytes:
        text = len(target).to_bytes(8) + target + said
        return hashlib.blake2b(text, key=self._secret, digest_size=_MAC_BYTES).digest()


NO_PASS: Final = _NAME + b"="  # not in a query without one


class AddressFilter(ReplyFilter):
    """Puts the gateway's addresses in the place of the upstream's; what can't be is left out.

    upstream: of the attempt whose reply it is. here: the gateway's origin; b"": none is known. seal: adds to the
    address of an upload what lets it be used without a key; None: uploads are left out. reads_texts: of JSON, too.
    """

    __slots__ = ("_held", "_here", "_reads_texts", "_seal", "upstream")
    order: ClassVar[int] = FilterOrder.ADDRESSES

    def __init__(
        self, here: bytes, seal: Callable[[bytes, str], bytes] | None = None, *, reads_texts: bool = False
    ) -> None:
        super().__init__()
        self.upstream: UpstreamAddresses | None = None
        self._here: Final = here
        self._seal: Final = seal
        self._reads_texts: Final = reads_texts
        self._held = b""

    def begin(self, head: ReplyHead, *, is_sse: bool, is_plain: bool) -> ReplyHead:
        """Change the fields of the head."""
        upstream = self.upstream
        self._held = b""
        if upstream is None:
            self.reads_body = False
            return head
        headers = self._changed(head.headers, upstream)
        media = next((value.lower() for name, value in headers if name == b"content-type"), b"")
        is_json = _JSON in media and b"jsonl" not in media and b"json-seq" not in media and b"ndjson" not in media
        self.reads_body = self._reads_texts and is_json and is_plain and not is_sse
        length = None if self.reads_body else head.content_length
        return ReplyHead.of(head.status, headers, length, head.until_close)

    def feed(self, data: bytes, end: bool) -> bytes:
        """Change the texts of JSON, however it is cut into pieces."""
        upstream = self.upstream
        assert upstream is not None, "begin() has looked"
        data, self._held = upstream.rewritten(self._held + data, self._here, end)
        return data

    def _changed(self, headers: Headers, upstream: UpstreamAddresses) -> Headers:
        found: Headers = []
        for name, value in headers:
            if name not in ADDRESS_FIELDS:
                found.append((name, value))
            elif name == b"link":
                found.append((name, _LINK.sub(lambda each: b"<%b>" % (self._one(each[1], upstream) or b""), value)))
            elif name in _UPLOAD_FIELDS:
                path = upstream.path_of(value)
                if path is not None and self._seal is not None and self._here:
                    found.append((name, self._here + self._seal(path, upstream.name)))
            elif (changed := self._one(value, upstream)) is not None:
                found.append((name, changed))
        return found

    def _one(self, address: bytes, upstream: UpstreamAddresses) -> bytes | None:
        """Return an address as the client gets it; None: it does not get it."""
        path = upstream.path_of(address)
        if path is None or address.startswith(b"/"):
            return address if path is None else path
        return self._here + path if self._here else None
