"""The bound on a worker's memory counts what the code does, and follows each setting it is computed from."""

from __future__ import annotations

from pathlib import Path

import pytest
import trustme

from velox.gateway.limits import limiter
from velox.gateway.request import mirror
from velox.gateway.websocket import responses_socket, sockets
from velox.net import message_budget, tunnel
from velox.net.client import http1, plain_socket, reply_buffer_budget, tls
from velox.net.upstream import http2, interface
from velox.protocol.http1.request import Http1Limits
from velox.protocol.http2.engine import INGRESS_SETTINGS
from velox.runtime import capacity
from velox.runtime.buckets import table_size
from velox.runtime.capacity import descriptors_of, memory_of
from velox.runtime.supervisor import SPARES
from velox.settings import load
from velox.shm import quota_table

MIB = 2**20
PLENTY = 2**20  # open files
SMALL = {
    "VELOX_WORKERS": "1",
    "VELOX_MAX_CONNECTIONS": "1000",
    "VELOX_MAX_INFLIGHT": "1000",
    "VELOX_QUEUE_DEPTH": "1000",
    "VELOX_UPSTREAM_ORIGIN": "http://127.0.0.1:1",
}


def bound(**changes: str) -> int:
    """Return the bound of a small gateway with some settings changed."""
    return memory_of(load({**SMALL, **changes}, cores=1, memory_bytes=0), PLENTY).n_bytes


def test_numbers_are_those_of_the_code_that_keeps_them() -> None:
    """A limit that is changed in one place and not in the other would make the bound a guess."""
    assert capacity._AHEAD == http1._PIPELINE_BYTES
    assert capacity._READ == plain_socket._READ_BYTES == tls._READ_BYTES
    assert capacity._UNSENT == reply_buffer_budget._SHARE == tunnel.UNSENT_BYTES
    assert capacity._REPLIES_HTTP2 == reply_buffer_budget._FULL
    assert capacity._STREAMS_AHEAD == reply_buffer_budget.MAX_AHEAD
    assert INGRESS_SETTINGS.max_streams_local == capacity._STREAMS
    assert capacity._NARROW_WINDOW == http2.NARROW_WINDOW_BYTES
    assert capacity._READ == tunnel.READ_BYTES
    assert capacity._AHEAD == capacity._UNSENT == message_budget.FREE_BYTES, "what messages hold beside the budget"
    assert capacity._CONVERSATIONS == sockets._MOST_KEPT_BYTES
    assert capacity._TURNS == responses_socket._MOST_TURNS
    assert len(interface.ReadBuffer().view) == capacity._UPSTREAM_READ
    assert capacity._KEPT == 2 * limiter._KEPT_SETS == 2 * limiter._KEPT_QUOTAS, "a Memo holds twice its limit"
    assert capacity._MOST_ALONE == quota_table._MOST_OVERFLOWN
    assert capacity._MIRRORED == mirror._MOST
    assert capacity._MIRRORED_BODIES == 2 * mirror._MOST_BYTES
    assert Http1Limits().head_bytes < capacity._AHEAD + capacity._READ, "half a head is less than what is read"


@pytest.mark.parametrize(
    ("name", "less", "more"),
    [
        ("VELOX_MAX_CONNECTIONS", "500", "1000"),
        ("VELOX_MAX_CONNECTIONS", "500", "501"),
        ("VELOX_BODY_BUDGET", "64MiB", "65MiB"),
        ("VELOX_UPSTREAM_STREAM_WINDOW", "128KiB", "1MiB"),
        ("VELOX_MAX_TUNNELS", "1", "2"),
        ("VELOX_LISTEN_HTTP2", "off", "on"),
        ("VELOX_WORKERS", "2", "1"),
        ("VELOX_LIMITS", "[{per: gateway, rpm: 6}]", "[{per: model, rpm: 6}]"),
        ("VELOX_LIMITS", "[{per: model, rpm: 6}]", "[{per: model, rpm: 6, tpm: 6}]"),
        ("VELOX_UPSTREAM_ORIGIN", "http://127.0.0.1:1", "https://127.0.0.1:1"),
    ],
)
def test_bound_follows_each_setting(name: str, less: str, more: str) -> None:
    """More of what it is computed from is a higher bound."""
    assert bound(**{name: less}) < bound(**{name: more})


@pytest.mark.parametrize("workers", ["1", "3", "8"])
def test_table_of_limits_is_no_larger_than_its_bound(workers: str) -> None:
    """All its rows count, those for overflow too."""
    environ = {**SMALL, "VELOX_WORKERS": workers, "VELOX_LIMITS": "[{per: model, rpm: 6}]"}
    settings = load(environ, cores=1, memory_bytes=0)
    (row,) = [row for row in memory_of(settings, PLENTY).rows if row.what == "the table of limits"]
    memory = quota_table.QuotaMemory(
        table_size(settings)._replace(most_named=2 * 8192), settings.workers * (1 + SPARES)
    )

    assert row.n_bytes * 0.99 < len(memory.cells) * 8 < row.n_bytes * 1.01


def test_table_of_limits_is_counted_as_it_was_set() -> None:
    """A number of rows is that number; without one, keys make it larger."""
    limits = {"VELOX_LIMITS": "[{per: model, rpm: 6}]"}

    assert bound(**limits, VELOX_LIMIT_BUCKETS="4000000") > bound(**limits, VELOX_LIMIT_BUCKETS="100") + 400 * MIB
    assert bound(**limits, VELOX_LIMIT_BUCKETS="100") < bound(**limits)


def test_bodies_with_another_model_count(tmp_path: Path) -> None:
    """Once more; with a second attempt at a time, twice more."""
    file = tmp_path / "velox.yaml"
    upstreams = "upstreams: [{name: a, origin: http://a}, {name: b, origin: http://b}]"
    environ = {name: value for name, value in SMALL.items() if name != "VELOX_UPSTREAM_ORIGIN"}
    bounds = []
    for more in (
        "",
        ", model: m",
        ", fallback: [{upstream: b, model: m}]",
        ", model: m, hedge: {after: p95, at_most: 5%}",
    ):
        file.write_text(f"{upstreams}\nroutes: [{{name: r, to: a{more}}}]")
        settings = load(environ | {"VELOX_CONFIG": str(file)}, cores=1)
        bounds.append(memory_of(settings, PLENTY).n_bytes)

    body = round(settings.body_budget_bytes * 9 / 8)  # it grows by slices
    assert [bound - bounds[0] for bound in bounds] == [0, body, body, 2 * body]


def test_content_of_websockets_counts_where_it_is_exported() -> None:
    """With an endpoint for traces, that is."""
    content = {"VELOX_TRACES_CONTENT": "*"}
    traces = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}
    assert bound(**content, **traces) - bound(**traces) == 36 * MIB and bound(**content) == bound()


def test_copies_for_a_mirror_count(tmp_path: Path) -> None:
    """Where there is one."""
    file = tmp_path / "velox.yaml"
    upstreams = "upstreams: [{name: a, origin: http://a}, {name: b, origin: http://b}]"
    bounds = []
    for mirrored in ("", ", mirror: {to: b, percent: 1}"):
        file.write_text(f"{upstreams}\nroutes: [{{name: r, to: a{mirrored}}}]")
        environ = {name: value for name, value in SMALL.items() if name != "VELOX_UPSTREAM_ORIGIN"}
        settings = load({**environ, "VELOX_CONFIG": str(file)}, cores=1, memory_bytes=0)
        bounds.append(memory_of(settings, PLENTY).n_bytes)

    assert bounds[1] - bounds[0] == 2 * 64 * MIB + 256 * capacity._EXCHANGE


def test_websockets_that_are_answered_here_count(tmp_path: Path) -> None:
    """Where an upstream can't take them: conversations, and up to sixteen requests each."""
    file = tmp_path / "velox.yaml"
    found = []
    for provider in ("openai", "anthropic"):
        file.write_text(f"upstreams: [{{name: a, provider: {provider}, origin: http://a, key: none}}]\nmax_tunnels: 10")
        environ = {name: value for name, value in SMALL.items() if name != "VELOX_UPSTREAM_ORIGIN"}
        settings = load({**environ, "VELOX_CONFIG": str(file)}, cores=1, memory_bytes=0)
        found.append({row.what: row for row in memory_of(settings, PLENTY).rows})

    passed, answered = found
    assert answered["conversations of WebSockets"].n_bytes == 256 * MIB
    assert answered["more replies of WebSockets"].count == 10 * 15
    requests = "waiting and running requests"
    assert answered[requests].count == passed[requests].count + 10 * 15
    assert not passed["conversations of WebSockets"].n_bytes and not passed["more replies of WebSockets"].n_bytes


def test_authorities_of_the_system_count_once_for_all_who_share_them(tmp_path: Path) -> None:
    """One for requests and one for WebSockets, however many origins; a file of one's own takes next to nothing."""
    file, own = tmp_path / "velox.yaml", tmp_path / "ca.pem"
    trustme.CA().cert_pem.write_to_path(own)
    found = []
    for more in ("", ", http2: 'off'", f", ca_file: {own}"):
        upstreams = [f"{{name: {name}, origin: [https://a, https://b], key: none{more}}}" for name in "ab"]
        file.write_text(f"upstreams: [{', '.join(upstreams)}]\nroutes: [{{name: r, to: a}}]")
        environ = {name: value for name, value in SMALL.items() if name != "VELOX_UPSTREAM_ORIGIN"}
        settings = load({**environ, "VELOX_CONFIG": str(file)}, cores=1, memory_bytes=0)
        rows = {row.what: row for row in memory_of(settings, PLENTY).rows}
        assert rows["TLS contexts of upstreams"].n_bytes == 4 * 32 * 1024
        found.append(rows["authorities that upstreams are checked by"].n_bytes)

    assert found == [2 * MIB, MIB, 0]


def test_bound_counts_only_connections_that_there_are_descriptors_for() -> None:
    """`ulimit -n 256` bounds memory, too."""
    settings = load({**SMALL, "VELOX_MAX_CONNECTIONS": "10000"}, cores=1, memory_bytes=0)

    assert descriptors_of(settings, 0, 256).clients == 96
    assert memory_of(settings, 256).n_bytes < memory_of(settings, PLENTY).n_bytes / 5


def test_bound_names_its_largest_parts_first() -> None:
    """As `velox check` prints it."""
    shown = str(memory_of(load(SMALL, cores=1, memory_bytes=0), PLENTY))

    assert shown.startswith("at most 1.2 GiB a worker: unread replies 307 MiB, request bodies 288 MiB, ")
    assert "the process itself 48 MiB" in shown
