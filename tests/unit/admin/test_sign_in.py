"""Browsers on the admin listener: the form, the session that it begins, what that opens, how it ends."""

from __future__ import annotations

import asyncio
import json
from typing import Final
from urllib.parse import urlencode

import pytest

from velox.admin.app import AdminApp
from velox.admin.health import Readiness
from velox.admin.message import AdminRequest, RefusalError, Reply
from velox.admin.sessions import LIFETIME_S, Sessions

TOKEN: Final = "admin-token"
VIEWER: Final = "viewer-token"
HOST: Final = "gateway.example:6060"
HTML: Final = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Browser:
    """Keeps the cookie that the listener sets, and follows nothing by itself."""

    def __init__(self, token: str | None = TOKEN, host: str = HOST) -> None:
        self.clock = Clock()
        self.host = host
        self.cookie = ""
        self.app = AdminApp(
            metrics=lambda: b"figures",
            ready=lambda: Readiness(alive=True, ready=True, reasons=()),
            profiles=None,
            token=token,
            viewer_token=VIEWER,
            now_s=self.clock,
        )

    def ask(self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> Reply:
        """Send a request as a browser does; a refusal is a reply, too."""
        sent = HTML | ({"cookie": self.cookie} if self.cookie else {}) | (headers or {})
        request = AdminRequest(method, path, "", self.host, sent, body)
        try:
            self.app.admit(request)
            reply = asyncio.run(self.app.reply(request))
        except RefusalError as refusal:
            reply = refusal.reply
        for name, value in reply.headers:
            if name == "Set-Cookie":
                self.cookie = value.partition(";")[0]
        return reply

    def sign_in(self, token: str = TOKEN) -> Reply:
        """Send the form."""
        return self.ask("POST", "/sign-in", urlencode({"token": token}).encode())

    def csrf(self) -> str:
        """Return what pages of the session send with each change."""
        fields = json.loads(self.ask("GET", "/session").body or b"")
        return str(fields["csrf"])


def header(reply: Reply, wanted: str) -> str:
    """Return a header's value, "" if there is none."""
    return dict(reply.headers).get(wanted, "")


@pytest.mark.parametrize("path", ["/", "/metrics", "/absent", "/debug/pprof/"])
def test_browser_without_a_session_gets_the_form(path: str) -> None:
    """U8: a person sees where the token goes, not a line for programs."""
    reply = Browser().ask("GET", path)

    assert reply.status == 401 and reply.content_type.startswith("text/html")
    assert b'<form method="post" action="/sign-in">' in (reply.body or b"")
    assert "script-src" not in header(reply, "Content-Security-Policy")
    assert header(reply, "Content-Security-Policy").startswith("default-src 'none'")


def test_program_gets_a_line_as_before() -> None:
    """Prometheus and scripts ask for no HTML."""
    reply = Browser().ask("GET", "/metrics", headers={"accept": "*/*"})
    assert (reply.status, reply.body) == (401, b"send the admin token: Authorization: Bearer TOKEN\n")


def test_session_opens_pages_until_its_end() -> None:
    """Twelve hours after the form was sent, however much was asked for in between."""
    browser = Browser()
    reply = browser.sign_in()

    assert (reply.status, header(reply, "Location")) == (303, "/")
    cookie = header(reply, "Set-Cookie")
    assert cookie.startswith("velox_session_6060=")
    assert cookie.endswith(f"; Path=/; Max-Age={LIFETIME_S}; HttpOnly; SameSite=Strict")
    assert TOKEN not in cookie
    assert browser.ask("GET", "/metrics").body == b"figures"
    browser.clock.now_s += LIFETIME_S - 1
    assert browser.ask("GET", "/").status == 200
    browser.clock.now_s += 1
    assert browser.ask("GET", "/").status == 401


def test_wrong_token_gets_the_form_again() -> None:
    """No cookie, and no word of what was written."""
    for token in ("", "wrong-token", f"{TOKEN}x", "<script>", "\u00e9", "\u20ac", "\U0001f600"):
        browser = Browser()
        reply = browser.sign_in(token)
        assert reply.status == 401 and not browser.cookie
        assert b'role="alert"' in (reply.body or b"") and (not token or token.encode() not in (reply.body or b""))


def test_viewer_stays_one() -> None:
    """A session may do what its token may."""
    browser = Browser()
    browser.sign_in(VIEWER)

    assert json.loads(browser.ask("GET", "/session").body or b"")["role"] == "viewer"
    assert browser.ask("GET", "/metrics").status == 200
    assert browser.ask("POST", "/reload", headers={"x-velox-csrf": browser.csrf()}).status == 403


def test_change_needs_the_sessions_own_word() -> None:
    """A page of another origin has the cookie sent at most; it can't read what goes with it, nor set the header."""
    browser = Browser()
    browser.sign_in()

    for csrf in ("", "x", "\u00e9"):
        assert browser.ask("POST", "/reload", headers={"x-velox-csrf": csrf}).status == 401
    other = Browser()
    other.sign_in()
    assert browser.ask("POST", "/reload", headers={"x-velox-csrf": other.csrf()}).status == 401
    # There is nobody to reload here: who may ask for it learns that.
    assert browser.ask("POST", "/reload", headers={"x-velox-csrf": browser.csrf()}).status == 404


def test_shown_token_counts_before_the_cookie() -> None:
    """A wrong one is wrong in a browser with a session, too."""
    browser = Browser()
    browser.sign_in()
    assert browser.ask("GET", "/metrics", headers={"authorization": "Bearer x"}).status == 401


def test_sign_out_ends_the_session_and_no_other() -> None:
    """Also for who has copied the cookie. The form is one of the session's own pages."""
    browser = Browser()
    browser.sign_in()
    first = browser.cookie
    browser.sign_in()
    second = browser.cookie

    assert browser.ask("POST", "/sign-out", b"csrf=x").status == 403
    assert browser.ask("GET", "/").status == 200
    reply = browser.ask("POST", "/sign-out", urlencode({"csrf": browser.csrf()}).encode())
    assert (reply.status, header(reply, "Location")) == (303, "/sign-in")
    assert "Max-Age=0" in header(reply, "Set-Cookie")
    assert browser.ask("GET", "/", headers={"cookie": second}).status == 401
    assert browser.ask("GET", "/", headers={"cookie": f"theme=dark; {first}"}).status == 200


def test_index_has_the_form_that_signs_out() -> None:
    """With this session's own word in it; who shows a token instead has no session to end."""
    browser = Browser()
    browser.sign_in()
    page = browser.ask("GET", "/", headers={"accept": "*/*"}).body or b""
    assert b'action="/sign-out"' in page and browser.csrf().encode() in page
    browser.cookie = ""
    shown = {"accept": "*/*", "authorization": f"Bearer {TOKEN}"}
    page = browser.ask("GET", "/", headers=shown).body or b""
    assert b"/sign-out" not in page


def test_gateways_on_one_machine_have_cookies_of_their_own() -> None:
    """A browser keeps one set of cookies for all ports of a host."""
    assert Browser(host="127.0.0.1:7070").sign_in().headers[1][1].startswith("velox_session_7070=")
    assert Browser(host="localhost").sign_in().headers[1][1].startswith("velox_session=")


def test_listener_without_a_token_asks_nobody() -> None:
    """As before: pages are open on loopback, and the form leads there."""
    browser = Browser(token=None)
    assert browser.ask("GET", "/").status == 200
    for method in ("GET", "POST"):
        reply = browser.ask(method, "/sign-in", b"token=x" if method == "POST" else b"")
        assert (reply.status, header(reply, "Location"), browser.cookie) == (303, "/", "")
    assert json.loads(browser.ask("GET", "/session").body or b"") == {"role": "open", "csrf": ""}


@pytest.mark.parametrize(
    "body", [b"", b"token", b"token=", b"token=%zz", b"token=\xff", b"a=1&" * 40, b"{}", b"\x00" * 99]
)
def test_what_is_no_form_signs_nobody_in(body: bytes) -> None:
    """An error, and no session."""
    browser = Browser()
    assert browser.ask("POST", "/sign-in", body).status in (400, 401)
    assert not browser.cookie


def test_oldest_sessions_give_way() -> None:
    """There is a bound on what sign-ins take of memory."""
    sessions = Sessions(Clock())
    names = [sessions.begin(b"digest") for _ in range(70)]

    assert [sessions.find(name) is not None for name in names] == [False] * 6 + [True] * 64
    assert len(set(names)) == 70 and all(len(name) >= 43 for name in names)


def test_sessions_that_are_over_are_forgotten_first() -> None:
    """A new one takes the place of what has expired, not of one that counts."""
    clock = Clock()
    sessions = Sessions(clock)
    early = [sessions.begin(b"digest") for _ in range(40)]
    clock.now_s += LIFETIME_S
    late = [sessions.begin(b"digest") for _ in range(64)]

    assert all(sessions.find(name) is None for name in early)
    assert all(sessions.find(name) is not None for name in late)
