"""A reply of status 200 that is an error: what holds its head back, and what becomes of it."""

from __future__ import annotations

import gzip
import json

import pytest

from velox.errors import Reason
from velox.gateway.reply.early_error import EarlyErrorGate, may_be_error
from velox.gateway.reply.filters import FilterChain
from velox.heads import ReplyHead
from velox.net.upstream.interface import UpstreamFailure
from velox.types import Dialect

SSE = ReplyHead.of(200, [(b"content-type", b"text/event-stream"), (b"x-request-id", b"r")], None)
JSON = ReplyHead.of(200, [(b"content-type", b"application/json"), (b"etag", b"e")], None)
HTML = ReplyHead.of(200, [(b"content-type", b"text/html; charset=utf-8")], None)
EVENT = b'data: {"id":"x","choices":[]}\n\n'
PRELUDE = (
    b': ka\n\nevent: message_start\ndata: {"type":"message_start"}\n\nevent: ping\r\ndata: {}\r\n\r\n'
    b'event: response.created\ndata: {"type":"response.created"}\n\nevent: response.in_progress\ndata: {"a":1}\n\n'
)


def fed(chain: FilterChain, data: bytes, end: bool) -> bytes:
    """Feed it, and have a pending error passed on; return what goes on."""
    out = chain.feed(data, end)
    return out if chain.pending_error is None else out + chain.go_on()


def gate(
    head: ReplyHead, *, secret: bytes | None = None, dialect: Dialect = Dialect.ANTHROPIC
) -> tuple[EarlyErrorGate, FilterChain]:
    """Return a gate, and the chain that it stands in, which has taken the head."""
    made = EarlyErrorGate(secret, dialect)
    chain = FilterChain([made], is_sse=head is SSE, is_plain=True)
    assert chain.begin(head) is None
    return made, chain


# -- what is no error ---------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [1, 2, 7, 10_000])
@pytest.mark.parametrize("prelude", [b"", b": ka\n\n", b"\n", PRELUDE])
def test_stream_is_held_until_its_first_event_however_it_is_cut(prelude: bytes, step: int) -> None:
    """Comments, and events from before the model's work, are none. Then all of it goes on, and no more is read."""
    _, chain = gate(SSE)
    text, out, released_at = prelude + EVENT + b"event: ping\ndata: {}\n\n", b"", -1
    for at in range(0, len(text), step):
        out += chain.feed(text[at : at + step], False)
        if chain.head is not None and released_at < 0:
            released_at = at + step
    assert out == text and chain.head == SSE and not chain.reads_body
    assert released_at > len(prelude)
    assert step > 100 or released_at < len(prelude + EVENT) + step


def test_long_preludes_pass_piece_by_piece() -> None:
    """What reads on takes 15 ms for a megabyte of them: each piece has a turn of the loop."""
    _, chain = gate(SSE)
    pieces = [b'event: response.created\ndata: {"type":"response.created","x":"%b' % (b"x" * 100_000)]
    pieces += [b"x" * 100_000] * 7 + [b'"}\n\n']
    for piece in pieces:
        assert chain.feed(piece, False) == b""

    out = [chain.feed(EVENT, True)]
    while chain.is_behind:
        assert not chain.has_work
        out.append(chain.go_on())
    assert out == [*pieces, EVENT] and chain.head == SSE


GZIPPED = ReplyHead.of(200, [(b"content-type", b"application/json"), (b"content-encoding", b"gzip")], None)


def coded(body: bytes, head: ReplyHead = GZIPPED, step: int = 10) -> tuple[ReplyHead | None, bytes]:
    """Return what goes on of a reply that its label calls compressed."""
    made = EarlyErrorGate(None, Dialect.OPENAI)
    chain = FilterChain([made], is_sse=False, is_plain=False)
    assert chain.begin(head) is None
    out = b""
    for at in range(0, len(body), step):
        out += chain.feed(body[at : at + step], at + step >= len(body))
        while made.is_behind:
            out += chain.go_on()
        if chain.is_over:
            break
    return chain.head, out


@pytest.mark.parametrize("step", [10, 10_000])
def test_compressed_answer_passes_as_it_came(step: int) -> None:
    """As clients ask for it."""
    for text in (b'{"choices":[1]}', b'{"choices":"%b"}' % (b"x" * 100_000), b'{"error":null,"id":"x"}'):
        body = gzip.compress(text)
        assert coded(body, step=step) == (GZIPPED, body)
    head = ReplyHead.of(200, [(b"content-encoding", b"br")], None)
    assert coded(b"\x8b\x0f\x80" * 9, head, step) == (head, b"\x8b\x0f\x80" * 9)


@pytest.mark.parametrize("step", [10, 10_000])
def test_error_in_a_compressed_reply_is_one(step: int) -> None:
    """An answer that is not streamed comes so, where the client takes that: its error counts like any other."""
    body = gzip.compress(b'{"error":{"message":"busy","code":503}}')

    head, told = coded(body, step=step)

    assert head is not None and head.status == 503
    assert json.loads(told) == {"error": {"message": "busy", "code": 503}}
    assert not [value for name, value in head.headers if name == b"content-encoding"]


@pytest.mark.parametrize("text", [b"<html>", b"\n <!DOCTYPE html>", b""])
def test_compressed_page_is_a_broken_reply(text: bytes) -> None:
    with pytest.raises(UpstreamFailure) as raised:
        coded(gzip.compress(text))
    assert raised.value.reason is Reason.UPSTREAM_PROTOCOL


def test_json_with_the_label_of_a_page_passes() -> None:
    """C24: it is what it is."""
    _, chain = gate(HTML)
    assert chain.feed(b'{"choices":[1]}', True) == b'{"choices":[1]}' and chain.head == HTML


def test_head_goes_on_when_its_time_is_over() -> None:
    """With the comments that came, which keep a client's connection open. What follows passes unread."""
    made, chain = gate(SSE)
    assert chain.feed(b": ka\n\n", False) == b""
    made.expire()
    assert chain.feed(b"", False) == b": ka\n\n" and chain.head == SSE and not chain.reads_body


def test_first_event_longer_than_errors_are_passes() -> None:
    _, chain = gate(SSE)
    long = b"data: " + b"x" * 70_000
    assert chain.feed(long, False) == long and chain.head == SSE


@pytest.mark.parametrize(
    "body",
    [
        b'{"choices":[{"message":{"content":"say \\"error\\": {"}}]}',
        b'{"object":"response","status":"completed","error":null,"output":[]}',
        b'{"id":"x","error":{}}',
        b'{"error": "broken',
        b"plain text",
    ],
)
def test_body_that_is_no_error_passes_as_it_is(body: bytes) -> None:
    _, chain = gate(JSON)
    out = chain.feed(body[:5], False) + chain.feed(body[5:], False) + chain.feed(b"", True)
    assert out == body and chain.head == JSON


def test_body_of_the_announced_length_is_whole() -> None:
    """Over HTTP/2 the end may come later, in a frame of its own."""
    body = b'{"id":"x"}'
    _, chain = gate(ReplyHead.of(200, JSON.headers, len(body)))
    assert chain.feed(body[:4], False) == b"" and chain.feed(body[4:], False) == body


def test_usual_answers_are_no_suspects() -> None:
    """They pass without a look at more than these bytes."""
    assert not may_be_error(b'{"id":"x","choices":[{"message":{"content":"an \\"error\\""}}]}')
    assert not may_be_error(b'{"object":"response","error": null}')
    assert may_be_error(b'{"error" : {"code":502}}') and may_be_error(b'{"type":"error"}')


# -- what is an error -----------------------------------------------------------------------------------

CHAT = {"error": {"message": "over", "code": 502}}
MESSAGES = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
FAILED = {"object": "response", "status": "failed", "error": {"code": "rate_limit_exceeded", "message": "slow"}}


@pytest.mark.parametrize(
    ("data", "status", "is_own"),
    [
        (MESSAGES, 529, True),
        ({"type": "error", "error": {"type": "rate_limit_error", "message": "slow"}}, 429, True),
        ({"type": "error", "error": {"type": "request_too_large", "message": "big"}}, 413, True),
        ({"type": "error", "error": {"type": "billing_error", "message": "pay"}}, 402, True),
        (CHAT, 502, True),
        ({"error": {"message": "no", "code": "503"}}, 503, True),
        ({"error": {"message": "no", "type": "server_error"}}, 500, True),
        ({"error": "no luck"}, 500, True),
        ({"error": {"code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE"}}, 503, True),
        ({"object": "error", "message": "no", "code": 400}, 400, False),
        ({"type": "error", "code": "rate_limit_exceeded", "message": "slow", "param": None}, 429, False),
        ({"type": "response.failed", "response": FAILED}, 429, False),
        (FAILED, 429, False),
        ({"id": "gen-1", "choices": [{"delta": {}, "finish_reason": "error"}], **CHAT}, 502, False),
        ({"choices": [{"finish_reason": "error", "error": {"code": 502, "message": "x"}}]}, 502, False),
    ],
)
@pytest.mark.parametrize("form", ["body", "event", "named event behind a prelude", "event without its end"])
@pytest.mark.parametrize("step", [3, 10_000])
def test_error_gets_the_status_that_it_names(
    data: dict[str, object], status: int, is_own: bool, form: str, step: int
) -> None:
    """Also behind what says only that the request was taken. An error of the client's API stays as it is."""
    body = json.dumps(data).encode()
    text = {
        "body": body,
        "event": b"data: %b\n\n" % body,
        "named event behind a prelude": PRELUDE + b"event: error\ndata: %b\n\n" % body,
        "event without its end": b"data: %b" % body,
    }[form]
    _, chain = gate(JSON if form == "body" else SSE)

    out = b"".join(fed(chain, text[at : at + step], False) for at in range(0, len(text), step)) + (
        b"" if chain.is_over else fed(chain, b"", True)
    )

    assert chain.head is not None and chain.is_over and not chain.is_sse
    assert chain.head.status == status and chain.pending_error is None
    headers = dict(chain.head.headers)
    assert headers[b"content-type"] == b"application/json" and b"etag" not in headers
    assert chain.head.content_length == len(out)
    assert json.loads(out)["error"] and (out == body or not is_own)


def test_overload_is_503_for_clients_that_do_not_know_529() -> None:
    _, chain = gate(SSE, dialect=Dialect.OPENAI)
    fed(chain, b"data: %b\n\n" % json.dumps(MESSAGES).encode(), False)
    assert chain.head is not None and chain.head.status == 503


def test_error_is_asked_about_before_anything_of_it_goes_on() -> None:
    """Another attempt may follow, by its status or by what it says: too long for this model, say."""
    _, chain = gate(SSE)
    body = json.dumps(MESSAGES).encode()
    assert chain.feed(b"event: error\ndata: %b\n\n" % body, False) == b"" and chain.head is None
    pending = chain.pending_error
    assert pending is not None and (pending.head.status, pending.body) == (529, body)


def test_error_shows_no_key() -> None:
    _, chain = gate(JSON, secret=b"sk-secret")
    out = fed(chain, b'{"error":{"message":"bad key sk-secret","code":401}}', True)
    assert b"sk-secret" not in out and chain.head is not None and chain.head.status == 401


@pytest.mark.parametrize(
    ("head", "body", "reason"),
    [
        (SSE, b"", Reason.UPSTREAM_TRUNCATED),
        (SSE, b": ka\n\n", Reason.UPSTREAM_TRUNCATED),
        (JSON, b"", Reason.UPSTREAM_PROTOCOL),
        (JSON, b" \n", Reason.UPSTREAM_PROTOCOL),
        (
            ReplyHead.of(200, [(b"content-type", b"text/html; charset=utf-8")], None),
            b"<html>",
            Reason.UPSTREAM_PROTOCOL,
        ),
    ],
)
def test_reply_that_is_none_is_a_failed_attempt(head: ReplyHead, body: bytes, reason: Reason) -> None:
    """A stream without an event, an empty body, the page of a proxy."""
    _, chain = gate(head)
    with pytest.raises(UpstreamFailure) as caught:
        chain.feed(body, True)
    assert caught.value.reason is reason
