"""How people sign in on the admin listener with a browser: a form for the token, and a cookie for the session.

Knows: the form, the cookie's attributes, what pages ask of their session. Does not know: which tokens there are
(roles.py), or how long a session lasts (sessions.py).

    GET  /sign-in    the form. So does any page, to a browser that has not signed in
    POST /sign-in    token=...: 303 to / with the cookie, or 401 and the form again
    GET  /session    {"role", "csrf"}: what a page may offer, and sends with each change (roles.CSRF_HEADER)
    POST /sign-out   csrf=...: ends the session; 303 to the form

The cookie is HttpOnly and SameSite=Strict (RFC 6265bis §4.1.2), and Secure under TLS. A browser is never sent to where
a request says.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final
from urllib.parse import parse_qs

import orjson

from velox.admin.message import HTML, HTML_POLICY, AdminRequest, RefusalError, Reply
from velox.admin.roles import TokenCheck, cookie_name
from velox.admin.sessions import LIFETIME_S

__all__ = ["SignIn", "wants_html"]

_FORM: Final = Path(__file__).with_name("sign_in.html").read_text("utf-8")
_WRONG: Final = '<p role="alert">This is neither the admin token nor the viewer token of this gateway.</p>'
_SIGN_OUT: Final = (
    '<form method="post" action="/sign-out"><input type="hidden" name="csrf" value="{csrf}">'
    "<button>Sign out</button></form>"
)
_MOST_FIELDS: Final = 4


class SignIn:
    """check: knows the tokens, and keeps the sessions. is_secure: the listener speaks TLS only."""

    def __init__(self, check: TokenCheck, *, is_secure: bool) -> None:
        self._check: Final = check
        self._is_secure: Final = is_secure

    def __repr__(self) -> str:
        return f"<SignIn secure={self._is_secure}>"

    def form(self, status: int, notice: str = "") -> Reply:
        """Return the form. notice: HTML that stands above the field."""
        page = _FORM.replace("{notice}", notice)
        return Reply(status, page.encode(), HTML, (HTML_POLICY,))

    def sign_out_form(self, request: AdminRequest) -> str:
        """Return the HTML by which the browser's session is ended; "" where it has none."""
        session = self._check.session_of(request)
        return "" if session is None else _SIGN_OUT.replace("{csrf}", session.csrf)

    def reply(self, request: AdminRequest) -> Reply:
        """Answer a request for one of its paths. Raises RefusalError."""
        match request.path, request.method:
            case "/sign-in", "POST":
                return self._begin(request)
            case "/sign-in", _:
                return _see("/") if self._check.is_trusted(request) else self.form(200)
            case "/sign-out", "POST":
                return self._end(request)
            case "/session", "GET" | "HEAD":
                return self._session(request)
            case _:
                raise RefusalError(405, "this path takes POST only", (("Allow", "POST"),))

    def _begin(self, request: AdminRequest) -> Reply:
        if self._check.is_open:
            return _see("/")
        identifier = self._check.sign_in(_field(request, "token").strip())
        if identifier is None:
            return self.form(401, _WRONG)
        return _see("/", self._cookie(request, identifier, LIFETIME_S))

    def _end(self, request: AdminRequest) -> Reply:
        session = self._check.session_of(request)
        if session is not None and not session.allows(_field(request, "csrf")):
            raise RefusalError(403, "the form was not one of this session: reload the page")
        self._check.sign_out(request)
        return _see("/sign-in", self._cookie(request, "", 0))

    def _session(self, request: AdminRequest) -> Reply:
        role, session = self._check.role_of(request), self._check.session_of(request)
        fields = {"role": "" if role is None else role.value, "csrf": "" if session is None else session.csrf}
        return Reply(200, orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE), "application/json")

    def _cookie(self, request: AdminRequest, value: str, lifetime_s: int) -> str:
        secure = "; Secure" if self._is_secure else ""
        return f"{cookie_name(request)}={value}; Path=/; Max-Age={lifetime_s}; HttpOnly; SameSite=Strict{secure}"


def wants_html(request: AdminRequest) -> bool:
    """Tell whether a person's browser asks for a page."""
    return request.method in ("GET", "HEAD") and "text/html" in request.headers.get("accept", "")


def _see(path: str, cookie: str = "") -> Reply:
    """Return a reply that has the browser read another page (303, RFC 9110 §15.4.4)."""
    return Reply(303, b"", headers=(("Location", path), *((("Set-Cookie", cookie),) if cookie else ())))


def _field(request: AdminRequest, name: str) -> str:
    """Return a field of a form, "" if it has none. Raises RefusalError for a body that is no form."""
    try:
        return parse_qs(request.body.decode("ascii"), max_num_fields=_MOST_FIELDS).get(name, [""])[0]
    except ValueError as exc:
        raise RefusalError(400, "expected the fields of a form (application/x-www-form-urlencoded)") from exc
