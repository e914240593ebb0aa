"""What the index of the admin listener says is wrong, while the gateway serves."""

from __future__ import annotations

import asyncio

from velox.admin.app import AdminApp
from velox.admin.health import Readiness
from velox.admin.message import AdminRequest
from velox.admin.problems import problems
from velox.policy.health.member import State
from velox.shm.segment import Segment
from velox.shm.status import GatewayStatus, RedisLink
from velox.shm.upstream_table import UpstreamCells, UpstreamTable


def table(*states: tuple[str, str, State | None]) -> UpstreamTable:
    """Return what two workers have of members, each by its upstream and origin. None: it has no state any more."""
    found = UpstreamTable(2)
    found.enroll((upstream, origin) for upstream, origin, _ in states)
    for block in range(2):
        cells = UpstreamCells(found, block)
        for upstream, origin, state in states:
            if state is not None:
                cells.set_state(found.row(upstream, origin), state)
    return found


def test_gateway_that_is_well_has_no_problem() -> None:
    """An upstream that has left is none, nor one whose other origin answers."""
    members = table(("a", "x", State.IN), ("b", "x", State.OUT), ("b", "y", State.IN), ("gone", "x", None)).totals()

    assert problems(GatewayStatus(Segment(2, 1)), members) == []


def test_upstreams_without_an_origin_are_told() -> None:
    members = table(("a", "x", State.OUT), ("a", "y", State.OUT), ("b", "x", State.RESTING)).totals()

    assert problems(GatewayStatus(Segment(2, 1)), members) == [
        "the upstream a is ejected, with all its origins and in all workers",
        "the upstream b is resting, with all its origins and in all workers",
    ]


def test_upstream_that_refuses_a_key_is_told() -> None:
    members = table(("a", "x", State.IN), ("a", "y", State.IN), ("b", "x", State.IN))
    for origin in ("x", "y"):
        UpstreamCells(members, 0).set_keys(members.row("a", origin), out=1, resting=0)
    UpstreamCells(members, 1).set_keys(members.row("b", "x"), out=0, resting=1)

    found = problems(GatewayStatus(Segment(2, 1)), members.totals())

    assert found == ["the upstream a refuses a key that the configuration has for it"]


def test_redis_and_a_file_of_keys_that_fail_are_told() -> None:
    status = GatewayStatus(Segment(1, 1))
    status.redis, status.key_file_is_bad = RedisLink.DOWN, True

    found = problems(status, [])

    assert len(found) == 2 and "VELOX_API_KEYS_FILE" in found[0] and "Redis" in found[1]
    status.redis, status.key_file_is_bad = RedisLink.UP, False
    assert problems(status, []) == []


def test_index_has_the_reasons_of_readiness_and_what_is_wrong_besides() -> None:
    app = AdminApp(
        metrics=bytes,
        ready=lambda: Readiness(alive=True, ready=True, reasons=("worker 0 is starting",)),
        problems=lambda: ["the upstream <a> is out"],
        profiles=None,
    )

    body = asyncio.run(app.reply(AdminRequest("GET", "/", "", "localhost", {}))).body or b""

    assert b"<li>worker 0 is starting<li>the upstream &lt;a&gt; is out" in body
    ready = asyncio.run(app.reply(AdminRequest("GET", "/readyz", "", "localhost", {}))).body or b""
    assert b"worker 0 is starting" in ready and b"upstream" not in ready
