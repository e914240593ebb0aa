"""A client of a gateway that sees every byte, and what it makes of a reply: whole, cut, or an error.

Knows: one request on a connection of its own, ways to leave. Does not know: what a test expects.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from tests.e2e.harness import VeloxProcess
from tests.e2e.leaving import Leave
from tests.e2e.tools import request_bytes
from tests.secret_watch import WATCH

__all__ = ["PLAIN", "STREAM", "Answer", "Ask"]

# How a chat completion is asked for.
PLAIN: Final = False
STREAM: Final = True
_LAST_CHUNK: Final = b"0\r\n\r\n"


@dataclass(frozen=True)
class Answer:
    """A reply as it came. is_whole: its framing ended properly; took_s: from the request to its last byte."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes
    is_whole: bool
    took_s: float

    def header(self, name: str) -> str | None:
        """Return the first value of a header (lower-case name), or None."""
        return next((value for key, value in self.headers if key == name), None)

    @property
    def reason(self) -> str:
        """Velox's reason, where it answered by itself; the header and the body must agree. Else ""."""
        code = self.header("x-velox-reason")
        if code is not None:
            WATCH.note("error", self.body)
            assert json.loads(self.body)["error"]["code"] == code, self.body
        return code or ""

    @property
    def cut_reason(self) -> str:
        """The reason in the error event that ends a stream which was cut; fails where the stream does not end so."""
        assert not self.is_whole, self.body[-200:]
        assert b"[DONE]" not in self.body, self.body[-200:]
        assert self.body.endswith(b"\n\n"), self.body[-200:]
        event = self.body[:-2].rpartition(b"\n\n")[2]
        code = json.loads(event.removeprefix(b"data: "))["error"]["code"]
        assert isinstance(code, str), event
        return code


class Ask:
    """One request for a chat completion. It is sent at once; the answer is read when the test likes.

    fault: asked for by the query, for faults that act before the body is there. pad: more bytes of body. receive_bytes:
    the socket's receive buffer, for clients that read slowly.
    """

    def __init__(
        self,
        velox: VeloxProcess,
        model: str,
        *,
        stream: bool = PLAIN,
        fault: str = "",
        pad: int = 0,
        headers: Mapping[str, str] | None = None,
        receive_bytes: int = 0,
    ) -> None:
        question = {"role": "user", "content": "x" * pad}
        body = json.dumps({"model": model, "messages": [question], "stream": stream}).encode()
        target = "/v1/chat/completions" + (f"?fault={urllib.parse.quote(fault, safe='')}" if fault else "")
        self.model: Final = fault or model
        self.sock: Final = velox.connect(10.0)
        if receive_bytes:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.began_s: Final = time.monotonic()
        self._got = b""
        self.sock.sendall(request_bytes("POST", target, body, headers))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.sock.close()

    def read_until(self, mark: bytes) -> None:
        """Read until `mark` has come; answer() gives it again."""
        while mark not in self._got:
            piece = self.sock.recv(65536)
            assert piece, f"closed after {self._got!r}"
            self._got += piece

    def answer(self) -> Answer:
        """Read the reply to its end, or the connection's, and close. Fails when nothing comes for 10 s."""
        pieces, tail, ended = [self._got], self._got, _Framing()
        with self.sock:
            while not ended.is_whole(tail):
                try:
                    piece = self.sock.recv(1 << 20)
                except ConnectionResetError:
                    piece = b""
                if not piece:
                    break
                pieces.append(piece)
                tail = ended.tail(tail, piece)
        return _parsed(b"".join(pieces), time.monotonic() - self.began_s)

    def leave(self, how: Leave) -> float:
        """Leave; return when, monotonic."""
        now_s = time.monotonic()
        how(self.sock)
        return now_s


class _Framing:
    """Follows a reply to its end without keeping it."""

    def __init__(self) -> None:
        self._missing: int | None = None  # of a body with a length; None: not known yet, or in chunks
        self._in_chunks = False

    def tail(self, tail: bytes, piece: bytes) -> bytes:
        """Note a piece; return what is_whole() has to look at."""
        if self._missing is not None:
            self._missing -= len(piece)
            return b""
        return (tail + piece)[-len(_LAST_CHUNK) :] if self._in_chunks else tail + piece

    def is_whole(self, tail: bytes) -> bool:
        """True when the end is there."""
        if self._missing is None and not self._in_chunks and b"\r\n\r\n" in tail:
            head, _, body = tail.partition(b"\r\n\r\n")
            fields = _fields(head)
            if "content-length" in fields:
                self._missing = int(fields["content-length"]) - len(body)
            self._in_chunks = fields.get("transfer-encoding") == "chunked"
        if self._in_chunks:
            return tail.endswith(_LAST_CHUNK)
        return self._missing is not None and self._missing <= 0


def _fields(head: bytes) -> dict[str, str]:
    lines = head.decode("latin-1").split("\r\n")[1:]
    return {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _parsed(data: bytes, took_s: float) -> Answer:
    head, _, rest = data.partition(b"\r\n\r\n")
    assert head, "no reply came"
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = [(name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]
    fields = dict(headers)
    if fields.get("transfer-encoding") == "chunked":
        body, is_whole = _dechunked(rest)
    else:
        body, is_whole = rest, len(rest) == int(fields.get("content-length", "-1"))
    return Answer(int(first.split(" ", 2)[1]), headers, body, is_whole, took_s)


def _dechunked(data: bytes) -> tuple[bytes, bool]:
    """Return the body of chunks, and whether its last chunk came."""
    pieces, at = [], 0
    with contextlib.suppress(ValueError):  # no line end: the chunk's size did not come
        while True:
            end = data.index(b"\r\n", at)
            size = int(data[at:end], 16)
            if size == 0:
                return b"".join(pieces), data[end:] == b"\r\n\r\n"
            pieces.append(data[end + 2 : end + 2 + size])
            at = end + 2 + size + 2
            if at > len(data):
                break
    return b"".join(pieces), False
