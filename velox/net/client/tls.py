"""TLS with clients: the handshake, then records, between an accepted socket and the client's connection above.

Knows: handshakes and how they fail, records, close_notify. Does not know: HTTP, or which files the certificate is from.

OpenSSL is used over memory BIOs, as asyncio and uvloop do; the loop sees a plain socket. Own code, because theirs tells
the application nothing of a connection before its handshake has ended well: it could be neither counted nor bounded,
and a request in plain text could get no answer. It is cheaper, too (docs/decisions/0014).

    what comes    one read of the socket brings all records that have arrived; they go up as one piece. A handshake, or
                  many records, that come in a turn of the loop whose time is over wait for a later one as they are
                  (net/turn_budget.py); the socket is not read meanwhile
    what goes     each write becomes records at once; only the socket's own buffer holds what the client has not taken,
                  so the limits of a plain connection hold for this one
    how it ends   close(), write_eof(): close_notify, then FIN. abort(): a reset and no close_notify, so that a reply
                  that only the end of the connection ends can't look whole (RFC 8446 §6.1)
"""

from __future__ import annotations

import asyncio
import enum
import ssl
from collections.abc import Callable, Iterable
from typing import Any, Final, cast

from velox.net.client.ingress import Ingress
from velox.net.client.ingress_state import FIRST_REQUEST_S, LINGER_S
from velox.net.client.layered_transport import LayeredTransport
from velox.net.tls_failures import PLAIN_HTTP_REPLY, cause_of, is_http
from velox.outcomes import TlsFailure

__all__ = ["TlsConnection", "TlsIngress"]

# RFC 8446 §5.1: a record that carries a handshake begins with this byte; no other kind comes first.
_HANDSHAKE: Final = 0x16
# The most that a record holds; one SSL_read brings one record.
_RECORD_BYTES: Final = 16 * 1024
# What is decrypted whatever the time of this turn: less than the request in it costs.
_SHORT_BYTES: Final = 4096
# What one read of the socket takes. OpenSSL's BIOs never shrink, so this also bounds what an idle connection holds.
_READ_BYTES: Final = 64 * 1024


class _State(enum.IntEnum):
    NEW = 0  # nothing has come
    HANDSHAKE = 1
    OPEN = 2
    ENDED = 3  # our side is over; what still comes is thrown away


class TlsIngress:
    """What the TLS connections of one worker share.

    context: for the handshakes that begin from now on; it may be exchanged at any time.
    on_handshake: called after each successful one, with whether it resumed a session. on_failure: after each other.
    """

    def __init__(
        self,
        ingress: Ingress,
        context: ssl.SSLContext,
        *,
        on_handshake: Callable[[bool], None],
        on_failure: Callable[[TlsFailure], None],
    ) -> None:
        self.ingress: Final = ingress
        self.context = context
        self.on_handshake: Final = on_handshake
        self.on_failure: Final = on_failure
        # One for all: what a read brought has been decrypted before the next one begins.
        self.view: Final = memoryview(bytearray(_READ_BYTES))

    def connection(self) -> TlsConnection:
        """Make the protocol of an accepted socket."""
        return TlsConnection(self)


class TlsConnection(asyncio.BufferedProtocol, LayeredTransport):
    """One client's TLS: the protocol of its socket, and the transport of its connection."""

    def __init__(self, tls: TlsIngress) -> None:
        super().__init__()
        self.deadline_s = 0.0  # loop time; 0: none, or the connection above has its own
        self._shared: Final = tls
        self._view: Final = tls.view
        self._incoming: Final = ssl.MemoryBIO()
        self._outgoing: Final = ssl.MemoryBIO()
        self._ssl: ssl.SSLObject | None = None  # made when a handshake begins: a connection that is silent costs little
        self._above: asyncio.Protocol | asyncio.BufferedProtocol | None = None
        self._address = ""  # as the limiter gave it
        self._is_in = False  # counted by the limiter, until the connection above is
        self._state = _State.NEW
        self._write_paused = False
        self._unread = b""  # while it is in line for a turn of the loop
        self._is_in_line = False

    def __repr__(self) -> str:
        return f"<TlsConnection {self._state.name} {self._above!r}>"

    # -- for the ingress, until the handshake has ended ---------------------------------------------

    def on_deadline(self) -> None:
        """The handshake, or the client's end, took too long."""
        self.deadline_s = 0.0
        if self._state is _State.ENDED:
            self.abort()
        elif self._state is _State.NEW and self._shared.ingress.draining:
            self.close()
        else:
            self._fail(TlsFailure.TIMEOUT)

    def close_if_idle(self) -> None:
        """Draining: let the handshake end, if it is quick."""
        if self._state < _State.OPEN:
            self.deadline_s = self._shared.ingress.loop.time() + FIRST_REQUEST_S

    # -- asyncio.BufferedProtocol: the socket ---------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._raw = cast(asyncio.Transport, transport)
        ingress = self._shared.ingress
        ingress.connections[self] = ingress.loop.time()
        first_s = FIRST_REQUEST_S if ingress.draining else ingress.timeouts.header_s
        self.deadline_s = ingress.loop.time() + first_s
        self._address, refusal = ingress.limiter.enter(transport.get_extra_info("peername"))
        self._is_in = True
        if refusal is not None:
            # To say why would cost a handshake; what comes too much is not worth any.
            self._leave(was_refused=True)
            self._shared.on_failure(TlsFailure.LIMIT)
            self.abort()

    def get_buffer(self, _sizehint: int) -> memoryview:
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        is_short = nbytes <= _SHORT_BYTES and self._state is _State.OPEN
        if (is_short or self._shared.ingress.turns.has_room()) and not self._is_in_line:
            self._take(self._view[:nbytes])
            return
        self._unread += self._view[:nbytes]
        if not self._is_in_line:
            self._is_in_line = True
            self._shared.ingress.turns.wait(self)
            self._update_reading()

    def turn_came(self) -> None:
        """See TurnWaiter."""
        self._is_in_line = False
        data, self._unread = self._unread, b""
        self._update_reading()
        self._take(memoryview(data))

    def is_reading(self) -> bool:
        return not self._is_in_line and super().is_reading()

    def _take(self, data: memoryview) -> None:
        state = self._state
        if state is _State.OPEN:
            self._incoming.write(data)
            self._read()
        elif state is _State.HANDSHAKE:
            self._incoming.write(data)
            self._shake_hands()
        elif state is _State.NEW:
            self._begin(data)

    def eof_received(self) -> bool:
        if self._above is not None:
            return bool(self._above.eof_received())
        return False

    def connection_lost(self, exc: BaseException | None) -> None:
        self._shared.ingress.connections.pop(self, None)
        self._leave()
        state, self._state = self._state, _State.ENDED
        above, self._above = self._above, None
        if above is not None:
            above.connection_lost(cast("Exception | None", exc))
        elif state is _State.HANDSHAKE:
            self._shared.on_failure(TlsFailure.CLOSED)

    def pause_writing(self) -> None:
        self._write_paused = True
        if self._above is not None:
            self._above.pause_writing()

    def resume_writing(self) -> None:
        self._write_paused = False
        self._pause_here(False)
        if self._above is not None:
            self._above.resume_writing()

    # -- the handshake --------------------------------------------------------------------------------

    def _begin(self, data: memoryview) -> None:
        """Take the first bytes of all: only a handshake may be there."""
        if data[0] != _HANDSHAKE:
            if is_http(bytes(data[:8])):
                self._write_raw(PLAIN_HTTP_REPLY)
                self._fail(TlsFailure.PLAIN_HTTP)
            else:
                self._fail(TlsFailure.NOT_TLS)
            return
        self._state = _State.HANDSHAKE
        self._incoming.write(data)
        self._ssl = self._shared.context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._shake_hands()

    def _shake_hands(self) -> None:
        assert self._ssl is not None, "it is made with the first bytes"
        try:
            self._ssl.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
        except ssl.SSLError as exc:
            self._flush()  # the alert
            self._fail(cause_of(exc))
        else:
            self._flush()  # our last message, and tickets
            self._open(self._ssl)

    def _open(self, connected: ssl.SSLObject) -> None:
        """Hand the connection over to its protocol."""
        shared = self._shared
        shared.on_handshake(bool(connected.session_reused))
        shared.ingress.connections.pop(self, None)
        self._leave()  # the connection above enters in its place
        self.deadline_s = 0.0
        self._state = _State.OPEN
        self._above = above = shared.ingress.connection(connected.selected_alpn_protocol() or "http/1.1")
        above.connection_made(self)
        if self._write_paused:
            above.pause_writing()
        if self._incoming.pending and self._state is _State.OPEN:
            self._read()

    def _leave(self, *, was_refused: bool = False) -> None:
        if self._is_in:
            self._is_in = False
            self._shared.ingress.limiter.leave(self._address, was_refused=was_refused)

    def _fail(self, cause: TlsFailure) -> None:
        """End a connection that got no further than its handshake; what was written still leaves."""
        self._shared.on_failure(cause)
        self._state = _State.ENDED
        self.deadline_s = self._shared.ingress.loop.time() + LINGER_S
        if self._raw is not None and not self._raw.is_closing():
            self._raw.write_eof()

    # -- records --------------------------------------------------------------------------------------

    def _read(self) -> None:
        """Decrypt what has come, and pass it on as one piece."""
        connected, incoming = self._ssl, self._incoming
        assert connected is not None, "it is there once the handshake has ended"
        pieces: list[bytes] = []
        is_over = False
        try:
            while True:
                data = connected.read(_RECORD_BYTES)
                if not data:
                    is_over = True
                    break
                pieces.append(data)
                # Most reads of the socket bring whole records, and each read here takes all of one: asking whether
                # there is more spares an exception that says no.
                if not incoming.pending:
                    break
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            is_over = True
        except ssl.SSLError:
            # No record that one who has the keys could have made.
            self.abort()
            return
        if self._outgoing.pending:
            self._answer()
        if pieces:
            self._pass_up(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        above = self._above
        if is_over and self._state is _State.OPEN and above is not None and not above.eof_received():
            self.close()

    def _pass_up(self, data: bytes) -> None:
        above = self._above
        if isinstance(above, asyncio.BufferedProtocol):
            while data:
                buffer = memoryview(above.get_buffer(len(data)))
                n_bytes = min(len(buffer), len(data))
                buffer[:n_bytes] = data[:n_bytes]
                above.buffer_updated(n_bytes)
                data = data[n_bytes:]
        elif above is not None:
            above.data_received(data)

    def _answer(self) -> None:
        """Send what OpenSSL answered by itself (KeyUpdate); one who asks without end must take the answers first."""
        self._flush()
        if self._write_paused:
            self._pause_here(True)

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._write_raw(self._outgoing.read())

    def _write_raw(self, data: bytes) -> None:
        if self._raw is not None and not self._raw.is_closing():
            self._raw.write(data)

    def _send_close_notify(self) -> None:
        """Send close_notify: what came before it was all."""
        assert self._ssl is not None, "there are records only after a handshake"
        try:
            self._ssl.unwrap()
        except ssl.SSLError:
            pass  # it wants the client's, for which nobody waits: that side may still be sending
        self._flush()

    # -- asyncio.Transport: the connection above --------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._state is not _State.OPEN:
            return
        connected, outgoing = self._ssl, self._outgoing
        assert connected is not None, "it is there once the handshake has begun"
        try:
            if len(data) <= _RECORD_BYTES:
                connected.write(cast(bytes, data))
                self._write_raw(outgoing.read())
                return
            # The BIO is emptied as often as it is filled: it never gets smaller again.
            pieces = []
            with memoryview(data) as view:
                sent, n_bytes = 0, len(view)
                while sent < n_bytes:
                    # Takes one record at a time: the ssl module allows partial writes.
                    sent += connected.write(cast(bytes, view[sent : sent + _RECORD_BYTES]))
                    if outgoing.pending >= _READ_BYTES:
                        pieces.append(outgoing.read())
            pieces.append(outgoing.read())
            self._write_raw(b"".join(pieces))
        except ssl.SSLError:
            self.abort()  # the client broke the protocol in what was read before

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """Send close_notify and FIN after all that was written. What comes from now on is thrown away."""
        if self._state is _State.OPEN and self._raw is not None:
            self._send_close_notify()
            self._state = _State.ENDED
            self._raw.write_eof()

    def close(self) -> None:
        """Send close_notify after all that was written, and close."""
        if self._state is _State.OPEN:
            self._send_close_notify()
        self._state = _State.ENDED
        if self._raw is not None:
            self._raw.close()

    def abort(self) -> None:
        """Close now, without close_notify."""
        self._state = _State.ENDED
        if self._raw is not None:
            self._raw.abort()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._ssl if name == "ssl_object" else super().get_extra_info(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._above = cast("asyncio.Protocol | asyncio.BufferedProtocol", protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._above is not None, "there is one from the handshake's end to the connection's"
        return self._above
