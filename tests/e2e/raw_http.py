"""HTTP/1.1 as bytes on a socket: one reply read exactly to its end, whatever its framing.

Knows: replies. Does not know: gateways, or what a reply should say.
"""

from __future__ import annotations

import json
import select
import socket
import time
from dataclasses import dataclass

from tests.secret_watch import WATCH

__all__ = ["RawReply", "is_closed", "read_reply"]


@dataclass(frozen=True)
class RawReply:
    """A reply as it stood on the wire. headers: lower-case names, in order. head: the bytes up to the body."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes
    head: bytes = b""

    def header(self, name: str) -> str | None:
        """Return the first value of a header (lower-case name), or None."""
        return next((value for key, value in self.headers if key == name), None)

    def json(self) -> dict[str, object]:
        """Return the body, which is a JSON object."""
        found: dict[str, object] = json.loads(self.body)
        return found

    def error(self) -> dict[str, object]:
        """Return the `error` of an error body."""
        error = self.json()["error"]
        assert isinstance(error, dict), self.body
        return error


def read_reply(sock: socket.socket, *, head_request: bool = False, start: bytes = b"") -> RawReply:
    """Read one whole reply; what belongs to the next one stays in the socket. Raises ConnectionError when it is cut.

    100 Continue is skipped. start: bytes that were read before.
    """
    reader = _Reader(sock, start)
    while True:
        head = reader.until(b"\r\n\r\n")
        first, *rest = head[:-4].decode("latin-1").split("\r\n")
        status = int(first.split(" ", 2)[1])
        if status >= 200:
            break
    headers = [(name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in rest)]
    fields = dict(headers)
    if head_request or status in (204, 304):
        body = b""
    elif fields.get("transfer-encoding") == "chunked":
        chunks = []
        while size := int(reader.until(b"\r\n"), 16):
            chunks.append(reader.exactly(size + 2)[:-2])
        reader.exactly(2)
        body = b"".join(chunks)
    elif "content-length" in fields:
        body = reader.exactly(int(fields["content-length"]))
    else:
        body = reader.to_eof()
    if "x-velox-reason" in fields:
        WATCH.note("error", head, body)
    return RawReply(status, headers, body, head)


class _Reader:
    """Reads a socket up to a mark and not beyond: peeks, then takes."""

    def __init__(self, sock: socket.socket, start: bytes) -> None:
        self._sock = sock
        self._start = start

    def until(self, mark: bytes) -> bytes:
        found = b""
        while not found.endswith(mark):
            if self._start:
                found, self._start = found + self._start[:1], self._start[1:]
                continue
            peeked = self._sock.recv(65536, socket.MSG_PEEK)
            if not peeked:
                raise ConnectionError(f"closed after {found!r}")
            # The mark may have begun before this piece.
            at = (found[-len(mark) + 1 :] + peeked).find(mark)
            overlap = min(len(found), len(mark) - 1)
            n_bytes = len(peeked) if at < 0 else at + len(mark) - overlap
            found += self._sock.recv(n_bytes)
        return found

    def exactly(self, n_bytes: int) -> bytes:
        found = bytearray(self._start[:n_bytes])
        self._start = self._start[n_bytes:]
        while len(found) < n_bytes:
            piece = self._sock.recv(min(n_bytes - len(found), 1 << 20))
            if not piece:
                raise ConnectionError(f"closed {n_bytes - len(found)} bytes early")
            found += piece
        return bytes(found)

    def to_eof(self) -> bytes:
        found, self._start = bytearray(self._start), b""
        while piece := self._sock.recv(1 << 20):
            found += piece
        return bytes(found)


def is_closed(sock: socket.socket, timeout_s: float = 5.0) -> bool:
    """True when the peer closes (or resets) within the time; bytes that come before are read and dropped."""
    deadline = time.monotonic() + timeout_s
    while select.select([sock], [], [], max(0.0, deadline - time.monotonic()))[0]:
        try:
            if not sock.recv(65536):
                return True
        except ConnectionResetError:
            return True
    return False
