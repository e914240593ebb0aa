"""What a gateway does just now, asked of two workers: /debug/pprof/tasks, connections, loop and heap."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.e2e.harness import VeloxProcess, until
from tests.e2e.recorded_call import Call
from tests.e2e.recording import SSE, RecordingUpstream, Script
from tests.e2e.routed import routed
from tests.e2e.tools import stopped
from tests.e2e.upstreams import chat_chunk
from velox.build import BUILD

KEY = "sk-client-0123456789"
TOKEN = "admin-of-the-test"
ADMIN = {"authorization": f"Bearer {TOKEN}"}
PROMPT = "a prompt that no page shows"


async def begin(call: Call) -> None:
    """Send the first words of an answer, and never the rest."""
    await call.head(200, SSE)
    await call.data(chat_chunk("word "))
    await call.silence()


async def silent(call: Call) -> None:
    """Send nothing."""
    await call.silence()


@contextlib.contextmanager
def gateway(folder: Path, script: Script = begin, **more: str) -> Iterator[VeloxProcess]:
    """Run one of two workers, whose upstream begins and never ends."""
    keys = folder / "keys.yaml"
    keys.write_text(f"- {{key: {KEY}, name: app}}\n")
    given = {"api_keys_file": str(keys), "MODEL_KEY": "sk-model-0123456789", "workers": "2"}
    with RecordingUpstream() as upstream, upstream.playing(script):
        entry = {"name": "one", "provider": "openai", "origin": upstream.upstream.url, "key": "env:MODEL_KEY"}
        routes = [{"name": "rest", "to": ["one"]}]
        with routed({"upstreams": [entry], "routes": routes}, **{**given, **more}) as velox:
            if "admin_token" not in more:
                velox.wait_warm()
            yield velox


def asking() -> bytes:
    """Return a request for a stream."""
    message = {"role": "user", "content": PROMPT}
    body = json.dumps({"model": "house-model", "stream": True, "messages": [message]}).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\ncontent-type: application/json\r\n"
    return head + b"authorization: Bearer %b\r\ncontent-length: %d\r\n\r\n%b" % (KEY.encode(), len(body), body)


def begin_stream(velox: VeloxProcess) -> socket.socket:
    """Ask for a stream; return its connection once the first words are there."""
    sock = velox.connect()
    sock.sendall(asking())
    read = b""
    while b"word" not in read:
        read += sock.recv(65536)
    return sock


def change(velox: VeloxProcess, path: str, headers: Mapping[str, str] | None = None) -> int:
    """Have something taken away; return the status."""
    connection = http.client.HTTPConnection(velox.admin_url.removeprefix("http://"), timeout=30)
    try:
        connection.request("DELETE", path, headers=dict(headers or {}))
        return connection.getresponse().status
    finally:
        connection.close()


def page(velox: VeloxProcess, name: str) -> dict[str, Any]:
    found: dict[str, Any] = velox.admin(f"/debug/pprof/{name}?format=json").json()
    return found


def test_running_requests_are_told_with_where_they_are_and_without_their_prompts(tmp_path: Path) -> None:
    """Of both workers; one that has ended is gone from the page, and a worker that is stuck is named."""
    with gateway(tmp_path) as velox, contextlib.ExitStack() as stack:
        socks = [stack.enter_context(begin_stream(velox)) for _ in range(12)]
        found = page(velox, "tasks")
        assert found["total"] == len(found["rows"]) == 12
        assert {row["worker"] for row in found["rows"]} == {0, 1}
        for row in found["rows"]:
            told = [row[name] for name in ("phase", "endpoint", "route_name", "upstream", "model", "key", "attempts")]
            assert told == ["stream", "chat", "rest", "one", "house-model", "app", 1]
            assert row["key_id"] and row["stream"] and row["bytes_out"] > 0 and row["address"] == "127.0.0.1"
        text = velox.admin("/debug/pprof/tasks").body.decode()
        assert PROMPT not in text + json.dumps(found) and KEY not in text
        with stopped(velox.worker_pids()[1]):
            assert page(velox, "tasks")["missing"] == [1]
        for sock in socks:
            sock.close()
        until(lambda: page(velox, "tasks")["total"] == 0, "those whose clients left have ended")


def test_open_connections_are_told_with_peers_and_bytes(tmp_path: Path) -> None:
    """A client's, with what it has sent and got, and the one to the upstream that serves it."""
    with gateway(tmp_path) as velox, begin_stream(velox) as sock:
        port = sock.getsockname()[1]
        rows = page(velox, "connections")["rows"]
        (client,) = [row for row in rows if row["peer"] == f"127.0.0.1:{port}"]
        assert [client[name] for name in ("side", "protocol", "state", "streams", "tls")] == [
            *("client", "HTTP/1.1", "answering", 1, False),
        ]
        assert client["bytes_in"] > 100 and client["bytes_out"] > 20 and client["age_s"] >= 0
        busy = [row for row in rows if row["side"] == "upstream" and row["state"] == "busy"]
        assert [(row["upstream"], row["protocol"], row["streams"]) for row in busy] == [("one", "HTTP/1.1", 1)]
        assert busy[0]["bytes_in"] > 20 and busy[0]["bytes_out"] > 100 and busy[0]["begun"] >= 1
        idle = page(velox, "connections")
        assert idle["total"] == len(idle["rows"]) and idle["missing"] == []


def test_loop_that_stood_still_is_told_with_how_long(tmp_path: Path) -> None:
    """The worker was not let run for a moment. Its alarm rings as it is again, in any of its threads."""
    with gateway(tmp_path) as velox:
        pid = velox.worker_pids()[0]
        before = page(velox, "loop")["total"]
        os.kill(pid, signal.SIGSTOP)
        # A worker that stands still answers nobody: the page waits for it as long as it waits for any.
        assert page(velox, "tasks")["missing"] != []
        os.kill(pid, signal.SIGCONT)
        until(lambda: page(velox, "loop")["total"] > before, "the turn is noted")
        longest = max(page(velox, "loop")["rows"], key=lambda row: row["lasted_s"])
        assert longest["lasted_s"] > 1, longest
        assert b"for at least" in velox.admin("/debug/pprof/loop").body


def test_heap_of_all_workers_is_text_and_leaves_them_serving(tmp_path: Path) -> None:
    """What they allocate meanwhile: the requests that run then."""
    with gateway(tmp_path, profile_interval="0s") as velox, contextlib.ExitStack() as stack:
        reply = velox.admin("/debug/pprof/heap?seconds=1")
        assert reply.status == 200 and b"memory allocated in 1 s" in reply.body
        assert b"did not answer" not in reply.body
        assert (b"compiled build" in reply.body) == (BUILD == "compiled")
        stack.enter_context(begin_stream(velox))
        file = velox.admin("/debug/pprof/heap?seconds=1&format=speedscope")
        assert [each["unit"] for each in file.json()["profiles"]] == ["bytes", "bytes"]


def test_without_profiling_there_is_none_of_it(tmp_path: Path) -> None:
    with gateway(tmp_path, profiling="off") as velox:
        for name in ("tasks", "connections", "loop", "heap"):
            assert velox.admin(f"/debug/pprof/{name}").status == 404


def test_request_is_ended_by_the_api_wherever_it_is(tmp_path: Path) -> None:
    """A stream gets an error event and no clean end; the logs have who ended it, and that it was."""
    with gateway(tmp_path) as velox, contextlib.ExitStack() as stack:
        streams = [stack.enter_context(begin_stream(velox)) for _ in range(4)]
        idents = [row["id"] for row in page(velox, "tasks")["rows"]]
        # Where no admin token is set nobody may.
        assert change(velox, f"/api/v1/requests/{idents[0]}") == 403
    with gateway(tmp_path, admin_token=TOKEN) as velox, contextlib.ExitStack() as stack:
        streams = [stack.enter_context(begin_stream(velox)) for _ in range(4)]
        rows = velox.admin("/api/v1/requests", ADMIN).json()["data"]
        assert {row["worker"] for row in rows} <= {0, 1} and len(rows) == 4
        for row in rows:
            assert change(velox, f"/api/v1/requests/{row['id']}", ADMIN) == 200
        for sock in streams:
            rest = b""
            while more := sock.recv(65536):
                rest += more
            assert b"ended_by_admin" in rest and b"[DONE]" not in rest and not rest.endswith(b"0\r\n\r\n")
        assert change(velox, f"/api/v1/requests/{rows[0]['id']}", ADMIN) == 404
        for row in rows:
            line = velox.wait_access(lambda each, ident=row["id"]: each["id"] == ident)  # type: ignore[misc]
            assert (line["reason"], line["sent_status"], line["phase"]) == ("ended_by_admin", 200, "stream")
        velox.wait_log(lambda line: f"request {rows[0]['id']} was ended by admin" in line)


def test_request_without_a_reply_is_ended_with_an_error(tmp_path: Path) -> None:
    """No other attempt follows, though its upstream has failed nobody."""
    with gateway(tmp_path, script=silent, admin_token=TOKEN) as velox, velox.connect() as sock:
        sock.sendall(asking())
        found: list[dict[str, Any]] = []

        def waits() -> bool:
            found[:] = velox.admin("/api/v1/requests", ADMIN).json()["data"]
            return [row["phase"] for row in found] == ["ttfb"]

        until(waits, "it waits for its first byte")
        assert change(velox, f"/api/v1/requests/{found[0]['id']}", ADMIN) == 200
        reply = sock.recv(65536)
        assert reply.startswith(b"HTTP/1.1 503") and b"x-should-retry: false" in reply and b"ended_by_admin" in reply
        assert found[0]["attempts"] == 1
