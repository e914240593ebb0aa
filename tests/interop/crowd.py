"""Many clients of a gateway at once: each sends one request and reads its reply to the end, whatever the end is.

Knows: HTTP/1.1 replies as bytes, what a cut one looks like, the OpenAI stream. Does not know: gateways or upstreams.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from tests.e2e.tools import request_bytes

__all__ = ["Answer", "Asked", "ask", "chat", "shake", "text_of"]

# A client's socket takes little ahead, so that what a client doesn't read stays with the gateway.
_RCVBUF_BYTES: Final = 64 * 1024


@dataclass(frozen=True)
class Answer:
    """A reply as its client saw it.

    whole: its framing ended as it should; False: the connection ended before that. status: 0 without a head.
    """

    status: int
    body: bytes
    whole: bool

    @property
    def told(self) -> str:
        """Return why the gateway says that it is not whole: the code of its error event or body; "" when it does not.

        A reply that carries no events can be cut by its framing only; then it is "cut".
        """
        found = _error_code(self.body)
        if found:
            return found
        return "" if self.whole else "cut"

    @property
    def looks_whole(self) -> bool:
        """True when no client could tell that anything is missing."""
        return self.whole and self.status == 200 and not self.told


@dataclass
class Asked:
    """One request on its way. began: the first byte of the body is there. raw: what came so far."""

    raw: bytearray = field(default_factory=bytearray)
    began: asyncio.Event = field(default_factory=asyncio.Event)
    ended: bool = False


def chat(*, stream: bool, **more: object) -> bytes:
    """Return a request for a chat completion on a connection of its own."""
    body = json.dumps({"model": "m", "messages": [], "stream": stream, **more}).encode()
    return request_bytes("POST", "/v1/chat/completions", body, {"connection": "close"})


async def ask(
    port: int, request: bytes, asked: Asked | None = None, go_on: Callable[[], Awaitable[object]] | None = None
) -> Answer:
    """Send a request that says `Connection: close`; read until the gateway closes.

    asked: filled while it comes. go_on: awaited after the first bytes of the body; nothing is read meanwhile.
    """
    asked = asked or Asked()
    loop = asyncio.get_running_loop()
    with socket.socket() as sock:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RCVBUF_BYTES)
        await loop.sock_connect(sock, ("127.0.0.1", port))
        await loop.sock_sendall(sock, request)
        # A reset is an end as well; what came before it counts.
        with contextlib.suppress(ConnectionError):
            while piece := await loop.sock_recv(sock, 65_536):
                asked.raw += piece
                if not asked.began.is_set() and len(asked.raw) > asked.raw.find(b"\r\n\r\n") + 4 > 3:
                    asked.began.set()
                    if go_on is not None:
                        await go_on()
    asked.ended = True
    asked.began.set()
    return decode(bytes(asked.raw))


async def shake(port: int, requests: list[bytes], width: int) -> list[Answer]:
    """Send the requests from `width` clients at a time; return the answers in order."""
    gate = asyncio.Semaphore(width)

    async def one(request: bytes) -> Answer:
        async with gate:
            return await ask(port, request)

    return await asyncio.gather(*(one(request) for request in requests))


def decode(raw: bytes) -> Answer:
    """Read a reply of a connection that has ended, cut or whole."""
    head, mark, rest = raw.partition(b"\r\n\r\n")
    if not mark:
        return Answer(0, b"", False)
    first, *lines = head.decode("latin-1").lower().split("\r\n")
    status = int(first.split(" ")[1])
    fields = dict(line.split(": ", 1) for line in lines)
    if fields.get("transfer-encoding") == "chunked":
        body, whole = _unchunk(rest)
        return Answer(status, body, whole)
    if "content-length" in fields:
        return Answer(status, rest, len(rest) == int(fields["content-length"]))
    return Answer(status, rest, True)  # it ends with its connection: nothing tells a cut


def text_of(body: bytes) -> tuple[str, str]:
    """Return the text of a streamed chat completion that is complete, and its id. Raises AssertionError.

    Complete: a role, the text, a reason to finish, [DONE] and nothing after it, all of one id.
    """
    *events, done, rest = body.split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b""), body[-200:]
    chunks = [json.loads(event.removeprefix(b"data: ")) for event in events]
    (number,) = {chunk["id"] for chunk in chunks}
    assert chunks[-1]["choices"][0]["finish_reason"], chunks[-1]
    return "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks), number


def _unchunk(rest: bytes) -> tuple[bytes, bool]:
    pieces = []
    at = 0
    while True:
        end = rest.find(b"\r\n", at)
        if end < 0:
            return b"".join(pieces), False
        n_bytes = int(rest[at:end], 16)
        if n_bytes == 0:
            return b"".join(pieces), rest[end:] == b"\r\n\r\n"
        piece = rest[end + 2 : end + 2 + n_bytes]
        pieces.append(piece)
        at = end + 2 + n_bytes + 2
        if len(piece) < n_bytes or len(rest) < at:
            return b"".join(pieces), False


def _error_code(body: bytes) -> str:
    """Return the code of an error event, or of an error body; "" when there is none."""
    for event in body.split(b"\n\n"):
        text = event.removeprefix(b"data: ")
        if text.startswith(b'{"error"'):
            with contextlib.suppress(ValueError):
                return str(json.loads(text)["error"]["code"])
    return ""
