"""The admin listener's rules that need no socket: heads, Host names, readiness, the profile's query."""

from __future__ import annotations

import asyncio

import pytest

from tests.admin_requests import parse_request
from velox.admin.health import STUCK_AFTER_S, WorkerHealth, readiness
from velox.admin.message import TEXT, AdminRequest, RefusalError, Reply
from velox.admin.pprof import ProfilePage, index_page
from velox.build import DESCRIPTION
from velox.profiling.samples import HEAP, Profile
from velox.shm.problems import CredentialProblem
from velox.shm.status import WorkerState

GOOD = WorkerHealth(WorkerState.READY, upstream_ready=True, heartbeat_age_s=0.1)
NAMES = frozenset({"admin.internal"})


def head(host: str = "Host: localhost\r\n", line: str = "GET / HTTP/1.1") -> bytes:
    return f"{line}\r\n{host}\r\n".encode("latin-1")


def refusal_of(raw: bytes) -> Reply:
    with pytest.raises(RefusalError) as caught:
        parse_request(raw, NAMES)
    return caught.value.reply


@pytest.mark.parametrize(
    "host",
    [
        "localhost", "LOCALHOST:6060", "localhost.", "127.0.0.1", "127.0.0.1:6060", "10.1.2.3:80",
        "[::1]", "[::1]:6060", "admin.internal", "Admin.Internal:6060",
    ],
)  # fmt: skip
def test_host_address_or_known_name_is_served(host: str) -> None:
    """An IP address, localhost and the listener's own name are who this listener is."""
    assert parse_request(head(f"Host: {host}\r\n"), NAMES).host == host


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:6060", "localhost.evil.example", "127.0.0.1.evil.example", "2130706433"],
)
def test_host_foreign_name_is_403(host: str) -> None:
    """A page of a foreign name that resolves to this address gets nothing (DNS rebinding)."""
    assert refusal_of(head(f"Host: {host}\r\n")).status == 403


@pytest.mark.parametrize(
    "host", ["", "Host: \r\n", "Host: a b\r\n", "Host: localhost\r\nHost: localhost\r\n", "Host: u@localhost\r\n",
             "Host: localhost:x\r\n", "Host: [::1\r\n", "Host: localhost/\r\n"],
)  # fmt: skip
def test_host_absent_repeated_or_malformed_is_400(host: str) -> None:
    """HTTP/1.1 wants exactly one valid Host."""
    assert refusal_of(head(host)).status == 400


def test_host_absent_http_1_0_is_served() -> None:
    """Simple health checks speak HTTP/1.0 without a Host; browsers never do."""
    assert parse_request(head("", "GET /healthz HTTP/1.0"), NAMES).path == "/healthz"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_method_other_than_get_is_405(method: str) -> None:
    """B-51: no page can be changed, and the reply says what can be done."""
    reply = refusal_of(head(line=f"{method} /metrics HTTP/1.1"))

    assert reply.status == 405
    assert ("Allow", "GET, HEAD") in reply.headers
    for unknown in ("TRACE /metrics", "CONNECT localhost:80"):
        assert refusal_of(head(line=f"{unknown} HTTP/1.1")).status == 405


def test_post_is_taken_where_something_is_done_and_from_no_page() -> None:
    """A browser says where a POST is from, also for a page that hides it; a program does not."""
    assert parse_request(head(line="POST /reload HTTP/1.1"), NAMES).method == "POST"
    for origin in ("http://127.0.0.1:6060", "null"):
        assert refusal_of(head(f"Host: localhost\r\nOrigin: {origin}\r\n", "POST /reload HTTP/1.1")).status == 403


PROFILE = "GET /debug/pprof/profile?seconds=60 HTTP/1.1"


@pytest.mark.parametrize(
    "more",
    [
        "Sec-Fetch-Site: cross-site", "Sec-Fetch-Site: same-site", "Sec-Fetch-Site: Cross-Site", "Origin: null",
        "Origin: https://evil.example", "Origin: http://localhost:3000", "Origin: http://localhost",
    ],
)  # fmt: skip
def test_page_of_another_site_takes_no_profile(more: str) -> None:
    """A picture in it would be enough to ask for one. What costs nothing may be asked for."""
    assert refusal_of(head(f"Host: localhost:6060\r\n{more}\r\n", PROFILE)).status == 403
    assert refusal_of(head(f"Host: localhost:6060\r\n{more}\r\n", PROFILE.replace("GET", "HEAD"))).status == 403
    assert parse_request(head(f"Host: localhost:6060\r\n{more}\r\n", "GET /metrics HTTP/1.1"), NAMES)


@pytest.mark.parametrize(
    "more", ["", "Sec-Fetch-Site: none\r\n", "Sec-Fetch-Site: same-origin\r\nOrigin: http://localhost:6060\r\n"]
)
def test_own_page_and_address_bar_take_profiles(more: str) -> None:
    """And what is no browser."""
    assert parse_request(head(f"Host: localhost:6060\r\n{more}", PROFILE), NAMES).path == "/debug/pprof/profile"


@pytest.mark.parametrize(
    "raw", [b"\r\n\r\n", b"GET\r\n\r\n", b"\x16\x03\x01\x02\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost : localhost\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\x00b\r\n\r\n"],
)  # fmt: skip
def test_head_broken_is_400(raw: bytes) -> None:
    """What is no HTTP/1.1 is told so."""
    assert refusal_of(raw).status == 400


def test_head_upgrade_offer_is_ignored() -> None:
    """`curl --http2` offers h2c; the answer is HTTP/1.1 as if it had not."""
    raw = head("Host: localhost\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n", "GET /metrics HTTP/1.1")

    assert parse_request(raw, NAMES).path == "/metrics"


WORKER_PROBLEMS = [
    (WorkerHealth(WorkerState.STARTING, False, 0.0), "worker 0 is starting", True),
    (WorkerHealth(WorkerState.DRAINING, True, 0.0), "worker 0 is draining", True),
    (WorkerHealth(WorkerState.STOPPED, False, 0.0), "worker 0 is not running", False),
    (WorkerHealth(WorkerState.READY, False, 0.0), "worker 0 has no connection to its upstream", True),
    (WorkerHealth(WorkerState.READY, True, STUCK_AFTER_S + 0.1), "worker 0 shows no sign of life", True),
]


@pytest.mark.parametrize(("worker", "reason", "alive"), WORKER_PROBLEMS)
def test_readiness_only_worker_unfit_is_not_ready_and_says_why(worker: WorkerHealth, reason: str, alive: bool) -> None:
    """Without a worker that can serve, no traffic should come."""
    state = readiness([worker], draining=False)

    assert (state.ready, state.alive, state.reasons) == (False, alive, (reason,))


@pytest.mark.parametrize(("worker", "reason", "alive"), WORKER_PROBLEMS)
def test_readiness_one_good_worker_is_enough(worker: WorkerHealth, reason: str, alive: bool) -> None:
    """One worker's trouble does not take the others out of service, but it is told."""
    state = readiness([worker, GOOD], draining=False)

    assert (state.ready, state.alive, state.reasons) == (True, True, (reason,))


def test_readiness_upstream_not_required_is_ready_and_says_what_is_wrong() -> None:
    """VELOX_READY_REQUIRES_UPSTREAM=off: traffic may come while no upstream answers; a stuck worker takes none."""
    lonely = WorkerHealth(WorkerState.READY, False, 0.0)
    stuck = WorkerHealth(WorkerState.READY, True, STUCK_AFTER_S + 1)

    state = readiness([lonely], draining=False, requires_upstream=False)

    assert (state.ready, state.reasons) == (True, ("worker 0 has no connection to its upstream",))
    assert not readiness([stuck], draining=False, requires_upstream=False).ready
    assert not readiness([lonely], draining=True, requires_upstream=False).ready


def test_readiness_heartbeat_at_the_limit_is_ready() -> None:
    """The limit itself is still good."""
    at_limit = WorkerHealth(WorkerState.READY, True, STUCK_AFTER_S)

    assert readiness([at_limit], draining=False).ready


def test_readiness_draining_is_not_ready_but_alive() -> None:
    """Who is told to leave gets no new traffic, and no restart."""
    state = readiness([GOOD, GOOD], draining=True)

    assert (state.ready, state.alive, state.reasons) == (False, True, ("the gateway is draining",))


def test_readiness_bad_configuration_is_ready_and_says_so() -> None:
    """The one before it serves."""
    state = readiness([GOOD], draining=False, configuration_is_bad=True)
    assert (state.ready, state.alive) == (True, True)
    assert state.reasons == ("the configuration can't be used, the one before it holds",)


def test_readiness_all_good_has_no_reasons() -> None:
    """Nothing wrong, nothing said."""
    assert readiness([GOOD, GOOD], draining=False).reasons == ()


def ask(
    query: str, headers: dict[str, str] | None = None, method: str = "GET", page: str = "profile"
) -> tuple[Reply, list[tuple[float, int]]]:
    """Ask for a profile; return the reply and what was asked of the workers."""
    asked: list[tuple[float, int]] = []

    async def collect(seconds: float, hz: int) -> Profile:
        asked.append((seconds, hz))
        return Profile({}, (), 0, 10**9, hz)

    async def heap(seconds: float) -> Profile:
        asked.append((seconds, 0))
        return Profile({}, (), 0, 10**9, 0, measure=HEAP)

    given = {"accept": "*/*"} if headers is None else headers
    request = AdminRequest(method, f"/debug/pprof/{page}", query, "localhost", given)
    return asyncio.run(ProfilePage(collect, heap).reply(request)), asked


@pytest.mark.parametrize(
    ("query", "asked"),
    [
        ("", (10, 99)),
        ("seconds=1", (1, 99)),
        ("seconds=60&hz=500", (60, 500)),
        ("hz=1&seconds=2&format=folded", (2, 1)),
    ],
)
def test_profile_query_in_range_is_taken(query: str, asked: tuple[int, int]) -> None:
    """1 to 60 seconds, 1 to 500 samples a second; 10 and 99 if nothing is said."""
    reply, calls = ask(query)

    assert reply.status == 200
    assert calls == [asked]


@pytest.mark.parametrize(
    "query",
    [
        "seconds=0", "seconds=61", "seconds=99999", "seconds=-1", "seconds=1.5", "seconds=", "seconds=abc",
        "seconds=1&seconds=2", "seconds=%31%30%30", "seconds=nan", "seconds=1e1", "hz=0", "hz=501", "hz=x",
        "format=html", "format=svg", "format=", "second=5", "seconds=٣",
    ],
)  # fmt: skip
def test_profile_query_bad_is_400_and_takes_nothing(query: str) -> None:
    """B-51: a bad query costs the workers nothing."""
    with pytest.raises(RefusalError) as caught:
        ask(query)

    assert caught.value.reply.status == 400


@pytest.mark.parametrize(
    ("query", "content_type"),
    [
        ("", "application/octet-stream"),
        ("format=pprof", "application/octet-stream"),
        ("format=folded", TEXT),
        ("format=speedscope", "application/json"),
    ],
)
def test_profile_is_a_file_for_pprof_unless_text_is_asked_for(query: str, content_type: str) -> None:
    assert ask(query)[0].content_type == content_type


@pytest.mark.parametrize(
    ("query", "content_type"),
    [
        ("", TEXT),
        ("format=text&seconds=5", TEXT),
        ("format=pprof", "application/octet-stream"),
        ("format=folded", TEXT),
    ],
)
def test_heap_is_text_unless_a_file_is_asked_for(query: str, content_type: str) -> None:
    reply, calls = ask(query, page="heap")

    assert reply.content_type == content_type
    assert calls == [(5 if "5" in query else 10, 0)]


@pytest.mark.parametrize("query", ["hz=99", "seconds=61", "format=html", "seconds=1&seconds=2"])
def test_heap_query_bad_is_400_and_traces_nothing(query: str) -> None:
    with pytest.raises(RefusalError) as caught:
        ask(query, page="heap")

    assert caught.value.reply.status == 400


def test_profile_head_takes_no_profile() -> None:
    """HEAD asks whether and as what it would be served, and costs nothing."""
    reply, calls = ask("seconds=60", method="HEAD")

    assert (reply.status, reply.body, reply.content_type) == (200, None, "application/octet-stream")
    assert calls == []


def test_index_page_shows_commands_for_the_host_that_was_asked() -> None:
    """The commands on the page can be pasted as they are."""
    page = index_page(AdminRequest("GET", "/", "", "127.0.0.1:6061", {}), with_profiles=True).body

    assert page is not None
    assert b"go tool pprof -top 'http://127.0.0.1:6061/debug/pprof/profile?seconds=10'" in page


def test_index_page_leads_to_what_the_listener_serves() -> None:
    """It has links to the API as well."""
    page = index_page(AdminRequest("GET", "/", "", "localhost", {}), with_profiles=False).body

    assert page is not None
    for path in (b"/metrics", b"/healthz", b"/readyz", b"/api/v1/openapi.json"):
        assert b'href="%s"' % path in page
    assert f"<p>Version {DESCRIPTION}. ".encode() in page


def test_credentials_that_fail_are_told_and_stop_nothing() -> None:
    state = readiness([GOOD], draining=False, credentials=[CredentialProblem("aws", "no <role>", 1)])

    assert state.ready and state.reasons == ("the credentials of the upstream aws can't be renewed: no <role>",)
    page = index_page(AdminRequest("GET", "/", "", "localhost", {}), with_profiles=False, problems=state.reasons)
    assert b"can&#x27;t be renewed: no &lt;role&gt;" in page.body
