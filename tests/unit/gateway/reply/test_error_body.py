"""F-26: no error of an upstream shows the key that it was sent, however the error is cut into pieces."""

from __future__ import annotations

import gzip
import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from velox.gateway.reply.error_body import ErrorRedaction
from velox.heads import Header, ReplyHead
from velox.net.upstream.interface import UpstreamFailure
from velox.types import Dialect

KEY = b"sk-ours-0123456789"
JSON: Header = (b"content-type", b"application/json")
HELD = 64 * 1024


def redaction(head: ReplyHead) -> ErrorRedaction:
    error = ErrorRedaction(KEY)
    assert error.begin(head, is_sse=False, is_plain=True) is None
    return error


def feed(body: bytes, places: list[int], *headers: Header) -> tuple[ErrorRedaction, bytes, bool]:
    """Feed a body cut at `places`; return what passed on of it, and whether all of it did."""
    error = redaction(ReplyHead.of(401, list(headers), len(body)))
    cuts = sorted({0, len(body), *(place for place in places if place < len(body))})
    passed = b""
    for start, end in itertools.pairwise(cuts):
        try:
            piece = error.feed(body[start:end], end == len(body))
        except UpstreamFailure:
            return error, passed, False
        if error.is_over:
            return error, passed, False
        passed += piece
    return error, passed, True


@given(before=st.binary(max_size=40), after=st.binary(max_size=40), places=st.lists(st.integers(0, 100), max_size=20))
def test_key_is_found_however_it_is_cut(before: bytes, after: bytes, places: list[int]) -> None:
    """Nothing of a body that shows the key goes on, up to 64 KiB."""
    _, passed, whole = feed(before + KEY + after, places)

    assert (passed, whole) == (b"", False)


@given(body=st.binary(min_size=1, max_size=100), places=st.lists(st.integers(0, 100), max_size=20))
def test_other_errors_pass_unchanged(body: bytes, places: list[int]) -> None:
    """Bytes in are bytes out."""
    _, passed, whole = feed(body, places)

    assert whole and passed == body


@pytest.mark.parametrize("at", [HELD - len(KEY) - 1, HELD - 3, HELD, HELD + 1, 3 * HELD])
@pytest.mark.parametrize("piece", [1000, 16 * 1024, 10 * HELD])
def test_key_far_into_a_long_error_does_not_pass(at: int, piece: int) -> None:
    """Behind what is held, the rest is searched as it passes; of the key not one byte goes on."""
    body = b"x" * at + KEY + b"y" * HELD

    _, passed, whole = feed(body, list(range(0, len(body), piece)))

    assert not whole
    assert set(passed) <= {ord("x")}


@pytest.mark.parametrize("n_bytes", range(1, len(KEY)))
def test_no_part_of_a_key_that_is_cut_passes(n_bytes: int) -> None:
    """The last bytes of what came may be the key's first: they wait for the next ones."""
    body = b"x" * HELD + KEY

    _, passed, whole = feed(body, [HELD + n_bytes])

    assert not whole
    assert set(passed) == {ord("x")}


@pytest.mark.parametrize("form", [b"ya29/a+b=", b"ya29\\/a+b="])
def test_slashes_of_a_token_may_be_escaped(form: bytes) -> None:
    """As some JSON libraries write them: however it is cut, and behind what is held."""
    for before in (b"x", b"x" * HELD):
        for cut in range(len(form)):
            error = ErrorRedaction(b"ya29/a+b=")
            error.begin(ReplyHead.of(401, [], None), is_sse=False, is_plain=True)
            passed = error.feed(before + form[:cut], False)
            if before == b"x":
                error.feed(form[cut:], True)
                assert error.is_over and passed == b""
            else:
                with pytest.raises(UpstreamFailure):
                    error.feed(form[cut:], True)
                assert set(passed) == {ord("x")}


def test_long_error_passes_whole_and_is_not_hoarded() -> None:
    """An error of megabytes holds 64 KiB and a piece at most."""
    error = redaction(ReplyHead.of(500, [], None))
    pieces = [bytes([65 + number % 26]) * 10_000 for number in range(300)]
    passed, given, held = b"", 0, 0
    for piece in pieces:
        got = error.feed(piece, False)
        passed, given = passed + got, given + len(piece)
        held = max(held, given - len(passed))
    last = error.feed(b"end", True)
    assert passed + last == b"".join(pieces) + b"end"
    assert held < HELD + 10_000


def test_replacement_says_what_happened_and_shows_nothing() -> None:
    """The status and what tells of a retry stay; what described the body goes, and any header that shows the key."""
    headers: list[Header] = [
        (b"content-encoding", b"identity"),
        (b"retry-after", b"2"),
        (b"www-authenticate", b'Bearer error="' + KEY + b'"'),
        (b"etag", b'"1"'),
        JSON,
    ]
    error = redaction(ReplyHead.of(401, headers, 100))

    body = error.feed(b'{"error":{"message":"bad key ' + KEY + b'"}}', True)

    head = error.released
    assert error.is_over and head is not None
    assert head.headers == [JSON, (b"retry-after", b"2")]
    assert (head.status, head.content_length) == (401, len(body))
    told = json.loads(body)["error"]
    assert (told["type"], told["code"]) == ("authentication_error", "upstream_status")
    assert KEY not in body and "replaced" in told["message"]


def test_header_that_shows_the_key_is_dropped_though_the_body_does_not() -> None:
    """The body passes as it came."""
    error, passed, whole = feed(b"no", [], (b"www-authenticate", KEY), (b"x-other", b"1"))

    assert whole and passed == b"no"
    assert error.released is not None and error.released.headers == [(b"x-other", b"1")]


@pytest.mark.parametrize("fields", [[(b"content-encoding", b"gzip")], []])
def test_compressed_error_is_searched_as_its_text(fields: list[Header]) -> None:
    """Servers compress errors though they were asked not to; some say nothing of it."""
    body = gzip.compress(b'{"error":"' + KEY + b'"}')

    error, passed, whole = feed(body, [3, 20], *fields)

    assert not whole and passed == b"" and error.released is not None
    assert not [value for name, value in error.released.headers if name == b"content-encoding"]


@pytest.mark.parametrize("n_bytes", [5, 100 * 1024 * 1024])
def test_compressed_error_without_the_key_passes_as_it_came(n_bytes: int) -> None:
    """F-32: a bomb costs no more than some megabytes."""
    body = gzip.compress(b"0" * n_bytes)
    _, passed, whole = feed(body, [], (b"content-encoding", b"gzip"))

    assert whole and passed == body


@pytest.mark.parametrize("dialect", Dialect)
def test_withheld_error_has_the_shape_of_the_client(dialect: Dialect) -> None:
    """N2: its SDK reads no other one."""
    error = ErrorRedaction(KEY, dialect)
    error.begin(ReplyHead.of(401, [JSON], None), is_sse=False, is_plain=True)

    told = json.loads(error.feed(KEY, True))

    match dialect:
        case Dialect.ANTHROPIC:
            assert told["type"] == "error" and told["error"]["type"] == "authentication_error"
        case Dialect.GOOGLE:
            assert told["error"]["status"] == "UNAUTHENTICATED"
        case _:
            assert told["error"]["code"] == "upstream_status"
