"""Translated streams that end before their end, in real processes: never as whole ones, and nothing stays behind.

The client leaves, the upstream resets, the configuration changes, the gateway drains, a worker is killed. For each
client's API, with an upstream over HTTP/1.1 and one over HTTP/2.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.e2e.harness import VeloxProcess, until
from tests.e2e.leaving import LEAVING, Leave
from tests.e2e.recorded_call import Call
from tests.e2e.recording import SSE, RecordingUpstream
from tests.e2e.routed import Entry, routed
from tests.e2e.test_cut_replies import dechunk
from tests.e2e.tools import Client, open_fds
from tests.e2e.upstreams import chat_chunk
from tests.patience import PROMPT_S

CANCEL = 8  # RFC 9113 §7
USER = [{"role": "user", "content": "hi"}]


def event(kind: str, **fields: Any) -> bytes:
    """Return an event of Anthropic's."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), json.dumps({"type": kind, **fields}).encode())


STARTED = event("message_start", message={"id": "msg_1", "model": "m", "usage": {"input_tokens": 1}})
OPENED = event("content_block_start", index=0, content_block={"type": "text", "text": ""})
SAID = event("content_block_delta", index=0, delta={"type": "text_delta", "text": "first"})
REST = (
    event("content_block_delta", index=0, delta={"type": "text_delta", "text": "last"})
    + event("content_block_stop", index=0)
    + event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 2})
    + event("message_stop")
)


class Asked(NamedTuple):
    """A client's API. path, body: of a request; MODEL is to be replaced. ends: what only a whole stream has."""

    path: str
    body: dict[str, Any]
    upstream: str
    ends: tuple[bytes, ...]


APIS = {
    "chat": Asked(
        "/v1/chat/completions",
        {"model": "MODEL", "messages": USER, "stream": True},
        "claude",
        (b"[DONE]", b'"finish_reason":"stop"'),
    ),
    "responses": Asked(
        "/v1/responses", {"model": "MODEL", "input": "hi", "stream": True}, "claude", (b"response.completed",)
    ),
    "generate": Asked(
        "/v1beta/models/MODEL:streamGenerateContent?alt=sse",
        {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]},
        "claude",
        (b'"finishReason"',),
    ),
    "array": Asked(
        "/v1beta/models/MODEL:streamGenerateContent",
        {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]},
        "claude",
        (b'"finishReason"',),
    ),
    "messages": Asked(
        "/v1/messages",
        {"model": "MODEL", "max_tokens": 9, "messages": USER, "stream": True},
        "gpt",
        (b"message_stop", b"message_delta"),
    ),
}
EACH = [(api, version) for api in APIS for version in ("http1", "http2")]


async def begins(call: Call) -> None:
    """Say the first word, and the rest when the test steps."""
    await call.head(200, SSE)
    is_claude = "/messages" in call.target
    await call.data(STARTED + OPENED + SAID if is_claude else chat_chunk("first"))
    await call.step()
    done = chat_chunk("last") + chat_chunk("", "stop") + b"data: [DONE]\n\n"
    await call.data(REST if is_claude else done)
    await call.end()


async def says_nothing(call: Call) -> None:
    """Take the request, begin a stream, and tell nothing of the model's work."""
    await call.head(200, SSE)
    await call.data(STARTED if "/messages" in call.target else b": thinking\n\n")
    await call.silence()


def cutting(*, is_hard: bool, is_late: bool) -> Callable[[Call], Any]:
    """Return a script that ends a stream as a server that fails does."""

    async def cut(call: Call) -> None:
        await call.head(200, SSE)
        if is_late:
            await call.data(STARTED + OPENED + SAID if "/messages" in call.target else chat_chunk("first"))
        await call.step()
        call.lose() if is_hard else call.cut()

    return cut


class Ground(NamedTuple):
    """A gateway and its upstreams."""

    velox: VeloxProcess
    http1: RecordingUpstream
    http2: RecordingUpstream
    config: dict[str, list[Entry]]

    def upstream(self, version: str) -> RecordingUpstream:
        return self.http1 if version == "http1" else self.http2


@contextlib.contextmanager
def standing(**settings: str) -> Iterator[Ground]:
    with RecordingUpstream() as http1, RecordingUpstream(http2=True) as http2:
        upstreams: list[Entry] = [
            {"name": f"{name}-{version}", "provider": provider, "origin": each.upstream.url, "key": "env:MODEL_KEY"}
            | ({"http2": "on"} if version == "http2" else {})
            for version, each in (("http1", http1), ("http2", http2))
            for name, provider in (("claude", "anthropic"), ("gpt", "openai-compatible"))
        ]
        for entry in upstreams:
            if entry["provider"] == "openai-compatible":
                entry["apis"] = ["chat"]
        routes: list[Entry] = [
            {"name": entry["name"], "match": {"models": [entry["name"]]}, "to": entry["name"]} for entry in upstreams
        ]
        config = {"upstreams": upstreams, "routes": routes}
        with routed(config, MODEL_KEY="sk-model-0123456789", retries="0", **settings) as velox:
            yield Ground(velox, http1, http2, config)


@pytest.fixture(scope="module")
def ground() -> Iterator[Ground]:
    with standing() as made:
        yield made


def send(client: Client, api: str, version: str) -> None:
    asked = APIS[api]
    model = f"{asked.upstream}-{version}"
    client.send(
        "POST",
        asked.path.replace("MODEL", model),
        json.dumps(asked.body).replace("MODEL", model).encode(),
        {"content-type": "application/json"},
    )


def check_not_whole(api: str, received: bytes) -> None:
    """Nothing of what came can be taken for the end of an answer."""
    for end in APIS[api].ends:
        assert end not in received, received


def check_nothing_left(velox: VeloxProcess) -> None:
    """Slots are free, nobody waits, no attempt runs."""
    velox.wait_metric("velox_inflight_requests", lambda n: n == 0)

    def is_idle() -> bool:
        found = velox.metrics().items()
        return all(not n for name, n in found if name.startswith("velox_upstream_inflight_requests{"))

    until(is_idle, "no attempt runs")


@pytest.mark.parametrize("leave", LEAVING)
@pytest.mark.parametrize(("api", "version"), EACH)
def test_client_that_leaves_takes_the_upstreams_work_with_it(
    ground: Ground, api: str, version: str, leave: Leave
) -> None:
    """In the middle of a stream, and while its head is held."""
    upstream = ground.upstream(version)
    for script, is_held in ((begins, False), (says_nothing, True)):
        with upstream.playing(script), Client(ground.velox) as client:
            send(client, api, version)
            call = upstream.wait_call()
            received = b"" if is_held else client.read_until(b"first")
            began_s = time.monotonic()
            leave(client.sock)
            assert upstream.wait_left(call) - began_s < PROMPT_S
            assert call.reset_code == (CANCEL if version == "http2" else None)
            check_not_whole(api, received)
    check_nothing_left(ground.velox)


def test_clients_that_leave_cost_no_descriptors(ground: Ground) -> None:
    """Some dozens, in each API and over both versions of HTTP."""
    (worker,) = ground.velox.worker_pids()
    at_first = 0
    for turn in range(4):
        for api, version in EACH:
            upstream = ground.upstream(version)
            with upstream.playing(begins), Client(ground.velox) as client:
                send(client, api, version)
                client.read_until(b"first")
        check_nothing_left(ground.velox)
        at_first = at_first or (open_fds(worker) if turn else 0)

    until(lambda: open_fds(worker) <= at_first, f"no more than {at_first} descriptors")


@pytest.mark.parametrize("is_hard", [False, True], ids=["reset", "lost"])
@pytest.mark.parametrize(("api", "version"), EACH)
def test_upstream_that_fails_is_no_end(ground: Ground, api: str, version: str, is_hard: bool) -> None:
    """After the first word an error in the client's API; before it an error status."""
    upstream = ground.upstream(version)
    with upstream.playing(cutting(is_hard=is_hard, is_late=True)), Client(ground.velox) as client:
        send(client, api, version)
        received = client.read_until(b"first")
        upstream.step()
        received += client.read_to_end()
        check_not_whole(api, received)
        assert b'"error"' in received or b"response.failed" in received

    with upstream.playing(cutting(is_hard=is_hard, is_late=False)), Client(ground.velox) as client:
        upstream.step()
        send(client, api, version)
        reply = client.read()
        assert reply.status == 502 and "error" in json.loads(reply.body)
        check_not_whole(api, reply.body)
    check_nothing_left(ground.velox)


def begin(ground: Ground, stack: contextlib.ExitStack) -> list[tuple[str, str, Client, bytes]]:
    """Begin a stream of each kind; return also what has come of it: the first word."""
    for upstream in (ground.http1, ground.http2):
        stack.enter_context(upstream.playing(begins))
    streams = [(api, version, stack.enter_context(Client(ground.velox))) for api, version in EACH]
    for api, version, client in streams:
        send(client, api, version)
    return [(api, version, client, client.read_until(b"first")) for api, version, client in streams]


def test_streams_outlive_their_configuration(ground: Ground) -> None:
    """Their upstreams are gone after a reload; they end whole."""
    velox, reloads = ground.velox, 'velox_config_reloads_total{result="ok"}'
    other: Entry = {"name": "other", "origin": ground.http1.upstream.url}
    elsewhere: list[Entry] = [{**route, "to": "other"} for route in ground.config["routes"]]
    with contextlib.ExitStack() as stack:
        streams = begin(ground, stack)
        for config in ({"upstreams": [other], "routes": elsewhere}, ground.config):
            n = velox.metric(reloads)
            Path(velox.env["VELOX_CONFIG"]).write_text(yaml.safe_dump(config, sort_keys=False))
            velox.signal(signal.SIGHUP)
            velox.wait_metric(reloads, lambda found, n=n: found > n)
        for upstream in (ground.http1, ground.http2):
            upstream.step(len(APIS))
        for api, _, client, received in streams:
            received += client.read_until(b"0\r\n\r\n")
            assert b"last" in received and all(end in received for end in APIS[api].ends)
    check_nothing_left(velox)


def test_draining_ends_streams_whole_or_says_that_they_are_not() -> None:
    """Who goes on within the window ends whole; who does not gets an error, or a reset."""
    with standing(drain_timeout="1s") as ground, contextlib.ExitStack() as stack:
        streams = begin(ground, stack)
        ground.velox.signal(signal.SIGTERM)
        until(lambda: ground.velox.admin("/readyz").status == 503, "the gateway leaves")
        ground.http1.step(len(APIS))
        for api, version, client, received in streams:
            received += client.read_to_end()
            if version == "http1":
                assert all(end in received for end in APIS[api].ends) and received.endswith(b"0\r\n\r\n")
            else:
                check_not_whole(api, received)
                assert not received.endswith(b"0\r\n\r\n") or b"error" in received or b"failed" in received
        assert ground.velox.wait(10) == 0


def test_worker_that_is_killed_ends_no_stream_whole() -> None:
    """The clients see their connections break; the upstreams too; the next worker serves."""
    with standing() as ground, contextlib.ExitStack() as stack:
        streams = begin(ground, stack)
        (worker,) = ground.velox.worker_pids()
        os.kill(worker, signal.SIGKILL)
        for api, _, client, received in streams:
            received += client.read_to_end()
            check_not_whole(api, received)
            assert not dechunk(received.partition(b"\r\n\r\n")[2])[1]
        for upstream in (ground.http1, ground.http2):
            for call in upstream.calls:
                upstream.wait_left(call)
        until(lambda: bool(ground.velox.worker_pids()) and ground.velox.worker_pids() != [worker], "another worker")
        check_nothing_left(ground.velox)
        with Client(ground.velox) as client:
            send(client, "chat", "http2")
            ground.http2.step()
            assert b"[DONE]" in client.read_until(b"[DONE]")
