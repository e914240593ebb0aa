"""TLS towards upstreams: verification is always on, and plain text is never a fallback.

Knows: trust, versions, ALPN, our own certificate, sessions that may be resumed. Does not know: which connection uses a
context, or how bytes come and go.

A resumed session (RFC 8446 §2.2) spares the upstream a signature and the wire its certificates; for us a dial costs
about 0.9 ms of a core either way. It shows no certificate: it rests on the handshake that made the session. So there
is a context for each origin, sessions never outlive the certificate that was verified, nor _TRUST_S, and any failure
of a handshake forgets them. What is trusted is shared by all origins that have it in common (SharedContexts).

SSLObject.session leaks a copy of the session, 7 KB, each time it is read (CPython before 3.12.8 and 3.13.1, gh-116810).
So one session serves all dials for as long as the upstream takes it, and reads are rationed: where tickets are good for
one handshake, or the upstream forgets them, dials shake hands wholly instead.
"""

from __future__ import annotations

import ssl
import sys
import time
from pathlib import Path
from typing import Final, Literal, TypeAlias, cast
from weakref import WeakValueDictionary

__all__ = ["SharedContexts", "UpstreamContext", "upstream_context"]

Http2: TypeAlias = Literal["auto", "on", "off"]

# How long a certificate that was verified is believed. Servers drop their ticket keys after an hour to a day.
_TRUST_S: Final = 3600.0
# How often in _TRUST_S a session may be read: at worst 3 MB a day are lost for each origin and worker.
_MAX_READS: Final = 16
# TLS 1.3 sends tickets after the handshake: how long to wait when they have not been there yet.
_TICKET_WAIT_S: Final = 1.0


class _SecuredObject(ssl.SSLObject):
    """The TLS side of a connection, which knows the session that it offered."""

    offered: ssl.SSLSession | None = None


class UpstreamContext(ssl.SSLContext):
    """A client's context for one origin, which offers the session that it has.

    It is a subclass because asyncio and uvloop make the SSLObject themselves: wrap_bio is where a session fits in. Of
    its own it has nothing else: the handshake is that of `shared`, which other origins use as well.
    """

    def __init__(self, shared: ssl.SSLContext) -> None:
        self._shared: Final = shared
        self._session: ssl.SSLSession | None = None
        self._unread: ssl.SSLObject | None = None  # whose session is to be read
        self._until_s = 0.0  # monotonic, as those below: when the trust in either ends
        self._read_from_s = 0.0
        self._ration_until_s = 0.0
        self._n_reads = 0

    def __new__(cls, shared: ssl.SSLContext) -> UpstreamContext:
        return super().__new__(cls, ssl.PROTOCOL_TLS_CLIENT)

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """Make the TLS side of a connection; it resumes an earlier one's session where there is one."""
        if session is None:
            session = self._offer(time.monotonic())
        made = self._shared.wrap_bio(incoming, outgoing, server_side, server_hostname, session)
        cast(_SecuredObject, made).offered = session
        return made

    def keep(self, connected: ssl.SSLObject) -> None:
        """Resume this connection's session from now on, unless there is a good one. Its handshake has ended well.

        The object is kept, and no session yet: with TLS 1.3 there is none before the server's tickets have been read.
        """
        if connected.session_reused or cast(_SecuredObject, connected).offered is not self._session:
            return  # the session of now was taken, or not offered: it may still be good
        if self._unread is not None:
            return  # its tickets come sooner than this one's
        self._session = None
        self._unread = connected
        self._until_s = time.monotonic() + min(_TRUST_S, _validity_s(connected))

    def forget(self) -> None:
        """Resume nothing: the next handshake is a whole one."""
        self._session = None
        self._unread = None

    def _offer(self, now_s: float) -> ssl.SSLSession | None:
        if now_s >= self._until_s:
            self.forget()
        elif self._session is None and self._unread is not None and self._may_read(now_s):
            self._session, self._unread = _session_of(self._unread), None
            if self._session is None:
                self._read_from_s = now_s + _TICKET_WAIT_S
        return self._session

    def _may_read(self, now_s: float) -> bool:
        if now_s >= self._ration_until_s:
            self._ration_until_s = now_s + _TRUST_S
            self._n_reads = 0
        if now_s < self._read_from_s or self._n_reads >= _MAX_READS:
            return False
        self._n_reads += 1
        return True


class _SharedContext(ssl.SSLContext):
    """What origins have in common: trust, versions, ALPN, our own certificate."""

    sslobject_class = _SecuredObject


class SharedContexts:
    """The contexts of one process, each shared by all origins that trust and show the same.

    To read the system's certificates takes some 10 ms and 0.8 MB each time, and an origin needs two contexts. A file
    that has changed is read anew for the origins that come then.
    """

    def __init__(self) -> None:
        self._known: Final[WeakValueDictionary[tuple[object, ...], _SharedContext]] = WeakValueDictionary()

    def context(
        self, http2: Http2, ca_file: str | None, cert_file: str | None = None, key_file: str | None = None
    ) -> UpstreamContext:
        """Return the context for one origin, as upstream_context() does."""
        paths = ssl.get_default_verify_paths()
        trusted = (paths.cafile, paths.capath) if ca_file is None else (ca_file,)
        kind = (http2, *(_state(path) for path in (*trusted, cert_file, key_file)))
        shared = self._known.get(kind)
        if shared is None:
            shared = self._known[kind] = _shared_context(http2, ca_file, cert_file, key_file)
        return UpstreamContext(shared)


def upstream_context(
    http2: Http2, ca_file: str | None, cert_file: str | None = None, key_file: str | None = None
) -> UpstreamContext:
    """Build the context for one origin, which shares it with none.

    ca_file: PEM bundle that replaces the system's trust store. cert_file, key_file: what we show to an upstream that
    asks; without key_file the key is in cert_file. Raises OSError (ssl.SSLError is one) for a file that is no good.
    """
    return SharedContexts().context(http2, ca_file, cert_file, key_file)


def _state(path: str | None) -> tuple[object, ...]:
    """Return a file, and as what it is there now."""
    try:
        found = None if path is None else Path(path).stat()
    except OSError:
        found = None
    return (path,) if found is None else (path, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


def _shared_context(http2: Http2, ca_file: str | None, cert_file: str | None, key_file: str | None) -> _SharedContext:
    context = _SharedContext(ssl.PROTOCOL_TLS_CLIENT)  # CERT_REQUIRED and check_hostname
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if sys.version_info >= (3, 13):  # as ssl.create_default_context does from then on
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | ssl.VERIFY_X509_STRICT
    if ca_file is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        context.load_verify_locations(ca_file)
    if cert_file is not None:
        # A key that asks for a password would block on the terminal: an empty one makes it an error.
        context.load_cert_chain(cert_file, key_file, password="")
    offers = {"auto": ["h2", "http/1.1"], "on": ["h2"], "off": ["http/1.1"]}
    context.set_alpn_protocols(offers[http2])
    return context


def _session_of(connected: ssl.SSLObject) -> ssl.SSLSession | None:
    """Return what a later handshake can resume; None: nothing, or nothing yet."""
    try:
        session = connected.session
    except ValueError:
        return None  # above 64 KB: the ticket, or the upstream's certificate
    return session if session is not None and session.id else None


def _validity_s(connected: ssl.SSLObject) -> float:
    """Return for how long the upstream's certificate is valid from now on."""
    certificate = connected.getpeercert()
    assert certificate, "a context that requires certificates got one"
    return ssl.cert_time_to_seconds(str(certificate["notAfter"])) - time.time()
