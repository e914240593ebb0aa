"""Requests that share one call of an upstream: equal ones at the same time, and a client's retry with its first."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import anthropic
import pytest

from tests.e2e.harness import VeloxProcess, until
from tests.e2e.raw_http import read_reply
from tests.e2e.recording import JSON, SSE, Call, RecordingUpstream
from tests.e2e.routed import routed
from tests.e2e.test_cache import KEYS, PATH, asked, chat, events
from tests.e2e.test_upgrade import running
from tests.e2e.tools import run_velox
from tests.e2e.watching import socket_inodes

N_CLIENTS: Final = 60


@pytest.fixture
def upstream() -> Iterator[RecordingUpstream]:
    """Counts what gets there."""
    with RecordingUpstream() as running:
        yield running


def config(upstream: RecordingUpstream, join: object = True, **more: object) -> dict[str, object]:
    return {
        "upstreams": [{"name": "up", "origin": upstream.upstream.url, **more}],
        "routes": [{"name": "all", "to": "up", "join": join}],
        "api_keys": [{"name": name, "key": key} for name, key in KEYS.items()],
    }


class Sender:
    """Sends requests whose replies are read later; closes what is left open."""

    def __init__(self) -> None:
        self._open: Final = contextlib.ExitStack()

    def __call__(self, velox: VeloxProcess, body: bytes, key: str = "a", **headers: str) -> socket.socket:
        fields = {
            "host": "velox",
            "authorization": f"Bearer {KEYS[key]}",
            "content-type": "application/json",
            "content-length": str(len(body)),
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        sock = self._open.enter_context(velox.connect())
        sock.sendall(f"POST {PATH} HTTP/1.1\r\n{lines}\r\n".encode() + body)
        return sock

    def close(self) -> None:
        self._open.close()


@pytest.fixture
def send() -> Iterator[Sender]:
    made = Sender()
    yield made
    made.close()


def joins(velox: VeloxProcess) -> dict[str, int]:
    """How many requests there were of each result."""
    found = velox.metrics()
    results = ("leader", "joined", "retry", "alone", "refused")
    return {each: int(n) for each in results if (n := found[f'velox_join_requests_total{{result="{each}"}}'])}


def wait_joins(velox: VeloxProcess, **wanted: int) -> None:
    until(lambda: joins(velox) == wanted, f"requests have joined: {wanted}")


def calls_of(velox: VeloxProcess, n: int) -> list[tuple[str, ...]]:
    """Wait for so many records; return upstream, flags, tokens and cost of each."""

    def found() -> list[dict[str, object]]:
        told = velox.admin("/api/v1/calls").json().get("data", [])
        assert isinstance(told, list)
        return told

    until(lambda: len(found()) >= n, f"{n} calls are in the ledger")
    calls = found()
    told = ("upstream", "flags", "output_tokens", "cost_usd")
    return sorted(tuple(str(call[name]) for name in told) for call in calls)


async def by_steps(call: Call) -> None:
    """Answer as a stream, each event when the test says so."""
    await call.head(200, SSE)
    n = call.upstream.calls.index(call) + 1
    for event in events(n):
        await call.step()
        await call.data(event)
    await call.end()


async def json_by_step(call: Call) -> None:
    n = call.upstream.calls.index(call) + 1
    await call.step()
    await call.reply(200, JSON, chat(n))


def test_many_equal_streams_share_one_call_and_leavers_harm_nobody(upstream: RecordingUpstream, send: Sender) -> None:
    """Each client's bytes are equal, whenever it came; the leader and others leave at random."""
    body, chance = asked(stream=True), random.Random(7)
    with upstream.playing(by_steps), routed(config(upstream), access_log="all") as velox:
        socks = [send(velox, body)]
        upstream.wait_call()
        upstream.step()
        socks += [send(velox, body) for _ in range(N_CLIENTS // 2)]
        wait_joins(velox, leader=1, joined=N_CLIENTS // 2)
        upstream.step()
        socks += [send(velox, body, x_request_id=f"mine-{n}") for n in range(N_CLIENTS // 2)]
        wait_joins(velox, leader=1, joined=N_CLIENTS)
        leavers = [socks.pop(0), *(socks.pop(chance.randrange(len(socks))) for _ in range(N_CLIENTS // 3))]
        for each in leavers:
            each.close()
        left = len(leavers) - 1  # the leader left before these, and has its line at the end
        until(lambda: sum(line["status"] == 499 for line in velox.access_log()) == left, "they have left")
        upstream.step(2)
        with ThreadPoolExecutor(8) as readers:
            replies = list(readers.map(read_reply, socks))
        assert {reply.body for reply in replies} == {b"".join(events(1))}
        assert {reply.header("x-velox-join") for reply in replies} == {"joined"}
        assert len({reply.header("x-velox-request-id") for reply in replies}) == len(replies)
        assert len(upstream.calls) == 1
        line = velox.wait_access(lambda line: line["join"] == "leader")
        assert (line["reason"], line["status"], line["attempts"]) == ("client_closed", 499, 1)
        line = velox.wait_access(lambda line: line["join"] == "joined" and line["status"] == 200)
        assert (line["upstream"], line["attempts"]) == (None, 0)
        until(lambda: velox.metric("velox_inflight_requests") == 0, "all are over")


def test_all_replies_that_are_no_stream_are_equal(upstream: RecordingUpstream, send: Sender) -> None:
    with upstream.playing(json_by_step), routed(config(upstream)) as velox:
        socks = [send(velox, asked())]
        upstream.wait_call()
        socks += [send(velox, b" " + asked(user=f"u{n}")) for n in range(5)]
        wait_joins(velox, leader=1, joined=5)
        upstream.step()
        replies = [read_reply(each) for each in socks]
        assert [reply.header("x-velox-join") for reply in replies] == ["leader", *["joined"] * 5]
        assert {reply.body for reply in replies} == {chat(1)}
        assert {reply.header("content-length") for reply in replies} == {str(len(chat(1)))}
        # It is over: the next request has a call of its own.
        later = send(velox, asked())
        upstream.step()
        assert read_reply(later).body == chat(2)


def test_followers_of_a_call_that_fails_before_its_first_byte_ask_once_by_themselves(
    upstream: RecordingUpstream, send: Sender
) -> None:
    """Each has a call of its own, and joins no other. The error is the leader's alone."""

    async def fails_once(call: Call) -> None:
        n = call.upstream.calls.index(call) + 1
        await call.step()
        if n == 1:
            await call.reply(400, JSON, b'{"error": {"message": "no"}}')
        else:
            await call.reply(200, JSON, chat(n))

    with upstream.playing(fails_once), routed(config(upstream)) as velox:
        leader = send(velox, asked())
        upstream.wait_call()
        followers = [send(velox, asked()) for _ in range(3)]
        wait_joins(velox, leader=1, joined=3)
        upstream.step()
        assert read_reply(leader).status == 400
        upstream.wait_call(4)
        upstream.step(3)
        replies = [read_reply(each) for each in followers]
        assert [reply.status for reply in replies] == [200] * 3
        assert {reply.body for reply in replies} == {chat(n) for n in (2, 3, 4)}
        assert {reply.header("x-velox-join") for reply in replies} == {None}
        assert joins(velox) == {"leader": 1, "joined": 3, "alone": 3}


def test_followers_of_a_call_that_breaks_off_are_told_so(upstream: RecordingUpstream, send: Sender) -> None:
    """Nobody takes what came for a whole answer."""

    async def breaks_off(call: Call) -> None:
        await call.head(200, SSE)
        await call.data(events(1)[0])
        await call.step()
        call.cut()

    with upstream.playing(breaks_off), routed(config(upstream), retries="0") as velox:
        socks = [send(velox, asked(stream=True))]
        upstream.wait_call()
        socks += [send(velox, asked(stream=True)) for _ in range(3)]
        wait_joins(velox, leader=1, joined=3)
        for each in socks:
            each.setblocking(True)
            got = b""
            while b"answer" not in got and b"role" not in got:
                got += each.recv(65536)
        upstream.step()
        for each in socks:
            rest = b""
            while more := each.recv(65536):
                rest += more
            assert b"upstream_truncated" in rest or b"upstream_reset" in rest, rest
            assert b"[DONE]" not in rest and not rest.endswith(b"0\r\n\r\n")
        assert len(upstream.calls) == 1


def test_last_one_to_leave_cancels_the_call(upstream: RecordingUpstream, send: Sender) -> None:
    with upstream.playing(by_steps), routed(config(upstream)) as velox:
        socks = [send(velox, asked(stream=True))]
        call = upstream.wait_call()
        socks += [send(velox, asked(stream=True)) for _ in range(3)]
        wait_joins(velox, leader=1, joined=3)
        for each in socks[:3]:
            each.close()
        upstream.step()
        got = b""
        while b"role" not in got:
            got += socks[3].recv(65536)
        assert call.left_s == 0
        socks[3].close()
        upstream.wait_left(call)
        until(lambda: velox.metric("velox_inflight_requests") == 0, "all are over")


def test_what_has_a_call_of_its_own(upstream: RecordingUpstream, send: Sender) -> None:
    """Another key, what is stored or looked up, what differs by chance, and who wants an answer of its own."""
    with upstream.playing(json_by_step), routed(config(upstream)) as velox:
        sent = [
            send(velox, asked()),
            send(velox, asked(), "b"),
            send(velox, asked(temperature=0.7)),
            send(velox, asked(temperature=0.7)),
            send(velox, asked(), cache_control="no-store"),
            send(velox, asked(), openai_organization="org-2"),
            *(send(velox, asked(store=True)) for _ in range(2)),
            *(send(velox, asked(tools=[{"type": "web_search"}])) for _ in range(2)),
        ]
        upstream.wait_call(len(sent))
        upstream.step(len(sent))
        replies = [read_reply(each) for each in sent]
        assert len({reply.body for reply in replies}) == len(sent)
        assert joins(velox) == {"leader": 3, "alone": 7}
    with upstream.playing(json_by_step), routed(config(upstream, {"sampled": True})) as velox:
        sent = [send(velox, asked(temperature=0.7))]
        upstream.wait_call()
        sent.append(send(velox, asked(temperature=0.7)))
        wait_joins(velox, leader=1, joined=1)
        upstream.step()
        assert len({read_reply(each).body for each in sent}) == 1


def test_stream_that_is_translated_is_the_same_for_all(upstream: RecordingUpstream, send: Sender) -> None:
    """It is put into the clients' dialect once; each has its own head."""
    told: list[dict[str, object]] = [
        {"type": "message_start", "message": {"id": "msg_1", "type": "message", "role": "assistant", "model": "m"}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "answer"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
        {"type": "message_stop"},
    ]

    async def messages(call: Call) -> None:
        await call.head(200, SSE)
        for event in told:
            await call.step()
            await call.data(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
        await call.end()

    given = config(upstream, provider="anthropic", keys=["env:ANT_KEY"])
    with upstream.playing(messages), routed(given, ANT_KEY="sk-ant-0001") as velox:
        socks = [send(velox, asked(stream=True))]
        upstream.wait_call()
        upstream.step(3)
        socks += [send(velox, asked(stream=True)) for _ in range(4)]
        wait_joins(velox, leader=1, joined=4)
        upstream.step(3)
        replies = [read_reply(each) for each in socks]
        assert len({reply.body for reply in replies}) == 1
        assert b"answer" in replies[0].body and replies[0].body.endswith(b"data: [DONE]\n\n")
        assert [reply.header("x-velox-join") for reply in replies] == ["leader", *["joined"] * 4]
        assert {reply.header("content-type") for reply in replies} == {replies[0].header("content-type")}
        assert len(upstream.calls) == 1


def test_route_without_joins_says_and_joins_nothing(upstream: RecordingUpstream, send: Sender) -> None:
    given = {**config(upstream), "routes": [{"name": "all", "to": "up", "join": False}]}
    with upstream.playing(json_by_step), routed(given) as velox:
        sent = [send(velox, asked()) for _ in range(2)]
        upstream.wait_call(2)
        upstream.step(2)
        assert [read_reply(each).header("x-velox-join") for each in sent] == [None, None]
        assert joins(velox) == {}


def test_joined_requests_have_one_bill_and_count_for_limits_of_requests(
    upstream: RecordingUpstream, send: Sender, tmp_path: Path
) -> None:
    ledger = str(tmp_path / "ledger")
    given = {**config(upstream), "limits": [{"per": "key", "rpm": 4}]}
    with upstream.playing(json_by_step), routed(given, ledger=ledger, rate_limit_max_wait="0s") as velox:
        sent = [send(velox, asked())]
        upstream.wait_call()
        sent += [send(velox, asked(), x_velox_cost="true") for _ in range(3)]
        wait_joins(velox, leader=1, joined=3)
        assert read_reply(send(velox, asked())).status == 429
        upstream.step()
        replies = [read_reply(each) for each in sent]
        assert [reply.header("x-velox-cost") for reply in replies[1:]] == ["0.000000000"] * 3
        found = calls_of(velox, 4)
        assert [call[:3] for call in found] == [*[("", "joined", "0")] * 3, ("up", "", "2")]
        usage = run_velox({"VELOX_LEDGER": ledger}, "usage", "--format", "jsonl")
        assert usage.returncode == 0, usage.stderr


def test_follower_that_never_reads_is_cut_off_and_holds_up_nobody(upstream: RecordingUpstream, send: Sender) -> None:
    """Neither does a leader that never reads."""
    word = b"data: %b\n\n" % (b"x" * 8000)
    n_words = 2000

    async def long(call: Call) -> None:
        await call.head(200, SSE)
        await call.data(word)
        await call.step()
        for _ in range(n_words):
            await call.data(word)
            await call.drain()
        await call.data(b"data: [DONE]\n\n")
        await call.end()

    with upstream.playing(long), routed(config(upstream)) as velox:
        leader = send(velox, asked(stream=True))
        upstream.wait_call()
        lazy = [send(velox, asked(stream=True)) for _ in range(3)]
        reader = send(velox, asked(stream=True))
        wait_joins(velox, leader=1, joined=4)
        upstream.step()
        reply = read_reply(reader)
        assert reply.body == word * (n_words + 1) + b"data: [DONE]\n\n"
        for each in (leader, *lazy):
            got = b""
            while more := each.recv(1 << 20):
                got += more
            assert b"[DONE]" not in got
            assert len(got) < len(reply.body)
        assert len(upstream.calls) == 1


RETRIES: Final = {"equal": False, "retries": True, "keep": "60s"}


def test_retry_gets_the_running_stream_from_its_first_byte(upstream: RecordingUpstream, send: Sender) -> None:
    """The first call goes on with nobody there. Equal requests that are no retries have calls of their own."""
    body = asked(stream=True, temperature=1)
    with upstream.playing(by_steps), routed(config(upstream, RETRIES), access_log="all") as velox:
        first = send(velox, body, x_stainless_retry_count="0")
        upstream.wait_call()
        other = send(velox, body, x_stainless_retry_count="0")
        upstream.wait_call(2)
        upstream.step()
        first.close()
        velox.wait_metric("velox_inflight_requests", lambda n: n == 2)
        retry = send(velox, body, x_stainless_retry_count="1")
        wait_joins(velox, leader=2, retry=1)
        upstream.step(7)
        got, others = read_reply(retry), read_reply(other)
        assert (got.body, got.header("x-velox-join")) == (b"".join(events(1)), "joined")
        assert (others.body, others.header("x-velox-join")) == (b"".join(events(2)), "leader")
        assert len(upstream.calls) == 2


def test_finished_answer_is_given_once_more(upstream: RecordingUpstream, send: Sender) -> None:
    with upstream.playing(json_by_step), routed(config(upstream, RETRIES)) as velox:
        first = send(velox, asked(temperature=1), x_stainless_retry_count="0")
        upstream.wait_call()
        first.close()
        until(lambda: velox.metric("velox_client_connections") == 0, "the client has left")
        upstream.step()
        until(lambda: velox.metric("velox_inflight_requests") == 0, "the call is over")
        retry = read_reply(send(velox, asked(temperature=1), x_stainless_retry_count="1"))
        assert (retry.body, retry.header("x-velox-join")) == (chat(1), "joined")
        again = read_reply(send(velox, asked(temperature=1), x_stainless_retry_count="2"))
        assert again.body == chat(1)
        assert len(upstream.calls) == 1
        upstream.step()
        new = read_reply(send(velox, asked(temperature=1), x_stainless_retry_count="0"))
        assert new.body == chat(2), "it is no retry"


def test_idempotency_key_is_of_one_request(upstream: RecordingUpstream, send: Sender) -> None:
    """Its answer is given again, also where its client had all of it. Another key of a client has names of its own."""
    with upstream.playing(json_by_step), routed(config(upstream, RETRIES)) as velox:
        upstream.step()
        first = read_reply(send(velox, asked(), idempotency_key="k1"))
        again = read_reply(send(velox, asked(), idempotency_key="k1"))
        assert (first.body, again.body) == (chat(1), chat(1))
        other = read_reply(send(velox, asked("Other."), idempotency_key="k1"))
        assert (other.status, other.header("x-velox-reason")) == (422, "idempotency_mismatch")
        upstream.step(2)
        assert read_reply(send(velox, asked("Other."), "b", idempotency_key="k1")).body == chat(2)
        assert read_reply(send(velox, asked(), idempotency_key="k2")).body == chat(3)
        assert joins(velox) == {"leader": 3, "retry": 1, "refused": 1}


def test_long_conversation_is_joined_too(upstream: RecordingUpstream, send: Sender) -> None:
    """It is compared in a thread; what others send meanwhile is theirs."""
    turns = [{"role": "user", "content": "x" * 500}] * 1200
    body = json.dumps({"model": "m", "messages": turns, "stream": True}).encode()
    assert len(body) > 600_000
    with upstream.playing(by_steps), routed(config(upstream, RETRIES)) as velox:
        first = send(velox, body, x_stainless_retry_count="0")
        upstream.wait_call()
        first.close()
        retry = send(velox, body, x_stainless_retry_count="1")
        wait_joins(velox, leader=1, retry=1)
        upstream.step(4)
        assert read_reply(retry).body == b"".join(events(1))


async def after_a_retry(call: Call) -> None:
    """Answer when the test says so, in the API that is asked."""
    await call.step()
    if "messages" in call.target:
        usage = {"input_tokens": 5, "output_tokens": 2}
        block = {"type": "text", "text": f"answer {len(call.upstream.calls)}"}
        message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [block]}
        told = {**message, "stop_reason": "end_turn", "stop_sequence": None, "usage": usage}
        await call.reply(200, JSON, json.dumps(told).encode())
    else:
        await call.reply(200, JSON, chat(len(call.upstream.calls)))


def _of_openai(velox: VeloxProcess) -> str | None:
    client = velox.openai(api_key=KEYS["a"], max_retries=8, timeout_s=1.0)
    answer = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Hello."}], timeout=1.0)
    return answer.choices[0].message.content


def _of_anthropic(velox: VeloxProcess) -> str | None:
    transport = anthropic.DefaultHttpxClient(trust_env=False)
    with anthropic.Anthropic(
        base_url=velox.base_url, api_key=KEYS["a"], max_retries=8, timeout=1.0, http_client=transport
    ) as client:
        answer = client.messages.create(
            model="m", max_tokens=9, messages=[{"role": "user", "content": "Hello."}], timeout=1.0
        )
    return "".join(block.text for block in answer.content if block.type == "text")


@pytest.mark.parametrize(("sdk", "provider"), [(_of_openai, "openai"), (_of_anthropic, "anthropic")])
def test_retry_of_an_sdk_after_its_time_out_joins_its_first_call(
    upstream: RecordingUpstream, tmp_path: Path, sdk: Callable[[VeloxProcess], str | None], provider: str
) -> None:
    """One call at the upstream, and one bill."""
    ledger = str(tmp_path / "ledger")
    given = config(upstream, RETRIES, provider=provider)
    with upstream.playing(after_a_retry), routed(given, ledger=ledger) as velox, ThreadPoolExecutor(1) as thread:
        answer = thread.submit(sdk, velox)
        upstream.wait_call()
        until(lambda: joins(velox).get("retry", 0) >= 1, "the SDK retries")
        upstream.step()
        assert answer.result() == "answer 1"
        assert len(upstream.calls) == 1
        found = calls_of(velox, 2)
        paid = [call for call in found if call[0]]
        assert [call[2] for call in paid] == ["2"]
        assert all("joined" in call[1] and call[2:] == ("0", "0.000000000") for call in found if not call[0]), found
        told = run_velox({"VELOX_LEDGER": ledger}, "usage", "--by", "upstream", "--format", "jsonl")
        assert told.returncode == 0, told.stderr


def test_workers_share_one_call(upstream: RecordingUpstream, send: Sender) -> None:
    """Whichever worker a request comes to; each client's bytes are equal, and the leader leaves."""
    body = asked(stream=True)
    with upstream.playing(by_steps), routed(config(upstream), workers="4") as velox:
        leader = send(velox, body)
        upstream.wait_call()
        upstream.step()
        socks = [send(velox, body) for _ in range(N_CLIENTS)]
        wait_joins(velox, leader=1, joined=N_CLIENTS)
        for each in (leader, *socks[::5]):
            each.close()
        del socks[::5]
        upstream.step(3)
        with ThreadPoolExecutor(8) as readers:
            replies = list(readers.map(read_reply, socks))
        assert {reply.body for reply in replies} == {b"".join(events(1))}
        assert len(upstream.calls) == 1
        until(lambda: velox.metric("velox_inflight_requests") == 0, "all are over")


def test_last_to_leave_at_any_worker_cancels(upstream: RecordingUpstream, send: Sender) -> None:
    body = asked(stream=True)
    with upstream.playing(by_steps), routed(config(upstream), workers="4") as velox:
        socks = [send(velox, body)]
        call = upstream.wait_call()
        socks += [send(velox, body) for _ in range(12)]
        wait_joins(velox, leader=1, joined=12)
        for each in socks[:-1]:
            each.close()
        assert call.left_s == 0
        socks[-1].close()
        upstream.wait_left(call)
        until(lambda: velox.metric("velox_inflight_requests") == 0, "all are over")


def test_retry_at_another_worker_joins_its_first_call(upstream: RecordingUpstream, send: Sender) -> None:
    """While it runs, and when it is over; also by its Idempotency-Key, which is known at all workers."""
    with upstream.playing(json_by_step), routed(config(upstream, RETRIES), workers="4") as velox:
        first = send(velox, asked(temperature=1), x_stainless_retry_count="0", idempotency_key="k1")
        upstream.wait_call()
        first.close()
        again = {"x_stainless_retry_count": "1", "idempotency_key": "k1"}
        running = [send(velox, asked(temperature=1), **again) for _ in range(10)]
        running += [send(velox, asked(temperature=1), idempotency_key="k1") for _ in range(10)]
        wait_joins(velox, leader=1, retry=20)
        upstream.step()
        assert {read_reply(each).body for each in running} == {chat(1)}
        over = [send(velox, asked(temperature=1), idempotency_key="k1") for _ in range(10)]
        assert {read_reply(each).body for each in over} == {chat(1)}
        others = [read_reply(send(velox, asked("Other."), idempotency_key="k1")) for _ in range(10)]
        assert {(each.status, each.header("x-velox-reason")) for each in others} == {(422, "idempotency_mismatch")}
        assert len(upstream.calls) == 1


def test_followers_elsewhere_outlive_an_upgrade(upstream: RecordingUpstream, send: Sender, tmp_path: Path) -> None:
    """The worker that has the call has no client any more; it stays for those of the other one."""
    body = asked(stream=True)
    with upstream.playing(by_steps), running(tmp_path, {**config(upstream), "workers": 2}) as gateway:
        velox = gateway.velox
        socks = [send(velox, body)]
        upstream.wait_call()
        upstream.step()
        socks += [send(velox, body) for _ in range(16)]
        wait_joins(velox, leader=1, joined=16)
        held = {pid: socket_inodes(pid) for pid in velox.worker_pids()}
        rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()]
        inodes = {row[2][-4:]: row[9] for row in rows if row[1].endswith(f":{velox.port:04X}")}
        ports = [f"{each.getsockname()[1]:04X}" for each in socks]
        workers = [next(pid for pid in held if inodes[port] in held[pid]) for port in ports]
        has = workers[0]
        far = [sock for sock, pid in zip(socks, workers, strict=True) if pid != has]
        assert far
        left = {inodes[port] for port, pid in zip(ports, workers, strict=True) if pid == has}
        for sock, pid in zip(socks, workers, strict=True):
            if pid == has:
                sock.close()
        until(lambda: not left & socket_inodes(has), "the clients of the worker that has the call have left")
        gateway.upgrade()
        until(lambda: has not in velox.worker_pids(), "it listens no more")
        upstream.step(3)
        assert {read_reply(each).body for each in far} == {b"".join(events(1))}
        assert len(upstream.calls) == 1
        for each in far:
            each.close()
        gateway.wait_alone(1)


def test_retry_without_a_name_joins_its_first_call_at_another_worker(upstream: RecordingUpstream, send: Sender) -> None:
    """By its count alone."""
    with upstream.playing(json_by_step), routed(config(upstream, RETRIES), workers="4") as velox:
        first = send(velox, asked(temperature=1), x_stainless_retry_count="0")
        upstream.wait_call()
        first.close()
        running = [send(velox, asked(temperature=1), x_stainless_retry_count="1") for _ in range(10)]
        wait_joins(velox, leader=1, retry=10)
        upstream.step()
        assert {read_reply(each).body for each in running} == {chat(1)}
        assert len(upstream.calls) == 1


@pytest.mark.parametrize("which", [0, 1])
def test_followers_of_a_worker_that_is_killed_ask_by_themselves(
    upstream: RecordingUpstream, send: Sender, which: int
) -> None:
    """Whichever of two is killed: whose connection is left has a whole answer."""
    with upstream.playing(json_by_step), routed(config(upstream), workers="2") as velox:
        socks = [send(velox, asked())]
        upstream.wait_call()
        socks += [send(velox, asked()) for _ in range(20)]
        wait_joins(velox, leader=1, joined=20)
        os.kill(velox.worker_pids()[which], signal.SIGKILL)
        upstream.step(30)
        answers = []
        for each in socks:
            with contextlib.suppress(ConnectionError):
                answers.append(read_reply(each))
        assert 0 < len(answers) < len(socks)
        assert {answer.status for answer in answers} == {200}
        assert {answer.body for answer in answers} <= {chat(n) for n in range(1, 30)}
        assert read_reply(send(velox, asked("Again."))).status == 200
