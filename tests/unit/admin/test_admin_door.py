"""Who may see what on the admin listener: with a token and without one, with profiles and without them."""

from __future__ import annotations

import asyncio
import ssl
import threading
import time
from collections.abc import Callable

import pytest

from velox.admin.app import AdminApp
from velox.admin.health import Readiness
from velox.admin.message import AdminRequest, RefusalError, Reply
from velox.admin.pprof import ProfilePage
from velox.admin.roles import OPEN_PAGES, TokenCheck
from velox.admin.running.pages import RUNNING_PAGES, RunningPages
from velox.admin.sessions import Sessions
from velox.profiling.samples import HEAP, Profile

TOKEN = "admin-token"
RIGHT = {"authorization": f"Bearer {TOKEN}"}
PROFILE = "/debug/pprof/profile"
HEAP_PAGE = "/debug/pprof/heap"


async def collect(seconds: float, hz: int) -> Profile:
    """Take no time and find nothing."""
    return Profile({}, (), 0, 10**9, hz)


async def heap(seconds: float) -> Profile:
    """Find nothing."""
    return Profile({}, (), 0, 10**9, 0, measure=HEAP)


async def silent(what: str, which: str) -> list[bytes | None]:
    """Be workers that do not answer."""
    return [None, None]


def app(
    *,
    token: str | None = TOKEN,
    viewer: str | None = None,
    ready: bool = True,
    profiles: bool = True,
    tls: Callable[[], ssl.SSLContext] | None = None,
) -> AdminApp:
    """Return an admin listener's pages."""
    return AdminApp(
        metrics=lambda: b"figures",
        ready=lambda: Readiness(alive=ready, ready=ready, reasons=("worker 0 has a secret reason",)),
        profiles=ProfilePage(collect, heap) if profiles else None,
        running=RunningPages(silent) if profiles else None,
        token=token,
        viewer_token=viewer,
        tls=tls,
    )


def request(path: str, headers: dict[str, str] | None = None) -> AdminRequest:
    return AdminRequest("GET", path, "", "localhost", headers or {})


def ask(served: AdminApp, path: str, headers: dict[str, str] | None = None) -> Reply:
    """Ask for a page; a refusal is a reply too."""
    try:
        served.admit(request(path, headers))
        return asyncio.run(served.reply(request(path, headers)))
    except RefusalError as refusal:
        return refusal.reply


@pytest.mark.parametrize("path", ["/", "/metrics", "/debug/pprof/", PROFILE, "/absent", "/debug/pprof/../", "/readyz/"])
def test_page_without_the_token_is_401_also_if_there_is_none(path: str) -> None:
    """B-51: nobody learns what there is; the answer says how to ask, and repeats nothing."""
    reply = ask(app(), path)

    assert (reply.status, reply.body) == (401, b"send the admin token: Authorization: Bearer TOKEN\n")
    assert reply.headers == (("WWW-Authenticate", "Bearer"),)


@pytest.mark.parametrize(
    "authorization",
    [
        *("", "Bearer", "Bearer ", "Bearer admin-toke", "Bearer admin-tokenx", "Bearer ADMIN-TOKEN", "admin-token"),
        *("Basic YWRtaW4tdG9rZW4=", "Bearer admin-token admin-token", "Bearer \xe9", f"Bearer {'x' * 8000}"),
    ],
)
def test_wrong_token_gets_the_same_answer_as_none(authorization: str) -> None:
    """Missing, wrong, malformed: one answer."""
    assert ask(app(), "/metrics", {"authorization": authorization}) == ask(app(), "/metrics")


@pytest.mark.parametrize("spelling", ["Bearer admin-token", "bearer  admin-token"])
def test_right_token_sees_every_page(spelling: str) -> None:
    """The scheme's case does not matter; what is not there is 404 now."""
    for path, status in (("/", 200), ("/metrics", 200), ("/debug/pprof/", 200), (PROFILE, 200), ("/absent", 404)):
        assert ask(app(), path, {"authorization": spelling}).status == status, path


def test_probes_need_no_token_and_say_nothing_more_than_yes_or_no() -> None:
    """A kubelet has no token. Why a worker is not ready is for who has it."""
    assert sorted(OPEN_PAGES) == [
        *("/health", "/health/liveliness", "/health/liveness", "/health/readiness"),
        *("/healthz", "/livez", "/readyz"),
    ]
    for ready, status in ((True, 200), (False, 503)):
        served = app(ready=ready)
        assert {ask(served, path).status for path in OPEN_PAGES} == {status}
        assert all(b"secret" not in (ask(served, path).body or b"") for path in OPEN_PAGES)
        assert b"secret" in (ask(served, "/readyz", RIGHT).body or b"")
        assert b"secret" not in (ask(served, "/readyz", {"authorization": "Bearer x"}).body or b"")


def test_commands_of_the_index_speak_tls_where_the_listener_does() -> None:
    """They can be pasted as they are."""
    plain, secure = app(), app(tls=lambda: ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    for served, origin, other in (
        (plain, b"'http://localhost/", b"https://"),
        (secure, b"'https://localhost/", b"http://"),
    ):
        for path in ("/", "/debug/pprof/"):
            page = ask(served, path, RIGHT).body or b""
            assert page.count(origin) == 2 and other not in page


def test_without_a_token_every_page_is_open() -> None:
    """On loopback, as long as nobody says otherwise; readiness gives its reasons."""
    served = app(token=None)

    assert [ask(served, path).status for path in ("/", "/metrics", PROFILE, "/readyz", "/livez")] == [200] * 5
    assert b"secret" in (ask(served, "/readyz").body or b"")


def test_without_profiling_its_pages_are_404_and_not_offered() -> None:
    """VELOX_PROFILING=off."""
    served = app(token=None, profiles=False)

    assert [ask(served, path).status for path in ("/debug/pprof", "/debug/pprof/", PROFILE, HEAP_PAGE)] == [404] * 4
    assert [ask(served, path).status for path in RUNNING_PAGES] == [404] * 3
    assert b"pprof" not in (ask(served, "/").body or b"")
    assert b"pprof" in (ask(app(token=None), "/").body or b"")


def test_profiles_keep_their_distance() -> None:
    """The next one a pause after the start of the one before, to the moment; a bad query costs no turn."""
    now = [1000.0]
    page = ProfilePage(collect, heap, 60.0, lambda: now[0])

    async def status(query: str = "seconds=1") -> int:
        try:
            return (await page.reply(AdminRequest("GET", PROFILE, query, "localhost", {}))).status
        except RefusalError as refusal:
            assert refusal.reply.status == 400 or dict(refusal.reply.headers)["Retry-After"] == "1"
            return refusal.reply.status

    async def ask_over_time() -> list[int]:
        found = [await status("seconds=99999"), await status()]
        for at in (1059.1, 1060.0, 1119.9, 1120.0):
            now[0] = at
            found.append(await status())
        return found

    assert asyncio.run(ask_over_time()) == [400, 200, 429, 200, 429, 200]


def test_viewer_reads_and_changes_nothing() -> None:
    """Pages that are read are open to it; what costs workers time or changes something is not."""
    served, viewer = app(viewer="viewer-token"), {"authorization": "Bearer viewer-token"}
    for path, status in (("/", 200), ("/metrics", 200), (PROFILE, 403), ("/reload", 403), ("/absent", 404)):
        assert ask(served, path, viewer).status == status, path
    assert b"secret" in (ask(served, "/readyz", viewer).body or b"")
    assert ask(served, PROFILE, RIGHT).status == 200
    assert ask(app(), "/metrics", viewer).status == 401


def test_door_hides_its_token() -> None:
    """Not in its repr, which a log could show."""
    assert TOKEN not in repr(TokenCheck(TOKEN, None, Sessions(time.monotonic)))


def test_probes_are_answered_while_figures_are_rendered() -> None:
    """With thousands of origins that takes seconds. Two pages are not rendered at a time."""
    go, running = threading.Event(), threading.Lock()

    def render() -> bytes:
        assert running.acquire(blocking=False), "one at a time"
        assert go.wait(5)
        running.release()
        return b"figures"

    async def run() -> None:
        served = AdminApp(metrics=render, ready=lambda: Readiness(True, True, ()), profiles=None)
        pages = [asyncio.create_task(served.reply(request("/metrics"))) for _ in "ab"]
        await asyncio.sleep(0)  # each has begun
        try:
            probe = await served.reply(request("/livez"))
            assert probe.status == 200 and not any(page.done() for page in pages)
        finally:
            go.set()
        assert [(await page).body for page in pages] == [b"figures", b"figures"]

    asyncio.run(run())
