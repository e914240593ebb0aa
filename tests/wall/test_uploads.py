"""Uploads to an upstream that takes nothing (F-37, F-38): an end in time, bounded memory, nobody else held up."""

from __future__ import annotations

import pytest

from tests.wall.client import PLAIN, STREAM
from tests.wall.gate import WRITE_S, Gate, Wall, start_gate
from tests.wall.provider import Provider

_MB = 1 << 20
# More than the kernel buffers on both sides of a connection take (10 MB here).
_UPLOAD_BYTES = 24 * _MB


@pytest.mark.fault("F-37")
@pytest.mark.ways("ngh2", "h2")
@pytest.mark.parametrize("stream", [PLAIN, STREAM], ids=["plain", "stream"])
def test_f37_upload_without_window_is_a_504_in_time(wall: Wall, stream: bool) -> None:
    """The upstream gives no window for the body: a bounded wait, then a reason, and the stream is given up."""
    ask = wall.alone.ask("alive", stream=stream, fault=wall.ticket("no-window"), pad=300_000)

    answer = ask.answer()

    assert (answer.status, answer.reason) == (504, "body_timeout")
    assert answer.header("x-should-retry") != "true"
    assert WRITE_S * 0.9 < answer.took_s < WRITE_S + 3
    assert wall.first.attempts(ask.model) == [], "its body never came"


@pytest.mark.fault("F-38")
@pytest.mark.ways("http1", "http1-tls")
@pytest.mark.parametrize("stream", [PLAIN, STREAM], ids=["plain", "stream"])
def test_f38_upload_that_nobody_reads_is_a_504_with_flat_memory(wall: Wall, stream: bool) -> None:
    """The upstream takes nothing from its socket: the body is held once, for a bounded time, and let go."""
    check_unread_upload(wall, wall.first, wall.alone, "no-read", stream)


@pytest.mark.fault("F-38")
@pytest.mark.ways("ngh2", "h2")
def test_f38_http2_upload_that_nobody_reads_is_a_504_with_flat_memory(wall: Wall) -> None:
    """The same over HTTP/2: the connection is stuck as a whole, and later requests do not stick to it."""
    # A wall and a gateway of its own: while the connection is stuck, it is stuck for the tests after this one too.
    with wall.provider(1) as provider, start_gate(wall.setup, [provider]) as gate:
        check_unread_upload(wall, provider, gate, "no-read-http2", PLAIN)
        gate.check_baseline()


def check_unread_upload(wall: Wall, provider: Provider, gate: Gate, fault: str, stream: bool) -> None:
    """Check the end of an upload that is not read, and what it costs."""
    gate.ask(wall.ticket("alive"), pad=_UPLOAD_BYTES).answer()  # what a large body costs anyway
    before = gate.rss_bytes()

    ask = gate.ask("alive", stream=stream, fault=wall.ticket(fault), pad=_UPLOAD_BYTES)
    answer = ask.answer()

    assert (answer.status, answer.reason) == (504, "body_timeout")
    assert WRITE_S * 0.9 < answer.took_s < WRITE_S + 3
    assert gate.rss_bytes() < before + _UPLOAD_BYTES + 16 * _MB
    assert provider.attempts(ask.model) == [], "its body never came"
    gate.check_alive()
