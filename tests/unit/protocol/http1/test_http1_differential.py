"""Two implementations read the same bytes: whatever Velox accepts, h11 must read as the same requests.

A difference would be a way to smuggle a request past one of them. The reverse is not asked: Velox may be stricter.
"""

from __future__ import annotations

import h11
from hypothesis import given
from hypothesis import strategies as st

from velox.errors import VeloxError
from velox.protocol.http1.request import Http1Limits, RequestDecoder

Exchange = tuple[bytes, bytes, bytes]

LINES = [b"GET /v1/models HTTP/1.1", b"POST /v1/a?b=c HTTP/1.1", b"DELETE /v1/a HTTP/1.1", b"POST / HTTP/1.0"]
FIELDS = [
    b"Host: a", b"Host: b", b"Content-Length: 5", b"Content-Length: 11", b"Content_Length: 3", b"X: y", b"X: ",
    b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip", b"Expect: 100-continue", b"Connection: close",
    b"Connection: x",
]  # fmt: skip
BODIES = [
    b"",
    b"hello",
    b"5\r\nhello\r\n0\r\n\r\n",
    b"1;x\r\na\r\n00\r\nT: u\r\n\r\n",
    b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n",
]


def by_velox(wire: bytes) -> list[Exchange]:
    """Return the whole requests that Velox reads, up to a refusal."""
    decoder, seen = RequestDecoder(Http1Limits()), []
    decoder.feed(wire)
    try:
        while (head := decoder.read_head()) is not None:
            body = decoder.read_body()
            if not decoder.body_complete:
                break
            seen.append((head.method, head.target, body))
    except VeloxError:
        pass
    return seen


def by_h11(wire: bytes) -> list[Exchange]:
    """Return the whole requests that h11 reads, up to an error or to the end of keep-alive."""
    seen: list[Exchange] = []
    while wire:
        server = h11.Connection(h11.SERVER)
        # h11 does not skip the empty line that RFC 9112 §2.2 says to ignore before a request.
        server.receive_data(wire.removeprefix(b"\r\n"))
        method = target = body = b""
        try:
            while not isinstance(event := server.next_event(), h11.EndOfMessage):
                match event:
                    case h11.Request(method=method, target=target):
                        pass
                    case h11.Data(data=data):
                        body += bytes(data)
                    case _:
                        return seen
        except h11.RemoteProtocolError:
            return seen
        seen.append((method, target, body))
        if server.their_state is not h11.DONE:
            break
        wire, _ = server.trailing_data
    return seen


requests = st.builds(
    lambda line, fields, body: b"\r\n".join([line, b"Host: a", *fields, b"", body]),
    st.sampled_from(LINES),
    st.lists(st.sampled_from(FIELDS), max_size=3),
    st.sampled_from(BODIES),
)
damage = st.tuples(
    st.integers(0, 200),
    st.integers(0, 2),
    st.sampled_from([b"", b"\r", b"\n", b"\r\n", b" ", b"\t", b"0", b"\x00", b",", b";", b"\x0b", b"+", b"_", b"\xa0"]),
)


@given(wires=st.lists(requests, min_size=1, max_size=3), damages=st.lists(damage, max_size=2))
def test_requests_accepted_are_read_alike_by_h11(wires: list[bytes], damages: list[tuple[int, int, bytes]]) -> None:
    """B-1 to B-14: damaged and pipelined requests never split differently in another implementation."""
    wire = b"".join(wires)
    for at, remove, insert in damages:
        wire = wire[:at] + insert + wire[at + remove :]

    ours = by_velox(wire)

    assert ours == by_h11(wire)[: len(ours)]


def test_differential_sees_usual_requests() -> None:
    """The comparison is not empty: both read three pipelined requests."""
    chunked = b"POST /b HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
    counted = b"POST /c HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi"
    wire = chunked + counted + chunked

    assert by_velox(wire) == by_h11(wire)
    assert by_velox(wire) == [(b"POST", b"/b", b"hello"), (b"POST", b"/c", b"hi"), (b"POST", b"/b", b"hello")]
