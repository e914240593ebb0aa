"""Settings of what happens when an upstream fails or takes too long: the next one, retries and their budget, timers."""

from __future__ import annotations

import contextlib
import itertools
import socket
import time
from collections.abc import Iterator, Sequence

import pytest

from tests.e2e.harness import VeloxProcess, read_reply, until
from tests.e2e.recording import JSON, SSE, Call, Fields, RecordingUpstream, Script, healthy
from tests.e2e.routed import routed
from tests.e2e.tools import CHAT, CHAT_STREAM, Client, covers, free_port, hold_chat, reason, request_bytes

pytestmark = pytest.mark.more

# Deadlines are looked at every 0.3 s; the rest is for a busy machine.
LATE_S = 2.5


@contextlib.contextmanager
def before(*origins: str, **settings: str) -> Iterator[VeloxProcess]:
    """Run a gateway of one worker in front of these."""
    env = {f"VELOX_{name.upper()}": value for name, value in settings.items()}
    with VeloxProcess({"VELOX_UPSTREAM_ORIGIN": ",".join(origins), "VELOX_WORKERS": "1", **env}) as velox:
        yield velox


def answers(*statuses: int, fields: Fields = ()) -> Script:
    """Script: the nth chat gets the nth status, those after it the last."""
    numbers = itertools.count()

    async def script(call: Call) -> None:
        if "chat/completions" not in call.target:
            await healthy(call)
            return
        status = statuses[min(next(numbers), len(statuses) - 1)]
        if status == 200:
            await healthy(call)
        else:
            await call.reply(status, [*JSON, *fields], b'{"error":{"message":"mine"}}')

    return script


def chats(upstream: RecordingUpstream) -> Sequence[Call]:
    return [call for call in upstream.calls if "chat/completions" in call.target]


@pytest.fixture(scope="module")
def upstream() -> Iterator[RecordingUpstream]:
    with RecordingUpstream() as running:
        yield running


@covers("VELOX_UPSTREAM_ORIGIN")
def test_upstream_origin_may_be_a_list_whose_first_working_one_is_used(upstream: RecordingUpstream) -> None:
    """F-1: nobody listens at the first; the second answers, below its own path, and the first one once it is up."""
    port = free_port()
    with before(f"http://127.0.0.1:{port}", f"{upstream.upstream.url}/base") as velox, upstream.playing(healthy):
        replies = [velox.request("POST", "/v1/chat/completions", CHAT) for _ in range(8)]
        assert {reply.status for reply in replies} == {200}
        assert {call.target for call in chats(upstream)} == {"/base/v1/chat/completions"}
        first = RecordingUpstream()
        first.port = port
        with first:
            until(
                lambda: velox.request("POST", "/v1/chat/completions", CHAT).status == 200 and bool(chats(first)), "up"
            )


@covers("VELOX_RETRIES")
def test_request_that_was_received_is_sent_once_without_retries() -> None:
    """X13: an upstream that reads a request on a used connection, and closes it, gets it once: it may have begun.

    So does one that ends with the request, as a server does that it crashes.
    """

    async def script(call: Call) -> None:
        if b"crash" in call.body:
            call.cut()
        else:
            await healthy(call)

    with RecordingUpstream() as upstream, before(upstream.upstream.url, retries="0") as velox, upstream.playing(script):
        for n in range(20):
            assert velox.request("POST", "/v1/chat/completions", CHAT).status == 200
            upstream.forget()
            reply = velox.request("POST", "/v1/chat/completions", b'{"model":"crash%d","messages":[]}' % n)
            assert (reply.status, reason(reply)) == (502, "upstream_reset")
            assert len(chats(upstream)) == 1


@covers("VELOX_RETRIES", "VELOX_RETRY_STATUSES")
@pytest.mark.parametrize(
    ("settings", "status", "n_attempts"),
    [
        ({}, 503, 2),
        ({"retries": "2"}, 503, 3),
        ({"retries": "0"}, 503, 1),
        ({"retry_statuses": "429"}, 503, 1),
        ({"retry_statuses": "none"}, 503, 1),
        ({"retry_statuses": "409"}, 409, 2),
    ],
)
def test_retries_are_as_many_as_allowed_for_the_statuses_that_are_named(
    settings: dict[str, str], status: int, n_attempts: int, upstream: RecordingUpstream
) -> None:
    """Then the upstream's own answer passes, as it is."""
    with (
        before(upstream.upstream.url, **settings) as velox,
        upstream.playing(answers(status, fields=[("retry-after", "0")])),
    ):
        reply = velox.request("POST", "/v1/chat/completions", CHAT)
        assert (reply.status, reply.body, reason(reply)) == (status, b'{"error":{"message":"mine"}}', "")
        assert len(chats(upstream)) == n_attempts


@covers("VELOX_RETRY_MAX_WAIT")
@pytest.mark.parametrize(("max_wait", "n_attempts"), [("1s", 2), ("999ms", 1)])
def test_retry_after_is_waited_for_up_to_the_limit(max_wait: str, n_attempts: int, upstream: RecordingUpstream) -> None:
    """Longer: the 429 is passed on with its header, and the client decides."""
    with (
        before(upstream.upstream.url, retry_max_wait=max_wait) as velox,
        upstream.playing(answers(429, 200, fields=[("retry-after", "1")])),
    ):
        reply = velox.request("POST", "/v1/chat/completions", CHAT)
        assert len(chats(upstream)) == n_attempts
        if n_attempts == 1:
            assert (reply.status, reply.header("retry-after")) == (429, "1")
        else:
            first, second = chats(upstream)
            assert reply.status == 200 and second.came_s - first.came_s >= 0.99


@covers("VELOX_RETRY_BEFORE_FALLBACK")
@pytest.mark.parametrize(
    ("statuses", "fields", "wait", "n_first", "upstream_asked"),
    [
        ((429, 200), [("retry-after", "1")], "3s", 2, "first"),
        ((429, 200), [("retry-after", "1")], "500ms", 1, "second"),
        ((429, 200), [], "3s", 1, "second"),
        ((500, 200), [], "3s", 2, "first"),
        ((500, 200), [], "0s", 1, "second"),
        ((503, 200), [], "3s", 1, "second"),
        ((500,), [], "3s", 2, "second"),
    ],
)
def test_same_upstream_is_asked_once_more_before_a_worse_one(
    statuses: tuple[int, ...], fields: Fields, wait: str, n_first: int, upstream_asked: str, upstream: RecordingUpstream
) -> None:
    """S01, S03: after a short Retry-After or a single 500. A fallback with the same model is as good: no wait."""
    with RecordingUpstream() as second:
        upstreams = [
            {"name": "first", "origin": upstream.upstream.url},
            {"name": "second", "origin": second.upstream.url},
        ]
        for model in ("other", "m"):
            route = {"name": "all", "to": "first", "fallback": [{"upstream": "second", "model": model}]}
            with (
                routed({"upstreams": upstreams, "routes": [route]}, retry_before_fallback=wait) as velox,
                upstream.playing(answers(*statuses, fields=fields)),
            ):
                reply = velox.request("POST", "/v1/chat/completions", CHAT)
                is_as_good = model == "m"
                assert reply.header("x-velox-upstream") == ("second" if is_as_good else upstream_asked)
                assert (reply.status, len(chats(upstream))) == (200, 1 if is_as_good else n_first)


@covers("VELOX_RETRY_BUDGET", "VELOX_RETRY_BUDGET_MIN")
@pytest.mark.parametrize(
    ("percent", "spare", "n_retries"), [("0", "0", 0), ("50", "0", 5), ("0", "1", 1), ("100", "0", 10)]
)
def test_retry_budget_bounds_the_retries(percent: str, spare: str, n_retries: int, upstream: RecordingUpstream) -> None:
    """Ten requests that all fail: so many more reach the upstream, and the rest is counted as denied."""
    with before(upstream.upstream.url, retry_budget=percent, retry_budget_min=spare) as velox:
        with upstream.playing(answers(500, fields=[("retry-after", "0")])):
            began_s = time.monotonic()
            for _ in range(10):
                assert velox.request("POST", "/v1/chat/completions", CHAT).status == 500
            took_s = time.monotonic() - began_s
        # A slow machine earns another spare one each second.
        most = n_retries + int(took_s * int(spare)) + (1 if spare != "0" and took_s > 0.5 else 0)
        seen = len(chats(upstream)) - 10
        assert n_retries <= seen <= most
        velox.wait_metric('velox_retries_total{cause="status"}', lambda n: n == seen)
        velox.wait_metric('velox_retries_denied_total{by="budget"}', lambda n: n == 10 - seen)


@covers("VELOX_UPSTREAM_WRITE_TIMEOUT")
def test_upstream_that_takes_nothing_of_a_body_is_given_up() -> None:
    """F-38: it accepts and never reads; 504 body_timeout, for the upstream's fault."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        origin = f"http://127.0.0.1:{listener.getsockname()[1]}"
        settings = {"upstream_write_timeout": "500ms", "max_body": "32MiB"}
        with before(origin, **settings) as velox, velox.connect(30.0) as sock:
            body = b'{"model":"m","messages":[],"x":"' + b"x" * (24 << 20) + b'"}'
            sock.sendall(request_bytes("POST", "/v1/chat/completions", body))
            sent_s = time.monotonic()
            reply = read_reply(sock)
            assert (reply.status, reason(reply)) == (504, "body_timeout")
            assert reply.header("x-should-retry") != "true"
            assert 0.3 <= time.monotonic() - sent_s < 0.5 + LATE_S + 3.0


@covers("VELOX_UPSTREAM_TOTAL_TIMEOUT", "VELOX_STREAM_TIMEOUT")
@pytest.mark.parametrize("stream", [False, True])
def test_whole_reply_has_a_time_limit_of_its_kind(stream: bool, upstream: RecordingUpstream) -> None:
    """Bytes keep coming, but it does not end: each limit cuts its own kind and leaves the other alone."""

    async def drip(call: Call) -> None:
        if "chat/completions" not in call.target:
            await healthy(call)
            return
        await call.head(200, SSE if stream else JSON)
        await call.data(b"data: 1\n\n" * 40)
        await call.silence()

    own, other = "stream_timeout", "upstream_total_timeout"
    if not stream:
        own, other = other, own
    with before(upstream.upstream.url, **{own: "1s", other: "60s"}) as velox, upstream.playing(drip):
        with Client(velox) as client:
            client.send_chat(CHAT_STREAM if stream else CHAT)
            began_s = time.monotonic()
            seen = client.read_to_end()
            assert 0.9 <= time.monotonic() - began_s < 1.0 + LATE_S
        assert b"data: 1" in seen and not seen.endswith(b"0\r\n\r\n")
        assert (b"upstream_total_timeout" in seen) is stream
        upstream.wait_left(upstream.wait_call())
        velox.wait_access(lambda line: line["reason"] == "upstream_total_timeout")


def test_client_deadline_bounds_the_wait_for_a_reply(upstream: RecordingUpstream) -> None:
    """`x-request-timeout-ms`: 504 in time, the upstream is left, and it never sees the header."""
    with before(upstream.upstream.url) as velox, upstream.playing(hold_chat):
        with Client(velox) as client:
            client.send("POST", "/v1/chat/completions", CHAT, {"x-request-timeout-ms": "300"})
            sent_s = time.monotonic()
            reply = client.read()
            assert (reply.status, reason(reply)) == (504, "upstream_ttfb_timeout")
            assert 0.25 <= time.monotonic() - sent_s < 0.3 + LATE_S
        call = upstream.wait_call()
        upstream.wait_left(call)
        assert call.header("x-request-timeout-ms") is None
        refused = velox.request("POST", "/v1/chat/completions", CHAT, {"x-request-timeout-ms": "soon"})
        assert (refused.status, refused.error()["param"]) == (400, "x-request-timeout-ms")


def test_client_that_leaves_while_a_retry_waits_is_forgotten_at_once(upstream: RecordingUpstream) -> None:
    """Backing off: 499 within the moment, and no second attempt."""
    with (
        before(upstream.upstream.url, access_log="all") as velox,
        upstream.playing(answers(503, fields=[("retry-after", "9")])),
    ):
        with Client(velox) as client:
            client.send_chat()
            upstream.wait_call()
            until(lambda: bool(upstream.calls[0].ended), "the upstream has refused it")
            left_s = time.monotonic()
        line = velox.wait_access(lambda line: line["reason"] == "client_closed")
        assert time.monotonic() - left_s < LATE_S
        assert line["attempts"] == 1
        velox.wait_metric("velox_inflight_requests", lambda value: value == 0)
        assert len(chats(upstream)) == 1
