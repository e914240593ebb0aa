"""Clients that try to choose where a request goes, and keys that are not right (B-27 to B-30)."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.harness import VeloxProcess
from tests.e2e.recording import JSON, Call, RecordingUpstream
from tests.e2e.watching import socket_inodes

KEY = "vk-" + "k" * 40
ELSEWHERE = "http://127.0.0.1:9/"


@pytest.fixture(scope="module")
def upstream() -> Iterator[RecordingUpstream]:
    with RecordingUpstream() as recording:
        yield recording


@pytest.fixture(scope="module")
def velox(upstream: RecordingUpstream) -> Iterator[VeloxProcess]:
    env = {**upstream.env(), "VELOX_WORKERS": "1", "VELOX_API_KEYS": KEY, "OPENAI_API_KEY": "sk-upstream"}
    with VeloxProcess(env) as process:
        yield process


async def empty(call: Call) -> None:
    """Answer with an empty object."""
    await call.reply(200, JSON, b"{}")


def peers(velox: VeloxProcess) -> set[str]:
    """The remote addresses that the workers' sockets are connected to, as the kernel has them."""
    found = set()
    for pid in velox.worker_pids():
        inodes = socket_inodes(pid)
        for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[9] in inodes and fields[3] != "0A":
                found.add(fields[2])
    return found


@pytest.mark.parametrize(
    "header",
    [
        "x-portkey-custom-host",
        "x-target-url",
        "x-upstream",
        "x-api-base",
        "x-forwarded-host",
        "x-original-url",
        "forwarded",
    ],
)
def test_header_can_not_choose_the_destination(velox: VeloxProcess, upstream: RecordingUpstream, header: str) -> None:
    """B-29: a request goes to the configured upstream whatever its headers ask for."""
    with upstream.playing(empty):
        reply = velox.request("GET", "/v1/models", headers={"authorization": f"Bearer {KEY}", header: ELSEWHERE})
        call = upstream.wait_call()

    assert reply.status == 200
    assert call.target == "/v1/models"


@pytest.mark.parametrize(
    "fields",
    [
        {"api_base": ELSEWHERE},
        {"base_url": ELSEWHERE},
        {"custom_host": ELSEWHERE},
        {"fallbacks": [{"api_base": ELSEWHERE}]},
        {"extra_headers": {"host": "evil"}},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": ELSEWHERE}}]}]},
        {
            "messages": [
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}
            ]
        },
    ],
)
def test_body_can_not_choose_the_destination(
    velox: VeloxProcess, upstream: RecordingUpstream, fields: dict[str, object]
) -> None:
    """B-29, B-30: what a body names is data, forwarded byte for byte, and nobody connects to it."""
    body = json.dumps({"model": "m", **fields}).encode()
    before = peers(velox)

    with upstream.playing(empty):
        headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
        reply = velox.request("POST", "/v1/chat/completions", body, headers=headers)
        call = upstream.wait_call()

    assert reply.status == 200
    assert call.body == body
    nowhere_else = {peer for peer in peers(velox) - before if peer.endswith(":0009")}
    assert nowhere_else == set()


@pytest.mark.parametrize(
    "presented",
    [
        None,
        "Bearer",
        "Bearer ",
        "Bearer wrong",
        f"Bearer {KEY}x",
        f"Bearer {KEY[:-1]}",
        f"Basic {KEY}",
        "Bearer " + "k" * 9000,
    ],
)
def test_wrong_key_gets_a_constant_answer_and_no_upstream(
    velox: VeloxProcess, upstream: RecordingUpstream, presented: str | None
) -> None:
    """B-27: 401 with the same words, whatever was wrong; nothing goes up."""
    headers = {} if presented is None else {"authorization": presented}
    with upstream.playing(empty) as playing:
        reply = velox.request("GET", "/v1/models", headers=headers)
        healthy = velox.request("GET", "/v1/models", headers={"authorization": f"Bearer {KEY}"})
        first = playing.wait_call()

    assert reply.status == 401
    assert reply.error()["message"] == "no valid API key was given; send Authorization: Bearer KEY"
    assert healthy.status == 200
    assert first.header("authorization") == "Bearer sk-upstream"


def test_key_in_the_query_is_no_key(velox: VeloxProcess) -> None:
    """B-27: keys in URLs end in logs; they are not looked at."""
    assert velox.request("GET", f"/v1/models?api_key={KEY}&key={KEY}").status == 401


def test_wrong_keys_take_the_same_time_wherever_they_differ(velox: VeloxProcess) -> None:
    """B-28: 2,000 tries that differ in the first or the last byte; all refused. Times are printed, not judged."""
    wrong = {"first": "x" + KEY[1:], "last": KEY[:-1] + "x"}
    times: dict[str, list[float]] = {"first": [], "last": []}
    for _ in range(1000):
        for place, key in wrong.items():
            began = time.perf_counter()
            status = velox.request("GET", "/v1/models", headers={"authorization": f"Bearer {key}"}).status
            times[place].append(time.perf_counter() - began)
            assert status == 401

    print({place: f"{statistics.median(each) * 1e6:.0f} us" for place, each in times.items()})
