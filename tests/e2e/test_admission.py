"""The bounded queue before the upstream: what is refused and when, who leaves it, who goes first (F-48)."""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections.abc import Iterator
from functools import partial
from operator import eq

import pytest

from tests.e2e.harness import VeloxProcess
from tests.e2e.recording import Call, RecordingUpstream, healthy
from tests.e2e.tools import (
    CHAT,
    Client,
    clients,
    covers,
    hold_chat,
    reason,
    settled,
    stopped,
    wait_admitted,
    wait_warm,
)
from tests.patience import PROMPT_S


@contextlib.contextmanager
def narrow(**settings: str) -> Iterator[tuple[VeloxProcess, RecordingUpstream]]:
    """Run a gateway of one worker and one exchange at a time; chat completions wait for a step in the upstream."""
    env = {"VELOX_WORKERS": "1", "VELOX_MAX_INFLIGHT": "1", "VELOX_QUEUE_TIMEOUT": "30s"}
    env |= {f"VELOX_{name.upper()}": value for name, value in settings.items()}
    with (
        RecordingUpstream(http2=True) as upstream,
        upstream.playing(hold_chat),
        VeloxProcess({**upstream.env(), **env}) as velox,
    ):
        wait_warm(velox)
        yield velox, upstream


def is_read(witness: Client) -> None:
    """Return once the worker has read what other connections sent before: it answers one that it can refuse at once."""
    assert witness.ask("GET", "/metrics").status == 404


@covers("VELOX_QUEUE_DEPTH", "VELOX_MAX_INFLIGHT")
def test_queue_full_is_refused_at_once() -> None:
    """One in flight, two wait, the next gets 503 queue_full with Retry-After; the others are served in the end."""
    with narrow(queue_depth="2") as (velox, upstream), settled(velox), clients(velox, 4) as all_:
        wait_admitted(all_[0], upstream, 1)
        for client in all_[1:3]:
            client.send_chat()
        velox.wait_metric('velox_queue_depth{class="normal"}', lambda value: value == 2)
        began_s = time.monotonic()
        refused = all_[3].ask("POST", "/v1/chat/completions", CHAT)
        assert time.monotonic() - began_s < PROMPT_S, "a refusal does not wait"
        assert (refused.status, reason(refused)) == (503, "queue_full")
        assert (refused.header("retry-after"), refused.header("x-should-retry")) == ("1", "true")
        velox.wait_metric('velox_shed_total{reason="queue_full"}', lambda n: n == 1)
        upstream.step(3)
        assert [client.read().status for client in all_[:3]] == [200] * 3
        assert len(upstream.calls) == 3, "what is refused never goes up"
        assert all_[3].ask().status == 200, "its connection is good for the next one"


def _chat(model: str) -> bytes:
    return json.dumps({"model": model, "messages": []}).encode()


@covers("VELOX_QUEUE_BYTES")
def test_queue_of_large_bodies_is_full_before_it_is_long() -> None:
    """Two bodies of 600 bytes do not fit in 1,000; the second one that would wait gets 503 queue_full."""
    large = json.dumps({"model": "m", "messages": ["x" * 600]}).encode()
    with narrow(queue_bytes="1000") as (velox, upstream), settled(velox), clients(velox, 3) as all_:
        wait_admitted(all_[0], upstream, 1)
        all_[1].send("POST", "/v1/chat/completions", large)
        velox.wait_metric('velox_queue_depth{class="normal"}', lambda value: value == 1)
        refused = all_[2].ask("POST", "/v1/chat/completions", large)
        assert (refused.status, reason(refused)) == (503, "queue_full")
        assert "VELOX_QUEUE_BYTES" in refused.error()["message"]
        upstream.step(2)
        assert [client.read().status for client in all_[:2]] == [200, 200]


@covers("VELOX_QUEUE_FLOOR")
@pytest.mark.parametrize(("floor", "least", "most"), [("0", 0, 0), ("30", 2, 4)])
def test_queue_serves_high_first_and_leaves_low_its_floor(floor: str, least: int, most: int) -> None:
    """Of the first eight of ten high and ten low ones, low gets its floor; the upstream hears of no class."""
    with narrow(queue_floor=floor) as (velox, upstream), settled(velox), clients(velox, 21) as all_:
        wait_admitted(all_[0], upstream, 1)
        for client in all_[1:11]:
            client.send("POST", "/v1/chat/completions", _chat("low"), {"x-velox-priority": "low"})
        for client in all_[11:]:
            client.send("POST", "/v1/chat/completions", _chat("high"), {"x-velox-priority": "high"})
        velox.wait_metric('velox_queue_depth{class="low"}', lambda value: value == 10)
        velox.wait_metric('velox_queue_depth{class="high"}', lambda value: value == 10)
        upstream.step(21)
        assert {client.read().status for client in all_} == {200}
        served = [json.loads(call.body)["model"] for call in upstream.calls[1:9]]
        assert least <= served.count("low") <= most, served
        assert not any(name == "x-velox-priority" for call in upstream.calls for name, _ in call.headers)


@covers("VELOX_LIMIT_BUCKETS")
def test_table_of_limits_has_as_many_rows_as_asked_for() -> None:
    """100 rows: one is the gateway's own limit, as soon as it was asked."""
    with narrow(limit_buckets="100") as (velox, upstream), clients(velox, 1) as (client,):
        upstream.step(1)
        client.send_chat()
        assert client.read().status == 200
        rows = {state: velox.metric(f'velox_limit_rows{{state="{state}"}}') for state in ("used", "free")}
        assert sum(rows.values()) == 100 and rows["free"] >= 98


@covers("VELOX_QUEUE_TIMEOUT")
def test_queue_timeout_is_told_when_it_is_over() -> None:
    """A request that waits longer than VELOX_QUEUE_TIMEOUT gets 503 queue_timeout then, and never goes up."""
    with narrow(queue_timeout="400ms") as (velox, upstream), settled(velox), clients(velox, 3) as all_:
        wait_admitted(all_[0], upstream, 1)
        began_s = time.monotonic()
        for client in all_[1:]:
            client.send_chat()
        for client in all_[1:]:
            refused = client.read()
            assert (refused.status, reason(refused)) == (503, "queue_timeout")
            assert (refused.header("retry-after"), refused.header("x-should-retry")) == ("1", "true")
        assert 0.4 <= time.monotonic() - began_s < 0.4 + PROMPT_S
        upstream.step()
        assert all_[0].read().status == 200
        assert len(upstream.calls) == 1


def test_queue_client_that_leaves_it_is_never_sent_upstream() -> None:
    """While queued: no work for a client that has gone; its place is free for another."""
    with narrow(queue_depth="1") as (velox, upstream), settled(velox), clients(velox, 2) as (first, last):
        wait_admitted(first, upstream, 1)
        gone = 'velox_requests_total{class="4xx",reason="client_closed",route="chat"}'
        for n in range(1, 4):
            with Client(velox) as leaving:
                leaving.send_chat()
                velox.wait_metric('velox_queue_depth{class="normal"}', lambda value: value == 1)
            velox.wait_metric(gone, partial(eq, n))
        last.send_chat()
        upstream.step(2)
        assert [first.read().status, last.read().status] == [200, 200]
        assert len(upstream.calls) == 2


def test_queue_is_first_in_first_out() -> None:
    """Requests go up in the order in which they came, whichever connection they came on."""
    bodies = [b'{"model":"m%d"}' % n for n in range(12)]
    with narrow() as (velox, upstream), settled(velox), clients(velox, 13) as (witness, *all_):
        for client, body in zip(all_, bodies, strict=True):
            client.send_chat(body)
            is_read(witness)
        upstream.step(len(bodies))
        assert [client.read().status for client in all_] == [200] * 12
        assert [call.body for call in upstream.calls] == bodies


def test_queue_with_clients_that_come_and_go_loses_no_slot() -> None:
    """2 s of clients that leave in every phase: afterwards all slots are free and two requests run side by side."""

    async def quick(call: Call) -> None:
        await healthy(call)

    rng = random.Random(7)
    with narrow(max_inflight="2", queue_depth="8") as (velox, upstream), settled(velox):
        with upstream.playing(quick):
            until_s = time.monotonic() + 2
            while time.monotonic() < until_s:
                with contextlib.ExitStack() as stack:
                    batch = [stack.enter_context(Client(velox)) for _ in range(6)]
                    for client in batch:
                        client.send_chat()
                    for client in batch:
                        if rng.random() < 0.3:
                            assert client.read().status in (200, 503)
            velox.wait_metric("velox_inflight_requests", lambda value: value == 0)
        with upstream.playing(hold_chat), clients(velox, 2) as (first, second):
            wait_admitted(first, upstream, 1)
            wait_admitted(second, upstream, 2)
            upstream.step(2)
            assert [first.read().status, second.read().status] == [200, 200]


def _spread_ms(batch: str) -> int:
    """Return by how much the times to come back differ that five are told who arrive together."""
    limit = {"rate_limit_rpm": "60", "rate_limit_burst": "1", "rate_limit_max_wait": "0s"}
    with narrow(queue_batch=batch, max_inflight="64", **limit) as (velox, upstream), clients(velox, 6) as all_:
        wait_admitted(all_[0], upstream, 1)
        with stopped(velox.worker_pids()[0]):
            for client in all_[1:]:
                client.send_chat()
        refused = [client.read() for client in all_[1:]]
        assert {reply.status for reply in refused} == {429}
        told_ms = [int(reply.header("retry-after-ms") or 0) for reply in refused]
        upstream.step()
        assert all_[0].read().status == 200
    return max(told_ms) - min(told_ms)


@covers("VELOX_QUEUE_BATCH")
def test_queue_batch_decides_how_many_take_their_tokens_together() -> None:
    """Five arrive in one turn of the loop. As one batch each is told another time to come back, else all the same.

    On a busy machine a turn may end before all five are read: then they are no batch, and it is tried again.
    """
    assert _spread_ms("1") < 500
    assert any(_spread_ms("64") >= 1000 for _ in range(8))
