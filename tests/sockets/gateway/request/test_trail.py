"""What clients and the log are told of attempts, and what a route does to the fields of its replies."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.recording import JSON, SSE, Call, RecordingUpstream
from tests.sockets.gateway.core_attempts import RULES, SILENT, Step, ask, broken, run, whole
from tests.sockets.gateway.core_gateway import FakeClient, ScriptedUpstream, gateway
from tests.sockets.gateway.core_upstreams import Bed, bed, lines_of, settings_of, upstream
from velox.errors import Reason
from velox.heads import ReplyHead
from velox.outcomes import Retry


def told(written: bytes) -> dict[str, str]:
    """Return the fields of a reply that tell of its attempts. None is there twice."""
    lines = written.split(b"\r\n\r\n")[0].decode().split("\r\n")[1:]
    fields = [(name[len("x-velox-") :], value) for name, _, value in (line.partition(": ") for line in lines)]
    names = ("upstream", "attempts", "tried")
    found = [(name, value) for name, value in fields if name in names]
    assert len(dict(found)) == len(found)
    return dict(found)


REFUSED = [(ReplyHead.of(500, [], 2), b"no", True)]


@pytest.mark.parametrize(
    ("scripts", "expected"),
    [
        ((whole(), SILENT), {"upstream": "0", "attempts": "1"}),
        ((whole(404), SILENT), {"upstream": "0", "attempts": "1"}),
        ((REFUSED, whole()), {"upstream": "1", "attempts": "2", "tried": "0=500"}),
        ((broken(), whole()), {"upstream": "1", "attempts": "2", "tried": "0=upstream_reset"}),
        (
            (broken(Reason.UPSTREAM_CONNECT, Retry.CONNECT), whole()),
            {"upstream": "1", "attempts": "2", "tried": "0=upstream_connect"},
        ),
        ((REFUSED, REFUSED), {"upstream": "1", "attempts": "2", "tried": "0=500"}),
        ((broken(), broken()), {"upstream": "1", "attempts": "2", "tried": "0=upstream_reset"}),
        (
            (broken(Reason.UPSTREAM_PROTOCOL), whole()),
            {"upstream": "1", "attempts": "2", "tried": "0=upstream_protocol"},
        ),
        ((broken(Reason.UPSTREAM_PROTOCOL),), {"upstream": "0", "attempts": "1"}),
        (
            (broken(unprocessed=Retry.REFUSED), REFUSED, whole()),
            {"upstream": "2", "attempts": "3", "tried": "0=upstream_reset, 1=500"},
        ),
    ],
)
def test_reply_tells_where_the_request_has_been(scripts: tuple[list[Step], ...], expected: dict[str, str]) -> None:
    """x-velox-upstream, x-velox-attempts, x-velox-tried: of replies that are passed on, and of Velox's own errors."""

    async def main() -> None:
        upstreams = [ScriptedUpstream(script) for script in scripts]
        with gateway(*(each.dial for each in upstreams), rules=RULES) as made:
            assert told((await ask(made)).written) == expected

    run(main)


def test_upstream_can_not_tell_of_attempts() -> None:
    """Fields of these names that an upstream sends don't pass, nor does its reason."""

    async def main() -> None:
        names = (b"x-velox-upstream", b"x-velox-attempts", b"x-velox-tried", b"x-velox-reason")
        one = ScriptedUpstream(whole(200, b"ok", *((name, b"evil") for name in names)))
        with gateway(one.dial) as made:
            written = (await ask(made)).written

        assert told(written) == {"upstream": "0", "attempts": "1"} and b"evil" not in written

    run(main)


def test_deadline_tells_whom_it_waited_for() -> None:
    """504: the upstream that was silent when the client's time was over."""

    async def main() -> None:
        one = ScriptedUpstream(SILENT)
        with gateway(one.dial) as made:
            written = (await ask(made, (b"x-request-timeout-ms", b"30"))).written

        assert written.startswith(b"HTTP/1.1 504") and told(written) == {"upstream": "0", "attempts": "1"}

    run(main)


# -- with settings, and a log -----------------------------------------------------------------------


async def busy(call: Call) -> None:
    await call.reply(503, JSON, b"{}")


async def stream(call: Call) -> None:
    await call.head(200, [*SSE, ("x-cost", "3"), ("server", "secret"), ("x-kept", "1")])
    await call.data(b"data: 1\n\n")
    await call.step()
    await call.end()


Two = tuple[RecordingUpstream, RecordingUpstream]


@pytest.fixture
def servers() -> Iterator[Two]:
    with RecordingUpstream() as one, RecordingUpstream() as other:
        yield one, other


def lines_after(worker: Bed, folder: Path) -> list[dict[str, object]]:
    """Return for each request what the log says of its attempts."""
    worker.log.flush()
    names = ("status", "attempts", "upstream", "tried", "phase", "reason")
    return [{name: line[name] for name in names if line.get(name) is not None} for line in lines_of(folder)]


def test_log_tells_of_all_attempts(tmp_path: Path, servers: Two) -> None:
    """upstream, attempts, tried: the same as in the reply; of a request that got to none there is nothing to tell."""
    a, b = servers

    async def main() -> None:
        lines = [upstream("a", a, more=", models: [m]"), upstream("b", b)]
        routes = ["name: r, match: {models: [m]}, to: a, fallback: b"]
        settings = settings_of(tmp_path, lines, routes, VELOX_RETRIES="1")
        with a.playing(busy), bed(tmp_path, settings) as worker:
            await worker.until_warm()
            assert told(await worker.answer()) == {"upstream": "b", "attempts": "2", "tried": "a=503"}
            worker.replace(settings_of(tmp_path, lines, ["name: r, match: {models: [x]}, to: b"]))
            refused = await worker.answer()
            assert refused.startswith(b"HTTP/1.1 404") and told(refused) == {}

            assert lines_after(worker, tmp_path) == [
                {"status": 200, "attempts": 2, "upstream": "b", "tried": "a=503", "phase": "stream", "reason": "ok"},
                {"status": 404, "attempts": 0, "phase": "queue", "reason": "unknown_model"},
            ]

    run(main)


def test_log_tells_whom_a_client_left(tmp_path: Path, servers: Two) -> None:
    """499, with the upstream that was asked."""
    a, _ = servers

    async def main() -> None:
        settings = settings_of(tmp_path, [upstream("a", a)], ["name: r, to: a"])
        with a.playing(stream), bed(tmp_path, settings) as worker:
            client, exchange = worker.ask()
            await worker.eventually(lambda: b"data: 1" in client.written)
            exchange.client_gone()
            await worker.eventually(lambda: not worker.gateway.n_active)

            line = {"status": 499, "attempts": 1, "upstream": "a", "phase": "stream", "reason": "client_closed"}
            assert lines_after(worker, tmp_path) == [line]

    run(main)


def test_route_changes_the_fields_of_its_replies(tmp_path: Path, servers: Two) -> None:
    """`response_headers`: of what the upstream sent; Velox's own fields are beyond it, and so are other routes."""
    a, _ = servers

    async def main() -> None:
        rules = "response_headers: {set: {x-served-by: velox, x-kept: mine}, remove: [x-cost]}"
        settings = settings_of(
            tmp_path,
            [upstream("a", a)],
            [f"name: r, match: {{headers: {{x-tenant: acme}}}}, to: a, {rules}", "name: s, to: a"],
        )
        with a.playing(stream), bed(tmp_path, settings) as worker:
            found = []
            for headers in ([(b"x-tenant", b"acme")], []):
                client, _ = worker.ask(*headers)
                await worker.eventually(lambda client=client: b"data: 1" in client.written)
                a.step()
                await asyncio.wait_for(client.finished.wait(), 10)
                assert not client.cuts
                found.append(fields_of(client))

        changed, others = found
        assert (changed["x-served-by"], changed["x-kept"], "x-cost" in changed) == ("velox", "mine", False)
        assert (others["x-kept"], others["x-cost"], "x-served-by" in others) == ("1", "3", False)
        for fields in found:
            assert fields["x-velox-upstream"] == "a" and fields["x-velox-request-id"] and "server" not in fields
            assert fields["content-type"] == "text/event-stream"

    run(main)


def fields_of(client: FakeClient) -> dict[str, str]:
    """Return the fields of a reply; none is there twice."""
    lines = client.written.split(b"\r\n\r\n")[0].decode().split("\r\n")[1:]
    fields = [(name, value) for name, _, value in (line.partition(": ") for line in lines)]
    assert len(dict(fields)) == len(fields)
    return dict(fields)


def test_key_is_told_to_nobody(tmp_path: Path, servers: Two) -> None:
    """F-26: neither in an error that echoes it, nor in a log line, nor in any field that tells of attempts."""
    a, b = servers

    async def echo(call: Call) -> None:
        await call.reply(401, [*JSON, ("x-echo", call.header("authorization") or "")], str(call.headers).encode())

    async def main() -> None:
        settings = settings_of(tmp_path, [upstream("a", a, b)], ["name: r, to: a"], VELOX_RETRIES="1")
        with a.playing(echo), b.playing(echo), bed(tmp_path, settings) as worker:
            written = await worker.answer()
            worker.log.flush()

        assert written.startswith(b"HTTP/1.1 401") and b"sk-a" not in written
        assert b"sk-a" not in (tmp_path / "log").read_bytes()

    run(main)
