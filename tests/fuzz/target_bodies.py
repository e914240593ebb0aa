"""Fuzz: bodies and replies of HTTP/1.1, read by Velox, llhttp and h11.

chunked: the input is a chunked body, and what follows it. Whatever it is: only VeloxError is raised, how it is cut
changes nothing, the limits hold, and what is whole for Velox is the same body, with the same rest, for the readers of
replies and for h11.

response: the input is what an upstream sends, after a byte of ours where it answers HEAD or a WebSocket's handshake.
Only ResponseError is raised, how it is cut changes nothing, and a reply that is whole says the same to h11 and once
more when it is written to the client. The reason phrase, which llhttp takes with any byte but a line end, is not
compared: it goes no further.
"""

from __future__ import annotations

import re
from typing import TypeAlias

import h11

from tests.fuzz.wires import Pieces, cuttings
from velox.errors import VeloxError
from velox.heads import NO_BODY_STATUSES, Headers, ReplyHead
from velox.protocol.heads.fields import HOP_BY_HOP
from velox.protocol.http1.chunked import ChunkedDecoder
from velox.protocol.http1.response import LONE_CHUNK_BYTES, ResponseDecoder, ResponseError, lone_chunk
from velox.protocol.http1.response_head import ReplyHeads
from velox.protocol.http1.write import reply_head

__all__ = ["run_chunked", "run_response"]

_Reply: TypeAlias = tuple[ReplyHead | None, bytes, bool, bool, bool, bool]

_BODY_BYTES = 2048
_REQUEST = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
# An input may begin with a byte that says what the reply is to: HEAD, or a GET that asks for a WebSocket.
_TO_HEAD, _TO_UPGRADE = b"h", b"u"
_REASON = re.compile(rb"(HTTP/1\.[01] [0-9]{3})[^\r\n]*")
# h11 refuses trailers that speak of framing; Velox drops all trailers, and these too.
_OF_FRAMING = re.compile("transfer-encoding|content-length", re.IGNORECASE)
# llhttp judges trailers as if they were the head's; Velox refuses a reply for them, and drops a request's.
_TRAILERS = re.compile(rb"\r\n[^\r\n:]+:[^\r\n]*\r\n\r\n\Z")
_REPLY = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def run_chunked(data: bytes) -> None:
    """Decode a chunked body. Raises AssertionError, or what a bug raises."""
    whole = _decode([data])
    for pieces in cuttings(data):
        # A body is handed on as it comes: of one that is refused, more or less of it was, before.
        in_pieces = _decode(pieces)
        assert (in_pieces is None) == (whole is None), "refused, or not, by how the bytes are cut"
        assert in_pieces == whole, "another body when the bytes are cut"
    if whole is None or not whole[2]:
        return
    body, used, _ = whole
    theirs = _by_h11(data)
    assert theirs is not None and theirs[0] == body, "h11 reads another body"
    assert theirs[1] in (None, data[used:]), "h11 ends the body elsewhere"
    decoder = ResponseDecoder(ReplyHeads(), head_request=False)
    try:
        decoder.feed(_REPLY + data[:used])
    except ResponseError:
        assert _TRAILERS.search(data[:used]), "llhttp refuses a body without trailers"
        return
    assert decoder.complete and decoder.take_body() == body, "llhttp reads another body"
    assert decoder.keep_alive and not decoder.surplus


def _decode(pieces: Pieces) -> tuple[bytes, int, bool] | None:
    """Return the body, how many bytes it took, and whether it is whole; None: refused."""
    decoder, buffer, at, body = ChunkedDecoder(_BODY_BYTES), bytearray(), 0, b""
    try:
        for piece in pieces:
            buffer += piece
            got, after = decoder.decode(buffer, at)
            assert at <= after <= len(buffer)
            body, at = body + got, after
            assert len(body) <= _BODY_BYTES, "a body over its limit"
    except VeloxError as error:
        assert error.close
        return None
    return body, at if decoder.complete else 0, decoder.complete


def _by_h11(data: bytes) -> tuple[bytes, bytes | None] | None:
    """Return the body and the rest (None: not known, it refused the trailers); None: it refused the body."""
    server = h11.Connection(h11.SERVER)
    server.receive_data(_REQUEST + data)
    body = b""
    try:
        while not isinstance(event := server.next_event(), h11.EndOfMessage):
            if isinstance(event, h11.Data):
                body += bytes(event.data)
            elif not isinstance(event, h11.Request):
                return None
    except h11.RemoteProtocolError as exc:
        return (body, None) if _OF_FRAMING.search(str(exc)) else None
    return body, server.trailing_data[0]


def run_response(data: bytes) -> None:
    """Read a reply. Raises AssertionError, or what a bug raises."""
    is_head = data.startswith(_TO_HEAD)
    if data.startswith(_TO_UPGRADE):
        _check_switch(data[1:])
        return
    data = data.removeprefix(_TO_HEAD)
    heads = ReplyHeads()
    whole = _reply([data], heads, head_request=is_head)
    assert _reply([data], heads, head_request=is_head) == whole, "another reply when the head is known"
    for pieces in cuttings(data):
        in_pieces = _reply(pieces, heads, head_request=is_head)
        assert (in_pieces is None) == (whole is None), "refused, or not, by how the bytes are cut"
        assert in_pieces == whole or _is_stricter(in_pieces, whole, data), "another reply when the bytes are cut"
    if whole is None:
        return
    head, body, is_complete, at_eof, keep_alive, surplus = whole
    if head is None:
        return
    assert not {name for name, _ in head.headers} & HOP_BY_HOP, "a hop-by-hop field passes"
    assert not (keep_alive and (surplus or not is_complete)), "a connection that is not clean is kept"
    if is_complete or at_eof:
        theirs = _reply_by_h11(_without_reasons(data), is_head=is_head, by_eof=not is_complete)
        if not (isinstance(theirs, str) and head.content_length is None and _OF_FRAMING.search(theirs)):
            assert theirs == (head.status, body), f"h11 reads another reply: {theirs}"
    _check_written(head, body, is_head=is_head)


def _check_switch(data: bytes) -> None:
    """Read a reply to the opening handshake of a WebSocket."""
    whole = _switched([data])
    for pieces in cuttings(data):
        assert _switched(pieces) == whole, "another answer to a handshake when the bytes are cut"
    if whole is not None and whole[0] is not None:
        assert not any(set(name + value) & set(b"\r\n\0") for name, value in whole[0]), (
            "a field that could split a reply"
        )


def _switched(pieces: Pieces) -> tuple[Headers | None, bytes] | None:
    """Return the fields of the 101 and what came after it; no fields: another reply. None: refused."""
    decoder = ResponseDecoder(ReplyHeads(), head_request=False, upgrade=True)
    try:
        for n, piece in enumerate(pieces, 1):
            decoder.feed(memoryview(piece))
            if decoder.switched is not None:
                return decoder.switched, decoder.rest + b"".join(pieces[n:])
    except ResponseError:
        return None
    return None, b""


def _is_stricter(in_pieces: _Reply | None, whole: _Reply | None, data: bytes) -> bool:
    """True where only the empty lines after a reply make the difference.

    llhttp skips them when they come with the reply's end; later they are bytes that nobody asked for, and the
    connection is not kept.
    """
    if in_pieces is None or whole is None or not data.endswith((b"\r", b"\n")):
        return False
    return in_pieces[:4] == whole[:4] and in_pieces[4:] == (False, True) and not whole[5]


def _reply(pieces: Pieces, heads: ReplyHeads, *, head_request: bool) -> _Reply | None:
    """Return head, body, whole, whole at the end, keep-alive, more to come; None: refused."""
    decoder, body, at = ResponseDecoder(heads, head_request=head_request), b"", 0
    try:
        for piece in pieces:
            at = lone_chunk(piece) if decoder.between and len(piece) <= LONE_CHUNK_BYTES else 0
            decoder.feed(memoryview(piece))
            data = decoder.take_body()
            assert not at or (data == piece[at:-2] and decoder.between), "llhttp reads another chunk"
            body += data
    except ResponseError:
        assert not at, "llhttp refuses a chunk that is whole"
        return None
    complete, keep_alive = decoder.complete, decoder.complete and decoder.keep_alive
    return decoder.head, body, complete, decoder.eof(), keep_alive, decoder.surplus


def _without_reasons(data: bytes) -> bytes:
    """Leave out the reason phrases of a reply, and of the interim ones before it."""
    heads = []
    while (end := data.find(b"\r\n\r\n") + 4) >= 4:
        heads.append(_REASON.sub(rb"\1", data[:end], count=1))
        is_final, data = data[9:10] != b"1", data[end:]
        if is_final:
            break
    return b"".join(heads) + data


def _reply_by_h11(data: bytes, *, is_head: bool, by_eof: bool) -> tuple[int, bytes] | str:
    client = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 20)
    client.send(h11.Request(method="HEAD" if is_head else "GET", target="/", headers=[("host", "a")]))
    client.send(h11.EndOfMessage())
    client.receive_data(data)
    status, body = 0, b""
    try:
        while not isinstance(event := client.next_event(), h11.EndOfMessage):
            if isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif event is h11.NEED_DATA:
                if not by_eof:
                    return "more is needed"
                client.receive_data(b"")
            elif not isinstance(event, h11.InformationalResponse):
                return repr(event)
    except h11.RemoteProtocolError as exc:
        return str(exc)
    return status, body


def _check_written(head: ReplyHead, body: bytes, *, is_head: bool) -> None:
    """Write the reply as a client gets it; h11 must read the same."""
    has_body = head.status not in NO_BODY_STATUSES
    wire = reply_head(
        head.status,
        head.headers,
        content_length=len(body) if has_body and not is_head else None,
        chunked=False,
        close=True,
    )
    theirs = _reply_by_h11(wire + body, is_head=is_head, by_eof=True)
    assert theirs == (head.status, body), f"h11 reads another reply from what the client gets: {theirs}"
