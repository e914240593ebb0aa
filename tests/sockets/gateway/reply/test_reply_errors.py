"""Errors of an upstream on their way down: unchanged, unless they show the key that Velox sent (F-26)."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sockets.gateway.core_gateway import FakeClient, end_of
from tests.sockets.gateway.reply.test_reply import KEY, Listener, body_of, head, on_a_loop, reply_for
from velox.errors import Reason
from velox.gateway.reply.headers import NO_ATTEMPTS
from velox.net.upstream.interface import UpstreamFailure


@pytest.mark.parametrize("length", [True, False])
@given(places=st.lists(st.integers(0, 60), max_size=10))
def test_error_that_shows_our_key_is_replaced(length: bool, places: list[int]) -> None:
    """F-26: the client gets the status and an error of ours, whole, however the upstream's was cut."""
    body = b'{"error":{"message":"wrong key ' + KEY + b'"}}'

    async def test(client: FakeClient) -> None:
        reply = reply_for(client)
        reply.begin(Listener(secret=KEY), NO_ATTEMPTS)
        cuts = sorted({0, len(body), *places})
        first = head(401, (b"x-seen", KEY), (b"x-request-id", b"req_1"), length=len(body) if length else None)
        for start, end in itertools.pairwise(cuts):
            reply.on_reply(first if start == 0 else None, body[start:end], end == len(body))
        await end_of(reply)
        assert client.written.startswith(b"HTTP/1.1 401 ")
        assert b"x-request-id: req_1" in client.written
        assert KEY not in client.written and b"was replaced" in client.written
        assert b"content-length: %d\r\n" % len(body_of(client)) in client.written

    on_a_loop(test)


@pytest.mark.parametrize("secret", [KEY, None])
@given(body=st.binary(max_size=60), places=st.lists(st.integers(0, 60), max_size=10))
def test_other_errors_pass_as_they_came(secret: bytes | None, body: bytes, places: list[int]) -> None:
    """Status, headers and body unchanged, with a key of ours or without."""

    async def test(client: FakeClient) -> None:
        reply = reply_for(client)
        reply.begin(Listener(secret=secret), NO_ATTEMPTS)
        cuts = sorted({0, *(place for place in places if place < len(body))})
        for number, start in enumerate(cuts):
            end = cuts[number + 1] if start != cuts[-1] else len(body)
            reply.on_reply(head(400, (b"x-mark", b"1")) if number == 0 else None, body[start:end], False)
        reply.on_reply(None, b"", True)
        await end_of(reply)
        assert client.written.startswith(b"HTTP/1.1 400 ") and b"x-mark: 1" in client.written
        assert body_of(client) == body

    on_a_loop(test)


def test_error_that_is_cut_while_it_is_held_leaves_the_client_untouched() -> None:
    """Nothing has gone down: it may be tried again, or answered with a clean 502."""

    async def test(client: FakeClient) -> None:
        reply = reply_for(client)
        reply.begin(Listener(secret=KEY), NO_ATTEMPTS)
        reply.on_reply(head(500, length=100), b"half", False)
        reply.on_failure(UpstreamFailure(Reason.UPSTREAM_TRUNCATED, "cut"))
        with pytest.raises(UpstreamFailure):
            await end_of(reply)
        assert (reply.started, client.written) == (False, b"")
        reply.begin(Listener(secret=KEY), NO_ATTEMPTS)
        reply.on_reply(head(200, length=2), b"", False)
        reply.on_reply(None, b"ok", True)
        await end_of(reply)
        assert client.written.endswith(b"\r\n\r\nok") and b"half" not in client.written

    on_a_loop(test)


def test_long_error_that_shows_our_key_is_cut_before_it() -> None:
    """What was announced can't be replaced any more: then it is not whole."""

    async def test(client: FakeClient) -> None:
        reply = reply_for(client)
        reply.begin(Listener(secret=KEY), NO_ATTEMPTS)
        reply.on_reply(head(500), b"x" * 70_000, False)
        reply.pass_on()
        assert reply.started
        reply.on_reply(None, KEY[:9], False)
        reply.on_reply(None, KEY[9:], False)
        with pytest.raises(UpstreamFailure):
            await end_of(reply)
        assert KEY[:1] not in body_of(client).replace(b"x", b"")

    on_a_loop(test)


def test_answer_to_head_passes_with_its_length() -> None:
    """An error without a body is not held for ever."""

    async def test(client: FakeClient) -> None:
        reply = reply_for(client, method=b"HEAD")
        reply.begin(Listener(secret=KEY), NO_ATTEMPTS)
        reply.on_reply(head(404, length=10), b"", True)
        await end_of(reply)
        assert client.written.startswith(b"HTTP/1.1 404 ") and b"content-length: 10\r\n" in client.written

    on_a_loop(test)
