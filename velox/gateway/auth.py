"""Who is calling: the keys that clients must present, where any are configured.

Knows: digests of the keys (never the keys), whom each belongs to, and which web pages need one. Does not know: what a
caller may use (access.py), or what goes upstream.

A client may send several credentials: Claude Code does, where a login was left over beside the key for a gateway. It is
who the one known key says; of the others nothing is known, so nobody else is meant, and none goes up from here. Keys of
two callers are refused: whoever reads the other one would take the request for somebody else's.

Whatever is wrong with a credential, or if there is none, the answer is the same. The digest of what was
presented is looked up under a MAC that only this process can compute, so what the time of a look-up tells is of a value
that nobody can aim at; then it is compared in constant time, with a digest that matches nothing if none was found.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import struct
from collections.abc import Container, Sequence
from typing import Final
from urllib.parse import urlsplit

from velox.errors import Reason, VeloxError
from velox.gateway.reply.addresses import NO_PASS, AddressPass
from velox.heads import RequestHead
from velox.policy.web_origins import WebOrigins
from velox.protocol.heads.own_names import is_local
from velox.providers.rows import OPENAI
from velox.types import ANYONE, Caller, KeyEntry, KeyUpdate

__all__ = ["Authenticator", "caller_of", "presented_key", "seal_upload"]

_SCHEME: Final = b"bearer"
_KEY_HEADERS: Final = frozenset({b"x-api-key", b"api-key", b"x-goog-api-key"})
_CREDENTIALS: Final = _KEY_HEADERS | {b"authorization"}
_MAX_KEY_BYTES: Final = 8192
_LOOPBACK: Final = frozenset({"127.0.0.1", "::1"})
# RFC 9110 §11.6.1: a 401 says how to do better.
_CHALLENGE: Final = ((b"www-authenticate", b"Bearer"),)
_NO_DIGEST: Final = bytes(32)
_OTHER_SCHEME: Final = b" "  # no key begins with it
_ID_BYTES: Final = 8
_NO_PAGES: Final = WebOrigins(())
_CHECKSUM: Final = struct.Struct("=QQ")
_MASK: Final = 2**64 - 1


class Authenticator:
    """Checks the key of a request. keys: none means that anyone may call, and that stays so.

    requires_keys: clients must present a key, even while none is accepted. hosts: lower-case names of this gateway,
    whose web pages may call it without a key; pages: their origins. secret: signs passes of addresses; gateways may
    share one. None: one that only this gateway has.
    """

    def __init__(
        self,
        keys: Sequence[KeyEntry],
        *,
        requires_keys: bool = False,
        hosts: frozenset[str] = frozenset(),
        pages: WebOrigins = _NO_PAGES,
        secret: bytes | None = None,
    ) -> None:
        self.passes: Final = AddressPass(secret or secrets.token_bytes(32))
        self._requires_keys: Final = requires_keys or bool(keys)
        self._hosts: Final = hosts
        self._pages: Final = pages
        self._mac_key: Final = secrets.token_bytes(32)
        self._by_mac: Final[dict[bytes, tuple[bytes, Caller]]] = {}
        self._fingerprint = 0
        self.has_several = False  # callers of different names
        self.change({key.digest: key for key in keys})

    def __repr__(self) -> str:
        return f"<Authenticator keys={len(self._by_mac)}>"

    @property
    def requires_keys(self) -> bool:
        """True when clients must present a key."""
        return self._requires_keys

    def change(self, update: KeyUpdate) -> None:
        """Accept each of these digests as its entry says, or no longer. Who kept a caller must ask again."""
        fingerprint = self._fingerprint
        for digest, key in update.items():
            mac = self._mac(digest)
            before = self._by_mac.pop(mac, None)
            if before is not None:
                fingerprint -= hash(before)
            if key is not None:
                accepted = self._by_mac[mac] = (digest, caller_of(key))
                fingerprint += hash(accepted)
        self._fingerprint = fingerprint & _MASK
        names = (caller.name for _, caller in self._by_mac.values())
        first = next(names, "")
        self.has_several = any(name != first for name in names)

    @property
    def checksum(self) -> bytes:
        """Return a checksum of the accepted keys: equal in processes that accept the same keys for the same callers.

        It is the number of keys and the sum of their hashes, so that each change costs as much as it is. Only processes
        that were forked from one another can compare it: Python's hashes depend on a secret that these share.
        """
        return _CHECKSUM.pack(len(self._by_mac), self._fingerprint)

    def caller(self, digest: bytes) -> Caller | None:
        """Return for whom a digest is accepted; None: it is not."""
        return self._by_mac.get(self._mac(digest), (digest, None))[1]

    def beyond(self, digests: Container[bytes]) -> dict[bytes, Caller]:
        """Return what is accepted besides these, and for whom. Looks at all keys."""
        return {digest: caller for digest, caller in self._by_mac.values() if digest not in digests}

    def called(self, name: str) -> list[Caller]:
        """Return the callers of this name, or of this id as records have it. Looks at all keys."""
        return [caller for _, caller in self._by_mac.values() if name in (caller.name, caller.account, caller.id.hex())]

    def check(self, head: RequestHead) -> Caller:
        """Return whose key it is; ANYONE without keys.

        Raises VeloxError: AUTH_INVALID without a key of ours, BAD_REQUEST for keys of two callers, FORBIDDEN for a web
        page from elsewhere where there are no keys.
        """
        if not self._requires_keys:
            self._check_page(head)
            return ANYONE
        return self.accepted(head)[1]

    def accepted(self, head: RequestHead) -> tuple[bytes, Caller]:
        """Return the digest of the key that a request is let in with, and whose it is. Raises VeloxError, as check."""
        found: tuple[bytes, Caller] | None = None
        for digest in self._digests(head):
            known, caller = self._by_mac.get(self._mac(digest), (_NO_DIGEST, None))
            if not hmac.compare_digest(digest, known) or caller is None:
                continue
            if found is not None and found[1] != caller:
                raise _two_credentials(head, "keys of two callers were given")
            found = digest, caller
        if found is None:
            message = "no valid API key was given; send Authorization: Bearer KEY"
            raise VeloxError(Reason.AUTH_INVALID, message, headers=_CHALLENGE)
        return found

    def _digests(self, head: RequestHead) -> list[bytes]:
        """Return those of what a request presents: mostly of one key."""
        digests = [hashlib.sha256(key).digest() for key in _presented(head) if _may_be_key(key)]
        if NO_PASS not in head.shape.query:
            return digests
        # The pass in the address of an upload stands for the key of whom it was given to.
        passed = self.passes.opened(head.target)
        if passed is None or (digests and passed.digest not in digests):
            return []
        return [passed.digest]

    def _check_page(self, head: RequestHead) -> None:
        """Refuse a web page from elsewhere.

        A browser lets any page send a form, or open a WebSocket (RFC 6455 §10.2), to any address, this machine's own
        too, and asks nobody before: without a key of its own the page would use ours.
        """
        origin = head.header(b"origin")
        if origin is None:
            return
        try:
            host = urlsplit(origin.decode("ascii")).hostname or ""
        except ValueError:
            host = ""
        is_ours = host in _LOOPBACK or host in self._hosts or is_local(host)
        if not is_ours and not self._pages.names(origin):
            message = "a web page from elsewhere may use this gateway only with a key of it (VELOX_API_KEYS)"
            raise VeloxError(Reason.FORBIDDEN, message)

    def _mac(self, digest: bytes) -> bytes:
        # A MAC by itself (RFC 7693 §2.9), in a third of the time of HMAC-SHA256.
        return hashlib.blake2b(digest, key=self._mac_key, digest_size=32).digest()


def caller_of(key: KeyEntry) -> Caller:
    """Return who calls with a key."""
    return Caller(key.caller_name, key.terms, key.id or key.digest[:_ID_BYTES], key.account)


def seal_upload(auth: Authenticator, head: RequestHead, target: bytes, upstream: str) -> bytes:
    """Return the path of an upload as its client may use it without a key. head: of the request that began it."""
    passed = auth.passes.opened(head.target) if NO_PASS in head.query else None
    digest = _NO_DIGEST
    if passed is not None:
        digest = passed.digest
    elif auth.requires_keys:
        digest, _ = auth.accepted(head)
    return auth.passes.sealed(target, upstream, digest)


def presented_key(head: RequestHead) -> bytes:
    """Return the key that the client sent, for a provider to check; b"" if it sent none that could be one.

    Raises VeloxError: BAD_REQUEST for two credentials that are not the same, as nobody here can tell which is meant.
    """
    found = _presented(head)
    if len(found) > 1:
        raise _two_credentials(head, "two different credentials were given")
    key = next(iter(found), b"")
    return key if _may_be_key(key) else b""


def _presented(head: RequestHead) -> set[bytes]:
    """Return all credentials of a request; one of another scheme than Bearer begins with _OTHER_SCHEME."""
    found: set[bytes] = set()
    for name, value in [field for field in head.headers if field[0] in _CREDENTIALS]:
        if name == b"authorization":
            scheme, _, key = value.partition(b" ")
            found.add(key.strip() if scheme.lower() == _SCHEME else _OTHER_SCHEME + value)
        else:
            found.add(value)
    if head.offer is not None:
        found |= {OPENAI.key_in(protocol) for protocol in head.offer.protocols}
    found.discard(b"")
    return found


def _may_be_key(credential: bytes) -> bool:
    return 0 < len(credential) <= _MAX_KEY_BYTES and not credential.startswith(_OTHER_SCHEME)


def _two_credentials(head: RequestHead, problem: str) -> VeloxError:
    """Return the refusal of two credentials, which names where they stand."""
    names = {name.decode("ascii") for name, value in head.headers if name in _CREDENTIALS and value}
    if head.offer is not None and any(OPENAI.key_in(protocol) for protocol in head.offer.protocols):
        names.add("sec-websocket-protocol")
    where = " and ".join(sorted(names))
    message = f"{problem}, in {where}; send one, as Authorization: Bearer KEY (of ANTHROPIC_API_KEY and "
    return VeloxError(Reason.BAD_REQUEST, f"{message}ANTHROPIC_AUTH_TOKEN unset one)")
